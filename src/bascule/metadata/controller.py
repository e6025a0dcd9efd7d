"""Decides on requests: returns a command or the existing definition, or raises an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from bascule.config import check_stream_config, check_stream_values, stream_config
from bascule.config.sections import TABLE_TTL_MS_MIN
from bascule.errors import (
    CannotAlter,
    ConfigError,
    InternalStream,
    InvalidName,
    StreamConflict,
    UnknownPartition,
    UnknownStream,
)
from bascule.metadata.commands import (
    AlterStream,
    CreateStream,
    DeleteStream,
    PauseStream,
    ResumeStream,
)
from bascule.metadata.image import Image
from bascule.model import (
    STREAM_NAME_LENGTH_MAX,
    PartitionBy,
    RecordHeader,
    StreamConfig,
    StreamDefinition,
    is_internal_stream,
)
from bascule.wire.subjects import check_queue_group, check_subject
from bascule.wire.tables.keys import why_no_table

STREAM_ID_BYTES: Final = 16

IMMUTABLE: Final[Mapping[str, str]] = {
    "subject": "create another stream on that subject",
    "group": "create another stream in that queue group",
    "partition_by": "stored records would be in the wrong partitions; create another stream",
    "key_from": "records of one stream would have keys of two kinds; create another stream",
}
"""Settings fixed at creation -> what to do instead."""

RECORD_HEADERS_BEFORE: Final = (RecordHeader.SUBJECT, RecordHeader.REPLY)
"""The headers that records had before `record_headers` was a setting. Streams that were created
then keep them."""

_NAME_CHARACTERS: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)


@dataclass(frozen=True, slots=True)
class Existing:
    """The stream already has this definition, so there is nothing to do."""

    definition: StreamDefinition


def create_stream(
    image: Image,
    name: str,
    config: StreamConfig,
    *,
    id: bytes,
    now_ms: int,
    internal: bool = False,
) -> CreateStream | Existing:
    """Decide on the creation of a stream. If an equal stream exists, there is nothing to do.

    A stream with the record headers of earlier releases is equal to one without: a program that
    creates its streams at each start must not fail after an upgrade of the node.

    `id` is 16 random bytes for the new stream, `now_ms` the time of its creation. `internal` is for
    streams of the node itself, whose names are reserved.

    Raises: InvalidName for the name, subject or group; ConfigError for a value out of its range or
    contradictory values; StreamConflict if a stream of this name has another configuration.
    """
    assert len(id) == STREAM_ID_BYTES
    check_stream_name(name, internal=internal)
    check_config(config)
    present = image.streams.get(name)
    if present is None:
        return CreateStream(StreamDefinition(name=name, id=id, created_ms=now_ms, config=config))
    asked = config
    if present.config.record_headers == RECORD_HEADERS_BEFORE and not config.record_headers:
        asked = replace(config, record_headers=RECORD_HEADERS_BEFORE)
    if present.config != asked:
        raise StreamConflict(name, differences(present.config, config))
    return Existing(present)


def alter_stream(
    image: Image, name: str, changes: Mapping[str, Any], *, internal: bool = False
) -> AlterStream | Existing:
    """Decide on new settings of a stream; `changes` is field -> plain value, as in JSON.

    Other settings stay. Partitions can only be added. Records stay in their partition, so with
    `partition_by` subject or key, messages of one subject or key may then be in two partitions.

    Raises: UnknownStream, InternalStream; CannotAlter for a field that is fixed at creation, or
    fewer partitions; ConfigError for an unknown field, a value out of its range or contradictory
    values.
    """
    present = _operators_stream(image, name, "altered", internal=internal)
    config = _changed(present.config, changes)
    for field, instead in IMMUTABLE.items():
        before, after = getattr(present.config, field), getattr(config, field)
        if before != after:
            before, after = _plain(before), _plain(after)
            raise CannotAlter(name, field, present=before, asked=after, instead=instead)
    check_config(config)
    if config.partitions < present.config.partitions:
        raise CannotAlter(
            name,
            "partitions",
            present=present.config.partitions,
            asked=config.partitions,
            instead="partitions can only be added; copy the records to another stream",
        )
    if config == present.config:
        return Existing(present)
    return AlterStream(name=name, id=present.id, config=config)


def pause_stream(image: Image, name: str) -> PauseStream | Existing:
    """Decide on refusing messages of a stream. Raises: UnknownStream, InternalStream."""
    present = _operators_stream(image, name, "paused")
    return Existing(present) if present.paused else PauseStream(name=name, id=present.id)


def resume_stream(image: Image, name: str) -> ResumeStream | Existing:
    """Decide on accepting messages again. Raises: UnknownStream, InternalStream."""
    present = _operators_stream(image, name, "resumed")
    return ResumeStream(name=name, id=present.id) if present.paused else Existing(present)


def delete_stream(image: Image, name: str, *, internal: bool = False) -> DeleteStream:
    """Decide on the deletion of a stream. Raises: UnknownStream, InternalStream."""
    present = _operators_stream(image, name, "deleted", internal=internal)
    return DeleteStream(name=name, id=present.id)


def check_purge(image: Image, name: str, *, partition: int | None = None) -> StreamDefinition:
    """The stream to purge; `partition` is one of its partitions, or None for all.

    Raises: UnknownStream, InternalStream, UnknownPartition.
    """
    present = _operators_stream(image, name, "purged")
    if partition is not None and not 0 <= partition < present.partition_count:
        raise UnknownPartition(name, partition, present.partition_count)
    return present


def _operators_stream(
    image: Image, name: str, what: str, *, internal: bool = False
) -> StreamDefinition:
    present = image.streams.get(name)
    if present is None:
        raise UnknownStream(name)
    if is_internal_stream(name) and not internal:
        raise InternalStream(name, what)
    return present


def _changed(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    """`config` with `changes`. Raises: ConfigError for an unknown field or word."""
    plain = asdict(config)
    for field, value in changes.items():
        if field not in plain:
            raise ConfigError(f"{field} is not a setting of a stream", field=field)
        plain[field] = value
    try:
        return stream_config(plain, subject=plain.pop("subject"), group=plain.pop("group"))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_stream_name(name: str, *, internal: bool = False) -> None:
    """Check a stream name: 1 to 249 of A-Z a-z 0-9 . _ -, as the name of a Kafka topic.

    Two rules are stricter than Kafka's. A leading dot or dash would be misread in paths and command
    lines. The names of `internal` streams are reserved.

    Raises: InvalidName naming the rule.
    """
    if not name:
        raise InvalidName("stream name", name, "it is empty")
    if len(name) > STREAM_NAME_LENGTH_MAX:
        raise InvalidName(
            "stream name", name, f"{len(name)} characters long, at most {STREAM_NAME_LENGTH_MAX}"
        )
    for position, character in enumerate(name):
        if character not in _NAME_CHARACTERS:
            raise InvalidName(
                "stream name",
                name,
                f"{character!r} at position {position} is not one of A-Z a-z 0-9 . _ -",
            )
    if name[0] in ".-":
        raise InvalidName("stream name", name, "it must start with a letter, a digit or _")
    if is_internal_stream(name) and not internal:
        raise InvalidName("stream name", name, "it is reserved for the node")


def check_config(config: StreamConfig) -> None:
    """Check each setting, and all of them together. Raises: InvalidName, ConfigError."""
    _check_names(config)
    check_stream_config(config)
    by_mapping = config.partition_by is PartitionBy.MAPPING
    if by_mapping and "*" not in config.subject.split("."):
        raise ConfigError(
            f"partition_by = mapping takes the partition from the first * of the subject, and "
            f"{config.subject!r} has none: use a subject such as 'orders.*.>'",
            field="partition_by",
        )
    if config.table and (why := why_no_table(config)):
        raise ConfigError(f"the stream cannot be a table: {why}", field="table")
    if config.table_ttl_ms and not config.table:
        raise ConfigError("only a table has a time to live", field="table_ttl_ms")
    if 0 < config.table_ttl_ms < TABLE_TTL_MS_MIN:
        raise ConfigError(
            f"table_ttl_ms must be 0 or at least {TABLE_TTL_MS_MIN}, got {config.table_ttl_ms}",
            field="table_ttl_ms",
        )


def check_stored_config(config: StreamConfig) -> None:
    """Check each setting of a stored configuration, but not all of them together: a newer rule must
    not refuse a stream that exists. Raises: InvalidName, ConfigError.
    """
    _check_names(config)
    check_stream_values(config)


def _check_names(config: StreamConfig) -> None:
    check_subject(config.subject, wildcards=True)
    if config.group is not None:
        check_queue_group(config.group)


def differences(present: StreamConfig, asked: StreamConfig) -> dict[str, tuple[object, object]]:
    """Field -> (present, asked) for each field with different values."""
    return {
        item.name: (_plain(getattr(present, item.name)), _plain(getattr(asked, item.name)))
        for item in fields(present)
        if getattr(present, item.name) != getattr(asked, item.name)
    }


def _plain(value: object) -> object:
    """Enum members as text, as an operator writes them."""
    return str(value) if isinstance(value, str) else value
