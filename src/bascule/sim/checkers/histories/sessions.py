"""Checks what sessions of a table's clients saw, whichever replicas they read.

A version is the offset of the record that wrote it, so versions of all keys have one order. A
session sees what it has written itself (read your writes), nothing older than what it has seen
before (monotonic reads), and writes behind all of that (writes follow reads). All sessions see the
same value at a version, and the log has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from bascule.sim.checkers.base import InvariantBroken

OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
FOLLOWING: Final = "writes follow reads"
ONE_VALUE: Final = "one value a version"
LOGGED: Final = "versions are in the log"


class Written(NamedTuple):
    """The record of a version; value None: the key was removed."""

    key: str
    value: bytes | None


class _Floor(NamedTuple):
    """What a session knows of a key: it is at `version` or a later one."""

    version: int
    is_own: bool
    """Whether the session wrote it."""
    is_absent: bool = False
    """Whether it was removed at `version` or later, and the session may not know where."""


class SessionChecker:
    """Takes the events of all sessions in the order in which clients saw them."""

    def __init__(self) -> None:
        self.versions: dict[int, Written] = {}
        """All versions that were seen."""
        self._floors: dict[tuple[int, str], _Floor] = {}
        """By session and key."""
        self._latest: dict[int, int] = defaultdict(lambda: -1)
        """Session -> the highest version that it has seen."""
        self._removals: dict[str, set[int]] = defaultdict(set)
        self._unknown_removals: dict[str, int] = defaultdict(int)
        """Removals under way, or without an answer."""

    def on_removal_begun(self, key: str) -> None:
        """Some session is about to remove a key; readers may see that before it is answered."""
        self._unknown_removals[key] += 1

    def on_removal_refused(self, key: str) -> None:
        """A removal has had no effect, and will have none."""
        self._unknown_removals[key] -= 1

    def on_written(self, session: int, key: str, version: int, value: bytes | None) -> None:
        """A write of the session was acknowledged; value None: a removal.

        Raises: InvariantBroken.
        """
        if value is None:
            self._unknown_removals[key] -= 1
        if version <= self._latest[session]:
            raise InvariantBroken(
                FOLLOWING,
                f"session {session} wrote {key!r} at version {version}, and has seen "
                f"{self._latest[session]} before",
            )
        self._note(session, key, version, value)
        self._floors[session, key] = _Floor(version, is_own=True)

    def on_read(self, session: int, key: str, version: int | None, value: bytes | None) -> None:
        """A read of the session was answered; version None: the key has no value.

        Raises: InvariantBroken.
        """
        floor = self._floors.get((session, key))
        if version is None:
            self._on_absent(session, key, floor)
            return
        if floor is not None and version < floor.version:
            raise self._outdated(session, key, floor, f"version {version}")
        self._note(session, key, version, value)
        if floor is None or floor.is_absent or version > floor.version:
            self._floors[session, key] = _Floor(version, is_own=False)

    def check_log(self, records: Mapping[int, Written]) -> None:
        """`records` has those of the log by offset. Compaction may have removed all but the latest
        of each key. Raises: InvariantBroken."""
        latest: dict[str, int] = {}
        for offset, record in records.items():
            latest[record.key] = max(offset, latest.get(record.key, -1))
        for version, seen in self.versions.items():
            found = records.get(version)
            is_replaced = latest.get(seen.key, -1) > version
            if found != seen and not (found is None and is_replaced):
                raise InvariantBroken(LOGGED, f"{seen} was seen at {version}, and {found} is there")

    def _on_absent(self, session: int, key: str, floor: _Floor | None) -> None:
        if floor is None or floor.is_absent or self._is_removal(key, floor.version):
            return
        if (
            self._unknown_removals[key] <= 0
            and max(self._removals[key], default=-1) < floor.version
        ):
            raise self._outdated(session, key, floor, "no value")
        # It was removed later than that.
        self._floors[session, key] = _Floor(floor.version + 1, is_own=False, is_absent=True)

    def _is_removal(self, key: str, version: int) -> bool:
        return version in self._removals[key]

    def _outdated(self, session: int, key: str, floor: _Floor, what: str) -> InvariantBroken:
        name = OWN_WRITES if floor.is_own else MONOTONIC
        did = "wrote" if floor.is_own else "saw"
        return InvariantBroken(
            name, f"session {session} {did} {key!r} at version {floor.version}, then read {what}"
        )

    def _note(self, session: int, key: str, version: int, value: bytes | None) -> None:
        seen = Written(key, value)
        before = self.versions.setdefault(version, seen)
        if before != seen:
            raise InvariantBroken(ONE_VALUE, f"version {version} is {before} and {seen}")
        if value is None:
            self._removals[key].add(version)
        self._latest[session] = max(self._latest[session], version)
