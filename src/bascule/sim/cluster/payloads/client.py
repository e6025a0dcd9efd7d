"""`SimPayloadClient`: sends payloads through any node, one after the other, and reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bascule.errors import (
    BasculeError,
    Broken,
    DiskFull,
    Indeterminate,
    InvalidRoute,
    PayloadDamaged,
    PayloadMissing,
    PublishRejected,
    UnknownPayload,
)
from bascule.payload_connection import PayloadAck, PayloadReader, PayloadWriter
from bascule.record.payload_links import ID_BYTES, Payload
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.consumers.consumer import CLIENT_PORT, ClientMachine
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.payloads.history import PayloadHistory, SentPayload
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.world.loop import NS
from bascule.sim.cluster.world.network import host_of
from bascule.sim.cluster.world.process import SimProcess
from bascule.wire.datastream.messages import FetchPayload, OpenPayload

FIRST_CLIENT: Final = 300
"""Clients have machines with numbers from here on."""
SIZE_MAX: Final = 200_000
PACKETS_MAX: Final = 40
DOWN_NS: Final = 2 * NS
"""Mean time between the death of a client and its next process, and of a pause."""
LOST: Final = 0.3
"""How likely it is that a client dies, stands still or is cut off while it sends a payload."""
ABANDONS: Final = 0.3
"""How likely it is that a payload that was not acknowledged is never closed."""
REPEATS: Final = 0.1
"""How likely it is that one that is acknowledged is sent again."""
SYNCS: Final = 0.1
"""After a packet."""
SHARES: Final = 0.2
"""How likely it is that a payload is sent which another client may send as well."""
REPLACES: Final = 0.4
"""How likely it is that other content is sent under the id of one that was abandoned, or is
shared."""
READS: Final = 0.6
BEGINS_ANEW: Final = 0.1
UNAVAILABLE: Final = 503
"""The code of an ack that says that a node cannot store a message now."""
ONLY_EXPECTED: Final = "payload clients get no other error"
ACKS: Final = "acks of payloads say what was sent"
ONE_RECORD: Final = "one record a payload"
READ_RIGHT: Final = "readers of payloads get what was sent"


class SimPayloadClient:
    """One client, through all its processes."""

    def __init__(
        self,
        world: ClusterEnvironment,
        number: int,
        plan: StreamPlan,
        history: PayloadHistory,
        *,
        on_ack: Callable[[SentPayload], None],
        may_be_gone: Callable[[SentPayload], bool],
        may_be_undone: Callable[[SentPayload], bool],
        is_damaged: Callable[[SentPayload], bool],
    ) -> None:
        """`may_be_gone`: whether the record of an acknowledged payload may have been removed;
        `may_be_undone`: whether another one may have its offset; `is_damaged`: whether a file of it
        was damaged."""
        self.world = world
        self.plan = plan
        self.machine = ClientMachine(world, FIRST_CLIENT + number)
        self.acked = 0
        self.has_read = 0
        """Payloads, and parts of them, that it has read, or of which it was told that they are
        removed."""
        self.is_safe = False
        """Whether it neither dies nor abandons anything any more."""
        self._history = history
        self._on_ack = on_ack
        self._may_be_gone = may_be_gone
        self._may_be_undone = may_be_undone
        self._is_damaged = is_damaged
        self._process: SimProcess | None = None
        self._starts = 0
        self._is_stopped = False
        self._at_hand: SentPayload | None = None
        """The payload that was begun, and is to be gone on with."""
        self._nodes: list[int] = []
        """Those with replicas, as the last answer says."""

    @property
    def name(self) -> str:
        return f"payload client {self.machine.node}"

    # -- the simulator --------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self._process is not None or self._is_stopped:
            return
        self._starts += 1
        self._process = process = SimProcess(self.world.loop, self.machine, self._starts)
        process.context.run(self._begin)

    def _begin(self) -> None:
        self.world.loop.create_task(self._run()).add_done_callback(self._check)

    def _check(self, done: asyncio.Task[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self.world.loop.report_exception(self.name, error)

    def _kill(self) -> None:
        """End the process at once."""
        process, self._process = self._process, None
        if process is not None:
            self.world.end_process(process)

    def stop(self) -> None:
        """End the process, and start no other one: one that has died may be due to start."""
        self._is_stopped = True
        self._kill()

    def _die(self) -> None:
        self._note("dies")
        self._kill()
        self.world.after(self.world.prng.wait(DOWN_NS), self.start)

    def _pause(self) -> None:
        if self._process is not None:
            self._note("is paused")
            self._process.is_paused = True
            self.world.after(self.world.prng.wait(DOWN_NS), self.go_on)

    def _cut_off(self) -> None:
        client, world = self.machine.node, self.world
        nodes = [node for node in world.founders if world.prng.happens(0.5)]
        links = [link for node in nodes for link in ((client, node), (node, client))]
        self._note(f"is cut off from nodes {nodes}")
        world.network.cut(links)
        world.after(world.prng.wait(DOWN_NS), world.network.restore, links)

    def go_on(self) -> None:
        """End a pause."""
        if self._process is not None and self._process.is_paused:
            self._process.is_paused = False
            self.world.loop.release(self._process)

    def _note(self, text: str) -> None:
        self.world.note(0, f"{self.name} {text}")

    # -- in the process -------------------------------------------------------------------------

    async def _run(self) -> None:
        prng = self.world.prng
        while True:
            try:
                if self._at_hand is None:
                    self._at_hand = self._draw()
                await self._send(self._at_hand)
                self._at_hand = None
                if prng.happens(READS) or self.is_safe:
                    await self._read()
            except BasculeError as error:
                if not (is_expected(error) or self._is_of_others(error)):
                    text = f"{self.name}: {type(error).__name__}: {error}"
                    self.world.loop.report(ONLY_EXPECTED, text)
                    raise
                self._note(f"fails: {type(error).__name__}: {error}")
                self._give_up(error)
            await asyncio.sleep(prng.log_uniform(0.02, 2))

    def _is_of_others(self, error: BasculeError) -> bool:
        """Whether it says that the payload at hand has other content."""
        return (
            isinstance(error, PayloadDamaged)
            and self._at_hand is not None
            and len(self._history.editions[self._at_hand.id]) > 1
        )

    def _give_up(self, error: BasculeError) -> None:
        """After an error: go on with the payload at hand, or with another one, or under its id
        with other content."""
        prng, payload = self.world.prng, self._at_hand
        if payload is None or not (isinstance(error, PayloadDamaged) or prng.happens(ABANDONS)):
            return
        if self.is_safe and not isinstance(error, PayloadDamaged):
            return
        self._at_hand = None
        if not self.is_safe and prng.happens(REPLACES):
            self._at_hand = self._begin_other(payload)

    def _begin_other(self, payload: SentPayload) -> SentPayload:
        """Other content under the id of a payload."""
        size = payload.size if self.world.prng.happens(0.3) else self._draw_size()
        size = max(size, ID_BYTES)  # less could be the same
        return self._history.begin(payload.id, payload.stream, size, payload.key)

    def _draw_size(self) -> int:
        prng = self.world.prng
        return int(prng.log_uniform(1, SIZE_MAX)) if prng.happens(0.95) else 0

    def _bootstrap(self) -> str:
        """The nodes in any order."""
        nodes = list(self.world.founders)
        found = [nodes.pop(self.world.prng.below(len(nodes))) for _ in self.world.founders]
        return ",".join(f"{host_of(node)}:{CLIENT_PORT}" for node in found)

    def _draw(self) -> SentPayload:
        """A payload to send: a new one, or one that is acknowledged already."""
        prng = self.world.prng
        stored = self._history.acked.get(self.plan.name)
        if stored and prng.happens(REPEATS):
            return prng.pick(stored)
        shared = self._history.latest(self.plan.name)
        if shared and not self.is_safe and prng.happens(SHARES):
            other = prng.pick(shared)
            return self._begin_other(other) if prng.happens(REPLACES) else other
        size = self._draw_size()
        key = b"payload%d" % prng.below(1_000) if prng.happens(0.7) else None
        return self._history.begin(prng.bytes(ID_BYTES).hex(), self.plan.name, size, key)

    def _opening(self, payload: SentPayload) -> OpenPayload:
        prng = self.world.prng
        topology = prng.pick(("auto", "star", "chain", "tree", "route"))
        route: list[tuple[int, list[int]]] = []
        if topology == "route":
            topology, route = "auto", self._draw_route()
        return OpenPayload(
            payload.id,
            payload.stream,
            key=payload.key,
            size=payload.size if prng.happens(0.5) else -1,
            topology=topology,
            quorum=not route and prng.happens(0.25),
            route=route,
            begins_anew=payload.offset < 0 and prng.happens(self._begins_anew(payload)),
        )

    def _begins_anew(self, payload: SentPayload) -> float:
        """How likely it is that what nodes have of a payload is dropped."""
        return 0.5 if self._history.others(payload) else BEGINS_ANEW

    def _draw_route(self) -> list[tuple[int, list[int]]]:
        """Any tree over the nodes that had replicas; empty if none are known."""
        left, placed = list(self._nodes), list[int]()
        successors: dict[int, list[int]] = {}
        while left:
            node = left.pop(self.world.prng.below(len(left)))
            if placed:
                successors.setdefault(self.world.prng.pick(placed), []).append(node)
            placed.append(node)
        return list(successors.items())

    async def _send(self, payload: SentPayload) -> None:
        """Send a payload, and take its ack. Raises: BasculeError."""
        prng = self.world.prng
        opening = self._opening(payload)
        has_route, payload.attempts = bool(opening.route), payload.attempts + 1
        writer = PayloadWriter(self._bootstrap, opening, timeout=prng.pick((2.0, 5.0)))
        try:
            async with writer:
                self._nodes = _nodes_of(writer)
                await self._write(writer, payload)
        except InvalidRoute:
            self._nodes = []
            if not has_route:
                raise
            await self._send(payload)
        else:
            assert writer.ack is not None
            self._take_ack(payload, writer.ack)

    async def _write(self, writer: PayloadWriter, payload: SentPayload) -> None:
        prng, content = self.world.prng, payload.content
        packet_bytes = max(int(prng.log_uniform(1, 20_000)), -(-payload.size // PACKETS_MAX), 1)
        packets = -(-payload.size // packet_bytes)
        pace = prng.log_uniform(0.0005, 0.3)
        lost_at = prng.below(packets + 1) if prng.happens(LOST) else -1
        loss = prng.pick((self._die, self._die, self._pause, self._cut_off))
        for number in range(packets):
            if number == lost_at and not self.is_safe:
                self.world.after(0, loss)
            await writer.write(content[number * packet_bytes : (number + 1) * packet_bytes])
            await writer._send_partial()
            if prng.happens(SYNCS):
                await writer.sync()
            await asyncio.sleep(pace)
        if lost_at == packets and not self.is_safe:
            self.world.after(prng.wait(20_000_000), loss)  # while it waits for its ack

    def _take_ack(self, payload: SentPayload, ack: PayloadAck) -> None:
        self._note(f"has the ack of {payload.id}: {ack.partition} {ack.offset} {ack.duplicate}")
        said = ack.stream, ack.payload_id, ack.payload_bytes, ack.payload_crc32c
        if said != (payload.stream, payload.id, payload.size, payload.crc):
            self.world.loop.report(ACKS, f"{payload} got {ack}")
        at = ack.partition, ack.offset
        for each in self._history.editions[payload.id]:
            is_of_this = each is payload and at == (each.partition, each.offset)
            if each.offset >= 0 and not is_of_this and not self._may_be_gone(each):
                self.world.loop.report(ONE_RECORD, f"{payload} got {ack}, and there is {each}")
        if payload.offset >= 0 and (ack.duplicate or at == (payload.partition, payload.offset)):
            return
        is_first = payload.offset < 0
        payload.partition, payload.offset = at
        if is_first:
            self.acked += 1
            self._history.on_acked(payload)
        try:
            self._on_ack(payload)
        except InvariantBroken as broken:
            self.world.loop.report(broken.name, broken.text)

    async def _read(self) -> None:
        """Read any payload that is acknowledged, or a part of it. Raises: BasculeError."""
        prng = self.world.prng
        payload = prng.pick(self._history.acked[self.plan.name])
        start, end = 0, -1
        if prng.happens(0.3):
            start = prng.below(payload.size + 1)
            end = prng.between(start, payload.size)
        fetch = FetchPayload(
            payload.stream, payload.partition, payload.id if prng.happens(0.3) else "",
            payload.offset, start, end,
        )  # fmt: skip
        reader = PayloadReader(self._bootstrap, fetch, timeout=5.0)
        try:
            async with reader:
                data = await reader.read()
        except UnknownPayload as error:
            if not self._may_be_gone(payload):
                self.world.loop.report(READ_RIGHT, f"{self.name}: {payload}: {error}")
            self.has_read += 1
            return
        except PayloadMissing as error:
            if self.is_safe and not self._may_be_gone(payload):
                raise
            self._note(f"hears of no leader: {error}")  # which knows whether the record is there
            return
        except PayloadDamaged as error:
            if not self._is_damaged(payload):
                raise
            self._note(f"gets no intact copy: {error}")  # the nodes that have one are cut off
            return
        read, found = Payload(reader.id, reader.size, reader.crc32c), payload
        if self._may_be_undone(payload):
            found = self._history.sent(read) or payload
        expected = found.content[start:] if end < 0 else found.content[start:end]
        if (reader.id, data) != (found.id, expected):
            self.world.loop.report(
                READ_RIGHT,
                f"{self.name} read {len(data)} bytes of {reader.id}, expected {start} to {end} of "
                f"{payload}",
            )
        self.has_read += 1


def is_expected(error: BasculeError) -> bool:
    """Whether a client may be told so while there are faults."""
    if isinstance(error, PublishRejected):
        return error.code == UNAVAILABLE
    return isinstance(error, Broken | Indeterminate | DiskFull)


def _nodes_of(writer: PayloadWriter) -> list[int]:
    """All nodes of the route."""
    nodes = {node: None for node, _ in writer.route}
    nodes |= {node: None for _, after in writer.route for node in after}
    return list(nodes)
