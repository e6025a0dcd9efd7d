"""What `bascule restore` says of a place that is damaged."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from bascule.backup.places import LocalPlace
from bascule.cli import exit_codes
from bascule.cli.backup import commands
from bascule.cli.main import main
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
