"""Checks of stream settings, one by one and together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from bascule.config.keys import KEYS
from bascule.errors import ConfigError
from bascule.model import Cleanup, Discard, StreamConfig

NUMBER_MAX: Final = (1 << 53) - 1
"""Largest number of any setting: JSON readers keep integers exactly up to here."""

ARCHIVE_NAME_LENGTH_MAX: Final = 200

_RETENTION_LIMITS: Final = ("retention_ms_max", "retention_bytes_max", "retention_messages_max")


def check_stream_config(config: StreamConfig) -> None:
    """Check each setting, and all of them together. The caller checks subject and group.

    Raises: ConfigError whose `field` is the setting to change.
    """
    check_stream_values(config)
    for names, message in contradictions(config):
        raise ConfigError(message, field=names[0])


def check_stream_values(config: StreamConfig) -> None:
    """Check each setting against its limits. Raises: ConfigError."""
    for item in fields(config):
        key = KEYS.get(f"streams.{item.name}")
        if key is None or key.type is not int:
            continue
        value, low, high = getattr(config, item.name), key.minimum, key.maximum
        top = NUMBER_MAX if high is None else high
        if value <= top and (low is None or value >= low):
            continue
        if low is not None and high is not None:
            allowed = f"between {low} and {high}"
        elif low is not None and value < low:
            allowed = f"at least {low}"
        else:
            allowed = f"at most {top}"
        raise ConfigError(f"{item.name} must be {allowed}, got {value}", field=item.name)
    _check_words(config)
    _check_archive_name(config.retention_after)


def contradictions(config: StreamConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Pairs of (settings that contradict each other, text with advice), the most severe first."""
    if config.min_isr > config.replicas:
        yield (
            ("min_isr", "replicas"),
            f"min_isr is {config.min_isr}, more than the {config.replicas} replicas: lower it",
        )
    low, high = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if high and high < low:
        yield (
            ("max_compaction_lag_ms", "min_compaction_lag_ms"),
            f"max_compaction_lag_ms is {high}, less than min_compaction_lag_ms of {low}: "
            "raise it, or set it to 0",
        )
    if Cleanup.DELETE not in config.cleanup:
        yield from _limits_without_delete(config)


def _limits_without_delete(config: StreamConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Limits that nothing enforces. `discard = new` enforces those of size and count."""
    enforced = () if config.discard is Discard.OLD else _RETENTION_LIMITS[1:]
    for name in (*_RETENTION_LIMITS, "retention_after"):
        value = getattr(config, name)
        if value and name not in enforced:
            unset = "leave it empty" if name == "retention_after" else "set it to 0"
            yield (
                (name, "cleanup"),
                f"{name} is {value!r}, but cleanup is compact only, so nothing enforces it: "
                f"add delete to cleanup, or {unset}",
            )


def _check_words(config: StreamConfig) -> None:
    if not config.cleanup:
        raise ConfigError("cleanup is empty: choose delete, compact or both", field="cleanup")
    for name in ("cleanup", "record_headers"):
        words = [word.value for word in getattr(config, name)]
        if twice := [word for word in words if words.count(word) > 1]:
            raise ConfigError(f"{name} names {twice[0]} twice", field=name)


def _check_archive_name(name: str) -> None:
    if len(name) > ARCHIVE_NAME_LENGTH_MAX:
        raise ConfigError(
            f"retention_after is {len(name)} characters long, at most {ARCHIVE_NAME_LENGTH_MAX}",
            field="retention_after",
        )
    for position, character in enumerate(name):
        if not (character.isascii() and (character.isalnum() or character in "._-")):
            raise ConfigError(
                f"retention_after has {character!r} at position {position}: a name consists of "
                "A-Z a-z 0-9 . _ -",
                field="retention_after",
            )
