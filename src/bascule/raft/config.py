"""The settings of a Raft group.

Where leases are on, all members of a group have the same settings: a lease counts on the timeouts
of the others. Without leases no promise depends on them. They may differ, as in a cluster that is
upgraded node by node, and cost elections that are not needed, or slower snapshots.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from bascule.errors import ConfigError

MIB: Final = 1 << 20
NEVER: Final = 1 << 62
"""A tick that never comes: used where there is no deadline."""


LEASES: Final = "lease_reads"
SHARED: Final = (
    "election_ticks", "heartbeat_ticks", LEASES, "lease_margin_ticks",
    "commit_count_to_take_snapshot",
)  # fmt: skip
"""Names of the settings in `RaftConfig.shared`."""


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a group. Times are in ticks; the driver decides how long a tick is.

    The first three of the log are MicroRaft's; `pending_entries_max` is the size of its in-progress
    section, and the capacity of the ring follows from the three (`log_capacity`).
    """

    election_ticks: int = 10
    """The minimum election timeout. The timeout of a follower is random between this and twice this
    value. A leader that has not heard from a quorum for this long steps down."""
    leaderless_election_ticks: int = 0
    """The same for a node that hears no leader: at its start, after a failed election, and once the
    driver knows that the leader's process does not run. 0: `election_ticks`. A driver that learns
    of lost processes by itself can be patient with a leader that is only slow."""
    heartbeat_ticks: int = 2

    commit_count_to_take_snapshot: int = 10_000
    """Every member takes a snapshot at each multiple of this index."""
    pending_entries_max: int = 5_000
    """Uncommitted entries; one more proposal is refused with `CannotReplicate`."""
    snapshot_keep_ratio: float = 0.1
    """Entries kept in the log after a snapshot, for members that lag, as a share of
    `commit_count_to_take_snapshot`."""
    pending_bytes_max: int = 64 * MIB
    """Uncommitted payload bytes; a proposal that exceeds them is refused."""

    append_entries_max: int = 1_000
    append_bytes_max: int = MIB
    """Limits of one append request, which has one entry at least."""
    inflight_appends_max: int = 32
    inflight_bytes_max: int = 8 * MIB
    """Limits of append requests to one member without a reply."""
    apply_entries_max: int = 1_000
    """Entries in one `Apply`."""
    chunk_requests_max: int = 2
    """Snapshot chunks requested from one member at a time."""

    reads_max: int = 5_000
    """Pending reads; one more is refused with `CannotReplicate`."""
    lease_reads: bool = False
    """Whether reads may rely on the leader's lease. It is valid if no member's clock runs faster
    than the leader's by more than `lease_margin_ticks` in `election_ticks`."""
    lease_margin_ticks: int = 2

    def __post_init__(self) -> None:
        for name, floor in (
            ("election_ticks", 2), ("heartbeat_ticks", 1), ("commit_count_to_take_snapshot", 1),
            ("pending_entries_max", 1), ("pending_bytes_max", 1), ("append_entries_max", 1),
            ("append_bytes_max", 1), ("inflight_appends_max", 1), ("inflight_bytes_max", 1),
            ("apply_entries_max", 1), ("chunk_requests_max", 1), ("reads_max", 1),
            ("lease_margin_ticks", 0),
        ):  # fmt: skip
            if (found := getattr(self, name)) < floor:
                raise ConfigError(f"{name} is {found}, expected at least {floor}")
        if self.heartbeat_ticks >= self.election_ticks:
            raise ConfigError(
                f"heartbeat_ticks is {self.heartbeat_ticks}, expected less than election_ticks, "
                f"which is {self.election_ticks}"
            )
        if not 0 <= self.snapshot_keep_ratio <= 1:
            raise ConfigError(
                f"snapshot_keep_ratio is {self.snapshot_keep_ratio}, expected between 0 and 1"
            )
        if not 0 <= self.leaderless_election_ticks <= self.election_ticks:
            raise ConfigError(
                f"leaderless_election_ticks is {self.leaderless_election_ticks}, expected 0 to "
                f"election_ticks, which is {self.election_ticks}"
            )
        if self.lease_reads and self.lease_margin_ticks >= self.election_ticks:
            raise ConfigError(
                f"lease_margin_ticks is {self.lease_margin_ticks}, expected less than "
                f"election_ticks, which is {self.election_ticks}"
            )

    @property
    def shared(self) -> tuple[tuple[str, int], ...]:
        """The settings by name that are equal on all members, where leases are on."""
        return tuple((name, int(getattr(self, name))) for name in SHARED)

    @property
    def shared_checksum(self) -> int:
        """A checksum of `shared`, not 0."""
        return zlib.crc32(repr(self.shared).encode()) or 1

    @property
    def sent_checksum(self) -> int:
        """What votes and heartbeats have: 0, which is not compared, where no lease counts on it."""
        return self.shared_checksum if self.lease_reads else 0

    @property
    def kept_entries(self) -> int:
        """Entries kept in the log after a snapshot, for members that lag."""
        return max(1, int(self.snapshot_keep_ratio * self.commit_count_to_take_snapshot))

    @property
    def log_capacity(self) -> int:
        """Slots of the ring: the sum of its three sections."""
        return self.commit_count_to_take_snapshot + self.pending_entries_max + self.kept_entries
