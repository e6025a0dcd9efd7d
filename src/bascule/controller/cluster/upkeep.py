"""What the controller does by and by: members of its Raft group, replicas that move, leaders.

Each step looks at the image and the group, and does what is missing; so a new controller goes on
where its predecessor stopped.

::

    a node is admitted         --> learner; voter, where one is wanted and it has caught up
    there are too many voters  --> one is a learner again
    a node leaves              --> its replicas move --> it is removed from the image --> and from
                                   the group
    a partition lacks replicas --> it moves to more nodes
    a preferred leader is back --> it leads again
    a node is drained          --> others lead what they can, and are the controller
    a node lacks NATS          --> that is noted; others lead what they can
    the controller stops       --> another voter is the controller
    replicas are to be balanced--> a few partitions move at a time
    all nodes support more     --> the cluster version rises
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from bascule.controller.cluster.metadata_group import MetadataGroup
from bascule.controller.cluster.nats_lack import LackingNodes
from bascule.controller.cluster.operations.move_plan import MovePlan
from bascule.errors import BasculeError, CannotReplicate, Indeterminate
from bascule.metadata.image import Image
from bascule.metadata.replicas.balance import due_balancing
from bascule.metadata.replicas.leadership import moves_from_drained, moves_to_preferred
from bascule.metadata.replicas.reassignment import due_moves, finishing_moves, holds_replicas
from bascule.metadata.requests import (
    BalanceLeaders,
    BalanceReplicas,
    FinishLeaving,
    FinishMoves,
    GiveLeaders,
    MoveReplicas,
    RaiseVersion,
)
from bascule.metadata.versions import version_for_all
from bascule.model import NodeRegistration
from bascule.raft.membership import MemberChange, Members

log = logging.getLogger("bascule.controller")

UPKEEP_SECONDS: Final = 0.5
VOTERS_MAX: Final = 5
"""More voters make each decision slower, and survive no more failures that happen together."""
VOTERS_MIN: Final = 3
"""With fewer wanted no voter becomes a learner."""
FOUNDED_AT: Final = 1
"""The index of the founders in the log of the group; 0 in logs of earlier releases."""
BALANCING_MAX: Final = 4
"""Partitions that move at a time where nothing but the balance needs it."""
MOVING_MAX: Final = 100
"""Partitions that move at a time."""
BALANCED_MAX: Final = 100
"""Partitions that get another leader in one step, with a short gap in service each."""


class ClusterUpkeep:
    """Belongs to the event loop."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataGroup,
        lacking: LackingNodes,
        *,
        balance_ms: int,
        balances_replicas: bool = False,
    ) -> None:
        """`balance_ms` is the time between steps in which leadership returns; 0: it stays.
        `balances_replicas`: replicas are balanced without a request of an operator, too."""
        self._node_id = node_id
        self._metadata = metadata
        self._lacking = lacking
        self._balance_seconds = balance_ms / 1000
        self._balances_replicas = balances_replicas
        self._balance_at = 0.0
        self._finishing: frozenset[tuple[bytes, int, int]] = frozenset()
        """Moves whose leaders had handed over at the last step, with the partitions' versions."""
        self._given: Image | None = None
        """The image in which nobody could lead for a drained node that did not."""
        self._even: Image | None = None
        """The image in which no replica was to move for the balance."""
        self._settled: Mapping[int, NodeRegistration] | None = None
        """The nodes with which there was nothing to move: what lacks replicas then gets none before
        the nodes change."""
        self._moves = MovePlan(due_moves, lambda: metadata.image)
        self._balancing = MovePlan(due_balancing, lambda: metadata.image)
        self._balanced: Image | None = None
        """The image in which every partition had its preferred leader, as far as that can lead."""

    async def run(self) -> None:
        """Run until cancelled; idle while another node is the controller."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            if not self._metadata.is_controller:
                self._lacking.forget()
                self._settled, self._balance_at = None, loop.time() + self._balance_seconds
                continue
            await self._look(loop.time())

    async def _look(self, now: float) -> None:
        """Do what is missing. What cannot be done now, as a learner that is behind cannot vote yet,
        holds up nothing else."""
        for step in (
            self._raise_version,
            self._change_members,
            self._finish_moves,
            self._move,
            self._give_leaders,
            self._lacking.note,
            partial(self._lacking.give_leaders, now),
            partial(self._balance, now),
            self._balance_replicas,
            self._give_up_control,
        ):
            if not self._metadata.is_controller:
                break
            try:
                await step()
            except BasculeError as error:
                log.debug("upkeep is tried again", extra={"error": str(error)})

    async def _raise_version(self) -> None:
        """Have the newest cluster version in force that all nodes support. Raises: BasculeError."""
        metadata = self._metadata
        members, before = metadata.members.all, metadata.image.cluster_version
        if version_for_all(metadata.image, members) > before:
            await metadata.wait_applied(await metadata.decide_here(RaiseVersion(members)))
            extra = {"version": metadata.image.cluster_version, "before": before}
            log.info("cluster version raised", extra=extra)

    # -- the members of the group ---------------------------------------------------------------

    async def _change_members(self) -> None:
        """Make the next change of the group's members, if one is due. Raises: BasculeError."""
        metadata = self._metadata
        if not metadata.are_members_committed:
            return
        change = next_change(metadata.image, metadata.members, leader=self._node_id)
        if change is None:
            return
        kind, node = change
        if kind is MemberChange.REMOVE and node == self._node_id:
            await hand_over(self._metadata, self._node_id)
            return
        chosen = [node]
        if kind is MemberChange.ADD_VOTER:
            usable = metadata.image.usable()
            chosen = [each for each in metadata.members.learners if each in usable]
        members = await self._change_one(kind, chosen)
        extra = {"voters": list(members.voters), "learners": list(members.learners)}
        log.info("members of the metadata group changed", extra=extra)

    async def _give_up_control(self) -> None:
        """Have another voter be the controller where this node is drained. Raises: BasculeError."""
        if _is_drained(self._metadata.image, self._node_id):
            await hand_over(self._metadata, self._node_id)

    async def _change_one(self, kind: MemberChange, nodes: Sequence[int]) -> Members:
        """Change the first of these nodes that can be: a learner may be behind for long. Raises:
        BasculeError."""
        *others, last = nodes
        for node in others:
            try:
                return await self._metadata.change_members(kind, node)
            except CannotReplicate as error:
                log.debug("upkeep is tried again", extra={"error": str(error)})
        return await self._metadata.change_members(kind, last)

    # -- replicas and leaders -------------------------------------------------------------------

    async def _finish_moves(self) -> None:
        """End the moves whose leaders have handed over before the last step: by now they know which
        of their last records are committed, and have acknowledged them."""
        before, self._finishing = self._finishing, frozenset(finishing_moves(self._metadata.image))
        if due := before & self._finishing:
            await self._metadata.submit(FinishMoves(tuple(sorted(due))))

    async def _move(self) -> None:
        metadata, image = self._metadata, self._metadata.image
        if image.nodes is self._settled:
            return
        moves = await self._moves.take(moving_max=MOVING_MAX)
        if moves:
            await metadata.submit(MoveReplicas(moves))
            return
        leaving = [number for number, node in sorted(image.nodes.items()) if node.is_leaving]
        for number in leaving:
            if holds_replicas(image, number) or is_needed(image, metadata.members, number):
                continue
            if number == self._node_id:
                await hand_over(self._metadata, self._node_id)
                return
            await metadata.submit(FinishLeaving(number))
            if number in metadata.image.removed:  # the removal was not taken back meanwhile
                log.info("node removed", extra={"node": number})
            return
        if leaving:
            return
        if moves is None and not any(True for _ in image.moving_states()):
            self._settled = image.nodes

    async def _give_leaders(self) -> None:
        """Have others lead for nodes that are drained or leave, where they can by now."""
        image = self._metadata.image
        if image is self._given:
            return
        if moves_from_drained(image, count_max=1) is None:
            self._given = image
        else:
            await self._metadata.submit(GiveLeaders(BALANCED_MAX))

    async def _balance_replicas(self) -> None:
        image = self._metadata.image
        if image is self._even or not (image.is_balancing or self._balances_replicas):
            return
        moves = await self._balancing.take(moving_max=BALANCING_MAX)
        if moves is None:
            self._even = image
        if moves or (moves is None and image.is_balancing):
            await self._metadata.submit(BalanceReplicas(moves or (), self._balances_replicas))

    async def _balance(self, now: float) -> None:
        if not self._balance_seconds or now < self._balance_at:
            return
        self._balance_at = now + self._balance_seconds
        image = self._metadata.image
        if image is self._balanced:
            return
        if moves_to_preferred(image, count_max=1) is None:
            self._balanced = image
        else:
            await self._metadata.submit(BalanceLeaders(BALANCED_MAX))


