"""Where the logs of replicas end: what nodes say of their own, and how they are asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from bascule.controller.cluster.metadata_group import Peers
from bascule.errors import BasculeError
from bascule.replica.partitions import Partitions

log = logging.getLogger("bascule.controller")

LOGS: Final = "logs"
"""The kind of control request that asks where the logs of replicas end."""
ANSWER_SECONDS_MAX: Final = 2.0
AT_A_TIME: Final = 500
"""Partitions in one request."""

Key: TypeAlias = tuple[bytes, int]
"""Stream id and partition."""


class SaidLogEnd(msgspec.Struct, array_like=True):
    """What a node says of one replica."""

    last_epoch: int
    end_offset: int
    has_failed: bool = False
    """Whether the replica has stopped: it cannot lead."""
    last_ms: int = -1
    """The largest timestamp in the log, Unix milliseconds; -1: it is empty."""
    committed_offset: int = 0
    """The end of what this node knows to be committed."""


class LogEnds:
    """This node's answers, and its questions. Belongs to the event loop."""

    def __init__(self, node_id: int, partitions: Partitions, peers: Peers) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._peers = peers

    async def answer(self, body: bytes) -> bytes:
        """Answer a control request: where the logs of these replicas end."""
        keys = msgspec.msgpack.decode(body, type=list[Key])
        return msgspec.msgpack.encode([self._state(key) for key in keys])

    def _state(self, key: Key) -> SaidLogEnd | None:
        """None: the replica is not open yet."""
        stream_id, index = key
        found = self._partitions.stream_by_id(stream_id) or ()
        if index >= len(found):
            return None
        partition = found[index]
        if partition.failure is not None:
            return SaidLogEnd(-1, 0, has_failed=True)
        if (store := partition.log) is None:
            return None
        return SaidLogEnd(
            store.epochs.latest,
            store.end.offset,
            last_ms=store.timestamp_max,
            committed_offset=partition.committed_offset,
        )

    async def ask(
        self, wanted: Iterable[tuple[Key, Sequence[int]]]
    ) -> dict[int, dict[Key, SaidLogEnd]]:
        """Node -> what it says of the replicas that it is asked for; `wanted` has the nodes of each
        partition."""
        keys: dict[int, list[Key]] = {}
        for key, nodes in wanted:
            for node in nodes:
                keys.setdefault(node, []).append(key)
        answers = await asyncio.gather(*(self._ask_node(*each) for each in keys.items()))
        return dict(zip(keys, answers, strict=True))

    async def _ask_node(self, node: int, keys: Sequence[Key]) -> dict[Key, SaidLogEnd]:
        said: dict[Key, SaidLogEnd] = {}
        for start in range(0, len(keys), AT_A_TIME):
            some = keys[start : start + AT_A_TIME]
            body = msgspec.msgpack.encode(some)
            try:
                if node == self._node_id:
                    reply = await self.answer(body)
                else:
                    reply = await self._peers.control(
                        node, LOGS, body, timeout_s=ANSWER_SECONDS_MAX
                    )
                states = msgspec.msgpack.decode(reply, type=list[SaidLogEnd | None])
            except (BasculeError, msgspec.MsgspecError) as error:
                extra = {"node": node, "error": str(error)}
                log.debug("ends of logs not told", extra=extra)
                break
            said.update(
                (key, state) for key, state in zip(some, states, strict=True) if state is not None
            )
        return said
