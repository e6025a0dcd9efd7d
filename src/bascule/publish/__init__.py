"""What a publisher may ask, and what it is answered. Pure: batches and headers in, decisions out.

::

    headers            publish headers of a batch: Nats-Msg-Id, Nats-Expected-*, Bascule-Ack
    admission          paused, read-only, rates and sizes: what of a batch the stream accepts
    preconditions      dedupe window and expectations, decided where offsets are given
    acks               acks and error acks, and those that wait for the high watermark
    unstamped_batch    a batch that has everything but offset, time and CRC

The names and codes are JetStream's where it has one for the case. A request that the server cannot
fulfil is refused, never ignored.
"""
