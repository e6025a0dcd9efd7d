"""The answer to who deletes a stream."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.controller.cluster import controller
from bascule.controller.cluster.controller import ClusterController
from bascule.metadata.requests import Delete


def test_a_deletion_is_confirmed_although_the_disk_of_this_node_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is committed. Its data is removed when the disk goes on."""
    monkeypatch.setattr(controller, "FOLLOW_SECONDS_MAX", 0.01)
    asked: list[object] = []

    async def submit(request: object) -> int:
        asked.append(request)
        return 7

    async def hang(index: int) -> None:
        assert index == 7
        await asyncio.Event().wait()

    node = SimpleNamespace(
        views=SimpleNamespace(definition=lambda name: SimpleNamespace(name=name)),
        _metadata=SimpleNamespace(submit=submit),
        follower=SimpleNamespace(wait_followed=hang),
    )

    async def scene() -> None:
        async with asyncio.timeout(10):
            await ClusterController.delete_stream(cast(Any, node), "s")

    asyncio.run(scene())
    assert asked == [Delete("s")]
