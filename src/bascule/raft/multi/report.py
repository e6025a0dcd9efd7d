"""What a hub says of itself, for people and metrics."""

from __future__ import annotations

import msgspec


class LinkReport(msgspec.Struct, frozen=True):
    """The link to one other hub."""

    peer: int
    incarnation: int
    """0: never heard."""
    is_in_contact: bool
    """Whether bundles lately passed both ways."""
    silent_ticks: int | None
    """Since it was heard; None: never."""
    led_at_rest: int
    """Groups that rest here as leader and that it is to let rest."""
    followed_at_rest: int
    """Groups that it leads and that are to rest here, refused ones included."""
    refused: int


class HubReport(msgspec.Struct, frozen=True):
    node: int
    incarnation: int
    ticks: int
    """Since the start."""
    groups: int
    at_rest: int
    """Of them."""
    links: tuple[LinkReport, ...]
