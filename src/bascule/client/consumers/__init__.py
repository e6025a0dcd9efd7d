"""Consumers: iterators of messages that keep their position in the stream `_offsets`.

    base           what both kinds share: an iterator in an `async with` block
    named          a consumer that reads all partitions, or those it was told
    group          a member of a group, which reads the partitions that it is assigned
    blocking       both without asyncio
    delivery       reads partitions and hands out their messages; knows which are done
    membership     joins, heartbeats, commits and leaves; has the group's protocol in it
    coordinator    requests to the coordinator of a group, whichever node it is now
    assignors      who gets which partition; pure

          the application asks for the next message
                          |
    coordinator --> membership --> group --> delivery --> read_batches, one for each partition
        ^               |
        '-- heartbeats -'   on a thread of their own, while the application works

Delivery is at least once, and those of a partition come in order. Partitions are taken from a
member only while it asks for the next message: no member works on a message of a partition that
another member has, unless it was removed from the group. A member that was removed cannot commit.
"""

from __future__ import annotations

from bascule.client.consumers.blocking import SyncConsumer
from bascule.client.consumers.group import GroupConsumer, GroupOptions
from bascule.client.consumers.named import Consumer

__all__ = ["Consumer", "GroupConsumer", "GroupOptions", "SyncConsumer"]
