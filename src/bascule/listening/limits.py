"""Limits and statistics of the client listener."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bascule.replica.metrics import SECONDS, Histogram


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Bounds on what clients may cost the node."""

    connections_max: int = 1_000
    """Connections beyond this are closed at once."""
    memory_bytes_max: int = 256 << 20
    """Memory of the requests and responses of all connections together. A connection that would
    exceed it is closed. Small requests fit into the base buffer of their connection, which does not
    count. So clients with small requests are served even while the limit is reached."""
    request_bytes_max: int = 2 << 20
    """Largest request. Fetch requests of 10,000 partitions take 0.3 MiB; refused produce requests
    take up to 1 MiB with clients' defaults."""
    read_ahead_bytes: int = 64 << 10
    """Bytes of further requests read while one is answered. Beyond it the socket is not read, so
    that pipelined requests stay in the socket buffers."""
    idle_ms_max: int = 600_000
    """A connection without a request for this long is closed. From Kafka's
    connections.max.idle.ms."""
    request_ms_max: int = 30_000
    """Time for a request to arrive completely, from its first byte."""
    write_stall_ms_max: int = 60_000
    """A client that reads no byte of its response for this long is closed."""
    fetch_wait_ms_max: int = 60_000
    """Longest wait of a fetch; clients ask for 0.1 to 30 s."""
    fetch_bytes_max: int = 55 << 20
    """Record bytes in one Fetch response. From Kafka's fetch.max.bytes."""
    disk_threads: int = 4
    """Threads that read file ranges that are not in the page cache."""
    drain_ms_max: int = 5_000
    """Time to finish the responses in flight when the listener closes."""


@dataclass(slots=True)
class ListenerStatistics:
    """Counters since the listener started; only the event loop writes them."""

    connections: int = 0
    """Open now."""
    connections_accepted: int = 0
    connections_refused: int = 0
    connections_expired: int = 0
    """Closed because of an idle timeout, an incomplete request or an unread response."""
    connections_out_of_memory: int = 0
    """Closed because `ListenerLimits.memory_bytes_max` was reached."""
    memory_bytes: int = 0
    """Accounted memory now: requests, responses and buffers beyond the base buffers."""
    memory_bytes_max: int = 0
    """Highest value of `memory_bytes`."""
    protocol_errors: int = 0
    trailing_bytes: int = 0
    """Bytes behind requests, which are ignored."""
    handler_errors: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    """By message name."""
    request_ns: dict[str, Histogram] = field(default_factory=dict)
    """Time from the complete request to the last byte of the response, by message name. It
    includes the time a fetch waits for data."""
    bytes_in: int = 0
    bytes_out: int = 0
    """All bytes sent."""
    bytes_sendfile: int = 0
    """Of these, bytes sent by sendfile."""
    cold_reads: int = 0
    """File ranges that a thread had to read into the page cache first."""
    waiting: int = 0
    """Requests waiting for data now."""

    def account(self, count: int) -> None:
        """Add `count` bytes, which may be negative, to the accounted memory."""
        self.memory_bytes += count
        self.memory_bytes_max = max(self.memory_bytes_max, self.memory_bytes)

    def on_answered(self, name: str, took_ns: int) -> None:
        """Record that a response to a request of this name was sent."""
        histogram = self.request_ns.get(name)
        if histogram is None:
            histogram = self.request_ns[name] = Histogram(SECONDS)
        histogram.observe(took_ns)
