"""Prepares Arrow batches for the compiled encoder, and explains its refusals."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bascule.client.columnar import _hot
from bascule.client.messages import ID_HEADER, KEY_HEADER, encode_block
from bascule.errors import ColumnMismatch, ConfigError, InvalidName, RowRefused
from bascule.wire.subjects import check_subject

COLUMNS: Final = ("subject", "key", "value", "headers", "message_id")
IGNORED: Final = ("stream", "partition", "offset", "timestamp")
"""Columns that a read also returns. They are ignored, so that batches that were read can be
published."""
HEADERS_EXPECTED: Final = "array<struct<key: string, value: binary or string>> or a map of the same"
_EXPECTED: Final = {
    "subject": "string",
    "key": "binary or string",
    "value": "binary or string",
    "headers": HEADERS_EXPECTED,
    "message_id": "string",
}
_NO_ENDS: Final = array("i")
_Buffers = tuple[int, Any, Any, Any]
_ABSENT: Final[_Buffers] = (0, _NO_ENDS, b"", b"")


@dataclass(frozen=True, slots=True)
class PublishRoute:
    """The subject and the message ids of the rows of a window."""

    subject: str = ""
    """Subject of every row. Empty: the column `subject`."""
    pattern: str = ""
    """The stream's subject pattern. Other subjects are refused. Empty: not checked."""
    id_prefix: str = ""
    """Prefix of message ids made from row numbers. Empty: no ids are made."""

    def check(self) -> None:
        """Raises: InvalidName, ConfigError."""
        if self.subject:
            check_subject(self.subject, wildcards=False)
            if self.pattern and not _hot.subject_matches(
                self.pattern.encode(), self.subject.encode()
            ):
                raise ConfigError(
                    f"subject {self.subject!r} does not match the stream's subject {self.pattern!r}"
                )
        prefix = self.id_prefix
        if prefix and (not prefix.isprintable() or prefix != prefix.strip()):
            raise ConfigError(
                f"message id prefix {prefix!r}: expected printable text without blanks at its ends"
            )


def check_schema(schema: pa.Schema, *, has_subject: bool) -> None:
    """Check whether batches of this schema can be published. `has_subject`: all rows share a
    subject.

    Raises: ColumnMismatch for a missing or unknown column, or a wrong type.
    """
    for field in schema:
        if field.name in IGNORED:
            continue
        if field.name not in _EXPECTED:
            known = ", ".join(COLUMNS)
            raise ColumnMismatch(field.name, str(field.type), f"none of this name, but {known}")
        if schema.names.count(field.name) > 1:
            raise ColumnMismatch(field.name, "two of them", "one")
        if not _fits(field.name, field.type):
            raise ColumnMismatch(field.name, str(field.type), _EXPECTED[field.name])
    if "value" not in schema.names:
        raise ColumnMismatch("value", "no such column", _EXPECTED["value"])
    if "subject" not in schema.names and not has_subject:
        raise ColumnMismatch("subject", "no such column", "string, or a subject for all rows")


