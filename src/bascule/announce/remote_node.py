"""Another node, as its announcements show it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from bascule.wire.announcements import Announcement, StreamClaim, is_valid

STREAMS_MAX: Final = 65_536
"""Streams of one node that are remembered, at 8 bytes each. Ten times what one node is made for."""


@dataclass(slots=True)
class _PartialList:
    """The pages of a list that have come so far."""

    revision: int
    pages: int
    seen: set[int] = field(default_factory=set)
    hashes: array[int] = field(default_factory=lambda: array("q"))
    claims: dict[str, StreamClaim] = field(default_factory=dict)


class RemoteNode:
    """The streams of one run of another node. Only those with names of ours are kept whole."""

    def __init__(self, announcement: Announcement, *, now_ns: int) -> None:
        self.cluster_id = announcement.cluster
        self.node_id = announcement.node
        self.run = announcement.run
        self.interval_ns = 0
        self.heard_ns = now_ns
        """When the last announcement came."""
        self.revision: int | None = None
        """Of the list that is known. None: no complete list is known."""
        self.request_at_ns: int | None = None
        """When its list is to be requested; None: not needed."""
        self.claims: dict[str, StreamClaim] = {}
        """Its streams with names of ours."""
        self._hashes = array("q")
        """The hash of each name, sorted. The hashes of this process; they are never sent."""
        self._partial: _PartialList | None = None

    @property
    def is_loading(self) -> bool:
        """Whether some pages of a list have come, and some have not."""
        return self._partial is not None

    def on_heard(self, announcement: Announcement, *, now_ns: int) -> None:
        self.heard_ns = now_ns
        self.interval_ns = announcement.interval_ms * 1_000_000

    def may_have(self, name: str) -> bool:
        """Whether its list may have a stream of this name. Never False if it has."""
        wanted = hash(name)
        at = bisect_left(self._hashes, wanted)
        return at < len(self._hashes) and self._hashes[at] == wanted

    def forget_list(self) -> None:
        """The list has to be requested again; what is known stays until then."""
        self.revision = self._partial = None

    def take_page(
        self, page: Announcement, claims: Iterable[StreamClaim], names: Container[str]
    ) -> None:
        """Add a page of a list; `names` are those of our streams. Once the list is complete, it
        takes the place of what was known."""
        partial = self._partial
        if partial is None or (partial.revision, partial.pages) != (page.revision, page.pages):
            partial = self._partial = _PartialList(page.revision, page.pages)
        if page.page in partial.seen:
            return
        partial.seen.add(page.page)
        for claim in claims:
            if len(partial.hashes) >= STREAMS_MAX:
                break
            partial.hashes.append(hash(claim.name))
            if claim.name in names and is_valid(claim):
                partial.claims[claim.name] = claim
        if len(partial.seen) < partial.pages:
            return
        self._hashes = array("q", sorted(partial.hashes))
        self.claims = partial.claims
        self.revision = partial.revision
        self._partial = None

    def take_change(
        self, change: Announcement, claims: Iterable[StreamClaim], names: Container[str]
    ) -> None:
        """Apply a change. Where the list is not known at its base, `revision` stays."""
        for name in change.removed:
            self.claims.pop(name, None)
            self._remove(name)
        for claim in claims:
            if not self.may_have(claim.name) and len(self._hashes) < STREAMS_MAX:
                insort(self._hashes, hash(claim.name))
            self.claims.pop(claim.name, None)
            if claim.name in names and is_valid(claim):
                self.claims[claim.name] = claim
        if self.revision is not None and self.revision == change.base:
            self.revision = change.revision

    def _remove(self, name: str) -> None:
        at = bisect_left(self._hashes, hash(name))
        if at < len(self._hashes) and self._hashes[at] == hash(name):
            del self._hashes[at]
