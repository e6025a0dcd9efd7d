"""Whether a stream's dedupe window covers the repetition of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bascule.errors import (
    BasculeError,
    Broken,
    Indeterminate,
    NoResponders,
    PublishRejected,
    RowRefused,
)
from bascule.model import PartitionBy, StreamConfig
from bascule.pipeline.sink.dedupe_coverage import RESTART_MS, DedupeCoverage, coverage_problems
from bascule.pipeline.sink.error_hints import explain

WINDOW = DedupeCoverage("s", 120_000, 1_000, partitions=2)


def test_a_window_is_the_streams() -> None:
    config = StreamConfig("a", dedupe_window_ms=5, dedupe_messages_max=6, partitions=7)
    assert DedupeCoverage.of("s", config) == DedupeCoverage("s", 5, 6, 7, is_scattered=True)
    for other in (replace(config, partition_by=PartitionBy.KEY), replace(config, partitions=1)):
        assert not DedupeCoverage.of("s", other).is_scattered


def test_a_repetition_may_land_in_another_partition() -> None:
    window = replace(WINDOW, is_scattered=True)
    (said,) = coverage_problems({"s": window}, [("s", 0, 1)], duration_ms=0)
    assert "has 2 partitions with partition_by = group" in said


@pytest.mark.parametrize("window", [DedupeCoverage("s", 0, 10), DedupeCoverage("s", 10, 0)])
def test_a_window_may_be_off(window: DedupeCoverage) -> None:
    assert window.why_no_dedupe()
    (said,) = coverage_problems({"s": window}, [("s", 0, 1)], duration_ms=0)
    assert "has no dedupe window" in said


def test_a_batch_that_fits_is_covered() -> None:
    spans = [("s", 0, 600), ("s", 0, 400), ("s", 1, 1_000)]
    assert coverage_problems({"s": WINDOW}, spans, duration_ms=120_000 - RESTART_MS) == []


def test_time_to_come_back_counts() -> None:
    (said,) = coverage_problems({"s": WINDOW}, [("s", 0, 1)], duration_ms=120_001 - RESTART_MS)
    assert "for 120 s, and a batch of 90.0 s needs 120 s" in said
    assert "--dedupe-window 4m" in said


def test_the_fullest_partition_counts() -> None:
    spans = [("s", 0, 900), ("s", 1, 600), ("s", 0, 101), ("other", 0, 5_000)]
    (said,) = coverage_problems({"s": WINDOW}, spans, duration_ms=0)
    assert "remembers 1000 message ids in partition 0, and a batch wrote 1001" in said
    assert "--dedupe-messages 4004" in said


def test_without_partitions_only_what_is_certain_is_said() -> None:
    assert WINDOW.why_too_few(2_000) is None
    assert "remembers 2000 message ids, and a batch wrote 2001" in str(WINDOW.why_too_few(2_001))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RowRefused(3, "a", "its subject is null"), "its subject is null; correct such rows"),
        (PublishRejected(400, 10054, "too large"), "raise the stream's message_bytes_max"),
        (PublishRejected(400, 99999, "whatever"), "see docs/publishing.md"),
        (NoResponders("a"), "waits for a stream whose node is unavailable"),
        (Indeterminate("no ack within 5 s"), "raise option ackTimeout"),
        (Broken("x"), "check that the NATS server runs"),
        (BasculeError("x"), "rows after this one"),
    ],
)
def test_errors_say_what_to_do(error: BasculeError, said: str) -> None:
    assert said in explain(error)