class ColumnBuffers:
    """The buffers of one batch. It keeps the batch alive."""

    def __init__(self, batch: pa.RecordBatch, route: PublishRoute, *, first_row: int) -> None:
        """`first_row` is the number of the batch's first row in its window.

        Raises: ColumnMismatch, and RowRefused for an invalid subject with non-ASCII characters.
        """
        check_schema(batch.schema, has_subject=bool(route.subject))
        self._batch = batch
        self._route = route
        self._first_row = first_row
        self.rows: int = batch.num_rows
        subject = _ABSENT if route.subject else self._variable("subject")
        if not route.subject:
            self._check_beyond_ascii(subject)
        key, value = self._variable("key"), self._variable("value")
        ids = self._variable("message_id")
        headers, names, contents = self._headers()
        starts = array("q", [c[0] for c in (subject, key, value, headers, names, contents, ids)])
        self._args = (
            route.subject.encode(), route.pattern.encode(), route.id_prefix.encode(), starts,
            *subject[1:], *key[1:], *value[1:], headers[1], headers[3], *names[1:], *contents[1:],
            *ids[1:],
        )  # fmt: skip

    def encode(
        self,
        row: int,
        rows_max: int,
        *,
        prefix: bytes,
        payload_bytes_max: int,
        out: bytearray,
        ends: array[int],
        state: array[int],
    ) -> int:
        """Encode rows from `row` on to `out`; see `_hot.encode_rows`."""
        return int(
            _hot.encode_rows(
                row, min(row + rows_max, self.rows), self._first_row + row, self._first_row,
                prefix, *self._args, payload_bytes_max, out, ends, state,
            )
        )  # fmt: skip

    def refusal(self, row: int, state: array[int], payload_bytes_max: int) -> RowRefused:
        """The reason why `encode` stopped at `row`, from its `state`."""
        cells = {
            name: self._batch.column(name)[row].as_py()
            for name in COLUMNS
            if name in self._batch.schema.names
        }
        subject = self._route.subject or cells["subject"]
        why = self._why(cells, subject, state, payload_bytes_max)
        return RowRefused(self._first_row + row, subject, why)

    def _why(
        self, cells: dict[str, Any], subject: Any, state: array[int], payload_bytes_max: int
    ) -> str:
        code = state[1]
        if code == _hot.BAD_SUBJECT:
            return _why_no_subject(subject)
        if code == _hot.OTHER_SUBJECT:
            return f"the stream takes subjects {self._route.pattern!r} only"
        if code == _hot.TOO_LARGE:
            return (
                f"it takes {state[2]} bytes with its headers, and the NATS server's max_payload "
                f"is {payload_bytes_max}"
            )
        if code == _hot.BAD_ID:
            return f"message_id is {cells['message_id']!r}: expected one non-empty line of text"
        if code == _hot.BAD_KEY:
            return _why_no_line("key", cells["key"])
        pairs = cells.get("headers") or []
        if not 0 <= state[3] < len(pairs):
            return "its Arrow buffers contradict each other"
        pair = pairs[state[3]]
        # A pair of a map, a pair of a list, or None.
        name, value = pair.values() if isinstance(pair, dict) else pair or (None, None)
        if code == _hot.BAD_HEADER_NAME:
            return f"header name {name!r}: expected printable ASCII without colon, blank"
        if code == _hot.BAD_HEADER_VALUE:
            return _why_no_line(f"the value of header {name!r}", value)
        if str(name).lower() == KEY_HEADER.lower():
            return f"header {name!r} is the message's key: give it in column `key`"
        return (
            f"header {name!r} is set from the message id: leave it out of `headers`, or give it as "
            f"the message id ({ID_HEADER})"
        )

    def _column(self, name: str) -> pa.Array | None:
        at = self._batch.schema.get_field_index(name)
        return None if at < 0 else self._batch.column(at)

    def _variable(self, name: str) -> _Buffers:
        column = self._column(name)
        return _ABSENT if column is None else _buffers(column)

    def _headers(self) -> tuple[_Buffers, _Buffers, _Buffers]:
        column = self._column("headers")
        if column is None:
            return _ABSENT, _ABSENT, _ABSENT
        if pa.types.is_large_list(column.type):
            column = column.cast(pa.list_(column.type.value_type))
        if pa.types.is_map(column.type):
            names, contents = column.keys, column.items
        else:
            pairs = column.values
            # A null pair has a null name, which is refused.
            names, contents = pairs.flatten() if pairs.null_count else (
                pairs.field(0), pairs.field(1)
            )  # fmt: skip
        valid, ends = column.buffers()[:2]
        rows = _buffers_of(column, valid, ends, None)
        return rows, _buffers(names), _buffers(contents)

    def _check_beyond_ascii(self, subject: _Buffers) -> None:
        """Check subjects with non-ASCII characters, each distinct one once."""
        first, ends, data, _ = subject
        if not self.rows or bytes(data[ends[first] : ends[first + self.rows]]).isascii():
            return
        column = self._batch.column("subject")
        for name in pc.unique(column).to_pylist():
            if name is not None and not name.isascii() and (why := _why_no_subject(name)):
                raise RowRefused(self._first_row + pc.index(column, name).as_py(), name, why)


def _fits(name: str, kind: pa.DataType) -> bool:
    if name in ("subject", "message_id"):
        return _is_text(kind)
    if name in ("key", "value"):
        return _is_text(kind) or _is_bytes(kind)
    if pa.types.is_map(kind):
        return _is_text(kind.key_type) and (_is_text(kind.item_type) or _is_bytes(kind.item_type))
    if not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
        return False
    pair = kind.value_type
    if not pa.types.is_struct(pair) or pair.num_fields != 2:
        return False
    names, contents = pair.field(0), pair.field(1)
    return (
        names.name in ("key", "name")
        and contents.name == "value"
        and _is_text(names.type)
        and (_is_text(contents.type) or _is_bytes(contents.type))
    )


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_(kind) for is_ in (pa.types.is_string, pa.types.is_large_string,
                                     pa.types.is_string_view))  # fmt: skip


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_(kind) for is_ in (pa.types.is_binary, pa.types.is_large_binary,
                                     pa.types.is_binary_view,
                                     pa.types.is_fixed_size_binary))  # fmt: skip


def _buffers(column: pa.Array) -> _Buffers:
    """First element, ends, data and validity of a column of text or bytes."""
    kind = pa.string() if _is_text(column.type) else pa.binary()
    if column.type != kind:
        column = column.cast(kind)
    valid, ends, data = column.buffers()
    return _buffers_of(column, valid, ends, data)


def _buffers_of(
    column: pa.Array, valid: pa.Buffer | None, ends: pa.Buffer | None, data: pa.Buffer | None
) -> _Buffers:
    if ends is None or len(column) == 0:
        # No rows. An absent column has no ends at all.
        return 0, array("i", [0]), b"", b""
    size = 4 * (column.offset + len(column) + 1)
    return (
        column.offset,
        memoryview(ends)[:size].cast("i"),
        b"" if data is None else memoryview(data).cast("B"),
        b"" if valid is None or column.null_count == 0 else memoryview(valid).cast("B"),
    )


def _why_no_subject(subject: str | None) -> str:
    if subject is None:
        return "its subject is null"
    try:
        check_subject(subject, wildcards=False)
    except InvalidName as error:
        return str(error)
    return ""


def _why_no_line(what: str, value: str | bytes | None) -> str:
    if value is None:
        return f"{what} is null, which a NATS header cannot carry"
    try:
        encode_block(None, {"x": value})
    except ValueError as error:
        return str(error).replace("header 'x'", what)
    return ""
