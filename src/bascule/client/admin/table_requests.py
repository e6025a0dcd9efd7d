"""Requests about tables over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec

from bascule.errors import PublishRejected, RemoteProtocolError, RequestFailed, UnknownKey
from bascule.table_results import PageAsked, TableEntry, TableInfo, TablePage, TableValues
from bascule.wire.tables.sync_pages import CRC_HEADER, SyncPage, decode_page


class TableRequests:
    """A part of `Admin`."""

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        name: str = "",
        node: int = 0,
        group: str = "",
        is_read: bool | None = None,
    ) -> tuple[int, Any]:
        raise NotImplementedError

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        waits: float = 0,
    ) -> httpx.Response:
        raise NotImplementedError

    def _refusal(self, response: httpx.Response, *, what: str, name: str) -> Exception:
        raise NotImplementedError

    async def table_names(self) -> list[str]:
        _, body = await self._ask("GET", "/v1/tables")
        return [str(name) for name in body["tables"]]

    async def table_info(self, name: str) -> TableInfo:
        """Raises: UnknownStream, NotATable."""
        _, body = await self._ask("GET", _table_path(name), name=name)
        try:
            return msgspec.convert([body[field] for field in TableInfo._fields], TableInfo)
        except (KeyError, msgspec.ValidationError) as error:
            raise RemoteProtocolError(f"the node's response is not valid: {error!r}") from error

    async def table_value(
        self, name: str, key: bytes, *, consistency: Mapping[str, Any]
    ) -> tuple[int, TableEntry]:
        """The position of the replica, and the entry.

        Raises: UnknownKey with that position, InvalidKey, UnknownStream, NotATable.
        """
        path = f"{_key_path(name, key)}{_query(consistency)}"
        response = await self._request("GET", path)
        if not response.is_success:
            error = self._refusal(response, what=f"GET {path}", name=name)
            if isinstance(error, UnknownKey):
                error.key, error.position = key, int(response.headers.get("bascule-position", 0))
            raise error
        try:
            version = int(response.headers["etag"].strip('"'))
            timestamp = int(response.headers["bascule-timestamp"])
            position = int(response.headers.get("bascule-position", version + 1))
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"the node's response is not valid: {error!r}") from error
        said = response.headers.get("content-type")
        content_type = None if said == "application/octet-stream" else said
        return position, TableEntry(key, version, timestamp, response.content, content_type)

    async def write_key(
        self,
        name: str,
        key: bytes,
        value: bytes | None,
        *,
        if_version: int | None,
        message_id: str,
        content_type: str | None = None,
    ) -> int:
        """Set the value of a key whose last record has a version, or which has no value (None);
        or remove it. Return the version. A repetition with the same id is stored once.

        Raises: WrongVersion, InvalidKey, UnknownStream, NotATable, LimitExceeded; RequestFailed for
        another refusal; Broken if no node answers.
        """
        headers = {"nats-msg-id": message_id}
        if if_version is not None:
            headers["if-match"] = f'"{if_version}"'
        elif value is not None:
            headers["if-none-match"] = "*"
        if content_type is not None:
            headers["content-type"] = content_type
        response = await self._send_key(name, key, value, headers)
        if not response.is_success:
            raise self._refusal(response, what=_write_path(name, key, value), name=name)
        return _written_version(response)

    async def put_key(
        self, name: str, key: bytes, value: bytes | None, headers: Mapping[str, str]
    ) -> int:
        """Set the value of a key, or remove it, under the conditions in the headers; return the
        version.

        Raises: as `write_key`; PublishRejected for what the table's leader refuses.
        """
        response = await self._send_key(name, key, value, headers)
        if not response.is_success:
            error = self._refusal(response, what=_write_path(name, key, value), name=name)
            raise _rejected(response, error)
        return _written_version(response)

    async def _send_key(
        self, name: str, key: bytes, value: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        method, _, path = _write_path(name, key, value).partition(" ")
        return await self._request(method, path, content=value, headers=headers)

    async def table_changes(self, name: str, asked: PageAsked) -> SyncPage:
        """A page of what has changed.

        Raises: UnknownStream, NotATable, RemoteProtocolError; RequestFailed for another refusal;
        Broken if no node answers.
        """
        query = _query(
            {
                "id": None if asked.table is None else asked.table.hex(),
                "since": asked.since,
                "epoch": asked.epoch,
                "after": asked.after,
                "rows": asked.rows_max,
                "bytes": asked.bytes_max,
                "wait_ms": int(asked.wait * 1000),
                "follower": asked.follower,
                "applied": asked.applied,
                "seen": asked.seen,
                "seen_epoch": asked.seen_epoch,
            }
        )
        path = f"{_table_path(name)}/changes{query}"
        response = await self._request("GET", path, waits=asked.wait)
        if not response.is_success:
            raise self._refusal(response, what=f"GET {path}", name=name)
        return decode_page(response.content, response.headers.get(CRC_HEADER))

    async def table_values(
        self, name: str, keys: Sequence[bytes], *, consistency: Mapping[str, Any]
    ) -> TableValues:
        """Raises: InvalidKey, UnknownStream, NotATable, LimitExceeded."""
        path = f"{_table_path(name)}/get{_query(consistency)}"
        body = {"keys_base64": [base64.b64encode(key).decode() for key in keys]}
        _, answer = await self._ask("POST", path, body=body, name=name, is_read=True)
        try:
            entries = [_entry(item) for item in answer["entries"]]
            return TableValues(int(answer["position"]), entries)
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"the node's response is not valid: {error!r}") from error

    async def table_page(
        self, name: str, chosen: Mapping[str, Any], *, has_values: bool
    ) -> TablePage:
        """A page of keys; without `has_values` their values are empty.

        `chosen` is the query. Raises: UnknownStream, NotATable, InvalidPattern.
        """
        what = "entries" if has_values else "keys"
        path = f"{_table_path(name)}/{what}{_query(chosen)}"
        _, body = await self._ask("GET", path, name=name)
        try:
            after = None if body["is_last"] else _named(body, "next_after")
            return TablePage(int(body["position"]), [_entry(item) for item in body[what]], after)
        except (KeyError, TypeError, ValueError) as error:
            raise RemoteProtocolError(f"the node's response is not valid: {error!r}") from error


def _table_path(name: str) -> str:
    return f"/v1/tables/{quote(name, safe='')}"


def _key_path(name: str, key: bytes) -> str:
    # Clients would take the names . and .. out of the path.
    escaped = "%2E" * len(key) if key in (b".", b"..") else quote(key, safe="")
    return f"{_table_path(name)}/keys/{escaped}"


def _query(chosen: Mapping[str, Any]) -> str:
    """The given values as a query, or nothing."""
    given = {name: value for name, value in chosen.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _entry(item: dict[str, Any]) -> TableEntry:
    value = b"" if "value_bytes" in item else _named(item, "value")
    version, timestamp = int(item["version"]), int(item["timestamp"])
    return TableEntry(_named(item, "key"), version, timestamp, value, item.get("content_type"))


def _named(item: dict[str, Any], name: str) -> bytes:
    encoded = item.get(f"{name}_base64")
    return str(item[name]).encode() if encoded is None else base64.b64decode(encoded)


def _write_path(name: str, key: bytes, value: bytes | None) -> str:
    """Method and path."""
    return f"{'DELETE' if value is None else 'PUT'} {_key_path(name, key)}"


def _written_version(response: httpx.Response) -> int:
    """Raises: RemoteProtocolError."""
    try:
        return int(response.headers["etag"].strip('"'))
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"the node's response is not valid: {error!r}") from error


def _rejected(response: httpx.Response, error: Exception) -> Exception:
    """The error of a refusal, with the leader's `err_code` if that has refused the message."""
    if not isinstance(error, RequestFailed):
        return error
    try:
        err_code = msgspec.json.decode(response.content)["error"]["err_code"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return error
    found = PublishRejected(response.status_code, int(err_code), error.message)
    found.args = (error.message,)
    return found
