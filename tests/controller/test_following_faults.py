"""A node follows its image also where something fails between two steps of a plan."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.controller.directories import StreamDirectories
from bascule.errors import Broken, Closed, PartitionFailed
from bascule.host.real import RealRandom
from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    AlterStream,
    ChangePartitions,
    CreateStream,
    DeleteStream,
    PartitionChange,
)
from bascule.metadata.image import Deletion, Image
from bascule.model import PartitionState, StreamConfig, StreamDefinition
from bascule.replica.log_identity import FILE_NAME as IDENTITY_FILE
from bascule.replica.log_identity import LogIdentity, read_identity, write_identity
from bascule.replica.partition import Partition
from bascule.sim.disk import SHORT, SimFiles
from support.controlled_node import DATA, ControlledNode
from support.decided_images import CHANGE, NODE, ROUNDS, Change, Decisions

ONE, TWO = b"1" * 16, b"2" * 16
ALONE: Final = PartitionState((1,), (1,), 1, 1, 1)
THERE: Final = PartitionState((2, 3), (2, 3), 2, 7, 9)


def run(scene: Callable[[ControlledNode, SimFiles], Awaitable[None]]) -> None:
    files = SimFiles(RealRandom(1))

    async def go() -> None:
        async with ControlledNode(files) as node:
            await scene(node, files)
            # The image of its own controller, which knows no stream.
            await node.reconciler.reconcile(node.controller.image)

    asyncio.run(go())


async def follow(node: ControlledNode, image: Image) -> None:
    """Follow `image` until nothing is left to do."""
    for _ in range(3):
        assert await node.reconciler.reconcile(image) == {}
    assert node.reconciler.pending(image) == ()


def check_states(node: ControlledNode, image: Image, name: str) -> None:
    """Each partition is known under its index, with the state that the image gives it."""
    present = node.partitions.stream(name) or ()
    states = image.partitions[image.streams[name].id]
    assert [each.index for each in present] == list(range(len(states)))
    assert [each.state for each in present] == list(states)


def test_a_partition_does_not_get_the_state_of_one_that_could_not_be_made_known() -> None:
    """Nor is it in its place meanwhile: readers take partitions by number."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s", partitions=2))
    image = apply(Image(), CreateStream(definition, (THERE, ALONE)))

    async def scene(node: ControlledNode, files: SimFiles) -> None:
        list_dir = files.list_dir

        def fail(path: str) -> list[str]:
            if path == f"{DATA}/streams":
                raise OSError(errno.EMFILE, "too many open files", path)
            return list_dir(path)

        def check_places(_: StreamDefinition) -> None:
            assert [each.index for each in node.partitions.stream("s") or ()] == [0, 1]

        node.partitions.on_changed.add(check_places)
        files.list_dir = fail  # type: ignore[method-assign]
        assert await node.reconciler.reconcile(image)
        check_states(node, image, "s")
        files.list_dir = list_dir  # type: ignore[method-assign]
        await follow(node, image)
        check_states(node, image, "s")
        node.partitions.on_changed.discard(check_places)

    run(scene)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_deleted_stream_takes_nothing_of_the_next_one_of_its_name_along(is_gone: bool) -> None:
    """The deletion is recorded until the last node is done, and each start carries it out again;
    the identity of the log is damaged, or gone, meanwhile."""
    old, new = (StreamDefinition("s", id, 0, StreamConfig("s")) for id in (ONE, TWO))
    both = PartitionState((1, 2), (1, 2), 1, 1, 1)
    image = apply(apply(Image(), CreateStream(old, (both,))), DeleteStream("s", ONE))
    image = apply(image, CreateStream(new, (ALONE,)))
    assert ONE in image.deletions
    place = f"{DATA}/streams/s/0"

    async def scene(node: ControlledNode, files: SimFiles) -> None:
        await follow(node, image)
        await node.publish("s", [b"kept"])
        await node.reconciler.let_go(new, [0])
        logs = [name for name in files.list_dir(place) if name.endswith(".log")]
        if is_gone:
            files.remove(f"{place}/{IDENTITY_FILE}")
        else:
            file = files.open(f"{place}/{IDENTITY_FILE}")
            file.truncate(8)
            file.close()
        node.reconciler.state.removed.clear()  # as after a start
        await node.reconciler.reconcile(image)
        kept = [
            f"{at}/{name}"
            for at in (place, f"{DATA}/aside/s.1/0")
            if files.exists(at)
            for name in files.list_dir(at)
            if name in logs
        ]
        assert kept, files.list_dir(f"{DATA}/streams")

    run(scene)


