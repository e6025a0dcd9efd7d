"""ReplicaFetch: a follower copies logs of their leader. An API of Bascule's own, between nodes.

The first request of a connection begins a session, which ends with the connection. The leader keeps
the partitions that a session fetches; a request names only those that have changed on the follower,
and a response only those with records, news or an error. So a partition without news costs nothing.

A partition is fetched in *attempts*. A follower begins one whenever it does not know that the
leader continues where its own log ends: at first, after an error, after a truncation. It ignores
what an earlier attempt still brings. Within an attempt records follow each other, so a follower may
ask for the next ones (`fetch_offset`) before it has appended those that it has received.

Truncation is as in KIP-595: where the follower's last leader epoch or its end is not in the
leader's log, the response has `diverging_epoch`, and the follower truncates its log to that end.
A follower that begins again with an empty log once it knows that end asks with a `log_end` beyond
all logs (COMPARE_ONLY): the answer is never that it may go on, and the leader counts nothing of it.

The follower chooses the version of the message by the cluster version in force, which its leader
supports; see `cluster_version`. Leaders answer all versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.schema import (
    NO_ID,
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    Request,
    Structure,
    Uuid,
    Versions,
)

COMPARE_ONLY: Final = (1 << 63) - 1


@dataclass(slots=True)
class ReplicaFetchPartition(Structure):
    """What has changed on the follower. All offsets but `fetch_offset` are ends of its log."""

    stream_id: Uuid = NO_ID
    partition: Int32 = 0
    attempt: Int32 = 0
    leader_epoch: Int32 = -1
    """The leader epoch that the follower follows."""
    last_fetched_epoch: Int32 = -1
    """The leader epoch of its last record; read at the beginning of an attempt."""
    fetch_offset: Int64 = 0
    """The next offset to send."""
    log_end: Int64 = 0
    """The end of what it has appended, or COMPARE_ONLY."""
    synced_end: Int64 = 0
    """The end of what it has synced."""
    log_start: Annotated[Int64, Versions("1+")] = -1
    """Where its log starts: what was below is removed for good. -1: it does not say."""


@dataclass(slots=True)
class ForgottenPartition(Structure):
    """A partition that the session does not fetch any more."""

    stream_id: Uuid = NO_ID
    partition: Int32 = 0


@dataclass(slots=True)
class EpochStart(Structure):
    """A leader epoch, and where its records begin."""

    number: Int32 = 0
    start: Int64 = 0


@dataclass(slots=True)
class ReplicaFetchPartitionResponse(Structure):
    stream_id: Uuid = NO_ID
    partition: Int32 = 0
    attempt: Int32 = 0
    error_code: Int16 = 0
    """With an error the session does not fetch the partition any more."""
    diverging_epoch: Int32 = -1
    diverging_end: Int64 = -1
    """-1: the logs do not diverge. Else as with an error."""
    high_watermark: Int64 = -1
    log_start_offset: Int64 = -1
    version: Int32 = -1
    """Of the partition's state that the leader leads by."""
    replicated_offset: Int64 = 0
    """All replicas of that state have the records below."""
    may_have_ids: Bool = False
    """Whether records of the log may have message ids."""
    may_have_gaps: Annotated[Bool, Versions("1+")] = True
    """Whether offsets may be missing between batches: the log was compacted, or may be. A leader
    that does not say may have such a log."""
    clean_offset: Annotated[Int64, Versions("1+")] = -1
    """To a replica out of sync, where the leader's log may be compacted: up to where it was as the
    attempt began. -1: not said."""
    tombstones_end: Annotated[Int64, Versions("1+")] = -1
    """With `clean_offset`: all tombstones that the leader's log lacked then are below."""
    epochs: Annotated[Array[EpochStart], Versions("1+")] = ()
    """With records of a log that may have gaps: the epoch of the offset that was asked for, and
    later ones. The records do not say to which epoch a gap belongs."""
    records: Records = None
    """Whole batches; the last one may be cut short, and is sent again as a whole."""


@dataclass(slots=True)
class ReplicaFetchResponse(Message):
    API_KEY: ClassVar[int] = 1001
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    partitions: Array[ReplicaFetchPartitionResponse] = ()


@dataclass(slots=True)
class ReplicaFetchRequest(Request[ReplicaFetchResponse]):
    """The leader answers when there is something to say, after `max_wait_ms`, or when the next
    request arrives."""

    API_KEY: ClassVar[int] = 1001
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    RESPONSE: ClassVar[type[Message]] = ReplicaFetchResponse
    max_wait_ms: Int32 = 0
    max_bytes: Int32 = 0
    """Of records in the response; a single batch may exceed it."""
    partitions: Array[ReplicaFetchPartition] = ()
    forgotten: Array[ForgottenPartition] = ()
