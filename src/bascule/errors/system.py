"""What goes wrong in a node, in its protocols and on the way to it."""

from __future__ import annotations

from typing import ClassVar, Final


class BasculeError(Exception):
    """Base of everything Bascule raises on purpose."""

    retriable: ClassVar[bool] = False


class ConfigError(BasculeError):
    """A configuration value or key is wrong; the text says which and what would be right.

    `field` is the setting of a stream that it is about, where it is about one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidName(BasculeError):
    """A stream name or subject breaks a rule: `what` it is, the `value`, and `why` not."""

    def __init__(self, what: str, value: str, why: str) -> None:
        shown = value if len(value) <= 80 else value[:77] + "..."
        super().__init__(f"{what} {shown!r} is not valid: {why}")
        self.what = what
        self.value = value
        self.why = why


class CorruptData(BasculeError):
    """Bytes on disk are not what was written: file, byte position, expected and found.

    Where a byte says nothing, as in a database, `place` says it in words and `at` is its number.
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
    ".log": "records before that batch are whole, and other partitions are not concerned; put back "
    "a copy of the file, or give up what is behind as docs/formats.md says",
    "checkpoint": "the records are not concerned; put back a copy, or remove the file to have the "
    "whole log read, with records that were purged from its first segment",
    ".sqlite": "no other node's copy is concerned; take this node out of its Raft groups and let "
    "it join again under another id, with a new file",
    "metadata.json": "the streams' data is not concerned; put back a copy of the file",
    "node.json": "no stream is concerned; put back a copy, or remove the file for a new cluster id",
}
"""By the end of a file's name: what is safe, and what to do."""


def _advice(file: str) -> str:
    return next((text for end, text in _ADVICE.items() if file.endswith(end)), "")


class ProtocolError(BasculeError):
    """A peer or we broke a wire protocol."""


class LocalProtocolError(ProtocolError):
    """We were about to send, or were asked for, something the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something the protocol does not allow; its connection ends."""


class OffsetOutOfRange(BasculeError):
    """`requested` lies outside the offsets held, [start, end)."""

    def __init__(self, requested: int, start: int, end: int) -> None:
        super().__init__(f"offset {requested} is outside [{start}, {end})")
        self.requested = requested
        self.start = start
        self.end = end


class UnknownStream(BasculeError):
    """No stream of this name here."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no stream is named {name!r}")
        self.name = name


class UnknownPartition(BasculeError):
    """The stream exists, the partition does not."""

    def __init__(self, stream: str, partition: int, partition_count: int) -> None:
        super().__init__(
            f"stream {stream!r} has {partition_count} partitions, asked for number {partition}"
        )
        self.stream = stream
        self.partition = partition
        self.partition_count = partition_count


class StreamConflict(BasculeError):
    """A stream of this name exists with another configuration; `differences` names each field."""

    def __init__(self, name: str, differences: dict[str, tuple[object, object]]) -> None:
        shown = "; ".join(f"{k} is {a!r}, asked for {b!r}" for k, (a, b) in differences.items())
        super().__init__(f"stream {name!r} exists with another configuration: {shown}")
        self.name = name
        self.differences = differences


class CannotAlter(BasculeError):
    """A stream has `present` for `field` and cannot get `asked`; the text says what to do."""

    def __init__(
        self, name: str, field: str, *, present: object, asked: object, instead: str
    ) -> None:
        super().__init__(
            f"{field} of stream {name!r} is {present!r} and cannot become {asked!r}: {instead}"
        )
        self.name = name
        self.field = field
        self.present = present
        self.asked = asked


class InternalStream(BasculeError):
    """The stream belongs to the node itself, which alone may change it."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"stream {name!r} is kept by the node itself and cannot be {what}")
        self.name = name


class NotLeader(BasculeError):
    """Another node leads: a partition in `epoch`, or a Raft group in `term`; the other is None.

    `leader` is its id or None while there is none. What was asked took no effect here.
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


class FencedEpoch(BasculeError):
    """The asker's leader epoch is older than the partition's."""

    retriable = True

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"leader epoch {asked} is fenced: the current epoch is {current}")
        self.asked = asked
        self.current = current


class UnknownEpoch(BasculeError):
    """The asker's leader epoch is newer than this node knows."""

    retriable = True

    def __init__(self, asked: int, current: int) -> None:
        super().__init__(f"leader epoch {asked} is unknown here: the current epoch is {current}")
        self.asked = asked
        self.current = current


