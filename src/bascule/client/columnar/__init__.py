"""Publishes Arrow batches: compiled code encodes whole columns as NATS operations.

    with bascule.connect_sync() as client:
        published = client.publish_batches(batches, message_ids="load-7.")

A batch has the columns `subject`, `key`, `value`, `headers` and `message_id`. `value` is required,
and `subject` unless all messages have one subject. The guarantees are those of `publish_many`: at
least once, and exactly once for messages with ids that the stream remembers. No Python code runs
per row. Memory holds only the rows without ack.

    columns         maps Arrow columns to buffers; reports errors by row and column
    publish_window  chunks of operations without ack; counts acks
    publisher       the methods of the two clients
"""

from __future__ import annotations
