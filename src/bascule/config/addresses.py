"""Addresses of listeners as text: host:port, where an IPv6 host stands in brackets."""

from __future__ import annotations

from typing import Final

PORT_MAX: Final = 65_535


def parse_address(text: str) -> tuple[str, int]:
    """The host, without brackets, and the port of `host:port` or `[host]:port`.

    Raises: ValueError saying what is wrong.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise ValueError(f"{text!r} has brackets, which are for IPv6 hosts")
    elif set(host) & set("[]:"):
        raise ValueError(f"{text!r} is not host:port; an IPv6 host stands in brackets")
    if not (port.isascii() and port.isdigit()) or not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"{text!r} has no port from 1 to {PORT_MAX}")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
