"""One node as a process: wiring, start, drain, stop; nothing else.

::

    event loop        client listener, HTTP listener, controller, watchers, timers
    nats-reader       socket -> messages -> batches in the ingest buffer
    log-writer        batches get offset, time and CRC, and are written in order
    sync-0..3         grouped syncs; the high watermark moves; acks leave
    cold readers      what is not in the page cache is read here before the loop sends it

No thread but the event loop's ever runs a handler, and the event loop never waits for a disk.
"""
