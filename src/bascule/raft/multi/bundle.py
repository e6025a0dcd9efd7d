"""The unit that one process sends to another: messages of any groups, and hibernation changes."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from bascule.raft.messages import AnyMessage

NUMBER_MAX: Final = (1 << 63) - 1

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class Hibernation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A hibernating group: its leader leads in `term`, and all members have its log up to `index`,
    all of which is committed."""

    group: Number
    term: Number
    index: Number


class Bundle(msgspec.Struct, frozen=True, array_like=True):
    """Everything that node `source` sends to node `target` in one piece.

    The fields up to `held` are the coalesced heartbeat of all hibernating groups. Every bundle has
    them. If nothing else was sent for `heartbeat_ticks` while a group hibernates between the two, a
    bundle with only these fields is sent. Each number only rises within one incarnation, so bundles
    may be lost, repeated and reordered.
    """

    source: Number
    target: Number
    incarnation: Number
    """The source's; it differs at each start."""
    heard_incarnation: Number
    """The target's, as far as the source knows; 0: never heard."""
    clock: Number
    """The source's tick when it sent this."""
    echo: Number
    """The latest `clock` of the target that the source has received, of `heard_incarnation`."""
    session: Number
    """Identifies the source's copy of the target's hibernating groups; rises when it is reset."""
    heard_session: Number
    """The target's `session`, as far as the source knows."""
    held: Number
    """The version of the target's hibernating groups that the source has, in `session`."""
    base: Number = 0
    """The fields below change version `base` of the source's hibernating groups, which the target
    has in `heard_session`, ..."""
    version: Number = 0
    """... into this version."""
    hibernated: tuple[Hibernation, ...] = ()
    woken: tuple[Number, ...] = ()
    refused: tuple[Hibernation, ...] = ()
    """Groups that hibernate by version `held`, but not at the source: the target wakes them."""
    messages: tuple[tuple[Number, AnyMessage], ...] = ()
    """(group, message), in the order in which they were sent."""
