"""Where watchers and copies of a table are sent to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest

from bascule.controller.cluster.tables.replica_address import replica_address
from bascule.errors import PartitionFailed
from bascule.model import Cleanup, KeyFrom, PartitionState, StreamConfig, StreamDefinition

DEFINITION: Final = StreamDefinition(
    "t",
    b"i" * 16,
    0,
    StreamConfig("$KV.t.>", cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True),
)
STOPPED: Final = PartitionFailed("t", 0, "its table does not follow: the disk is full")


def address(node: int, *, stopped: set[int], nodes: tuple[int, ...], held: bool = True) -> str:
    """What a node answers; the first of those with a replica leads."""
    state = PartitionState(nodes, nodes, nodes[0], 1, 1)
    views: Any = SimpleNamespace(
        node_id=node,
        definition=lambda _: DEFINITION,
        states=lambda _: (state,),
        nodes=lambda: [SimpleNamespace(node_id=each, http=str(each)) for each in nodes],
    )
    partition = SimpleNamespace(definition=DEFINITION, index=0, log=object(), failure=None)
    partitions: Any = SimpleNamespace(stream_by_id=lambda _: (partition,) if held else ())
    replica = SimpleNamespace(ended=STOPPED if node in stopped else None)
    tables: Any = SimpleNamespace(replica=lambda *_: replica)
    return replica_address(views, partitions, tables, "t")


def test_a_node_without_a_replica_sends_to_the_leader() -> None:
    assert address(9, stopped=set(), nodes=(3, 1, 2), held=False) == "3"


@pytest.mark.parametrize("stopped", [{1}, {1, 2}, {1, 3}, {2, 3}])
def test_whoever_is_sent_on_gets_to_a_table_that_follows(stopped: set[int]) -> None:
    """At a table that did not follow watchers saw nothing, and copies stayed behind."""
    for begin in (1, 2, 3):
        node, steps = begin, 0
        while found := address(node, stopped=stopped, nodes=(2, 1, 3)):
            node, steps = int(found), steps + 1
            assert steps < 3
        assert node not in stopped


def test_where_there_is_no_other_replica_the_reason_is_said() -> None:
    with pytest.raises(PartitionFailed, match="disk is full"):
        address(1, stopped={1}, nodes=(1,))
