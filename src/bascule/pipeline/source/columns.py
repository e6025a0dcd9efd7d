"""The columns of the rows, and the projection of fetched batches to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from bascule.errors import ConfigError, MalformedValue
from bascule.record.columns import HEADERS_TYPE
from bascule.record.columns import SCHEMA as FETCHED
from bascule.record.payload_links import ID_HEADER, Payload, payload_of

if TYPE_CHECKING:
    from bascule.pipeline.values import ValueSpec

ROWS_PER_BATCH_MAX: Final = 65_536
"""Rows of one Arrow batch for Spark. Larger and smaller batches were slower in measurements."""
CORRUPT: Final = "_corrupt_record"
CHANGE: Final = "change"
PAYLOAD_BYTES: Final = "payload_bytes"

_DDL: Final = {
    "key": "binary",
    "value": "binary",
    "subject": "string",
    "stream": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
    PAYLOAD_BYTES: "bigint",
    CHANGE: "string",
    CORRUPT: "binary",
}
_ARROW: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "subject": pa.string(),
    "stream": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": HEADERS_TYPE,
    PAYLOAD_BYTES: pa.int64(),
    CHANGE: pa.string(),
    CORRUPT: pa.binary(),
}


class ColumnOptions(Protocol):
    """The part of `SourceOptions` that decides the columns."""

    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def include_headers(self) -> bool: ...
    @property
    def payloads(self) -> str: ...
    @property
    def view(self) -> str: ...
    @property
    def values(self) -> ValueSpec: ...


def available_columns(options: ColumnOptions) -> tuple[str, ...]:
    """Every column that these options allow, in schema order."""
    names = ["key", "value", "subject", "stream", "partition", "offset", "timestamp"]
    if options.include_headers or "headers" in options.columns:
        names.append("headers")
    if options.payloads != "none" or PAYLOAD_BYTES in options.columns:
        names.append(PAYLOAD_BYTES)
    if options.view == "changes":
        names.append(CHANGE)
    if not options.values.is_raw and options.values.mode == "PERMISSIVE":
        names.append(CORRUPT)
    return tuple(names)


def chosen_columns(options: ColumnOptions) -> tuple[str, ...]:
    """The selected columns, in order."""
    return options.columns or available_columns(options)


def check_columns(options: ColumnOptions) -> None:
    """Raises: ConfigError for an unknown or repeated column."""
    known = available_columns(options)
    for name in options.columns:
        if name not in known:
            raise ConfigError(f'option "columns" names {name!r}; there are {", ".join(known)}')
    if len(set(options.columns)) < len(options.columns):
        raise ConfigError(f'option "columns" names a column twice: {", ".join(options.columns)}')


def schema_ddl(options: ColumnOptions) -> str:
    """The schema in Spark's DDL."""
    types = {**_DDL, "value": options.values.ddl()}
    return ", ".join(f"`{name}` {types[name]}" for name in chosen_columns(options))


def schema_arrow(options: ColumnOptions) -> pa.Schema:
    """The Arrow schema that Spark requires. Spark refuses a batch of any other schema."""
    types = {**_ARROW, "value": options.values.arrow_type()}
    return pa.schema([pa.field(name, types[name]) for name in chosen_columns(options)])


def payloads_of(headers: pa.Array) -> dict[int, Payload]:
    """Row -> the payload of its record, for the rows that have one; `headers` is that column."""
    entries = headers.flatten()
    names = pc.struct_field(entries, "key")
    rows = pc.list_parent_indices(headers).filter(pc.equal(names, ID_HEADER))
    found = {}
    for row in rows.unique().to_pylist():
        pairs = ((each["key"], each["value"]) for each in headers[row].as_py())
        payload = payload_of(pairs)
        if payload is not None:
            found[row] = payload
    return found


def payload_sizes(headers: pa.Array) -> pa.Array:
    """Bytes of each row's payload, null without one."""
    sizes: list[int | None] = [None] * len(headers)
    for row, payload in payloads_of(headers).items():
        sizes[row] = payload.size
    return pa.array(sizes, pa.int64())


class RowProjector:
    """Projects batches of one stream to the rows of the source. One for each task."""

    def __init__(self, options: ColumnOptions, stream: str) -> None:
        self._stream = stream
        self._names = chosen_columns(options)
        self._schema = schema_arrow(options)
        self._values = options.values
        self._fails = options.values.mode == "FAILFAST"
        wants_values = bool({"value", CORRUPT} & set(self._names))
        self._decoder = options.values.decoder() if wants_values else None
        self._name_column = pa.repeat(pa.scalar(stream, pa.string()), 0)

    @property
    def needed(self) -> set[str]:
        """The columns of a fetched batch that `project` uses."""
        names = set(self._names)
        if names & {CHANGE, CORRUPT}:
            names.add("value")
        if PAYLOAD_BYTES in names:
            names.add("headers")
        if "value" in names and self._fails:
            names |= {"partition", "offset"}
        return names & set(FETCHED.names)

    def project(self, batch: pa.RecordBatch, *, is_typed: bool = False) -> pa.RecordBatch:
        """Project a fetched batch (`record.columns.SCHEMA`, or the `needed` columns of it) to the
        selected columns. With `is_typed` its values are already decoded.

        Raises: MalformedValue in mode FAILFAST.
        """
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if is_typed:
            columns[CORRUPT] = pa.nulls(batch.num_rows, pa.binary())
        elif self._decoder is not None and not self._values.is_raw:
            self._decode(columns)
        if PAYLOAD_BYTES in self._names:
            columns[PAYLOAD_BYTES] = payload_sizes(batch.column("headers"))
        if CHANGE in self._names:
            columns[CHANGE] = pc.if_else(pc.is_valid(batch.column("value")), "upsert", "delete")
        columns["stream"] = self._stream_column(batch.num_rows)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self._names], schema=self._schema
        )

    def _decode(self, columns: dict[str, pa.Array]) -> None:
        assert self._decoder is not None
        raw = columns["value"]
        decoded = self._decoder.decode(raw)
        if len(decoded.bad) and self._fails:
            row = decoded.bad[0].as_py()
            raise MalformedValue(
                self._stream,
                columns["partition"][row].as_py(),
                columns["offset"][row].as_py(),
                decoded.reasons[0],
            )
        columns["value"] = decoded.values
        columns[CORRUPT] = pc.if_else(decoded.bad_mask(), raw, pa.scalar(None, pa.binary()))

    def _stream_column(self, rows: int) -> pa.Array:
        """A column with the stream's name, cached at the greatest length used."""
        if len(self._name_column) < rows:
            room = max(rows, ROWS_PER_BATCH_MAX)
            self._name_column = pa.repeat(pa.scalar(self._stream, pa.string()), room)
        return self._name_column[:rows]
