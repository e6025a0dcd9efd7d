"""`Environment`: what all machines of a run share."""

from __future__ import annotations

from collections.abc import Iterable

from bascule.host.api import Random
from bascule.raft import codec
from bascule.raft.messages import AnyMessage
from bascule.raft.multi.bundle import Bundle
from bascule.sim.checkers.base import Checkers
from bascule.sim.loop import SimLoop
from bascule.sim.network import Network
from bascule.sim.prng import Prng
from bascule.sim.raft.plan import RunPlan
from bascule.sim.raft.trace import Trace


class Environment:
    """Virtual time, the network, the PRNG and the checkers of a run."""

    __slots__ = ("_trace", "checkers", "loop", "network", "plan", "prng")

    def __init__(
        self, plan: RunPlan, prng: Prng, checkers: Checkers, trace: Trace | None = None
    ) -> None:
        self.plan = plan
        self.prng = prng
        self.checkers = checkers
        self.loop = SimLoop()
        self._trace = trace
        if trace is not None:
            trace.begin(self.loop)
        self.network = Network(self.loop, prng, plan.network)
        if plan.by_codec:
            self.network.carry = through_bytes

    def node_random(self) -> Random:
        """The source of a node's random numbers."""
        return self.prng

    def note(self, node_id: int, text: str) -> None:
        """Write a line of the trace, if there is one; node 0 is the simulator."""
        if self._trace is not None:
            self._trace.note(node_id, text)

    def send(self, source: int, messages: Iterable[AnyMessage]) -> None:
        """Send messages of a machine."""
        on_send, send = self.checkers.on_send, self.network.send
        for message in messages:
            on_send(source, message)
            send(message)

    def send_bundle(self, bundle: Bundle) -> None:
        """Send the bundle of a machine's process."""
        for _, message in bundle.messages:
            self.checkers.on_send(bundle.source, message)
        self.network.send(bundle)


def through_bytes(message: AnyMessage | Bundle) -> AnyMessage | Bundle:
    """The message or bundle after encoding and decoding, as a peer receives it."""
    if isinstance(message, Bundle):
        return codec.decode(codec.encode(message))
    bundle = Bundle(
        source=message.source,
        target=message.target,
        incarnation=1,
        heard_incarnation=0,
        clock=0,
        echo=0,
        session=0,
        heard_session=0,
        held=0,
        messages=((1, message),),
    )
    ((_, carried),) = codec.decode(codec.encode(bundle)).messages
    assert carried == message, (carried, message)
    return carried
