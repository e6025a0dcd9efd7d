"""Which partitions a follower asks its leader about again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.replica.follower.unheard import UNCOUNTED_SECONDS, UNHEARD_SECONDS, Unheard

NODE = 2
SECOND = 1_000_000_000
KEYS = [(b"a" * 16, 0), (b"a" * 16, 1)]


def followed(key: tuple[bytes, int], *isr: int) -> FollowedPartition:
    state = SimpleNamespace(isr=isr)
    return cast(
        FollowedPartition,
        SimpleNamespace(key=key, state=state, is_in_sync=lambda node: node in state.isr),
    )


def due(unheard: Unheard, seconds: float, *chosen: FollowedPartition) -> list[Any]:
    by_key = {each.key: each for each in chosen}
    return [each.key for each in unheard.take_due(int(seconds * SECOND), by_key)]


def test_an_attempt_without_an_answer_is_due_and_then_waits_again() -> None:
    unheard, one, two = Unheard(NODE), followed(KEYS[0], 1, NODE), followed(KEYS[1], 1, NODE)
    unheard.begin(one.key, 0)
    unheard.begin(two.key, 0)
    unheard.hear(two, SECOND)
    assert due(unheard, UNHEARD_SECONDS - 0.1, one, two) == []
    assert due(unheard, UNHEARD_SECONDS + 1, one, two) == [one.key]
    assert due(unheard, UNHEARD_SECONDS + 2, one, two) == []
    assert due(unheard, 2 * UNHEARD_SECONDS + 2, one, two) == [one.key]


def test_a_replica_in_sync_hears_nothing_for_as_long_as_nothing_happens() -> None:
    unheard, one = Unheard(NODE), followed(KEYS[0], 1, NODE)
    unheard.begin(one.key, 0)
    unheard.hear(one, 0)
    assert due(unheard, 3_600, one) == []


def test_a_replica_that_is_not_in_sync_asks_again() -> None:
    unheard, one = Unheard(NODE), followed(KEYS[0], 1)
    unheard.begin(one.key, 0)
    unheard.hear(one, 0)
    assert due(unheard, UNCOUNTED_SECONDS - 1, one) == []
    unheard.hear(one, int((UNCOUNTED_SECONDS - 1) * SECOND))
    assert due(unheard, UNCOUNTED_SECONDS + 1, one) == []  # records still arrive
    assert due(unheard, 2 * UNCOUNTED_SECONDS, one) == [one.key]


def test_a_replica_that_has_come_into_sync_does_not_ask() -> None:
    unheard, one = Unheard(NODE), followed(KEYS[0], 1)
    unheard.hear(one, 0)
    assert due(unheard, 1, one) == []
    unheard_again = followed(KEYS[0], 1, NODE)
    assert due(unheard, 2 * UNCOUNTED_SECONDS, unheard_again) == []
    assert due(unheard, 4 * UNCOUNTED_SECONDS, one) == []


def test_a_replica_that_falls_out_of_sync_asks_again() -> None:
    unheard, one = Unheard(NODE), followed(KEYS[0], 1)
    unheard.on_state(one, 0)
    unheard.on_state(one, SECOND)
    assert due(unheard, UNCOUNTED_SECONDS, one) == [one.key]


def test_what_is_not_followed_any_more_is_never_due() -> None:
    unheard, one, two = Unheard(NODE), followed(KEYS[0], 1), followed(KEYS[1], 1)
    unheard.begin(one.key, 0)
    unheard.hear(two, 0)
    unheard.forget(one.key)
    assert due(unheard, 2 * UNCOUNTED_SECONDS) == []


def test_a_new_connection_begins_every_attempt() -> None:
    unheard, one, two = Unheard(NODE), followed(KEYS[0], 1), followed(KEYS[1], 1)
    unheard.begin(one.key, 0)
    unheard.begin_all([two.key], SECOND)
    assert due(unheard, UNHEARD_SECONDS + 1, one, two) == [two.key]
