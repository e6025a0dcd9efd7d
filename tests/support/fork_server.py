"""Starts `bascule` commands from a process that has imported them already.

A start of `bascule serve` takes 1.1 s of a core, of which 0.9 s are imports, and the tests of
tier 3 start hundreds of nodes and commands. A process beside the tests imports the modules once,
and forks for each start. What it starts is a process like any other: it has its own arguments,
environment, folder, files and signals, begins with `bascule.cli.main.main`, ends as an interpreter
ends, and its parent is the process of the tests. Only the imports are older than the process.

Nodes of `support.processes`, commands of `support.commands` and the short commands of pages start
so. Nodes of pages, `bascule dev`, the demo, torture and the jobs of Spark start Python as usual.
With `TESTS_EXEC_NODES=1` all do.

    tests ── arguments, environment, folder, files ──> server ── fork ──> middle ── fork ──> node
      └───────────────────────── pid <─────────────────────┘

The middle process ends at once. Its child then belongs to the subreaper above it: the tests.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = ("bascule.cli.logs", "bascule.node.node", "bascule.client")
"""What `bascule serve` and short commands import, beside the modules of the command line."""
MESSAGE_BYTES_MAX = 1 << 18
EXEC_VARIABLE = "TESTS_EXEC_NODES"
HARMLESS = {"PYTEST_CURRENT_TEST", "_BASCULE_COMPLETE", "COMP_WORDS", "COMP_CWORD"}
"""Variables that nothing reads while it is imported."""
_PR_GET_CHILD_SUBREAPER = 37


class ForkServer:
    """The side of the tests. The server ends with its socket."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """What it imports, it imports with this environment."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = dict(environment)
        self._lock = threading.Lock()
        with theirs, tempfile.TemporaryFile() as errors:
            # No terminal: the console looks for colours when it is imported.
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            answer = self._socket.recv(16)
            errors.seek(0)
            assert answer == b"ready", f"the fork server did not start: {errors.read().decode()}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether nothing in the environment could have changed what the server has imported."""
        ours = self._environment.items()
        changed = {name for name, _ in ours ^ environment.items()}
        changed -= HARMLESS
        return all(name.startswith("BASCULE_") and name != "BASCULE_PURE" for name in changed)

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        standard: Sequence[int],
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command, the program `bascule` first. `standard` are the descriptors of its
        standard input, output and error output."""
        folder = (folder or Path()).absolute()
        request = {"argv": list(arguments), "env": dict(environment), "cwd": str(folder)}
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], standard)
            pid = int(self._socket.recv(16))
        return _Adopted(pid, arguments)

    def close(self) -> None:
        """End the server. What it has started goes on."""
        self._socket.close()
        self._process.terminate()
        self._process.wait()


def is_usable() -> bool:
    """Whether what the server starts becomes a child of this process, and may do without exec."""
    if sys.platform != "linux" or os.environ.get(EXEC_VARIABLE) == "1":
        return False
    if any(name.startswith("COV") for name in os.environ):
        return False  # coverage begins with an interpreter
    is_subreaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(is_subreaper))
    return bool(is_subreaper.value)


class _Adopted(subprocess.Popen[bytes]):
    """A child of this process that the fork server has started."""

    def __init__(self, pid: int, arguments: Sequence[str]) -> None:
        self._adopted = pid
        super().__init__(arguments)

    def _execute_child(self, *_: object) -> None:
        self.pid = self._adopted
        self._child_created = True


def serve(requests: socket.socket) -> None:
    """Fork for each request. Returns in the child alone, ready to run the command."""
    while True:
        message, standard, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, 3)
        if not message:
            sys.exit()
        there, here = os.pipe()
        middle = os.fork()
        if middle == 0:
            pid = os.fork()
            if pid:
                os.write(here, str(pid).encode())
                os._exit(0)
            for descriptor in (there, here):
                os.close(descriptor)
            requests.close()
            become(json.loads(message), standard)
            return
        for descriptor in (here, *standard):
            os.close(descriptor)
        os.waitpid(middle, 0)  # its child has a new parent now
        requests.send(os.read(there, 16))
        os.close(there)


def become(request: Mapping[str, Any], standard: Sequence[int]) -> None:
    """Take over what a new process gets."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]


def main() -> NoReturn:
    requests = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end this process
    from bascule.cli import main as command_line

    command_line.command_line()
    for module in PRELOADED:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has one thread"
    gc.collect()
    gc.freeze()
    requests.send(b"ready")
    serve(requests)
    sys.exit(command_line.main())


if __name__ == "__main__":
    main()
