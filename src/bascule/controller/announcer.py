"""Runs the exchange of announcements: publishes, listens, keeps its times and logs conflicts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from bascule.announce.exchange import (
    Announce,
    AnnouncementExchange,
    AnnouncingNode,
    ConflictBegan,
    ConflictEnded,
    Effect,
    NodeFound,
    NodeLost,
)
from bascule.announce.members import MemberHeard, MemberUnheard
from bascule.host.api import Clock
from bascule.model import DuplicateStream, StreamDefinition
from bascule.wire.announcements import ANNOUNCE_SUBJECT, ANNOUNCEMENT_BYTES_MAX

log = logging.getLogger("bascule.controller")

HEARD_MAX: Final = 256
"""Announcements that wait for the event loop; together at most 16 MiB."""
TAKEN_AT_A_TIME: Final = 8
"""Announcements handled before other tasks of the event loop run: about 10 ms of full pages."""
OFFLINE_SECONDS: Final = 1.0
"""How often a connection is looked for while there is none."""
RETRY_NS: Final = 300_000_000_000
"""How often a subject that is not permitted is tried again. A NATS server logs each refusal."""
STREAMS_NAMED_MAX: Final = 20
CONFLICT_ADVICE: Final = (
    "delete one of the streams, or let one of them store without acks (--no-acks); if this is "
    "intended, say so with --shared"
)
COPY_ADVICE: Final = (
    "another node has the ids of this one: a copy of its data directory runs; stop one of them"
)


UNHEARD_ADVICE: Final = (
    "give all nodes of the cluster NATS servers that are connected to each other, and credentials "
    "of one account that may publish on _bascule.announce; or set nats.announce = false on all"
)


class ListedNode(Protocol):
    """A node as the metadata has it."""

    @property
    def alive(self) -> bool: ...
    @property
    def client(self) -> str:
        """Empty until its listeners are open, which is behind its first announcement."""
        ...


class OwnSubject(Protocol):
    """A subject of the node itself; see `ingest.nats_ingest`."""

    def publish(self, payload: bytes) -> bool: ...
    def refusals(self) -> tuple[str | None, str | None]:
        """Why the server does not permit to subscribe, and to publish."""
        ...

    def retry(self) -> None: ...


class AnnouncementLink(Protocol):
    """NATS ingest, as far as announcements need it."""

    @property
    def connected(self) -> bool: ...
    @property
    def connects(self) -> int: ...
    @property
    def payload_bytes_max(self) -> int: ...
    async def listen(
        self, subject: str, on_message: Callable[[bytes], None], *, bytes_max: int
    ) -> OwnSubject: ...


class Announcer:
    """Belongs to the event loop. It needs nothing of the node: without it streams work as ever."""

    def __init__(
        self,
        me: AnnouncingNode,
        link: AnnouncementLink,
        clock: Clock,
        nodes: Callable[[], Mapping[int, ListedNode]] = dict,
    ) -> None:
        """`nodes`: those of the cluster, by number."""
        self._me = me
        self._link = link
        self._clock = clock
        self._nodes = nodes
        self._exchange = AnnouncementExchange(me)
        self._subject: OwnSubject | None = None
        self._connects = 0
        """Connections that the exchange knows of."""
        self._heard: deque[bytes] = deque()
        self._woken = asyncio.Event()
        self._is_waking = False
        self._loop = asyncio.get_running_loop()
        self._logged_refusals: set[str] = set()
        self._retry_at_ns = 0

    # What it knows

    def duplicates(self, name: str) -> tuple[DuplicateStream, ...]:
        """The stream of this name in other clusters, as far as its subject overlaps."""
        return self._exchange.duplicates(name)

    def conflicts(self) -> dict[str, list[DuplicateStream]]:
        """Each stream in conflict, by name -> the streams of other clusters."""
        return self._exchange.conflicts()

    @property
    def unheard(self) -> tuple[int, ...]:
        """The nodes of this cluster that live, and are not heard on this NATS."""
        return self._exchange.members.unheard

    @property
    def cluster_id(self) -> str:
        return self._me.cluster_id

    @property
    def refusal(self) -> str | None:
        """Why NATS does not permit announcements, or None."""
        if self._subject is None:
            return None
        subscribe, publish = self._subject.refusals()
        return subscribe or publish

    def statistics(self, streams: Iterable[str]) -> dict[str, Any]:
        """The counters, and for each of `streams` whether it is in conflict."""
        conflicts = self._exchange.conflicts()
        counts = self._exchange.counts
        return {
            "sent": counts.sent,
            "received": counts.received,
            "refused": dict(counts.refused),
            "left_out": counts.left_out,
            "nodes": counts.nodes,
            "unheard": len(self.unheard),
            "conflict": {name: int(name in conflicts) for name in streams},
        }

    # What it does

    async def start(self) -> None:
        """Subscribe, and announce this node. Refusals are logged, and the node goes on without."""
        self._subject = await self._link.listen(
            ANNOUNCE_SUBJECT, self._on_message, bytes_max=ANNOUNCEMENT_BYTES_MAX
        )
        self._advance()

    async def run(self) -> None:
        """Do what is due, until cancelled."""
        while True:
            seconds = OFFLINE_SECONDS
            try:
                seconds = self._advance()
            except Exception:  # boundary: the next announcement or interval tries again
                log.exception("exchange of announcements failed; it goes on")
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    def on_streams(self, definitions: Mapping[str, StreamDefinition]) -> None:
        """The streams of this node are these from now on."""
        now_ns = self._clock.monotonic_ns()
        self._carry_out(self._exchange.on_streams(definitions, now_ns=now_ns))
        self._woken.set()

    def on_changed(self, definitions: Mapping[str, StreamDefinition | None]) -> None:
        """These streams of the node may have changed; None: there is none of this name now."""
        now_ns = self._clock.monotonic_ns()
        self._carry_out(self._exchange.on_changed(definitions, now_ns=now_ns))
        self._woken.set()

    def stop(self) -> None:
        """Tell the others that this node stops. After the end of `run`."""
        if self._link.connected:
            self._carry_out(self._exchange.on_stopping())

    def _on_message(self, payload: bytes) -> None:
        """Called in the reading thread."""
        if len(self._heard) >= HEARD_MAX:
            self._exchange.counts.refused["overflow"] += 1
            return
        self._heard.append(payload)
        if not self._is_waking:
            self._is_waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                pass  # The loop is closed: the node has stopped.

    def _wake(self) -> None:
        self._is_waking = False
        self._woken.set()

    def _advance(self) -> float:
        """Do what is due now; return the seconds until the next time."""
        now_ns = self._clock.monotonic_ns()
        for _ in range(TAKEN_AT_A_TIME):
            if not self._heard:
                break
            payload = self._heard.popleft()
            self._carry_out(self._exchange.on_message(payload, now_ns=now_ns))
        if self._heard:
            # Those that wait are heard before anybody counts as gone.
            return 0.0
        if self._subject is None or not self._link.connected:
            return OFFLINE_SECONDS
        self._note_refusals(self._subject, now_ns)
        if self._connects != self._link.connects:
            self._connects = self._link.connects
            self._begin(now_ns)
        else:
            self._note_members(now_ns)
            self._carry_out(self._exchange.on_time(now_ns))
        return max(self._exchange.next_due_ns() - self._clock.monotonic_ns(), 0) / 1e9

    def _begin(self, now_ns: int) -> None:
        size = self._link.payload_bytes_max
        self._carry_out(self._exchange.on_connected(now_ns=now_ns, payload_bytes_max=size))

    def _note_members(self, now_ns: int) -> None:
        # Without the permission nobody is heard, or nobody answers.
        nodes = {} if self.refusal is not None else self._nodes()
        alive = [n for n, each in nodes.items() if each.alive and each.client]
        others = [each for each in alive if each != self._me.node_id]
        self._carry_out(self._exchange.on_members(others, now_ns=now_ns))

    def _note_refusals(self, subject: OwnSubject, now_ns: int) -> None:
        subscribe, publish = subject.refusals()
        self._exchange.on_hearing(is_deaf=subscribe is not None, now_ns=now_ns)
        if subscribe is None and publish is None:
            self._retry_at_ns = now_ns + RETRY_NS
            return
        for operation, refusal in (("subscribe", subscribe), ("publish", publish)):
            if refusal is not None and operation not in self._logged_refusals:
                self._logged_refusals.add(operation)
                log.warning(
                    "announcements are not permitted; the node goes on without",
                    extra={"operation": operation, "subject": ANNOUNCE_SUBJECT, "error": refusal},
                )
        if now_ns >= self._retry_at_ns:
            self._retry_at_ns = now_ns + RETRY_NS
            subject.retry()
            self._begin(now_ns)

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Announce):
                if self._subject is not None and self._subject.publish(effect.data):
                    self._exchange.counts.sent += 1
            elif isinstance(effect, MemberUnheard | MemberHeard):
                self._log_member(effect)
            else:
                self._log(effect)

    def _log_member(self, event: MemberUnheard | MemberHeard) -> None:
        if isinstance(event, MemberUnheard):
            log.warning(
                "node of this cluster not heard on this NATS; what is published there or here may "
                "not reach leaders at the other",
                extra={"node": event.node_id, "advice": UNHEARD_ADVICE},
            )
        else:
            log.info("node of this cluster not missed any more", extra={"node": event.node_id})

    def _log(self, event: NodeFound | NodeLost | ConflictBegan | ConflictEnded) -> None:
        cluster_id = event.cluster_id
        if isinstance(event, ConflictBegan):
            is_copy = cluster_id == self._me.cluster_id
            log.warning(
                "another cluster on this NATS has the same streams; each message is stored and "
                "acknowledged by both",
                extra={
                    "streams": _named(event.streams),
                    "count": len(event.streams),
                    "cluster_id": cluster_id,
                    "nodes": ", ".join(map(str, event.nodes)),
                    "advice": COPY_ADVICE if is_copy else CONFLICT_ADVICE,
                },
            )
        elif isinstance(event, ConflictEnded):
            log.info(
                "conflict with the streams of another cluster ended",
                extra={
                    "streams": _named(event.streams),
                    "count": len(event.streams),
                    "cluster_id": cluster_id,
                    "reason": event.reason,
                },
            )
        elif isinstance(event, NodeFound):
            log.info(
                "node of another cluster found on this NATS",
                extra={"cluster_id": cluster_id, "node": event.node_id},
            )
        else:
            log.info(
                "node of another cluster is gone",
                extra={"cluster_id": cluster_id, "node": event.node_id, "reason": event.reason},
            )


def _named(streams: tuple[str, ...]) -> str:
    more = len(streams) - STREAMS_NAMED_MAX
    shown = ", ".join(streams[:STREAMS_NAMED_MAX])
    return f"{shown} and {more} more" if more > 0 else shown
