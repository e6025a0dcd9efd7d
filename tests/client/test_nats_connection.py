"""A connection to NATS whose owner stops while it is made."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bascule.nats_connection import NatsConnection
from support.virtual_time import elapse, run_virtually

TURNS = range(8)
"""Of the event loop between the end of the handshake and the cancellation."""


@pytest.mark.parametrize("turns", TURNS)
def test_a_task_that_is_cancelled_while_it_connects_ends(turns: int) -> None:
    """Whoever cancels it waits for its end, as a node that stops."""

    async def test() -> None:
        connection = NatsConnection([cast("Any", object())], cast("Any", None))
        answered = asyncio.Event()
        cast("Any", connection)._connect_first = lambda timeout: answered.wait()
        cast("Any", connection)._spawn = lambda coroutine: coroutine.close()

        async def serve() -> None:
            await connection.connect(5)
            await asyncio.Event().wait()

        serving = asyncio.create_task(serve())
        await elapse(0)
        answered.set()
        for _ in range(turns):
            await elapse(0)
        serving.cancel()
        done, _ = await asyncio.wait([serving], timeout=60)
        assert done
        assert serving.cancelled()

    run_virtually(test())
