"""Addresses of listeners as text: host:port, where an IPv6 host stands in brackets."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

PORT_MAX: Final = 65_535
ALL_ADDRESSES: Final = ("0.0.0.0", "::")  # noqa: S104
"""To listen on: every address of the machine. Nobody can connect to them from another one."""
_ADDRESS: Final = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^\[\]:]+)):([0-9]{1,9})")
"""A host in brackets, which has a colon, or one without; and a port."""


def parse_address(text: str) -> tuple[str, int]:
    """The host, without brackets, and the port of `host:port` or `[host]:port`.

    Raises: ValueError, whose text goes after what is wrong.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found[3]) <= PORT_MAX:
        raise ValueError(
            f"is {text!r}, expected host:port with a port from 1 to {PORT_MAX}, and an IPv6 host "
            "in brackets"
        )
    return found[1] or found[2], int(found[3])


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def at_host_of(own: str, listener: str) -> str:
    """The address of a listener for other machines: where it is that of all addresses, it has the
    host of `own`, host:port. `listener` may begin with http://."""
    scheme, slashes, address = listener.rpartition("//")
    host, port = parse_address(address)
    if host not in ALL_ADDRESSES:
        return listener
    return f"{scheme}{slashes}{format_address(parse_address(own)[0], port)}"


def is_loopback(host: str) -> bool:
    """Whether a listener on `host` can only be reached from its own machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
