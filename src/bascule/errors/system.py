"""Errors of a node, its protocols and its clients."""

from __future__ import annotations

from typing import ClassVar, Final

from bascule.errors.wording import counted, setting_text
from bascule.model import NO_LEADER, PartitionState


class BasculeError(Exception):
    """Base class of all errors that Bascule raises intentionally."""

    retriable: ClassVar[bool] = False


class ConfigError(BasculeError):
    """A configuration key or value is wrong; the text names it and what is allowed.

    `field` is the setting of the stream, if the error concerns one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidName(BasculeError):
    """A stream name or subject (`what`) is not valid: its `value`, and `why`."""

    def __init__(self, what: str, value: str, why: str) -> None:
        shown = value if len(value) <= 80 else value[:77] + "..."
        super().__init__(f"{what} {shown!r} is not valid: {why}")
        self.what = what
        self.value = value
        self.why = why


class CorruptData(BasculeError):
    """Bytes on disk differ from what was written: file, byte position, expected and found.

    Where a byte position has no meaning, as in a database, `place` describes the position and `at`
    is its number.
    """

    def __init__(
        self, file: str, at: int, expected: str, found: str, *, place: str | None = None
    ) -> None:
        advice = _advice(file)
        super().__init__(
            f"{file} is corrupt at {place or f'byte {at}'}: expected {expected}, found {found}"
            + (f"; {advice}" if advice else "")
        )
        self.file = file
        self.at = at
        self.expected = expected
        self.found = found
        self.place = place


_ADVICE: Final = {
    ".log": "records before that batch are intact, and other partitions are not affected; restore "
    "the file from a copy, or discard the records after it with `bascule stream repair` and "
    "--accept-loss",
    "checkpoint": "the records are not affected; restore the file from a copy, or run `bascule "
    "stream repair` with --accept-loss: purged records of the first segment are readable then",
    "table.db": "the table itself is not affected: `bascule table follow TABLE --to DIR --anew` "
    "gets all keys of this copy again, and keeps the writes that were made on it",
    ".sqlite": "the data of streams is not affected; in a cluster, run `bascule node remove N "
    "--force --yes` with the number of this node, and start it with --join and an empty data "
    "directory: an older copy of its own would lose what it has confirmed; only a node without "
    "others may restore the file's directory from a copy",
    "metadata.json": "the data of streams is not affected; restore the file from a copy, or move "
    "the data directory away to start without its streams",
    "node.json": "streams are not affected; restore the file from a copy, or start once with "
    "--new-cluster-id",
}
"""By the end of the file's name: which data is not affected, and what to do."""


def _advice(file: str) -> str:
    return next((text for end, text in _ADVICE.items() if file.endswith(end)), "")


class MissingLog(BasculeError):
    """This node has held the log of a partition, and its directory has no segment now."""

    def __init__(self, stream: str, partition: int, directory: str) -> None:
        super().__init__(
            f"the log of partition {partition} of stream {stream!r} is missing: {directory} has no "
            "segment, though this node has stored the partition there; mount or restore the "
            f"directory and run `bascule stream repair {stream}`, or give its records up with "
            "--accept-loss"
        )
        self.stream = stream
        self.partition = partition
        self.directory = directory


class ProtocolError(BasculeError):
    """A wire protocol was violated, by the peer or by this process."""


class LocalProtocolError(ProtocolError):
    """This process was about to send something that the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow; its connection is closed."""


class OffsetOutOfRange(BasculeError):
    """`requested` is outside the offsets of the log, [start, end)."""

    def __init__(self, requested: int, start: int, end: int) -> None:
        super().__init__(f"offset {requested} is outside [{start}, {end})")
        self.requested = requested
        self.start = start
        self.end = end


