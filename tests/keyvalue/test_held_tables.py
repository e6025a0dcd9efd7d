"""Which node answers for a bucket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bascule.errors import PartitionFailed
from bascule.keyvalue.held_tables import HeldTables
from bascule.model import Cleanup, KeyFrom, PartitionState, StreamConfig, StreamDefinition
from bascule.wire.tables.keys import bucket_subject

CONFIG = StreamConfig(
    subject=bucket_subject("b"), cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True
)
DEFINITION = StreamDefinition("b", b"i" * 16, 0, CONFIG)


def held_tables(partition: Any, isr: tuple[int, ...]) -> HeldTables:
    """Those of node 1, which is a follower of node 2 or the leader, the first of the ISR."""
    state = PartitionState((1, 2), isr, isr[0], 1, 1)
    views: Any = SimpleNamespace(
        table_names=lambda: ["b"], definition=lambda _: DEFINITION, states=lambda _: (state,)
    )
    tables: Any = SimpleNamespace(replica=lambda _, __: object())
    partitions: Any = SimpleNamespace(stream_by_id=lambda _: (partition,))
    return HeldTables(1, tables, partitions, views)


@pytest.mark.parametrize(
    ("isr", "leads", "is_held"), [((2,), False, False), ((1, 2), True, False), ((1,), True, True)]
)
def test_a_replica_that_has_stopped_is_left_for_another_one(
    isr: tuple[int, ...], leads: bool, is_held: bool
) -> None:
    """It answered with old values, and watchers that it took ended at once."""
    partition = SimpleNamespace(definition=DEFINITION, log=object(), failure=None, is_leader=leads)
    held = held_tables(partition, isr)
    assert held.held("b") is not None
    partition.failure = PartitionFailed("b", 0, "damaged")
    assert (held.held("b") is not None) is is_held
    assert (held.held("b", leader=True) is not None) is leads
