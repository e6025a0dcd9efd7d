"""What is planted in the history of a table's clients, in its log or in a replica is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bascule.sim.checkers.histories.sessions import Written
from bascule.sim.checkers.history import ClientOperation, OperationKind, OperationResult
from torture import tables
from torture.tables import NOT_SWAPPED, SWAPPED, UNKNOWN, Observed, check_all, differences

GET, PUT, CAS = OperationKind.GET, OperationKind.PUT, OperationKind.CAS


class Scene:
    """A history of one key, one operation after the other."""

    def __init__(self) -> None:
        self.observed = Observed()

    def did(
        self,
        kind: OperationKind,
        value: bytes | None,
        result: OperationResult,
        *,
        expected: bytes | None = None,
    ) -> None:
        number = self.observed.number()
        written = None if kind is GET else value
        operation = ClientOperation(number, number % 3, "0.1", kind, written, expected)
        self.observed.history.on_invoke(operation)
        self.observed.history.on_return(operation, result)

    def read(self, value: bytes | None) -> None:
        self.did(GET, value, OperationResult(tables.SWAPPED.status, value=value))

    def findings(self, records: dict[int, Written] | None = None) -> list[str]:
        return list(check_all(self.observed, records or {}))


def test_a_history_in_which_all_is_well_has_no_finding() -> None:
    scene = Scene()
    scene.read(None)
    scene.did(PUT, b"1", NOT_SWAPPED)
    scene.did(CAS, b"2", SWAPPED, expected=b"1")
    scene.did(CAS, b"3", NOT_SWAPPED, expected=b"1")
    scene.did(PUT, b"4", UNKNOWN)
    scene.read(b"2")
    scene.read(b"4")
    sessions = scene.observed.sessions
    sessions.on_written(7, "s.0.1", 5, b"9")
    sessions.on_read(8, "s.0.1", 5, b"9")
    assert scene.findings({5: Written("s.0.1", b"9")}) == []


@pytest.mark.parametrize("fault", ["stale read", "lost write", "swap of another value"])
def test_a_history_that_is_not_linearizable_is_found(fault: str) -> None:
    scene = Scene()
    scene.did(PUT, b"1", NOT_SWAPPED)
    scene.did(PUT, b"2", NOT_SWAPPED)
    if fault == "stale read":
        scene.read(b"2")
        scene.read(b"1")
    elif fault == "lost write":
        scene.read(None)
    else:
        scene.did(CAS, b"3", SWAPPED, expected=b"1")
    (found,) = scene.findings()
    assert "0.1" in found


@pytest.mark.parametrize(
    "records",
    [{}, {5: Written("s.0.1", b"8")}, {5: Written("s.0.2", b"9")}, {5: Written("s.0.1", None)}],
    ids=["lost", "other value", "other key", "removed"],
)
def test_what_a_session_saw_and_the_log_has_not_is_found(records: dict[int, Written]) -> None:
    scene = Scene()
    scene.observed.sessions.on_written(7, "s.0.1", 5, b"9")
    (found,) = scene.findings(records)
    assert "s.0.1" in found


def test_a_history_that_is_not_decided_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    monkeypatch.setattr(scene.observed.history, "undecided", ["0.1"])
    assert scene.findings() == ["histories that are too long to be decided: ['0.1']"]


RECORDS = {
    0: Written("a", b"1"),
    1: Written("b", b"2"),
    2: Written("a", b"3"),
    3: Written("b", None),
    4: Written("c", b"5"),
}
HELD = {b"a": 2, b"c": 4}


class Served:
    """A node with a replica of the table."""

    def __init__(self, held: dict[bytes, int]) -> None:
        self.held = held

    async def __aenter__(self) -> Served:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def table(self, name: str, *, consistency: str) -> Served:
        assert (name, consistency) == (tables.TABLE, "eventual")
        return self

    async def keys(self) -> AsyncIterator[tuple[bytes, int]]:
        for row in self.held.items():
            yield row


@pytest.mark.parametrize(
    ("held", "wrong"),
    [
        (HELD, None),
        ({b"a": 2}, "c"),
        ({b"a": 0, b"c": 4}, "a"),
        ({**HELD, b"b": 1}, "b"),
        ({**HELD, b"d": 9}, "d"),
    ],
    ids=["all", "key lost", "old version", "removed key", "key of no record"],
)
def test_a_replica_that_differs_from_the_log_is_found(
    held: dict[bytes, int], wrong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: dict[str, Any] = {"n1": Served(HELD), "n2": Served(held)}
    monkeypatch.setattr(tables.bascule, "connect", served.__getitem__)
    monkeypatch.setattr(tables, "CATCH_UP_SECONDS_MAX", 0.0)
    found = asyncio.run(differences(["n1", "n2"], RECORDS))
    assert found == ([] if wrong is None else [f"the table at n2 differs in ['{wrong}']"])


def test_a_replica_that_is_behind_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served({})
    looked = 0

    def connect(_: str) -> Served:
        return served

    async def keys() -> AsyncIterator[tuple[bytes, int]]:
        nonlocal looked
        looked += 1
        for row in (HELD if looked > 2 else {b"a": 0}).items():
            yield row

    served.keys = keys  # type: ignore[method-assign]
    monkeypatch.setattr(tables.bascule, "connect", connect)
    monkeypatch.setattr(tables, "LOOK_SECONDS", 0.0)
    assert asyncio.run(differences(["n1"], RECORDS)) == []
    assert looked == 3
