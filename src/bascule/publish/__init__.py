"""What publishers may request, and the acks they get. Pure: batches in, decisions and acks out.

::

    headers            publish headers of a batch: Nats-Msg-Id, Nats-Expected-*, Bascule-Ack
    admission          paused, read-only, rates and sizes: which records a stream accepts
    stream_subjects    which streams of the node receive the same messages
    preconditions      dedupe window and expectations, evaluated where offsets are assigned
    acks               acks and error acks, and their policies
    pending_acks       the batches that wait for their acks, as their policies say
    unconfirmed        refusals of a leader that may have a successor already
    payload_chunks     chunks of payloads, which go past the log
    unstamped_batch    a batch without offset, time and CRC, and the port that appends it

Names and error codes are those of JetStream where it has one. A request that the server does not
support gets an error ack; it is never ignored. Every message with a reply subject gets an ack or an
error ack; under the policy `none` only an error ack. Nothing here does I/O or keeps files: the
dedupe window is derived from the log.
"""
