"""Altering and pausing streams, and rules that concern several settings."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import (
    CannotAlter,
    ConfigError,
    InternalStream,
    InvalidName,
    UnknownPartition,
    UnknownStream,
)
from bascule.metadata.apply import apply
from bascule.metadata.commands import AlterStream, CreateStream, PauseStream, ResumeStream
from bascule.metadata.controller import (
    IMMUTABLE,
    Existing,
    alter_stream,
    check_purge,
    create_stream,
    delete_stream,
    pause_stream,
    resume_stream,
)
from bascule.metadata.image import Image
from bascule.model import Cleanup, StreamConfig

FLIGHTS = StreamConfig(subject="flights.>", group="g", partitions=4)
DAY = 24 * 3_600_000


def image_of(config: StreamConfig = FLIGHTS, name: str = "flights") -> Image:
    internal = name.startswith("_")
    command = create_stream(Image(), name, config, id=b"i" * 16, now_ms=1_000, internal=internal)
    assert isinstance(command, CreateStream)
    return apply(Image(), command)


def test_only_the_named_settings_change() -> None:
    image = image_of()
    command = alter_stream(image, "flights", {"retention_ms_max": DAY, "partitions": 8})
    assert command == AlterStream(
        name="flights", id=b"i" * 16, config=replace(FLIGHTS, retention_ms_max=DAY, partitions=8)
    )
    altered = apply(image, command)
    assert altered.streams["flights"].config.retention_ms_max == DAY
    assert image.streams["flights"].config == FLIGHTS, "the image before stays as it was"


def test_values_are_those_of_the_api() -> None:
    changes = {"compression": "zstd", "cleanup": ["compact", "delete"], "discard": "new"}
    command = alter_stream(image_of(), "flights", changes)
    assert isinstance(command, AlterStream)
    assert command.config.cleanup == (Cleanup.DELETE, Cleanup.COMPACT)
    with pytest.raises(ConfigError, match="'often' is not a valid SyncPolicy"):
        alter_stream(image_of(), "flights", {"sync": "often"})
    with pytest.raises(ConfigError, match="retention is not a setting of a stream"):
        alter_stream(image_of(), "flights", {"retention": 1})


def test_an_alteration_without_changes_returns_the_definition() -> None:
    image = image_of()
    for changes in ({}, {"partitions": 4}, {"cleanup": ["delete"]}, {"subject": "flights.>"}):
        assert alter_stream(image, "flights", changes) == Existing(image.streams["flights"])


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"subject": "b"}, "subject", "is 'flights.>' and cannot become 'b': create another"),
        ({"group": None}, "group", "is 'g' and cannot become none"),
        ({"partition_by": "key"}, "partition_by", "is 'group' and cannot become 'key'"),
        ({"key_from": "subject"}, "key_from", "is 'header' and cannot become 'subject'"),
        ({"partitions": 3}, "partitions", "is 4 and cannot become 3: partitions can only be"),
    ],
)
def test_settings_fixed_at_creation(changes: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(CannotAlter, match=says) as caught:
        alter_stream(image_of(), "flights", changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("settings", "field", "says"),
    [
        ({"cleanup": ()}, "cleanup", "cleanup is empty"),
        ({"cleanup": ("delete", "delete")}, "cleanup", "names delete twice"),
        (
            {"min_compaction_lag_ms": 5, "max_compaction_lag_ms": 4},
            "max_compaction_lag_ms",
            "max_compaction_lag_ms is 4, less than min_compaction_lag_ms of 5",
        ),
        (
            {"cleanup": ("compact",), "retention_ms_max": 1},
            "retention_ms_max",
            "add delete to cleanup, or set it to 0",
        ),
        (
            {"cleanup": ("compact",), "discard": "new", "retention_ms_max": 1},
            "retention_ms_max",
            "compact only",
        ),
        (
            {"cleanup": ("compact",), "retention_after": "lake"},
            "retention_after",
            "or leave it empty",
        ),
        ({"retention_after": "a lake"}, "retention_after", "has ' ' at position 1"),
        ({"retention_after": "x" * 201}, "retention_after", "201 characters long"),
        ({"partitions": 0}, "partitions", "between 1 and 1024, got 0"),
        ({"partitions": 1025}, "partitions", "between 1 and 1024, got 1025"),
        ({"dirty_percent_min": 101}, "dirty_percent_min", "between 0 and 100, got 101"),
        ({"retention_ms_max": 1 << 53}, "retention_ms_max", "at most 9007199254740991"),
        ({"rate_bytes_max": -1}, "rate_bytes_max", "at least 0, got -1"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], field: str, says: str) -> None:
    """The same at creation and at an alteration."""
    with pytest.raises(ConfigError, match=says) as caught:
        alter_stream(image_of(), "flights", settings)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "settings",
    [
        {"min_compaction_lag_ms": 5, "max_compaction_lag_ms": 0},
        {"min_compaction_lag_ms": 5, "max_compaction_lag_ms": 5},
        {"retention_bytes_max": 1},
        {"retention_bytes_max": 1 << 20, "discard": "new"},
        {"cleanup": ("compact",), "discard": "new", "retention_messages_max": 1},
        {"cleanup": ("compact", "delete"), "retention_ms_max": 1, "retention_after": "lake-2"},
    ],
)
def test_valid_settings(settings: dict[str, Any]) -> None:
    assert isinstance(alter_stream(image_of(), "flights", settings), AlterStream)


def test_pausing_and_resuming_twice_changes_nothing() -> None:
    image = image_of()
    assert resume_stream(image, "flights") == Existing(image.streams["flights"])
    pause = pause_stream(image, "flights")
    assert pause == PauseStream("flights", b"i" * 16)
    paused = apply(image, pause)
    assert paused.streams["flights"].paused
    assert pause_stream(paused, "flights") == Existing(paused.streams["flights"])
    resume = resume_stream(paused, "flights")
    assert isinstance(resume, ResumeStream)
    assert apply(paused, resume) == image


def test_unknown_streams_are_refused() -> None:
    with pytest.raises(UnknownStream):
        alter_stream(Image(), "nobody", {})
    for decide in (pause_stream, resume_stream, delete_stream, check_purge):
        with pytest.raises(UnknownStream):
            decide(Image(), "nobody")


def test_internal_streams_are_protected() -> None:
    with pytest.raises(InvalidName, match="it is reserved for the node"):
        create_stream(Image(), "_offsets", FLIGHTS, id=b"i" * 16, now_ms=0)
    image = image_of(name="_offsets")
    with pytest.raises(InternalStream, match="is internal to the node and cannot be altered"):
        alter_stream(image, "_offsets", {"retention_ms_max": 1})
    for decide in (pause_stream, resume_stream, delete_stream, check_purge):
        with pytest.raises(InternalStream):
            decide(image, "_offsets")
    own = alter_stream(image, "_offsets", {"partitions": 8}, internal=True)
    assert isinstance(own, AlterStream)
    assert delete_stream(image, "_offsets", internal=True).name == "_offsets"


def test_a_purge_of_an_unknown_partition_is_refused() -> None:
    image = image_of()
    assert check_purge(image, "flights", partition=3) == image.streams["flights"]
    for partition in (-1, 4):
        with pytest.raises(UnknownPartition, match="has 4 partitions"):
            check_purge(image, "flights", partition=partition)


def test_late_commands_do_not_change_a_newer_stream() -> None:
    image = image_of()
    late = [
        alter_stream(image, "flights", {"partitions": 9}),
        pause_stream(image, "flights"),
        delete_stream(image, "flights"),
    ]
    successor = create_stream(Image(), "flights", FLIGHTS, id=b"j" * 16, now_ms=2)
    assert isinstance(successor, CreateStream)
    again = apply(Image(), successor)
    for command in late:
        assert not isinstance(command, Existing)
        assert apply(again, command) is again


plain_values = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.text(max_size=3),
    st.lists(st.sampled_from(["delete", "compact", "x"]), max_size=3),
    st.sampled_from(["always", "never", "key", "subject", "group", "zstd", "old", "new"]),
)  # fmt: skip
INTEGERS = [item.name for item in fields(StreamConfig) if item.type == "int"]


@given(st.dictionaries(st.sampled_from(INTEGERS), st.integers(-(1 << 70), 1 << 70), max_size=4))
def test_any_number_is_accepted_or_refused_by_name(changes: dict[str, int]) -> None:
    image = image_of()
    try:
        decided = alter_stream(image, "flights", changes)
    except (ConfigError, CannotAlter) as error:
        assert error.field in FLIGHTS.__slots__
        return
    config = image.streams["flights"].config if isinstance(decided, Existing) else decided.config
    assert asdict(config) == asdict(FLIGHTS) | changes
    assert all(abs(value) < 1 << 53 for value in changes.values())


@given(st.dictionaries(st.sampled_from([*IMMUTABLE, "partitions"]), plain_values, max_size=3))
def test_fixed_settings_never_change(changes: dict[str, Any]) -> None:
    image = image_of()
    numbers = changes.get("partitions", 1)
    if not isinstance(numbers, int):
        changes.pop("partitions")
    try:
        decided = alter_stream(image, "flights", changes)
    except (ConfigError, CannotAlter):
        return
    if isinstance(decided, AlterStream):
        for field in IMMUTABLE:
            assert getattr(decided.config, field) == getattr(FLIGHTS, field)
        assert decided.config.partitions > FLIGHTS.partitions
