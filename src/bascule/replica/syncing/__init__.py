"""The sync threads, and what they know of each partition.

::

    log_syncer     the threads; which partition is synced next
    checkpointing  writes the checkpoint of one partition
    sync_state     what is requested for one partition, and how far its files are
    work_queue     a queue that wakes no more threads than there is work
"""
