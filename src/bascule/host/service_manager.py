"""Tells the service manager that started this process that it serves: sd_notify(3) of systemd."""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

log = logging.getLogger("bascule.node")

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"


def notify_ready() -> None:
    """Send `READY=1` to the socket that the environment names, if it names one."""
    address = os.environ.get(SOCKET_VARIABLE, "")
    if not address:
        return
    if address.startswith("@"):  # in Linux's abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(b"READY=1", address)
    except OSError as error:
        log.warning(
            "service manager not told that the node serves",
            extra={"socket": os.environ[SOCKET_VARIABLE], "error": str(error)},
        )
