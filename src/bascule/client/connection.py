"""Finds the leader's client listener of a partition, and connects to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bascule.config.addresses import format_address, parse_address
from bascule.errors import (
    BasculeError,
    Broken,
    ConfigError,
    FencedEpoch,
    NotLeader,
    PartitionFailed,
    UnknownEpoch,
    UnknownPartition,
    UnknownStream,
)
from bascule.host.real import RealClock
from bascule.log_connection import LogConnection
from bascule.model import StreamConfig
from bascule.wire.error_codes import ErrorCode, code_name, error_class_of
from bascule.wire.messages.describe_configs import (
    STREAM_ID,
    SUBJECT,
    TOPIC,
    ConfigResource,
    DescribeConfigsRequest,
)
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
    MetadataResponse,
)

ASK_TIMEOUT_S: Final = 10.0
"""Timeout for responses from memory."""
UNANSWERED_S: Final = 3.0
"""For the first response of a node where others can be asked."""


SILENT_S: Final = 30.0
"""For so long a node that has not answered is asked after the others."""
_CLOCK: Final = RealClock()


class SilentNodes:
    """Which listeners have not answered lately. Each reader of a partition asks by itself, and not
    each of them has to find out anew. Thread-safe."""

    def __init__(self) -> None:
        self._until_ns: dict[str, int] = {}

    def note(self, address: str) -> None:
        """It has not answered."""
        self._until_ns[address] = _CLOCK.monotonic_ns() + int(SILENT_S * 1e9)

    def forget(self, address: str) -> None:
        """It has answered."""
        self._until_ns.pop(address, None)

    def last(self, addresses: list[str]) -> list[str]:
        """These in their order, those that are silent behind the others."""
        now_ns = _CLOCK.monotonic_ns()
        return sorted(addresses, key=lambda each: self._until_ns.get(each, 0) > now_ns)


_SILENT: Final = SilentNodes()


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition, from a Metadata response."""

    host: str
    port: int
    topic_id: bytes
    epoch: int
    subject: str | None
    """The subject of records without header `subject`; None: they have none."""


class LeaderMoved(Broken):
    """The partition has another leader, or none yet. Find the leader again."""


def error_of(code: int, stream: str, partition: int, *, address: str) -> BasculeError:
    """Convert a partition's error code to an exception. OFFSET_OUT_OF_RANGE is handled by the
    caller."""
    kind = error_class_of(code)
    if kind is UnknownStream:
        return UnknownStream(stream)
    if kind is PartitionFailed or code == ErrorCode.CORRUPT_MESSAGE:
        return PartitionFailed(stream, partition, f"{address} says {code_name(code)}; see its log")
    text = f"stream {stream!r} partition {partition}: {address} says {code_name(code)}"
    if kind in (NotLeader, FencedEpoch, UnknownEpoch) or kind.retriable:
        return LeaderMoved(text)
    return Broken(text)


def connect_any(bootstrap: str, *, timeout: float = ASK_TIMEOUT_S) -> LogConnection:
    """Connect to the first of the listeners `host:port,...` that answers. `timeout` is the
    connection's, in seconds; one that hangs is given up sooner where there are others.

    Raises: Broken; ConfigError for an address that is none.
    """
    failure: Broken | None = None
    addresses = _SILENT.last(bootstrap.split(","))
    for address in addresses:
        try:
            host, port = parse_address(address)
        except ValueError as error:
            raise ConfigError(f"the address of a client listener {error}") from error
        answers_in = timeout if address == addresses[-1] else min(timeout, UNANSWERED_S)
        try:
            connection = LogConnection(host, port, timeout=answers_in)
        except Broken as error:
            _SILENT.note(address)
            failure = failure or error
            continue
        _SILENT.forget(address)
        connection.set_timeout(timeout)
        return connection
    assert failure is not None
    raise failure


def connect_named(host: str, port: int, *, timeout: float = ASK_TIMEOUT_S) -> LogConnection:
    """Connect to a node that others have named, and may replace while it does not answer. Raises:
    Broken."""
    try:
        connection = LogConnection(host, port, timeout=min(timeout, UNANSWERED_S))
    except Broken:
        _SILENT.note(format_address(host, port))
        raise
    connection.set_timeout(timeout)
    return connection


def _metadata(connection: LogConnection, stream: str) -> MetadataResponse:
    return connection.request(
        MetadataRequest(topics=[MetadataRequestTopic(name=stream)], allow_auto_topic_creation=False)
    )


def count_partitions(bootstrap: str, stream: str) -> int:
    """The number of partitions of a stream. Raises: UnknownStream, Broken."""
    connection = connect_any(bootstrap)
    try:
        topic = _metadata(connection, stream).topics[0]
    finally:
        connection.close()
    if topic.error_code:
        raise error_of(topic.error_code, stream, 0, address=connection.address)
    return len(topic.partitions)


