"""The HTTP API from the asking side: requests out, model values and our own errors back."""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from bascule.errors import (
    BasculeError,
    Broken,
    ConfigError,
    InvalidName,
    RemoteProtocolError,
    RequestFailed,
    StreamConflict,
    UnknownStream,
)
from bascule.model import (
    NodeInfo,
    PartitionInfo,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
    SyncPolicy,
)

T = TypeVar("T")

SERVER_VARIABLE: Final = "BASCULE_SERVER"
SERVER_DEFAULT: Final = "http://127.0.0.1:9080"


def server_url(server: str | None) -> str:
    """The node's HTTP address: what is given, else BASCULE_SERVER, else the default."""
    chosen = server or os.environ.get(SERVER_VARIABLE) or SERVER_DEFAULT
    if "://" not in chosen:
        chosen = f"http://{chosen}"
    if not chosen.startswith(("http://", "https://")):
        raise ConfigError(f"server {chosen!r} is not an HTTP address such as {SERVER_DEFAULT}")
    return chosen.rstrip("/")


class Admin:
    """Streams and the node, over HTTP.

    Every method raises Broken where no node answers, and what the node refuses as the class the
    node itself raised.
    """

    def __init__(self, server: str, *, timeout: float) -> None:
        self.server = server
        # No proxies: a node is not reached through the web's.
        self._http = httpx.AsyncClient(base_url=server, timeout=timeout, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def node(self) -> NodeInfo:
        _, body = await self._ask("GET", "/v1/node")
        return _convert(body, NodeInfo)

    async def streams(self) -> list[StreamInfo]:
        _, body = await self._ask("GET", "/v1/streams")
        return [stream_info_of(item) for item in body["streams"]]

    async def stream(self, name: str) -> StreamInfo:
        """Raises: UnknownStream."""
        _, body = await self._ask("GET", _path(name), name=name)
        return stream_info_of(body)

    async def create_stream(
        self,
        name: str,
        subject: str,
        *,
        group: str | None = None,
        sync: SyncPolicy | str | None = None,
        sync_interval_ms: int | None = None,
        segment_bytes_max: int | None = None,
        segment_age_ms_max: int | None = None,
        message_bytes_max: int | None = None,
    ) -> tuple[StreamInfo, bool]:
        """Create a stream on a subject; what is left out is the node's default.

        Returns the stream and whether this call created it. Raises: StreamConflict where the name
        is taken by another configuration, InvalidName.
        """
        wanted = {
            "name": name,
            "subject": subject,
            "group": group,
            "sync": None if sync is None else SyncPolicy(sync).value,
            "sync_interval_ms": sync_interval_ms,
            "segment_bytes_max": segment_bytes_max,
            "segment_age_ms_max": segment_age_ms_max,
            "message_bytes_max": message_bytes_max,
        }
        body = {key: value for key, value in wanted.items() if value is not None}
        status, answer = await self._ask("POST", "/v1/streams", body=body, name=name)
        return stream_info_of(answer), status == 201

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and everything in it. Raises: UnknownStream."""
        await self._ask("DELETE", _path(name), name=name)

    async def _ask(
        self, method: str, path: str, *, body: Any = None, name: str = ""
    ) -> tuple[int, Any]:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise Broken(f"the node at {self.server} did not answer {method} {path}") from error
        except httpx.HTTPError as error:
            raise Broken(
                f"no Bascule node answers at {self.server} ({error}): start one with "
                f"`bascule serve`, or name another with {SERVER_VARIABLE}"
            ) from error
        if response.status_code == 204:
            return 204, None
        try:
            answer = msgspec.json.decode(response.content)
        except msgspec.DecodeError as error:
            raise RemoteProtocolError(
                f"{self.server} answered {method} {path} with status {response.status_code} and "
                "no JSON; is it a Bascule node?"
            ) from error
        if response.is_success:
            return response.status_code, answer
        raise error_of(answer, what=f"{method} {path}", name=name)


def _path(name: str) -> str:
    return f"/v1/streams/{quote(name, safe='')}"


def error_of(answer: Any, *, what: str, name: str) -> BasculeError:
    """The exception that the body of a refusal stands for; `name` is the stream asked about."""
    detail = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(detail, dict):
        return RequestFailed(what, "no_error_body", str(answer)[:200])
    code, message = str(detail.get("code")), str(detail.get("message"))
    if code == "unknown_stream":
        return UnknownStream(name)
    if code == "stream_conflict":
        pairs = detail.get("differences") or {}
        return StreamConflict(name, {key: (pair[0], pair[1]) for key, pair in pairs.items()})
    if code == "invalid_name":
        return _worded(InvalidName("name", name, "refused"), message)
    if code == "invalid_config":
        return ConfigError(message)
    if code in ("unavailable", "closing"):
        return Broken(message)
    return RequestFailed(what, code, message)


def _worded(error: BasculeError, message: str) -> BasculeError:
    """`error` with the node's own words."""
    error.args = (message,)
    return error


def _convert(body: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"the node's answer is not understood: {error}") from error


def stream_info_of(body: Any) -> StreamInfo:
    """The model of a stream's JSON. Raises: RemoteProtocolError where it has another shape."""
    try:
        return StreamInfo(
            definition=StreamDefinition(
                name=body["name"],
                id=bytes.fromhex(body["id"]),
                created_ms=body["created_ms"],
                config=_convert(body["config"], StreamConfig),
                paused=body["paused"],
            ),
            partitions=tuple(_convert(item, PartitionInfo) for item in body["partitions"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the node's answer is not understood: {error!r}") from error
