"""One partition on this node: its log, its high watermark, and the threads that serve it.

::

    batches -> log_writer    append(replica, batches, on_done): the only way to append to a log
            -> partition     evaluates publish headers, stamps offset, time and CRC, writes once
            -> syncing       one fdatasync for everything appended before it
            -> partition     advances the high watermark and returns the acks to send
            -> partitions    calls the watchers of the partition on the event loop

    opening             compares the identity, opens the log, loads the dedupe window
    log_identity        the file that says which partition a log belongs to
    dedupe_loading      reads the recent message ids of a log
    internal_publisher  appends records of the node itself
    purgatory           requests that wait for a change of a partition
    roles               what this node is for a partition, and the high watermark of each role
    follower            copies the logs that other nodes lead
    handover            what is received while the leadership changes
    log_time            the time that records are stamped with, which never goes back
    maintenance         retention, compaction, checkpoints and the check of all CRCs, in background
    scrub               reads every log once a period, and compares replicas
    disk_reserve        a file that is given back when the disk is full
    failure_run         logs the first of the failures in a row, and their end
    metrics             histograms and per-partition metrics

Promises: one thread at a time appends to logs, in turn, so the batches of one caller stay in order.
With `sync = always` an ack is sent after the fdatasync that covers its batch. A partition whose
disk fails, or in which a bug shows, stops alone; every waiting publisher gets an error ack.

It never reads NATS, never decides which partitions exist, and never serves a record above the high
watermark.

Files, in the directory of each partition, beside those of `storage.partition_log`::

    identity       stream id and partition of the log, see `log_identity`
    message-ids    empty; exists once a record with a message id may be in the log
"""
