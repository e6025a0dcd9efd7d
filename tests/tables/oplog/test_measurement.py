"""The measurement of the oplog runs with the tables of this release."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_the_parts_with_a_table_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import table_oplog

    caught_up = table_oplog.measure_catch_up(tmp_path, 1, 10_000, of_keys=500, keys=500)
    assert caught_up["sent"] >= 495
    applied = table_oplog.measure_apply(tmp_path, 500, 3)
    assert applied["ratio"] > 0
