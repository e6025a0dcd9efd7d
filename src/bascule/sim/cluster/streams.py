"""`StreamPlan`: the streams of a run. Each draws what it promises and which maintenance it has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from bascule.model import Cleanup, PartitionBy, StreamConfig, SyncPolicy
from bascule.sim.prng import Prng

DEDUPE_MS: Final = 3_600_000
"""How long streams keep message ids: longer than a run, also by clocks that jump."""
LIMIT: Final = 40
"""Messages that a stream with a limit keeps."""
AGE_MS: Final = 3_000
SEGMENT_AGE_MS: Final = 1_000
SYNC_INTERVAL_MS: Final = 500
SEGMENT_BYTES: Final = 2_048
"""Of compacted streams, of which only closed segments are compacted; and of some others."""
COMPACTION_LAG_MS: Final = 1_500
TOMBSTONES_MS: Final = 500
PARTITIONS_MAX: Final = 3


DEFAULTS: Final = StreamConfig(subject="s")


class StreamTrait(Enum):
    """What a stream has beside the defaults."""

    PLAIN = "plain"
    """Nothing."""
    COMPACTED = "compacted"
    """The latest value of each key stays; messages have keys and no ids."""
    LIMITED = "limited"
    """Retention keeps LIMIT messages."""
    AGED = "aged"
    """Retention keeps messages for AGE_MS."""
    SPLIT = "split"
    """Several partitions; the key of a message says which one has it."""
    GROUPED = "grouped"
    """Several partitions between which NATS chooses; messages have no ids."""
    UNSYNCED = "unsynced"
    """Messages are acknowledged before they are synced."""
    LENIENT = "lenient"
    """One replica in sync is enough."""
    STRICT = "strict"
    """All replicas have to be in sync."""
    TABLE = "table"
    """A compacted one with one partition that is a table, with clients and watchers."""
    PAYLOADS = "payloads"
    """Clients send payloads to it; see `payloads`. Drawn apart."""
    QUIET = "quiet"
    """Nobody publishes to it but the clients of its table. Only where it is chosen."""
    EXPIRING = "expiring"
    """Of a compacted one: records are removed by number and age, too. Only where it is chosen, and
    in wide runs, as the next one."""
    BRIEF = "brief"
    """Segments are closed after SEGMENT_AGE_MS."""


PROBABILITIES: Final = {
    StreamTrait.COMPACTED: 0.15,
    StreamTrait.LIMITED: 0.12,
    StreamTrait.AGED: 0.08,
    StreamTrait.SPLIT: 0.2,
    StreamTrait.GROUPED: 0.08,
    StreamTrait.UNSYNCED: 0.15,
    StreamTrait.LENIENT: 0.15,
    StreamTrait.STRICT: 0.1,
}
EXCLUSIVE: Final = (
    (StreamTrait.COMPACTED, StreamTrait.LIMITED),
    (StreamTrait.COMPACTED, StreamTrait.AGED),
    (StreamTrait.COMPACTED, StreamTrait.GROUPED),
    (StreamTrait.SPLIT, StreamTrait.GROUPED),
    (StreamTrait.LENIENT, StreamTrait.STRICT),
    (StreamTrait.TABLE, StreamTrait.SPLIT),
    (StreamTrait.TABLE, StreamTrait.LIMITED),
    (StreamTrait.TABLE, StreamTrait.AGED),
    (StreamTrait.TABLE, StreamTrait.GROUPED),
    (StreamTrait.TABLE, StreamTrait.PAYLOADS),
    (StreamTrait.TABLE, StreamTrait.EXPIRING),
)
"""Of each pair a stream has the first one at most."""
EXPIRED: Final = (
    (StreamTrait.COMPACTED, StreamTrait.LIMITED),
    (StreamTrait.COMPACTED, StreamTrait.AGED),
)
"""Pairs that an expiring stream has."""


@dataclass(slots=True, frozen=True, kw_only=True)
class StreamPlan:
    """One stream."""

    name: str
    """Also its subject."""
    replicas: int
    traits: frozenset[StreamTrait] = frozenset()
    partitions: int = 1
    min_isr: int = 0
    """0: more than half of the replicas."""
    sync: SyncPolicy = SyncPolicy.ALWAYS
    segment_bytes: int = 0
    """Of a stream that is not compacted; 0: more than a run writes."""
    remembers_ids: bool = False
    """Of a table: whether its messages may be sent again. Then none of them is compacted."""
    is_altered: bool = False
    """Whether an operator has changed what it promises."""

    @property
    def compacts(self) -> bool:
        return StreamTrait.COMPACTED in self.traits

    @property
    def is_table(self) -> bool:
        return StreamTrait.TABLE in self.traits

    @property
    def is_grouped(self) -> bool:
        return StreamTrait.GROUPED in self.traits

    @property
    def has_ids(self) -> bool:
        """Whether messages may have ids, and are sent again."""
        return not self.compacts and not self.is_grouped

    @property
    def is_synced(self) -> bool:
        """Whether a message is synced before it is acknowledged."""
        return self.sync is SyncPolicy.ALWAYS

    @property
    def needed_in_sync(self) -> int:
        """Replicas in sync without which nothing is committed."""
        return self.min_isr or self.replicas // 2 + 1

    @property
    def messages_max(self) -> int:
        """Messages that retention keeps; 0: no limit."""
        return LIMIT if StreamTrait.LIMITED in self.traits else 0

    @property
    def age_ms_max(self) -> int:
        """How long retention keeps messages; 0: no limit."""
        return AGE_MS if StreamTrait.AGED in self.traits else 0

    @property
    def _cleanup(self) -> tuple[Cleanup, ...]:
        if not self.compacts:
            return (Cleanup.DELETE,)
        is_expiring = StreamTrait.EXPIRING in self.traits
        return (Cleanup.COMPACT, Cleanup.DELETE) if is_expiring else (Cleanup.COMPACT,)

    def config(self) -> StreamConfig:
        """The settings with which it is created."""
        compacts = self.compacts
        return StreamConfig(
            subject=self.name,
            sync=self.sync,
            sync_interval_ms=SYNC_INTERVAL_MS,
            segment_bytes_max=SEGMENT_BYTES if compacts else self.segment_bytes or 256 << 20,
            partitions=self.partitions,
            partition_by=PartitionBy.GROUP if self.is_grouped else PartitionBy.KEY,
            cleanup=self._cleanup,
            segment_age_ms_max=(
                SEGMENT_AGE_MS if StreamTrait.BRIEF in self.traits else DEFAULTS.segment_age_ms_max
            ),
            retention_ms_max=self.age_ms_max,
            retention_messages_max=self.messages_max,
            tombstone_retention_ms=TOMBSTONES_MS,
            max_compaction_lag_ms=COMPACTION_LAG_MS if compacts else 0,
            dirty_percent_min=10,
            dedupe_window_ms=0 if compacts and not self.remembers_ids else DEDUPE_MS,
            table=self.is_table,
            replicas=self.replicas,
            min_isr=self.min_isr,
        )


def draw_streams(
    prng: Prng, count: int, *, replicas: int, traits: Collection[str] = ()
) -> tuple[StreamPlan, ...]:
    """The streams of a run; all of them have `traits` if there are any, and no others."""
    return tuple(_draw_stream(prng, f"s{number}", replicas, traits) for number in range(count))


def _draw_stream(prng: Prng, name: str, replicas: int, traits: Collection[str]) -> StreamPlan:
    drawn = [trait for trait, probability in PROBABILITIES.items() if prng.happens(probability)]
    partitions = prng.between(2, PARTITIONS_MAX)
    sync = prng.pick((SyncPolicy.INTERVAL, SyncPolicy.NEVER))
    chosen = {trait for trait in StreamTrait if trait.value in traits} if traits else {*drawn}
    for kept, excluded in EXCLUSIVE:
        is_expired = StreamTrait.EXPIRING in chosen and (kept, excluded) in EXPIRED
        if kept in chosen and not (is_expired and StreamTrait.TABLE not in chosen):
            chosen.discard(excluded)
    if StreamTrait.TABLE in chosen:
        chosen.add(StreamTrait.COMPACTED)
    has_several = not chosen.isdisjoint((StreamTrait.SPLIT, StreamTrait.GROUPED))
    min_isr = 0
    if not chosen.isdisjoint((StreamTrait.LENIENT, StreamTrait.STRICT)):
        min_isr = 1 if StreamTrait.LENIENT in chosen else replicas
    return StreamPlan(
        name=name,
        replicas=replicas,
        traits=frozenset(chosen),
        partitions=partitions if has_several else 1,
        min_isr=min_isr,
        sync=sync if StreamTrait.UNSYNCED in chosen else SyncPolicy.ALWAYS,
    )


def as_table(stream: StreamPlan, *, remembers_ids: bool) -> StreamPlan:
    """The stream as a table, which keeps what it promises."""
    without = {excluded for kept, excluded in EXCLUSIVE if kept is StreamTrait.TABLE}
    traits = {*stream.traits.difference(without), StreamTrait.TABLE, StreamTrait.COMPACTED}
    return replace(stream, traits=frozenset(traits), partitions=1, remembers_ids=remembers_ids)
