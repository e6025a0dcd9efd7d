"""What of received payloads is in memory only, and when it goes to the disk.

write_back    the bytes of one payload that the kernel has not written yet
"""
