"""The checker of sessions finds each way to break its promises, and nothing else."""

from __future__ import annotations

import pytest

from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.checkers.histories.sessions import (
    FOLLOWING,
    LOGGED,
    MONOTONIC,
    ONE_VALUE,
    OWN_WRITES,
    SessionChecker,
    Written,
)


def test_what_a_session_may_see() -> None:
    checker = SessionChecker()
    checker.on_read(1, "a", None, None)
    checker.on_written(1, "a", 4, b"x")
    checker.on_read(1, "a", 4, b"x")
    checker.on_read(2, "a", None, None)
    checker.on_read(2, "a", 4, b"x")
    checker.on_written(2, "b", 5, b"y")
    checker.on_written(1, "b", 9, b"z")
    checker.on_read(2, "b", 5, b"y")
    checker.on_read(2, "b", 9, b"z")
    checker.on_read(3, "b", 5, b"y")
    checker.check_log({4: Written("a", b"x"), 9: Written("b", b"z")})


@pytest.mark.parametrize("version", [None, 3])
def test_a_session_that_does_not_see_its_write(version: int | None) -> None:
    checker = SessionChecker()
    checker.on_written(1, "a", 4, b"x")
    with pytest.raises(InvariantBroken, match=OWN_WRITES):
        checker.on_read(1, "a", version, None if version is None else b"before")


@pytest.mark.parametrize("version", [None, 3])
def test_a_session_that_sees_an_earlier_state_again(version: int | None) -> None:
    checker = SessionChecker()
    checker.on_read(1, "a", 4, b"x")
    with pytest.raises(InvariantBroken, match=MONOTONIC):
        checker.on_read(1, "a", version, None if version is None else b"before")


def test_a_write_before_what_the_session_has_seen() -> None:
    checker = SessionChecker()
    checker.on_read(1, "a", 4, b"x")
    with pytest.raises(InvariantBroken, match=FOLLOWING):
        checker.on_written(1, "b", 3, b"y")


def test_a_version_with_two_values() -> None:
    checker = SessionChecker()
    checker.on_read(1, "a", 4, b"x")
    with pytest.raises(InvariantBroken, match=ONE_VALUE):
        checker.on_read(2, "a", 4, b"y")


def test_a_removed_key_may_be_absent_and_does_not_come_back() -> None:
    checker = SessionChecker()
    checker.on_written(1, "a", 4, b"x")
    checker.on_removal_begun("a")
    checker.on_read(1, "a", None, None)
    with pytest.raises(InvariantBroken, match=MONOTONIC):
        checker.on_read(1, "a", 4, b"x")
    checker.on_written(2, "a", 6, None)
    checker.on_read(2, "a", None, None)
    with pytest.raises(InvariantBroken, match=OWN_WRITES):
        checker.on_read(2, "a", 4, b"x")
    checker.on_read(2, "a", 8, b"z")
    with pytest.raises(InvariantBroken, match=MONOTONIC):
        checker.on_read(2, "a", None, None)


def test_a_removed_key_may_be_absent_many_times_before_its_removal_is_answered() -> None:
    checker = SessionChecker()
    checker.on_read(1, "a", 4, b"x")
    checker.on_removal_begun("a")
    for _ in range(5):
        checker.on_read(1, "a", None, None)
    checker.on_written(2, "a", 6, None)
    checker.on_read(1, "a", None, None)
    checker.on_read(1, "a", 7, b"z")
    with pytest.raises(InvariantBroken, match=MONOTONIC):
        checker.on_read(1, "a", None, None)


def test_a_refused_removal_removes_nothing() -> None:
    checker = SessionChecker()
    checker.on_written(1, "a", 4, b"x")
    checker.on_removal_begun("a")
    checker.on_removal_refused("a")
    with pytest.raises(InvariantBroken, match=OWN_WRITES):
        checker.on_read(1, "a", None, None)


@pytest.mark.parametrize(
    "records",
    [
        {},
        {4: Written("a", b"other")},
        {3: Written("a", b"x")},
        {9: Written("b", b"later")},
    ],
)
def test_a_version_that_is_not_in_the_log(records: dict[int, Written]) -> None:
    checker = SessionChecker()
    checker.on_read(1, "a", 4, b"x")
    with pytest.raises(InvariantBroken, match=LOGGED):
        checker.check_log(records)
