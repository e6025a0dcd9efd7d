"""One partition on this node: its log, its high watermark, and the threads that serve it.

::

    batches -> log_writer    append(replica, batches, on_done): the only way to the end of a log
            -> partition     publish headers decided, offset, time and CRC stamped, one write
            -> log_syncer    one fdatasync for everything appended before it
            -> partition     the high watermark moves; acks that waited are handed over
            -> partitions    watchers of the partition run on the event loop

    maintenance    retention, compaction, checkpoints and the check of every byte, in the background
    purgatory      requests that wait until a partition moves

Promises: one thread appends to all logs, so batches of one caller stay in order. An ack under
`sync = always` leaves after the fdatasync that covers its batch. A partition whose disk fails stops
alone, and everybody who waits for it gets an error. What it never does: read NATS, or know who
published.
"""
