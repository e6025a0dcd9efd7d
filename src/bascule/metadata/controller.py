"""Decide on requests: a command to apply, what already holds, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from bascule.config import check_stream_config, check_stream_values, stream_config
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
from bascule.model import StreamConfig, StreamDefinition
from bascule.wire.subjects import check_queue_group, check_subject

NAME_LENGTH_MAX: Final = 200
"""A name is a directory name (255 bytes on Linux) and a Kafka topic (249 characters)."""

STREAM_ID_BYTES: Final = 16

INTERNAL_PREFIX: Final = "_"
"""Leads the names of the node's own streams, which no operator creates, alters or deletes."""

IMMUTABLE: Final[Mapping[str, str]] = {
    "subject": "create another stream on that subject",
    "group": "create another stream in that queue group",
    "partition_by": "records would leave the partitions they are in; create another stream",
    "key_from": "one key would mean two things in one stream; create another stream",
}
"""Settings fixed at creation -> what to do instead."""

_NAME_CHARACTERS: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)


@dataclass(frozen=True, slots=True)
class Existing:
    """The request is already fulfilled by this definition."""

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
    """Decide on a stream's creation; an equal stream that exists fulfils it.

    `id` is 16 random bytes for the new stream, `now_ms` the time of its creation; `internal` is
    for the node's own streams, whose names an underscore leads.

    Raises: InvalidName for the name, subject or group; ConfigError for a value out of its range
    or values that contradict each other; StreamConflict when the name is taken by a stream of
    another configuration.
    """
    assert len(id) == STREAM_ID_BYTES
    check_stream_name(name, internal=internal)
    check_config(config)
    present = image.streams.get(name)
    if present is None:
        return CreateStream(StreamDefinition(name=name, id=id, created_ms=now_ms, config=config))
    if present.config != config:
        raise StreamConflict(name, differences(present.config, config))
    return Existing(present)


def alter_stream(
    image: Image, name: str, changes: Mapping[str, Any], *, internal: bool = False
) -> AlterStream | Existing:
    """Decide on other settings for a stream; `changes` is field -> plain value, as in JSON.

    What `changes` leaves out stays. Partitions may only be added: what is in a partition stays
    there, so with `partition_by` subject or key the messages of one subject or key may be in two
    partitions from then on.

    Raises: UnknownStream, InternalStream; CannotAlter for a field fixed at creation or fewer
    partitions; ConfigError for an unknown field, a value out of its range or values that
    contradict each other.
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
    """Decide on taking no messages for now. Raises: UnknownStream, InternalStream."""
    present = _operators_stream(image, name, "paused")
    return Existing(present) if present.paused else PauseStream(name=name, id=present.id)


def resume_stream(image: Image, name: str) -> ResumeStream | Existing:
    """Decide on taking messages again. Raises: UnknownStream, InternalStream."""
    present = _operators_stream(image, name, "resumed")
    return ResumeStream(name=name, id=present.id) if present.paused else Existing(present)


def delete_stream(image: Image, name: str, *, internal: bool = False) -> DeleteStream:
    """Decide on a stream's deletion. Raises: UnknownStream, InternalStream."""
    present = _operators_stream(image, name, "deleted", internal=internal)
    return DeleteStream(name=name, id=present.id)


def check_purge(image: Image, name: str, *, partition: int | None = None) -> StreamDefinition:
    """The stream whose oldest records are to go, from one partition or all.

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
    if name.startswith(INTERNAL_PREFIX) and not internal:
        raise InternalStream(name, what)
    return present


def _changed(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    """`config` with `changes`. Raises: ConfigError for an unknown field or word."""
    plain = asdict(config)
    for field, value in changes.items():
        if field not in plain:
            raise ConfigError(f"{field} is no setting of a stream", field=field)
        plain[field] = value
    try:
        return stream_config(plain, subject=plain.pop("subject"), group=plain.pop("group"))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_stream_name(name: str, *, internal: bool = False) -> None:
    """Return if `name` can name a stream: 1 to 200 of A-Z a-z 0-9 . _ -, led by a letter or digit.

    A leading underscore is kept for streams of our own (`internal`), a leading dot or dash would be
    a trap in paths and command lines.

    Raises: InvalidName saying which rule is broken.
    """
    if not name:
        raise InvalidName("stream name", name, "it is empty")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(
            "stream name", name, f"{len(name)} characters long, at most {NAME_LENGTH_MAX}"
        )
    for position, character in enumerate(name):
        if character not in _NAME_CHARACTERS:
            raise InvalidName(
                "stream name",
                name,
                f"{character!r} at position {position} is not one of A-Z a-z 0-9 . _ -",
            )
    if internal and name[0] == INTERNAL_PREFIX:
        return
    if name[0] in "._-":
        raise InvalidName("stream name", name, "it must start with a letter or a digit")


def check_config(config: StreamConfig) -> None:
    """Return if every setting is usable, and all together. Raises: InvalidName, ConfigError."""
    _check_names(config)
    check_stream_config(config)


def check_stored_config(config: StreamConfig) -> None:
    """Return if every setting alone is usable: what was taken once is not refused for a rule that
    came later. Raises: InvalidName, ConfigError.
    """
    _check_names(config)
    check_stream_values(config)


def _check_names(config: StreamConfig) -> None:
    check_subject(config.subject, wildcards=True)
    if config.group is not None:
        check_queue_group(config.group)


def differences(present: StreamConfig, asked: StreamConfig) -> dict[str, tuple[object, object]]:
    """Field -> (present, asked) for each field in which two configurations differ."""
    return {
        item.name: (_plain(getattr(present, item.name)), _plain(getattr(asked, item.name)))
        for item in fields(present)
        if getattr(present, item.name) != getattr(asked, item.name)
    }


def _plain(value: object) -> object:
    """Enum members as the text an operator wrote."""
    return str(value) if isinstance(value, str) else value
