"""What `bascule restore` says of a place that is damaged."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator, Iterable
from contextlib import nullcontext
from errno import ENOSPC
from pathlib import Path

import pytest

from bascule.backup.disk_source import StoredPartition
from bascule.backup.manifest import manifest_name
from bascule.backup.places import LocalPlace
from bascule.cli import exit_codes
from bascule.cli.backup import commands
from bascule.cli.main import main
from bascule.record.payload_links import PayloadLink
from support.backup_sources import Backups


def test_a_backup_to_a_place_in_use_says_who_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backups = Backups(tmp_path)
    backups.logs.add("orders")
    place = backups.repository.place
    monkeypatch.setattr(commands, "_source", lambda *_: nullcontext(backups.logs))
    with LocalPlace(place.address).held():
        refused = main(["backup", place.address])
    told = " ".join(capsys.readouterr().err.split())
    assert refused == exit_codes.CONFLICT
    assert f"is in use by process {os.getpid()}" in told
    assert "wait for the other one, or name another place" in told
    assert backups.repository.ids() == []
    assert main(["backup", place.address]) == exit_codes.OK
    assert len(backups.repository.ids()) == 1


def test_a_directory_in_which_no_node_has_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    assert main(["backup", str(tmp_path / "place"), "--data", str(data)]) == exit_codes.USAGE
    told = "".join(capsys.readouterr().err.split())
    assert f"{data}hasnoraft/raft.sqlite" in told
    assert not (tmp_path / "place").exists()


def test_a_damaged_payload_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backups = Backups(tmp_path)
    backups.logs.add("models")
    backups.logs.put("models", b"content")
    (name,) = backups.take().manifest.payloads()
    place = backups.repository.place
    place.write(name, b"damaged")
    refused = main(["restore", place.address, "--data", str(tmp_path / "refused")])
    told = capsys.readouterr().err
    assert refused == exit_codes.CORRUPT
    assert name in "".join(told.split())
    assert "--accept-loss" in told
    command = ["restore", place.address, "--data", str(tmp_path / "data"), "--accept-loss"]
    assert main([*command, "--json"]) == exit_codes.OK
    restored = json.loads(capsys.readouterr().out)
    assert (restored["payloads"], len(restored["incomplete"])) == (0, 1)
    assert name in restored["incomplete"][0]["why"]


@pytest.fixture
def backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backups:
    made = Backups(tmp_path)
    made.logs.add("orders")
    made.logs.write("orders", 50)
    monkeypatch.setattr(commands, "_source", lambda *_: nullcontext(made.logs))
    return made


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """What was written to standard error, without the ends of lines."""
    return " ".join(capsys.readouterr().err.split())


def test_a_damaged_earlier_manifest_keeps_no_good_backup_from_being_restored(
    backups: Backups, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = backups.take().manifest, backups.take().manifest
    place = backups.repository.place
    place.write(manifest_name(first.id), b"\xff")
    data = f"{place.address}-restored"
    assert main(["restore", place.address, "--data", data]) == exit_codes.OK
    assert f"whether backup {first.id} has other streams is not known" in told(capsys)
    place.write(manifest_name(second.id), b"")
    third = backups.take(full=True).manifest
    place.write(manifest_name(third.id), b"")
    place.write(manifest_name(first.id), b"\xff")
    for command in (["restore", place.address, "--data", f"{data}2"],
                    ["backup", place.address, "--verify"]):  # fmt: skip
        assert main(command) == exit_codes.CORRUPT
        hint = told(capsys)
        assert "no other backup is there" in hint
        assert f"remove its manifest {place.address}/{manifest_name(third.id)}" in hint
    fourth = backups.take(full=True).manifest
    fifth = backups.take().manifest
    place.write(manifest_name(fifth.id), b"")
    assert main(["backup", place.address, "--verify"]) == exit_codes.CORRUPT
    assert f"--at {fourth.id} takes an older backup" in told(capsys)
    assert main(["backup", place.address, "--verify", "--at", fourth.id]) == exit_codes.OK


def test_all_streams_of_earlier_backups_are_named(
    backups: Backups, capsys: pytest.CaptureFixture[str]
) -> None:
    backups.logs.add("models")
    first = backups.take().manifest
    place = backups.repository.place.address
    for _ in range(2):
        assert main(["backup", place, "--stream", "orders"]) == exit_codes.OK
    assert main(["restore", place, "--data", f"{place}-restored"]) == exit_codes.OK
    warning = told(capsys)
    assert "has no stream 'models'" in warning
    assert f"--at {first.id} restores it" in warning


def test_pruning_after_a_backup_of_one_stream_keeps_the_others(
    backups: Backups, capsys: pytest.CaptureFixture[str]
) -> None:
    backups.logs.add("models")
    first = backups.take().manifest
    place = backups.repository.place.address
    for _ in range(2):
        assert main(["backup", place, "--stream", "orders"]) == exit_codes.OK
    newest = backups.repository.ids()[-1]
    assert main(["backup", place, "--prune", "--keep", "1"]) == exit_codes.OK
    assert backups.repository.ids() == [first.id, newest]
    assert main(["backup", place, "--keep", "1"]) == exit_codes.OK
    assert len(backups.repository.ids()) == 1


def test_a_list_of_streams_that_nobody_has_confirmed_proves_no_deletion(
    backups: Backups, capsys: pytest.CaptureFixture[str]
) -> None:
    backups.logs.add("models")
    first = backups.take().manifest
    backups.logs.definitions.pop()
    backups.logs.names_all_streams = False
    place = backups.repository.place.address
    assert main(["backup", place, "--keep", "1"]) == exit_codes.OK
    assert "older backups keep what this one lacks" in told(capsys)
    backups.logs.failure = "no controller has confirmed the list of streams"
    assert main(["backup", place, "--keep", "1"]) == exit_codes.FAILED
    warning = told(capsys)
    assert backups.logs.failure in warning
    assert "older backups keep" not in warning
    found = backups.repository.ids()
    assert (len(found), found[0]) == (2, first.id)


def test_a_backup_of_a_data_directory_removes_no_other_one(
    backups: Backups, capsys: pytest.CaptureFixture[str]
) -> None:
    first = backups.take().manifest
    place = backups.repository.place.address
    command = ["backup", place, "--data", backups.logs.address, "--keep", "1"]
    assert main(command) == exit_codes.USAGE
    assert "could remove what the directory lacks" in told(capsys)
    assert backups.repository.ids() == [first.id]


def test_a_full_place_says_how_to_make_room_and_has_it_then(
    backups: Backups, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = backups.repository.place
    backups.take()
    backups.logs.put("orders", b"content")
    backups.take()
    place.write("streams/of-an-interrupted-one", b"x")
    backups.logs.put("orders", b"more")
    write_chunks = LocalPlace.write_chunks

    def full(each: LocalPlace, name: str, chunks: Iterable[bytes]) -> None:
        if "streams/of-an-interrupted-one" in place.names("streams"):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        write_chunks(each, name, chunks)

    monkeypatch.setattr(LocalPlace, "write_chunks", full)
    assert main(["backup", place.address]) == exit_codes.FAILED
    hint = told(capsys)
    assert "make room" in hint
    assert "--prune --keep N" in hint
    assert main(["backup", place.address, "--keep", "2"]) == exit_codes.OK, told(capsys)
    assert "streams/of-an-interrupted-one" not in place.names("streams")
    place.write("streams/of-an-interrupted-one", b"x")
    assert main(["backup", place.address, "--prune"]) == exit_codes.USAGE
    capsys.readouterr()
    assert main(["backup", place.address, "--prune", "--keep", "1", "--json"]) == exit_codes.OK
    removed = json.loads(capsys.readouterr().out)
    assert removed == {"backups_removed": 1, "files_removed": 1}


def test_sigterm_ends_a_backup_as_ctrl_c_does(
    backups: Backups, monkeypatch: pytest.MonkeyPatch
) -> None:
    backups.logs.put("orders", b"content")

    def endless(_: StoredPartition, __: PayloadLink) -> Generator[bytes, None, None]:
        yield b"x"
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            yield b""

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(StoredPartition, "read_payload", endless)
    place = backups.repository.place
    assert main(["backup", place.address]) == exit_codes.INTERRUPTED
    assert [name for name in place.names("") if name.endswith(".new")] == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_backup_that_was_removed_meanwhile_is_not_called_damaged(
    backups: Backups, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = backups.take().manifest
    place = backups.repository.place
    read = LocalPlace.read

    def pruned(each: LocalPlace, name: str) -> bytes:
        if name.startswith("streams"):
            place.remove(manifest_name(manifest.id))
            place.remove(name)
        return read(each, name)

    for command in (["restore", place.address, "--data", f"{place.address}-r"],
                    ["backup", place.address, "--verify"]):  # fmt: skip
        backups.repository.add(manifest, known=[manifest.id])
        monkeypatch.setattr(LocalPlace, "read", pruned)
        assert main(command) == exit_codes.USAGE
        monkeypatch.undo()
        assert "was removed meanwhile" in told(capsys)


def test_streams_may_be_missing_where_metadata_are_damaged(
    backups: Backups, capsys: pytest.CaptureFixture[str]
) -> None:
    place = backups.repository.place.address
    backups.logs.failure = "the commit mark is gone; streams may be missing"
    assert main(["backup", place, "--json"]) == exit_codes.FAILED
    assert json.loads(capsys.readouterr().out)["failure"] == backups.logs.failure
    assert main(["backup", place]) == exit_codes.FAILED
    assert main(["backup", place, "--list"]) == exit_codes.OK
    assert "not known" in capsys.readouterr().out
    data = f"{place}-restored"
    assert main(["restore", place, "--data", data]) == exit_codes.USAGE
    warning = told(capsys)
    assert backups.logs.failure in warning
    assert "--accept-loss" in warning
    assert main(["restore", place, "--data", data, "--accept-loss"]) == exit_codes.OK
