"""What one hub tells another at one moment: messages of any groups, and which groups rest."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from bascule.raft.messages import AnyMessage

NUMBER_MAX: Final = (1 << 63) - 1

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class Rest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group at rest: its leader led in `term`, all members have its log up to `index`, and all of
    it is committed."""

    group: Number
    term: Number
    index: Number


class Bundle(msgspec.Struct, frozen=True, array_like=True):
    """What leaves the hub of node `source` for the hub of node `target`, in one piece.

    The numbers are the beat: every bundle has them, and one without anything else is sent where
    nothing else was sent for `heartbeat_ticks` while a group rests between the two. Each of them
    alone only ever grows within one incarnation, so bundles may be lost, repeated and reordered.
    """

    source: Number
    target: Number
    incarnation: Number
    """Of the source: another one at each start."""
    heard_incarnation: Number
    """The target's, as far as the source knows; 0: never heard of."""
    clock: Number
    """The source's tick when it sent this."""
    echo: Number
    """The latest `clock` of the target that the source has heard, of `heard_incarnation`."""
    session: Number
    """Of what the source keeps of the target's resting groups; another one where it forgot them."""
    heard_session: Number
    """The target's `session`, as far as the source knows."""
    held: Number
    """The version of the target's resting groups that the source has, in `session`."""
    base: Number = 0
    """What follows changes version `base` of the source's resting groups that the target is to
    have, in `heard_session`, ..."""
    version: Number = 0
    """... into this one."""
    rested: tuple[Rest, ...] = ()
    woken: tuple[Number, ...] = ()
    refused: tuple[Rest, ...] = ()
    """Groups that rest by version `held`, but not at the source: the target is to wake them."""
    messages: tuple[tuple[Number, AnyMessage], ...] = ()
    """(group, message), in the order they were sent."""
