"""What is answered about tables. Keys and values may be any bytes; JSON has text, or base64."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from msgspec import Meta, Struct

from bascule.table_results import TableEntry, TableKeyPage, TablePage, TableValues

_Version = Annotated[int, Meta(description="The offset of the key's latest record.")]
_Time = Annotated[int, Meta(description="Unix time of the record, milliseconds.")]
_Position = Annotated[
    int, Meta(description="What was read is all below this offset; `at_least` takes it.")
]
_IsLast = Annotated[bool, Meta(description="False: ask again with `after` as `next_after`.")]
_Key = Annotated[str | None, Meta(description="The key, if it is text (UTF-8).")]
_KeyBase64 = Annotated[str | None, Meta(description="The key, if it is not.")]
_NextAfter = Annotated[
    str | None, Meta(description="Unless this is the last page: where to go on, if it is text.")
]
_NextAfterBase64 = Annotated[str | None, Meta(description="Where to go on, if it is not.")]


class TableBody(Struct, kw_only=True):
    """A table as one of its replicas sees it."""

    name: str
    node: Annotated[int, Meta(description="The node that holds the replica.")]
    keys: int
    position: Annotated[int, Meta(description="The first offset that is not in the table yet.")]
    high_watermark: Annotated[int, Meta(description="End of the committed records there.")]
    skipped: Annotated[
        int, Meta(description="Records without a key of the table, since the node started.")
    ]


class TableList(Struct, kw_only=True):
    """Names of tables, in order."""

    tables: list[str]


class TableKeyBody(Struct, kw_only=True, omit_defaults=True):
    """A key with a value. Exactly one of `key` and `key_base64` is there."""

    key: _Key = None
    key_base64: _KeyBase64 = None
    version: _Version
    timestamp: _Time
    value_bytes: Annotated[int, Meta(description="The size of the value.")]
    content_type: str | None = None


class TableEntryBody(Struct, kw_only=True, omit_defaults=True):
    """A key with its value. Of each name exactly one is there, the plain one if it is text."""

    key: _Key = None
    key_base64: _KeyBase64 = None
    version: _Version
    timestamp: _Time
    value: str | None = None
    value_base64: str | None = None
    content_type: str | None = None


class TableKeyList(Struct, kw_only=True, omit_defaults=True):
    """Keys in the order of their bytes. A page may have none, and not be the last."""

    position: _Position
    keys: list[TableKeyBody]
    is_last: _IsLast
    next_after: _NextAfter = None
    next_after_base64: _NextAfterBase64 = None


class TableEntryList(Struct, kw_only=True, omit_defaults=True):
    """Entries, by the bytes of their keys. A page may have none, and not be the last."""

    position: _Position
    entries: list[TableEntryBody]
    is_last: _IsLast
    next_after: _NextAfter = None
    next_after_base64: _NextAfterBase64 = None


class TableValuesBody(Struct, kw_only=True):
    """The entries of those keys that have a value, all at one position."""

    position: _Position
    entries: list[TableEntryBody]


class TableWritten(Struct, kw_only=True):
    """A write that is stored."""

    version: _Version


class TableIncremented(Struct, kw_only=True):
    """An increment that is stored."""

    version: _Version
    value: Annotated[
        str | None,
        Meta(
            description="The number, in decimal digits. Null: it was stored before, with the same "
            "`Nats-Msg-Id`, and the key was written since."
        ),
    ]


def keys_body(page: TableKeyPage) -> TableKeyList:
    keys = [
        TableKeyBody(
            **_named("key", each.key),
            version=each.version,
            timestamp=each.timestamp,
            value_bytes=each.value_bytes,
            content_type=each.content_type,
        )
        for each in page.keys
    ]
    return TableKeyList(keys=keys, **_page(page))


def entries_body(page: TablePage) -> TableEntryList:
    return TableEntryList(entries=[_entry(each) for each in page.entries], **_page(page))


def values_body(found: TableValues) -> TableValuesBody:
    entries = [_entry(each) for each in found.entries]
    return TableValuesBody(position=found.position, entries=entries)


def _entry(entry: TableEntry) -> TableEntryBody:
    return TableEntryBody(
        **_named("key", entry.key),
        version=entry.version,
        timestamp=entry.timestamp,
        **_named("value", entry.value),
        content_type=entry.content_type,
    )


def _page(page: TablePage | TableKeyPage) -> dict[str, Any]:
    after = {} if page.next_after is None else _named("next_after", page.next_after)
    return {"position": page.position, "is_last": page.next_after is None, **after}


def _named(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
