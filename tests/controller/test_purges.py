"""Whom a purge waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bascule.controller import purges
from bascule.controller.purges import FOLLOW_STARTS, Purges
from bascule.errors import Broken, Indeterminate

STREAM = b"s" * 16
PURGE = msgspec.msgpack.encode((STREAM, [0], 7, None))


class Cluster:
    """A leader on node 1, with what it knows; the nodes it asks, and those that refuse."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, Any]] = []
        self.refusing: set[int] = set()
        self.state = SimpleNamespace(isr=(1, 2), eligible=())
        self.partition = SimpleNamespace(
            failure=None, is_leader=True, leader_epoch=4, start_offset=7, committed_offset=9,
            commitment=SimpleNamespace(proposed_isr=()),
        )  # fmt: skip
        held = SimpleNamespace(
            stream_by_id=lambda _: [self.partition], notify_watchers=lambda _: None
        )
        metadata = SimpleNamespace(image=SimpleNamespace(partitions={STREAM: [self.state]}))
        reserve = SimpleNamespace(run=lambda work, *args, **kwargs: work(*args, **kwargs))
        fakes: Any = (held, metadata, self, reserve)
        self.purges = Purges(1, *fakes)
        monkeypatch.setattr(purges, "purge", lambda *_, **__: None)
        monkeypatch.setattr(purges, "follow_start", lambda *_: None)
        monkeypatch.setattr(purges, "CONFIRM_SECONDS_MAX", 0.05)

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        assert kind == FOLLOW_STARTS
        self.asked.append((node, msgspec.msgpack.decode(body)))
        if node in self.refusing:
            raise Broken("not yet")
        return b""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def test_a_purge_waits_for_all_that_may_lead_next(cluster: Cluster) -> None:
    cluster.state.eligible = (3,)
    cluster.partition.commitment.proposed_isr = (1, 2, 4)
    asyncio.run(cluster.purges.answer_purge(PURGE))
    starts = [STREAM, {0: 7}, {0: 4}]
    assert sorted(cluster.asked) == [(2, starts), (3, starts), (4, starts)]


def test_a_purge_that_one_of_them_has_not_carried_out_is_not_confirmed(cluster: Cluster) -> None:
    cluster.refusing = {2}
    with pytest.raises(Indeterminate, match=r"may lead still has the records; .* purge again"):
        asyncio.run(cluster.purges.answer_purge(PURGE))


def test_a_purge_of_who_leads_no_more_is_not_confirmed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        purges, "purge", lambda *_, **__: setattr(cluster.partition, "is_leader", False)
    )
    with pytest.raises(Indeterminate, match="another node leads"):
        asyncio.run(cluster.purges.answer_purge(PURGE))


@pytest.mark.parametrize(
    "epochs", [pytest.param([{0: 4}], id="same"), pytest.param([], id="earlier release")]
)
def test_a_follower_of_the_epoch_moves_its_start(cluster: Cluster, epochs: list[Any]) -> None:
    body = msgspec.msgpack.encode((STREAM, {0: 7}, *epochs))
    assert asyncio.run(cluster.purges.answer_follow_starts(body)) == b""


def test_a_follower_of_a_later_leader_says_so(cluster: Cluster) -> None:
    body = msgspec.msgpack.encode((STREAM, {0: 7}, {0: 3}))
    with pytest.raises(Broken, match="follows leader epoch 4, not 3"):
        asyncio.run(cluster.purges.answer_follow_starts(body))
