"""Decide on requests: a command to apply, what already holds, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from bascule.config import KEYS
from bascule.errors import ConfigError, InvalidName, StreamConflict, UnknownStream
from bascule.metadata.commands import CreateStream, DeleteStream
from bascule.metadata.image import Image
from bascule.model import StreamConfig, StreamDefinition
from bascule.wire.subjects import check_queue_group, check_subject

NAME_LENGTH_MAX: Final = 200
"""A name is a directory name (255 bytes on Linux) and a Kafka topic (249 characters)."""

STREAM_ID_BYTES: Final = 16

_NAME_CHARACTERS: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
)


@dataclass(frozen=True, slots=True)
class Existing:
    """The request is already fulfilled by this definition."""

    definition: StreamDefinition


def create_stream(
    image: Image, name: str, config: StreamConfig, *, id: bytes, now_ms: int
) -> CreateStream | Existing:
    """Decide on a stream's creation; an equal stream that exists fulfils it.

    `id` is 16 random bytes for the new stream, `now_ms` the time of its creation.

    Raises: InvalidName for the name, subject or group; ConfigError for a value out of its range;
    StreamConflict when the name is taken by a stream of another configuration.
    """
    assert len(id) == STREAM_ID_BYTES
    check_stream_name(name)
    check_config(config)
    present = image.streams.get(name)
    if present is None:
        return CreateStream(StreamDefinition(name=name, id=id, created_ms=now_ms, config=config))
    if present.config != config:
        raise StreamConflict(name, differences(present.config, config))
    return Existing(present)


def delete_stream(image: Image, name: str) -> DeleteStream:
    """Decide on a stream's deletion. Raises: UnknownStream."""
    present = image.streams.get(name)
    if present is None:
        raise UnknownStream(name)
    return DeleteStream(name=name, id=present.id)


def check_stream_name(name: str) -> None:
    """Return if `name` can name a stream: 1 to 200 of A-Z a-z 0-9 . _ -, led by a letter or digit.

    A leading underscore is kept for streams of our own, a leading dot or dash would be a trap in
    paths and command lines.

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
    if name[0] in "._-":
        raise InvalidName("stream name", name, "it must start with a letter or a digit")


def check_config(config: StreamConfig) -> None:
    """Return if every field of `config` is usable. Raises: InvalidName, ConfigError."""
    check_subject(config.subject, wildcards=True)
    if config.group is not None:
        check_queue_group(config.group)
    for item in fields(config):
        key = KEYS.get(f"streams.{item.name}")
        value = getattr(config, item.name)
        if key is None or key.type is not int:
            continue
        low, high = key.minimum, key.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ConfigError(f"{item.name} must be {allowed}, got {value}")


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
