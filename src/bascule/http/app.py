"""The HTTP application: the handlers of all operations, and its routes and middleware."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from msgspec import UNSET, UnsetType
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from bascule.config import StreamDefaults
from bascule.errors import BasculeError, LimitExceeded
from bascule.http.cluster import ClusterAdmin, ClusterApi
from bascule.http.groups import GroupsAdmin, GroupsApi
from bascule.http.listener import LoopbackGuard
from bascule.http.metrics import exposition
from bascule.http.metrics.http_statistics import HttpStatistics, StatisticsMiddleware
from bascule.http.openapi import docs_page, openapi_document
from bascule.http.payloads import PayloadsAdmin, PayloadsApi
from bascule.http.requests import (
    AcknowledgeLossRequest,
    AlterStreamRequest,
    CreateStreamRequest,
    EmptyRequest,
    PurgeRequest,
    RepairRequest,
    ScrubRequest,
    check_no_body,
    check_origin,
    check_query,
    decode_body,
    flag_of,
    partition_number,
)
from bascule.http.responses import (
    json_response,
    on_bascule_error,
    on_http_error,
    on_unexpected_error,
)
from bascule.http.routes import OPERATIONS
from bascule.http.schemas import (
    StreamList,
    cluster_body,
    health_body,
    node_body,
    purged_body,
    repaired_body,
    scrubbed_body,
    stream_body,
)
from bascule.http.table_watch import TableWatchApi
from bascule.http.tables import TablesAdmin, TablesApi
from bascule.model import (
    ClusterInfo,
    NodeInfo,
    PartHealth,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
)
from bascule.operation_results import RepairedPartition, ScrubbedReplica
from bascule.version import __version__
from bascule.wire.subjects import check_subject

_ANY: Final = "any"


class _AnyText(PathConvertor):
    """The rest of a path, with slashes and line breaks."""

    regex = "(?s:.*)"


register_url_convertor(_ANY, _AnyText())

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class StreamAdmin(Protocol):
    """Operations on streams; implemented by `controller`."""

    async def create_stream(self, name: str, config: StreamConfig) -> tuple[StreamDefinition, bool]:
        """The stream, and whether this call created it.

        Raises: StreamConflict, InvalidName, ConfigError.
        """
        ...

    async def alter_stream(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition:
        """Raises: UnknownStream, InternalStream, CannotAlter, ConfigError."""
        ...

    async def acknowledge_loss(self, name: str, *, partition: int | None) -> StreamDefinition:
        """Raises: UnknownStream, UnknownPartition."""
        ...

    async def set_paused(self, name: str, paused: bool) -> StreamDefinition:
        """Raises: UnknownStream, InternalStream."""
        ...

    async def purge_stream(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamInfo:
        """Raises: UnknownStream, InternalStream, UnknownPartition, OffsetOutOfRange."""
        ...

    async def repair_stream(
        self, name: str, *, partition: int | None, accept_loss: bool
    ) -> list[RepairedPartition]:
        """Raises: UnknownStream, UnknownPartition."""
        ...

    async def scrub_stream(self, name: str, *, partition: int | None) -> list[ScrubbedReplica]:
        """Raises: UnknownStream, UnknownPartition."""
        ...

    async def scrub_results(self, name: str, *, partition: int | None) -> list[ScrubbedReplica]:
        """Raises: UnknownStream, UnknownPartition."""
        ...

    async def delete_stream(self, name: str) -> None:
        """Raises: UnknownStream, InternalStream."""
        ...

    def stream_infos(self) -> list[StreamInfo]:
        """As this node knows them, for metrics."""
        ...

    async def confirm_streams(self) -> bool:
        """Return once this node knows all streams that there were before the call; False where the
        cluster cannot tell. Raises: NotLeader, CannotReplicate, LaggingIndex, Broken where it does
        not tell in time."""
        ...

    async def describe_all(self, subject: str) -> list[StreamInfo]:
        """With what the leaders of their partitions say."""
        ...

    async def describe(self, name: str) -> StreamInfo:
        """With what the leaders of its partitions say. Raises: UnknownStream."""
        ...


class StatusSource(Protocol):
    """The state of the node; implemented by `node.status`."""

    def node_info(self) -> NodeInfo: ...

    async def cluster_info(self) -> ClusterInfo: ...

    def liveness(self) -> tuple[PartHealth, ...]:
        """The checks whose failure requires a restart."""
        ...

    async def measure(self) -> None:
        """Measure what `readiness` and `statistics` say of the disk. Raises: OSError."""
        ...

    def readiness(self) -> tuple[PartHealth, ...]:
        """The checks of all parts that serving requires."""
        ...

    def statistics(self) -> dict[str, Any]: ...

    async def group_lags(self) -> Mapping[str, Any]:
        """The statistics of the groups that this node coordinates."""
        ...


class AdminApi(GroupsApi, ClusterApi, TablesApi, TableWatchApi, PayloadsApi):
    """The handlers: they decode requests, call the ports, and encode the results."""

    def __init__(
        self,
        streams: StreamAdmin,
        groups: GroupsAdmin,
        node: StatusSource,
        cluster: ClusterAdmin,
        tables: TablesAdmin,
        payloads: PayloadsAdmin,
        *,
        defaults: StreamDefaults,
        body_bytes_max: int,
    ) -> None:
        GroupsApi.__init__(self, groups)
        ClusterApi.__init__(self, cluster)
        TablesApi.__init__(self, tables)
        TableWatchApi.__init__(self, tables)
        PayloadsApi.__init__(self, payloads)
        self._streams = streams
        self._node = node
        self._defaults = defaults
        self._body_bytes_max = body_bytes_max

    async def handle_node(self, request: Request) -> Response:
        return json_response(node_body(self._node.node_info()))

    async def handle_cluster(self, request: Request) -> Response:
        return json_response(cluster_body(await self._node.cluster_info()))

    async def handle_list_streams(self, request: Request) -> Response:
        subject = request.query_params.get("subject", ">")
        check_subject(subject, wildcards=True)
        confirmed: bool | UnsetType = UNSET
        if flag_of(request, "confirmed"):
            confirmed = await self._streams.confirm_streams()
        infos = await self._streams.describe_all(subject)
        infos.sort(key=lambda info: info.definition.name)
        streams = [stream_body(info) for info in infos]
        return json_response(StreamList(streams=streams, confirmed=confirmed))

    async def handle_create_stream(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), CreateStreamRequest)
        definition, created = await self._streams.create_stream(
            asked.name, asked.config(self._defaults)
        )
        info = await self._streams.describe(definition.name)
        where = {"location": f"/v1/streams/{definition.name}"}
        return json_response(stream_body(info), 201 if created else 200, where)

    async def handle_stream(self, request: Request) -> Response:
        return json_response(stream_body(await self._streams.describe(request.path_params["name"])))

    async def handle_alter_stream(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), AlterStreamRequest)
        definition = await self._streams.alter_stream(request.path_params["name"], asked.chosen())
        return json_response(stream_body(await self._streams.describe(definition.name)))

    async def handle_acknowledge_loss(self, request: Request) -> Response:
        asked = decode_body(await self._body(request) or b"{}", AcknowledgeLossRequest)
        definition = await self._streams.acknowledge_loss(
            request.path_params["name"], partition=asked.partition
        )
        return json_response(stream_body(await self._streams.describe(definition.name)))

    async def handle_pause_stream(self, request: Request) -> Response:
        return await self._set_paused(request, paused=True)

    async def handle_resume_stream(self, request: Request) -> Response:
        return await self._set_paused(request, paused=False)

    async def _set_paused(self, request: Request, *, paused: bool) -> Response:
        # The body is empty, but its required content type keeps other sites out; see `_body`.
        decode_body(await self._body(request) or b"{}", EmptyRequest)
        definition = await self._streams.set_paused(request.path_params["name"], paused)
        return json_response(stream_body(await self._streams.describe(definition.name)))

    async def handle_purge_stream(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), PurgeRequest)
        before = await self._streams.describe(request.path_params["name"])
        asked.check(partitions=len(before.partitions))
        after = await self._streams.purge_stream(
            before.definition.name,
            to_offset=asked.to_offset,
            before_ms=asked.before_ms,
            partition=asked.partition,
        )
        return json_response(purged_body(before, after))

    async def handle_repair_stream(self, request: Request) -> Response:
        asked = decode_body(await self._body(request), RepairRequest)
        name = request.path_params["name"]
        repaired = await self._streams.repair_stream(
            name, partition=asked.partition, accept_loss=asked.accept_loss
        )
        return json_response(repaired_body(name, repaired))

    async def handle_scrub_stream(self, request: Request) -> Response:
        asked = decode_body(await self._body(request) or b"{}", ScrubRequest)
        name = request.path_params["name"]
        found = await self._streams.scrub_stream(name, partition=asked.partition)
        return json_response(scrubbed_body(name, found), 202)

    async def handle_scrub_results(self, request: Request) -> Response:
        name, text = request.path_params["name"], request.query_params.get("partition")
        partition = None if text is None else partition_number(text)
        found = await self._streams.scrub_results(name, partition=partition)
        return json_response(scrubbed_body(name, found))

    async def handle_delete_stream(self, request: Request) -> Response:
        await self._streams.delete_stream(request.path_params["name"])
        return Response(status_code=204)

    async def handle_metrics(self, request: Request) -> Response:
        await self._node.measure()
        node, streams = self._node.node_info(), self._streams.stream_infos()
        statistics = self._node.statistics()
        statistics["group"] = await self._node.group_lags()
        # Thousands of streams make tens of thousands of lines: too slow for the event loop.
        text = await asyncio.to_thread(exposition.render, node, statistics, streams)
        return Response(text, headers={"content-type": exposition.CONTENT_TYPE})

    async def handle_health(self, request: Request) -> Response:
        return _health_response(self._node.liveness())

    async def handle_ready(self, request: Request) -> Response:
        await self._node.measure()
        return _health_response(self._node.readiness())

    async def handle_openapi(self, request: Request) -> Response:
        operations = list(OPERATIONS.values())
        return json_response(openapi_document(operations, version=__version__))

    async def handle_docs(self, request: Request) -> Response:
        operations = list(OPERATIONS.values())
        server = f"{request.url.scheme}://{request.url.netloc}"  # as the browser has reached it
        return HTMLResponse(docs_page(operations, version=__version__, server=server))

    async def handle_root(self, request: Request) -> Response:
        return RedirectResponse("/docs")

    async def _describe(self, name: str) -> StreamInfo:
        return await self._streams.describe(name)

    async def _body(self, request: Request) -> bytes:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            # Pages of other sites may not send this content type without a CORS preflight.
            raise HTTPException(
                415, f"the body must be application/json, got {media_type or 'no content type'}"
            )
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if (size := len(body)) > self._body_bytes_max:
                    raise LimitExceeded("limits.http_body_bytes_max", self._body_bytes_max, size)
        except ClientDisconnect:
            raise HTTPException(400, "the connection was closed within the body") from None
        return bytes(body)


def _health_response(parts: tuple[PartHealth, ...]) -> Response:
    health = health_body(parts)
    return json_response(health, 503 if health.status == "not_ready" else 200)


def _checked(handler: Handler, *, query: Sequence[str] = (), has_body: bool = False) -> Handler:
    """`handler` behind the checks of the query parameters and of a body that it would ignore."""

    @functools.wraps(handler)
    async def handle(request: Request) -> Response:
        check_query(request, query)
        if not has_body:
            check_no_body(request)
            check_origin(request)
        return await handler(request)

    return handle


def create_app(
    streams: StreamAdmin,
    groups: GroupsAdmin,
    node: StatusSource,
    cluster: ClusterAdmin,
    tables: TablesAdmin,
    payloads: PayloadsAdmin,
    *,
    defaults: StreamDefaults | None = None,
    body_bytes_max: int = 1 << 20,
    statistics: HttpStatistics | None = None,
) -> Starlette:
    """The application; `defaults` are the values that a creation request leaves out."""
    handlers = AdminApi(
        streams,
        groups,
        node,
        cluster,
        tables,
        payloads,
        defaults=defaults or StreamDefaults(),
        body_bytes_max=body_bytes_max,
    )
    routes = [
        Route(
            # Names of groups and keys of tables are any text.
            operation.path.replace("{group}", f"{{group:{_ANY}}}").replace(
                "{key}", f"{{key:{_ANY}}}"
            ),
            _checked(
                getattr(handlers, f"handle_{name}"),
                query=[parameter for parameter, _ in operation.query],
                has_body=operation.request is not None or bool(operation.request_media_type),
            ),
            methods=[operation.method],
        )
        for name, operation in OPERATIONS.items()
    ]
    routes += [
        Route("/v1/openapi.json", _checked(handlers.handle_openapi)),
        Route("/docs", _checked(handlers.handle_docs)),
        Route("/", _checked(handlers.handle_root)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            BasculeError: on_bascule_error,
            HTTPException: on_http_error,
            Exception: on_unexpected_error,
        },
    )
    app.router.redirect_slashes = False
    app.add_middleware(LoopbackGuard)
    app.add_middleware(StatisticsMiddleware, statistics=statistics or HttpStatistics())
    return app
