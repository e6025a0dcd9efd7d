"""What of received payloads is in memory only, when it goes to the disk, and who reads it whole.

write_back    the bytes of one payload that the kernel has not written yet
paced_thread  the thread that has them written, for all payloads of a node
pacing        at which rate, so that the syncs of logs are not delayed; pure
whole_reads   reads of whole payloads, on threads of their own
sums_builds   those that make the checksums of blocks, one of each payload for all who need them
leftovers     removes what was received of payloads that no record names
"""
