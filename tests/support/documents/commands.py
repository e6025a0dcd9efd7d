"""Runs the `bascule` commands of pages from a process that has imported them already.

A command takes 1.1 s of a core, of which 1 s are imports, and the pages run some hundreds. In the
shell of a page a small program stands for `bascule`: it hands its arguments, environment, folder
and files to the runner, which has the fork server start the command (`support.fork_server`), passes
signals on, and ends as the command ends. Nodes, and whatever has a terminal, start Python as usual.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from support.fork_server import MESSAGE_BYTES_MAX, ForkServer, is_usable
from support.processes import BIN

OF_THE_SHELL = {"_", "OLDPWD", "PWD", "SHLVL"}
"""Variables that a shell changes, and nothing reads while it is imported."""

STAND_IN = """\
#!{python} -IS
import _socket, os, sys
command = [{bascule!r}, *sys.argv[1:]]
if sys.argv[1:2] in (["serve"], ["dev"]) or os.isatty(0) or os.isatty(1):
    os.execv(command[0], command)
import array, json, signal
runner = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
runner.connect({address!r})
request = {{"argv": command, "env": dict(os.environ), "cwd": os.getcwd()}}
files = array.array("i", [0, 1, 2])
runner.sendmsg([json.dumps(request).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
pid = int(runner.recv(16))
if not pid:
    os.execv(command[0], command)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(runner.recv(16))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Commands:
    """The side of the runner, which must be a subreaper."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Write the small program to `folder`. Commands with another environment start as usual."""
        address = str(folder / "socket")
        self._server = ForkServer(environment)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen()
        program = folder / "bascule"
        program.write_text(
            STAND_IN.format(python=sys.executable, bascule=str(BIN / "bascule"), address=address)
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            asking, _ = self._listener.accept()
            threading.Thread(target=self._run, args=[asking], daemon=True).start()

    def _run(self, asking: socket.socket) -> None:
        with asking, contextlib.suppress(ConnectionError):
            message, files, _, _ = socket.recv_fds(asking, MESSAGE_BYTES_MAX, 3)
            if not message:
                return
            try:
                request = json.loads(message)
                environment = request["env"]
                if not self._server.can_start(_without_shell(environment)):
                    asking.send(b"0")
                    return
                process = self._server.start(
                    request["argv"], environment, files, Path(request["cwd"])
                )
            finally:
                for each in files:
                    os.close(each)
            try:
                _follow(process, asking)
            finally:  # who asked may be killed at any time, also before it knows of the process
                process.kill()
                process.wait()


def _follow(process: subprocess.Popen[bytes], asking: socket.socket) -> None:
    """Tell who asked of the process and of its end. Return early when who asked is gone."""
    ended = os.pidfd_open(process.pid)
    try:
        asking.send(str(process.pid).encode())
        ready, _, _ = select.select([ended, asking], [], [])
    finally:
        os.close(ended)
    if ended in ready:
        asking.send(str(process.wait()).encode())


def commands_in(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a shell whose `bascule` commands are forked, where that can be done."""
    if not is_usable():
        return dict(environment)
    folder.mkdir()
    found = {**environment, "PATH": f"{folder}:{environment['PATH']}"}
    Commands(folder, _without_shell(found))
    return found


def _without_shell(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: each for name, each in environment.items() if name not in OF_THE_SHELL}
