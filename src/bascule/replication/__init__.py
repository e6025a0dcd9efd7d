"""Which records of a partition are committed, and who counts. Pure: values in, values out.

::

    leader          the leader's view of its followers: their positions, the offset up to which
                    every in-sync replica has the log, and the in-sync replica set it asks for
    high_watermark  the high watermark of a partition without followers

The high watermark is the first offset that is not committed. It is the least position among the
committed in-sync replica set (ISR) and the replicas that the leader has proposed to add to it:

::

    proposed to add F      F counts from now on, since the addition may already be committed
    proposed to remove F   F counts until the removal is committed, since it may still be elected

It never goes back, and it does not move while the committed ISR has fewer than `min_isr` members.
A position is an offset below which a replica has the same records as the leader: synced ones under
`sync = always`, else appended ones. At the start of a leader epoch no position of a follower is
known. The first fetch of the epoch, checked against the leader's log, gives the first one.

There is no clock here. Times are arguments, in nanoseconds of the leader's monotonic clock.
"""
