"""The HTTP API over the real controller and image, without a socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from bascule.config import StreamDefaults
from bascule.errors import CannotReplicate, OffsetOutOfRange, PartitionFailed, UnknownStream
from bascule.http import create_app
from bascule.http.responses import ERROR_STATUSES, HTTP_STATUS_CODES, PUBLISH_STATUSES, REFUSED
from bascule.http.routes import OPERATIONS
from bascule.metadata.apply import apply
from bascule.metadata.commands import Command
from bascule.metadata.controller import (
    Existing,
    alter_stream,
    check_purge,
    create_stream,
    delete_stream,
    pause_stream,
    resume_stream,
)
from bascule.metadata.image import Image
from bascule.model import (
    NodeInfo,
    PartHealth,
    PartitionInfo,
    StreamConfig,
    StreamDefinition,
    StreamInfo,
)
from bascule.replica.metrics import SECONDS, Histogram
from bascule.wire.subjects import subjects_overlap

SERVER = "http://127.0.0.1:9080"


class ImageAdmin:
    """`StreamAdmin` and `StatusSource` over a metadata image, with empty partitions and no logs."""

    def __init__(self) -> None:
        self.image = Image()
        self.ready = True
        self.failure: str | None = None
        self.broken: Exception | None = None
        self.start_offset = 5
        self.syncs = Histogram(SECONDS)
        self.measured = 0
        self.purged: list[int | None] = []

    async def create_stream(self, name: str, config: StreamConfig) -> tuple[StreamDefinition, bool]:
        id = bytes([len(self.image.streams)]) * 16
        decided = create_stream(self.image, name, config, id=id, now_ms=1_700_000_000_000)
        self._apply(decided)
        return self.image.streams[name], not isinstance(decided, Existing)

    async def alter_stream(self, name: str, changes: Mapping[str, Any]) -> StreamDefinition:
        self._apply(alter_stream(self.image, name, changes))
        return self.image.streams[name]

    async def set_paused(self, name: str, paused: bool) -> StreamDefinition:
        self._apply((pause_stream if paused else resume_stream)(self.image, name))
        return self.image.streams[name]

    async def purge_stream(
        self, name: str, *, to_offset: int | None, before_ms: int | None, partition: int | None
    ) -> StreamInfo:
        """Purging an empty partition only moves its start offset."""
        check_purge(self.image, name, partition=partition)
        assert before_ms is None or to_offset is None
        target = 40 if to_offset is None else to_offset
        if not 0 <= target <= 40:
            raise OffsetOutOfRange(target, self.start_offset, 40)
        self.purged.append(partition)
        self.start_offset = max(self.start_offset, target)
        return self.stream_info(name)

    def _apply(self, decided: Command | Existing) -> None:
        if not isinstance(decided, Existing):
            self.image = apply(self.image, decided)

    async def delete_stream(self, name: str) -> None:
        if self.broken is not None:
            raise self.broken
        self.image = apply(self.image, delete_stream(self.image, name))

    def stream_infos(self) -> list[StreamInfo]:
        return [self.stream_info(name) for name in self.image.streams]

    async def confirm_streams(self) -> bool:
        if self.broken is not None:
            raise self.broken
        return True

    async def describe_all(self, subject: str) -> list[StreamInfo]:
        return [
            info
            for info in self.stream_infos()
            if subjects_overlap(info.definition.config.subject, subject)
        ]

    async def describe(self, name: str) -> StreamInfo:
        return self.stream_info(name)

    def stream_info(self, name: str) -> StreamInfo:
        if name not in self.image.streams:
            raise UnknownStream(name)
        definition = self.image.streams[name]
        return StreamInfo(
            definition,
            tuple(
                PartitionInfo(index, self.start_offset, 40, 41, 42, 1, 2_048, self.failure)
                for index in range(definition.partition_count)
            ),
        )

    def liveness(self) -> tuple[PartHealth, ...]:
        state = "down" if isinstance(self.broken, SystemError) else "ok"
        return (PartHealth("threads", state, str(self.broken or "all run")),)

    async def measure(self) -> None:
        self.measured += 1

    def readiness(self) -> tuple[PartHealth, ...]:
        return (
            PartHealth("nats", "ok" if self.ready else "down", "connected to nats://a:4222"),
            PartHealth(
                "partitions", "degraded" if self.failure else "ok", self.failure or "1 of 1"
            ),
        )

    def node_info(self) -> NodeInfo:
        return NodeInfo(
            node_id=1, cluster_id="c", version="0.1.0", twin="compiled", pid=7, data="/data",
            nats="nats://127.0.0.1:4222", nats_embedded=True, client="127.0.0.1:9092",
            http=SERVER, uptime_ms=1_500, ready=self.ready,
        )  # fmt: skip

    def statistics(self) -> dict[str, Any]:
        return {
            "ingest": {"messages": 7, "note": "x"},
            "buffer": {"stalled_ns": 250_000_000},
            "stream": {
                "records": {("a", 0): 5},
                "refused": {("a", 0): {"closed": 3}},
                "sync_ns": {("a", 0): self.syncs, ("a", 1): Histogram(SECONDS)},
            },
            "client_listener": {"connections": 2, "requests": Counter(Fetch=5)},
        }

    async def group_lags(self) -> dict[str, Any]:
        return {"lag": {("billing", "a", 0): 12}}


@pytest.fixture
def admin() -> ImageAdmin:
    return ImageAdmin()


Call = Callable[..., httpx.Response]


@pytest.fixture
def call(admin: ImageAdmin) -> Call:
    app = create_app(
        admin,
        None,  # tests/e2e/test_group_administration.py tests groups against a real node
        admin,
        None,  # tests/e2e/test_cluster_operations.py tests a real cluster
        None,  # tests/e2e/test_tables.py tests the tables of real nodes
        None,  # tests/e2e/test_payloads.py tests payloads of real nodes
        defaults=StreamDefaults(sync="interval"),
        body_bytes_max=2_048,
    )

    def one(method: str, path: str, **arguments: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=SERVER) as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(go())

    return one


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    return error


def test_a_stream_from_creation_to_deletion(call: Call) -> None:
    asked = {"name": "flights", "subject": "flights.>", "segment_bytes_max": 1 << 24}
    created = call("POST", "/v1/streams", json=asked)
    assert created.status_code == 201
    assert created.headers["location"] == "/v1/streams/flights"
    body = created.json()
    assert body["config"]["segment_bytes_max"] == 1 << 24
    assert body["config"]["sync"] == "interval", "the node's default"
    assert body["partitions"][0]["high_watermark"] == 40
    assert body["id"] == "00" * 16

    again = call("POST", "/v1/streams", json=asked)
    assert (again.status_code, again.json()) == (200, body)
    assert call("GET", "/v1/streams/flights").json() == body
    assert call("GET", "/v1/streams").json() == {"streams": [body]}
    assert call("GET", "/v1/streams?subject=flights.ams").json() == {"streams": [body]}
    assert call("GET", "/v1/streams?subject=trains.>").json() == {"streams": []}
    assert error_of(call("GET", "/v1/streams?subject=a..b"))["code"] == "invalid_name"
    assert call("DELETE", "/v1/streams/flights").status_code == 204
    assert call("GET", "/v1/streams").json() == {"streams": []}
    assert error_of(call("GET", "/v1/streams/flights"))["code"] == "unknown_stream"


def test_a_list_of_streams_is_confirmed_where_that_is_asked(call: Call, admin: ImageAdmin) -> None:
    path = "/v1/streams?confirmed="
    assert call("GET", f"{path}true").json() == {"streams": [], "confirmed": True}
    admin.broken = CannotReplicate("no majority")
    refused = call("GET", f"{path}true")
    assert (refused.status_code, error_of(refused)["code"]) == (503, "cannot_replicate")
    assert call("GET", f"{path}false").json() == {"streams": []}
    assert error_of(call("GET", f"{path}yes"))["field"] == "confirmed"


def test_a_conflict_shows_both_sides(call: Call) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    refused = call("POST", "/v1/streams", json={"name": "a", "subject": "b.>", "sync": "never"})
    assert refused.status_code == 409
    error = error_of(refused)
    assert error["code"] == "stream_conflict"
    assert error["differences"] == {"subject": ["a.>", "b.>"], "sync": ["interval", "never"]}


@pytest.mark.parametrize(
    ("body", "code", "field", "says"),
    [
        ({"name": "a", "subject": "a..b"}, "invalid_name", "subject", "empty token"),
        ({"name": "../a", "subject": "a"}, "invalid_name", "name", "at position 2 is not one of"),
        ({"name": "a", "subject": "a", "group": "x y"}, "invalid_name", "group", "blanks"),
        ({"name": "a", "subjct": "a"}, "malformed_request", "subjct", "did you mean 'subject'?"),
        ({"name": "a"}, "malformed_request", None, "missing required field 'subject'"),
        ({"name": 1, "subject": "a"}, "malformed_request", "name", "Expected 'str', got 'int'"),
        (
            {"name": "a", "subject": "a", "sync": "often"},
            "malformed_request",
            "sync",
            "expected one of always, interval, never",
        ),
        (
            {"name": "a", "subject": "a", "sync_interval_ms": 0},
            "invalid_config",
            "sync_interval_ms",
            "between 1 and",
        ),
        ([], "malformed_request", None, "must be a JSON object"),
    ],
)
def test_refused_creations(call: Call, body: Any, code: str, field: str, says: str) -> None:
    refused = call("POST", "/v1/streams", json=body)
    assert refused.status_code == 400
    error = error_of(refused)
    assert (error["code"], error.get("field")) == (code, field)
    assert says in error["message"]


def test_bodies_are_bounded_and_typed(call: Call) -> None:
    json_type = {"content-type": "application/json"}
    large = call("POST", "/v1/streams", content=b" " * 2_049, headers=json_type)
    assert (large.status_code, error_of(large)["code"]) == (413, "limit_exceeded")
    plain = call("POST", "/v1/streams", content=b"{}", headers={"content-type": "text/plain"})
    assert (plain.status_code, error_of(plain)["code"]) == (415, "unsupported_media_type")
    cut = call("POST", "/v1/streams", content=b'{"name', headers=json_type)
    assert "not valid JSON" in error_of(cut)["message"]


def test_unknown_paths_and_methods(call: Call) -> None:
    missing = call("GET", "/v1/strems")
    assert (missing.status_code, error_of(missing)["code"]) == (404, "unknown_path")
    for path, allowed in (
        ("/v1/streams", "GET, HEAD, POST"),
        ("/v1/streams/a", "DELETE, GET, HEAD, PATCH"),
        ("/v1/offsets", "GET, HEAD"),
        ("/v1/groups/a/b", "DELETE, GET, HEAD"),
        ("/v1/streams/a/pause", "POST"),
        ("/healthz", "GET, HEAD"),
    ):
        method = call("PUT", path)
        assert (method.status_code, error_of(method)["code"]) == (405, "method_not_allowed")
        assert method.headers.get_list("allow") == [allowed]
        assert error_of(method)["message"].endswith(f"is not allowed at {path}; use {allowed}")
    traversal = call("GET", "/v1/streams/..%2f..%2fetc")
    assert traversal.status_code == 404


@pytest.mark.parametrize("name", ["a\nb", "\n", "a\n", "\r\n", "a/\n/b", "\x00", "\u2028", "\x85"])
def test_groups_and_keys_are_any_text(call: Call, name: str) -> None:
    """A line break was no part of a path."""
    escaped = quote(name, safe="")
    for path in (f"/v1/groups/{escaped}", f"/v1/tables/t/keys/{escaped}"):
        method = call("PATCH", path)
        assert (method.status_code, error_of(method)["code"]) == (405, "method_not_allowed"), path


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("DELETE", "/v1/groups/a?streem=b", "'streem'; did you mean 'stream'?"),
        ("DELETE", "/v1/groups/a?stream=b&stream=c", "'stream' is given twice"),
        ("DELETE", "/v1/groups/a?stream=", "'stream' is empty"),
        ("DELETE", "/v1/groups/a?xyz=1", "known are stream, partition"),
        ("DELETE", "/v1/groups/a?partition=1", "partition needs stream"),
        ("DELETE", "/v1/groups/a?stream=s&partition=x", "partition 'x' is not a number"),
        ("DELETE", f"/v1/groups/a?stream=s&partition={1 << 64}", "partition must be at most"),
        ("DELETE", "/v1/groups/a?stream=b&partition=x", "partition 'x' is not a number"),
        ("GET", "/v1/offsets?partition=1", "unknown parameter 'partition'; known are consumer"),
        ("GET", "/v1/offsets?group=a", "unknown parameter 'group'"),
        ("DELETE", "/v1/streams/a?dry_run=true", "'dry_run'; there is no parameter here"),
        ("POST", "/v1/streams/a/purge?to_offset=5", "'to_offset'; there is no parameter here"),
        ("POST", "/v1/streams?name=a", "'name'; there is no parameter here"),
        ("GET", "/v1/streams?limit=5", "'limit'"),
        ("GET", "/metrics?name=a", "'name'"),
        ("GET", "/healthz?verbose", "'verbose'"),
        ("GET", "/v1/openapi.json?x=1", "'x'"),
        ("GET", "/docs?x=1", "'x'"),
        ("GET", "/?x=1", "'x'"),
    ],
)
def test_unknown_query_parameters_are_refused(
    call: Call, admin: ImageAdmin, method: str, path: str, says: str
) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    refused = call(method, path, json={"name": "b", "subject": "b"} if method == "POST" else None)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "malformed_request")
    assert says in error_of(refused)["message"]
    assert list(admin.image.streams) == ["a"]
    assert admin.purged == []


def test_no_operation_ignores_a_query_parameter_or_a_body(call: Call) -> None:
    """Whatever the route table holds."""
    for operation in OPERATIONS.values():
        path = operation.path.replace("{name}", "a")
        refused = call(operation.method, f"{path}?nosuch=1", json={})
        assert refused.status_code == 400, operation
        assert error_of(refused)["field"] == "nosuch"
        if operation.request is None and not operation.request_media_type:
            refused = call(operation.method, path, json={"stream": "b"})
            assert refused.status_code == 400, operation
            assert error_of(refused)["message"] == f"{operation.method} {path} takes no body"


def test_every_body_ends_in_a_newline(call: Call) -> None:
    for operation in OPERATIONS.values():
        answer = call(operation.method, operation.path.replace("{name}", "a"))
        assert answer.text.endswith("\n"), operation
    for path in ("/docs", "/v1/openapi.json", "/nothing"):
        assert call("GET", path).text.endswith("\n")
    assert call("GET", "/v1/node", headers={"host": "evil.example"}).text.endswith("\n")


def test_a_foreign_host_name_is_refused(call: Call) -> None:
    refused = call("GET", "/v1/node", headers={"host": "evil.example:9080"})
    assert (refused.status_code, error_of(refused)["code"]) == (403, "forbidden_host")
    for host in ("localhost:9080", "127.0.0.1", "[::1]:9080"):
        assert call("GET", "/v1/node", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/nodes/1/resume", "/v1/nodes/1/cancel-removal"])
def test_pages_of_other_sites_cannot_post_without_a_body(call: Call, path: str) -> None:
    """Browsers send such a request for any page, without a question before it."""
    for origin in ("http://evil.example", "http://127.0.0.1:8000", "null"):
        refused = call("POST", path, headers={"origin": origin})
        assert (refused.status_code, error_of(refused)["code"]) == (403, "forbidden_host")
    for headers in ({}, {"origin": SERVER}):
        assert call("POST", path, headers=headers).status_code != 403


def test_node_and_health(call: Call, admin: ImageAdmin) -> None:
    assert call("GET", "/v1/node").json()["client"] == "127.0.0.1:9092"
    ready = call("GET", "/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    admin.failure = "a/0: disk failed"
    assert admin.measured == 1
    limping = call("GET", "/readyz")
    assert (limping.status_code, limping.json()["status"]) == (200, "degraded")
    assert limping.json()["parts"][1] == {
        "part": "partitions", "state": "degraded", "reason": "a/0: disk failed"
    }  # fmt: skip
    admin.ready = False
    refused = call("GET", "/readyz")
    assert (refused.status_code, refused.json()["status"]) == (503, "not_ready")
    assert call("GET", "/healthz").status_code == 200
    admin.broken = SystemError("appender has ended")
    dead = call("GET", "/healthz")
    assert dead.status_code == 503
    assert dead.json()["parts"][0]["reason"] == "appender has ended"


def test_altering_a_stream(call: Call) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    changes = {"retention_ms_max": 5, "cleanup": ["compact", "delete"], "partitions": 2}
    altered = call("PATCH", "/v1/streams/a", json=changes)
    assert altered.status_code == 200
    config = altered.json()["config"]
    assert (config["retention_ms_max"], config["partitions"]) == (5, 2)
    assert config["cleanup"] == ["delete", "compact"]
    assert config["sync"] == "interval", "what was left out stays"
    assert call("GET", "/v1/streams/a").json() == altered.json()
    assert call("PATCH", "/v1/streams/a", json={}).json() == altered.json()


@pytest.mark.parametrize(
    ("body", "status", "code", "field", "says"),
    [
        ({"subject": "b"}, 409, "cannot_alter", "subject", "create another stream"),
        ({"group": "g"}, 409, "cannot_alter", "group", "is none and cannot become 'g'"),
        ({"partition_by": "key"}, 409, "cannot_alter", "partition_by", "another stream"),
        ({"partitions": 1, "key_from": "subject"}, 409, "cannot_alter", "key_from", "two kinds"),
        ({"cleanup": []}, 400, "invalid_config", "cleanup", "choose delete, compact or both"),
        ({"cleanup": ["x"]}, 400, "malformed_request", "cleanup[0]", "one of delete, compact"),
        ({"discard": "x"}, 400, "malformed_request", "discard", "expected one of old, new"),
        ({"name": "b"}, 400, "malformed_request", "name", "unknown field 'name'"),
        ({"retention_ms_max": -1}, 400, "invalid_config", "retention_ms_max", "at least 0"),
        ({"partitions": None}, 400, "malformed_request", "partitions", "Expected 'int'"),
    ],
)
def test_refused_alterations(
    call: Call, body: Any, status: int, code: str, field: str, says: str
) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    refused = call("PATCH", "/v1/streams/a", json=body)
    error = error_of(refused)
    assert (refused.status_code, error["code"], error["field"]) == (status, code, field)
    assert says in error["message"]


def test_pausing_and_resuming(call: Call) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    for _ in range(2):
        assert call("POST", "/v1/streams/a/pause", json={}).json()["paused"] is True
    json_type = {"content-type": "application/json"}
    resumed = call("POST", "/v1/streams/a/resume", content=b"", headers=json_type)
    assert resumed.json()["paused"] is False
    from_a_form = call("POST", "/v1/streams/a/pause", data={"a": "b"})
    assert (from_a_form.status_code, call("GET", "/v1/streams/a").json()["paused"]) == (415, False)
    assert error_of(call("POST", "/v1/streams/b/pause", json={}))["code"] == "unknown_stream"


def test_purging(call: Call, admin: ImageAdmin) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    purged = call("POST", "/v1/streams/a/purge", json={"to_offset": 20})
    assert purged.json() == {
        "name": "a",
        "partitions": [
            {
                "partition": 0, "start_offset_before": 5, "start_offset": 20,
                "high_watermark": 40, "bytes_before": 2_048, "bytes": 2_048,
            }
        ],
    }  # fmt: skip
    call("PATCH", "/v1/streams/a", json={"partitions": 3})
    call("POST", "/v1/streams/a/purge", json={"before_ms": 1_000})
    call("POST", "/v1/streams/a/purge", json={"to_offset": 40, "partition": 2})
    assert admin.purged == [None, None, 2]


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ({"to_offset": 1, "before_ms": 1}, 400, "malformed_request", "at most one"),
        ({"to_offset": -1}, 400, "malformed_request", "to_offset must be at least 0, got -1"),
        ({"to_offset": 1}, 400, "malformed_request", "has 2 partitions, each with its own offsets"),
        ({"to_offset": 41, "partition": 0}, 400, "offset_out_of_range", "outside [5, 40)"),
        ({"partition": 2}, 404, "unknown_partition", "has 2 partitions, asked for number 2"),
        ({"to_ofset": 1}, 400, "malformed_request", "did you mean 'to_offset'?"),
    ],
)
def test_refused_purges(call: Call, body: Any, status: int, code: str, says: str) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>", "partitions": 2})
    refused = call("POST", "/v1/streams/a/purge", json=body)
    assert (refused.status_code, error_of(refused)["code"]) == (status, code)
    assert says in error_of(refused)["message"]


def test_internal_errors_have_the_error_body(call: Call, admin: ImageAdmin) -> None:
    admin.broken = PartitionFailed("a", 0, "disk full")
    assert error_of(call("DELETE", "/v1/streams/a"))["code"] == "partition_failed"
    admin.broken = OSError("secret path")
    response = call("DELETE", "/v1/streams/a")
    assert response.status_code == 500
    assert error_of(response)["message"].startswith("internal error: OSError")


def test_metrics(call: Call, admin: ImageAdmin) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    admin.failure = "disk full"
    admin.syncs.observe(500_000)
    admin.syncs.observe(3_000_000_000)
    response = call("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        "bascule_ingest_messages_total 7",
        "bascule_ingest_stalled_seconds_total 0.25",
        'bascule_stream_records_total{stream="a",partition="0"} 5',
        'bascule_stream_refused_messages_total{stream="a",partition="0",reason="closed"} 3',
        'bascule_stream_sync_seconds_bucket{stream="a",partition="0",le="0.00104858"} 1',
        'bascule_stream_sync_seconds_bucket{stream="a",partition="0",le="+Inf"} 2',
        'bascule_stream_sync_seconds_sum{stream="a",partition="0"} 3.0005',
        'bascule_stream_paused{stream="a"} 0',
        "bascule_client_connections 2",
        'bascule_client_requests_total{api="Fetch"} 5',
        'bascule_partition_high_watermark{stream="a",partition="0"} 40',
        'bascule_partition_failed{stream="a",partition="0"} 1',
        "bascule_uptime_seconds 1.5",
        'bascule_group_lag{group="billing",stream="a",partition="0"} 12',
    ):
        assert line in lines
    assert "note" not in response.text
    assert 'stream="a",partition="1",le="+Inf"' not in response.text, (
        "an empty histogram is left out"
    )


def test_the_openapi_document_is_complete(call: Call) -> None:
    document = call("GET", "/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert references <= schemas.keys()
    assert "post" in document["paths"]["/v1/streams"]
    identifiers = [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
    ]
    assert len(identifiers) == len(set(identifiers))
    conflict = document["paths"]["/v1/streams"]["post"]["responses"]["409"]
    assert "stream_conflict" in conflict["description"]
    for name in ("CreateStreamRequest", "AlterStreamRequest", "StreamConfiguration"):
        undescribed = [
            field
            for field, described in schemas[name]["properties"].items()
            if "description" not in described and field not in ("subject", "group")
        ]
        assert not undescribed, f"{name}: {undescribed}"
    assert schemas["AlterStreamRequest"]["properties"]["partitions"]["maximum"] == 1_024


def test_every_error_code_is_documented_with_its_status() -> None:
    known = {(status, code) for _, status, code in ERROR_STATUSES} | {
        (s, c) for s, c in HTTP_STATUS_CODES.items()
    }
    known |= {*PUBLISH_STATUSES.values(), REFUSED}
    text = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()
    table = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", text, re.MULTILINE)
    assert {(int(status), code) for code, status in table} == known
    offered = {error for operation in OPERATIONS.values() for error in operation.errors}
    assert offered <= known
    anywhere = {"closing", "unavailable", "internal", *HTTP_STATUS_CODES.values()}
    unsaid = {code for _, _, code in ERROR_STATUSES} - {code for _, code in offered} - anywhere
    assert not unsaid, f"no operation in http/routes.py says that it answers {unsaid}"


def test_responses_match_their_schemas(call: Call) -> None:
    """Responses have exactly the properties of their schema, and all required ones."""
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    document = call("GET", "/v1/openapi.json").json()
    schemas = document["components"]["schemas"]
    for method, path, name in (
        ("GET", "/v1/node", "NodeBody"),
        ("GET", "/v1/streams/a", "StreamBody"),
        ("GET", "/readyz", "Health"),
        ("POST", "/v1/streams/a/purge", "Purged"),
    ):
        body = call(method, path, json={} if method == "POST" else None).json()
        assert body.keys() == schemas[name]["properties"].keys()
        assert set(schemas[name]["required"]) <= body.keys()


def test_the_docs_page_is_self_contained(call: Call) -> None:
    page = call("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "curl http://127.0.0.1:9080/v1/streams" in page.text
    assert not re.search(r"(src|href)=.(https?:)?//", page.text)
    assert call("GET", "/").headers["location"] == "/docs"