class UnexpectedOffset(BasculeError):
    """A batch begins at offset `found`; the log that it is for goes on at `expected`."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"the batch begins at offset {found}, the log ends at offset {expected}")
        self.expected = expected
        self.found = found


class UnexpectedEpoch(BasculeError):
    """A batch has leader epoch `found`; the batch before it has the later epoch `latest`."""

    def __init__(self, latest: int, found: int) -> None:
        super().__init__(f"the batch has leader epoch {found}, the batch before it {latest}")
        self.latest = latest
        self.found = found


class Indeterminate(BasculeError):
    """The request may or may not have taken effect; repeat it only if that is harmless."""

    retriable = True


class CannotReplicate(BasculeError):
    """Never appended; retry later. `why` says what stands in the way."""

    retriable = True

    def __init__(self, why: str) -> None:
        super().__init__(f"cannot replicate now: {why}")
        self.why = why


class MembersChanged(BasculeError):
    """A change of members was decided on members that are no longer in force.

    `expected` and `found` are the log indices from which the members hold.
    """

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(
            f"the members have changed: expected those of index {expected}, found those of {found}"
        )
        self.expected = expected
        self.found = found


class LaggingIndex(BasculeError):
    """A local read or a barrier asked for index `asked` and its deadline found only `applied`."""

    retriable = True

    def __init__(self, asked: int, applied: int) -> None:
        super().__init__(f"index {asked} is not applied yet: this node is at {applied}")
        self.asked = asked
        self.applied = applied


class PartitionFailed(BasculeError):
    """The partition stopped after a disk error or corruption; `cause` says which."""

    def __init__(self, stream: str, partition: int, cause: str) -> None:
        super().__init__(f"stream {stream!r} partition {partition} has stopped: {cause}")
        self.stream = stream
        self.partition = partition
        self.cause = cause


class PublishRejected(BasculeError):
    """A publish got an error ack: JetStream's `code`, `err_code` and `description`."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"publish rejected: {description} (code {code}, err_code {err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class NoResponders(BasculeError):
    """Nobody subscribes to the subject: no stream takes it, or its node is not connected."""

    retriable = True

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"no stream takes subject {subject!r}: create one, or check that its node is running"
        )
        self.subject = subject


class RequestFailed(BasculeError):
    """A node refused a request for a reason that has no class of its own here."""

    def __init__(self, what: str, code: str, message: str) -> None:
        super().__init__(f"{what} failed: {message} ({code})")
        self.code = code
        self.message = message


class LimitExceeded(BasculeError):
    """`asked` is more than the limit `name` allows."""

    def __init__(self, name: str, limit: int, asked: int) -> None:
        super().__init__(f"{name} is {limit}, asked for {asked}")
        self.name = name
        self.limit = limit
        self.asked = asked


class DataDirectoryInUse(BasculeError):
    """Another node holds the data directory's lock; `pid` is None where the lock does not say."""

    def __init__(self, path: str, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"data directory {path} is in use by {holder}")
        self.path = path
        self.pid = pid


class LogFailed(BasculeError):
    """A log stopped after a disk error; nothing but opening it again makes it go on.

    After a failed sync the kernel may have dropped what it could not write, so a second sync that
    succeeds says nothing about the first one's bytes.
    """

    def __init__(self, directory: str, cause: str) -> None:
        super().__init__(f"log {directory} has stopped: {cause}")
        self.directory = directory
        self.cause = cause


class Closed(BasculeError):
    """We closed it."""


class Broken(BasculeError):
    """The world broke it; the cause is chained."""

    retriable = True


class UnsupportedFormat(BasculeError):
    """`file` was written in a format this version does not read, most likely by a newer one."""

    def __init__(self, file: str, found: int, newest: int) -> None:
        super().__init__(f"{file} has format version {found}, this Bascule reads up to {newest}")
        self.file = file
        self.found = found
        self.newest = newest


class MissingExtra(BasculeError):
    """Something needs a package that this installation was made without."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed: pip install 'bascule[{extra}]'"
        )
        self.package = package
        self.extra = extra
