"""The memory of all groups together, and their loading, over a real log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from bascule.groups import coordinator
from bascule.groups.classic import JoinAnswer, JoinRequest, SyncAnswer
from bascule.groups.consumer import MemberAnswer, MemberHeartbeat
from bascule.groups.consumer.messages import NOTHING
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import OFFSETS_STREAM
from support.group_requests import GroupRequests
from support.handlers import open_harness
from support.served_stream import open_stream

BYTES_MAX = 300_000
ASSIGNMENT = bytes(20_000)
NONE, FULL = ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED


async def turn() -> None:
    """Have everything else run that can run now."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(done.set_result, None)
    await done


class Groups:
    """Requests of groups of one member each."""

    def __init__(self, requests: GroupRequests) -> None:
        self._requests = requests
        self.begin()

    def begin(self, **limits: int) -> None:
        self._requests.begin(**{"total_bytes_max": BYTES_MAX, **limits})

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        self._requests.run(test)

    @property
    def size_bytes(self) -> int:
        return self._requests.groups.counts().size_bytes

    @property
    def refusals(self) -> int:
        return self._requests.groups.counts().refusals

    async def join(self, name: str, member_id: str = "", *, metadata: bytes = b"m") -> JoinAnswer:
        request = JoinRequest(
            member_id, None, 600_000, 600_000, "consumer", (("range", metadata),),
            client_id="test", knows_required_ids=False,
        )  # fmt: skip
        return await self._requests.groups.join(name, request)

    async def sync(self, name: str, joined: JoinAnswer, assignment: bytes) -> SyncAnswer:
        return await self._requests.groups.sync(
            name, joined.member_id, None, joined.generation, [(joined.member_id, assignment)],
            protocol_type=None, protocol=None,
        )  # fmt: skip

    async def assigned(self, name: str, assignment: bytes = ASSIGNMENT) -> ErrorCode:
        joined = await self.join(name)
        return joined.error or (await self.sync(name, joined, assignment)).error

    async def fill(self, joined: dict[str, JoinAnswer]) -> None:
        """Groups with large assignments until one is refused."""
        for n in range(1_000):
            name = f"group {n}"
            joined[name] = await self.join(name)
            error = joined[name].error
            if not error and (error := (await self.sync(name, joined[name], ASSIGNMENT)).error):
                self.leave(name, joined[name].member_id)
            if error:
                assert error == FULL
                del joined[name]
                return
        raise AssertionError("nothing is refused")

    async def heartbeat(
        self, name: str, member_id: str, epoch: int, **said: object
    ) -> MemberAnswer:
        answer = self._requests.groups.member_heartbeat(
            name,
            MemberHeartbeat(member_id, epoch, **said),  # type: ignore[arg-type]
        )
        return answer if isinstance(answer, MemberAnswer) else await answer

    async def consumer(self, name: str, topics: tuple[str, ...] = ("flights",)) -> MemberAnswer:
        return await self.heartbeat(
            name, "", 0, rebalance_timeout_ms=600_000, topics=topics, owned=NOTHING
        )

    def leave(self, name: str, member_id: str) -> None:
        assert self._requests.groups.leave(name, [(member_id, None)]) == [NONE]

    @property
    def stored_bytes(self) -> int:
        """Of the states in memory, counted anew."""
        offsets = self._requests.offsets
        values = [*offsets.group_states.values()]
        for members in offsets.member_states.values():
            values += members.values()
        return sum(map(len, values))


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    for harness in open_harness(tmp_path / "streams"):
        log = open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)
        yield Groups(GroupRequests(harness, log))


