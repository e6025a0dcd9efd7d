"""How much one door, and one connection of it, may cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bascule.replica.metrics import SECONDS, Histogram


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Bounds that keep a stranger from costing others more than a little."""

    connections_max: int = 1_000
    """A further connection is closed at once."""
    memory_bytes_max: int = 256 << 20
    """Requests and responses of all connections together. One that would go beyond is closed: small
    requests need no more than the first buffer of their connection, so who asks for little is
    served on while somebody asks for much."""
    request_bytes_max: int = 2 << 20
    """Largest request. Fetch requests of 10,000 partitions take 0.3 MiB; refused produce requests
    take up to 1 MiB with clients' defaults."""
    read_ahead_bytes: int = 64 << 10
    """Bytes of further requests taken in while one is answered; beyond it the socket is left
    alone, so that what a client has in flight is bounded here and waits in its own kernel."""
    idle_ms_max: int = 600_000
    """A connection without a request is closed. From Kafka's connections.max.idle.ms."""
    request_ms_max: int = 30_000
    """A request that has begun to arrive must be whole by then."""
    write_stall_ms_max: int = 60_000
    """A client that takes no byte of its response for so long is closed."""
    fetch_wait_ms_max: int = 60_000
    """Longest long-poll; clients ask for 0.1 to 30 s."""
    fetch_bytes_max: int = 55 << 20
    """Record bytes in one Fetch response. From Kafka's fetch.max.bytes."""
    disk_threads: int = 4
    """Threads that read what is not in the page cache."""
    drain_ms_max: int = 5_000
    """Time for the responses in flight when the door closes."""


@dataclass(slots=True)
class ListenerStatistics:
    """Counters since the door opened; only the event loop writes them."""

    connections: int = 0
    """Open now."""
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_expired: int = 0
    """Closed for idling, for a request never finished or for a response never taken."""
    connections_overdrawn: int = 0
    """Closed because the door's memory was used up."""
    memory_bytes: int = 0
    """Requests and responses held now, and room for more of them."""
    memory_bytes_max: int = 0
    """The most there ever was."""
    protocol_errors: int = 0
    handler_errors: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """By message name."""
    request_ns: dict[str, Histogram] = field(default_factory=dict)
    """Time from a whole request to its last byte sent, by message name; a fetch that waits for
    data waits in it too."""
    bytes_in: int = 0
    bytes_out: int = 0
    """All bytes sent."""
    bytes_sendfile: int = 0
    """Of these, moved from file to socket by the kernel."""
    cold_reads: int = 0
    """Ranges that a thread had to bring into the page cache first."""
    waiting: int = 0
    """Requests waiting for data now."""

    def take(self, count: int) -> None:
        """`count` bytes of memory more are held, or less."""
        self.memory_bytes += count
        self.memory_bytes_max = max(self.memory_bytes_max, self.memory_bytes)

    def on_answered(self, name: str, took_ns: int) -> None:
        """A response to a request of this name has left."""
        histogram = self.request_ns.get(name)
        if histogram is None:
            histogram = self.request_ns[name] = Histogram(SECONDS)
        histogram.observe(took_ns)
