"""Publishing Arrow: whole columns become NATS operations in compiled code, acks stay in columns.

    with bascule.connect_sync() as client:
        published = client.publish_batches(batches, message_ids="load-7.")

A batch has columns `subject`, `key`, `value`, `headers` and `message_id`; only `value` must be
there, and `subject` unless all go to one. What it promises is what `publish_many` promises: at
least once, exactly once where messages have ids that the stream remembers. No Python runs for a
row, and memory holds what is without ack, not what was published.

    columns     which buffers of a batch are what; its mistakes, told with row and column
    run         chunks of operations without ack; where acks are counted
    publisher   the methods of the two clients
"""

from __future__ import annotations
