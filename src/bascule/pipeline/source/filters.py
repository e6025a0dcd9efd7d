"""Filters pushed down from a query: ranges of offsets, times and partitions; keys; subjects.

They only save work: Spark applies every filter to the rows again, so an unsupported filter is
ignored. Pure. Filters are recognised by the names of their classes in `pyspark.sql.datasource`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

OFFSET_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Integers [start, end)."""

    start: int = 0
    end: int = OFFSET_MAX

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.start, other.start), min(self.end, other.end))

    def __contains__(self, number: int) -> bool:
        return self.start <= number < self.end


@dataclass(frozen=True, slots=True)
class Predicate:
    """A superset of the rows that pass the query's filters."""

    offsets: Interval = Interval()
    partitions: Interval = Interval()
    times_ms: Interval = Interval(-OFFSET_MAX, OFFSET_MAX)
    streams: frozenset[str] | None = None
    keys: tuple[bytes, ...] | None = None
    subjects: tuple[str, ...] | None = None
    subject_tests: tuple[tuple[str, str], ...] = ()
    """(Name of the filter class, text) of tests on a part of the subject."""

    @property
    def has_times(self) -> bool:
        return self.times_ms != Interval(-OFFSET_MAX, OFFSET_MAX)

    @property
    def needed(self) -> set[str]:
        """The columns that `mask` uses."""
        tests_subject = self.subjects is not None or bool(self.subject_tests)
        names = {"key"} if self.keys is not None else set()
        return names | ({"subject"} if tests_subject else set())

    def mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Boolean mask of the rows that may pass, from the columns `key` and `subject`; None for
        all."""
        tests: list[pa.Array] = []
        if self.keys is not None:
            tests.append(_is_in(batch.column("key"), self.keys, pa.binary()))
        if self.subjects is not None:
            tests.append(_is_in(batch.column("subject"), self.subjects, pa.string()))
        for name, text in self.subject_tests:
            tests.append(_SUBJECT_TESTS[name](batch.column("subject"), text))
        if not tests:
            return None
        mask = tests[0]
        for test in tests[1:]:
            mask = pc.and_kleene(mask, test)
        return mask


ALL: Final = Predicate()

_SUBJECT_TESTS: Final[dict[str, Callable[[pa.Array, str], pa.Array]]] = {
    "StringStartsWith": lambda column, text: pc.starts_with(column, pattern=text),
    "StringEndsWith": lambda column, text: pc.ends_with(column, pattern=text),
    "StringContains": lambda column, text: pc.match_substring(column, pattern=text),
}


def predicate_of(filters: Iterable[Any]) -> Predicate:
    """Combine filters by AND. Unsupported filters are ignored."""
    predicate = ALL
    for item in filters:
        attribute = getattr(item, "attribute", None)
        if attribute is not None and len(attribute) == 1:
            predicate = _narrowed(
                predicate, attribute[0], type(item).__name__, getattr(item, "value", None)
            )
    return predicate


def _narrowed(p: Predicate, column: str, name: str, value: Any) -> Predicate:
    if column in ("offset", "partition"):
        interval = _interval(name, value)
        if interval is None:
            return p
        if column == "offset":
            return replace(p, offsets=p.offsets & interval)
        return replace(p, partitions=p.partitions & interval)
    if column == "timestamp":
        times = _times(name, value)
        return p if times is None else replace(p, times_ms=p.times_ms & times)
    if column == "subject" and name in _SUBJECT_TESTS and isinstance(value, str):
        return replace(p, subject_tests=(*p.subject_tests, (name, value)))
    values = _equal_to(name, value)
    if values is None:
        return p
    if column == "key" and all(isinstance(item, bytes | bytearray) for item in values):
        return replace(p, keys=_both(p.keys, tuple(bytes(item) for item in values)))
    if not all(isinstance(item, str) for item in values):
        return p
    if column == "subject":
        return replace(p, subjects=_both(p.subjects, tuple(values)))
    if column == "stream":
        named = frozenset(values)
        return replace(p, streams=named if p.streams is None else p.streams & named)
    return p


def _both(known: tuple[Any, ...] | None, more: tuple[Any, ...]) -> tuple[Any, ...]:
    return more if known is None else tuple(item for item in known if item in more)


def _equal_to(name: str, value: Any) -> list[Any] | None:
    """The values of which the column must equal one; None for another kind of filter."""
    if name in ("EqualTo", "EqualNullSafe") and value is not None:
        return [value]
    if name == "In" and isinstance(value, list | tuple):
        return [item for item in value if item is not None]
    return None


def _interval(name: str, value: Any) -> Interval | None:
    equal = _equal_to(name, value)
    if equal is not None:
        if not equal or not all(type(item) is int for item in equal):
            return None
        return Interval(min(equal), max(equal) + 1)
    if type(value) is not int:
        return None
    match name:
        case "GreaterThan":
            return Interval(value + 1)
        case "GreaterThanOrEqual":
            return Interval(value)
        case "LessThan":
            return Interval(end=value)
        case "LessThanOrEqual":
            return Interval(end=value + 1)
    return None


def _times(name: str, value: Any) -> Interval | None:
    """The interval in milliseconds that contains every record that passes. Records have whole
    milliseconds."""
    equal = _equal_to(name, value)
    moments = equal if equal is not None else [value]
    if not moments or not all(isinstance(t, datetime) and t.tzinfo is not None for t in moments):
        return None
    micros = [_micros(moment) for moment in moments]
    first, last = min(micros), max(micros)
    below, above = OFFSET_MAX, -OFFSET_MAX
    match name:
        case "GreaterThan" | "GreaterThanOrEqual":
            return Interval(first // 1000, below)
        case "LessThan" | "LessThanOrEqual":
            return Interval(above, last // 1000 + 1)
    return Interval(first // 1000, last // 1000 + 1) if equal is not None else None


def _micros(moment: datetime) -> int:
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000 + moment.microsecond


def _is_in(column: pa.Array, values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    return pc.is_in(column, value_set=pa.array(values, kind))
