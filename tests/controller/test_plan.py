"""The plan leads from any state to the image, whatever fails on the way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bascule.controller.plan import (
    ApplyStates,
    CloseStream,
    ConfigureStream,
    NodeState,
    OpenPartitions,
    RegisterElsewhere,
    RemoveData,
    Step,
    StreamState,
    SubscribeStream,
    plan,
)
from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    ForgetDeletions,
    PauseStream,
    ResumeStream,
)
from bascule.metadata.image import Image
from bascule.metadata.requests import Alter
from bascule.model import NO_LEADER, PartitionState, StreamConfig, StreamDefinition
from support.deciding_controller import DecidingController

NAMES = ("a", "b")
LED = PartitionState((1,), (1,), 1, 0, 0)
"""The state of a partition whose only replica is on the node."""


FORGOTTEN_EARLY = 4
"""A stream is deleted, and its deletion forgotten, before the node hears of either."""


class Model:
    """An image, a node that follows it, and the directories that its steps leave."""

    def __init__(self) -> None:
        self.image = Image()
        self.state = NodeState(1, can_subscribe=True)
        self.created = 0
        self.directories: dict[str, bytes] = {}
        """Name -> id of the stream whose data is there."""

    def decide(self, kind: int, name: str) -> None:
        for command in self.commands(kind, name):
            self.image = apply(self.image, command)
        gone = self.state.removed - set(self.image.deletions)
        self.state.removed -= gone

    def commands(self, kind: int, name: str) -> list[Command]:
        present = self.image.streams.get(name)
        forget = ForgetDeletions(tuple(self.state.removed))
        if present is None:
            # As the controller does: the directory of the name is claimed first.
            if self.directories.get(name) in {*self.image.deletions, *self.state.closed}:
                del self.directories[name]
            if name in self.directories:
                return []
            self.created += 1
            id = self.created.to_bytes(16, "big")
            definition = StreamDefinition(name, id, 0, StreamConfig(name))
            return [forget, CreateStream(definition, (LED,))]
        config = replace(present.config, partitions=present.config.partitions + 1)
        change: Command = (
            DeleteStream(name, present.id),
            AlterStream(name, present.id, config, (LED,)),
            PauseStream(name, present.id),
            ResumeStream(name, present.id),
            DeleteStream(name, present.id),
        )[kind]
        if kind == FORGOTTEN_EARLY:
            return [change, ForgetDeletions((present.id,))]
        return [forget, change]

    def carry_out(self, step: Step) -> None:
        """What the reconciler does, on names alone."""
        streams = self.state.streams
        if isinstance(step, CloseStream):
            del streams[step.definition.id]
            self.state.closed[step.definition.id] = step.definition.name
        elif isinstance(step, RemoveData):
            assert step.stream_id not in streams, "closed before its data goes"
            if self.directories.get(step.name) == step.stream_id:
                del self.directories[step.name]
            self.state.closed.pop(step.stream_id, None)
            if step.stream_id in self.image.deletions:
                self.state.removed.add(step.stream_id)
        elif isinstance(step, OpenPartitions):
            definition = step.definition
            owner = self.directories.setdefault(definition.name, definition.id)
            assert owner == definition.id, "a directory is one stream's"
            names = {held.definition.name for id, held in streams.items() if id != definition.id}
            assert definition.name not in names, "a name is one open stream's"
            held = streams.get(definition.id) or StreamState(definition)
            streams[definition.id] = replace(
                held,
                definition=definition,
                opened={**held.opened, **dict.fromkeys(step.indexes, 0)},
            )
        elif isinstance(step, ConfigureStream):
            definition = step.definition
            streams[definition.id] = replace(streams[definition.id], definition=definition)
        elif isinstance(step, ApplyStates):
            held = streams[step.definition.id]
            assert held.opened.keys() >= step.states.keys(), "a partition without a log has no role"
            streams[step.definition.id] = replace(held, states={**held.states, **step.states})
        else:
            assert isinstance(step, SubscribeStream)
            held = streams[step.definition.id]
            count = step.definition.partition_count
            streams[step.definition.id] = replace(held, subscribed=step.led, routed_count=count)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(NAMES), st.integers(0, 4), st.booleans()),
        max_size=25,
    )
)
def test_the_node_becomes_as_the_image_says(history: list[tuple[int, str, int, bool]]) -> None:
    """Each decision is followed by as many steps of the plan as succeed; the rest is done later."""
    model = Model()
    for kind, name, succeed, removals_fail in history:
        model.decide(kind, name)
        for step in plan(model.state, model.image)[:succeed]:
            if not (removals_fail and isinstance(step, RemoveData)):
                model.carry_out(step)
    for step in plan(model.state, model.image):
        model.carry_out(step)
    assert plan(model.state, model.image) == ()
    wanted = {definition.id: definition for definition in model.image.streams.values()}
    assert {id: held.definition for id, held in model.state.streams.items()} == wanted
    for id, definition in wanted.items():
        held = model.state.streams[id]
        assert held.opened.keys() == set(range(definition.partition_count))
        assert held.subscribed == set(range(definition.partition_count))
    assert model.directories == {name: d.id for name, d in model.image.streams.items()}


def test_nothing_is_subscribed_before_nats_is_connected() -> None:
    model = Model()
    model.decide(0, "a")
    model.state.can_subscribe = False
    steps = plan(model.state, model.image)
    assert [type(step) for step in steps] == [OpenPartitions, ApplyStates]
    for step in steps:
        model.carry_out(step)
    assert plan(model.state, model.image) == ()
    model.state.can_subscribe = True
    assert [type(step) for step in plan(model.state, model.image)] == [SubscribeStream]


def test_a_node_that_no_controller_reaches_leads_nothing_and_unsubscribes() -> None:
    model = Model()
    model.decide(0, "a")
    for step in plan(model.state, model.image):
        model.carry_out(step)
    (held,) = model.state.streams.values()
    every = frozenset(held.states)
    model.state.is_suspended = True
    resigned, unsubscribed = plan(model.state, model.image)
    assert isinstance(resigned, ApplyStates)
    assert {each.leader for each in resigned.states.values()} == {NO_LEADER}
    assert unsubscribed == SubscribeStream(held.definition, frozenset())
    for step in (resigned, unsubscribed):
        model.carry_out(step)
    assert plan(model.state, model.image) == ()
    model.state.is_suspended = False
    leading, subscribed = plan(model.state, model.image)
    assert isinstance(leading, ApplyStates)
    assert subscribed == SubscribeStream(held.definition, every)


def test_a_partition_that_could_not_be_opened_is_in_the_next_plan() -> None:
    definition = StreamDefinition("a", b"1" * 16, 0, StreamConfig("a", partitions=3))
    image = apply(Image(), CreateStream(definition, (LED,) * 3))
    every, states = frozenset({0, 1, 2}), dict.fromkeys(range(3), LED)
    held = StreamState(definition, opened={0: 0, 2: 0}, subscribed=every, states=states)
    state = NodeState(1, streams={definition.id: held}, can_subscribe=True)
    assert plan(state, image) == (
        OpenPartitions(definition, (1,)),
        ApplyStates(definition, {1: LED}),
        SubscribeStream(definition, every),
    )


def test_a_partition_that_is_made_known_again_gets_its_state_again() -> None:
    """As after its data could not be removed: what is registered then knows no leader."""
    elsewhere = PartitionState((2,), (2,), leader=2, leader_epoch=3, version=7)
    definition = StreamDefinition("a", b"1" * 16, 0, StreamConfig("a"))
    image = apply(Image(), CreateStream(definition, (elsewhere,)))
    held = StreamState(definition, states={0: elsewhere})
    state = NodeState(1, streams={definition.id: held}, can_subscribe=True)
    assert plan(state, image) == (
        RegisterElsewhere(definition, (0,)),
        ApplyStates(definition, {0: elsewhere}),
    )


def test_a_leader_takes_another_min_isr_with_its_state() -> None:
    controller = DecidingController()
    controller.register(1, 2)
    stream_id = controller.create("a", replicas=2, partitions=2)
    states = controller.image.partitions[stream_id]
    led = {index for index, state in enumerate(states) if state.leader == 1}
    assert len(led) == 1
    held = StreamState(
        controller.image.streams["a"],
        opened={0: 0, 1: 0},
        subscribed=frozenset(led),
        routed_count=2,
        states=dict(enumerate(states)),
    )
    node = NodeState(1, streams={stream_id: held}, can_subscribe=True)
    assert plan(node, controller.image) == ()
    for changes, expected in (({"retention_messages_max": 5}, set()), ({"min_isr": 1}, led)):
        controller.submit(Alter("a", changes))
        definition = controller.image.streams["a"]
        steps = plan(node, controller.image)
        assert steps[0] == ConfigureStream(definition)
        applied = {index for step in steps[1:] for index in getattr(step, "states", ())}
        assert applied == expected


def test_a_leader_routes_again_where_the_stream_gets_partitions_that_others_lead() -> None:
    """It hashes subjects or keys over all partitions, or is in a queue group from then on."""
    definition = StreamDefinition("a", b"1" * 16, 0, StreamConfig("a", partitions=1))
    elsewhere = PartitionState((2,), (2,), leader=2, leader_epoch=1, version=1)
    image = apply(Image(), CreateStream(definition, (LED,)))
    held = StreamState(
        definition, opened={0: 0}, subscribed=frozenset({0}), routed_count=1, states={0: LED}
    )
    state = NodeState(1, streams={definition.id: held}, can_subscribe=True)
    assert plan(state, image) == ()
    longer = replace(definition, config=replace(definition.config, partitions=2))
    image = apply(Image(), CreateStream(longer, (LED, elsewhere)))
    again = SubscribeStream(longer, frozenset({0}))
    assert plan(state, image)[-1] == again
    # As after a subscription that has failed: all else is done.
    state.streams[definition.id] = replace(
        held, definition=longer, elsewhere=frozenset({1}), states={0: LED, 1: elsewhere}
    )
    assert plan(state, image) == (again,)
    state.streams[definition.id] = replace(state.streams[definition.id], routed_count=2)
    assert plan(state, image) == ()
