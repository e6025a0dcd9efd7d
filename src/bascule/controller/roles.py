"""Has partitions lead, follow or do neither, as the states of the image say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

from bascule.controller.handover import Handovers, HandoverSubscriptions, RoleChange
from bascule.controller.plan import ApplyStates, NodeState, StreamState
from bascule.errors import BasculeError, Broken
from bascule.model import PartitionState
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions

log = logging.getLogger("bascule.controller")

SetRole = Callable[[Partition, PartitionState], Future[None]]
"""Have the log writer apply the state of a partition; the future is done when it is in force."""

RESIGN_SECONDS_MAX: Final = 0.5
"""For NATS to confirm the end of subscriptions, before the partitions step down nevertheless."""


class RoleSetter:
    """Belongs to the event loop."""

    def __init__(
        self,
        state: NodeState,
        partitions: Partitions,
        set_role: SetRole,
        subscriptions: HandoverSubscriptions,
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._set_role = set_role
        self._subscriptions = subscriptions
        self.handovers: Handovers | None = None
        """Set in a cluster; without, roles change at once."""

    def on_image(self) -> None:
        """There is a later image than the one that is followed: see `Handovers.on_image`."""
        if self.handovers is not None:
            self.handovers.on_image()

    async def apply(self, steps: Sequence[ApplyStates], failures: dict[bytes, Exception]) -> None:
        """Lead, follow or do neither. Handovers between living nodes take some time; they go on
        beside each other, and after everything else."""
        changes = [
            RoleChange(partition, state, partition.state)
            for step in steps
            for partition in self._partitions.stream_by_id(step.definition.id) or ()
            if (state := step.states.get(partition.index)) is not None
        ]
        taken: list[RoleChange] = []
        given: list[RoleChange] = []
        handovers = self.handovers
        if handovers is not None and self._state.can_subscribe:
            taken = [each for each in changes if handovers.is_taken(each)]
            given = [each for each in changes if handovers.is_given(each)]
        if taken or given:
            kept = {id(each) for each in (*taken, *given)}
            changes = [each for each in changes if id(each) not in kept]
        await self._set_roles(changes, failures)
        if handovers is not None and (taken or given):
            await asyncio.gather(
                self._take(handovers, taken, failures), self._give(handovers, given, failures)
            )

    async def _take(
        self, handovers: Handovers, taken: Sequence[RoleChange], failures: dict[bytes, Exception]
    ) -> None:
        if taken:
            failures.update(await handovers.take(taken))
            await self._set_roles(taken, failures)
            handovers.on_led(taken)

    async def _give(
        self, handovers: Handovers, given: Sequence[RoleChange], failures: dict[bytes, Exception]
    ) -> None:
        if given:
            await handovers.give(given)
            await self._set_roles(given, failures)

    async def _set_roles(
        self, changes: Sequence[RoleChange], failures: dict[bytes, Exception]
    ) -> None:
        if not changes:
            return
        await self._resign(changes)
        in_force = [(each, self._set_role(each.partition, each.state)) for each in changes]
        for _, done in reversed(in_force):
            # The log writer goes by the order: the last one is done when all are.
            if not done.done():
                waiting = asyncio.wrap_future(done)
                await asyncio.wait([waiting])
                waiting.exception()
        failures.update(self._note_states(in_force))

    def _note_states(
        self, in_force: Sequence[tuple[RoleChange, Future[None]]]
    ) -> dict[bytes, Exception]:
        """Note what is done; stream id -> what failed."""
        failures: dict[bytes, Exception] = {}
        taken: dict[bytes, dict[int, PartitionState]] = {}
        definitions = {each.key[0]: each.partition.definition for each, _ in in_force}
        for each, done in in_force:
            stream_id, index = each.key
            try:
                done.result()
            except (BasculeError, OSError) as error:
                failures[stream_id] = error
                continue
            taken.setdefault(stream_id, {})[index] = each.state
        for stream_id, states in taken.items():
            held = self._state.streams.get(stream_id) or StreamState(definitions[stream_id])
            self._state.streams[stream_id] = replace(held, states={**held.states, **states})
        return failures

    async def _resign(self, changes: Sequence[RoleChange]) -> None:
        """End the subscriptions of partitions that this node no longer leads.

        What was delivered for them is with the log writer then, which still appends it.
        """
        lost = [each.partition for each in changes if each.state.leader != self._state.node_id]
        try:
            async with asyncio.timeout(RESIGN_SECONDS_MAX):
                await self._subscriptions.route(lost, to_here=False)
        except (Broken, TimeoutError) as error:
            log.warning("end of subscriptions not confirmed", extra={"error": str(error)})
