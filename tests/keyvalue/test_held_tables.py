"""Which node answers for a bucket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bascule.config import StreamDefaults
from bascule.errors import BasculeError, Indeterminate, PartitionFailed
from bascule.keyvalue.api import BucketApi, Elsewhere
from bascule.keyvalue.held_tables import BEHIND_SECONDS_MAX, HeldTables
from bascule.keyvalue.requests import ApiRequest
from bascule.model import Cleanup, KeyFrom, PartitionState, StreamConfig, StreamDefinition
from bascule.tables.table_replica import WAIT_SECONDS_MAX
from bascule.wire.tables.keys import bucket_subject
from support.virtual_time import run_virtually as run

CONFIG = StreamConfig(
    subject=bucket_subject("b"), cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True
)
DEFINITION = StreamDefinition("b", b"i" * 16, 0, CONFIG)


def held_tables(partition: Any, isr: tuple[int, ...], replica: Any) -> HeldTables:
    """Those of node 1, which is a follower of node 2 or the leader, the first of the ISR."""
    state = PartitionState((1, 2), isr, isr[0], 1, 1)
    views: Any = SimpleNamespace(
        table_names=lambda: ["b"], definition=lambda _: DEFINITION, states=lambda _: (state,)
    )
    tables: Any = SimpleNamespace(replica=lambda _, __: replica)
    partitions: Any = SimpleNamespace(stream_by_id=lambda _: (partition,))
    return HeldTables(1, tables, partitions, views)


@pytest.mark.parametrize(
    ("isr", "leads", "is_held"), [((2,), False, False), ((1, 2), True, False), ((1,), True, True)]
)
def test_a_replica_that_has_stopped_is_left_for_another_one(
    isr: tuple[int, ...], leads: bool, is_held: bool
) -> None:
    """It answered with old values, and watchers that it took ended at once."""
    partition = SimpleNamespace(definition=DEFINITION, log=object(), is_leader=leads)
    replica = SimpleNamespace(ended=None)
    held = held_tables(partition, isr, replica)
    assert held.held("b") is not None
    replica.ended = PartitionFailed("b", 0, "its log is damaged, or its table does not follow")
    assert (held.held("b") is not None) is is_held
    assert (held.held("b", leader=True) is not None) is leads


class BehindReplica:
    """Does not get to where it has to be."""

    ended = None

    def __init__(self, error: BasculeError) -> None:
        self._error = error
        self.waited: list[float] = []

    async def wait_position(self, offset: int, seconds: float) -> None:
        self.waited.append(seconds)
        raise self._error


@pytest.mark.parametrize("error", [PartitionFailed("b", 0, "disk full"), Indeterminate("behind")])
@pytest.mark.parametrize(("isr", "is_left"), [((2, 1), True), ((1, 2), True), ((1,), False)])
def test_a_get_is_left_to_another_replica_where_this_one_is_behind(
    error: BasculeError, isr: tuple[int, ...], is_left: bool
) -> None:
    """The client was answered that nobody can serve it."""
    leads = isr[0] == 1
    partition = SimpleNamespace(
        definition=DEFINITION,
        log=object(),
        is_leader=leads,
        high_watermark=SimpleNamespace(offset=1),
    )
    replica = BehindReplica(error)
    nothing: Any = None
    held = held_tables(partition, isr, replica)
    api = BucketApi(held, nothing, nothing, nothing, StreamDefaults())
    request = ApiRequest("DIRECT.GET", "KV_b", "$KV.b.k", b"")
    if is_left:
        with pytest.raises(Elsewhere):
            run(api.answer(request, "reply"))
    else:
        assert str(error).encode() in run(api.answer(request, "reply"))
    assert replica.waited == [WAIT_SECONDS_MAX if leads else BEHIND_SECONDS_MAX]
    of_leader = ApiRequest("STREAM.MSG.GET", "KV_b", "", b'{"last_by_subj": "$KV.b.k"}')
    if leads:
        assert b"503" in run(api.answer(of_leader, "reply")), "nobody else answers it"
