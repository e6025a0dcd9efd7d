"""A network of the runner's own: loopback, with every port free."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import socket
import struct
import subprocess
from pathlib import Path
from tempfile import gettempdir
from typing import IO

DEFAULT_PORTS = (4222, 9092, 9080, 9093)
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PR_SET_CHILD_SUBREAPER = 36


@functools.cache
def has_namespaces() -> bool:
    try:
        return subprocess.run(["unshare", "-rn", "true"], check=False).returncode == 0
    except FileNotFoundError:
        return False


def command_prefix() -> list[str]:
    return ["unshare", "-rn"] if has_namespaces() else []


def bring_up_loopback() -> None:
    """In a new namespace loopback is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        name, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))
        if not flags & IFF_UP:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", name, flags | IFF_UP))


def take_default_ports() -> IO[bytes]:
    """Wait for other runners on this machine's own ports; hold the file while running.

    Raises: OSError if something else listens there.
    """
    lock = (Path(gettempdir()) / "bascule-documents.lock").open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)
    for port in DEFAULT_PORTS:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
    return lock


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, so that it can end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
