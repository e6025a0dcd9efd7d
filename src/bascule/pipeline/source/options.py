"""The options of the source, parsed once into a frozen value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from bascule.errors import ConfigError
from bascule.pipeline.lake.model import TableAddress
from bascule.pipeline.option_parsing import count_of, flag_of, ms_of, unknown_option_text, word_of
from bascule.pipeline.retries import RETRY_TIMEOUT_MS
from bascule.pipeline.source.bounds import (
    ReadBound,
    check_order,
    parse_offsets,
    parse_time,
    parse_times,
)
from bascule.pipeline.source.columns import check_columns
from bascule.pipeline.values import VALUE_OPTIONS, ValueSpec

SERVER_DEFAULT: Final = ""
"""Without the option `server`, the client uses BASCULE_SERVER or its default."""
TRIGGER_DELAY_MS_MAX: Final = 15 * 60_000
"""15 minutes, as in Kafka's connector."""

View = Literal["log", "latest", "changes"]
Payloads = Literal["none", "describe", "inline"]
PAYLOAD_BYTES_MAX: Final = 64 << 20
RAW: Final = ValueSpec()
"""Values stay bytes."""

STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""Options for the start and the end. The first one that is given is used, as with Kafka's
connector."""

_NAMES: Final = (
    "server",
    "stream",
    "streams",
    "streamPattern",
    *STARTS,
    "startingOffsetsByTimestampStrategy",
    *ENDS,
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "retryTimeout",
    "includeHeaders",
    "payloads",
    "payloadBytesMax",
    "columns",
    "view",
    "pushdown",
    "archive",
    *VALUE_OPTIONS,
)
_BY_LOWER_NAME: Final = {name.lower(): name for name in _NAMES}
_FROM_SPARK: Final = frozenset({"path", "__spark_schema__"})
"""Keys that Spark adds. `load("flights")` arrives as `path`."""
_CATALOG: Final = "archive.catalog."
"""Prefix of properties for the catalog of an Iceberg table, such as `archive.catalog.uri`."""
_ONLY_BATCH: Final = (*ENDS,)
_ONLY_STREAM: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected streams: by name, or by a pattern that matches the whole name."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def includes(self, stream: str) -> bool:
        """Whether a stream of this name is selected, if it exists."""
        if self.pattern is None:
            return stream in self.names
        return re.fullmatch(self.pattern, stream) is not None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"streams matching {self.pattern!r}"
        return ", ".join(repr(name) for name in self.names)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read or one streaming query. A bound that is not given is None."""

    selection: Selection
    server: str = SERVER_DEFAULT
    starting: ReadBound | None = None
    ending: ReadBound | None = None
    late_start_is_latest: bool = False
    """Meaning of a starting time after the last record: the end, or an error."""
    partitions_min: int = 1
    records_per_task_max: int | None = None
    records_per_trigger_max: int | None = None
    records_per_trigger_min: int | None = None
    trigger_delay_ms_max: int = TRIGGER_DELAY_MS_MAX
    fail_on_data_loss: bool = True
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    """How long a node may be away."""
    include_headers: bool = False
    payloads: Payloads = "none"
    """`describe` adds the column `payload_bytes`; `inline` also has the content as the value."""
    payload_bytes_max: int = PAYLOAD_BYTES_MAX
    """A larger payload is an error with `inline`."""
    columns: tuple[str, ...] = ()
    """Selected columns in this order; empty: all."""
    view: View = "log"
    pushdown: bool = False
    """Whether to use pushed-down filters; see `FilteringReader` for the restrictions."""
    archive: TableAddress | None = None
    values: ValueSpec = RAW
    given: frozenset[str] = frozenset()
    """Canonical names of the options that were given."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options. Case of names is ignored.

        Raises: ConfigError for an unknown name, a missing stream or an invalid value.
        """
        given = {name.lower(): str(value) for name, value in options.items()}
        catalog = {
            name[len(_CATALOG) :]: given.pop(name) for name in [*given] if name.startswith(_CATALOG)
        }
        if "provider" in given:
            raise ConfigError(
                "CREATE TABLE ... USING bascule: Spark does not pass the options of a table to "
                "the source; use CREATE TEMPORARY VIEW ... USING bascule OPTIONS (...)"
            )
        for name in given:
            if name not in _BY_LOWER_NAME and name not in _FROM_SPARK:
                raise ConfigError(unknown_option_text(name, _BY_LOWER_NAME))
        parsed = cls(
            selection=_selection(given),
            server=given.get("server", SERVER_DEFAULT),
            starting=_bound(STARTS, given),
            ending=_bound(ENDS, given),
            late_start_is_latest=word_of(
                "startingOffsetsByTimestampStrategy", given, ("error", "latest"), default="error"
            )
            == "latest",
            partitions_min=count_of("minPartitions", given, 1),
            records_per_task_max=count_of("maxRecordsPerPartition", given, None),
            records_per_trigger_max=count_of("maxOffsetsPerTrigger", given, None),
            records_per_trigger_min=count_of("minOffsetsPerTrigger", given, None),
            trigger_delay_ms_max=ms_of("maxTriggerDelay", given, TRIGGER_DELAY_MS_MAX),
            fail_on_data_loss=flag_of("failOnDataLoss", given, default=True),
            retry_timeout_ms=ms_of("retryTimeout", given, RETRY_TIMEOUT_MS),
            include_headers=flag_of("includeHeaders", given, default=False),
            payloads=cast(
                Payloads, word_of("payloads", given, ("none", "describe", "inline"), default="none")
            ),
            payload_bytes_max=count_of("payloadBytesMax", given, PAYLOAD_BYTES_MAX),
            columns=_columns(given),
            view=cast(View, word_of("view", given, ("log", "latest", "changes"), default="log")),
            pushdown=flag_of("pushdown", given, default=False),
            archive=_archive(given.get("archive"), catalog),
            values=ValueSpec.from_options(given),
            given=frozenset(_BY_LOWER_NAME[name] for name in given if name in _BY_LOWER_NAME),
        )
        parsed._check()
        return parsed

    def _check(self) -> None:
        check_columns(self)
        if self.view != "log" and self.archive is not None:
            raise ConfigError('option "archive" goes with view "log" only')
        if self.payloads == "inline" and self.archive is not None:
            raise ConfigError(
                'option "payloads" is "inline", which does not go with "archive": an archive has '
                'no payloads; "describe" has their sizes'
            )
        if "payloadBytesMax" in self.given and self.payloads != "inline":
            raise ConfigError('option "payloadBytesMax" goes with payloads = "inline" only')
        if self.starting is not None and self.ending is not None:
            check_order(self.starting, self.ending)
        fewest, most = self.records_per_trigger_min, self.records_per_trigger_max
        if fewest is not None and most is not None and fewest > most:
            raise ConfigError(
                f'option "minOffsetsPerTrigger" is {fewest}, more than "maxOffsetsPerTrigger", '
                f"which is {most}"
            )

    def for_batch(self) -> SourceOptions:
        """Raises: ConfigError for an option that only a streaming query has."""
        for name in _ONLY_STREAM:
            if name in self.given:
                raise ConfigError(f'option "{name}" is for readStream, not for read')
        return self

    def for_stream(self) -> SourceOptions:
        """Raises: ConfigError for an option that only a batch read has."""
        for name in _ONLY_BATCH:
            if name in self.given:
                raise ConfigError(f'option "{name}" is for read, not for readStream')
        if self.view == "latest":
            raise ConfigError(
                'view "latest" is for read, not for readStream: it is the state of a stream at '
                'one offset; use view "changes" for a streaming query'
            )
        return self


