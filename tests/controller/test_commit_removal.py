"""Commits of deleted streams are removed, also by the leader after the one that should have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bascule.controller.cluster.groups.commit_removal import CommitRemoval
from bascule.errors import Broken
from bascule.groups import CommittedOffsetStore
from bascule.model import StreamDefinition
from bascule.wire.offsets import Commit
from groups.test_committed_offsets import KEY, OffsetsHarness, committed

GONE = KEY._replace(stream="gone")


def removal(harness: OffsetsHarness, offsets: CommittedOffsetStore) -> CommitRemoval:
    def streams() -> Mapping[str, StreamDefinition]:
        return {"flights": harness.flights.definition}

    async def cannot_follow() -> None:
        raise Broken("a partition cannot be closed")

    found = CommitRemoval(harness.partitions, streams, cannot_follow)
    found.offsets = offsets
    return found


def test_the_next_leader_removes_what_the_last_one_has_left(tmp_path: Path) -> None:
    harness = OffsetsHarness(tmp_path)

    async def test(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=5)), (GONE, Commit(offset=6))])
        await removal(harness, offsets).remove_orphans()
        assert committed(offsets) == {tuple(KEY): 5}

    harness.run(test)


def test_commits_are_removed_with_their_stream(tmp_path: Path) -> None:
    harness = OffsetsHarness(tmp_path)

    async def test(offsets: CommittedOffsetStore) -> None:
        await offsets.commit([(KEY, Commit(offset=5)), (GONE, Commit(offset=6))])
        await removal(harness, offsets).remove_deleted("gone")
        assert committed(offsets) == {tuple(KEY): 5}

    harness.run(test)
