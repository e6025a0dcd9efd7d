"""Replicas with damaged logs heal themselves from those that have all records.

::

    damage is found -> the partition stops here -> the controller takes it out of the ISR
                    -> another leader epoch begins, in which the leader knows nothing of this log
                    -> its leader says that its own replica is open, has not failed, and is not
                       known to be damaged
                    -> the log ends before its first damage -> it is copied from there on, as by any
                       follower -> it is in sync again

Damage is found when a log is opened, by reads, compaction, retention and the scrubber, and by
followers that get batches with a bad CRC from here, twice at one offset.

A log that may be compacted is copied from its beginning: others may have removed tombstones that it
had behind the damage.

Promises: nothing is removed before the removal from the ISR is committed and another replica
serves, so nothing that was acknowledged is lost. The last replica that has every committed record
is never healed, and none from it while it is damaged. A disk that damages logs again and again does
not make the node copy them for ever: `history` has the limits.
The bytes from the damage on are kept in `aside/`, up to a bound; see `evidence`.

healer     decides when a replica can heal, and does it
history    how often was healed, on the disk
evidence   keeps damaged bytes
scrubs     scrubs of a stream on all nodes, and the comparison of replicas
full_disk  a node whose disk is full leaves the replicas in sync
accused    followers say that this leader's batches are damaged
"""
