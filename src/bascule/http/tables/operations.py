"""The part of the route table about tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bascule.http.openapi import ApiOperation
from bascule.http.requests import EmptyRequest
from bascule.http.table_watch import TableChangeBody
from bascule.http.tables.bodies import (
    TableBody,
    TableEntryList,
    TableIncremented,
    TableKeyList,
    TableList,
    TableValuesBody,
    TableWritten,
)
from bascule.http.tables.reads import OCTETS
from bascule.http.tables.requests import GetRequest
from bascule.wire.tables.sync_pages import MEDIA_TYPE

_TABLE: Final = (
    (404, "unknown_stream"),
    (409, "not_a_table"),
    (500, "partition_failed"),
    (503, "unavailable"),
    (503, "not_leader"),
)
"""Errors of every operation on a table."""
_READ: Final = (
    (400, "malformed_request"),
    (503, "indeterminate"),
    (503, "cannot_replicate"),
    *_TABLE,
)
_WRITE: Final = (
    (400, "malformed_request"),
    (400, "invalid_key"),
    (400, "invalid_config"),
    (403, "read_only"),
    (412, "wrong_version"),
    (413, "limit_exceeded"),
    (429, "rate_exceeded"),
    (503, "paused"),
    (503, "not_enough_replicas"),
    (503, "not_stored"),
    (503, "indeterminate"),
    *_TABLE,
)
_CONSISTENCY: Final = (
    (
        "at_least",
        "A position: wait up to 6 s until everything below it is in the table.",
    ),
    (
        "consistency",
        "`linearizable`: what the leader has once it has made sure that it leads. Default: "
        "`eventual`, what a replica has.",
    ),
)
_RANGE: Final = (
    ("prefix", "Only keys that begin with it."),
    ("pattern", "Only keys that match it: `*` is one token, `>` at the end all that follow."),
    ("first", "Only keys from this one on."),
    ("end", "Only keys before this one."),
    ("after", "Only keys behind this one."),
    ("limit", "At most so many, 1 to 10000; default: 1000."),
    *_CONSISTENCY,
)

TABLE_OPERATIONS: Final[Mapping[str, ApiOperation]] = {
    "list_tables": ApiOperation(
        "GET",
        "/v1/tables",
        "List the tables: the streams that keep the latest value of each key",
        {200: ("Their names.", TableList)},
        example="curl $SERVER/v1/tables",
    ),
    "table": ApiOperation(
        "GET",
        "/v1/tables/{name}",
        "One table, as one of its replicas sees it; counts all keys",
        {200: ("The table.", TableBody)},
        errors=_TABLE,
        example="curl $SERVER/v1/tables/sessions",
    ),
    "table_keys": ApiOperation(
        "GET",
        "/v1/tables/{name}/keys",
        "The keys of a table that have a value, in the order of their bytes",
        {200: ("Keys, with the version of each.", TableKeyList)},
        errors=((400, "invalid_pattern"), *_READ),
        query=_RANGE,
        example="curl '$SERVER/v1/tables/sessions/keys?prefix=user.'",
    ),
    "table_entries": ApiOperation(
        "GET",
        "/v1/tables/{name}/entries",
        "The keys of a table with their values, in the order of the bytes of the keys",
        {200: ("Entries.", TableEntryList)},
        errors=((400, "invalid_pattern"), *_READ),
        query=_RANGE,
        example="curl '$SERVER/v1/tables/sessions/entries?pattern=user.*'",
    ),
    "table_values": ApiOperation(
        "POST",
        "/v1/tables/{name}/get",
        "The values of several keys, all at one position",
        {200: ("Those that have a value.", TableValuesBody)},
        request=GetRequest,
        errors=(
            (400, "invalid_key"),
            (413, "limit_exceeded"),
            (415, "unsupported_media_type"),
            *_READ,
        ),
        query=_CONSISTENCY,
        example="curl $SERVER/v1/tables/sessions/get -H 'Content-Type: application/json' "
        """-d '{"keys": ["user.7", "user.8"]}'""",
    ),
    "table_value": ApiOperation(
        "GET",
        "/v1/tables/{name}/keys/{key}",
        "The value of a key; the version is the ETag",
        {
            200: ("The bytes of the value, with its `Content-Type`.", None),
            304: ("`If-None-Match` has the present version, or is `*`.", None),
        },
        errors=((412, "wrong_version"), (400, "invalid_key"), (404, "unknown_key"), *_READ),
        query=_CONSISTENCY,
        example="curl -i $SERVER/v1/tables/sessions/keys/user.7",
        media_type=OCTETS,
    ),
    "set_table_value": ApiOperation(
        "PUT",
        "/v1/tables/{name}/keys/{key}",
        "Set the value of a key: the bytes of the body, whose `Content-Type` is kept. With "
        "`If-Match` only if that is the version, or one of several, or with `*` if there is a "
        "value; with `If-None-Match: *` only if there is none, or none of these versions. With "
        "`Nats-TTL` (seconds, `1h30m`, `never`) the key is removed then, or never. "
        "A repetition with the same `Nats-Msg-Id` is stored once",
        {
            200: ("The version, which is the ETag, too.", TableWritten),
            201: ("There was no value, as `If-None-Match: *` has asked.", TableWritten),
        },
        errors=_WRITE,
        example="curl -X PUT $SERVER/v1/tables/sessions/keys/user.7 -H 'If-Match: \"7\"' "
        "-H 'Content-Type: text/plain' --data-binary hello",
        request_media_type=OCTETS,
    ),
    "remove_table_value": ApiOperation(
        "DELETE",
        "/v1/tables/{name}/keys/{key}",
        "Remove a key, whether it has a value or not; with `If-Match` and `If-None-Match` as `PUT`",
        {200: ("The version of the removal.", TableWritten)},
        errors=_WRITE,
        example="curl -X DELETE $SERVER/v1/tables/sessions/keys/user.7",
    ),
    "increment_table_value": ApiOperation(
        "POST",
        "/v1/tables/{name}/keys/{key}/increment",
        "Add to a value of decimal digits; no value is 0. A repetition with the same `Nats-Msg-Id` "
        "adds once; without it, it adds again",
        {200: ("The version, and the value.", TableIncremented)},
        request=EmptyRequest,
        errors=(
            (409, "not_a_number"),
            (415, "unsupported_media_type"),
            *_WRITE,
        ),
        query=(("by", "What to add, of 64 bits, such as -1; default: 1."),),
        example="curl -X POST '$SERVER/v1/tables/sessions/keys/visits/increment?by=2' "
        "-H 'Content-Type: application/json'",
    ),
    "table_changes": ApiOperation(
        "GET",
        "/v1/tables/{name}/changes",
        "A page of the keys that have changed since a position, for a copy of the table elsewhere. "
        "MessagePack; docs/tables.md has the fields",
        {
            200: ("A page, with the CRC-32C of its bytes in `Bascule-CRC32C`.", None),
            307: ("Ask the node that the header `Location` names: it has a replica.", None),
        },
        errors=_READ,
        query=(
            ("id", "The id of the table that `since` is of; another one has all rows sent."),
            ("since", "The position of the page before; default: 0, all rows."),
            ("epoch", "That of the page before; default: -1."),
            ("after", "The `next_after` of the page before, if it had one."),
            ("rows", "At most so many, 1 to 10000 (default)."),
            ("bytes", "At most so many of keys and values, 1 to 4194304; default: 1048576."),
            ("wait_ms", "If nothing has changed, wait so long for it, 0 (default) to 30000."),
            ("follower", "Who asks, for the metrics; default: the address."),
            ("applied", "Everything below it is in the copy; for the metrics."),
            ("seen", "The highest `read_at` of a page since the first full one; default: 0."),
            ("seen_epoch", "The `read_epoch` of that page; default: -1."),
        ),
        example="curl -o page '$SERVER/v1/tables/sessions/changes?since=0'",
        media_type=MEDIA_TYPE,
    ),
    "table_watch": ApiOperation(
        "GET",
        "/v1/tables/{name}/watch",
        "The changes of a table as server-sent events, without end",
        {
            200: ("Events `set`, `remove`, `position` and `restart`.", TableChangeBody),
            307: ("Ask the node that the header `Location` names: it has a replica.", None),
        },
        errors=(
            (400, "malformed_request"),
            (400, "invalid_pattern"),
            (400, "invalid_key"),
            *_TABLE,
        ),
        query=(
            ("pattern", "Only keys that match: `user.*`, `user.>`; default: all."),
            ("key", "Only this key, which may be as a pattern is, such as `*`."),
            (
                "start",
                "`now` (default), `state` (all values first), the id of an event, or an offset.",
            ),
        ),
        example="curl -N '$SERVER/v1/tables/sessions/watch?pattern=user.*&start=state'",
        media_type="text/event-stream",
    ),
}
