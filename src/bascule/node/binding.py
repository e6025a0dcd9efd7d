"""Binds listeners, and says which option names another address."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable

from bascule.config import Config, listen_advice
from bascule.errors import ConfigError


async def bind_listener(
    listener: str, section: str, config: Config, starting: Awaitable[tuple[str, int]]
) -> tuple[str, int]:
    """Start a listener. Raises: ConfigError that names the option for another address."""
    host, port = getattr(config, section).host, getattr(config, section).port
    try:
        return await starting
    except OSError as error:
        where = f"{host} port {port}"
        why = reason_of(error)
        raise ConfigError(
            f"the {listener} cannot listen on {where}: {why}; {listen_advice(section, why)}"
        ) from error


def reason_of(error: OSError) -> str:
    """The system's text, without what asyncio and the socket module add to it."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return str(error.strerror or error).lower()
    return os.strerror(error.errno).lower()
