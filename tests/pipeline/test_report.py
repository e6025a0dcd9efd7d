"""The HTML page of a run: whole, escaped, and with nothing to fetch."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bascule.pipeline.declare.run_facts import without_secrets
from bascule.pipeline.jobs.archive.run import sum_of
from bascule.pipeline.jobs.model import JobResult, RunFacts, Series, Sum, Table
from bascule.pipeline.report import page, write_report
from bascule.pipeline.report.chart import chart, ticks
from bascule.pipeline.report.formatting import figure, seconds_text, short, title_of

VOID = {"meta", "line", "circle", "polyline", "polygon"}
RESULT = JobResult(
    kind="archive",
    name="flights",
    ok=True,
    summary={"rows": 1_234_567, "seconds": 83.2, "bytes": 1 << 20, "late_rows": 3},
    tables=(Table("Spans", ("partition", "end"), ((0, 1_000), (1, 2_000))),),
    series=(Series("Throughput", "seconds", "rows/s", ((0.0, 10.0), (1.0, 20.0))),),
)


class Balance(HTMLParser):
    """Every element that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole() -> None:
    text = page(RESULT)
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    for word in ("1,234,567", "83.2 s", "1.0 MiB", "Spans", "2,000", "Throughput", "done", "<svg"):
        assert word in text


FACTS = RunFacts(
    started="2026-11-22 08:00:00 UTC",
    file="/etc/flights.toml",
    server="http://node:9080",
    node="bascule 0.1.0 (compiled), node 1 of cluster ab",
    master="local[*]",
    versions={"spark": "4.3.0", "pyarrow": "21.0.0"},
    declaration='[pipeline]\nname = "flights"  # <b>\n',
    settings=("table.format=delta",),
)


def test_nothing_is_fetched() -> None:
    text = page(replace(RESULT, run=FACTS))
    assert not re.search(r"(?:src|href)=|@import|url\(|<script|<link", text)
    assert not re.search(r"https?:", page(RESULT))


def test_the_page_says_when_where_and_by_what_the_job_ran() -> None:
    text = page(replace(RESULT, run=FACTS))
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    for word in (
        "archive · 2026-11-22 08:00:00 UTC", "/etc/flights.toml", "http://node:9080",
        "node 1 of cluster ab", "spark 4.3.0, pyarrow 21.0.0", "table.format=delta",
        '<pre>[pipeline]\nname = &quot;flights&quot;  # &lt;b&gt;\n</pre>',
    ):  # fmt: skip
        assert word in text
    without = page(RESULT)
    assert "<h2>Run</h2>" not in without
    assert "<pre>" not in without


def test_what_adds_up_is_shown_as_a_sum() -> None:
    added = Sum((("rows", 9_993), ("malformed", 7)), ("offsets", 10_000))
    assert str(added) == "9,993 rows + 7 malformed = 10,000 offsets"
    text = re.sub(r"<[^>]+>", " ", page(replace(RESULT, sum=added)))
    assert "9,993 rows + 7 malformed = 10,000 offsets" in " ".join(text.split())
    assert sum_of(10, rows=8, malformed=2).parts == (("rows", 8), ("malformed", 2))
    assert str(sum_of(12, rows=8, malformed=2)).endswith("+ 2 compacted away = 12 offsets")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('credential = "hunter2"', 'credential = "***"'),
        ("token = 'hunter2' # x", 'token = "***" # x'),
        ('catalog = { uri = "u", "s3.access-key-id" = "hunter2" }',
         'catalog = { uri = "u", "s3.access-key-id" = "***" }'),
        ('password = """hunter2\nhunter2"""', 'password = "***"'),
        ("sink.nkeySeed=hunter2", 'sink.nkeySeed="***"'),
        ('credential = "${CREDENTIAL}"', 'credential = "${CREDENTIAL}"'),
        ('uri = "https://me:hunter2@host/x"', 'uri = "https://***@host/x"'),
        ('name = "flights"\npartition_by = ["day(timestamp)"]',
         'name = "flights"\npartition_by = ["day(timestamp)"]'),
    ],
)  # fmt: skip
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_names_and_cells_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    result = JobResult(
        evil, evil, False, {evil: evil},
        (Table(evil, (evil,), ((evil,),)),), (Series(evil, evil, evil, ((0.0, 1.0),)),),
    )  # fmt: skip
    text = page(result)
    assert "<script" not in text
    assert "faults found" in text


def test_it_is_written_into_folders_that_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.html"
    write_report(RESULT, path)
    assert path.read_text() == page(RESULT)


@pytest.mark.parametrize(
    "points",
    [
        ((5.0, 0.0),),
        ((0.0, 0.0), (0.0, 0.0)),
        ((1e9, 1e12), (2e9, 1.0)),
        ((0.0, float("nan")), (1.0, 3.0), (2.0, float("inf"))),
        tuple((float(n), float(n % 7)) for n in range(2_000)),
    ],
)
def test_any_series_is_drawn_within_its_frame(points: tuple[tuple[float, float], ...]) -> None:
    text = chart(Series("t", "seconds", "rows", points))
    for x, y in re.findall(r"([\d.]+),([\d.]+)", text.partition('class="line"')[2]):
        assert 0 <= float(x) <= 640
        assert 0 <= float(y) <= 240
    assert "nan" not in text


def test_no_points_are_no_picture() -> None:
    assert chart(Series("t", "s", "r", ())) == ""


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 10.0, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
        (0.0, 0.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (3.0, 83.0, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_figures_are_read_by_their_unit() -> None:
    assert figure("rows", 1_000_000) == "1,000,000"
    assert figure("file_bytes", 1_536) == "1.5 KiB"
    assert figure("batch_ms", 1_500) == "1.5 s"
    assert figure("spans", {"0": [1, 2]}) == "0 1, 2"
    assert figure("done", True) == "yes"
    assert figure("x", None) == "–"
    assert (title_of("rows_per_s"), title_of("late_rows")) == ("Rows/s", "Late rows")
    assert [seconds_text(s) for s in (0.05, 90, 125, 7_260)] == [
        "50 ms", "90.0 s", "2 min 5 s", "2 h 1 min",
    ]  # fmt: skip
    assert [short(v) for v in (0, 0.5, 950, 12_000, 1.5e6)] == ["0", "0.5", "950", "12k", "1.5M"]