class UnknownStream(BasculeError):
    """There is no stream of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no stream is named {name!r}")
        self.name = name


class UnknownPartition(BasculeError):
    """The stream has no partition of this number."""

    def __init__(self, stream: str, partition: int, partition_count: int) -> None:
        super().__init__(
            f"stream {stream!r} has {counted(partition_count, 'partition')}, "
            f"asked for number {partition}"
        )
        self.stream = stream
        self.partition = partition
        self.partition_count = partition_count


class StreamConflict(BasculeError):
    """A stream of this name exists with another configuration; `differences` names each field."""

    def __init__(self, name: str, differences: dict[str, tuple[object, object]]) -> None:
        shown = "; ".join(
            f"{name} is {setting_text(present)}, asked for {setting_text(asked)}"
            for name, (present, asked) in differences.items()
        )
        super().__init__(f"stream {name!r} exists with another configuration: {shown}")
        self.name = name
        self.differences = differences


class CannotAlter(BasculeError):
    """`field` of a stream is `present` and cannot be changed to `asked`; the text says what to do
    instead."""

    def __init__(
        self, name: str, field: str, *, present: object, asked: object, instead: str
    ) -> None:
        super().__init__(
            f"{field} of stream {name!r} is {setting_text(present)} and cannot become "
            f"{setting_text(asked)}: {instead}"
        )
        self.name = name
        self.field = field
        self.present = present
        self.asked = asked


class InternalStream(BasculeError):
    """The stream is internal: only the node itself may change it."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"stream {name!r} is internal to the node and cannot be {what}")
        self.name = name


class UnknownGroup(BasculeError):
    """There is no group of this name: it has neither members nor committed offsets."""

    def __init__(self, name: str) -> None:
        super().__init__(f"group {name!r} does not exist: it has no members and no offsets")
        self.name = name


class GroupHasMembers(BasculeError):
    """The consumer is a group with members, which alone commit for it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"group {name!r} has members, which commit for it; stop them first")
        self.name = name


class GroupRefused(BasculeError):
    """The coordinator of a group does not let this member join; the text says what to do."""

    def __init__(self, group: str, why: str) -> None:
        super().__init__(f"group {group!r} refuses this member: {why}")
        self.group = group
        self.why = why


class CommitFenced(BasculeError):
    """The group went on without this member, so it cannot commit. Its messages come again."""

    def __init__(self, group: str, why: str) -> None:
        super().__init__(
            f"offsets of group {group!r} are not committed: {why}. Others have the partitions now, "
            "and messages since the last commit are delivered to them again. The next request for "
            "a message joins the group again"
        )
        self.group = group
        self.why = why


class NotLeader(BasculeError):
    """Another node leads: a partition in `epoch`, or a Raft group in `term`; the other is None.

    `leader` is its id, or None if no leader is known. The request had no effect.
    """

    retriable = True

    def __init__(
        self, leader: int | None, epoch: int | None = None, *, term: int | None = None
    ) -> None:
        when = f"epoch {epoch}" if term is None else f"term {term}"
        who = "no leader is known" if leader is None else f"node {leader} leads"
        super().__init__(f"not the leader: {who} in {when}")
        self.leader = leader
        self.epoch = epoch
        self.term = term

    @classmethod
    def of_partition(cls, state: PartitionState | None, leader_epoch: int) -> NotLeader:
        """The error of a replica that does not lead; `state` is None where it is not known yet."""
        leader = None if state is None or state.leader == NO_LEADER else state.leader
        return cls(leader, leader_epoch)


class FencedEpoch(BasculeError):
    """The leader epoch in the request is older than that of the partition."""

    retriable = True

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"leader epoch {asked} is fenced: the current epoch is {current}")
        self.asked = asked
        self.current = current


class UnknownEpoch(BasculeError):
    """The leader epoch in the request is newer than the one that this node knows."""

    retriable = True

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"leader epoch {asked} is unknown here: the current epoch is {current}")
        self.asked = asked
        self.current = current


class UnexpectedOffset(BasculeError):
    """A batch begins at offset `found`; the log continues at `expected`."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the batch begins at offset {found}, the log ends at offset {expected}")
        self.expected = expected
        self.found = found


