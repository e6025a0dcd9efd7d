"""NATS in: from the bytes of a connection to batches waiting for an offset, and acks back.

::

    servers -> nats_dialer  which one takes us: at the start, after a loss, before one goes
    socket -> nats_source   one reusable buffer; wire._hot finds the messages in it
           -> sequencer     the messages of one subscription become the records of one batch
           -> (broker)      offset, timestamp, CRC, one write, a grouped sync
           -> acks          what the high watermark has passed is answered, many acks in one write

What this floor promises: a message the server delivered is either in a batch handed on, in order
of arrival, or refused with an error ack; nothing is dropped in silence. `sequencer` and `acks` are
pure; `nats_source`, `nats_transport` and `nats_dialer` own the socket and their threads;
`subscriptions` knows what a server has yet to confirm, `nats_health` counts and tells what goes
wrong. What it never does: wait for a disk. The room a reader writes batches into is bounded, and
when it is full the reader waits and the wait is counted.
"""
