"""`ClusterEnvironment`: what all parts of a simulation share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bascule.replica.partition import Partition
from bascule.sim.cluster.plan import ClusterPlan
from bascule.sim.cluster.trace import ClusterTrace
from bascule.sim.cluster.world.heartbeats import HeartbeatBoard
from bascule.sim.cluster.world.loop import ClusterLoop
from bascule.sim.cluster.world.nats import SimNats
from bascule.sim.cluster.world.network import LinkConditions, StreamNetwork
from bascule.sim.cluster.world.process import SimProcess
from bascule.sim.prng import Prng


class ClusterEnvironment:
    """Time, network, NATS and random choices of a run."""

    def __init__(
        self, plan: ClusterPlan, prng: Prng, loop: ClusterLoop, trace: ClusterTrace
    ) -> None:
        self.plan = plan
        self.prng = prng
        self.loop = loop
        self.trace = trace
        self.network = StreamNetwork(loop, prng, LinkConditions(plan.delay_ns, plan.jitter_ns))
        self.heartbeats = HeartbeatBoard(self.network)
        self.network.on_changed = self.heartbeats.look
        self.nats = SimNats(loop, prng)
        self.founders = tuple(range(1, plan.nodes + 1))
        self.weakest = {stream.name: stream for stream in plan.streams}
        """What each stream has promised at least, with all settings that it was given so far."""
        self.stream_names = [stream.name for stream in plan.streams]
        self.graveyard: list[SimProcess] = []
        """The processes that have ended. What they left behind must not be collected."""
        self.on_role: Callable[[SimProcess, Partition], None] = lambda _, __: None
        """Called when a partition has another role on a node."""
        self.closing: list[Callable[[], None]] = []
        """Called when the run is over."""
        self.coordinator = (-1, "")
        """The latest leader epoch of `_offsets` in which a node led, and that node's host."""
        self.knows_groups: Callable[[str], bool] = lambda _: True
        """Whether the node on a host has loaded all groups that it coordinates."""
        self.on_request: Callable[[SimProcess, bytes, int, bool], None] = lambda *_: None
        """Called with the id of a request, the index of its entry in the log of the metadata, and
        whether it takes effect on a node."""
        self.on_purge: Callable[[str, int, int, bool], None] = lambda *_: None
        """Called with a stream, a partition, the offset up to which it is purged, and whether that
        is confirmed, and not only asked for."""
        self.on_grow: Callable[[str, int], None] = lambda *_: None
        """Called with a stream that is to get more partitions, and the time."""
        self.purge_limit: Callable[[int, Partition], int] = lambda _, held: held.committed_offset
        """Up to which offset a partition may be purged, that this node leads."""
        self.is_damaged: Callable[[int], bool] = lambda _: False
        """Whether a log on the disk of a node was damaged."""
        self.publishes_swaps = False
        """Whether clients of tables write over NATS only to set what they have read, and write at
        nodes otherwise: a leader that hears of nothing else appends nothing."""
        self.on_process_ends: Callable[[int], None] = lambda _: None
        """Called with the node of a process that is about to end."""

    def end_process(self, process: SimProcess, *, has_power: bool = True) -> None:
        """End a process at once: nothing of it runs any more. Its kernel closes its connections,
        if it has power."""
        process.is_dead = True
        process.parked.clear()
        self.graveyard.append(process)
        self.network.on_process_ended(process, has_power=has_power)

    def at(self, when_ns: int, function: Callable[..., object], *args: Any) -> None:
        """Have the simulator do something at a time."""
        self.loop.for_nobody(when_ns, function, *args)

    def after(self, delay_ns: int, function: Callable[..., object], *args: Any) -> None:
        """Have the simulator do something after some time."""
        self.at(self.loop.now_ns + delay_ns, function, *args)

    def note(self, node: int, text: str) -> None:
        """An event for the trace; node 0 is the simulator."""
        self.trace.note(f"n{node}" if node else "--", text)