class UnexpectedEpoch(BasculeError):
    """A batch has leader epoch `found`, and the batch before it the later epoch `latest`."""

    def __init__(self, latest: int, found: int) -> None:
        super().__init__(f"the batch has leader epoch {found}, the batch before it {latest}")
        self.latest = latest
        self.found = found


class Indeterminate(BasculeError):
    """The request may or may not have taken effect; repeat it only if a duplicate is harmless.

    `index` and `term` are those of the Raft entry that was appended for it, where that is known,
    else 0. The request has taken effect if and only if that entry is committed.
    """

    retriable = True

    def __init__(self, text: str = "", *, index: int = 0, term: int = 0) -> None:
        super().__init__(text)
        self.index = index
        self.term = term


class AcksNothing(Indeterminate):
    """The streams that take a message do not ack it, so nobody says whether it is stored. `how`
    says what changes that."""

    retriable = False

    def __init__(self, stream: str, how: str) -> None:
        super().__init__(
            f"no ack: stream {stream} acks nothing; {how}; the message may or may not be stored"
        )
        self.stream = stream


class RequestExpired(Indeterminate):
    """The request came too late to be carried out, or to be repeated: its id is not remembered any
    more. It has no effect from now on; whether it had one before is not known.

    `last_index` is the last index of the log at which it may take effect, `index` the next one.
    """

    retriable = False

    def __init__(self, last_index: int, index: int) -> None:
        super().__init__(
            f"the request came too late: it may take effect up to index {last_index} of the "
            f"metadata log, which is at {index}; it may have been carried out before, so look "
            "before you repeat it",
            index=index,
        )
        self.last_index = last_index


class CannotReplicate(BasculeError):
    """The request was not appended; retry later. `why` says what prevents it."""

    retriable = True

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot replicate now: {why}")
        self.why = why


class MembersChanged(BasculeError):
    """A change of members was requested for members that are no longer in force.

    `expected` and `found` are the log indices from which members are in force.
    """

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(
            f"the members have changed: expected those of index {expected}, found those of {found}"
        )
        self.expected = expected
        self.found = found


class LaggingIndex(BasculeError):
    """A local read or a barrier needs index `asked`; at its deadline only `applied` was applied."""

    retriable = True

    def __init__(self, asked: int, applied: int) -> None:
        super().__init__(f"index {asked} is not applied yet: this node is at {applied}")
        self.asked = asked
        self.applied = applied


class PartitionFailed(BasculeError):
    """The partition stopped after a disk error or corruption, described by `cause`.

    `reason` is the cause without paths of the server: publishers get it. `is_damage`: bytes of the
    log are not what was written, or are missing.
    """

    def __init__(
        self,
        stream: str,
        partition: int,
        cause: str,
        *,
        reason: str = "internal error",
        is_damage: bool = False,
    ) -> None:
        super().__init__(f"stream {stream!r} partition {partition} has stopped: {cause}")
        self.stream = stream
        self.partition = partition
        self.cause = cause
        self.reason = reason
        self.is_damage = is_damage


class PublishRejected(BasculeError):
    """A message got an error ack with JetStream's `code`, `err_code` and `description`, from
    `stream` (empty: not known). `is_repeated` says whether the client had sent it more than once:
    what refuses it may be its first sending, if the stream does not remember its message id."""

    def __init__(self, code: int, err_code: int, description: str, stream: str = "") -> None:
        super().__init__(f"publish rejected: {description} (code {code}, err_code {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description
        self.stream = stream
        self.is_repeated = False


class NoResponders(BasculeError):
    """The subject has no subscriber: no stream has it, or the node is not connected."""

    retriable = True

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"no stream takes subject {subject!r}: create one, or check that its node is running"
        )
        self.subject = subject


