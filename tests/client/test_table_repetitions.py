"""Conditional writes of a table whose ack was lost: they may be refused for their first sending."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.client.publisher import ACK_WAIT_S, Publisher
from bascule.client.tables.table import TableClient
from bascule.errors import Broken, Indeterminate, WrongVersion
from bascule.model import Cleanup, KeyFrom, StreamConfig
from bascule.publish.acks import TABLE_NOT_CAUGHT_UP, wrong_last_sequence
from bascule.table_results import TableEntry, TableValues
from bascule.wire.tables.read_batches import KeyRead
from support.recorded_connection import RecordedConnection, has_stream
from support.virtual_time import elapse, run_virtually

CONFIG = StreamConfig("$KV.t.>", cleanup=(Cleanup.COMPACT,), key_from=KeyFrom.SUBJECT, table=True)


NOT_CAUGHT_UP = b'{"error":{"code":503,"err_code":%d,"description":"%b"},"stream":"t","seq":0}' % (
    TABLE_NOT_CAUGHT_UP.err_code,
    TABLE_NOT_CAUGHT_UP.description.encode(),
)
REFUSED = b'{"error":{"code":400,"err_code":%d,"description":"%b"},"stream":"t","seq":0}' % (
    wrong_last_sequence(7).err_code,
    wrong_last_sequence(7).description.encode(),
)
"""The last record of the key has version 6."""


class Nodes:
    """What they say of the table over HTTP."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self.are_reachable = True

    async def stream(self, name: str) -> Any:
        if not self.are_reachable:
            raise Broken("no node answers")
        config = replace(CONFIG, dedupe_window_ms=self.window_ms)
        return SimpleNamespace(definition=SimpleNamespace(config=config))


class Reader:
    """Reads a number with version 4."""

    def read_soon(self, read: KeyRead) -> None:
        return None

    async def read(self, read: KeyRead) -> TableValues:
        return TableValues(5, [TableEntry(read.keys[0], 4, 0, b"0")])


def outcome(
    replies: Sequence[tuple[int, bytes | None]], *, window_ms: int, are_reachable: bool = True,
    increments: bool = False,
) -> object:  # fmt: skip
    """What a write raises whose sendings get these replies, each with the number of its publish;
    None: no reply."""

    async def test() -> object:
        nats, nodes = RecordedConnection(), Nodes(window_ms)
        publisher = Publisher(nats, has_stream=has_stream)
        table = TableClient(
            "t",
            cast("Any", lambda: nodes),
            partial(publisher.publish, key=None),  # type: ignore[arg-type]
            cast("Any", Reader),
            consistency="eventual",
        )
        await table._load_keys()
        nodes.are_reachable = are_reachable
        write = table.increment("n") if increments else table.set("n", b"1", if_version=4)
        run = asyncio.create_task(cast("Any", write))
        for sent, (publish, reply) in enumerate(replies, 1):
            await elapse(0.1)
            assert len(nats.sent) == sent
            if reply is None:
                await elapse(ACK_WAIT_S)
            else:
                nats.deliver(reply, publish=publish)
        (found,) = await asyncio.gather(run, return_exceptions=True)
        return found

    return run_virtually(test())


LOST = [(0, None), (0, REFUSED)]


@pytest.mark.parametrize("window_ms", [0, 500, 1_000])
@pytest.mark.parametrize("increments", [False, True])
def test_a_refusal_that_the_first_sending_may_have_caused_decides_nothing(
    window_ms: int, increments: bool
) -> None:
    """It was taken for a write of others: an increment was counted twice."""
    error = outcome(LOST, window_ms=window_ms, increments=increments)
    assert isinstance(error, Indeterminate)
    assert "it is stored, or key 'n' of table 't': expected version 4" in str(error)


def test_a_table_that_was_behind_in_between_does_not_hide_the_first_sending() -> None:
    replies = [(0, None), (0, NOT_CAUGHT_UP), (1, REFUSED)]
    assert isinstance(outcome(replies, window_ms=500), Indeterminate)
    assert isinstance(outcome(replies[1:], window_ms=0), WrongVersion)


def test_a_refusal_within_the_window_is_for_a_write_of_others() -> None:
    assert isinstance(outcome(LOST, window_ms=120_000), WrongVersion)
    assert isinstance(outcome(LOST, window_ms=120_000, are_reachable=False), Indeterminate)
    assert isinstance(outcome([(0, REFUSED)], window_ms=0, are_reachable=False), WrongVersion)
