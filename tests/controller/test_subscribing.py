"""The subscriptions of a node follow its image, also after refusals and errors of NATS."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from bascule.controller.plan import plan
from bascule.errors import Broken
from bascule.host.real import RealRandom
from bascule.model import StreamConfig, StreamDefinition
from bascule.publish.unstamped_batch import Replica
from bascule.sim.disk import SimFiles
from bascule.wire.nats import NatsRefused
from support.controlled_node import ControlledNode


class FakeIngest:
    """Records the subscriptions; refuses the subjects in `denied`."""

    def __init__(self) -> None:
        self.denied: set[str] = set()
        self.subscribed: dict[str, int] = {}
        """Stream -> partitions."""
        self.unsubscribe_error: Exception | None = None

    async def subscribe(
        self, streams: Sequence[tuple[Sequence[Replica], Collection[int]]]
    ) -> Mapping[bytes, NatsRefused]:
        found = {}
        for replicas, led in streams:
            definition = replicas[0].definition
            self.subscribed[definition.name] = len(led)
            if definition.config.subject in self.denied:
                found[definition.id] = NatsRefused("denied")
        return found

    def configure(self, replicas: Sequence[Replica]) -> None:
        pass

    async def unsubscribe(self, definition: StreamDefinition) -> None:
        if self.unsubscribe_error is not None:
            raise self.unsubscribe_error
        self.subscribed.pop(definition.name, None)

    def refusals(self) -> dict[str, str]:
        return {}


def run(scenario: Callable[[ControlledNode, FakeIngest], Awaitable[None]]) -> None:
    async def go() -> None:
        async with ControlledNode(SimFiles(RealRandom(1))) as node:
            await scenario(node, FakeIngest())

    asyncio.run(go())


def test_a_node_starts_whose_only_stream_is_refused() -> None:
    async def scenario(node: ControlledNode, ingest: FakeIngest) -> None:
        await node.controller.create_stream("a", StreamConfig(subject="a"))
        ingest.denied = {"a"}
        await node.controller.attach(ingest, None)
        assert ingest.subscribed == {"a": 1}
        assert node.controller.pending_steps() == ()

    run(scenario)


def test_a_refused_stream_is_not_created_beside_one_that_cannot_be_opened() -> None:
    async def scenario(node: ControlledNode, ingest: FakeIngest) -> None:
        await node.controller.attach(ingest, None)
        await node.controller.create_stream("a", StreamConfig(subject="a"))
        open_file = node.files.open

        def fail(path: str, **options: bool) -> object:
            if "/a/" in path:
                raise OSError(errno.EIO, "EIO")
            return open_file(path, **options)

        node.files.open = fail  # type: ignore[method-assign,assignment]
        await node.controller.alter_stream("a", {"partitions": 2})
        assert node.controller.pending_steps(), "the second partition cannot be opened"
        ingest.denied = {"b"}
        with pytest.raises(NatsRefused):
            await node.controller.create_stream("b", StreamConfig(subject="b"))
        assert {info.definition.name for info in node.controller.stream_infos()} == {"a"}

    run(scenario)


def test_a_stream_is_subscribed_after_max_payload_could_not_be_raised_at_first() -> None:
    async def scenario(node: ControlledNode, ingest: FakeIngest) -> None:
        errors: list[Exception] = [Broken("not now")]

        async def raise_max_payload(size: int) -> None:
            if errors:
                raise errors.pop()

        await node.controller.create_stream("a", StreamConfig(subject="a"))
        with pytest.raises(Broken):
            await node.controller.attach(ingest, raise_max_payload)
        assert node.controller.pending_steps()
        await node.settle()
        assert ingest.subscribed == {"a": 1}
        assert node.controller.pending_steps() == ()

    run(scenario)


def test_reconciliation_that_ends_with_an_error_is_tried_again() -> None:
    async def scenario(node: ControlledNode, ingest: FakeIngest) -> None:
        await node.controller.attach(ingest, None)
        await node.controller.create_stream("a", StreamConfig(subject="a"))
        ingest.unsubscribe_error = RuntimeError("a bug")
        await node.controller.delete_stream("a")
        assert node.controller.pending_steps()
        ingest.unsubscribe_error = None
        await node.settle()
        assert ingest.subscribed == {}
        node.check_agreement()

    run(scenario)


def test_an_alteration_whose_subscription_is_refused_is_stored_and_reported() -> None:
    async def scenario(node: ControlledNode, ingest: FakeIngest) -> None:
        await node.controller.attach(ingest, None)
        await node.controller.create_stream("a", StreamConfig(subject="a"))
        ingest.denied = {"a"}
        with pytest.raises(NatsRefused):
            await node.controller.alter_stream("a", {"partitions": 2})
        assert node.controller.image.streams["a"].partition_count == 2
        assert ingest.subscribed == {"a": 2}

    run(scenario)


def test_a_deleted_stream_is_not_subscribed() -> None:
    async def scenario(node: ControlledNode, ingest: FakeIngest) -> None:
        await node.controller.attach(ingest, None)
        await node.controller.create_stream("a", StreamConfig(subject="a"))
        await node.controller.delete_stream("a")
        assert ingest.subscribed == {}

    run(scenario)


def test_a_partition_that_is_routed_in_a_handover_is_not_routed_again() -> None:
    """Its leader knows then over how many partitions it is to hash."""

    async def scenario(node: ControlledNode, ingest: FakeIngest) -> None:
        await node.controller.attach(ingest, None)
        await node.controller.create_stream("a", StreamConfig(subject="a", partitions=2))
        (partitions,) = node.partitions.streams().values()
        streams = node.reconciler.state.streams
        ((stream_id, held),) = streams.items()
        streams[stream_id] = replace(held, subscribed=frozenset(), routed_count=0)  # led by others
        for expected in ({"a": 2}, {}):
            ingest.subscribed.clear()
            await node.reconciler.route(partitions, to_here=True)
            assert ingest.subscribed == expected
            assert plan(node.reconciler.state, node.controller.image) == ()

    run(scenario)
