"""Converts between Spark's DDL text and Arrow types, without Spark.

The Arrow types are those of PySpark 4.3's `to_arrow_schema(schema, timezone="UTC")`: lists of
`element`, maps of `key` and `value`, timestamps in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn

import pyarrow as pa

from bascule.errors import ConfigError

DEPTH_MAX: Final = 50
"""Greatest nesting depth. It bounds the recursion here and in Arrow."""
PRECISION_MAX: Final = 38
"""Greatest precision of Spark's decimals and of 128-bit decimals."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")

_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_ALIASES: Final = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_KNOWN: Final = (*_SIMPLE, "decimal(p,s)", "array<>", "map<,>", "struct<>")
_NAME_OF: Final = {kind: name for name, kind in _SIMPLE.items()}

_TOKEN: Final = re.compile(
    r"\s+|(?P<word>[A-Za-z0-9_]+)|`(?P<quoted>(?:[^`]|``)*)`|'(?P<text>(?:[^'\\]|\\.)*)'"
    r"|(?P<mark>[<>(),:])",
    re.ASCII | re.DOTALL,
)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """word, quoted, text, mark or end."""
    text: str
    at: int

    def is_mark(self, mark: str) -> bool:
        return self.kind == "mark" and self.text == mark

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def parse_ddl(text: str) -> pa.StructType:
    """Parse a schema such as ``a int, b array<string> NOT NULL`` to a struct.

    A surrounding `struct<a:int>` is accepted. Case of types is ignored.

    Raises: ConfigError with the position, counted from 1, and what was expected.
    """
    return _Parser(text).schema()


def format_ddl(kind: pa.DataType) -> str:
    """Format a type as Spark's DDL: `struct<a:int NOT NULL,b:array<string>>`.

    For a struct from `parse_ddl`, `parse_ddl` of the result gives an equal struct.

    Raises: ConfigError for a type without a DDL name.
    """
    if kind in _NAME_OF:
        return _NAME_OF[kind]
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{format_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{format_ddl(kind.key_type)},{format_ddl(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(_format_field(field) for field in kind)}>"
    raise ConfigError(f"type {kind} has no name in a schema; known: {', '.join(_KNOWN)}")


def list_of(kind: pa.DataType) -> pa.DataType:
    """Spark's Arrow type of an array."""
    return pa.list_(pa.field("element", kind))


def map_of(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Spark's Arrow type of a map."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))


def _format_field(field: pa.Field) -> str:
    name = field.name
    if not _PLAIN_NAME.fullmatch(name):
        name = "`" + name.replace("`", "``") + "`"
    return f"{name}:{format_ddl(field.type)}{'' if field.nullable else ' NOT NULL'}"


class _Parser:
    """Recursive descent with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._next = next(self._tokens)
        self._depth = 0

    def schema(self) -> pa.StructType:
        if self._next.is_word("struct") and self._text[self._next.at + 6 :].lstrip()[:1] == "<":
            struct = self._type()
        else:
            struct = pa.struct(self._fields(end=None))
        if self._next.kind != "end":
            self._fail("a comma or the end")
        return struct

    def _scan(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                advice = "; put a name that holds it between backticks" if at else ""
                raise ConfigError(
                    f"schema has {self._text[at]!r} at position {at + 1}, which is not part "
                    f"of a schema{advice}"
                )
            if match.lastgroup is not None:
                found = match.group(match.lastgroup)
                quoted = match.lastgroup == "quoted"
                yield _Token(match.lastgroup, found.replace("``", "`") if quoted else found, at)
            at = match.end()
        while True:
            yield _Token("end", "", len(self._text))

    def _take(self) -> _Token:
        token, self._next = self._next, next(self._tokens)
        return token

    def _fail(self, expected: str) -> NoReturn:
        raise ConfigError(
            f"schema has {self._next} at position {self._next.at + 1}: expected {expected}"
        )

    def _mark(self, mark: str) -> None:
        if not self._next.is_mark(mark):
            self._fail(repr(mark))
        self._take()

    def _fields(self, end: str | None) -> list[pa.Field]:
        """`name[:] type [NOT NULL] [COMMENT 'text']`, separated by commas, up to `end`."""
        fields: list[pa.Field] = []
        seen: set[str] = set()
        while True:
            if self._next.kind not in ("word", "quoted") or not self._next.text:
                self._fail("the name of a column")
            if self._next.text.lower() in seen:
                self._fail("another name: this one is taken (upper and lower case are alike)")
            name = self._take().text
            seen.add(name.lower())
            if self._next.is_mark(":"):
                self._take()
            kind = self._type()
            fields.append(pa.field(name, kind, nullable=self._is_nullable()))
            self._pass_comment()
            if not self._next.is_mark(","):
                break
            self._take()
        if end is not None:
            self._mark(end)
        return fields

    def _is_nullable(self) -> bool:
        if not self._next.is_word("not"):
            return True
        self._take()
        if not self._next.is_word("null"):
            self._fail("NULL after NOT")
        self._take()
        return False

    def _pass_comment(self) -> None:
        if self._next.is_word("comment"):
            self._take()
            if self._next.kind != "text":
                self._fail("a text between single quotes")
            while self._next.kind == "text":  # '' in a text is a quote, and reads as two texts
                self._take()

    def _type(self) -> pa.DataType:
        if self._next.kind != "word":
            self._fail("a type")
        if self._depth == DEPTH_MAX:
            self._fail(f"no more than {DEPTH_MAX} types inside each other")
        name = self._next.text.lower()
        name = _ALIASES.get(name, name)
        if name in _SIMPLE:
            self._take()
            return _SIMPLE[name]
        if name not in ("decimal", "array", "map", "struct"):
            self._fail(f"a type; known: {', '.join(_KNOWN)}")
        self._take()
        if name == "decimal":
            return self._decimal()
        self._depth += 1
        kind = self._nested(name)
        self._depth -= 1
        return kind

    def _nested(self, name: str) -> pa.DataType:
        self._mark("<")
        if name == "struct":
            return pa.struct(self._fields(end=">"))
        inner = self._type()
        if name == "map":
            self._mark(",")
            value = self._type()
            self._mark(">")
            return map_of(inner, value)
        self._mark(">")
        return list_of(inner)

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._next.is_mark("("):
            self._take()
            precision = self._digits(1, PRECISION_MAX)
            if self._next.is_mark(","):
                self._take()
                scale = self._digits(0, precision)
            self._mark(")")
        return pa.decimal128(precision, scale)

    def _digits(self, least: int, most: int) -> int:
        text = self._next.text
        if not text.isdecimal() or len(text) > 2 or not least <= int(text) <= most:
            self._fail(f"a number from {least} to {most}")
        return int(self._take().text)
