"""When a node gives up records of a damaged log that an operator has given up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bascule.controller.cluster import repairs
from bascule.controller.cluster.repairs import Repairs, RepairTask
from bascule.errors import Broken
from bascule.metadata.requests import Resign
from support.deciding_controller import DecidingController


class Node:
    """The parts of a node whose replica has failed. Each resignation finds another epoch."""

    def __init__(self, deciding: DecidingController, node: int, overtaken: int) -> None:
        self.deciding, self.node = deciding, node
        self.overtaken = overtaken
        """Resignations before which an election comes."""
        self.lock = asyncio.Lock()
        self.let_go_of: list[list[int]] = []
        self.failed = SimpleNamespace(
            definition=deciding.image.streams["s"], index=0, failure="damaged", committed_offset=0,
            start_offset=0, log=None,
        )  # fmt: skip

    @property
    def image(self) -> Any:
        return self.deciding.image

    def stream_by_id(self, _: bytes) -> tuple[Any, ...]:
        return (self.failed,)

    async def resign(self, definition: Any, index: int) -> None:
        epoch = self.deciding.state("s").leader_epoch
        if self.overtaken:
            self.overtaken -= 1
            epoch -= 1
        self.deciding.submit(Resign(self.node, definition.id, index, epoch))

    async def reconcile_locked(self) -> None:
        pass

    async def let_go(self, _: Any, indexes: Any) -> None:
        self.let_go_of.append(list(indexes))

    async def verify(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("overtaken", [0, 1, 100])
def test_records_are_given_up_only_by_a_replica_that_is_not_in_sync(
    overtaken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resignation of an epoch that is over has no effect: the node would be elected with what is
    left of its log."""
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    deciding.create("s", replicas=3)
    number = deciding.state("s").replicas[1]
    node = Node(deciding, number, overtaken)
    given_up: list[tuple[int, ...]] = []

    def keep_readable(*_: Any, **__: Any) -> bool:
        given_up.append(deciding.state("s").isr)
        node.failed.failure = None  # it opens up to its damage
        return True

    monkeypatch.setattr(repairs, "keep_readable", keep_readable)
    part = cast(Any, node)
    repairing = Repairs(number, part, part, part, part, part, part)
    body = msgspec.msgpack.encode(RepairTask(deciding.image.streams["s"].id, 0, True))
    if overtaken == 100:
        with pytest.raises(Broken, match="in sync"):
            asyncio.run(repairing.answer_repair(body))
        assert not given_up
    else:
        asyncio.run(repairing.answer_repair(body))
        assert given_up[0] == tuple(sorted({1, 2, 3} - {number}))


def test_records_are_given_up_only_by_a_replica_that_is_not_eligible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be elected once the leader is lost."""
    deciding = DecidingController()
    deciding.register(1, 2, 3)
    deciding.create("s", replicas=3)
    leader, number, third = deciding.state("s").replicas
    deciding.set_isr("s", leader)
    assert set(deciding.state("s").eligible) == {number, third}
    node = Node(deciding, number, overtaken=1)
    given_up: list[tuple[int, ...]] = []

    def keep_readable(*_: Any, **__: Any) -> bool:
        given_up.append(deciding.state("s").eligible)
        node.failed.failure = None
        return True

    monkeypatch.setattr(repairs, "keep_readable", keep_readable)
    part = cast(Any, node)
    repairing = Repairs(number, part, part, part, part, part, part)
    body = msgspec.msgpack.encode(RepairTask(deciding.image.streams["s"].id, 0, True))
    asyncio.run(repairing.answer_repair(body))
    assert given_up[0] == (third,)
