"""`bascule top` without a node: samples, rates and the table."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from bascule.cli import exit_codes
from bascule.cli.main import main
from bascule.cli.top.command import as_json
from bascule.cli.top.display import SORTS, render_view
from bascule.cli.top.samples import (
    NODE,
    STREAM_SUMS,
    WANTED,
    GroupLagRow,
    NodeSample,
    RateView,
    StreamRow,
    StreamSample,
    sample_of,
    view_of,
)
from bascule.errors import RemoteProtocolError
from bascule.http.metrics.exposition import render
from bascule.model import NodeInfo, PartitionInfo, StreamConfig, StreamDefinition, StreamInfo
from bascule.replica.metrics import SECONDS, Histogram

NODE_INFO = NodeInfo(
    node_id=1, cluster_id="c", version="0.1.0", twin="compiled", pid=7, data="/data",
    nats="nats://127.0.0.1:4222", nats_embedded=True, client="127.0.0.1:9092",
    http="http://127.0.0.1:9080", uptime_ms=7_300_000,
)  # fmt: skip


def text_of(records: int, *, lag_s: float = 0.0, failure: str | None = None) -> str:
    """What a node of two streams, one of them with two partitions, tells."""
    partitions = (
        PartitionInfo(0, 5, 40, 41, 1_000, 1, 2_048, failure),
        PartitionInfo(1, 5, 40, 41, 234, 1, 2_048),
    )
    streams = [
        StreamInfo(
            StreamDefinition(name, b"i" * 16, 0, StreamConfig(subject=name), paused=name == "b"),
            partitions if name == "a" else partitions[1:],
        )
        for name in ("a", "b")
    ]
    statistics = {
        "nats": {"connected": True},
        "buffer": {"waiting_bytes": 64, "limit_bytes": 256, "stalled_ns": records * 1_000_000},
        "client_listener": {"connections": 3},
        "disk": {"free_bytes": 1 << 30, "total_bytes": 4 << 30, "sync_ns": Histogram(SECONDS)},
        "stream": {
            "records": {("a", 0): records, ("a", 1): records, ("b", 0): 7},
            "bytes": {("a", 0): 100 * records},
            "fetched_bytes": {("a", 0): 50 * records},
            "refused": {("b", 0): {"closed": records}},
            "sync_lag_ns": {("a", 0): 0, ("a", 1): lag_s * 1e9},
        },
        "group": {
            "size": {("billing", "Stable"): 2, ("new", "PreparingRebalance"): 1},
            "lag": {
                ("billing", "a", 0): records,
                ("billing", "a", 1): 50,
                ("archive", "b", 0): max(5_000 - records, 0),
            },
            "left_out": 0,
        },
    }
    return render(NODE_INFO, statistics, streams).decode()


def test_a_sample_adds_up_partitions() -> None:
    sample = sample_of(text_of(500, lag_s=1.5), at_s=1.0)
    stream = sample.streams["a"]
    assert (stream.records, stream.end_offset, stream.bytes) == (1_000, 1_234, 4_096)
    assert (stream.partitions, stream.sync_lag_s) == (2, 1.5)
    node = sample.node
    assert (node.version, node.ready, node.connections, node.uptime_s) == ("0.1.0", 1, 3, 7_300)
    assert (node.disk_free_bytes, node.disk_size_bytes) == (1 << 30, 4 << 30)


def test_rates_are_those_between_two_samples() -> None:
    view = view_of(sample_of(text_of(100), at_s=10.0), sample_of(text_of(300), at_s=12.0))
    a, b = view.rows
    assert (a.records_per_s, a.bytes_in_per_s, a.bytes_out_per_s) == (200, 10_000, 5_000)
    assert (b.records_per_s, b.refused_per_s, b.state) == (0, 100, "paused")
    assert view.stalled_percent == pytest.approx(10.0)


def test_a_restart_counts_from_zero() -> None:
    view = view_of(sample_of(text_of(900), at_s=10.0), sample_of(text_of(50), at_s=12.0))
    assert view.rows[0].records_per_s == 50


def test_a_stopped_partition_stops_its_stream() -> None:
    sample = sample_of(text_of(1, failure="disk"), at_s=1.0)
    assert [row.state for row in view_of(sample, sample).rows] == ["stopped", "paused"]
    sample.streams["b"].unsubscribed = 1
    assert view_of(sample, sample).rows[1].state == "no NATS"


CLUSTER = {
    "controller": 2,
    "node_alive": {1: 1, 2: 1, 3: 0},
    "leaderless": 4,
    "under_min_isr": 5,
    "under_replicated": 6,
}


def test_a_node_of_a_cluster_shows_what_is_wrong_there() -> None:
    def text(number: int, **statistics: object) -> str:
        return text_of(number) + render(NODE_INFO, statistics, []).decode()

    alone = view_of(sample_of(text_of(1), at_s=1.0), sample_of(text_of(2), at_s=2.0))
    sample = sample_of(text(1, cluster=CLUSTER), at_s=1.0)
    view = view_of(sample, sample)
    shown = drawn(view, list(view.rows), width=80, height=20).splitlines()
    expected = "node 1  nodes 2 of 3  controller 2  no leader 4  below min_isr 5  few copies 6"
    assert shown[2] == expected
    others = drawn(alone, list(alone.rows), width=80, height=20).splitlines()
    assert len(others) == len(shown) - 1
    stream = sample.streams["a"]
    stream.under_replicated = 1
    assert view_of(sample, sample).rows[0].state == "lagging"
    many = [replace(view.rows[0], name=f"stream {number}") for number in range(40)]
    assert len(drawn(view, many, width=80, height=20).splitlines()) <= 20


def test_groups_have_a_lag_and_how_it_changes() -> None:
    view = view_of(sample_of(text_of(100), at_s=10.0), sample_of(text_of(300), at_s=12.0))
    assert view.groups == (
        GroupLagRow("archive", "Empty", 0, 1, 4_700, -100.0),
        GroupLagRow("billing", "Stable", 2, 2, 350, 100.0),
        GroupLagRow("new", "PreparingRebalance", 1, 0, 0, 0.0),
    )
    lines = drawn(view, list(view.rows), width=80, height=None).splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("group"))
    assert lines[at].split() == ["group", "members", "partitions", "lag", "lag/s", "state"]
    assert lines[at + 1].split() == ["archive", "0", "1", "4,700", "-100", "Empty"]
    assert lines[at + 2].split() == ["billing", "2", "2", "350", "+100", "Stable"]
    assert as_json(view, [])["groups"][0]["lag"] == 4_700


def test_groups_and_streams_share_the_height() -> None:
    view = view_of(sample_of(text_of(100), at_s=10.0), sample_of(text_of(300), at_s=12.0))
    row, group = view.rows[0], view.groups[0]
    for streams, groups in ((2, 1), (2, 40), (40, 2), (40, 40), (0, 40)):
        many = replace(view, groups=tuple(replace(group, name=f"g{n}") for n in range(groups)))
        rows = [replace(row, name=f"s{n}") for n in range(streams)]
        for height in (14, 24, 60):
            lines = drawn(many, rows, width=80, height=height).splitlines()
            assert len(lines) <= height, (streams, groups, height)
            shown = sum(line.startswith(("g0 ", "s0 ")) for line in lines)
            assert shown == (2 if streams else 1), (streams, groups, height)
            if height == 60 and streams + groups < 50:
                assert not any("more" in line for line in lines)


def test_what_is_no_node_is_said() -> None:
    for text in ("", "hello", "bascule_ready {", 'bascule_ready{a="1} 2'):
        with pytest.raises(RemoteProtocolError):
            sample_of(text, at_s=0.0)


def test_every_number_is_a_documented_metric() -> None:
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for name in WANTED:
        assert f"`{name}`" in document or name.startswith("process_"), name
    assert set(STREAM_SUMS.values()) < {item.name for item in fields(StreamSample)}
    assert set(NODE.values()) < {item.name for item in fields(NodeSample)}


def drawn(
    view: RateView, rows: list[StreamRow], *, width: int, height: int | None, news: str = ""
) -> str:
    console = Console(width=width, height=height, highlight=False)
    with console.capture() as captured:
        console.print(render_view(view, rows, height=height, news=news))
    return captured.get()


def test_the_picture_fits_eighty_columns_and_the_height() -> None:
    view = view_of(sample_of(text_of(100), at_s=10.0), sample_of(text_of(9_999), at_s=11.0))
    base = view.rows[0]
    rows = [
        replace(base, name="x" * 200, end_offset=10**14, bytes=10**15, bytes_in_per_s=1e12,
                bytes_out_per_s=1e12, records_per_s=1e9, sync_lag_s=5e5),
        *(replace(base, name=f"stream {number}") for number in range(40)),
    ]  # fmt: skip
    lines = drawn(view, rows, width=80, height=20, news="no Bascule node answers at x").splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert "and 33 more streams" in lines
    assert lines[-2].startswith("new ")
    assert lines[-1].startswith("no Bascule node answers")
    assert "bascule 0.1.0 ready  up 2 h" in lines[0]
    assert "buffer 25 %" in lines[1]
    everything = drawn(view, rows, width=80, height=None)
    assert "stream 39" in everything


def test_sorting_and_json() -> None:
    view = view_of(sample_of(text_of(100), at_s=10.0), sample_of(text_of(300), at_s=12.0))
    assert [row.name for row in sorted(view.rows, key=SORTS["in"])] == ["a", "b"]
    assert [row.name for row in sorted(view.rows, key=SORTS["size"], reverse=True)] == ["b", "a"]
    body = as_json(view, list(view.rows))
    assert body["node"]["nats_connected"] is True
    assert body["node"]["connections"] == 3
    assert body["streams"][0]["records_per_s"] == 200


@pytest.mark.parametrize(
    "arguments", [["--interval", "1ms"], ["--interval", "x"], ["--sort", "colour"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert main(["top", "--once", *arguments]) == exit_codes.USAGE
