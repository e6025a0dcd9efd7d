"""Ports for servers of tests that have to know their port before they start, or keep it.

The kernel gives ports of its ephemeral range to whoever asks for port 0 and to every outgoing
connection. A port of that range that was free a moment ago may be taken when a server binds it, the
more so where tests run in parallel. So these ports are below the range, and a lock on a file keeps
each for this process until it ends, also beside other runs of the tests on this machine.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import IO

START, END = 15_000, 30_000
"""Below the ephemeral range of Linux (from 32768), macOS and the IANA (from 49152)."""

_LOCKS = Path(tempfile.gettempdir()) / f"bascule-test-ports-{os.getuid()}"
_held: dict[int, IO[bytes]] = {}


def reserve_ports(count: int) -> list[int]:
    """`count` ports that nobody listens on, and that no other process of tests is given.

    Raises: OSError if all are taken.
    """
    _LOCKS.mkdir(exist_ok=True)
    found: list[int] = []
    # Processes begin at different ports, so that they seldom try what others hold.
    first = os.getpid() * 31 % (END - START)
    for step in range(END - START):
        port = START + (first + step) % (END - START)
        if port not in _held and _is_free(port) and _lock(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports from {START} to {END}: {_why_taken(START)}")


def reserve_port_range(count: int) -> int:
    """The first of `count` consecutive ports that nobody listens on, as `reserve_ports`.

    Raises: OSError if there is no such range.
    """
    _LOCKS.mkdir(exist_ok=True)
    first = os.getpid() * 31 % (END - START)
    for step in range(0, END - START, count):
        start = START + (first + step) % (END - START - count)
        ports = range(start, start + count)
        if all(port not in _held and _is_free(port) and _lock(port) for port in ports):
            return start
    raise OSError(f"no {count} free consecutive ports from {START} to {END}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection of an earlier server in TIME_WAIT does not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _why_taken(port: int) -> str:
    """Why a port cannot be had, as the system or this module says."""
    if port in _held:
        return f"port {port} is one of {len(_held)} that this process holds"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return f"port {port}: {error}"
    return f"port {port} is locked by another run of tests"


def _lock(port: int) -> bool:
    file = (_LOCKS / str(port)).open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    _held[port] = file
    return True
