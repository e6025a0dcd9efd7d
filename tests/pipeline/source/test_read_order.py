"""A read whose start is after its end, a checkpoint of other streams, and columns of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bascule.errors import ConfigError, DataLoss
from bascule.pipeline.source import planning
from bascule.pipeline.source.filters import ALL
from bascule.pipeline.source.options import Selection, SourceOptions
from bascule.pipeline.source.planning import ReadPlan, plan_batch_read
from bascule.pipeline.source.positions import Extent, Position

NOON_MS = 1_767_268_800_000


class Log:
    """A node that holds one stream: offsets [start, end), one record a second from noon on."""

    def __init__(self, start: int = 0, end: int = 100) -> None:
        self.start, self.end = start, end

    def extents(self, selection: Selection, *, retry_timeout_ms: int) -> list[Extent]:
        return [Extent("s", "ab", {0: (self.start, self.end)})]

    def find_offset(
        self, stream: str, partition: int, time_ms: int, *, retry_timeout_ms: int
    ) -> int | None:
        offset = max(self.start, -(-(time_ms - NOON_MS) // 1_000))
        return offset if offset < self.end else None


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def hold(start: int = 0, end: int = 100) -> None:
        monkeypatch.setattr(planning, "extent_client_of", lambda server: Log(start, end))

    hold()
    return hold


def spans(**options: str) -> list[tuple[int, int]]:
    parsed = SourceOptions.parse({"stream": "s", **options}).for_batch()
    return [(task.range.start, task.range.end) for task in plan_batch_read(parsed, ALL)]


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"0": 50}', "endingOffsets": '{"0": 10}'},
        {"startingOffsets": '{"s": {"0": 50}}', "endingOffsets": '{"0": 10}'},
        {"startingTimestamp": str(NOON_MS + 50_000), "endingTimestamp": str(NOON_MS + 10_000)},
        {"startingTimestamp": "2026-01-02T00:00:00Z", "endingTimestamp": "2026-01-01T00:00:00Z"},
        {
            "startingOffsetsByTimestamp": json.dumps({"0": NOON_MS + 9}),
            "endingTimestamp": str(NOON_MS),
        },
        {"startingOffsets": '{"0": 50}', "endingTimestamp": str(NOON_MS + 10_000)},
        {"startingTimestamp": str(NOON_MS + 50_000), "endingOffsets": '{"0": 10}'},
        {"startingOffsets": "latest", "endingOffsets": '{"0": 10}'},
        {"startingOffsets": "latest", "endingOffsets": "earliest"},
    ],
)
def test_a_start_after_the_end_is_refused(
    node: Callable[..., None], options: dict[str, str]
) -> None:
    for loss in ("true", "false"):
        with pytest.raises(ConfigError, match="would start after its end") as refused:
            spans(**options, failOnDataLoss=loss)
        assert all(repr(name) in str(refused.value) for name in options)


def test_offsets_and_times_are_compared_before_the_node_is_asked() -> None:
    wrong = {"stream": "s", "startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 4}'}
    with pytest.raises(ConfigError, match="'startingOffsets' of partition 0 is 5"):
        SourceOptions.parse(wrong)


def test_an_empty_read_is_no_fault(node: Callable[..., None]) -> None:
    assert spans(startingOffsets='{"0": 50}', endingOffsets='{"0": 50}') == []
    assert spans(startingOffsets="latest", endingOffsets="latest") == []
    assert spans(startingOffsets='{"0": -1}', endingOffsets='{"0": 100}') == []
    assert spans(endingTimestamp=str(NOON_MS - 1)) == []
    assert spans(startingOffsets='{"0": 10}', endingOffsets='{"0": 12}') == [(10, 12)]
    assert spans(startingOffsets='{"0": 10}', endingTimestamp=str(NOON_MS + 12_000)) == [(10, 12)]


def test_an_end_before_the_earliest_record_has_lost_records(node: Callable[..., None]) -> None:
    node(start=40)
    with pytest.raises(DataLoss, match="ends at offset 10, the log starts at 40"):
        spans(endingOffsets='{"0": 10}')
    assert spans(endingOffsets='{"0": 10}', failOnDataLoss="false") == []


def held(position: dict[str, int], *, loss: bool = True, **options: str) -> object:
    parsed = SourceOptions.parse({**options, "failOnDataLoss": str(loss).lower()})
    plan = ReadPlan(parsed, {"s": Extent("s", "ab", {0: (0, 100)})}, {})
    return plan.held({name: Position("ab", {0: at}) for name, at in position.items()})


def test_a_checkpoint_of_another_stream_is_called_what_it_is() -> None:
    for loss in (True, False):
        with pytest.raises(
            ConfigError, match="position in stream 'other', and this query reads 's'"
        ):
            held({"other": 5}, loss=loss, stream="s")
    with pytest.raises(ConfigError, match="new checkpoint location"):
        held({"other": 5, "s": 7}, stream="s")
    assert held({"other": 5, "s": 7}, loss=False, stream="s") == {"s": {0: 7}}
    with pytest.raises(ConfigError, match=r"streams matching 's\.\*'"):
        held({"other": 5}, streamPattern="s.*")


def test_a_stream_that_is_gone_was_deleted() -> None:
    with pytest.raises(DataLoss, match="'s2' are lost to this query: it was deleted"):
        held({"s": 5, "s2": 5}, streamPattern="s.*")
    with pytest.raises(DataLoss, match=r"id cd, .* id ab: it was deleted and created again, or"):
        parsed = SourceOptions.parse({"stream": "s"})
        plan = ReadPlan(parsed, {"s": Extent("s", "ab", {0: (0, 100)})}, {})
        plan.held({"s": Position("cd", {0: 5})})


def test_columns_of_ones_own_are_refused_on_the_driver() -> None:
    types = pytest.importorskip("pyspark.sql.types", reason="the extra `spark` is not installed")
    from bascule.pipeline.source.data_source import BasculeDataSource

    source = BasculeDataSource({"stream": "s", "columns": "offset,value"})
    other = types.StructType([types.StructField("a", types.IntegerType())])
    for reader in (source.reader, source.streamReader):
        with pytest.raises(ConfigError, match=r"takes no \.schema.*offset bigint, value binary"):
            reader(other)
    same = types.StructType(
        [
            types.StructField("offset", types.LongType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
    assert source.reader(same)
    assert source.streamReader(same)
