"""A node that is forked from the fork server is as one that Python has started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from support.children import child_pids
from support.fork_server import EXEC_VARIABLE, is_usable
from support.processes import BIN, FORK_SERVERS, WAIT_SECONDS_MAX, running_node, start

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.environ.get(EXEC_VARIABLE) == "1",
    reason="nodes are executed here",
)


def run(command: list[str], environment: dict[str, str], output: Path) -> tuple[int, str]:
    with output.open("wb") as file:
        process = start(command, {**os.environ, **environment}, file.fileno())
    return process.wait(WAIT_SECONDS_MAX), output.read_text()


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "told"),
    [
        (["--version"], {}, 0, "bascule"),
        (["serve", "--no-such-option"], {}, 2, "--no-such-option"),
        (["serve", "--data", "data"], {"BASCULE_CLIENT_PORT": "many"}, 2, "BASCULE_CLIENT_PORT"),
    ],
)
def test_it_gets_what_it_was_given_and_its_exit_code_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [str(BIN / "bascule"), *arguments]
    assert is_usable()
    forked = run(command, environment, tmp_path / "forked")
    monkeypatch.setenv(EXEC_VARIABLE, "1")
    assert not is_usable()
    assert forked == run(command, environment, tmp_path / "executed")
    assert forked[0] == code
    assert told in forked[1]


def test_it_is_a_child_of_the_tests_and_takes_signals(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        assert node.process is not None
        assert node.process.pid in child_pids()
        assert node.process.poll() is None
        first = node.process.pid
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
        node.start()
        assert node.process.pid != first
        assert node.stop(signal.SIGTERM) == 0
    assert FORK_SERVERS, "the node was not forked"


@pytest.mark.parametrize("name", ["PYTHONPATH", "BASCULE_PURE", "LANG"])
def test_what_changes_imports_is_executed(tmp_path: Path, name: str) -> None:
    with running_node(tmp_path):
        pass
    server = FORK_SERVERS[os.environ.get("COLUMNS", "")]
    assert server.can_start({**os.environ, "BASCULE_GROUPS_SESSION_MS": "1"})
    assert not server.can_start({**os.environ, name: "other"})
