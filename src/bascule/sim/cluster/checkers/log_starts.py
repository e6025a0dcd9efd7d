"""Log starts: retention and purges remove what they may, and it stays removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from bascule.replica.partition import Partition
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.cluster.checkers.log_contents import Key, key_of
from bascule.sim.cluster.checkers.losses import AllowedLosses
from bascule.sim.cluster.plan import MS
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.world.loop import NS

KEPT: Final = "retention keeps"
PURGED: Final = "what is purged stays so"
UNDER_WAY_NS: Final = 10 * NS
"""A purge that was not confirmed for so long is under way no more."""


class _Start(NamedTuple):
    """Where the log of a replica started at the last look."""

    partition: Partition
    offset: int
    unclean_epoch: int
    is_outdated: bool
    """Whether its log has nothing of the unclean epoch yet: it may be replaced, or was."""

    @classmethod
    def of(cls, partition: Partition) -> _Start:
        state, store = partition.state, partition.log
        unclean_epoch = 0 if state is None else state.unclean_epoch
        latest = -1 if store is None else store.epochs.latest
        is_outdated = latest < unclean_epoch and not partition.is_leader
        return cls(partition, partition.start_offset, unclean_epoch, is_outdated)

    def may_fall_to(self, later: _Start) -> bool:
        """Whether `later` may be lower: another process, or a log that an unclean election has
        replaced."""
        is_same = self.partition is later.partition
        return not is_same or self.is_outdated or self.unclean_epoch != later.unclean_epoch


class LogStarts:
    """Where logs start, and may start."""

    def __init__(
        self, plans: Mapping[str, StreamPlan], losses: AllowedLosses, *, clocks_jump: bool
    ) -> None:
        """With `clocks_jump` nothing is known about the age of records."""
        self._plans = plans
        self._losses = losses
        self._clocks_jump = clocks_jump
        self.highest: dict[Key, int] = {}
        """The highest start of any replica."""
        self._ends: dict[Key, int] = {}
        """The highest end of any replica, also of records that were truncated."""
        self._asked: dict[Key, int] = {}
        self._purged: dict[Key, int] = {}
        """To where a purge was asked for, and confirmed."""
        self._under_way: dict[Key, dict[int, int]] = {}
        """Offset of a purge that is not confirmed -> when it was asked for."""
        self._undone: dict[Key, int] = {}
        """What was allowed before an unclean election whose leader no look has found yet."""
        self._sent_ns: dict[Key, dict[int, int]] = {}
        """Offset -> when its message was sent first."""
        self._starts: dict[tuple[int, Key], _Start] = {}

    def on_ack(self, key: Key, offset: int, sent_ns: int) -> None:
        """A message was acknowledged."""
        if self._plans[key[0]].age_ms_max:
            self._sent_ns.setdefault(key, {})[offset] = sent_ns

    def on_purge(self, key: Key, offset: int, *, is_done: bool, now_ns: int) -> None:
        """A purge was asked for, or confirmed."""
        known = self._purged if is_done else self._asked
        known[key] = max(known.get(key, 0), offset)
        if is_done:
            self._under_way.get(key, {}).pop(offset, None)
        else:
            self._under_way.setdefault(key, {})[offset] = now_ns

    def purged(self, key: Key) -> int:
        """To where a purge was confirmed."""
        return self._purged.get(key, 0)

    def forget(self, key: Key, now_ns: int) -> None:
        """After an unclean election the log may end before what was purged. What was allowed to be
        removed is so up to the end of the new leader's log: behind it there are other records."""
        self._undone[key] = max(self.allowed(key, now_ns), self.highest.get(key, 0))
        under_way = self._under_way.get(key, {})
        late = [at for at, asked_ns in under_way.items() if asked_ns >= now_ns - UNDER_WAY_NS]
        self._asked[key] = max(late, default=0)
        for known in (self._purged, self.highest, self._ends):
            known.pop(key, None)

    def note_end(self, partition: Partition, key: Key) -> None:
        """Note where a log ends, before it is truncated or its process is gone."""
        if partition.log is None or self._losses.is_outdated(partition, key):
            return
        end = partition.log.end.offset
        self._ends[key] = max(self._ends.get(key, 0), end)
        if partition.is_leader and key in self._undone:
            self._asked[key] = max(self._asked.get(key, 0), min(self._undone.pop(key), end))

    def look(
        self, node: int, partition: Partition, *, now_ns: int, committed: int, latest_epoch: int
    ) -> None:
        """Check where a log starts; `committed` is what is committed, and all ends are noted.

        Raises: InvariantBroken.
        """
        key, start = key_of(partition), partition.start_offset
        before = self._starts.get((node, key))
        self._starts[node, key] = found = _Start.of(partition)
        if before is not None and start < before.offset and not before.may_fall_to(found):
            raise InvariantBroken(
                "log start monotonic", f"{key} on node {node}: {start} after {before.offset}"
            )
        if partition.is_leader and partition.leader_epoch >= latest_epoch:
            purged = self._purged.get(key, 0)
            if start < purged and partition.failure is None:
                raise InvariantBroken(
                    PURGED, f"{key} on node {node} starts at {start}, and {purged} was confirmed"
                )
        if start <= self.highest.get(key, 0) or self._losses.is_outdated(partition, key):
            return
        if start > committed:
            raise InvariantBroken(
                KEPT, f"{key} on node {node} starts at {start}, and {committed} is committed"
            )
        allowed = self.allowed(key, now_ns)
        if start > allowed:
            raise InvariantBroken(
                KEPT, f"{key} on node {node} starts at {start}, at most {allowed} is allowed"
            )
        self.highest[key] = start

    def look_at_set(self, key: Key, in_sync: Iterable[tuple[int, Partition]]) -> None:
        """No replica in sync has what is purged: it may lead next. Raises: InvariantBroken."""
        purged = self._purged.get(key, 0)
        if not purged:
            return
        for node, partition in in_sync:
            start = partition.start_offset
            if start < purged:
                raise InvariantBroken(
                    PURGED,
                    f"{key} on node {node} starts at {start}, is in sync, and a purge to {purged} "
                    "is confirmed",
                )

    def allowed(self, key: Key, now_ns: int) -> int:
        """Up to where records may be removed."""
        plan = self._plans[key[0]]
        allowed = max(self._asked.get(key, 0), self._undone.get(key, 0))
        if plan.messages_max:
            allowed = max(allowed, self._ends.get(key, 0) - plan.messages_max)
        if plan.age_ms_max:
            latest_ns = now_ns - plan.age_ms_max * MS
            young = [
                offset
                for offset, sent_ns in self._sent_ns.get(key, {}).items()
                if sent_ns > latest_ns and not self._clocks_jump and not plan.compacts
            ]
            # What nobody was told of is not known here, nor what compaction has left of the records
            # of an expiring stream: a log may start behind young ones that it has removed.
            allowed = max(allowed, min(young, default=self._ends.get(key, 0)))
        return allowed
