"""What `bascule publish` says while nothing is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bascule.cli.publishing.silence import AGAIN_S, FIRST_S, SilenceNotice
from support.virtual_time import elapse, run_virtually


def said(act: Callable[[SilenceNotice, float], None], *, seconds: float) -> list[str]:
    """What is said within so many seconds; `act` is called ten times a second with the time."""
    found: list[str] = []
    notice = SilenceNotice(found.append)

    async def main() -> None:
        async with notice.watching():
            for tenth in range(int(seconds * 10)):
                act(notice, tenth / 10)
                await elapse(0.1)
        assert len(asyncio.all_tasks()) == 1

    run_virtually(main())
    return found


def test_nothing_is_said_as_long_as_acks_come_or_nothing_was_sent() -> None:
    def act(notice: SilenceNotice, now: float) -> None:
        notice.sent = 100 + int(now)
        notice.on_progress(int(now))

    assert said(act, seconds=60) == []
    assert said(lambda *_: None, seconds=60) == []


def test_nothing_is_said_where_all_is_acknowledged() -> None:
    def act(notice: SilenceNotice, now: float) -> None:
        notice.sent = 7
        notice.on_progress(7)

    assert said(act, seconds=60) == []


def test_silence_is_told_and_told_again() -> None:
    def act(notice: SilenceNotice, now: float) -> None:
        notice.sent = 9
        notice.on_progress(2)

    texts = said(act, seconds=FIRST_S + 2 * AGAIN_S + 2)
    assert len(texts) == 3
    assert "7 messages without one" in texts[0]
    assert "bascule cluster status" in texts[0]


def test_the_time_begins_anew_with_each_ack() -> None:
    def act(notice: SilenceNotice, now: float) -> None:
        notice.sent = 9
        notice.on_progress(1 if now < FIRST_S - 1 else 2)

    assert said(act, seconds=FIRST_S + 1) == []
    assert len(said(act, seconds=2 * FIRST_S + 1)) == 1