def test_max_payload_is_raised_again_where_that_failed_while_partitions_were_opened() -> None:
    """The node leads none of those that are opened, so it does not subscribe anew."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s"))
    created = apply(Image(), CreateStream(definition, (ALONE,)))
    config = StreamConfig("s", partitions=2, message_bytes_max=2 << 20)
    followed = PartitionState((2, 1), (1, 2), 2, 1, 1)
    image = apply(created, AlterStream("s", ONE, config, (followed,)))

    async def scene(node: ControlledNode, files: SimFiles) -> None:
        raised: list[int] = []
        errors: list[Exception] = []

        async def raise_max_payload(size: int) -> None:
            if errors:
                raise errors.pop()
            raised.append(size)

        await follow(node, created)
        node.reconciler._set_max_payload = raise_max_payload
        errors.append(Broken("not now"))
        assert await node.reconciler.reconcile(image)
        await follow(node, image)
        assert raised[-1:] == [config.message_bytes_max]

    run(scene)


def test_a_partition_made_known_again_gets_its_state_also_where_that_fails_once() -> None:
    """As after a removal that has failed, where the partition has failed, too."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s"))
    created = apply(Image(), CreateStream(definition, (ALONE,)))
    moved = replace(THERE, version=ALONE.version + 1)
    image = apply(created, ChangePartitions((PartitionChange(ONE, 0, moved),)))

    async def scene(node: ControlledNode, files: SimFiles) -> None:
        await follow(node, created)
        rename, set_role = files.rename, node.reconciler.roles._set_role

        def fail(source: str, target: str) -> None:
            raise OSError(errno.ENOSPC, "no space left on device", source)

        def not_now(partition: Partition, state: PartitionState) -> Future[None]:
            done: Future[None] = Future()
            done.set_exception(Broken("not now"))
            return done

        files.rename = fail  # type: ignore[method-assign]
        assert await node.reconciler.reconcile(image)
        files.rename = rename  # type: ignore[method-assign]
        (partition,) = node.partitions.stream("s") or ()
        partition.failure = PartitionFailed("s", 0, "by this test")
        node.reconciler.roles._set_role = not_now
        assert await node.reconciler.reconcile(image)
        node.reconciler.roles._set_role = set_role
        await follow(node, image)
        check_states(node, image, "s")

    run(scene)


