"""Asks the client listener for the extents of streams over persistent connections: one request for
the leaders, two for the ends of all partitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from threading import Lock
from typing import TypeVar

from bascule.client.connection import ASK_TIMEOUT_S, connect_any, error_of
from bascule.config.addresses import parse_address
from bascule.errors import Broken
from bascule.log_connection import LogConnection
from bascule.pipeline.clients import client_of
from bascule.pipeline.retries import RETRY_TIMEOUT_MS, with_retries
from bascule.pipeline.source.options import Selection
from bascule.pipeline.source.positions import Extent
from bascule.wire.messages.list_offsets import (
    TIMESTAMP_EARLIEST,
    TIMESTAMP_LATEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from bascule.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataTopic,
)

T = TypeVar("T")
_Leaders = dict[tuple[str, int], str]
_Times = dict[tuple[str, int], int]

_clients: dict[str, ExtentClient] = {}


def extent_client_of(server: str) -> ExtentClient:
    """The extent client of this process for `server`."""
    extent_client = _clients.get(server)
    if extent_client is None:
        extent_client = _clients.setdefault(server, ExtentClient(server))
    return extent_client


class ExtentClient:
    """Requests extents and offsets from one cluster. Thread-safe: jobs of several threads of a
    driver share it, and one asks at a time."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._asking = Lock()
        self._any: LogConnection | None = None
        """For questions that every node answers; it is among `_connections`, too."""
        self._connections: dict[str, LogConnection] = {}

    def extents(
        self, selection: Selection, *, retry_timeout_ms: int = RETRY_TIMEOUT_MS
    ) -> list[Extent]:
        """The extent of each selected stream, by name.

        Raises: UnknownStream for a named stream; Broken if the node did not answer for
        `retry_timeout_ms`.
        """
        return self._patiently(lambda: self._extents(selection), retry_timeout_ms)

    def stream_id(self, stream: str, *, retry_timeout_ms: int = RETRY_TIMEOUT_MS) -> str:
        """The id of the stream that has this name. Raises: UnknownStream, Broken."""

        def ask() -> str:
            (topic,), _ = self._described(Selection(names=(stream,)))
            return topic.topic_id.hex()

        return self._patiently(ask, retry_timeout_ms)

    def find_offset(
        self,
        stream: str,
        partition: int,
        time_ms: int,
        *,
        retry_timeout_ms: int = RETRY_TIMEOUT_MS,
    ) -> int | None:
        """The first offset at or after a Unix time; None if there is none. Raises: Broken."""

        def ask() -> int | None:
            _, leaders = self._topics(Selection(names=(stream,)))
            found = self._list(leaders, {(stream, partition): time_ms})[stream, partition]
            return None if found < 0 else found

        return self._patiently(ask, retry_timeout_ms)

    def _patiently(self, ask: Callable[[], T], retry_timeout_ms: int) -> T:
        def afresh() -> T:
            with self._asking:
                try:
                    return ask()
                except Broken:
                    self._drop()
                    raise

        # An idle connection may be stale although the node works. Retry once with new connections.
        if self._connections:
            try:
                return afresh()
            except Broken:
                pass
        return with_retries(afresh, timeout_ms=retry_timeout_ms)

    def _extents(self, selection: Selection) -> list[Extent]:
        topics, leaders = self._topics(selection)
        starts = self._list(leaders, dict.fromkeys(leaders, TIMESTAMP_EARLIEST))
        ends = self._list(leaders, dict.fromkeys(leaders, TIMESTAMP_LATEST))
        return [
            Extent(
                stream=str(topic.name),
                id=topic.topic_id.hex(),
                partitions={
                    p: (starts[str(topic.name), p], ends[str(topic.name), p])
                    for p in sorted(found.partition_index for found in topic.partitions)
                },
            )
            for topic in sorted(topics, key=lambda topic: str(topic.name))
        ]

    def _described(self, selection: Selection) -> tuple[list[MetadataTopic], dict[int, str]]:
        """The selected streams, and the address of each node."""
        wanted = None
        if selection.pattern is None:
            wanted = [MetadataRequestTopic(name=name) for name in selection.names]
        connection = self._any or self._connect_any()
        response = connection.request(
            MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        )
        topics = list(_selected(response.topics, selection, connection.address))
        return topics, {node.node_id: f"{node.host}:{node.port}" for node in response.brokers}

    def _topics(self, selection: Selection) -> tuple[list[MetadataTopic], _Leaders]:
        topics, nodes = self._described(selection)
        leaders = {
            (str(topic.name), found.partition_index): nodes[found.leader_id]
            for topic in topics
            for found in topic.partitions
            if found.leader_id in nodes
        }
        for topic in topics:
            if any((topic.name, p.partition_index) not in leaders for p in topic.partitions):
                raise Broken(f"a partition of stream {topic.name!r} has no leader now")
        return topics, leaders

    def _list(self, leaders: _Leaders, times: _Times) -> dict[tuple[str, int], int]:
        """The offset of each time, from each partition's leader."""
        found: dict[tuple[str, int], int] = {}
        for address in sorted(set(leaders.values())):
            asked = {key: time for key, time in times.items() if leaders[key] == address}
            response = self._connect(address).request(_request(asked))
            for topic in response.topics:
                for p in topic.partitions:
                    if p.error_code:
                        raise error_of(p.error_code, topic.name, p.partition_index, address=address)
                    found[topic.name, p.partition_index] = p.offset
        return found

    def _connect_any(self) -> LogConnection:
        """A connection to any node of the cluster. Raises: Broken where none can be reached."""
        node = client_of(self._server).node()
        self._any = connect_any(node.bootstrap or node.client)
        self._connections[self._any.address] = self._any
        return self._any

    def _connect(self, address: str) -> LogConnection:
        connection = self._connections.get(address)
        if connection is None:
            host, port = parse_address(address)
            connection = LogConnection(host, port, timeout=ASK_TIMEOUT_S)
            self._connections[address] = connection
        return connection

    def _drop(self) -> None:
        self._any = None
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


def _selected(
    topics: Iterable[MetadataTopic], selection: Selection, address: str
) -> Iterable[MetadataTopic]:
    if selection.pattern is None:
        for topic in topics:
            if topic.error_code:
                raise error_of(topic.error_code, str(topic.name), 0, address=address)
            yield topic
        return
    pattern = re.compile(selection.pattern)
    for topic in topics:
        # A pattern does not match the node's own streams.
        if topic.error_code or topic.is_internal:
            continue
        if pattern.fullmatch(str(topic.name)):
            yield topic


def _request(times: _Times) -> ListOffsetsRequest:
    by_stream: dict[str, list[ListOffsetsPartition]] = {}
    for (stream, partition), time_ms in times.items():
        by_stream.setdefault(stream, []).append(
            ListOffsetsPartition(partition_index=partition, timestamp=time_ms)
        )
    return ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=name, partitions=p) for name, p in by_stream.items()]
    )
