"""Tasks that run for as long as a node does."""

from __future__ import annotations

import asyncio

import pytest

from bascule.host import lasting_tasks
from bascule.host.lasting_tasks import start_lasting

SECONDS_MAX = 10


def test_a_bug_does_not_end_a_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its duties a controller notices no loss of a node, and a node never lapses."""
    monkeypatch.setattr(lasting_tasks, "RETRY_SECONDS_MIN", 0.001)
    runs = 0
    enough = asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs > 2:
            enough.set()
        raise KeyError("a bug")

    async def scene() -> None:
        task = start_lasting("duties", run)
        async with asyncio.timeout(SECONDS_MAX):
            await enough.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(scene())
    failures = [each for each in caplog.records if each.message == "task failed; it begins again"]
    assert [each.__dict__["task"] for each in failures[:2]] == ["duties", "duties"]
    assert "KeyError" in str(failures[0].exc_info)


def test_a_task_that_is_done_does_not_begin_again() -> None:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1

    async def scene() -> None:
        await start_lasting("verification", run)

    asyncio.run(scene())
    assert runs == 1


def test_a_task_that_fails_again_and_again_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            raise asyncio.CancelledError

    async def run() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(lasting_tasks.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lasting_tasks.keep_running("duties", run))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
