"""Operations on groups at a node that has begun to lead `_offsets`, over a real log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from bascule.controller.cluster.groups.cluster_groups import (
    ClusterGroups,
    _Find,
    _Operation,
    _Remove,
    _Store,
)
from bascule.errors import GroupHasMembers, NotLeader
from bascule.wire.error_codes import ErrorCode
from bascule.wire.offsets import OFFSETS_STREAM, OffsetKey
from support.group_requests import GroupRequests
from support.handlers import HandlerHarness, open_harness
from support.served_stream import NODE, open_stream

KEY: Final = OffsetKey("billing", "flights", 0)
FOLLOWER: Final = 8


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[HandlerHarness]:
    yield from open_harness(tmp_path)


def test_what_an_earlier_leader_has_answered_is_known_before_groups_are_changed(
    harness: HandlerHarness, tmp_path: Path
) -> None:
    """The new leader's log has the member and its commit. It hears from its follower first that
    they are committed."""
    log = open_stream(tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock)

    async def before() -> None:
        joined = await requests.member()
        assert await requests.commit(1, joined.member_id) == ErrorCode.NONE

    requests = GroupRequests(harness, log)
    requests.run(before)
    assert log.log is not None
    log.log.close()
    log = open_stream(
        tmp_path, harness.partitions, OFFSETS_STREAM, clock=harness.clock,
        replicas=(NODE.node_id, FOLLOWER),
    )  # fmt: skip
    assert log.log is not None
    end = log.log.end.offset

    async def after() -> None:
        absent: Any = None
        groups = ClusterGroups(
            NODE.node_id, harness.partitions, requests.offsets, requests.groups, absent, absent,
            absent,
        )  # fmt: skip

        async def answer(asked: _Operation) -> Any:
            return msgspec.msgpack.decode(await groups.answer(msgspec.msgpack.encode(asked)))

        assert log.high_watermark.offset < end
        for asked in (_Find("billing", None), _Remove(*KEY), _Store([(KEY, 3)])):
            with pytest.raises(NotLeader):
                await answer(asked)
        log.on_fetch(
            FOLLOWER, -1, leader_epoch=log.leader_epoch, log_start=0, log_end=end, synced_end=end
        )
        assert [each["offset"] for each in await answer(_Find("billing", None))] == [7]
        for asked in (_Remove(*KEY), _Store([(KEY, 3)])):
            with pytest.raises(GroupHasMembers):
                await answer(asked)
        assert requests.offsets.committed(*KEY) == 7

    requests = GroupRequests(harness, log)
    requests.run(after)
