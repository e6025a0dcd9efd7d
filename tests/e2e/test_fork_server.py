"""A node that is forked from the fork server is as one that Python has started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.children import END_SECONDS_MAX, child_pids, kill_trees, new_children
from support.documents.commands import commands_in
from support.fork_server import EXEC_VARIABLE, is_usable
from support.processes import (
    BIN,
    FORK_SERVERS,
    WAIT_SECONDS_MAX,
    running_node,
    start,
    wait_for,
)

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


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of the shell of a page."""
    before = child_pids()
    yield commands_in(tmp_path / "commands", os.environ)
    kill_trees(new_children(before))


@pytest.mark.parametrize("variable", ["BASCULE_SERVER", "LANG"])
def test_a_command_of_a_page_is_as_one_that_is_executed(
    tmp_path: Path, shell: dict[str, str], variable: str
) -> None:
    """With a variable that may change what is imported it is executed."""
    text = (
        f"export {variable}=nowhere:1\nbascule --version; echo $?; bascule stream list <&-; echo $?"
    )

    def run_in(environment: dict[str, str]) -> str:
        done = subprocess.run(
            ["bash", "-c", text], env=environment, cwd=tmp_path, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=WAIT_SECONDS_MAX, check=False,
        )  # fmt: skip
        return done.stdout

    printed = run_in(shell)
    assert printed == run_in({**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
    assert printed.startswith("bascule ")
    assert "nowhere:1" in printed or variable == "LANG"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_of_a_page_ends_with_its_job(
    tmp_path: Path, shell: dict[str, str], number: signal.Signals
) -> None:
    with running_node(tmp_path / "node") as node:
        bound = {**shell, "BASCULE_SERVER": node.addresses["http"]}
        node.create("s", "s")
        publish = ["bascule", "publish", "s", "first"]
        subprocess.run(publish, env=bound, stdout=subprocess.DEVNULL, check=True)
        before = set(child_pids())
        job = subprocess.Popen(
            ["bascule", "read", "s", "--follow"], env=bound, stdout=subprocess.PIPE
        )
        assert job.stdout is not None
        with job.stdout:
            assert b"first" in job.stdout.readline()  # it has begun, and waits for the next one
            (command,) = set(child_pids()) - before - {job.pid}
            job.send_signal(number)
            assert job.wait(WAIT_SECONDS_MAX) == -number
        wait_for(lambda: command not in child_pids() or None, node.process, node.log)


def test_a_command_ends_whose_job_ended_before_it_knew_of_it(
    tmp_path: Path, shell: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        request = {
            "argv": [str(BIN / "bascule"), "stream", "list"],
            "env": {**shell, "BASCULE_SERVER": address},
            "cwd": str(tmp_path),
        }
        ours, theirs = socket.socketpair()
        ours.settimeout(END_SECONDS_MAX)
        with ours:
            with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
                asking.connect(str(tmp_path / "commands" / "socket"))
                files = [theirs.fileno()] * 3
                socket.send_fds(asking, [json.dumps(request).encode()], files)
            assert ours.recv(1) == b""  # nobody has its files any more
