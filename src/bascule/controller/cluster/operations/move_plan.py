"""Moves of replicas that are planned at once on a thread, and begun a few at a time.

A plan looks at all partitions: with 100,000 of them that takes half a second of CPU.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from bascule.metadata.image import Image
from bascule.metadata.replicas.reassignment import PartitionMove
from bascule.model import NodeRegistration

PLANNED_MAX: Final = 1_000
"""Moves in one plan."""


class Planner(Protocol):
    """`reassignment.due_moves`, for example."""

    def __call__(self, image: Image, *, count_max: int) -> tuple[PartitionMove, ...]: ...


class MovePlan:
    """Belongs to the event loop."""

    def __init__(self, plan: Planner, image: Callable[[], Image]) -> None:
        """`image` is the latest one."""
        self._plan = plan
        self._image = image
        self._left: deque[PartitionMove] = deque()
        self._nodes: Mapping[int, NodeRegistration] | None = None
        """The nodes for which the rest was planned."""

    async def take(self, *, moving_max: int) -> tuple[PartitionMove, ...] | None:
        """The next moves, with which at most `moving_max` partitions move; None: none is due."""
        image = self._image()
        room = moving_max - sum(1 for _ in image.moving_states())
        if room <= 0:
            return ()
        if self._nodes is not image.nodes:
            self._left.clear()
        moves = self._next(room)
        if not moves:
            planned = await asyncio.to_thread(self._plan, image, count_max=PLANNED_MAX)
            if not planned:
                return None
            self._left.extend(planned)
            self._nodes = image.nodes
            moves = self._next(room)
        return moves

    def _next(self, count: int) -> tuple[PartitionMove, ...]:
        """Up to `count` moves of partitions that have not changed since they were planned."""
        partitions = self._image().partitions
        moves: list[PartitionMove] = []
        while self._left and len(moves) < count:
            move = self._left.popleft()
            states = partitions.get(move.stream_id, ())
            if move.partition < len(states) and states[move.partition].version == move.version:
                moves.append(move)
        return tuple(moves)
