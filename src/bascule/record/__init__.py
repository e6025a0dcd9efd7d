"""Record batches: the one shape a record has on disk, on the wire and in a client.

The layout is Kafka's record batch, version 2 (magic 2). A batch is 61 bytes of header and then its
records back to back::

    0         8         12        16   17      21        23            27           35          43
    | base    | batch   | leader  | 2  | crc   | attri-  | last offset | base       | max       |
    | offset  | length  | epoch   |    | 32-C  | butes   | delta       | timestamp  | timestamp |
    43        51        53        57         61
    | producer| producer| base    | record   | records ...
    | id      | epoch   | sequence| count    |

The CRC covers bytes 21 to the end, so a leader stamps base offset and leader epoch into bytes 0-8
and 12-16 of a finished batch without touching the CRC.

A record that came from a NATS message carries, in this order, the headers

1. `subject`: the NATS subject it was published on;
2. `reply`: its reply subject, where it had one. A message without a reply subject whose own first
   header is called `reply` gets a `reply` without value here, so that position 2 is never in doubt;
3. the message's NATS headers, in their order, names as sent, without `Bascule-Key`, which became
   the record's key.

What this floor promises: bytes in, values out; nothing here reads a clock, a file or a socket.
Per-record work is in `_hot`; everything else sees whole batches.
"""
