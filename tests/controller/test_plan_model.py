"""The plan leads to the image, whatever is decided, fails and ends on the way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.controller.plan import (
    ApplyStates,
    CloseStream,
    ConfigureStream,
    DropReplicas,
    NodeState,
    OpenPartitions,
    RegisterElsewhere,
    RemoveData,
    Step,
    StreamState,
    SubscribeStream,
    plan,
)
from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionState
from support.decided_images import CHANGE, NODE, ROUNDS, Change, Decisions


@dataclass(slots=True)
class Known:
    """A partition that listeners of the node know."""

    has_log: bool
    state: PartitionState | None = None


@dataclass(slots=True)
class Model:
    """A node that follows the images, as the reconciler has it do."""

    image: Image
    state: NodeState = field(default_factory=lambda: NodeState(NODE, can_subscribe=True))
    known: dict[tuple[bytes, int], Known] = field(default_factory=dict)
    disk: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """The logs, with the version that made the node a replica."""
    failing: frozenset[str] = frozenset()

    def restart(self) -> None:
        self.state, self.known = NodeState(NODE, can_subscribe=True), {}

    def let_go(self, stream_id: bytes, index: int) -> None:
        """As a repair does."""
        held = self.state.streams.get(stream_id)
        if held is not None and index in held.opened:
            opened = {i: since for i, since in held.opened.items() if i != index}
            states = {i: each for i, each in held.states.items() if i != index}
            self.state.streams[stream_id] = replace(held, opened=opened, states=states)

    def carry_out(self, step: Step) -> None:
        if isinstance(step, CloseStream):
            del self.state.streams[step.definition.id]
            self.state.closed[step.definition.id] = step.definition.name
            for key in [key for key in self.known if key[0] == step.definition.id]:
                del self.known[key]
            return
        if isinstance(step, RemoveData):
            assert self.image.stream_of(step.stream_id) is None, "of a stream that is there"
            if "remove" not in self.failing:
                for key in [key for key in self.disk if key[0] == step.stream_id]:
                    del self.disk[key]
                self.state.closed.pop(step.stream_id, None)
                if step.stream_id in self.image.deletions:
                    self.state.removed.add(step.stream_id)
            return
        id = step.definition.id
        held = self.state.streams.get(id) or StreamState(step.definition)
        if isinstance(step, OpenPartitions):
            self.state.streams[id] = self._open(step, held)
        elif isinstance(step, RegisterElsewhere):
            if "list" not in self.failing:
                kept = self._remove(step, step.indexes)
                self.known |= {(id, i): Known(has_log=False) for i in step.indexes}
                elsewhere = held.elsewhere | set(step.indexes) - kept
                self.state.streams[id] = replace(held, elsewhere=elsewhere)
        elif isinstance(step, DropReplicas):
            self.state.streams[id] = self._drop(step, held)
        elif isinstance(step, ApplyStates):
            done = {i: each for i, each in step.states.items() if self._apply(id, i, each)}
            self.state.streams[id] = replace(held, states={**held.states, **done})
        elif isinstance(step, SubscribeStream):
            self.state.streams[id] = replace(
                held,
                subscribed=step.led & held.states.keys(),
                routed_count=sum(key[0] == id for key in self.known),
            )
        else:
            assert isinstance(step, ConfigureStream)
            if id in self.state.streams:
                self.state.streams[id] = replace(held, definition=step.definition)

    def _open(self, step: OpenPartitions, held: StreamState) -> StreamState:
        id, indexes = step.definition.id, set(step.indexes)
        is_done = "open" not in self.failing
        opened = {}
        for i in step.indexes:
            since = step.since.get(i, 0)
            if self.disk.get((id, i), since) < since and "remove" not in self.failing:
                del self.disk[id, i]
            is_done &= self.disk.get((id, i), since) >= since
        for i in step.indexes:
            since = step.since.get(i, 0)
            self.known[id, i] = Known(has_log=is_done)
            if is_done:
                assert self.disk.setdefault((id, i), since) == since, "a log of another replica"
                opened[i] = since
        return replace(
            held,
            definition=step.definition,
            opened={**held.opened, **opened},
            elsewhere=held.elsewhere - indexes,
            states={i: each for i, each in held.states.items() if i not in indexes},
        )

    def _drop(self, step: DropReplicas, held: StreamState) -> StreamState:
        id = step.definition.id
        in_force = {i: held.states[i] for i in step.indexes if i in held.states}
        chosen = {i for i, each in in_force.items() if NODE not in each.replicas}
        kept = self._remove(step, chosen)
        self.known |= {(id, i): Known(has_log=False, state=in_force[i]) for i in chosen}
        opened = {i: since for i, since in held.opened.items() if i not in chosen}
        return replace(held, opened=opened, elsewhere=held.elsewhere | (chosen - kept))

    def _remove(self, step: RegisterElsewhere | DropReplicas, indexes: Collection[int]) -> set[int]:
        """Remove logs; which could not be removed."""
        id = step.definition.id
        kept = set()
        for i in indexes:
            if (id, i) not in self.disk:
                continue
            state = self.image.partitions[id][i]
            asked = NODE not in state.replicas or state.replica_since(NODE) != self.disk[id, i]
            assert asked, "the image gives this log to this node"
            if "remove" in self.failing:
                kept.add(i)
            else:
                del self.disk[id, i]
        return kept

    def _apply(self, id: bytes, index: int, state: PartitionState) -> bool:
        known = self.known.get((id, index))
        if known is None or (known.has_log and "apply" in self.failing):
            return False
        assert {*state.isr} <= {*state.replicas}
        assert state.leader in (NO_LEADER, *state.isr), "only a replica leads, and with its own log"
        before = known.state
        is_older = before is not None and (
            (state.leader_epoch, state.version) < (before.leader_epoch, before.version)
        )
        if not is_older:
            known.state = state
        return True

    def check(self) -> None:
        """The node is as the image says."""
        wanted = {d.id: d for d in self.image.streams.values()}
        held = self.state.streams
        assert {id: each.definition for id, each in held.items()} == wanted
        keys = {(id, i) for id, d in wanted.items() for i in range(d.partition_count)}
        assert self.known.keys() == keys
        for id, i in keys:
            state = self.image.partitions[id][i]
            if self.state.is_suspended and state.leader == NODE:
                state = replace(state, leader=NO_LEADER)
            known = self.known[id, i]
            assert known.state == state
            assert known.has_log == (NODE in state.replicas)
            assert (i in held[id].subscribed) == (state.leader == NODE)
            assert state.leader != NODE or held[id].routed_count == wanted[id].partition_count
        logs = {
            (id, i): self.image.partitions[id][i].replica_since(NODE)
            for id, i in keys
            if NODE in self.image.partitions[id][i].replicas
        }
        assert self.disk == logs


@given(
    st.lists(
        st.tuples(
            st.lists(CHANGE, max_size=3),
            st.frozensets(st.sampled_from(["open", "list", "remove", "apply"]), max_size=2),
            st.sampled_from(["", "", "", "restart", "let go", "suspend"]),
        ),
        max_size=12,
    )
)
@settings(max_examples=300)
def test_a_node_becomes_as_the_image_says_whatever_moves_and_fails(
    history: list[tuple[list[Change], frozenset[str], str]],
) -> None:
    decisions = Decisions(Image())
    model = Model(decisions.image)
    for decided, failing, event in history:
        for change in decided:
            decisions.decide(change)
        model.image, model.failing = decisions.image, failing
        model.state.removed -= model.state.removed - set(model.image.deletions)
        if event == "restart":
            model.restart()
        elif event == "let go":
            for stream_id in list(model.state.streams):
                model.let_go(stream_id, 0)
        elif event == "suspend":
            model.state.is_suspended = not model.state.is_suspended
        for step in plan(model.state, model.image):
            model.carry_out(step)
    model.failing = frozenset()
    for _ in range(ROUNDS):
        for step in plan(model.state, model.image):
            model.carry_out(step)
    assert plan(model.state, model.image) == ()
    assert not model.state.closed, "what it has closed is removed"
    # A deletion that was forgotten while this node had not heard of it is put aside at a start.
    known = {d.id for d in model.image.streams.values()}
    model.disk = {key: since for key, since in model.disk.items() if key[0] in known}
    model.check()
