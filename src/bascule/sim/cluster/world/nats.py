"""A small NATS server in memory: subscriptions, queue groups, publishes and acks.

The connection of a node speaks the NATS protocol, which the production code reads and writes; of
the server there is only what streams need: subjects without wildcards. A message reaches those who
are subscribed when it arrives, and is lost for all others, as with core NATS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bascule.sim.cluster.world.loop import ClusterLoop, LoopProcess, process_now
from bascule.sim.cluster.world.threads import Waiter, sleep
from bascule.sim.prng import Prng
from bascule.wire.nats import ServerInfo

DELAY_NS: Final = 100_000
JITTER_NS: Final = 200_000
PING_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class NatsMessage:
    """What a publisher sends."""

    subject: str
    reply: str
    head: bytes
    """The header block; empty: none."""
    body: bytes


class NatsSession:
    """One connection of a node, with the interface of `ingest.nats_transport.Transport`."""

    backlog_bytes = away_ns = 0

    def __init__(self, server: SimNats, process: LoopProcess) -> None:
        self.process = process
        self.subscriptions: dict[int, tuple[str, str]] = {}
        """Sid -> subject and queue group, which is empty where there is none."""
        self.is_open = True
        """Whether the server has it."""
        self._server = server
        self._received = bytearray()
        self._has_ended = False
        self._waiter: Waiter | None = None
        self._to_server_ns = self._to_node_ns = 0

    # -- the node's side ----------------------------------------------------------------------

    def receive_into(self, view: memoryview) -> int:
        """See `Transport`."""
        while not self._received and not self._has_ended:
            self._waiter = Waiter()
            if not self._waiter.wait(PING_SECONDS, "the NATS server"):
                raise BlockingIOError
        data = self._received[: len(view)]
        view[: len(data)] = data
        del self._received[: len(data)]
        return len(data)

    def send(self, data: bytes) -> bool:
        """See `Transport`."""
        if self._has_ended:
            raise BrokenPipeError(32, "Broken pipe")
        self._to_server_ns = max(self._to_server_ns + 1, self._server.arrival_ns())
        self._server.loop.for_nobody(self._to_server_ns, self._server.receive, self, bytes(data))
        return True

    def wait_sent(self, timeout: float) -> bool:
        """See `Transport`."""
        return True

    def end_reading(self) -> None:
        """See `Transport`."""
        self._end()

    def close(self) -> None:
        """See `Transport`."""
        self._server.loop.for_nobody(self._server.arrival_ns(), self._server.drop, self)
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        if self._waiter is not None:
            self._waiter.wake()

    def _on_data(self, data: bytes) -> None:
        if not self._has_ended:
            self._received += data
            if self._waiter is not None:
                self._waiter.wake()

    # -- the server's side --------------------------------------------------------------------

    def deliver(self, data: bytes) -> None:
        """Send to the node."""
        self._to_node_ns = max(self._to_node_ns + 1, self._server.arrival_ns())
        self._server.loop.at_ns(self._to_node_ns, self.process.context, self._on_data, data)

    def end(self) -> None:
        """The server has closed the connection."""
        self._to_node_ns = max(self._to_node_ns + 1, self._server.arrival_ns())
        self._server.loop.at_ns(self._to_node_ns, self.process.context, self._end)


class SimNats:
    """The server."""

    def __init__(self, loop: ClusterLoop, prng: Prng) -> None:
        self.loop = loop
        self._prng = prng
        self._sessions: dict[NatsSession, None] = {}
        self._inboxes: dict[str, Callable[[bytes], None]] = {}
        self._cut_off: dict[int, None] = {}
        """Nodes that cannot connect."""
        self.undelivered = 0
        """Messages for which nobody was subscribed."""

    def arrival_ns(self) -> int:
        return self.loop.now_ns + DELAY_NS + self._prng.word() % JITTER_NS

    # -- nodes --------------------------------------------------------------------------------

    def connect(self, timeout: float) -> NatsSession:
        """Connect the process that runs. Raises: OSError."""
        process = process_now()
        sleep((self.arrival_ns() - self.loop.now_ns) / 1e9)
        if process.machine.node in self._cut_off:
            sleep(timeout)
            raise TimeoutError("timed out")
        session = NatsSession(self, process)
        self._sessions[session] = None
        return session

    def receive(self, session: NatsSession, data: bytes) -> None:
        """Operations of a node have come."""
        at = 0
        while at < len(data) and session in self._sessions:
            end = data.index(b"\r\n", at)
            words = data[at:end].decode().split(" ")
            at = end + 2
            if words[0] == "SUB":
                group = words[2] if len(words) == 4 else ""
                session.subscriptions[int(words[-1])] = words[1], group
            elif words[0] == "UNSUB":
                session.subscriptions.pop(int(words[1]), None)
            elif words[0] == "PING":
                session.deliver(b"PONG\r\n")
            elif words[0] == "PUB":
                size = int(words[-1])
                self._answer(words[1], data[at : at + size])
                at += size + 2
            else:
                assert words[0] == "PONG", words

    def drop(self, session: NatsSession) -> None:
        """The connection has ended."""
        self._sessions.pop(session, None)

    def on_process_ended(self, process: LoopProcess) -> None:
        """A process was killed."""
        for session in [each for each in self._sessions if each.process is process]:
            del self._sessions[session]

    def disconnect(self, node: int) -> None:
        """Close the connections of a node."""
        for session in [each for each in self._sessions if each.process.machine.node == node]:
            del self._sessions[session]
            session.end()

    def cut_off(self, node: int) -> None:
        """Close the connections of a node, which cannot connect until `restore`."""
        self._cut_off[node] = None
        self.disconnect(node)

    def restore(self, node: int) -> None:
        self._cut_off.pop(node, None)

    def subscribers(self, subject: str) -> list[int]:
        """The nodes with a subscription to a subject, once for each."""
        return [
            session.process.machine.node
            for session in self._sessions
            for each, _ in session.subscriptions.values()
            if each == subject
        ]

    # -- publishers ---------------------------------------------------------------------------

    def open_inbox(self, subject: str, on_answer: Callable[[bytes], None]) -> None:
        """Have the function called with what is published on a subject."""
        self._inboxes[subject] = on_answer

    def publish(self, message: NatsMessage) -> None:
        """A message of a publisher is at the server."""
        groups: dict[str, list[tuple[NatsSession, int]]] = {}
        for session in self._sessions:
            for sid, (subject, group) in session.subscriptions.items():
                if subject != message.subject:
                    continue
                if group:
                    groups.setdefault(group, []).append((session, sid))
                else:
                    self._deliver(session, sid, message)
        for members in groups.values():
            self._deliver(*self._prng.pick(members), message)
        self.undelivered += not groups

    def _deliver(self, session: NatsSession, sid: int, message: NatsMessage) -> None:
        size = len(message.head) + len(message.body)
        line = f"HMSG {message.subject} {sid} {message.reply} {len(message.head)} {size}\r\n"
        if not message.head:
            line = f"MSG {message.subject} {sid} {message.reply} {size}\r\n"
        session.deliver(b"%b%b%b\r\n" % (line.encode(), message.head, message.body))

    def _answer(self, subject: str, body: bytes) -> None:
        on_answer = self._inboxes.get(subject)
        if on_answer is not None:
            self.loop.for_nobody(self.arrival_ns(), on_answer, body)


def connect(address: object, options: object, *, timeout: float, **_: Any) -> Any:
    """In place of `ingest.nats_transport.connect`."""
    session = process_now().machine.world.nats.connect(timeout)
    return session, ServerInfo(server_name="simulated", version="2.11.0"), b""
