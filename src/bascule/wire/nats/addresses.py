"""Server URLs, and the pool of servers that one connection may move between."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import unquote, urlsplit

from bascule.errors import ConfigError
from bascule.host.api import Random

DEFAULT_PORT: Final = 4222
LEARNED_MAX: Final = 256
"""Servers taken from INFO; far beyond any real cluster."""
BACKOFF_SECONDS_MIN: Final = 0.02
BACKOFF_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a NATS server is and what its URL said of credentials."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_name: str | None = None
    """The name its certificate has to hold, where that is not `host`."""

    def __str__(self) -> str:
        """Without the credentials, so that it can be shown and logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @property
    def place(self) -> tuple[str, int]:
        return self.host, self.port


def parse_server_url(url: str) -> ServerAddress:
    """Parse `nats://[user:password@|token@]host[:port]` (or `tls://`, or `host[:port]`).

    Raises: ConfigError naming the part that is wrong, never the credentials.
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
            f"NATS server {shown!r} begins with {parts.scheme}://, expected nats:// or tls://"
        )
    if not parts.hostname:
        raise ConfigError(f"NATS server {shown!r} names no host")
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
    """A server URL as it may be shown."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


class ServerPool:
    """The servers that were given, and those that the connected one announced of its cluster.

    One owner uses it at a time.
    """

    def __init__(
        self, configured: Sequence[ServerAddress], random: Random, *, discover: bool = True
    ) -> None:
        """Without `discover` nothing is learned from the servers."""
        self._configured = list(configured)
        self._learned: list[ServerAddress] = []
        self._leaving: set[tuple[str, int]] = set()
        self._random = random
        self._discover = discover

    def __len__(self) -> int:
        return len(self._configured) + len(self._learned)

    def learn(self, current: ServerAddress, announced: Sequence[str]) -> None:
        """Take the `connect_urls` of an INFO in place of those announced before.

        A server of the cluster is spoken to as `current` is: the same credentials, TLS where it
        has TLS, and the name of its certificate where it is announced by number only.
        """
        if not self._discover:
            return
        known = {address.place for address in self._configured}
        learned = []
        for text in announced[:LEARNED_MAX]:
            try:
                found = parse_server_url(text)
            except ConfigError:
                continue
            if found.place in known:
                continue
            known.add(found.place)
            name = current.tls_name or current.host
            named = _is_number(found.host) and not _is_number(name)
            learned.append(
                replace(current, host=found.host, port=found.port, tls_name=name if named else None)
            )
        self._learned = learned

    def leave(self, address: ServerAddress) -> None:
        """The server is about to go (lame duck): it is asked last until it serves again."""
        self._leaving.add(address.place)

    def stay(self, address: ServerAddress) -> None:
        """It serves, and says nothing of going."""
        self._leaving.discard(address.place)

    def in_order(self) -> list[ServerAddress]:
        """As configured, then what was learned: the order of a first connection."""
        return [*self._configured, *self._learned]

    def candidates(self, last: ServerAddress | None) -> list[ServerAddress]:
        """Every server in the order of one round of reconnecting.

        Dice decide, so that the clients of a dead server spread over the others; `last`, which was
        just lost, and servers about to leave come at the end.
        """
        order = [(self._random.uniform(0.0, 1.0), address) for address in self.in_order()]
        order.sort(key=lambda item: item[0])
        shuffled = [address for _, address in order]
        place = None if last is None else last.place
        return sorted(shuffled, key=lambda a: (a.place in self._leaving, a.place == place))

    def others(self, than: ServerAddress) -> list[ServerAddress]:
        """The candidates to move to from a server that is about to go."""
        return [a for a in self.candidates(than) if a.place not in self._leaving]

    def pauses(self) -> Iterator[float]:
        """Seconds to wait between rounds: doubling up to a bound, with jitter so that a fleet does
        not come back in one instant."""
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
