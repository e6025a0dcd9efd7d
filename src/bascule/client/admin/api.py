"""The client of the HTTP API: sends requests and returns model values or Bascule's errors."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar, Unpack
from urllib.parse import quote, urlencode, urlsplit

import httpx
import msgspec

from bascule.client.admin.refusals import error_of
from bascule.client.admin.servers import SILENCE_S_MAX, Servers
from bascule.client.admin.settings import AlterableSettings, StreamSettings
from bascule.client.admin.table_events import TableEvents
from bascule.client.admin.table_requests import TableRequests
from bascule.errors import (
    Broken,
    ConfigError,
    RemoteProtocolError,
    RequestFailed,
)
from bascule.group_results import (
    CommittedOffset,
    GroupInfo,
    GroupListing,
    OffsetReset,
)
from bascule.model import (
    ClusterInfo,
    DuplicateStream,
    NodeInfo,
    Overlap,
    PartitionInfo,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
)
from bascule.operation_results import (
    BalancePlan,
    LeaderChange,
    NodeDrain,
    PartitionRecovery,
    RepairedPartition,
    ScrubbedReplica,
)
from bascule.wire.tables.keys import bucket_subject

T = TypeVar("T")

CONNECTIONS_KEPT_MAX: Final = 20
SERVER_VARIABLE: Final = "BASCULE_SERVER"
SERVER_DEFAULT: Final = "http://127.0.0.1:9080"


@dataclass(frozen=True, slots=True)
class PurgedPartition:
    """The result of a purge for one partition: start offset and size before and after;
    None: its leader has not told."""

    partition: int
    start_offset_before: int | None
    start_offset: int | None
    high_watermark: int | None
    bytes_before: int | None
    bytes: int | None


def server_url(server: str | None) -> str:
    """The nodes' HTTP addresses, comma separated: the argument, else BASCULE_SERVER, else the
    default. Raises: ConfigError."""
    chosen = server or os.environ.get(SERVER_VARIABLE) or SERVER_DEFAULT
    urls = []
    for address in map(str.strip, chosen.split(",")):
        url = (address if "://" in address else _plain_url(address)).rstrip("/")
        why = _why_not_http(url)
        if why:
            # The command line reads the variable itself and hands it in.
            origin = SERVER_VARIABLE if chosen == os.environ.get(SERVER_VARIABLE) else "server"
            raise ConfigError(
                f"{origin} {address!r} is not an HTTP address such as {SERVER_DEFAULT}: {why}"
            )
        urls.append(url)
    return ",".join(urls)


def _plain_url(address: str) -> str:
    """The URL of `HOST:PORT`, or of a host alone, whose node has the default port."""
    url = f"http://{address}"
    try:
        parts = urlsplit(url)
        if parts.hostname and parts.port is None and not parts.netloc.endswith(":"):
            default = urlsplit(SERVER_DEFAULT).port
            return parts._replace(netloc=f"{parts.netloc}:{default}").geturl()
    except ValueError:
        pass  # said with what is wrong
    return url


def _why_not_http(url: str) -> str:
    """What is wrong with the address of a node, or an empty text."""
    try:
        parts = urlsplit(url)
        port = parts.port
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        return str(error)
    if any(each.isspace() for each in url):
        return "it has a blank"
    if parts.scheme not in ("http", "https"):
        return f"it begins with {parts.scheme}://"
    if not parts.hostname:
        return "it names no host"
    if port == 0:
        return "port 0 is no address"
    return "it has a query" if parts.query or parts.fragment else ""


class Admin(TableRequests, TableEvents):
    """Requests about streams and the node over HTTP.

    With several servers a request goes to the one that answered last, and to the next where that
    does not answer; see `servers`. Every method raises Broken if no node replies. If the node
    refuses, the method raises the class that the node raised.
    """

    def __init__(self, server: str, *, timeout: float) -> None:
        self.server = server
        self._timeout = timeout
        # Requests to a node that hangs must not keep those to others from a connection.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS_KEPT_MAX)
        # Proxy settings are for the web and not for nodes.
        self._http = httpx.AsyncClient(timeout=timeout, trust_env=False, limits=limits)
        self._servers = Servers(server.split(","), self._http, timeout=timeout)

    async def close(self) -> None:
        self._servers.close()
        await self._http.aclose()

    async def node(self) -> NodeInfo:
        _, body = await self._ask("GET", "/v1/node")
        return _convert(body, NodeInfo)

    async def cluster(self) -> ClusterInfo:
        _, body = await self._ask("GET", "/v1/cluster")
        return _convert(body, ClusterInfo)

    async def metrics(self) -> str:
        """The text of `/metrics`."""
        response = await self._request("GET", "/metrics")
        if not response.is_success:
            raise RemoteProtocolError(f"{self.server} answered with status {response.status_code}")
        return response.text

    async def streams(self, subject: str | None = None) -> list[StreamInfo]:
        query = "" if subject is None else f"?subject={quote(subject, safe='')}"
        _, body = await self._ask("GET", f"/v1/streams{query}")
        return [stream_info_of(item) for item in body["streams"]]

    async def confirmed_streams(self) -> list[StreamInfo] | None:
        """All streams that there were before the call, as the controller has confirmed to the node.
        None where nodes of an earlier release are in the cluster, which cannot tell. Of several
        servers all are asked until one can. Raises: Broken; what the last node was told."""
        method, path, is_earlier = "GET", "/v1/streams?confirmed=true", False
        for left in reversed(range(self.server.count(",") + 1)):
            response = await self._request(method, path)
            if response.status_code == HTTPStatus.BAD_REQUEST:
                is_earlier = True  # its release does not know the parameter
            elif response.status_code != HTTPStatus.SERVICE_UNAVAILABLE or not (left or is_earlier):
                body = self._body_of(response, what=f"{method} {path}")
                if body["confirmed"]:
                    return [stream_info_of(item) for item in body["streams"]]
                is_earlier = True
            self._servers.turn_from(self._servers.first)
        return None

    async def stream(self, name: str) -> StreamInfo:
        """Raises: UnknownStream."""
        _, body = await self._ask("GET", _path(name), name=name)
        return stream_info_of(body)

    async def create_stream(
        self, name: str, subject: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """Create a stream on a subject. Settings that are left out get the node's defaults.

        Returns the stream and whether this call created it. Raises: StreamConflict if the name is
        used with another configuration, InvalidName, ConfigError.
        """
        body = {"name": name, "subject": subject, **_given(settings)}
        status, response = await self._ask("POST", "/v1/streams", body=body, name=name)
        return stream_info_of(response), status == 201

    async def create_table(
        self, name: str, **settings: Unpack[StreamSettings]
    ) -> tuple[StreamInfo, bool]:
        """See `AdminMixin`."""
        chosen: StreamSettings = {"key_from": "subject", **settings}
        cleanup = chosen["cleanup"] = settings.get("cleanup") or ("compact",)
        if "compact" not in cleanup:
            shown = ",".join(cleanup)
            raise ConfigError(
                f"cleanup is {shown}: a table is compacted by key; leave cleanup out, or name "
                "compact",
                field="cleanup",
            )
        if settings.get("table") is False:
            raise ConfigError("table is false: create a stream instead", field="table")
        chosen["table"] = True
        return await self.create_stream(name, bucket_subject(name), **chosen)

    async def alter_stream(self, name: str, **settings: Unpack[AlterableSettings]) -> StreamInfo:
        """Change settings. Settings that are left out stay unchanged.

        Raises: UnknownStream, CannotAlter, ConfigError, InternalStream.
        """
        _, response = await self._ask("PATCH", _path(name), body=_given(settings), name=name)
        return stream_info_of(response)

    async def reassign_stream(
        self,
        name: str,
        replicas: Sequence[int],
        *,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> StreamInfo:
        """Begin to move replicas; see `AdminMixin`."""
        body = dict[str, Any](replicas=list(replicas), partition=partition)
        if dry_run:  # nodes of earlier releases refuse it
            body["dry_run"] = True
        _, response = await self._ask("POST", f"{_path(name)}/reassign", body=body, name=name)
        return stream_info_of(response)

    async def cancel_moves(self, name: str, *, partition: int | None = None) -> StreamInfo:
        """Take moves back; see `AdminMixin`."""
        path, body = f"{_path(name)}/cancel-reassignment", {"partition": partition}
        _, response = await self._ask("POST", path, body=body, name=name)
        return stream_info_of(response)

    async def elect_leader(
        self, name: str, *, partition: int | None = None, node: int | None = None
    ) -> list[LeaderChange]:
        """Have another replica lead; see `AdminMixin`."""
        path, body = f"{_path(name)}/elect-leader", {"partition": partition, "node": node}
        _, response = await self._ask("POST", path, body=body, name=name)
        return _convert(response["partitions"], list[LeaderChange])

    async def recover_stream(
        self, name: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> list[PartitionRecovery]:
        """Go on without replicas that are lost; see `AdminMixin`."""
        path = f"{_path(name)}/recover"
        body = {"partition": partition, "accept_loss": accept_loss}
        _, response = await self._ask("POST", path, body=body, name=name)
        return _convert(response["partitions"], list[PartitionRecovery])

    async def drain_node(
        self, number: int, *, replicas: bool = False, reason: str = ""
    ) -> NodeDrain:
        """Take leaders from a node; see `AdminMixin`."""
        path, body = f"/v1/nodes/{number}/drain", dict[str, Any](replicas=replicas)
        if reason:  # nodes of earlier releases know none
            body["reason"] = reason
        _, response = await self._ask("POST", path, body=body, node=number)
        return _convert(response, NodeDrain)

    async def node_drain(self, number: int) -> NodeDrain:
        """How far a node is drained; see `AdminMixin`."""
        _, response = await self._ask("GET", f"/v1/nodes/{number}/drain", node=number)
        return _convert(response, NodeDrain)

    async def resume_node(self, number: int) -> NodeDrain:
        """Have a drained node go on; see `AdminMixin`."""
        _, response = await self._ask("POST", f"/v1/nodes/{number}/resume", node=number)
        return _convert(response, NodeDrain)

    async def balance_plan(self) -> BalancePlan:
        """What would make nodes equal; see `AdminMixin`."""
        _, response = await self._ask("GET", "/v1/cluster/balance")
        return _plan_of(response)

    async def balance(self, *, stop: bool = False) -> BalancePlan:
        """Make nodes equal; see `AdminMixin`."""
        _, response = await self._ask("POST", "/v1/cluster/balance", body={"stop": stop})
        return _plan_of(response)

    async def throttle(self, bytes_per_second: int) -> None:
        """Limit the copying; see `AdminMixin`."""
        body = {"bytes_per_second": bytes_per_second}
        await self._ask("PUT", "/v1/cluster/throttle", body=body)

    async def acknowledge_loss(self, name: str, *, partition: int | None = None) -> StreamInfo:
        """Show unclean elections no longer; see `AdminMixin`."""
        body = {"partition": partition}
        path = f"{_path(name)}/acknowledge-loss"
        _, response = await self._ask("POST", path, body=body, name=name)
        return stream_info_of(response)

    async def remove_node(self, number: int, *, force: bool = False) -> int:
        """Begin to remove a node; see `AdminMixin`."""
        query = "?force=true" if force else ""
        _, response = await self._ask("DELETE", f"/v1/nodes/{number}{query}", node=number)
        return int(response["replicas"])

    async def cancel_removal(self, number: int) -> int:
        """Take the removal of a node back; see `AdminMixin`."""
        _, response = await self._ask("POST", f"/v1/nodes/{number}/cancel-removal", node=number)
        return int(response["replicas"])

    async def pause_stream(self, name: str) -> StreamInfo:
        """Stop accepting messages. Raises: UnknownStream, InternalStream."""
        _, response = await self._ask("POST", f"{_path(name)}/pause", body={}, name=name)
        return stream_info_of(response)

    async def resume_stream(self, name: str) -> StreamInfo:
        """Accept messages again. Raises: UnknownStream, InternalStream."""
        _, response = await self._ask("POST", f"{_path(name)}/resume", body={}, name=name)
        return stream_info_of(response)

    async def purge_stream(
        self,
        name: str,
        *,
        to_offset: int | None = None,
        before_ms: int | None = None,
        partition: int | None = None,
    ) -> list[PurgedPartition]:
        """Remove records before an offset or a Unix time (ms), or all; see `AdminMixin`."""
        wanted = {"to_offset": to_offset, "before_ms": before_ms, "partition": partition}
        body = {key: value for key, value in wanted.items() if value is not None}
        _, response = await self._ask("POST", f"{_path(name)}/purge", body=body, name=name)
        return [_convert(item, PurgedPartition) for item in response["partitions"]]

    async def repair_stream(
        self, name: str, *, partition: int | None = None, accept_loss: bool = False
    ) -> list[RepairedPartition]:
        """Open failed partitions again; see `AdminMixin`."""
        body = {"partition": partition, "accept_loss": accept_loss}
        _, response = await self._ask("POST", f"{_path(name)}/repair", body=body, name=name)
        return [_convert(item, RepairedPartition) for item in response["partitions"]]

    async def scrub_stream(
        self, name: str, *, partition: int | None = None
    ) -> list[ScrubbedReplica]:
        """Have all nodes read their replicas; see `AdminMixin`."""
        body = {} if partition is None else {"partition": partition}
        _, response = await self._ask("POST", f"{_path(name)}/scrub", body=body, name=name)
        return [_convert(item, ScrubbedReplica) for item in response["replicas"]]

    async def scrub_results(
        self, name: str, *, partition: int | None = None
    ) -> list[ScrubbedReplica]:
        """What that has found; see `AdminMixin`."""
        chosen = {"partition": None if partition is None else str(partition)}
        _, response = await self._ask("GET", f"{_path(name)}/scrub{_query(chosen)}", name=name)
        return [_convert(item, ScrubbedReplica) for item in response["replicas"]]

    async def delete_stream(self, name: str) -> None:
        """Delete a stream and everything in it. Raises: UnknownStream, InternalStream."""
        await self._ask("DELETE", _path(name), name=name)

    async def offsets(
        self, *, consumer: str | None = None, stream: str | None = None
    ) -> list[CommittedOffset]:
        """All commits, or those of a consumer or stream. Every acked commit is included."""
        chosen = {"consumer": consumer, "stream": stream}
        _, response = await self._ask("GET", f"/v1/offsets{_query(chosen)}")
        return [_convert(item, CommittedOffset) for item in response["offsets"]]

    async def groups(
        self, *, stream: str | None = None, state: str | None = None, type: str | None = None
    ) -> list[GroupListing]:
        """The groups, by name; see `AdminMixin`."""
        chosen = {"stream": stream, "state": state, "type": type}
        _, response = await self._ask("GET", f"/v1/groups{_query(chosen)}")
        return [_convert(item, GroupListing) for item in response["groups"]]

    async def group(self, name: str) -> GroupInfo:
        """One group; see `AdminMixin`."""
        _, response = await self._ask("GET", _group_path(name), group=name)
        return _convert(response, GroupInfo)

    async def reset_offsets(
        self,
        group: str,
        stream: str | None = None,
        *,
        to: str | None = None,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        shift_by: int | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> list[OffsetReset]:
        """Commit other offsets for a group; see `AdminMixin`."""
        body = {
            "stream": stream,
            "to": to,
            "offset": offset,
            "timestamp_ms": timestamp_ms,
            "shift_by": shift_by,
            "partition": partition,
            "dry_run": dry_run,
        }
        path = f"{_group_path(group)}/reset-offsets"
        _, response = await self._ask("POST", path, body=body, name=stream or "", group=group)
        return [_convert(item, OffsetReset) for item in response["partitions"]]

    async def delete_group(
        self, name: str, *, stream: str | None = None, partition: int | None = None
    ) -> int:
        """Delete a group, or its offsets for a stream; see `AdminMixin`."""
        path = f"{_group_path(name)}{_query({'stream': stream, 'partition': partition})}"
        _, response = await self._ask("DELETE", path, group=name)
        return int(response["removed"])

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
        response = await self._request(method, path, body=body, is_read=is_read)
        if response.status_code == 204:
            return 204, None
        what = f"{method} {path}"
        decoded = self._body_of(response, what=what, name=name, node=node, group=group)
        return response.status_code, decoded

    def _body_of(
        self, response: httpx.Response, *, what: str, name: str = "", node: int = 0, group: str = ""
    ) -> Any:
        """Raises: RemoteProtocolError; what the node has refused."""
        try:
            decoded = msgspec.json.decode(response.content)
        except msgspec.DecodeError as error:
            raise RemoteProtocolError(
                f"{self.server} answered {what} with status {response.status_code} and "
                "no JSON; is it a Bascule node?"
            ) from error
        if response.is_success:
            return decoded
        raise error_of(decoded, what=what, name=name, node=node, group=group)

    def _refusal(self, response: httpx.Response, *, what: str, name: str) -> Exception:
        try:
            decoded = msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            decoded = None
        return error_of(decoded, what=what, name=name)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        waits: float = 0,
        is_read: bool | None = None,
    ) -> httpx.Response:
        """The answer; `body` is sent as JSON, `content` as it is. It may come `waits` seconds later
        than usual. `is_read`: None for what the method says.

        Raises: Broken if no node answers; RequestFailed with `invalid_request` for what HTTP does
        not allow, such as a line feed in a header: it is not sent.
        """
        try:
            return await self._servers.request(
                method, path, waits=waits, is_read=is_read,
                json=body, content=content, headers=headers,
            )  # fmt: skip
        except httpx.TimeoutException as error:
            may_be_done = "" if is_read or method == "GET" else ", and may have done it"
            raise Broken(
                f"the node at {_origin(error.request.url)} did not answer {method} {path} in time"
                f"{may_be_done}; `bascule cluster status` says whether the cluster has a controller"
            ) from error
        except httpx.LocalProtocolError as error:
            raise RequestFailed(f"{method} {path}", "invalid_request", str(error)) from error
        except httpx.HTTPError as error:
            raise Broken(
                f"no Bascule node answers at {self.server} ({error}): start one with "
                f"`bascule serve`, or name another with {SERVER_VARIABLE}"
            ) from error

    @asynccontextmanager
    async def _stream(self, path: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """A response without end. It is silent for 15 s at most; see also `_is_best`."""
        await self._servers.turn_to_living()
        timeout = httpx.Timeout(self._timeout, read=SILENCE_S_MAX)
        url = self._servers.first + path
        async with self._http.stream(
            "GET", url, headers=headers, timeout=timeout, follow_redirects=True
        ) as response:
            yield response

    def _silence_s(self, response: httpx.Response) -> float:
        """After how many seconds of silence to ask whether the node that sends it is there."""
        return self._servers.silence_s(_origin(response.url))

    async def _is_best(self, response: httpx.Response, silence_s: float) -> bool:
        """Whether to go on with it after so many seconds of silence; see `Servers.is_best`."""
        return await self._servers.is_best(_origin(response.url), silence_s)

    @property
    def asked_server(self) -> str:
        """The node that is asked next."""
        return self._servers.first

    def turn_from(self, server: str) -> None:
        """Ask another node than this one from now on."""
        self._servers.turn_from(server)


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _given(settings: StreamSettings | AlterableSettings) -> dict[str, Any]:
    """The given settings as the API's JSON."""
    return {name: list(value) if isinstance(value, tuple) else value
            for name, value in settings.items() if value is not None}  # fmt: skip


def _query(chosen: Mapping[str, object]) -> str:
    """`?name=value&...` for the given values, or an empty text."""
    given = {name: value for name, value in chosen.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _path(name: str) -> str:
    return f"/v1/streams/{quote(name, safe='')}"


def _group_path(name: str) -> str:
    # Clients would take these names out of the path.
    escaped = name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")
    return f"/v1/groups/{escaped}"


def _convert(body: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"the node's response is not valid: {error}") from error


def _plan_of(body: Any) -> BalancePlan:
    """JSON has texts as keys."""
    return msgspec.convert(body, BalancePlan, strict=False)


def stream_info_of(body: Any) -> StreamInfo:
    """Convert a stream's JSON to the model. Raises: RemoteProtocolError for another structure."""
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
            refusal=body.get("refusal"),
            overlaps=tuple(_convert(item, Overlap) for item in body.get("overlaps", ())),
            duplicates=tuple(
                _convert(item, DuplicateStream) for item in body.get("duplicates", ())
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"the node's response is not valid: {error!r}") from error
