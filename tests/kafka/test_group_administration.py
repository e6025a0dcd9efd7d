"""ListGroups, DescribeGroups, DeleteGroups and OffsetDelete, in all versions, over a real log."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bascule.config import ClientConfig, Config
from bascule.wire.error_codes import ErrorCode
from bascule.wire.messages.group.delete_groups import DeleteGroupsRequest
from bascule.wire.messages.group.describe_groups import (
    OPERATIONS_UNKNOWN,
    DescribeGroupsGroup,
    DescribeGroupsRequest,
)
from bascule.wire.messages.group.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from bascule.wire.messages.group.leave_group import LeaveGroupRequest, MemberIdentity
from bascule.wire.messages.group.list_groups import ListGroupsRequest
from bascule.wire.messages.group.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from bascule.wire.messages.group.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from bascule.wire.messages.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from bascule.wire.offsets import OFFSETS_STREAM, Commit, OffsetKey
from bascule.wire.schema import Request
from support.handlers import HandlerHarness
from support.served_stream import NODE, make_coordinator, make_offset_store, open_stream

ADMINISTERED = Config(node_id=NODE.node_id, client=ClientConfig(administration="on"))


def subscription(*topics: str) -> bytes:
    """As a client encodes it."""
    return struct.pack(">hi", 1, len(topics)) + _strings(topics) + struct.pack(">ii", -1, 0)


def assignment(*assigned: tuple[str, Sequence[int]]) -> bytes:
    data = struct.pack(">hi", 1, len(assigned))
    for topic, partitions in assigned:
        data += _strings([topic])
        data += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return data + struct.pack(">i", -1)


def _strings(texts: Sequence[str]) -> bytes:
    return b"".join(struct.pack(">h", len(text)) + text.encode() for text in texts)


class Groups:
    """Sends requests to the handlers, while the coordinator and its store run."""

    def __init__(self, harness: HandlerHarness) -> None:
        self.harness = harness
        self.offsets = make_offset_store(harness.partitions)
        self.groups = make_coordinator(harness.partitions, self.offsets)
        harness.context = replace(
            harness.context, offsets=self.offsets, groups=self.groups, config=ADMINISTERED
        )

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        async def run_test() -> None:
            self.harness.partitions.bind(asyncio.get_running_loop())
            self.offsets.start()
            self.groups.start()
            await self.offsets.wait_caught_up()
            try:
                await asyncio.wait_for(test(), 60)
            finally:
                await self.groups.close()
                await self.offsets.close()

        asyncio.run(run_test())

    async def send(self, request: Request[Any], version: int) -> Any:
        return await self.harness.handle_async(request, version)

    async def join(
        self, group: str, *topics: str, protocol_type: str = "consumer", wait: bool = True
    ) -> Any:
        """Join a group as its only member, a static one."""
        protocols = [JoinGroupRequestProtocol("range", memoryview(subscription(*topics)))]
        request = JoinGroupRequest(
            group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            group_instance_id="one",
            protocol_type=protocol_type,
            protocols=protocols,
        )
        joined = await self.send(request, 9)
        assert not joined.error_code
        if wait:
            given = assignment(*((topic, [0, 2]) for topic in topics))
            assignments = [SyncGroupRequestAssignment(joined.member_id, given)]
            synced = await self.send(
                SyncGroupRequest(
                    group, joined.generation_id, joined.member_id, "one", assignments=assignments
                ),
                5,
            )
            assert not synced.error_code
        return joined

    async def leave(self, group: str) -> None:
        response = await self.send(LeaveGroupRequest(group, members=[MemberIdentity("", "one")]), 5)
        assert not response.members[0].error_code

    async def commit(self, group: str, topic: str = "flights", joined: Any = None) -> ErrorCode:
        request = OffsetCommitRequest(
            group,
            -1 if joined is None else joined.generation_id,
            "" if joined is None else joined.member_id,
            None if joined is None else "one",
            topics=[OffsetCommitTopic(topic, partitions=[OffsetCommitPartition(0, 7)])],
        )
        response = await self.send(request, 8)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    async def listed(self, version: int = 5, **filters: Any) -> dict[str, tuple[str, str, str]]:
        response = await self.send(ListGroupsRequest(**filters), version)
        assert not response.error_code
        return {
            each.group_id: (each.group_state, each.group_type, each.protocol_type)
            for each in response.groups
        }

    async def describe(self, name: str, version: int = 6) -> DescribeGroupsGroup:
        response = await self.send(DescribeGroupsRequest([name, name]), version)
        (found,) = response.groups
        assert found.group_id == name
        return found  # type: ignore[no-any-return]

    async def delete(self, *names: str, version: int = 2) -> dict[str, ErrorCode]:
        response = await self.send(DeleteGroupsRequest(names), version)
        return {each.group_id: ErrorCode(each.error_code) for each in response.results}

    async def delete_offsets(
        self, group: str, **topics: Sequence[int]
    ) -> tuple[ErrorCode, dict[tuple[str, int], ErrorCode]]:
        request = OffsetDeleteRequest(
            group,
            [
                OffsetDeleteTopic(topic, [OffsetDeletePartition(index) for index in indexes])
                for topic, indexes in topics.items()
            ],
        )
        response = await self.send(request, 0)
        found = {
            (topic.name, each.partition_index): ErrorCode(each.error_code)
            for topic in response.topics
            for each in topic.partitions
        }
        return ErrorCode(response.error_code), found


@pytest.fixture
def groups(harness: HandlerHarness, tmp_path: Path) -> Groups:
    open_stream(tmp_path, harness.partitions, OFFSETS_STREAM)
    return Groups(harness)


def test_groups_with_members_and_those_with_offsets_only_are_listed(groups: Groups) -> None:
    async def test() -> None:
        assert await groups.listed() == {}
        await groups.join("billing", "flights")
        await groups.join("waiting", "flights", wait=False)
        assert await groups.commit("archive") is ErrorCode.NONE
        billing = ("Stable", "classic", "consumer")
        waiting = ("CompletingRebalance", "classic", "consumer")
        archive = ("Empty", "classic", "")
        everything = {"billing": billing, "waiting": waiting, "archive": archive}
        for version in range(6):
            assert await groups.listed(version) == everything
        assert await groups.listed(states_filter=["stable", "EMPTY"]) == {
            "billing": billing, "archive": archive
        }  # fmt: skip
        assert await groups.listed(types_filter=["Classic"]) == everything
        assert await groups.listed(types_filter=["consumer"]) == {}
        await groups.leave("billing")
        assert "billing" not in await groups.listed()

    groups.run(test)


def test_a_group_is_described_with_its_members(groups: Groups) -> None:
    async def test() -> None:
        joined = await groups.join("billing", "flights")
        for version in range(7):
            found = await groups.describe("billing", version)
            assert (found.error_code, found.group_state) == (ErrorCode.NONE, "Stable")
            assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
            assert found.authorized_operations == OPERATIONS_UNKNOWN
            (member,) = found.members
            assert (member.member_id, member.group_instance_id) == (joined.member_id, "one")
            assert (member.client_id, member.client_host) == ("test", "192.0.2.1")
            assert member.member_metadata == subscription("flights")
            assert member.member_assignment == assignment(("flights", [0, 2]))
        await groups.join("waiting", "flights", wait=False)
        found = await groups.describe("waiting")
        assert (found.group_state, found.protocol_data) == ("CompletingRebalance", "")
        assert [member.member_metadata for member in found.members] == [b""]

    groups.run(test)


def test_groups_without_members_are_described(groups: Groups) -> None:
    async def test() -> None:
        await groups.commit("archive")
        found = await groups.describe("archive")
        assert (found.error_code, found.group_state, found.protocol_type, found.members) == (
            ErrorCode.NONE, "Empty", "", []
        )  # fmt: skip
        missing = await groups.describe("nobody", 5)
        assert (missing.error_code, missing.group_state) == (ErrorCode.NONE, "Dead")
        missing = await groups.describe("nobody", 6)
        assert (missing.error_code, missing.group_state, missing.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND, "Dead", "Group nobody not found."
        )  # fmt: skip

    groups.run(test)


def test_groups_without_members_are_deleted_with_their_offsets(groups: Groups) -> None:
    async def test() -> None:
        await groups.join("billing", "flights")
        for version in range(3):
            await groups.commit("archive")
            await groups.commit("archive", "empty")
            assert await groups.delete("archive", "billing", "nobody", version=version) == {
                "archive": ErrorCode.NONE,
                "billing": ErrorCode.NON_EMPTY_GROUP,
                "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
            }
            assert list(await groups.listed()) == ["billing"]
            assert groups.offsets.entries(consumer="archive") == []
        # A member whose assignment is not stored yet is one, too.
        await groups.commit("waiting")
        await groups.join("waiting", "flights", wait=False)
        assert await groups.delete("waiting") == {"waiting": ErrorCode.NON_EMPTY_GROUP}

    groups.run(test)


def test_many_groups_are_listed_and_deleted_in_slices(groups: Groups) -> None:
    async def test() -> None:
        names = [f"g{number}" for number in range(1_200)]
        commits = [(OffsetKey(name, "flights", 0), Commit(offset=1)) for name in names]
        await groups.offsets.store_checked(commits)
        loop, turns, is_counting = asyncio.get_running_loop(), 0, True

        def count_turn() -> None:
            nonlocal turns
            turns += 1
            if is_counting:
                loop.call_soon(count_turn)

        count_turn()
        assert set(await groups.listed()) == set(names)
        assert turns >= 4
        turns = 0
        assert set((await groups.delete(*names)).values()) == {ErrorCode.NONE}
        assert turns >= 12
        is_counting = False
        assert await groups.listed() == {}

    groups.run(test)


def test_offsets_of_a_group_are_removed_unless_it_subscribes(groups: Groups) -> None:
    async def test() -> None:
        joined = await groups.join("billing", "flights")
        for topic in ("flights", "empty"):
            assert await groups.commit("billing", topic, joined) is ErrorCode.NONE
        error, found = await groups.delete_offsets(
            "billing", flights=[0, 5], empty=[0, 1], nowhere=[0]
        )
        assert error is ErrorCode.NONE
        assert found == {
            ("flights", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ("flights", 5): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ("empty", 0): ErrorCode.NONE,
            ("empty", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert [e.stream for e in groups.offsets.entries(consumer="billing")] == ["flights"]
        await groups.leave("billing")
        assert await groups.delete_offsets("billing", flights=[0]) == (
            ErrorCode.NONE, {("flights", 0): ErrorCode.NONE}
        )  # fmt: skip
        assert await groups.delete_offsets("billing", flights=[0]) == (
            ErrorCode.GROUP_ID_NOT_FOUND, {}
        )  # fmt: skip
        await groups.join("connect", "flights", protocol_type="connect")
        assert await groups.delete_offsets("connect", flights=[0]) == (
            ErrorCode.NON_EMPTY_GROUP, {}
        )  # fmt: skip

    groups.run(test)


def test_a_node_whose_clients_may_not_administer_deletes_nothing(groups: Groups) -> None:
    async def test() -> None:
        await groups.commit("archive")
        off = Config(node_id=NODE.node_id, client=ClientConfig(administration="off"))
        groups.harness.context = replace(groups.harness.context, config=off)
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert await groups.delete("archive") == {"archive": refused}
        assert await groups.delete_offsets("archive", flights=[0]) == (refused, {})
        assert list(await groups.listed()) == ["archive"]

    groups.run(test)


def test_another_node_is_the_coordinator(groups: Groups) -> None:
    """Clients ask all nodes for their groups: this one has none. For the rest they look again."""

    async def test() -> None:
        await groups.commit("archive")
        stream = groups.harness.partitions.stream(OFFSETS_STREAM)
        assert stream is not None
        await groups.groups.close()
        assert await groups.listed() == {}
        found = await groups.describe("archive")
        assert found.error_code == ErrorCode.NOT_COORDINATOR
        assert await groups.delete("archive") == {"archive": ErrorCode.NOT_COORDINATOR}
        assert await groups.delete_offsets("archive", flights=[0]) == (
            ErrorCode.NOT_COORDINATOR, {}
        )  # fmt: skip

    groups.run(test)
