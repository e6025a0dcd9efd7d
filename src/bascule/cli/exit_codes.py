"""Exit codes, and a hint for each class of error."""

from __future__ import annotations

from typing import Final

from bascule.errors import (
    BackupPlaceInUse,
    BasculeError,
    Broken,
    CannotAlter,
    ConfigError,
    CopyDamaged,
    CorruptData,
    DataDirectoryInUse,
    GroupHasMembers,
    GroupRefused,
    Indeterminate,
    InternalStream,
    InvalidKey,
    InvalidName,
    InvalidPattern,
    InvalidRoute,
    LimitExceeded,
    MissingExtra,
    NodeRefused,
    NoResponders,
    NotANumber,
    NotATable,
    OffsetOutOfRange,
    PayloadDamaged,
    PublishRejected,
    RequestExpired,
    StreamConflict,
    UnknownGroup,
    UnknownNode,
    UnknownPartition,
    UnknownPayload,
    UnknownStream,
    UnsupportedFormat,
    WrongVersion,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3
CONFLICT: Final = 4
UNREACHABLE: Final = 5
CORRUPT: Final = 6
REJECTED: Final = 7
INTERRUPTED: Final = 130
"""128 + SIGINT, as in shells."""

EXPLAINED: Final = (
    (0, "done"),
    (1, "failed for another reason; see standard error"),
    (2, "wrong usage, configuration, name or offset, or the cluster refuses the node"),
    (3, "no such stream, partition, group or node, or no stream on the subject"),
    (4, "the stream has another configuration that cannot change, or the data directory is in use"),
    (5, "the node or the NATS server cannot be reached"),
    (6, "data is corrupt, replicas differ, or a check of the demo or of an audit failed"),
    (7, "the stream or the table rejected a message, or it may or may not be stored"),
    (130, "interrupted"),
)

BACKUP_SUFFIXES: Final = (".json", ".batches", ".payload")
"""Of the names of files in a backup."""
_TABLE: Final[tuple[tuple[type[BasculeError], int, str], ...]] = (
    (UnknownStream, UNKNOWN, "`bascule stream list` shows what exists"),
    (UnknownNode, UNKNOWN, ""),
    (UnknownGroup, UNKNOWN, "`bascule group list` shows the groups"),
    (UnknownPayload, UNKNOWN, "`bascule read STREAM --json` shows which records have a payload"),
    (PayloadDamaged, CORRUPT, "send or read it again"),
    (InvalidRoute, USAGE, ""),
    (UnknownPartition, UNKNOWN, "`bascule stream info` shows the partitions"),
    (
        StreamConflict,
        CONFLICT,
        "use another name, ask for the same configuration, or `bascule stream delete` it first",
    ),
    (CannotAlter, CONFLICT, ""),
    (InternalStream, CONFLICT, ""),
    (GroupHasMembers, CONFLICT, "`bascule group info GROUP` shows the members"),
    (GroupRefused, CONFLICT, ""),
    (BackupPlaceInUse, CONFLICT, "wait for the other one, or name another place"),
    (DataDirectoryInUse, CONFLICT, "stop the other node, or give this one its own --data"),
    (
        NoResponders,
        UNKNOWN,
        "`bascule stream create NAME --subject SUBJECT` makes a subject durable; where a stream "
        "has it, `bascule cluster status` says why nobody takes it",
    ),
    (ConfigError, USAGE, ""),
    (InvalidName, USAGE, ""),
    (LimitExceeded, USAGE, ""),
    (OffsetOutOfRange, USAGE, "`bascule stream info` shows the offsets that are held"),
    (MissingExtra, USAGE, ""),
    (NodeRefused, USAGE, "`bascule node list` shows the nodes of the cluster"),
    (CopyDamaged, CORRUPT, ""),
    (CorruptData, CORRUPT, "`bascule inspect FILE` shows what is left around it"),
    (UnsupportedFormat, FAILED, "use the release that wrote it, or a later one"),
    (PublishRejected, REJECTED, ""),
    (WrongVersion, REJECTED, "`bascule table get --json` shows the version that it has now"),
    (NotANumber, REJECTED, "`bascule table get` shows the value"),
    (NotATable, CONFLICT, ""),
    (InvalidKey, USAGE, ""),
    (InvalidPattern, USAGE, "wildcards are * for one token, and > at the end for all that follow"),
    (RequestExpired, CONFLICT, "see with `bascule stream info` what is there, then try again"),
    (Indeterminate, REJECTED, "read the stream before publishing again"),
    (Broken, UNREACHABLE, ""),
    (BasculeError, FAILED, ""),
)


def explain(error: BasculeError) -> tuple[int, str]:
    """The exit code for `error`, and a hint (or an empty text)."""
    code, hint = explain_class(type(error))
    if isinstance(error, CorruptData) and error.file.endswith(BACKUP_SUFFIXES):
        return code, ""  # `bascule inspect` is for the files of a node
    return code, hint


def explain_class(kind: type[BasculeError]) -> tuple[int, str]:
    """The same for the class of an error that another process reported."""
    return next((code, hint) for cls, code, hint in _TABLE if issubclass(kind, cls))
