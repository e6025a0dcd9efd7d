"""Requests about tables over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec

from bascule.errors import RemoteProtocolError, UnknownKey
from bascule.table_results import TableEntry, TableInfo, TablePage, TableValues


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
    ) -> tuple[int, Any]:
        raise NotImplementedError

    async def _request(self, method: str, path: str, *, body: Any = None) -> httpx.Response:
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
        # Clients would take the names . and .. out of the path.
        escaped = "%2E" * len(key) if key in (b".", b"..") else quote(key, safe="")
        path = f"{_table_path(name)}/keys/{escaped}{_query(consistency)}"
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

    async def table_values(
        self, name: str, keys: Sequence[bytes], *, consistency: Mapping[str, Any]
    ) -> TableValues:
        """Raises: InvalidKey, UnknownStream, NotATable, LimitExceeded."""
        path = f"{_table_path(name)}/get{_query(consistency)}"
        body = {"keys_base64": [base64.b64encode(key).decode() for key in keys]}
        _, answer = await self._ask("POST", path, body=body, name=name)
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
