"""Members of groups with the Python client, on a real node: what they get and commit."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bascule
from bascule.cli.main import main
from bascule.client import Client, GroupConsumer, GroupOptions, Message, Outgoing, SyncClient
from bascule.errors import (
    CommitFenced,
    ConfigError,
    GroupRefused,
    InvalidName,
    UnknownGroup,
    UnknownStream,
)
from support import http_calls
from support.processes import Node, running_node

PARTITIONS = 4
MESSAGES = 200
QUICK = GroupOptions(session_timeout=30, heartbeat_interval=0.1)
names = (f"flow{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    quick = {"BASCULE_GROUPS_INITIAL_DELAY_MS": "0", "BASCULE_GROUPS_SESSION_MS_MIN": "1000"}
    with running_node(tmp_path_factory.mktemp("members"), environment=quick) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


@pytest.fixture
def stream(client: SyncClient) -> str:
    """A new stream with 200 messages in four partitions."""
    name = next(names)
    client.create_stream(name, f"{name}.*", partitions=PARTITIONS, partition_by="key")
    publish(client, name, range(MESSAGES))
    return name


def publish(client: SyncClient, stream: str, numbers: range) -> None:
    client.publish_many(Outgoing(f"{stream}.x", b"%d" % n, str(n)) for n in numbers)


def committed(client: SyncClient, group: str, stream: str) -> dict[int, int]:
    found = client.offsets(consumer=group, stream=stream)
    return {entry.partition: entry.offset for entry in found}


def ends(client: SyncClient, stream: str) -> dict[int, int]:
    found = client.stream(stream).partitions
    return {each.partition: each.high_watermark for each in found if each.high_watermark}


def numbers(messages: list[Message]) -> set[int]:
    return {int(message.value or b"") for message in messages}


def at(message: Message) -> tuple[int, int]:
    return message.partition, message.offset


def run(node: Node, scene: Callable[[Client], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await scene(client)

    asyncio.run(asyncio.wait_for(connected(), 120))


async def until(look: Callable[[], Any], *tasks: asyncio.Task[None]) -> None:
    """Return once `look` is true. Raises: the error of a task."""
    while not look():
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.01)


def test_a_member_alone_reads_everything_and_goes_on_where_it_left_off(
    client: SyncClient, stream: str
) -> None:
    with client.consume(stream, group="alone", options=QUICK) as messages:
        first = list(itertools.islice(messages, 60))
        assert messages.partitions == set(range(PARTITIONS))
    assert sum(committed(client, "alone", stream).values()) == 60
    with client.consume(stream, group="alone", follow=False, options=QUICK) as messages:
        rest = list(messages)
    assert len(first) + len(rest) == MESSAGES
    assert numbers(first + rest) == set(range(MESSAGES))
    assert committed(client, "alone", stream) == ends(client, stream)
    with client.consume(stream, group="alone", follow=False, options=QUICK) as messages:
        assert list(messages) == []


def test_a_message_that_failed_comes_again(client: SyncClient, stream: str) -> None:
    with pytest.raises(ZeroDivisionError), client.consume(stream, group="clumsy") as messages:
        for message in itertools.islice(messages, 7):
            failed = message.partition, message.offset
        raise ZeroDivisionError
    assert sum(committed(client, "clumsy", stream).values()) == 6
    with client.consume(stream, group="clumsy", follow=False) as messages:
        assert failed in [(message.partition, message.offset) for message in messages]


def test_members_share_and_hooks_see_what_comes_and_goes(
    node: Node, client: SyncClient, stream: str
) -> None:
    """In one process, eager and cooperative; a coroutine and a plain function as hooks."""

    async def scene(own: Client, assignors: list[str]) -> None:
        group, seen = "-".join(assignors), []
        owned: list[set[int]] = [set(), set()]

        def options(number: int) -> GroupOptions:
            async def on_assigned(partitions: frozenset[int]) -> None:
                owned[number] |= partitions

            def on_revoked(partitions: frozenset[int]) -> None:
                assert partitions <= owned[number]
                owned[number] -= partitions

            return GroupOptions(
                assignors=assignors,
                heartbeat_interval=0.1,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
            )

        async def read(messages: GroupConsumer) -> None:
            async for message in messages:
                seen.append(message)
                await asyncio.sleep(0)

        async with own.consume(stream, group=group, options=options(0)) as first:
            reading = asyncio.create_task(read(first))
            await until(lambda: owned[0] == set(range(PARTITIONS)))
            async with own.consume(stream, group=group, options=options(1)) as second:
                other = asyncio.create_task(read(second))
                await until(lambda: [len(each) for each in owned] == [2, 2])
                assert owned == [first.partitions, second.partitions]
                await until(lambda: numbers(seen) == set(range(MESSAGES)))
                other.cancel()
                await asyncio.wait([other])
            assert owned[1] == set()
            await until(lambda: owned[0] == set(range(PARTITIONS)))
            reading.cancel()
            await asyncio.wait([reading])
        assert owned == [set(), set()]
        # Each was done before its partition was given up, so nothing came twice.
        assert len(seen) == MESSAGES
        assert await asyncio.to_thread(committed, client, group, stream) == ends(client, stream)

    run(node, lambda own: scene(own, ["range"]))
    run(node, lambda own: scene(own, ["cooperative-sticky"]))


def test_a_cooperative_member_reads_on_during_a_rebalance(
    node: Node, client: SyncClient, stream: str
) -> None:
    options = GroupOptions(assignors=["cooperative-sticky"], heartbeat_interval=0.1)

    def is_rebalancing() -> bool:
        metrics = http_calls.get(f"{node.addresses['http']}/metrics")
        return 'bascule_groups{state="PreparingRebalance"} 1' in metrics

    async def scene(own: Client) -> None:
        async with (
            own.consume(stream, group="smooth", options=options) as first,
            own.consume(stream, group="smooth", options=options) as busy,
            own.consume(stream, group="smooth", options=options) as late,
        ):
            seen: list[Message] = []

            async def read(messages: GroupConsumer) -> None:
                async for message in messages:
                    seen.append(message)

            reading = asyncio.create_task(read(first))
            busy_reading = asyncio.create_task(read(busy))
            await until(lambda: len(first.partitions) == len(busy.partitions) == 2)
            busy_reading.cancel()
            await asyncio.wait([busy_reading])
            joining = asyncio.create_task(read(late))
            await until(is_rebalancing)
            # The rebalance waits for the busy one, and the first one reads on.
            await asyncio.to_thread(publish, client, stream, range(MESSAGES, 2 * MESSAGES))
            wanted = {p: end for p, end in ends(client, stream).items() if p in first.partitions}
            await until(
                lambda: {p: n + 1 for p, n in sorted(at(m) for m in seen)}.items() >= wanted.items()
            )
            assert is_rebalancing()
            others = asyncio.create_task(read(busy))
            members = (first, busy, late)
            await until(lambda: sorted(len(each.partitions) for each in members) == [1, 1, 2])
            for task in (reading, joining, others):
                task.cancel()
            await asyncio.wait((reading, joining, others))

    run(node, scene)


def test_a_busy_event_loop_does_not_end_the_membership(
    node: Node, client: SyncClient, stream: str
) -> None:
    options = GroupOptions(session_timeout=1, heartbeat_interval=0.1)

    async def scene(own: Client) -> None:
        async with own.consume(stream, group="busy", options=options) as messages:
            await anext(messages)
            time.sleep(3)
            await messages.commit()
            assert sum(committed(client, "busy", stream).values()) == 1

    run(node, scene)


def test_a_member_that_is_too_slow_is_fenced_and_joins_again(
    node: Node, client: SyncClient, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[frozenset[int]] = []
    slow = GroupOptions(heartbeat_interval=0.1, max_poll_interval=1, on_lost=lost.append)

    async def scene(own: Client) -> None:
        async with own.consume(stream, group="slow", options=slow) as messages:
            taken = await anext(messages)
            # Another member has the partitions, and commits beyond this one.
            async with own.consume(stream, group="slow", options=QUICK, follow=False) as other:
                everything = [message async for message in other]
            assert len(everything) == MESSAGES
            with pytest.raises(CommitFenced, match="'slow' are not committed"):
                await messages.commit()
            await asyncio.to_thread(publish, client, stream, range(MESSAGES, MESSAGES + 1))
            again = await anext(messages)
            assert int(again.value or b"") == MESSAGES, "what was lost is not this member's"
            assert (again.partition, again.offset) != (taken.partition, taken.offset)
        assert lost == [frozenset(range(PARTITIONS))]

    with caplog.at_level(logging.WARNING, "bascule.client"):
        run(node, scene)
    assert "larger max_poll_interval" in caplog.text
    assert "went on without this member" in caplog.text
    assert committed(client, "slow", stream) == ends(client, stream)


def test_a_member_that_ends_before_it_has_joined_leaves(
    node: Node, client: SyncClient, stream: str
) -> None:
    """Else the others would wait for it until its session ends."""

    async def scene(own: Client) -> None:
        async with own.consume(stream, group="hasty", options=QUICK) as messages:
            await anext(messages)
            async with own.consume(stream, group="hasty", options=QUICK) as hasty:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(anext(hasty), 1)
                assert len((await own.group("hasty")).members) == 2
            assert len((await own.group("hasty")).members) == 1

    run(node, scene)


def test_a_member_leaves_although_its_end_is_cancelled(
    node: Node, client: SyncClient, stream: str
) -> None:
    async def scene(own: Client) -> None:
        is_called, may_end = asyncio.Event(), asyncio.Event()

        async def on_assigned(_: frozenset[int]) -> None:
            is_called.set()
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()

        options = GroupOptions(session_timeout=30, on_assigned=on_assigned)
        messages = own.consume(stream, group="cancelled", options=options)
        await messages.open()
        reading = asyncio.create_task(anext(messages))
        await is_called.wait()
        closing = asyncio.create_task(messages.close())
        await asyncio.sleep(0)
        closing.cancel()
        may_end.set()
        await asyncio.wait([closing, reading])
        with pytest.raises(UnknownGroup):
            await own.group("cancelled")

    run(node, scene)


def test_partitions_that_are_added_are_noticed(
    node: Node, client: SyncClient, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a consumer with a name and by a group of two, while they read."""
    monkeypatch.setattr("bascule.client.consumers.named.CHECK_SECONDS", 0.1)
    monkeypatch.setattr("bascule.client.consumers.membership.CHECK_SECONDS", 0.1)
    monkeypatch.setenv("BASCULE_SERVER", node.addresses["http"])

    async def scene(own: Client) -> None:
        seen: dict[str, list[Message]] = {"named": [], "group": []}

        async def read(kind: str, messages: Any) -> None:
            async for message in messages:
                seen[kind].append(message)

        def have_read(count: int) -> bool:
            return all(numbers(found) == set(range(count)) for found in seen.values())

        async with (
            own.consume(stream, "named") as named,
            own.consume(stream, group="group", options=QUICK) as first,
            own.consume(stream, group="group", options=QUICK) as second,
        ):
            tasks = [
                asyncio.create_task(read(kind, messages))
                for kind, messages in (("named", named), ("group", first), ("group", second))
            ]
            await until(lambda: have_read(MESSAGES), *tasks)
            altered = await asyncio.to_thread(
                main, ["stream", "alter", stream, "--partitions", str(3 * PARTITIONS), "--yes"]
            )
            assert altered == 0
            await asyncio.to_thread(publish, client, stream, range(MESSAGES, 2 * MESSAGES))
            await until(lambda: have_read(2 * MESSAGES), *tasks)
            assert {m.partition for m in seen["named"]} >= set(range(PARTITIONS, 3 * PARTITIONS))
            assert named.partitions == set(range(3 * PARTITIONS))
            await until(lambda: len(first.partitions) == len(second.partitions) == 6, *tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert len(seen["named"]) == 2 * MESSAGES

    run(node, scene)
    for consumer in ("named", "group"):
        assert committed(client, consumer, stream) == ends(client, stream)


def test_latest_is_stored_when_a_partition_is_assigned(client: SyncClient, stream: str) -> None:
    before = ends(client, stream)
    with client.consume(stream, group="late", start="latest", options=QUICK) as messages:
        iterator = iter(messages)
        publish(client, stream, range(MESSAGES, MESSAGES + 1))
        assert int(next(iterator).value or b"") == MESSAGES
        assert committed(client, "late", stream) == before
        messages.close(done=False)
    with client.consume(stream, group="late", start="latest", options=QUICK) as messages:
        assert int(next(messages).value or b"") == MESSAGES


def test_what_a_blocking_member_does_in_its_hooks(client: SyncClient, stream: str) -> None:
    """A batch is finished and committed before its partitions are given up."""
    batch: list[Message] = []
    stored: list[Message] = []

    def on_revoked(partitions: frozenset[int]) -> None:
        stored.extend(batch)
        batch.clear()
        messages.commit()

    options = GroupOptions(heartbeat_interval=0.1, on_revoked=on_revoked)
    with client.consume(stream, group="batches", commit_interval=3600, options=options) as messages:
        for message in itertools.islice(messages, 50):
            batch.append(message)
    assert len(stored) == 50
    assert sum(committed(client, "batches", stream).values()) == 50


def test_the_node_says_why_a_member_is_refused(node: Node, client: SyncClient, stream: str) -> None:
    with (
        client.consume(stream, group="picky", options=GroupOptions(assignors=["range"])) as member,
        client.consume(stream, group="picky", options=GroupOptions(["roundrobin"])) as other,
    ):
        next(member)
        with pytest.raises(GroupRefused, match="offers the assignors roundrobin"):
            next(other)
    options = GroupOptions(session_timeout=0.9, heartbeat_interval=0.1)
    with (
        pytest.raises(GroupRefused, match=r"0\.9 s is outside of groups\.session_ms_min"),
        client.consume(stream, group="short", options=options) as short,
    ):
        next(short)


def test_a_static_member_that_starts_again_fences_the_first(
    client: SyncClient, stream: str
) -> None:
    options = GroupOptions(heartbeat_interval=0.1, instance="one")
    with client.consume(stream, group="static", options=options) as first:
        next(first)
        with client.consume(stream, group="static", options=options) as second:
            next(second)
            assert second.partitions == set(range(PARTITIONS))
            with pytest.raises(GroupRefused, match="another member with instance 'one' has join"):
                list(first)


def test_wrong_arguments_are_refused_at_once(client: SyncClient, stream: str) -> None:
    for arguments, said in (
        ({}, "expected either a consumer's name, or `group`"),
        ({"consumer": "a", "group": "b"}, "expected either a consumer's name, or `group`"),
        ({"consumer": "a", "options": QUICK}, "expected either a consumer's name, or `group`"),
        ({"group": "a", "partitions": [1]}, "leave `partitions` out"),
        ({"group": "a", "options": GroupOptions(assignors=["best"])}, "expected a list of range"),
        ({"group": "a", "options": GroupOptions(assignors="range")}, "expected a list of range"),
        ({"group": "a", "options": GroupOptions(heartbeat_interval=60)}, "less than session_time"),
        ({"group": "a", "options": GroupOptions(max_poll_interval=0)}, "expected more than 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            client.consume(stream, **arguments)  # type: ignore[arg-type, misc, call-overload]
    with pytest.raises(InvalidName):
        client.consume(stream, group="two\nlines")
    with pytest.raises(UnknownStream), client.consume("nowhere", group="x"):
        pass


def test_the_command_reads_as_a_member(
    node: Node,
    client: SyncClient,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setenv("BASCULE_SERVER", node.addresses["http"])
    assert main(["read", stream, "--group", "command", "-n", "150", "--values"]) == 0
    first = capsysbinary.readouterr().out.split()
    assert len(first) == 150
    assert main(["read", stream, "--group", "command", "--values"]) == 0
    rest = capsysbinary.readouterr().out.split()
    assert sorted(map(int, first + rest)) == list(range(MESSAGES))
    for more in (["--consumer", "c"], ["--partition", "1"], ["--order", "timestamp"]):
        assert main(["read", stream, "--group", "command", *more]) == 2
        assert b"--group are both given" in capsysbinary.readouterr().err


def test_the_node_may_start_again(tmp_path: Path) -> None:
    """A member in the middle of its work goes on under its generation."""
    with running_node(tmp_path, keep_ports=True) as node:
        node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")

        async def scene(client: Client) -> None:
            await client.publish_many((f"flights.{n}", b"%d" % n) for n in range(MESSAGES))
            assigned: list[frozenset[int]] = []
            options = GroupOptions(heartbeat_interval=0.1, on_assigned=assigned.append)
            found = []
            async with client.consume("flights", group="steady", options=options) as messages:
                async for message in messages:
                    found.append(message)
                    if len(found) == MESSAGES // 2:
                        await asyncio.to_thread(node.stop)
                        await asyncio.to_thread(node.start)
                        await messages.commit()
                    if len(found) == MESSAGES:
                        break
            assert numbers(found) == set(range(MESSAGES))
            assert assigned == [frozenset(range(PARTITIONS))]

        run(node, scene)


@pytest.mark.parametrize("member", [True, False])
def test_what_was_read_of_a_deleted_stream_is_not_committed_for_the_next_one(
    client: SyncClient, stream: str, member: bool
) -> None:
    """Otherwise the next consumer would skip as many messages of the new stream."""
    name = f"{stream}-again"
    who: dict[str, Any] = {"group" if member else "consumer": name, "follow": False}
    consumer: Any = client.consume(stream, commit_interval=3600, **who)
    with pytest.raises(UnknownStream) if member else contextlib.nullcontext(), consumer as messages:
        for _ in range(MESSAGES // 2):
            next(messages)
        client.delete_stream(stream)
        client.create_stream(stream, f"{stream}.*", partitions=PARTITIONS, partition_by="key")
        publish(client, stream, range(MESSAGES))
        messages.commit()
    assert committed(client, name, stream) == {}
    with client.consume(stream, **who) as messages:
        assert len(list(messages)) == MESSAGES