def _selection(given: Mapping[str, str]) -> Selection:
    said = [name for name in ("stream", "streams", "streampattern") if given.get(name)]
    if len(said) > 1:
        names = ", ".join(f'"{_BY_LOWER_NAME[name]}"' for name in said)
        raise ConfigError(f"options {names} exclude each other: give one of them")
    if not said and given.get("path"):
        return Selection(names=(given["path"],))
    if not said:
        raise ConfigError('option "stream" (or "streams", or "streamPattern") is missing')
    text = given[said[0]]
    if said[0] == "stream":
        return Selection(names=(text.strip(),))
    if said[0] == "streams":
        names_said = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        if not all(names_said):
            raise ConfigError(f'option "streams" is {text!r}: expected names with commas between')
        return Selection(names=names_said)
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f'option "streamPattern" is {text!r}, which is not a regular expression: {error}'
        ) from error
    return Selection(pattern=text)


def _bound(names: tuple[str, str, str], given: Mapping[str, str]) -> ReadBound | None:
    for name, parse in zip(names, (parse_time, parse_times, parse_offsets), strict=True):
        if name.lower() in given:
            return parse(name, given[name.lower()])
    return None


def _archive(text: str | None, catalog: Mapping[str, str]) -> TableAddress | None:
    if text is None:
        if catalog:
            raise ConfigError(f'option "{_CATALOG}{min(catalog)}" is given without "archive"')
        return None
    from bascule.pipeline.lake import address_of

    return address_of({"table": text, **{f"catalog.{name}": catalog[name] for name in catalog}})


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("columns")
    if text is None:
        return ()
    return tuple(part.strip() for part in text.split(","))
