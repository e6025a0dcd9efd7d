"""One node as a process: wires the parts, starts, drains and stops them.

    node              builds the parts and orders start and stop
    status            identity, liveness, readiness and statistics, for the HTTP listener
    binding           binds listeners, and says which option names another address
    cluster           the peer listener, Raft, and the controller
    founding          how empty nodes become one cluster
    discovery         finds the founders over NATS
    joining           how a node joins, finds its peers again, and learns that it was removed
    refusal           the end of a node that its cluster refuses
    cluster_file      the file `cluster.json`
    cluster_id        the cluster id, drawn, made and kept
    last_run          the file `last-run.json`
    archive_progress  how far archives have come, for retention that waits for them

The main threads, of which ARCHITECTURE.md lists all::

    event loop        client listener, HTTP listener, controller, watchers, timers
    nats-reader       NATS socket -> messages -> batches in the ingest buffer
    log-writer        stamps offset, time and CRC into batches, and appends them in order
    sync-0..3         sync the logs, move the high watermark, send acks
    disk threads      read file ranges that are not in the page cache, before the loop sends them

Promises:

* Only one node runs on a data directory; a second one is refused.
* The node is ready once its logs and listeners are open and its streams are subscribed. A log that
  cannot be opened stops only its own partition.
* A stop stores, syncs and acknowledges everything that was delivered, then closes the listeners.

Only the event loop runs request handlers, and it never waits for a disk. The node contains no logic
of its parts.
"""
