"""NATS ingest: from the bytes of a NATS connection to batches handed to the log writer.

::

    nats_ingest     the subscriptions of this node's streams: subscribe, configure, drain, acks out
    nats_source     one connection and its reading thread; survives reconnects
      nats_dialer     which server to connect to: at the start, after a loss, in lame duck mode
      nats_transport  the socket: blocking reads, queued writes, TLS
      nats_health     counts and logs what goes wrong with the connection
      subscriptions   which SUB the server has confirmed or refused
    chunk_reader    one reusable buffer; wire._hot finds the messages in it
    routing         subscription id -> partition slot -> replica, or a listener of the node itself
    sequencer       the messages of one partition in one chunk become the records of one batch
    ingest_buffer   bounded memory that batches are written into, until the log writer is done
    embedded_nats   the nats-server process that a node runs where no server is configured
      nats_supervisor restarts it when it ends

    bytes -> nats_source -> sequencer -> ingest_buffer -> publish.unstamped_batch.Append

`Append` is the port of the log writer. It stamps offset, time and CRC, and sends the acks.

Promises: every message that the server delivers for a subscription of a stream is handed to the
log writer, in the order of arrival, or gets an error ack if it asked for an ack. The buffer is
bounded. While it is full the reading thread waits, and each wait is counted and logged.

It never waits for a disk in any other place, never decides about offsets, preconditions or quotas,
and keeps no files except those of the embedded server (`<data>/nats/`: configuration, ports file,
log). `routing`, `sequencer` and `subscriptions` are pure.
"""
