"""In place of classes of a node that simulations watch, or do not run."""

from __future__ import annotations

from typing import Any

from bascule.controller.remembered_requests import RememberedRequests
from bascule.metadata.command_codec import RequestId
from bascule.model import PartitionState
from bascule.replica.partition import Partition
from bascule.sim.cluster.world.loop import process_now


class WatchedPartition(Partition):
    """In place of `Partition`."""

    def set_role(self, state: PartitionState, node_id: int, *, lag_ns_max: int) -> bytes:
        """See `Partition.set_role`."""
        acks = super().set_role(state, node_id, lag_ns_max=lag_ns_max)
        process = process_now()
        process.machine.world.on_role(process, self)
        return acks


class WatchedRequests(RememberedRequests):
    """In place of `RememberedRequests`."""

    def accepts(self, request: RequestId, index: int) -> bool:
        """See `RememberedRequests.accepts`."""
        is_accepted = super().accepts(request, index)
        process = process_now()
        process.machine.world.on_request(process, request.id, index, is_accepted)
        return is_accepted


class SilentListener:
    """In place of the HTTP listener: nobody asks."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Return the address."""
        return host, port

    async def close(self) -> None:
        """Nothing is open."""


def no_app(_: Any, __: Any, ___: Any, ____: Any, tables: Any, *_____: Any, **______: Any) -> None:
    """In place of `http.app.create_app`; what it serves of tables is asked for without HTTP."""
    process_now().machine.tables = tables
