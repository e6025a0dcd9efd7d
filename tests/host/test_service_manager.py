"""What systemd hears of a node that serves."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from bascule.host.service_manager import SOCKET_VARIABLE, notify_ready


@pytest.mark.parametrize("is_abstract", [False, True])
def test_ready_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool) -> None:
    name = f"@bascule-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0"))
        monkeypatch.setenv(SOCKET_VARIABLE, name)
        notify_ready()
        assert listener.recv(100) == b"READY=1"


def test_nobody_asks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(SOCKET_VARIABLE, raising=False)
    with caplog.at_level(logging.DEBUG):
        notify_ready()
    assert not caplog.records


def test_a_socket_that_is_gone_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(SOCKET_VARIABLE, str(tmp_path / "missing"))
    notify_ready()
    (record,) = caplog.records
    assert record.getMessage() == "service manager not told that the node serves"
