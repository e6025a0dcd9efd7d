"""The sections of the configuration: each key with its default, limits and description."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

from bascule.config.addresses import PORT_MAX, is_loopback
from bascule.model import (
    PARTITION_COUNT_MAX,
    AckPolicy,
    Cleanup,
    Compression,
    Discard,
    KeyFrom,
    PartitionBy,
    RecordHeader,
    StreamConfig,
    SyncPolicy,
)

_T = TypeVar("_T")

TABLE_TTL_MS_MIN: Final = 1_000
TABLE_TTL_MS_MAX: Final = 3_155_759_999_999
"""Just under 100 years."""
REPLICAS_MAX: Final = 15


def setting(
    default: _T,
    *,
    about: str,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: Sequence[str] = (),
    secret: bool = False,
) -> _T:
    """A field that is a configuration key, with its default, description and limits."""
    metadata = {
        "about": about,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "secret": secret,
    }
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True)
class NatsConfig:
    """The NATS connection: an embedded server, or the servers to connect to."""

    urls: tuple[str, ...] = setting(
        (), about="Servers to connect to; none means: run the embedded nats-server."
    )
    host: str = setting(
        "127.0.0.1",
        about="Address the embedded server listens on. Of `0.0.0.0` or `::` in a cluster, others "
        "are told the host of the peer address.",
    )
    port: int = setting(
        4222, about="Port of the embedded server; 0 picks a free one.", minimum=0, maximum=PORT_MAX
    )
    user: str = setting("", about="User name to authenticate with.")
    password: str = setting("", about="Password to authenticate with.", secret=True)
    token: str = setting("", about="Token to authenticate with.", secret=True)
    nkey: str = setting("", about="File with the NKey seed (SU...) to authenticate with.")
    nkey_seed: str = setting("", about="The NKey seed itself, instead of a file.", secret=True)
    creds: str = setting(
        "",
        about="Credentials file with user JWT and NKey seed, as `nsc generate creds` writes it; "
        "read again for every connection.",
    )
    tls: bool = setting(False, about="Require TLS; also turned on by tls:// in a URL.")
    tls_first: bool = setting(
        False, about="Begin with TLS before the server speaks; it needs handshake_first."
    )
    tls_ca: str = setting("", about="PEM file of the authorities to trust; empty: the system's.")
    tls_cert: str = setting("", about="PEM file of the client certificate.")
    tls_key: str = setting("", about="PEM file of the client certificate's key.")
    ping_interval_ms: int = setting(
        10_000,
        about="A server that sends nothing for this long gets a PING; one that leaves two "
        "PINGs unanswered is replaced by another server.",
        minimum=100,
        maximum=3_600_000,
    )
    key_value: bool = setting(
        True,
        about="Answer NATS's key-value clients, for tables; not on a server with JetStream, which "
        "answers them itself.",
    )
    leaf_url: str = setting(
        "",
        about="Where the servers in `urls` take leafnodes, as nats://user:password@host:port: "
        "needed for key-value clients that watch or list keys. An embedded server needs none.",
        secret=True,
    )
    discover: bool = setting(
        True, about="Also use the servers of the cluster that the connected one announces."
    )
    announce: bool = setting(
        True,
        about="Exchange announcements with other nodes on the same NATS, which find streams that "
        "two clusters have.",
    )
    announce_interval_ms: int = setting(
        10_000,
        about="Time between announcements. A node that is not heard of for three of its intervals "
        "counts as gone.",
        minimum=100,
        maximum=3_600_000,
    )

    @property
    def embedded(self) -> bool:
        return not self.urls


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The client listener, which speaks the Kafka wire protocol."""

    host: str = setting("127.0.0.1", about="Address to listen on.")
    port: int = setting(
        9092, about="Port to listen on; 0 picks a free one.", minimum=0, maximum=PORT_MAX
    )
    advertised: str = setting(
        "",
        about="host:port given to clients as this node's address. Empty: this node gives the "
        "address that a client has connected to, and other nodes of the cluster the bound one, of "
        "`0.0.0.0` the host of the peer address.",
    )
    administration: str = setting(
        "auto",
        about="Whether clients may create, alter, purge and delete streams as topics; `auto`: "
        "where `client.host` is a loopback address.",
        choices=("auto", "on", "off"),
    )
    topic_prefix: str = setting(
        "topics",
        about="A topic that a client creates has this subject, a dot and its name; empty: its "
        "name.",
    )

    @property
    def administers(self) -> bool:
        """Whether clients may change streams."""
        if self.administration == "auto":
            return is_loopback(self.host)
        return self.administration == "on"


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The HTTP listener: admin API, metrics, health."""

    host: str = setting(
        "127.0.0.1",
        about="Address to listen on. Of `0.0.0.0` others are told the host of the peer address.",
    )
    port: int = setting(
        9080, about="Port to listen on; 0 picks a free one.", minimum=0, maximum=PORT_MAX
    )


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """The peer listener, which the other nodes of the cluster connect to."""

    host: str = setting("127.0.0.1", about="Address to listen on.")
    port: int = setting(
        9093, about="Port to listen on; 0 picks a free one.", minimum=0, maximum=PORT_MAX
    )
    advertised: str = setting(
        "",
        about="host:port given to other nodes by a node that joins, or is found over NATS; empty: "
        "host and port of the listener.",
    )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The cluster that the node belongs to."""

    name: str = setting("bascule", about="Name of the cluster; nodes of another one are refused.")
    peers: tuple[str, ...] = setting(
        (),
        about="Founding nodes as N@host:port, this one too. Without it and `join`, and without a "
        "cluster in the data directory, a node is alone.",
    )
    join: tuple[str, ...] = setting(
        (),
        about="host:port of peer listeners of a cluster, which a node with an empty data directory "
        "joins.",
    )
    leader_balance_ms: int = setting(
        10_000,
        about="Time between steps in which preferred leaders that are in sync lead again; 0: "
        "leadership stays where it is.",
        minimum=0,
        maximum=3_600_000,
    )
    balance_replicas: bool = setting(
        False,
        about="Move replicas, a few partitions at a time, whenever nodes hold unequally many, as "
        "after a node has joined. That of the controller's node counts. `bascule cluster balance` "
        "does it once.",
    )
    bootstrap_expect: int = setting(
        0,
        about="Number of founding nodes, which find each other over NATS; 0: `cluster.peers` names "
        "them, or the node is alone.",
        minimum=0,
        maximum=REPLICAS_MAX,
    )
    replica_lag_ms_max: int = setting(
        10_000,
        about="A replica that has not been at the end of its leader's log for so long is no longer "
        "in sync. Followers need up to 3 s to report a leader that is cut off from them.",
        minimum=3_000,
    )
    rack: str = setting("", about="Where the node is; replicas are placed in different racks.")


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """The node's log, written to standard error."""

    level: str = setting(
        "info", about="Least severe level written.", choices=("debug", "info", "warning", "error")
    )
    format: str = setting(
        "text", about="`text` is event key=value; `json` is one object a line.",
        choices=("text", "json"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupsConfig:
    """Groups of consumers."""

    initial_delay_ms: int = setting(
        1_000,
        about="How long the first rebalance of a group waits for more members, and again as long "
        "as members come; 0: not at all. Kafka's group.initial.rebalance.delay.ms.",
        minimum=0,
        maximum=300_000,
    )
    session_ms_min: int = setting(
        6_000,
        about="Shortest session time-out of a member. Kafka's group.min.session.timeout.ms.",
        minimum=1_000,
        maximum=3_600_000,
    )
    session_ms_max: int = setting(
        1_800_000,
        about="Longest session time-out of a member. Kafka's group.max.session.timeout.ms.",
        minimum=1_000,
        maximum=86_400_000,
    )
    members_max: int = setting(
        1_000,
        about="Most members of a group. Kafka's group.max.size.",
        minimum=1,
        maximum=10_000,
    )
    lag_series_max: int = setting(
        5_000,
        about="Most groups and partitions with a lag in the metrics; those with members first. "
        "0: none.",
        minimum=0,
        maximum=1_000_000,
    )
    consumer_session_ms: int = setting(
        45_000,
        about="Session time-out of members of the consumer protocol (KIP-848). Kafka's "
        "group.consumer.session.timeout.ms.",
        minimum=1_000,
        maximum=3_600_000,
    )
    consumer_heartbeat_ms: int = setting(
        5_000,
        about="How often these members send heartbeats. Kafka's "
        "group.consumer.heartbeat.interval.ms.",
        minimum=100,
        maximum=600_000,
    )


@dataclass(frozen=True, slots=True)
class TablesConfig:
    """Settings of the tables on this node."""

    oplog_bytes_max: int = setting(
        64 << 20,
        about="Most bytes of the oplog of a table, 25 for an operation. Readers of changes that "
        "are behind all of it get all rows.",
        minimum=1 << 20,
        maximum=1 << 40,
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Limits of the resources that clients may use."""

    connections_max: int = setting(
        4_096, about="Connections to the client listener at a time.", minimum=1
    )
    request_bytes_max: int = setting(
        1 << 20,
        about="Largest request frame accepted from a client. Requests are small: records come from "
        "NATS.",
        minimum=1_024,
    )
    fetch_bytes_max: int = setting(
        64 << 20, about="Most bytes of batches in one fetch response.", minimum=1_024
    )
    fetch_wait_ms_max: int = setting(60_000, about="Longest a fetch may wait for data.", minimum=0)
    idle_ms_max: int = setting(
        600_000,
        about="A client connection without a request for this long is closed. Kafka's "
        "connections.max.idle.ms.",
        minimum=1_000,
    )
    request_ms_max: int = setting(
        30_000,
        about="Time for a request to arrive completely, at the client and the HTTP listener; for "
        "the body of an HTTP request again after each MiB.",
        minimum=100,
    )
    write_stall_ms_max: int = setting(
        60_000,
        about="A connection that reads no byte of its response for this long is closed.",
        minimum=100,
    )
    client_memory_bytes_max: int = setting(
        256 << 20,
        about="Memory for requests and responses of all client connections together, beyond the "
        "first 16 KiB of each; a connection that would exceed it is closed.",
        minimum=1 << 20,
    )
    http_connections_max: int = setting(
        256,
        about="Connections to the HTTP listener at a time; an eighth of them is kept for health "
        "and metrics.",
        minimum=1,
    )
    http_head_ms_max: int = setting(
        5_000, about="Time for the head of an HTTP request to arrive.", minimum=100
    )
    ingest_buffer_bytes_max: int = setting(
        256 << 20,
        about="Bytes read from NATS that wait for the disk before reading stops.",
        minimum=1 << 20,
    )
    http_body_bytes_max: int = setting(
        1 << 20, about="Largest body of an HTTP request.", minimum=1_024
    )
    disk_reserve_bytes: int = setting(
        8 << 20,
        about="Size of a file that is given back on a full disk, so that streams can be purged, "
        "altered and deleted there; 0: none.",
        minimum=0,
    )
    payload_bytes_per_second_min: int = setting(
        8 << 20,
        about="While syncs of logs take longer than usual, payloads are written to the disk more "
        "slowly, down to so many bytes a second, but not below 1 MiB; 0: they are never slowed "
        "down.",
        minimum=0,
    )
    compaction_map_bytes_max: int = setting(
        512 << 20,
        about="Memory for the keys of a log while it is compacted; 512 MiB hold 14 million. Keys "
        "that do not fit are left to the next run.",
        minimum=1 << 20,
    )
    compaction_bytes_per_second_max: int = setting(
        0, about="Bytes compaction reads and writes a second; 0: no limit.", minimum=0
    )
    scrub_period_ms: int = setting(
        7 * 24 * 3_600_000,
        about="Each log is read once in so long, to find damage before its replicas are needed; "
        "0: never.",
        minimum=0,
    )
    scrub_bytes_per_second_max: int = setting(
        32 << 20, about="Bytes the scrubber reads a second; 0: no limit.", minimum=0
    )
    drain_ms_max: int = setting(
        10_000, about="How long a stopping node waits for requests in flight.", minimum=0
    )


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """Default values of stream settings that a creation request omits."""

    sync: str = setting(
        SyncPolicy.ALWAYS.value,
        about="When the log is synced: before each ack, at an interval, or by the kernel.",
        choices=tuple(policy.value for policy in SyncPolicy),
    )
    sync_interval_ms: int = setting(
        1_000, about="Time between syncs under `interval`.", minimum=1, maximum=3_600_000
    )
    segment_bytes_max: int = setting(
        256 << 20,
        about="A segment is rolled before it grows beyond this.",
        minimum=1 << 10,
        maximum=(1 << 31) - 1,
    )
    segment_age_ms_max: int = setting(
        7 * 24 * 3_600_000, about="A segment is rolled when its first record is older.", minimum=1
    )
    message_bytes_max: int = setting(
        8 << 20, about="Largest message stored.", minimum=1, maximum=64 << 20
    )
    partitions: int = setting(
        1, about="Partitions of a stream.", minimum=1, maximum=PARTITION_COUNT_MAX
    )
    partition_by: str = setting(
        PartitionBy.GROUP.value,
        about="How messages find their partition: members of a NATS queue group (at random), a "
        "hash of the subject, a hash of the key as Kafka's Java client does it, or the "
        "number that NATS's subject mapping writes into the subject.",
        choices=tuple(by.value for by in PartitionBy),
    )
    key_from: str = setting(
        KeyFrom.HEADER.value,
        about="A record's key: the header Bascule-Key, or the subject where there is none.",
        choices=tuple(source.value for source in KeyFrom),
    )
    compression: str = setting(
        Compression.NONE.value,
        about="How record batches are compressed.",
        choices=tuple(codec.value for codec in Compression),
    )
    cleanup: tuple[str, ...] = setting(
        (Cleanup.DELETE.value,),
        about="What removes records: retention (delete), key compaction (compact), or both.",
        choices=tuple(cleanup.value for cleanup in Cleanup),
    )
    retention_ms_max: int = setting(
        0, about="Segments whose newest record is older are removed; 0: no limit.", minimum=0
    )
    retention_bytes_max: int = setting(
        0, about="Bytes kept in each partition; 0: no limit.", minimum=0
    )
    retention_messages_max: int = setting(
        0, about="Messages kept in each partition; 0: no limit.", minimum=0
    )
    retention_after: str = setting(
        "",
        about="Consumer, such as an archive, whose uncommitted records are kept; empty: none.",
    )
    discard: str = setting(
        Discard.OLD.value,
        about="At the limit of bytes or messages: remove old segments, or refuse new messages.",
        choices=tuple(discard.value for discard in Discard),
    )
    tombstone_retention_ms: int = setting(
        24 * 3_600_000, about="How long compaction keeps a tombstone.", minimum=0
    )
    min_compaction_lag_ms: int = setting(
        0, about="Records younger than this are not compacted.", minimum=0
    )
    max_compaction_lag_ms: int = setting(
        0,
        about="Records older than this are compacted regardless of the dirty share; 0: off.",
        minimum=0,
    )
    dirty_percent_min: int = setting(
        50, about="Share of a log that must be dirty to compact it.", minimum=0, maximum=100
    )
    dedupe_window_ms: int = setting(
        120_000, about="How long a Nats-Msg-Id is kept for deduplication; 0: off.", minimum=0
    )
    dedupe_messages_max: int = setting(
        1_000_000,
        about="Most message ids kept in each partition.",
        minimum=1,
        maximum=1 << 26,
    )
    rate_messages_max: int = setting(
        0, about="Messages stored per second in each partition; 0: no limit.", minimum=0
    )
    rate_bytes_max: int = setting(
        0, about="Bytes of messages stored per second in each partition; 0: no limit.", minimum=0
    )
    read_only: bool = setting(False, about="Refuse messages.")
    replicas: int = setting(
        1, about="Copies of each partition, on different nodes.", minimum=1, maximum=REPLICAS_MAX
    )
    min_isr: int = setting(
        0,
        about="Replicas in sync without which messages are refused; 0: more than half of them.",
        minimum=0,
        maximum=REPLICAS_MAX,
    )
    unclean_election: bool = setting(
        False,
        about="Let a replica lead that was not in sync when none that was is alive; committed "
        "records may be lost.",
    )
    acks: bool = setting(
        True, about="Answer publishers; off: store what arrives without acks and errors."
    )
    ack_policy: str = setting(
        "all",
        about="When a message is acked: committed on all replicas in sync, stored by the leader, "
        "or never. Messages may name another policy.",
        choices=tuple(policy.value for policy in AckPolicy),
    )
    shared: bool = setting(
        False, about="Expect the same stream in other clusters on the same NATS."
    )
    record_headers: tuple[str, ...] = setting(
        (),
        about="Headers of every record: the message's subject, which streams without wildcards "
        "leave out otherwise, and its reply subject.",
        choices=tuple(header.value for header in RecordHeader),
    )
    table: bool = setting(
        False, about="Keep the latest value of each key in a table on every replica."
    )
    table_ttl_ms: int = setting(
        0,
        about="A key of a table is removed when its value is older than this, unless the value has "
        "a time to live of its own (Nats-TTL); 0: never.",
        minimum=0,
        maximum=TABLE_TTL_MS_MAX,
    )

    def config(self, subject: str, *, group: str | None = None) -> StreamConfig:
        """A stream configuration with these defaults, on `subject`."""
        return stream_config(
            {item.name: getattr(self, item.name) for item in fields(self)},
            subject=subject,
            group=group,
        )


_ENUMS: Final[Mapping[str, Callable[[str], StrEnum]]] = {
    "sync": SyncPolicy,
    "partition_by": PartitionBy,
    "key_from": KeyFrom,
    "compression": Compression,
    "discard": Discard,
    "ack_policy": AckPolicy,
}
_WORDS: Final[Mapping[str, type[StrEnum]]] = {"cleanup": Cleanup, "record_headers": RecordHeader}


def stream_config(plain: Mapping[str, Any], *, subject: str, group: str | None) -> StreamConfig:
    """A stream configuration from plain values, as in TOML or JSON. It is not checked.

    Raises: ValueError for a value that is not among a field's choices; TypeError for an unknown
    field.
    """
    values = dict(plain)
    for name, kind in _ENUMS.items():
        if name in values:
            values[name] = kind(values[name])
    for name, words in _WORDS.items():
        if name in values:
            # In a fixed order, so that the order in the request does not matter.
            found = [words(word) for word in values[name]]
            values[name] = tuple(sorted(found, key=list(words).index))
    return StreamConfig(subject=subject, group=group, **values)


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of one node."""

    data: str = setting("./bascule-data", about="Directory that holds the node's data.")
    node_id: int = setting(1, about="The node's number in its cluster.", minimum=1)
    ready_file: str = setting(
        "",
        about="File to which the node writes its addresses as JSON when it is ready; empty: none.",
    )
    nats: NatsConfig = NatsConfig()
    client: ClientConfig = ClientConfig()
    http: HttpConfig = HttpConfig()
    peer: PeerConfig = PeerConfig()
    cluster: ClusterConfig = ClusterConfig()
    log: LoggingConfig = LoggingConfig()
    groups: GroupsConfig = GroupsConfig()
    limits: LimitsConfig = LimitsConfig()
    streams: StreamDefaults = StreamDefaults()
    tables: TablesConfig = TablesConfig()
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Key -> the source of its value; keys with default values are absent."""