class RequestFailed(BasculeError):
    """A node refused a request, for a reason without an error class of its own."""

    def __init__(self, what: str, code: str, message: str) -> None:
        super().__init__(f"{what} failed: {message} ({code})")
        self.code = code
        self.message = message


class LimitExceeded(BasculeError):
    """`asked` exceeds the limit `name`."""

    def __init__(self, name: str, limit: int, asked: int) -> None:
        super().__init__(f"{name} is {limit}, asked for {asked}")
        self.name = name
        self.limit = limit
        self.asked = asked


class DiskFull(BasculeError):
    """A file could not be written: the disk of the data directory `path` is full."""

    retriable = True

    def __init__(
        self,
        path: str,
        free_bytes: int,
        advice: str = "purge or delete a stream, lower its retention, or free space",
    ) -> None:
        super().__init__(
            f"no space left on the disk of {path}: {free_bytes} bytes are free; {advice}"
        )
        self.path = path
        self.free_bytes = free_bytes


class DataDirectoryInUse(BasculeError):
    """Another process has locked the data directory; `pid` is None if it is not known."""

    def __init__(self, path: str, pid: int | None) -> None:
        self.holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"data directory {path} is in use by {self.holder}")
        self.path = path
        self.pid = pid


class BackupPlaceInUse(BasculeError):
    """Another backup is written to the same place, by `holder`: a process or a backup's id."""

    def __init__(self, address: str, holder: str) -> None:
        super().__init__(
            f"{address} is in use by {holder}: one backup at a time is written to a place"
        )
        self.address = address
        self.holder = holder


def is_damage(error: BaseException) -> bool:
    """Whether an error says that data is not as it was written, or gone."""
    return isinstance(error, CorruptData | MissingLog)


def reason_without_paths(error: BaseException) -> str:
    """Why something failed, in words that may be told to clients: no paths of the server."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, MissingLog):
        return "its log is missing"
    if isinstance(error, CorruptData):
        return "damaged data"
    if isinstance(error, PartitionFailed):
        return error.reason
    if error.__cause__ is not None:
        return reason_without_paths(error.__cause__)
    return "internal error"


class LogFailed(BasculeError):
    """A log stopped after a disk error; it must be opened again.

    After a failed sync the kernel may have dropped the pages that it could not write, so a later
    successful sync does not mean that those bytes are on the disk.
    """

    def __init__(self, directory: str, cause: str) -> None:
        super().__init__(f"log {directory} has stopped: {cause}")
        self.directory = directory
        self.cause = cause


class NotEnoughNodes(BasculeError):
    """More replicas are asked for than there are nodes alive."""

    retriable = True

    def __init__(self, replicas: int, nodes: list[int]) -> None:
        super().__init__(
            f"{replicas} replicas are asked for, and {counted(len(nodes), 'node')} "
            f"{'is alive and takes' if len(nodes) == 1 else 'are alive and take'} "
            f"replicas: {nodes}; start more nodes, resume those that are drained, or ask for fewer "
            "replicas"
        )
        self.replicas = replicas
        self.nodes = nodes


class NotSupported(BasculeError):
    """This release cannot do what is asked for."""

    def __init__(self, what: str) -> None:
        super().__init__(f"not supported by this release: {what}")


class Closed(BasculeError):
    """This process closed the object."""


class Broken(BasculeError):
    """An external failure broke the object; the cause is chained."""

    retriable = True


class ConnectionGone(Broken):
    """The connection to a process ended, and the kernel refuses a new one: the process is gone."""


class UnsupportedFormat(BasculeError):
    """This version cannot read the format of `file`; a newer version probably wrote it."""

    def __init__(self, file: str, found: int, newest: int) -> None:
        super().__init__(f"{file} has format version {found}, this Bascule reads up to {newest}")
        self.file = file
        self.found = found
        self.newest = newest


class MissingExtra(BasculeError):
    """A feature needs a package that is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed: pip install 'bascule[{extra}]'"
        )
        self.package = package
        self.extra = extra
