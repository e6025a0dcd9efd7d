"""The HTTP API over the real controller and image, without a socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from bascule.broker.door.limits import DoorStatistics
from bascule.broker.http import create_app
from bascule.broker.http.metrics import PARTITION_GAUGES, STATISTICS
from bascule.broker.ingest_buffer import BufferCounts
from bascule.broker.partition import PartitionCounts
from bascule.config import StreamDefaults
from bascule.errors import PartitionFailed
from bascule.ingest.nats_source import SourceCounts
from bascule.ingest.sequencer import SequencerCounts
from bascule.metadata.apply import apply
from bascule.metadata.controller import Existing, create_stream, delete_stream
from bascule.metadata.image import Image
from bascule.model import NodeInfo, PartitionInfo, StreamConfig, StreamDefinition, StreamInfo

SERVER = "http://127.0.0.1:9080"


class ImageAdmin:
    """The admin side of a node without its logs: what is decided, and empty partitions."""

    def __init__(self) -> None:
        self.image = Image()
        self.ready = True
        self.failure: str | None = None
        self.broken: Exception | None = None

    async def create_stream(self, name: str, config: StreamConfig) -> tuple[StreamDefinition, bool]:
        id = bytes([len(self.image.streams)]) * 16
        decided = create_stream(self.image, name, config, id=id, now_ms=1_700_000_000_000)
        if not isinstance(decided, Existing):
            self.image = apply(self.image, decided)
        return decided.definition, not isinstance(decided, Existing)

    async def delete_stream(self, name: str) -> None:
        if self.broken is not None:
            raise self.broken
        self.image = apply(self.image, delete_stream(self.image, name))

    def stream_infos(self) -> list[StreamInfo]:
        return [self.stream_info(name) for name in self.image.streams]

    def stream_info(self, name: str) -> StreamInfo:
        id = delete_stream(self.image, name).id
        assert len(id) == 16
        partition = PartitionInfo(0, 5, 40, 41, 42, 1, 2_048, self.failure)
        return StreamInfo(self.image.streams[name], (partition,))

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
            "stream": {"records": {"by_stream": {"a": 5}}},
            "client_door": {"connections": 2, "requests": Counter(FetchRequest=5)},
        }


@pytest.fixture
def admin() -> ImageAdmin:
    return ImageAdmin()


Call = Callable[..., httpx.Response]


@pytest.fixture
def call(admin: ImageAdmin) -> Call:
    app = create_app(admin, defaults=StreamDefaults(sync="interval"), body_bytes_max=2_048)

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
    assert call("DELETE", "/v1/streams/flights").status_code == 204
    assert call("GET", "/v1/streams").json() == {"streams": []}
    assert error_of(call("GET", "/v1/streams/flights"))["code"] == "unknown_stream"


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
            None,
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
    method = call("PUT", "/v1/streams")
    assert (method.status_code, error_of(method)["code"]) == (405, "method_not_allowed")
    traversal = call("GET", "/v1/streams/..%2f..%2fetc")
    assert traversal.status_code == 404


def test_a_stranger_s_host_name_is_refused(call: Call) -> None:
    refused = call("GET", "/v1/node", headers={"host": "evil.example:9080"})
    assert (refused.status_code, error_of(refused)["code"]) == (403, "forbidden_host")
    for host in ("localhost:9080", "127.0.0.1", "[::1]:9080"):
        assert call("GET", "/v1/node", headers={"host": host}).status_code == 200


def test_node_and_health(call: Call, admin: ImageAdmin) -> None:
    assert call("GET", "/v1/node").json()["client"] == "127.0.0.1:9092"
    assert call("GET", "/healthz").json() == {"status": "ok"}
    assert call("GET", "/readyz").status_code == 200
    admin.ready = False
    assert call("GET", "/readyz").status_code == 503
    assert call("GET", "/healthz").status_code == 200


def test_failures_of_the_node_have_the_same_shape(call: Call, admin: ImageAdmin) -> None:
    admin.broken = PartitionFailed("a", 0, "disk full")
    assert error_of(call("DELETE", "/v1/streams/a"))["code"] == "partition_failed"
    admin.broken = OSError("secret path")
    response = call("DELETE", "/v1/streams/a")
    assert response.status_code == 500
    assert error_of(response)["message"].startswith("the node failed on this request: OSError")


def test_metrics(call: Call, admin: ImageAdmin) -> None:
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    admin.failure = "disk full"
    response = call("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        "bascule_ingest_messages_total 7.0",
        "bascule_ingest_stalled_seconds_total 0.25",
        'bascule_stream_records_total{stream="a"} 5.0',
        "bascule_client_connections 2.0",
        'bascule_client_requests_total{api="Fetch"} 5.0',
        'bascule_partition_high_watermark{partition="0",stream="a"} 40.0',
        'bascule_partition_failed{partition="0",stream="a"} 1.0',
        "bascule_uptime_seconds 1.5",
    ):
        assert line in lines
    assert "note" not in response.text


def test_every_statistic_is_a_documented_metric() -> None:
    counted = {
        "nats": SourceCounts,
        "ingest": SequencerCounts,
        "buffer": BufferCounts,
        "stream": PartitionCounts,
        "client_door": DoorStatistics,
    }
    paths = {f"{group}.{item.name}" for group, cls in counted.items() for item in fields(cls)}
    assert paths <= STATISTICS.keys()
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = [f"partition_{name}" for name in PARTITION_GAUGES]
    names += [d.name + "_total" * d.counter for d in STATISTICS.values()]
    missing = [name for name in names if f"`bascule_{name}`" not in text]
    assert not missing, f"docs/metrics.md lacks {missing}"


def test_the_openapi_document_is_whole(call: Call) -> None:
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


def test_what_is_described_is_what_is_served(call: Call) -> None:
    """Every property of an answer is in its schema, and every required one in the answer."""
    call("POST", "/v1/streams", json={"name": "a", "subject": "a.>"})
    document = call("GET", "/v1/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path, name in (("/v1/node", "Node"), ("/v1/streams/a", "Stream")):
        body = call("GET", path).json()
        assert body.keys() == schemas[name]["properties"].keys()
        assert set(schemas[name]["required"]) <= body.keys()


def test_the_page_needs_nothing_from_elsewhere(call: Call) -> None:
    page = call("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "curl http://127.0.0.1:9080/v1/streams" in page.text
    assert not re.search(r"(src|href)=.(https?:)?//", page.text)
    assert call("GET", "/").headers["location"] == "/docs"
