"""Mutants of messages and counts that do not wait for the disk."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from bascule.raft.effects import Write
from bascule.raft.messages import AppendReply, ChunkReply, RaftSnapshot
from bascule.raft.roles.core import Core
from bascule.raft.roles.follower import FollowerRole
from bascule.raft.roles.leader import LeaderRole
from bascule.sim.mutants.base import Mutant, replacing

MATCH: Final = "a match is durable"
COMMIT: Final = "a commit is a majority's"
LOST: Final = "no committed entry lost"
OWN: Final = "its own part is durable"


def _ack_before_flush(original: Any) -> Any:
    def send_when_durable(self: Core, message: Any) -> None:
        if isinstance(message, AppendReply):
            self.send(message)
        else:
            original(self, message)

    return send_when_durable


def _write_without_sync(original: Any) -> Any:
    def take_write(self: Core) -> Write | None:
        write: Write | None = original(self)
        if write is None or write.vote is not None:
            return write
        return replace(write, sync=False)

    return take_write


def _leader_counts_itself(original: Any) -> Any:
    def maybe_commit(self: LeaderRole) -> bool:
        core = self._core
        synced, core.synced = core.synced, core.log.last
        try:
            return bool(original(self))
        finally:
            core.synced = synced

    return maybe_commit


def _superseded_write_counts(original: Any) -> Any:
    def forget_written(self: Core, index: int) -> None:
        lasts = [write.last for write in self._inflight_writes]
        original(self, index)
        for write, last in zip(self._inflight_writes, lasts, strict=True):
            write.last = last

    return forget_written


def _install_before_durable(original: Any) -> Any:
    def on_chunk(self: FollowerRole, message: ChunkReply) -> None:
        fetcher = self.fetcher
        snapshot = None if fetcher is None else fetcher.on_chunk(message)
        if snapshot is not None:
            core = self._core
            core.install(snapshot)
            self.on_installed(snapshot.index)
            if core.leader:
                self.reply_snapshot(core.leader, snapshot.index)

    return on_chunk


def _install_keeps_its_own_part(original: Any) -> Any:
    def install(self: Core, snapshot: RaftSnapshot) -> None:
        synced = self.synced
        original(self, snapshot)
        self.synced = max(synced, self.synced)

    return install


MUTANTS: Final = (
    Mutant(
        name="entries before an installed snapshot count",
        found_by=(OWN,),
        patch=replacing(Core, "install", _install_keeps_its_own_part),
    ),
    Mutant(
        name="ack before flush",
        found_by=(MATCH,),
        patch=replacing(Core, "send_when_durable", _ack_before_flush),
    ),
    Mutant(
        name="entries written without sync",
        found_by=(MATCH, COMMIT),
        patch=replacing(Core, "take_write", _write_without_sync),
    ),
    Mutant(
        name="leader counts itself before its write is done",
        found_by=(COMMIT,),
        patch=replacing(LeaderRole, "maybe_commit", _leader_counts_itself),
    ),
    Mutant(
        name="completion of a superseded write counts",
        found_by=(MATCH, COMMIT, OWN),
        patch=replacing(Core, "_forget_written", _superseded_write_counts),
    ),
    Mutant(
        name="snapshot installed before it is durable",
        found_by=(MATCH, LOST, OWN),
        patch=replacing(FollowerRole, "on_chunk", _install_before_durable),
    ),
)