def test_a_deleted_stream_takes_nothing_along_where_the_list_of_held_partitions_is_lost() -> None:
    """The directory of the next stream of the name is put aside then."""
    files = SimFiles(RealRandom(1))
    directories = StreamDirectories(files, DATA)
    directories.prepare(Image())
    place = f"{DATA}/streams/s/0"
    files.make_dirs(place)
    files.open(f"{place}/kept.log", create=True).close()
    new = StreamDefinition("s", TWO, 0, StreamConfig("s"))
    directories.remove(ONE, "s", is_taken=True)
    assert files.exists(f"{place}/kept.log")
    directories.free_name(new, {ONE: Deletion("s", (1, 2))})
    assert files.exists(f"{DATA}/aside/s.1/0/kept.log")
    assert not files.exists(place)


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("named", [(), (ONE,), (TWO,), (ONE, TWO)])
def test_data_is_removed_with_the_stream_that_it_names(
    named: tuple[bytes, ...], is_taken: bool
) -> None:
    """Data that names no stream is removed where no later stream has the name."""
    files = SimFiles(RealRandom(1))
    directories = StreamDirectories(files, DATA)
    directories.prepare(Image())
    for index, stream_id in enumerate((*named, None)):
        place = f"{DATA}/streams/s/{index}"
        files.make_dirs(place)
        if stream_id is not None:
            write_identity(files, place, LogIdentity(stream_id, index))
    directories.remove(ONE, "s", is_taken=is_taken)
    is_removed = named == (ONE,) or (not named and not is_taken)
    assert files.exists(f"{DATA}/streams/s") is not is_removed
    assert files.list_dir(f"{DATA}/removed") == []


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("identity", ["damaged", "missing", "of another stream"])
def test_a_replica_that_has_moved_away_and_has_no_identity_is_put_aside(
    caplog: pytest.LogCaptureFixture, identity: str, is_open: bool
) -> None:
    """It may be the log of another stream. `is_open`: that has happened since it was opened."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s"))
    created = apply(Image(), CreateStream(definition, (ALONE,)))
    moved = replace(THERE, version=ALONE.version + 1)
    image = apply(created, ChangePartitions((PartitionChange(ONE, 0, moved),)))
    place, aside = f"{DATA}/streams/s/0", f"{DATA}/aside/s-0.1"

    async def scene(node: ControlledNode, files: SimFiles) -> None:
        await follow(node, created)
        await node.publish("s", [b"kept"])
        logs = [name for name in files.list_dir(place) if name.endswith(".log")]
        if identity == "missing":
            files.remove(f"{place}/{IDENTITY_FILE}")
        elif identity == "damaged":
            file = files.open(f"{place}/{IDENTITY_FILE}")
            file.truncate(8)
            file.close()
        else:
            write_identity(files, place, LogIdentity(TWO, 0))
        if not is_open:
            await node.reconciler.let_go(definition, [0])
            await node.reconciler.reconcile(created)
            assert [each.failure is None for each in node.partitions.stream("s") or ()] == [False]
        await follow(node, image)
        check_states(node, image, "s")
        kept = place if identity == "of another stream" else aside
        assert set(logs) <= set(files.list_dir(kept))
        warned = [each for each in caplog.records if "is put aside" in each.message]
        assert [vars(each)["moved_to"] for each in warned] == [aside] * (kept == aside)
        if kept == aside:
            back = replace(ALONE, version=moved.version + 1, since=((1, moved.version + 1),))
            again = apply(image, ChangePartitions((PartitionChange(ONE, 0, back),)))
            await follow(node, again)
            check_node(node, again)

    run(scene)


def test_a_log_is_closed_that_could_not_be_noted_as_held() -> None:
    """Also where the next attempt fails before it opens the log again."""
    definition = StreamDefinition("s", ONE, 0, StreamConfig("s"))
    image = apply(Image(), CreateStream(definition, (ALONE,)))

    async def scene(node: ControlledNode, files: SimFiles) -> None:
        def failing(operation: Callable[..., Any], end: str) -> Callable[..., Any]:
            def call(path: str, **options: bool) -> Any:
                if path.endswith(end):
                    raise OSError(errno.EMFILE, "too many open files", path)
                return operation(path, **options)

            return call

        open_file, list_dir = files.open, files.list_dir
        files.open = failing(open_file, "/held-partitions")  # type: ignore[method-assign]
        assert await node.reconciler.reconcile(image)
        (first,) = node.partitions.stream("s") or ()
        assert first.log is not None
        files.list_dir = failing(list_dir, "/streams/s")  # type: ignore[method-assign]
        assert await node.reconciler.reconcile(image)
        assert first not in (node.partitions.stream("s") or ())
        with pytest.raises(Closed):
            first.log.check_open()
        files.open, files.list_dir = open_file, list_dir  # type: ignore[method-assign]
        await follow(node, image)
        check_node(node, image)

    run(scene)


KINDS: Final = ("list streams", "list", "read", "create", "rename", "remove", "sync", "append")
"""Operations on files that may fail: how they begin."""


class FailingFiles(SimFiles):
    """All operations of one kind fail while it says so."""

    failing = ""

    def begin(self, what: str, path: str, rest: str = "", *fields: object) -> None:
        if self.failing and f"{what} {path.rpartition('/')[2]}".startswith(self.failing):
            raise OSError(errno.EIO, "EIO", path)
        super().begin(what, path, rest, *fields)


@given(
    st.lists(
        st.tuples(
            st.lists(CHANGE, max_size=3),
            st.sampled_from([errno.ENOSPC, errno.EIO, SHORT]),
            st.frozensets(st.integers(1, 40), max_size=2),
            st.sampled_from(["", "", *KINDS]),
        ),
        max_size=6,
    )
)
@settings(max_examples=40, deadline=None)
def test_the_reconciler_follows_the_image_whatever_moves_and_fails(
    history: list[tuple[list[Change], int, frozenset[int], str]],
) -> None:
    """Some file operations fail, or all of a kind; the image is followed in between."""

    async def run() -> None:
        files = FailingFiles(RealRandom(1))
        async with ControlledNode(files) as node:
            decisions = Decisions(node.controller.image)
            for decided, error, operations, files.failing in history:
                for change in decided:
                    decisions.decide(change)
                for operation in operations:
                    files.fail(operation, error)
                await node.reconciler.reconcile(decisions.image)
                files.forget_faults()
                files.failing = ""
            for _ in range(ROUNDS):
                await node.reconciler.reconcile(decisions.image)
            check_node(node, decisions.image)
            await node.reconciler.reconcile(node.controller.image)

    asyncio.run(run())


def check_node(node: ControlledNode, image: Image) -> None:
    """Each partition is known with the state of the image, and has the log that it says."""
    assert node.reconciler.pending(image) == ()
    assert node.partitions.streams().keys() == set(image.streams)
    for name, definition in image.streams.items():
        present = node.partitions.stream(name) or ()
        states = image.partitions[definition.id]
        assert [each.index for each in present] == list(range(len(states)))
        for partition, state in zip(present, states, strict=True):
            assert partition.failure is None
            assert partition.state == state
            directory = f"{DATA}/streams/{name}/{partition.index}"
            if NODE in state.replicas:
                expected = LogIdentity(definition.id, partition.index, state.replica_since(NODE))
                assert partition.log is not None
                assert read_identity(node.files, directory) == expected
            else:
                assert partition.log is None
                assert not node.files.exists(directory)
