"""What connections inherit from the listening socket."""

from __future__ import annotations

import socket

import pytest

from bascule.listening.listening_socket import LOOPBACK_CONGESTION, bind


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def accepted_from(family: int, bound: str, target: str) -> bytes:
    """The congestion control of the server's side of a connection."""
    with bind(family, (bound, 0)) as listener:
        listener.listen()
        listener.setblocking(True)
        with socket.create_connection((target, listener.getsockname()[1])):
            connection, _ = listener.accept()
            with connection:
                return congestion_control(connection)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_connections_to_a_loopback_address_are_not_paced(family: int, host: str) -> None:
    assert accepted_from(family, host, host) == LOOPBACK_CONGESTION


def test_connections_to_other_addresses_use_the_default_of_the_system() -> None:
    with socket.socket() as plain:
        default = congestion_control(plain)
    assert accepted_from(socket.AF_INET, "0.0.0.0", "127.0.0.1") == default