class PartitionConnector:
    """Connects to the leader of one partition, starting from any node's listener."""

    def __init__(self, bootstrap: str, stream: str, partition: int) -> None:
        self.stream = stream
        self.partition = partition
        self.topic_id: bytes | None = None
        """Id of the stream whose offsets the owner knows; one that is created again under its name
        has others. None: the owner knows none so far."""
        self._servers = bootstrap.split(",")

    @property
    def bootstrap(self) -> str:
        """Addresses of client listeners, `host:port,...`."""
        return ",".join(self._servers)

    def open(self) -> tuple[LogConnection, Leader]:
        """Connect to the leader. Each call asks another node of the bootstrap list first: one that
        is cut off from its cluster goes on naming the leader that it knows.

        Raises: UnknownStream (also where the stream was created again), UnknownPartition,
        LeaderMoved (no leader now, or one that does not answer), Broken.
        """
        connection = self._connect_next(ASK_TIMEOUT_S)
        try:
            leader = self._leader(connection)
        except BaseException:
            connection.close()
            raise
        if format_address(leader.host, leader.port) == connection.address:
            return connection, leader
        connection.close()
        try:
            return connect_named(leader.host, leader.port), leader
        except Broken as error:
            raise LeaderMoved(
                f"stream {self.stream!r} partition {self.partition}: its leader does not answer: "
                f"{error}"
            ) from error

    def _connect_next(self, timeout: float) -> LogConnection:
        """Connect to a node of the bootstrap list, and begin with another one the next time.
        Raises: Broken."""
        connection = connect_any(self.bootstrap, timeout=timeout)
        self._servers.append(self._servers.pop(0))
        return connection

    def names_another(self, leader: Leader) -> bool:
        """Whether another node says that somebody else leads by now; false where none answers.

        Raises: UnknownStream, UnknownPartition.
        """
        try:
            connection = self._connect_next(UNANSWERED_S)
        except Broken:
            return False
        try:
            found = self._leader(connection)
        except Broken:
            return False
        finally:
            connection.close()
        return (found.host, found.port) != (leader.host, leader.port)

    def _leader(self, connection: LogConnection) -> Leader:
        response = _metadata(connection, self.stream)
        topic = response.topics[0]
        if topic.error_code:
            raise error_of(
                topic.error_code, self.stream, self.partition, address=connection.address
            )
        if self.topic_id not in (None, topic.topic_id):
            error = UnknownStream(self.stream)
            error.add_note("the stream that was read was deleted, and another one has its name")
            raise error
        for found in topic.partitions:
            if found.partition_index == self.partition:
                break
        else:
            raise UnknownPartition(self.stream, self.partition, len(topic.partitions))
        for node in response.brokers:
            if node.node_id == found.leader_id:
                subject = self._literal_subject(connection, topic.topic_id)
                return Leader(node.host, node.port, topic.topic_id, found.leader_epoch, subject)
        raise LeaderMoved(f"stream {self.stream!r} partition {self.partition} has no leader now")

    def _literal_subject(self, connection: LogConnection, topic_id: bytes) -> str | None:
        """The stream's subject; None if it has wildcards.

        A server that does not know the request stores the subject with each record. Raises:
        LeaderMoved if another stream has the name since its id was read.
        """
        if not connection.serves(DescribeConfigsRequest):
            return None
        wanted = ConfigResource(TOPIC, self.stream, [SUBJECT, STREAM_ID])
        result = connection.request(DescribeConfigsRequest(resources=[wanted])).results[0]
        if result.error_code:
            raise error_of(
                result.error_code, self.stream, self.partition, address=connection.address
            )
        values = {config.name: config.value or "" for config in result.configs}
        if values.get(STREAM_ID) != topic_id.hex():
            raise LeaderMoved(f"stream {self.stream!r} was created again meanwhile")
        return StreamConfig(values[SUBJECT]).literal_subject

    def find_offset(self, connection: LogConnection, timestamp: int) -> int:
        """The first offset with a timestamp (ms) of at least `timestamp`; -1 if there is none.

        TIMESTAMP_EARLIEST and TIMESTAMP_LATEST return the ends.
        """
        response = connection.request(
            ListOffsetsRequest(
                topics=[
                    ListOffsetsTopic(
                        name=self.stream,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=self.partition, timestamp=timestamp
                            )
                        ],
                    )
                ]
            )
        )
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise error_of(
                found.error_code, self.stream, self.partition, address=connection.address
            )
        return found.offset

    def extent(self, connection: LogConnection) -> tuple[int, int]:
        """The first and the end offset that can be read."""
        start = self.find_offset(connection, TIMESTAMP_EARLIEST)
        return start, self.find_offset(connection, TIMESTAMP_LATEST)
