"""Record batches: the format of records on disk, on the wire and in a client.

The format is Kafka's record batch, version 2 (magic 2). A batch is a header of 61 bytes and then
its records, back to back::

    0         8         12        16   17      21        23            27           35          43
    | base    | batch   | leader  | 2  | crc   | attri-  | last offset | base       | max       |
    | offset  | length  | epoch   |    | 32-C  | butes   | delta       | timestamp  | timestamp |
    43        51        53        57         61
    | producer| producer| base    | record   | records ...
    | id      | epoch   | sequence| count    |

The CRC covers bytes 21 to the end. So a leader can stamp base offset and leader epoch into bytes
0-8 and 12-16 of a finished batch without changing the CRC.

A record that was a NATS message has these headers, in this order:

1. `subject`: the NATS subject of the message. Left out if it is that of the stream, unless the
   stream asks for it, or the message's own first header is named `subject`. So a first header
   `subject` is unambiguous, and a record without one has the subject of its stream;
2. `reply`: its reply subject, if it had one and the stream asks for it. If it is left out, but the
   message's own first header is named `reply`, the record gets a `reply` without value here. So a
   `reply` in this place is unambiguous;
3. the message's NATS headers, in their order, with their names as sent. `Bascule-Key` is omitted,
   because it is the record's key.

This package is pure: it reads no clock, no file and no socket. Per-record work is in `_hot`. All
other modules handle whole batches.
"""