def test_assignments_count_with_their_stored_copies(
    groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        joined: dict[str, JoinAnswer] = {}
        with caplog.at_level(logging.WARNING):
            await groups.fill(joined)
        assert 2 <= len(joined) <= BYTES_MAX // (2 * len(ASSIGNMENT))
        kept = groups.stored_bytes + len(joined) * len(ASSIGNMENT)
        assert kept <= groups.size_bytes <= BYTES_MAX
        assert groups.refusals == 1
        (said,) = (each for each in caplog.records if "too much memory" in each.message)
        assert (said.bytes_max, said.refusals) == (BYTES_MAX, 1)  # type: ignore[attr-defined]
        # Who is there goes on, also through a rebalance that makes nothing larger.
        for name, first in joined.items():
            again = await groups.join(name, first.member_id, metadata=b"n")
            assert (again.error, again.generation) == (NONE, 2)
            assert (await groups.sync(name, again, ASSIGNMENT[1:])).error == NONE
        assert await groups.assigned("one more") == FULL
        # What leaves makes room.
        name, left = joined.popitem()
        groups.leave(name, left.member_id)
        while groups.stored_bytes > len(joined) * len(ASSIGNMENT) * 2:
            await turn()
        await turn()
        assert await groups.assigned("another", ASSIGNMENT[:10_000]) == NONE

    groups.run(test)


def test_assignments_that_are_being_stored_count(groups: Groups) -> None:
    async def test() -> None:
        names = [f"group {n}" for n in range(40)]
        errors = await asyncio.gather(*(groups.assigned(name) for name in names))
        accepted = errors.count(NONE)
        assert 2 <= accepted <= BYTES_MAX // (2 * len(ASSIGNMENT))
        assert set(errors) == {NONE, FULL}
        assert groups.refusals == len(names) - accepted

    groups.run(test)


def test_the_same_counts_after_a_restart(groups: Groups) -> None:
    joined: dict[str, JoinAnswer] = {}
    before = []

    async def fill() -> None:
        await groups.fill(joined)
        await groups.consumer("consumers", ("flights", "x" * 1_000))
        for name in ("group 0", "group 1"):
            groups.leave(name, joined.pop(name).member_id)
        while len(joined) + 1 != len(groups._requests.groups.names()):
            await turn()
        before.append(groups.size_bytes)

    async def test() -> None:
        assert groups.size_bytes == before[0]
        for name, first in joined.items():
            groups.leave(name, first.member_id)
        (member_id,) = groups._requests.offsets.member_states["consumers"]
        groups.leave("consumers", member_id)
        while groups._requests.groups.names():
            await turn()
        assert groups.size_bytes == groups.stored_bytes == 0

    groups.run(fill)
    groups.begin()
    groups.run(test)


def test_members_and_ids_count(groups: Groups) -> None:
    async def test() -> None:
        errors = set()
        for n in range(200):
            request = JoinRequest("", None, 600_000, 600_000, "consumer", (("range", b""),))
            errors.add((await groups._requests.groups.join(f"group {n}", request)).error)
        assert errors == {ErrorCode.MEMBER_ID_REQUIRED, FULL}
        assert groups.size_bytes <= BYTES_MAX

    groups.run(test)


def test_members_of_the_consumer_protocol_count(groups: Groups) -> None:
    """Those that join groups that are there, and those that say more than before."""

    async def test() -> None:
        first = await groups.consumer("consumers")
        assert first.error == NONE
        assert first.member_id is not None
        more = [await groups.consumer("consumers", ("x" * 20_000,)) for _ in range(12)]
        assert {each.error for each in more} == {NONE, FULL}
        assert more[-1].reason is not None
        said = ("flights", "y" * 40_000)
        grown = await groups.heartbeat("consumers", first.member_id, first.epoch, topics=said)
        assert grown.error == FULL
        assert groups.size_bytes <= BYTES_MAX
        steady = await groups.heartbeat("consumers", first.member_id, first.epoch)
        assert steady.error == NONE
        classic = await groups.join("consumers", metadata=bytes(40_000))
        assert classic.error == FULL
        assert groups.refusals >= 3

    groups.run(test)


def test_groups_are_loaded_in_slices(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices requests are answered, and each group answers once it is loaded."""
    joined: dict[str, JoinAnswer] = {}
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def fill() -> None:
        for n in range(50):
            name = f"group {n}"
            joined[name] = await groups.join(name)
            assert (await groups.sync(name, joined[name], b"x" * 200)).error == NONE

    async def test() -> None:
        def fetch_error(name: str) -> ErrorCode:
            return groups._requests.groups.fetch_error(name, "", -1)

        def heartbeat(name: str) -> ErrorCode:
            member_id, generation = joined[name].member_id, joined[name].generation
            return groups._requests.groups.heartbeat(name, member_id, None, generation)

        served = groups._requests.groups
        await groups._requests.offsets.wait_caught_up()
        served._unload()
        served.refresh()
        answered = [[fetch_error(name) for name in joined]]
        while answered[-1][-1] == loading:
            # Whatever is new waits, too: what is loaded later may leave no room for it.
            assert (await groups.join("new")).error == loading
            assert served.commit_error("new", "", None, -1) == loading
            assert served.error() == loading
            await turn()
            assert {heartbeat(name) for name in joined} == {NONE}
            answered.append([fetch_error(name) for name in joined])
        assert len(answered) > 5
        for codes in answered:
            done = codes.count(NONE)
            assert codes == [NONE] * done + [loading] * (len(codes) - done)
        assert served.error() == NONE
        assert (await groups.join("new")).error == NONE
        served._unload()
        served.refresh()
        await groups._requests.groups.close()
        await turn()
        assert served.names() == [], "nothing is loaded any more"

    groups.begin(total_bytes_max=256 << 20)
    groups.run(fill)
    monkeypatch.setattr(coordinator, "LOAD_BYTES", 4_000)
    groups.begin(total_bytes_max=256 << 20)
    groups.run(test)
