"""The table of our errors and the protocol's error codes."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from bascule import errors


class ErrorCode(IntEnum):
    """Codes that we send or handle. Source: `org.apache.kafka.common.protocol.Errors`."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    INVALID_REGULAR_EXPRESSION = 128


_CODES: Final[tuple[tuple[type[errors.BasculeError], ErrorCode], ...]] = (
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.UnknownStream, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.UnknownPartition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.Closed, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.InvalidName, ErrorCode.INVALID_TOPIC),
    (errors.NotLeader, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (errors.FencedEpoch, ErrorCode.FENCED_LEADER_EPOCH),
    (errors.UnknownEpoch, ErrorCode.UNKNOWN_LEADER_EPOCH),
    (errors.PartitionFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.CorruptData, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.LogFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.LimitExceeded, ErrorCode.POLICY_VIOLATION),
    (errors.InternalStream, ErrorCode.POLICY_VIOLATION),
    (errors.StreamConflict, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.ConfigError, ErrorCode.INVALID_CONFIG),
    (errors.CannotAlter, ErrorCode.INVALID_CONFIG),
    (errors.NotEnoughNodes, ErrorCode.INVALID_REPLICATION_FACTOR),
    (errors.Indeterminate, ErrorCode.REQUEST_TIMED_OUT),
    (errors.LocalProtocolError, ErrorCode.UNSUPPORTED_VERSION),
    (errors.RemoteProtocolError, ErrorCode.INVALID_REQUEST),
)
"""In both directions the first matching row is used."""

_CLASSES: Final[dict[int, type[errors.BasculeError]]] = {
    int(code): kind for kind, code in reversed(_CODES)
}
_CLASSES[ErrorCode.UNKNOWN_TOPIC_ID] = errors.UnknownStream
_CLASSES[ErrorCode.LEADER_NOT_AVAILABLE] = errors.NotLeader
_CLASSES[ErrorCode.REQUEST_TIMED_OUT] = errors.Indeterminate
_CLASSES[ErrorCode.OFFSET_NOT_AVAILABLE] = errors.CannotReplicate


def code_of(error: BaseException) -> ErrorCode:
    """The code for `error`. An OSError is an error of the disk."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_class_of(code: int) -> type[errors.BasculeError]:
    """The error class for a code; `BasculeError` for a code that is not in the table."""
    return _CLASSES.get(code, errors.BasculeError)


def code_name(code: int) -> str:
    """For example `OFFSET_OUT_OF_RANGE (1)`; `error (9999)` for an unknown code."""
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error ({code})"
