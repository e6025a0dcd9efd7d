"""Requests to the controller take effect once, and on all nodes alike."""

from __future__ import annotations

from bascule.sim.checkers.base import InvariantBroken


class RequestEffects:
    """The entries of the log of the metadata that have the id of a request."""

    def __init__(self) -> None:
        self._indexes: dict[bytes, int] = {}
        """Id -> the entry with which it took effect."""
        self._outcomes: dict[int, tuple[bytes, bool]] = {}

    def on_entry(self, process: str, id: bytes, index: int, is_accepted: bool) -> None:
        """A node has applied an entry. Raises: InvariantBroken."""
        if not id:
            return
        outcome = id, is_accepted
        if self._outcomes.setdefault(index, outcome) != outcome:
            raise InvariantBroken(
                "nodes agree on requests",
                f"entry {index} is {outcome} on {process}, and {self._outcomes[index]} elsewhere",
            )
        if is_accepted and self._indexes.setdefault(id, index) != index:
            raise InvariantBroken(
                "requests take effect once",
                f"{id.hex()} took effect at {self._indexes[id]} and {index} on {process}",
            )
