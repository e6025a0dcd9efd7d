"""What a user may say with `option(...)`, checked once, as one frozen value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeAlias

from bascule.errors import ConfigError

EARLIEST: Final = -2
LATEST: Final = -1
"""Stand for the ends of a partition where an offset may be given, as in Kafka's JSON."""

OffsetChoice: TypeAlias = int | dict[int, int]
"""EARLIEST or LATEST for all partitions, or an offset (or one of the two) for each."""

SERVER_DEFAULT: Final = ""
"""No `server` option: the client finds the node by BASCULE_SERVER or its own default."""

_NAMES: Final = (
    "server",
    "stream",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
)
_BY_LOWER_NAME: Final = {name.lower(): name for name in _NAMES}
_FROM_SPARK: Final = frozenset({"path", "__spark_schema__"})
"""Keys Spark may add by itself; `load("flights")` arrives as `path`."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read or one streaming query. Offsets are None where not given."""

    stream: str
    server: str = SERVER_DEFAULT
    starting_offsets: OffsetChoice | None = None
    ending_offsets: OffsetChoice | None = None
    records_per_trigger_max: int | None = None
    partitions_min: int = 1
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read Spark's option map; names are matched without regard to case.

        Raises: ConfigError for an unknown name, a missing stream or a value that cannot be read.
        """
        given = {name.lower(): str(value) for name, value in options.items()}
        for name in given:
            if name not in _BY_LOWER_NAME and name not in _FROM_SPARK:
                raise ConfigError(_unknown_text(name))
        stream = given.get("stream") or given.get("path")
        if not stream:
            raise ConfigError('option "stream" is missing: which stream is to be read?')
        return cls(
            stream=stream,
            server=given.get("server", SERVER_DEFAULT),
            starting_offsets=_offsets("startingOffsets", given),
            ending_offsets=_offsets("endingOffsets", given),
            records_per_trigger_max=_count("maxOffsetsPerTrigger", given),
            partitions_min=_count("minPartitions", given) or 1,
            fail_on_data_loss=_flag("failOnDataLoss", given, default=True),
        )

    def for_batch(self) -> SourceOptions:
        """Raises: ConfigError where an option only means something to a streaming query."""
        if self.records_per_trigger_max is not None:
            raise ConfigError('option "maxOffsetsPerTrigger" is for readStream, not for read')
        return self

    def for_stream(self) -> SourceOptions:
        """Raises: ConfigError where an option only means something to a batch read."""
        if self.ending_offsets is not None:
            raise ConfigError('option "endingOffsets" is for read, not for readStream')
        return self


def _unknown_text(name: str) -> str:
    near = get_close_matches(name, _BY_LOWER_NAME, n=1, cutoff=0.5)
    hint = f"did you mean {_BY_LOWER_NAME[near[0]]!r}?" if near else f"known: {', '.join(_NAMES)}"
    return f"option {name!r} is unknown; {hint}"


def _offsets(name: str, given: Mapping[str, str]) -> OffsetChoice | None:
    text = given.get(name.lower())
    if text is None:
        return None
    word = text.strip().lower()
    if word == "earliest":
        return EARLIEST
    if word == "latest":
        return LATEST
    shape = f'option {name!r} is {text!r}: expected earliest, latest or JSON such as {{"0": 12}}'
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(shape) from error
    if not isinstance(parsed, dict) or not parsed:
        raise ConfigError(shape)
    chosen: dict[int, int] = {}
    for partition, offset in parsed.items():
        if not partition.isdecimal() or type(offset) is not int or offset < EARLIEST:
            raise ConfigError(shape)
        chosen[int(partition)] = offset
    return chosen


def _count(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"option {name!r} is {text!r}: expected a whole number of at least 1")
    return int(text)


def _flag(name: str, given: Mapping[str, str], *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"option {name!r} is {text!r}: expected true or false")
    return word == "true"
