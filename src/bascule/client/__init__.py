"""The Python client: admin over HTTP, publishing over NATS, reading over the log protocol.

    async with bascule.connect() as client:
        await client.create_stream("flights", "flights.>")
        ack = await client.publish("flights.JFK.B6", b"...", key="N593JB")
        async for message in client.read("flights", follow=True):
            ...

What it promises. A message that was acked is stored as the ack says; a message without ack may be
stored, once or more. A read yields every record of its range exactly once and in order, across
lost connections, or raises: nothing is skipped in silence, a batch with a wrong CRC is refused.

    client, sync    the two faces: asynchronous, and blocking
    admin           HTTP
    nats/           the NATS connection; moves between servers by itself
    messages        what goes out, encoded as PUB and HPUB; acks; what is read
    publisher, run  acks: one at a time, and windows of many
    columnar/       publishing whole Arrow batches
    connection      blocking sockets to client listeners; who leads a partition
    fetch_answer    the head of a Fetch response, before its batches have come
    fetcher         one partition, fetched and decoded a piece at a time
    consumer        ranges, Arrow batches, messages
    named           consumers with a name, whose position is kept in the stream `_offsets`

It never creates a stream unasked. A read keeps no position; a consumer with a name delivers at
least once.
"""

from __future__ import annotations

from bascule.client.admin import PurgedPartition
from bascule.client.batch_reader import BatchReader
from bascule.client.client import Client, connect
from bascule.client.consumer import Consumer, SyncConsumer
from bascule.client.messages import Ack, Acks, Message, Outgoing
from bascule.client.sync import SyncClient, connect_sync

__all__ = [
    "Ack",
    "Acks",
    "BatchReader",
    "Client",
    "Consumer",
    "Message",
    "Outgoing",
    "PurgedPartition",
    "SyncClient",
    "SyncConsumer",
    "connect",
    "connect_sync",
]
