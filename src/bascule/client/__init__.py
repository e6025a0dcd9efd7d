"""The Python client: administration over HTTP, publishing over NATS, reading over Kafka's protocol.

    async with bascule.connect() as client:
        await client.create_stream("flights", "flights.>")
        ack = await client.publish("flights.JFK.B6", b"...", key="N593JB")
        async for message in client.read("flights", follow=True):
            ...

Guarantees: an acked message is stored as its ack states. A message without ack may be stored once,
several times or not at all. A read returns every record of its range exactly once and each
partition's in order, across lost connections, or raises. A batch with a wrong CRC is refused.

    client, sync       the asynchronous and the blocking client
    admin/             administration over HTTP
    messages           outgoing messages, their encoding as PUB and HPUB, acks, messages read
    publisher          publishes with acks: single messages and windows
    publish_window     a window of messages without ack
    columnar/          publishes whole Arrow batches
    connection         blocking connections to client listeners; finds partition leaders
    fetch_response     parses the head of a Fetch response before its batches have arrived
    fetcher            fetches and decodes one partition in pieces
    batch_reader       reads a range of one partition as Arrow batches, and batches as messages
    stream_reader/     reads all partitions of a stream, in turn or by time
    consumers/         consumers with a name, and members of groups; their position is kept in the
                       stream `_offsets`
    tables/            the latest value of each key of a stream, and copies of it on this machine
    payloads/          content of any size, which nodes keep in files beside the log
    loop_thread        an event loop on a thread, for blocking clients

The client never creates a stream by itself. A read keeps no position. Consumers with a name
and members of groups deliver at least once.
"""

from __future__ import annotations

from bascule.client.admin import PurgedPartition
from bascule.client.client import Client, connect
from bascule.client.consumers import Consumer, GroupConsumer, GroupOptions, SyncConsumer
from bascule.client.messages import Ack, Acks, Message, Outgoing
from bascule.client.stream_reader import StreamReader
from bascule.client.sync import SyncClient, connect_sync
from bascule.client.tables import (
    LocalReplica,
    SyncLocalReplica,
    SyncTableClient,
    TableClient,
    open_replica,
    open_replica_sync,
)
from bascule.table_results import TableEntry, TableInfo

__all__ = [
    "Ack",
    "Acks",
    "Client",
    "Consumer",
    "GroupConsumer",
    "GroupOptions",
    "LocalReplica",
    "Message",
    "Outgoing",
    "PurgedPartition",
    "StreamReader",
    "SyncClient",
    "SyncConsumer",
    "SyncLocalReplica",
    "SyncTableClient",
    "TableClient",
    "TableEntry",
    "TableInfo",
    "connect",
    "connect_sync",
    "open_replica",
    "open_replica_sync",
]
