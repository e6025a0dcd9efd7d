"""`bascule inspect` on the files of a real log, sound and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bascule.cli import exit_codes
from bascule.cli.inspect import inspect
from bascule.host.real import RealClock, RealFiles
from bascule.record.batch import Record
from bascule.record.builder import build_batch
from bascule.replica.log_identity import LogIdentity, write_identity
from bascule.storage.compaction.replacement_manifest import ReplacementManifest, encode_manifest
from bascule.storage.partition_log import LogConfig, PartitionLog
from support.keyed_logs import Model, append_keyed, close_segment, compact
from support.stored_batches import append, put

app = typer.Typer()
app.command()(inspect)

BASE = f"{0:020d}"


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "0"
    config = LogConfig(index_interval_bytes=100)
    log = PartitionLog.open(RealFiles(), str(directory), config, RealClock())
    for timestamp in (1_000, 2_000, 3_000):
        append(log, 2, timestamp=timestamp)
    headers = (("subject", b"orders.new"), ("raw", b"\xff\n"))
    odd = Record(6, 4_000, b"[red]key[/red]", b"two\nlines", headers)
    put(log, bytes(build_batch([odd], base_offset=6)))
    log.close()
    return directory


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def lines(*arguments: str | Path) -> tuple[int, list[dict[str, object]]]:
    code, text = run("--json", *arguments)
    return code, [json.loads(line) for line in text.splitlines()]


def test_batches_of_a_segment(log_directory: Path) -> None:
    code, rows = lines(log_directory / f"{BASE}.log")
    assert code == exit_codes.OK
    assert [(row["offset"], row["end"], row["records"]) for row in rows] == [
        (0, 2, 2), (2, 4, 2), (4, 6, 2), (6, 7, 1),
    ]  # fmt: skip
    assert [row["time"] for row in rows] == ["append"] * 3 + ["create"]
    assert rows[1]["position"] == rows[0]["bytes"]


def test_records_of_a_segment(log_directory: Path) -> None:
    code, rows = lines(log_directory / f"{BASE}.log", "--records")
    assert code == exit_codes.OK
    assert [row["offset"] for row in rows] == list(range(7))
    assert rows[6] == {
        "offset": 6,
        "timestamp": 4_000,
        "subject": "orders.new",
        "key": "[red]key[/red]",
        "value": "two\nlines",
        "headers": [["subject", "orders.new"], ["raw", {"base64": "/wo="}]],
    }


def test_a_table_shows_text_as_it_is(log_directory: Path) -> None:
    code, text = run(log_directory / f"{BASE}.log", "--records")
    assert code == exit_codes.OK
    assert "[red]key[/red]" in text
    assert r"two\nlines" in text
    assert "subject=orders.new; raw=base64:/wo=" in text
    assert f"{BASE}.log is sound: 7 rows" in text


def test_a_limit_shows_less_and_checks_all(log_directory: Path) -> None:
    path = log_directory / f"{BASE}.log"
    code, text = run(path, "--limit", "1")
    assert code == exit_codes.OK
    assert "... and 3 more" in text
    flip(path, path.stat().st_size - 3)
    code, text = run(path, "--limit", "1")
    assert code == exit_codes.CORRUPT
    assert len(lines(path, "--limit", "1")[1]) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{BASE}.index", {"offset": 0, "position": 0}),
        (f"{BASE}.timeindex", {"timestamp": 1_000, "offset": 2}),
        ("leader-epochs", {"epoch": 0, "start": 0}),
    ],
)
def test_small_files(log_directory: Path, name: str, expected: dict[str, int]) -> None:
    code, rows = lines(log_directory / name)
    assert code == exit_codes.OK
    assert rows[0] == expected
    code, text = run(log_directory / name)
    assert code == exit_codes.OK
    assert f"{name} is sound" in text
    flip(log_directory / name, (log_directory / name).stat().st_size - 1)
    code, rows = lines(log_directory / name)
    assert code == exit_codes.CORRUPT
    assert "damage" in rows[-1]


def test_the_checkpoint(log_directory: Path) -> None:
    code, rows = lines(log_directory / "checkpoint")
    assert code == exit_codes.OK
    assert rows[0]["recovery_offset"] == 7
    assert rows[0]["clean"] is True
    code, text = run(log_directory / "checkpoint")
    assert "recovery_position" in text


def test_damage_in_the_middle_is_told_from_a_torn_tail(log_directory: Path) -> None:
    path = log_directory / f"{BASE}.log"
    whole = path.read_bytes()
    _, rows = lines(path)
    second = int(str(rows[1]["position"]))
    flip(path, second + 70)
    code, text = run(path)
    assert code == exit_codes.CORRUPT
    assert f"corrupt at byte {second + 17}" in text
    assert f"a valid batch with offset 4 follows at byte {rows[2]['position']}" in text
    path.write_bytes(whole[:-5])
    code, text = run(path)
    assert code == exit_codes.CORRUPT
    assert "no valid batch follows" in text
    assert f"from byte {rows[3]['position']} on" in text


def test_offsets_that_do_not_continue(log_directory: Path) -> None:
    path = log_directory / f"{BASE}.log"
    _, rows = lines(path)
    flip(path, int(str(rows[2]["position"])) + 7)
    code, rows = lines(path)
    assert code == exit_codes.CORRUPT
    assert len(rows) in (3, 4)


def test_an_empty_segment(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.touch()
    code, text = run(path)
    assert code == exit_codes.OK
    assert "is empty" in text


def test_a_renamed_copy(log_directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.log"
    path.write_bytes((log_directory / f"{BASE}.log").read_bytes())
    assert run(path)[0] == exit_codes.OK


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.touch()
    code, text = run(path)
    assert code == exit_codes.USAGE
    assert "notes.txt is not one of" in text


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_compacted_log(tmp_path: Path) -> None:
    directory = tmp_path / "0"
    log = PartitionLog.open(RealFiles(), str(directory), LogConfig(), RealClock())
    model = Model()
    for _ in range(3):
        append_keyed(log, model, [(b"a", b"1"), (b"a", b"2")])
    append_keyed(log, model, [(b"a", None)])
    close_segment(log)
    compact(RealFiles(), log, now_ms=5_000)
    log.close()
    code, rows = lines(directory / f"{BASE}.log")
    assert code == exit_codes.OK
    assert [(row["offset"], row["end"], row["records"]) for row in rows] == [(6, 7, 1)]
    assert lines(directory / "clean-offset") == (
        exit_codes.OK,
        [{"offset": 7, "horizon_ms": 6_000}],
    )
    manifest = directory / "swap"
    manifest.write_bytes(encode_manifest(ReplacementManifest((0, 7), ((0, 99),))))
    code, rows = lines(manifest)
    assert code == exit_codes.OK
    assert [(row["segment"], row["what"]) for row in rows] == [
        (0, "goes"), (7, "goes"), (0, "comes"),
    ]  # fmt: skip
    manifest.write_bytes(encode_manifest(ReplacementManifest((0, 7), ((0, 99),)))[:-1])
    assert lines(manifest)[0] == exit_codes.CORRUPT


def test_the_synced_mark(log_directory: Path) -> None:
    path = log_directory / "synced"
    code, rows = lines(path)
    assert code == exit_codes.OK
    (row,) = rows
    assert (row["slot"], row["offset"], row["segment_base"]) == (0, 7, 0)
    assert row["position"] == (log_directory / f"{BASE}.log").stat().st_size
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    code, rows = lines(path)
    assert code == exit_codes.CORRUPT
    assert rows == [{"damage": rows[-1]["damage"]}]


def test_the_identity_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    write_identity(RealFiles(), str(tmp_path), LogIdentity(b"\x0a" * 16, 3))
    whole = (exit_codes.OK, [{"stream_id": "0a" * 16, "partition": 3}])
    assert lines(path) == whole
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert lines(path) == whole, "the second record is whole"
    data[-1] ^= 1
    path.write_bytes(data)
    assert lines(path)[0] == exit_codes.CORRUPT