async def hand_over(metadata: MetadataGroup, node_id: int) -> bool:
    """As the controller `node_id`: have another voter be it, since this node leaves, is drained or
    stops, or since its disk is full. Whether another one is. Raises: BasculeError."""
    usable = metadata.image.usable()
    for node in metadata.members.voters:
        if node != node_id and node in usable:
            try:
                await metadata.transfer(node)
                return True
            except (CannotReplicate, Indeterminate) as error:
                # Its disk may be full, for example: then another voter can.
                extra = {"node": node, "error": str(error)}
                log.debug("controller not handed over yet", extra=extra)
    return False


async def hand_over_before_stop(metadata: MetadataGroup, node_id: int, seconds_max: float) -> None:
    """Have another node be the controller instead of this one, which stops. Without that nobody
    decides before an election, and what was decided last may be known to some nodes only: a leader
    that was replaced, and not to the one that is to lead."""
    if metadata.is_only_voter:
        return
    why = "no other voter could be"
    try:
        async with asyncio.timeout(seconds_max):
            if await hand_over(metadata, node_id):
                return
    except (BasculeError, TimeoutError) as error:
        why = str(error) or f"not within {seconds_max} s"
    log.warning("stopping as the controller", extra={"error": why})


def _is_drained(image: Image, node: int) -> bool:
    """Whether a node is drained, so that another one is to be the controller."""
    found = image.nodes.get(node)
    return found is not None and found.is_drained


