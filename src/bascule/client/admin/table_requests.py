"""Requests about tables over HTTP."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec

from bascule.errors import RemoteProtocolError
from bascule.table_results import TableEntry, TableInfo


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

    async def table_value(self, name: str, key: bytes, *, at_least: int = 0) -> TableEntry:
        """Raises: UnknownKey, InvalidKey, UnknownStream, NotATable."""
        query = f"?at_least={at_least}" if at_least else ""
        # Clients would take the names . and .. out of the path.
        escaped = "%2E" * len(key) if key in (b".", b"..") else quote(key, safe="")
        path = f"{_table_path(name)}/keys/{escaped}{query}"
        response = await self._request("GET", path)
        if not response.is_success:
            raise self._refusal(response, what=f"GET {path}", name=name)
        try:
            version = int(response.headers["etag"].strip('"'))
            timestamp = int(response.headers["bascule-timestamp"])
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"the node's response is not valid: {error!r}") from error
        return TableEntry(key, version, timestamp, response.content)

    async def table_keys(
        self,
        name: str,
        *,
        prefix: bytes = b"",
        after: bytes | None = None,
        limit: int | None = None,
        at_least: int = 0,
    ) -> tuple[list[tuple[bytes, int]], bool]:
        """Keys with their versions, and whether these are the last ones.

        Raises: UnknownStream, NotATable.
        """
        chosen = {"prefix": prefix or None, "after": after, "limit": limit}
        given = {**chosen, "at_least": at_least or None}
        query = urlencode({name: value for name, value in given.items() if value is not None})
        _, body = await self._ask("GET", f"{_table_path(name)}/keys?{query}", name=name)
        return [(_key(item), int(item["version"])) for item in body["keys"]], bool(body["is_last"])


def _table_path(name: str) -> str:
    return f"/v1/tables/{quote(name, safe='')}"


def _key(item: dict[str, Any]) -> bytes:
    if "key_base64" in item:
        return base64.b64decode(item["key_base64"])
    return str(item["key"]).encode()
