"""Connections between the processes of a simulation: delays, cuts and resets.

A connection keeps the order of what is sent. What arrives at a cut link waits for its end, as
retransmissions do; a sender whose bytes wait for `UNACKED_NS` gives the connection up. The kernel
of a machine accepts connections and closes those of a killed process; a machine without power
answers nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from bascule.sim.cluster.world.loop import NS, ClusterLoop, LoopProcess
from bascule.sim.cluster.world.sockets import ListeningSocket, SimSocket, SocketLayer
from bascule.sim.prng import Prng

Address = tuple[str, int]
UNACKED_NS: Final = 5 * NS
"""As TCP_USER_TIMEOUT of the production code."""
SYN_NS: Final = NS
"""Between two attempts of a kernel to connect."""
RESEND_NS: Final = NS // 5
"""What was held back by a cut link arrives within this time after its end."""


def host_of(node: int) -> str:
    """The host of a node."""
    return f"10.0.0.{node}"


def node_at(host: str) -> int:
    """The node of a host."""
    return int(host.rpartition(".")[2])


@dataclass(slots=True)
class LinkConditions:
    """Times in nanoseconds."""

    delay_ns: int = 100_000
    jitter_ns: int = 200_000


class ConnectionEnd:
    """What one process has of a connection."""

    def __init__(self, network: StreamNetwork, process: LoopProcess, peer_address: Address) -> None:
        self._network = network
        self.process = process
        self.node = process.machine.node
        self.peer_address = peer_address
        self.peer: ConnectionEnd = self
        self.is_open = True
        self.has_closed = False
        self.on_data: Callable[[bytes], None] = self._keep
        self.on_end: Callable[[], None] = lambda: None
        self.on_reset: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        """Called when a bounded socket takes bytes again."""
        self.unread = 0
        """Bytes of a bounded socket that the other end has not read."""
        self.is_full = False
        """Whether its process waits for room."""
        self.early = bytearray()
        """What came before somebody reads."""
        self._last_ns = 0
        self._late = 0
        """Deliveries that its process gets once it goes on."""
        self.held: deque[bytes | None] = deque()
        """What waits at the cut link to this end; None is the end of the connection."""

    @property
    def address(self) -> Address:
        """Its own one."""
        return self.peer.peer_address

    def _keep(self, data: bytes) -> None:
        self.early += data

    def send(self, data: bytes) -> None:
        """Send bytes."""
        if self.is_open and not self.has_closed:
            self._send(data)

    def note_read(self, count: int) -> None:
        """The process at this end has read bytes."""
        peer = self.peer
        if peer.unread:
            peer.unread = max(peer.unread - count, 0)
            if peer.is_full:
                peer.is_full = False
                self._network.run(peer.process, peer.on_room)

    def close(self) -> None:
        """Send no more, and receive nothing."""
        if not self.has_closed:
            self.has_closed = True
            self._network.forget(self)
            if self.is_open:
                self._send(None)

    def _send(self, data: bytes | None) -> None:
        network, peer = self._network, self.peer
        when_ns = network.arrival_ns(self.node, peer.node)
        if when_ns <= peer._last_ns:
            when_ns = peer._last_ns + 1
        peer._last_ns = when_ns
        network.loop.for_nobody(when_ns, self.deliver, data)

    def deliver(self, data: bytes | None) -> None:
        """What this end has sent is at the other machine, unless the link is cut."""
        network, peer = self._network, self.peer
        if peer.held or network.has_cuts:
            if peer.held or network.is_cut(self.node, peer.node):
                if not peer.held:
                    network.hold(peer)
                peer.held.append(data)
                return
            if network.is_cut(peer.node, self.node):
                network.expect_ack(self)
        if not peer.is_open or peer.has_closed or peer.process.is_dead:
            if data is not None and self._network.has_power(peer.node):
                self._network.reset_later(self)
            return
        if data is None:
            peer.is_open = False
            self._network.run(peer.process, peer.on_end)
        elif peer.process.is_paused or peer._late:
            peer._late += 1
            self._network.run(peer.process, peer._deliver_late, data)
        else:
            # The kernel puts it into the buffer of the socket, which wakes whoever reads.
            peer.process.context.run(peer.on_data, data)

    def _deliver_late(self, data: bytes) -> None:
        """The process has gone on."""
        self._late -= 1
        self.on_data(data)

    def reset(self) -> None:
        """The kernel gives the connection up."""
        if self.is_open and not self.has_closed:
            self.is_open = False
            self._network.forget(self)
            self._network.run(self.process, self.on_reset)


class Dial:
    """An attempt to connect."""

    def __init__(
        self,
        network: StreamNetwork,
        process: LoopProcess,
        address: Address,
        on_open: Callable[[ConnectionEnd], object],
        on_fail: Callable[[BaseException], object],
    ) -> None:
        self._network, self._process, self._address = network, process, address
        self._on_open, self._on_fail = on_open, on_fail
        self.is_over = self._is_cancelled = False
        self.target = node_at(address[0])
        self._try()

    def cancel(self) -> None:
        """The caller waits no longer."""
        self.is_over = self._is_cancelled = True

    def _try(self) -> None:
        if self.is_over or self._process.is_dead:
            return
        network, source = self._network, self._process.machine.node
        network.loop.for_nobody(network.arrival_ns(source, self.target), self._arrive)
        network.loop.for_nobody(network.loop.now_ns + SYN_NS, self._try)

    def _arrive(self) -> None:
        network, process = self._network, self._process
        source = process.machine.node
        is_cut = network.is_cut(source, self.target) or network.is_cut(self.target, source)
        if self.is_over or process.is_dead or is_cut or not network.has_power(self.target):
            return
        self.is_over = True
        listener = network.listeners.get(self._address)
        back_ns = network.arrival_ns(self.target, source)
        if listener is None or listener.process.is_dead:
            error = ConnectionRefusedError(111, "Connection refused")
            network.loop.at_ns(back_ns, process.context, self._failed, error)
            return
        network.port += 1
        near = ConnectionEnd(network, process, self._address)
        far = ConnectionEnd(network, listener.process, (process.machine.host, network.port))
        near.peer, far.peer = far, near
        near._last_ns = back_ns
        network.remember(near)
        network.remember(far)
        accepted = SimSocket(network.layer, far)
        network.layer.register(accepted)
        network.run(listener.process, listener.admit, accepted)
        network.loop.at_ns(back_ns, process.context, self._opened, near)

    def _opened(self, end: ConnectionEnd) -> None:
        if self._is_cancelled:
            end.close()
        else:
            self._on_open(end)

    def _failed(self, error: OSError) -> None:
        if not self._is_cancelled:
            self._on_fail(error)


class StreamNetwork:
    """All links and connections."""

    def __init__(self, loop: ClusterLoop, prng: Prng, conditions: LinkConditions) -> None:
        self.loop = loop
        self._prng = prng
        self._conditions = conditions
        self._cut: dict[tuple[int, int], None] = {}
        self.has_cuts = False
        """Whether any link is cut."""
        self._slow_ns: dict[tuple[int, int], int] = {}
        self._ends: dict[ConnectionEnd, None] = {}
        self._held: dict[ConnectionEnd, None] = {}
        self.listeners: dict[Address, ListeningSocket] = {}
        self.port = 40_000
        self.layer = SocketLayer(loop, self)
        self.powerless: dict[int, None] = {}
        """Machines that are switched off."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called when links or machines have changed."""
        self.messages = 0

    # -- faults -------------------------------------------------------------------------------

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        """Carry nothing over these links (source, target) from now on."""
        for link in links:
            self._cut[link] = None
        self.has_cuts = bool(self._cut)
        self.on_changed()

    def restore(self, links: Iterable[tuple[int, int]] | None = None) -> None:
        """End the cut of these links, or of all; what was held back arrives."""
        for link in list(self._cut) if links is None else links:
            self._cut.pop(link, None)
        self.has_cuts = bool(self._cut)
        for end in list(self._held):
            if not self.is_cut(end.peer.node, end.node):
                del self._held[end]
                when_ns = self.loop.now_ns + self._prng.below(RESEND_NS)
                self.loop.for_nobody(when_ns, self._flush, end)
        self.on_changed()

    def slow(self, links: Iterable[tuple[int, int]], by_ns: int) -> None:
        """Delay everything over these links; 0 ends the delay."""
        for link in links:
            if by_ns:
                self._slow_ns[link] = by_ns
            else:
                self._slow_ns.pop(link, None)

    def on_process_ended(self, process: LoopProcess, *, has_power: bool) -> None:
        """A process was killed: its kernel closes what it had open, unless it has no power."""
        node = process.machine.node
        if not has_power:
            self.powerless[node] = None
        for address, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[address]
        for end in list(self._ends):
            if end.process is process:
                self.forget(end)
                if has_power:
                    end._send(None)
        self.on_changed()

    def on_power(self, node: int) -> None:
        """A machine is switched on again."""
        self.powerless.pop(node, None)
        self.on_changed()

    # -- for connections ----------------------------------------------------------------------

    def listen(self, listener: ListeningSocket) -> None:
        self.listeners[listener.address] = listener

    def stop_listening(self, listener: ListeningSocket) -> None:
        if self.listeners.get(listener.address) is listener:
            del self.listeners[listener.address]

    def dial(
        self,
        process: LoopProcess,
        address: Address,
        on_open: Callable[[ConnectionEnd], object],
        on_fail: Callable[[BaseException], object],
    ) -> Dial:
        """Connect; one of the functions is called in the context of the process."""
        return Dial(self, process, address, on_open, on_fail)

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cut

    def has_power(self, node: int) -> bool:
        return node not in self.powerless

    def arrival_ns(self, source: int, target: int) -> int:
        """When something arrives that is sent now."""
        self.messages += 1
        conditions = self._conditions
        delay_ns = conditions.delay_ns + self._prng.word() % (conditions.jitter_ns + 1)
        if self._slow_ns:
            delay_ns += self._slow_ns.get((source, target), 0)
        return self.loop.now_ns + delay_ns

    def run(self, process: LoopProcess, function: Callable[..., object], *args: Any) -> None:
        """Have a process do something now; later, if it is paused."""
        self.loop.at_ns(self.loop.now_ns, process.context, function, *args)

    def remember(self, end: ConnectionEnd) -> None:
        self._ends[end] = None

    def forget(self, end: ConnectionEnd) -> None:
        self._ends.pop(end, None)

    def hold(self, end: ConnectionEnd) -> None:
        """Something waits at the cut link to this end."""
        self._held[end] = None
        self.expect_ack(end.peer)

    def expect_ack(self, end: ConnectionEnd) -> None:
        """What this end has sent is not acknowledged; the kernel waits for that."""
        self.loop.for_nobody(self.loop.now_ns + UNACKED_NS, self._check_ack, end)

    def _check_ack(self, end: ConnectionEnd) -> None:
        node, peer = end.node, end.peer.node
        if end.peer.held or self.is_cut(node, peer) or self.is_cut(peer, node):
            end.reset()

    def reset_later(self, end: ConnectionEnd) -> None:
        """The other kernel does not know the connection any more."""
        self.loop.for_nobody(self.arrival_ns(end.peer.node, end.node), end.reset)

    def _flush(self, end: ConnectionEnd) -> None:
        held, end.held = end.held, deque()
        for data in held:
            end.peer.deliver(data)