def next_change(image: Image, members: Members, *, leader: int) -> tuple[MemberChange, int] | None:
    """The change that brings the members of the group nearer to the image; None: none is due.

    A voter too many, as after a removal that was taken back, is a learner again; not the `leader`,
    and never one of two: the other one alone would have all that was decided.
    """
    for node in sorted(image.nodes):
        if node not in members:
            return MemberChange.ADD_LEARNER, node
    for node in members.all:
        if node in image.removed:
            return MemberChange.REMOVE, node
    if _voters_missing(image, members) > 0:
        usable = image.usable()
        for node in members.learners:
            if node in usable:
                return MemberChange.ADD_VOTER, node
    elif _has_voters_to_spare(image, members):
        others = [each for each in members.voters if each != leader]
        return MemberChange.DEMOTE, max(others, key=partial(_dispensable, image))
    return None


def _has_voters_to_spare(image: Image, members: Members) -> bool:
    """Whether there are more voters than are wanted, without those that leave. Founders that have
    not registered count, too: they are waited for until the members have changed for the first
    time, so that they need not be promoted again when they come."""
    nodes, wanted = image.nodes, _voters_wanted(image)
    has_all = all(each in nodes for each in members.voters)
    if wanted < VOTERS_MIN or not (has_all or members.index > FOUNDED_AT):
        return False
    leaving = [each for each in members.voters if each in nodes and nodes[each].is_leaving]
    return len(members.voters) - len(leaving) > wanted


def _dispensable(image: Image, node: int) -> tuple[bool, bool, bool, int]:
    """Voters by how little they are missed: founders that have never registered, then those that
    are lost, then those that are drained, then those with the largest numbers, which as a rule have
    come last."""
    is_known = node in image.nodes
    return not is_known, not image.is_alive(node), image.gives_leaders(node), node


def is_needed(image: Image, members: Members, node: int) -> bool:
    """Whether a voter that leaves has to wait: until a learner votes in its place, or until the
    others are a majority without it. Else nothing could be decided any more."""
    if node not in members.voters:
        return False
    others = [each for each in members.voters if each != node]
    if 2 * sum(map(image.is_alive, others)) <= len(others):
        return True
    usable = image.usable()
    replacements = [each for each in members.learners if each in usable]
    return bool(replacements) and _voters_missing(image, members) > 0


def _voters_missing(image: Image, members: Members) -> int:
    """Voters wanted beyond those that stay: an odd number, as four survive no more losses than
    three."""
    nodes = image.nodes
    voters = [each for each in members.voters if each in nodes and not nodes[each].is_leaving]
    return _voters_wanted(image) - len(voters)


def _voters_wanted(image: Image) -> int:
    count = min(VOTERS_MAX, sum(not node.is_leaving for node in image.nodes.values()))
    return count - 1 + count % 2
