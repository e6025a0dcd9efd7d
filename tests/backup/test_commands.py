"""What `bascule restore` says of a place that is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bascule.cli import exit_codes
from bascule.cli.main import main
from support.backup_sources import Backups


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
