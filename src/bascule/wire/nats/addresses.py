"""Server URLs, and the pool of servers that one connection may use."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote, urlsplit

from bascule.errors import ConfigError
from bascule.host.api import Random

DEFAULT_PORT: Final = 4222
DISCOVERED_MAX: Final = 256
"""Limit for servers from one INFO, far above the size of a real cluster."""
BACKOFF_SECONDS_MIN: Final = 0.02
BACKOFF_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of a NATS server, and the credentials in its URL."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_name: str | None = None
    """The name that its certificate must contain, if that is not `host`."""

    def __str__(self) -> str:
        """The URL without credentials, for output and logs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @property
    def endpoint(self) -> tuple[str, int]:
        return self.host, self.port


def parse_server_url(url: str) -> ServerAddress:
    """Parse `nats://[user:password@|token@]host[:port]` (or `tls://`, or `host[:port]`).

    Raises: ConfigError naming the invalid part, never the credentials.
    """
    text = url if "://" in url else f"nats://{url}"
    shown = without_credentials(url)
    try:
        parts = urlsplit(text)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise ConfigError(f"NATS server {shown!r} is not a URL: {error}") from None
    if parts.scheme not in ("nats", "tls"):
        raise ConfigError(
            f"NATS server {shown!r} has scheme {parts.scheme}://, expected nats:// or tls://"
        )
    if not parts.hostname:
        raise ConfigError(f"NATS server {shown!r} has no host")
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    token = user if user is not None and password is None else None
    return ServerAddress(
        host=parts.hostname,
        port=port,
        tls=parts.scheme == "tls",
        user=None if token is not None else user,
        password=password,
        token=token,
    )


def without_credentials(url: str) -> str:
    """A server URL without user, password and token."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


class ServerPool:
    """The configured servers, and the servers that the connected server announced.

    Not thread-safe: one owner at a time.
    """

    def __init__(
        self, configured: Sequence[ServerAddress], random: Random, *, discover: bool = True
    ) -> None:
        """With `discover` false, announced servers are ignored."""
        self._configured = list(configured)
        self._discovered: list[ServerAddress] = []
        self._lame_ducks: set[tuple[str, int]] = set()
        self._random = random
        self._discover = discover

    def __len__(self) -> int:
        return len(self._configured) + len(self._discovered)

    def update_discovered(self, current: ServerAddress, announced: Sequence[str]) -> None:
        """Replace the discovered servers by the `connect_urls` of an INFO.

        A discovered server gets the credentials and TLS settings of `current`. If it is announced
        by IP address only, its certificate must contain the name of `current`.
        """
        if not self._discover:
            return
        known = {address.endpoint for address in self._configured}
        discovered = []
        for text in announced[:DISCOVERED_MAX]:
            try:
                found = parse_server_url(text)
            except ConfigError:
                continue
            if found.endpoint in known:
                continue
            known.add(found.endpoint)
            name = current.tls_name or current.host
            named = _is_number(found.host) and not _is_number(name)
            discovered.append(
                replace(current, host=found.host, port=found.port, tls_name=name if named else None)
            )
        self._discovered = discovered

    def mark_lame_duck(self, address: ServerAddress) -> None:
        """The server is in lame duck mode: try it last until `clear_lame_duck`."""
        self._lame_ducks.add(address.endpoint)

    def clear_lame_duck(self, address: ServerAddress) -> None:
        """The server has accepted a connection and is not in lame duck mode."""
        self._lame_ducks.discard(address.endpoint)

    def all_servers(self) -> list[ServerAddress]:
        """The configured servers, then the discovered ones: the order of a first connection."""
        return [*self._configured, *self._discovered]

    def candidates(self, last: ServerAddress | None) -> list[ServerAddress]:
        """Every server in the order of one round of reconnecting.

        The order is random, so that the clients of a failed server distribute over the others.
        `last`, whose connection was just lost, and then lame ducks come at the end.
        """
        order = [(self._random.uniform(0.0, 1.0), address) for address in self.all_servers()]
        order.sort(key=lambda item: item[0])
        shuffled = [address for _, address in order]
        place = None if last is None else last.endpoint
        return sorted(shuffled, key=lambda a: (a.endpoint in self._lame_ducks, a.endpoint == place))

    def migration_candidates(self, than: ServerAddress) -> list[ServerAddress]:
        """The candidates to migrate to from the lame duck `than`."""
        return [a for a in self.candidates(than) if a.endpoint not in self._lame_ducks]

    def backoff_seconds(self) -> Iterator[float]:
        """Seconds to wait between rounds: exponential backoff with jitter, up to a bound.

        The jitter distributes the reconnections of many clients.
        """
        pause = BACKOFF_SECONDS_MIN
        while True:
            yield pause * self._random.uniform(0.5, 1.0)
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
