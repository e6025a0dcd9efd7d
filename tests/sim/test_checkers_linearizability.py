"""The linearizability check: known histories, and a comparison with a search of all orders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.host.real import RealRandom
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.checkers.histories.linearizability import Linearizability, Verdict, check_key
from bascule.sim.checkers.history import (
    NEVER,
    ClientOperation,
    OperationCall,
    OperationHistory,
    OperationKind,
    OperationResult,
    OperationStatus,
)

_numbers = itertools.count(1)
RETURNING = (OperationKind.GET, OperationKind.INCREMENT)


def call(
    invoked: int,
    returned: int,
    action: OperationKind,
    value: bytes | None = None,
    *,
    expected: bytes | None = None,
    swapped: bool = True,
) -> OperationCall:
    """`value` is the written value, or that of a get or an increment; `returned` 0: unknown
    status."""
    written = b"" if action in RETURNING or value is None else value
    by = 1 if action is OperationKind.INCREMENT else 0
    operation = ClientOperation(next(_numbers), 1, "k", action, written, expected, by)
    if not returned:
        return OperationCall(operation, invoked, NEVER, None)
    found = value if action in RETURNING else None
    result = OperationResult(OperationStatus.OK, found, swapped and action is OperationKind.CAS)
    return OperationCall(operation, invoked, returned, result)


def put(invoked: int, returned: int, value: bytes) -> OperationCall:
    return call(invoked, returned, OperationKind.PUT, value)


def get(invoked: int, returned: int, value: bytes | None) -> OperationCall:
    return call(invoked, returned, OperationKind.GET, value)


def append(invoked: int, returned: int, value: bytes) -> OperationCall:
    return call(invoked, returned, OperationKind.APPEND, value)


def cas(
    invoked: int, returned: int, expected: bytes | None, value: bytes, *, swapped: bool
) -> OperationCall:
    return call(invoked, returned, OperationKind.CAS, value, expected=expected, swapped=swapped)


def remove(invoked: int, returned: int) -> OperationCall:
    return call(invoked, returned, OperationKind.REMOVE)


def increment(invoked: int, returned: int, total: bytes | None) -> OperationCall:
    return call(invoked, returned, OperationKind.INCREMENT, total)


RIGHT = {
    "nothing": [],
    "a key without a value": [get(1, 2, None)],
    "one after the other": [put(1, 2, b"a"), get(3, 4, b"a"), put(5, 6, b"b"), get(7, 8, b"b")],
    "a read sees a write that runs beside it": [put(1, 4, b"a"), get(2, 3, b"a")],
    "a read does not see a write that runs beside it": [put(1, 4, b"a"), get(2, 3, None)],
    "two writes beside each other in either order": [
        put(1, 4, b"a"), put(2, 3, b"b"), get(5, 6, b"a"), get(7, 8, b"a"),
    ],
    "an unknown write took effect": [put(1, 2, b"a"), put(3, 0, b"b"), get(4, 5, b"b")],
    "an unknown write took effect late": [
        put(1, 2, b"a"), put(3, 0, b"b"), get(4, 5, b"a"), get(6, 7, b"b"),
    ],
    "an unknown write never took effect": [put(1, 0, b"b"), get(2, 3, None), get(4, 5, None)],
    "appends": [append(1, 4, b"x"), append(2, 3, b"y"), get(5, 6, b"yx")],
    "an unknown append between": [append(1, 2, b"x"), append(3, 0, b"y"), append(4, 5, b"z"),
        get(6, 7, b"xyz")],
    "an unknown cas explains": [
        put(1, 2, b"a"), cas(3, 0, b"a", b"b", swapped=True), get(4, 5, b"b"),
    ],
    "an unknown put is why a cas fails": [
        put(1, 2, b"a"), put(3, 0, b"b"), cas(4, 5, b"a", b"c", swapped=False), put(6, 7, b"d"),
        get(8, 9, b"d"),
    ],
    "one cas of two wins": [
        put(1, 2, b"a"), cas(3, 6, b"a", b"b", swapped=False), cas(4, 5, b"a", b"c", swapped=True),
        get(7, 8, b"c"),
    ],
    "a removal": [put(1, 2, b"a"), remove(3, 4), get(5, 6, None)],
    "an unknown removal took effect late": [
        put(1, 2, b"a"), remove(3, 0), get(4, 5, b"a"), get(6, 7, None),
    ],
    "a cas of no value after a removal": [
        put(1, 2, b"a"), remove(3, 0), cas(4, 5, None, b"b", swapped=True), get(6, 7, b"b"),
    ],
    "increments": [increment(1, 4, b"2"), increment(2, 3, b"1"), get(5, 6, b"2")],
    "unknown increments between": [
        increment(1, 2, b"1"), increment(3, 0, None), increment(4, 0, None),
        increment(5, 6, b"4"), get(7, 8, b"4"),
    ],
    "an increment after a removal": [increment(1, 2, b"1"), remove(3, 4), increment(5, 6, b"1")],
}  # fmt: skip

WRONG = {
    "a read from nowhere": [get(1, 2, b"a")],
    "a stale read": [put(1, 2, b"a"), put(3, 4, b"b"), get(5, 6, b"a")],
    "a lost write": [put(1, 2, b"a"), get(3, 4, None)],
    "a read from the future": [get(1, 2, b"a"), put(3, 4, b"a")],
    "two reads see two orders": [
        put(1, 8, b"a"), put(2, 9, b"b"), get(3, 4, b"a"), get(5, 6, b"b"), get(10, 11, b"a"),
    ],
    "a value comes back": [
        put(1, 2, b"a"), put(3, 0, b"b"), get(4, 5, b"b"), get(6, 7, b"a"),
    ],
    "an unknown write took effect twice": [
        put(1, 0, b"a"), get(2, 3, b"a"), put(4, 5, b"b"), get(6, 7, b"b"), get(8, 9, b"a"),
    ],
    "both cas win": [
        put(1, 2, b"a"), cas(3, 6, b"a", b"b", swapped=True), cas(4, 5, b"a", b"c", swapped=True),
    ],
    "a cas fails though it found what it expected": [
        put(1, 2, b"a"), cas(3, 4, b"a", b"b", swapped=False),
    ],
    "an append is lost": [append(1, 2, b"x"), append(3, 4, b"y"), get(5, 6, b"y")],
    "an append is there twice": [append(1, 2, b"x"), get(3, 4, b"xx")],
    "a removed value comes back": [put(1, 2, b"a"), remove(3, 4), get(5, 6, b"a")],
    "a removal is lost": [put(1, 2, b"a"), remove(3, 4), cas(5, 6, b"a", b"b", swapped=True)],
    "an increment is lost": [increment(1, 2, b"1"), increment(3, 4, b"1")],
    "an unknown increment took effect twice": [
        increment(1, 2, b"1"), increment(3, 0, None), get(4, 5, b"3"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_linearizable_histories(name: str) -> None:
    assert check_key(RIGHT[name]) is Verdict.LINEARIZABLE
    assert by_every_order(RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_histories_that_are_not_linearizable(name: str) -> None:
    assert check_key(WRONG[name]) is Verdict.VIOLATED
    assert not by_every_order(WRONG[name])


def after(found: OperationCall, value: bytes | None) -> list[bytes | None]:
    """The values that the call may leave, given `value`; empty if its result does not agree with
    `value`."""
    operation, result = found.operation, found.result
    if operation.action is OperationKind.GET:
        return [value] if result is None or result.value == value else []
    if operation.action is OperationKind.PUT:
        return [operation.value]
    if operation.action is OperationKind.APPEND:
        return [(value or b"") + operation.value]
    if operation.action is OperationKind.REMOVE:
        return [None]
    if operation.action is OperationKind.INCREMENT:
        try:
            total = b"%d" % (int(value or b"0") + operation.by)
        except ValueError:
            return []
        return [total] if result is None or result.value == total else []
    agrees = operation.expected == value
    if result is not None and result.swapped != agrees:
        return []
    return [operation.value if agrees else value]


def by_every_order(calls: Sequence[OperationCall], value: bytes | None = None) -> bool:
    """The definition: some order of the calls gives all results. It keeps the order of calls that
    do not overlap, and may omit calls with unknown status."""
    if all(found.result is None for found in calls):
        return True
    for position, found in enumerate(calls):
        if any(other.returned < found.invoked for other in calls):
            continue
        rest = [*calls[:position], *calls[position + 1 :]]
        if any(by_every_order(rest, left) for left in after(found, value)):
            return True
    return False


VALUES = st.sampled_from([b"", b"a", b"b", b"ab"])
NUMBERS = st.sampled_from([b"1", b"2", b"3"])
OF_TEXT = [each for each in OperationKind if each is not OperationKind.INCREMENT]
OF_NUMBERS = [each for each in OperationKind if each is not OperationKind.APPEND]


@st.composite
def histories(draw: st.DrawFn) -> list[OperationCall]:
    """Up to seven calls with few values, any overlap and random results: many are wrong."""
    count = draw(st.integers(1, 7))
    ends = draw(st.permutations(range(1, 2 * count + 1)))
    has_numbers = draw(st.booleans())
    values, kinds = (NUMBERS, OF_NUMBERS) if has_numbers else (VALUES, OF_TEXT)
    calls = []
    for position in range(count):
        invoked, returned = sorted(ends[2 * position : 2 * position + 2])
        action = draw(st.sampled_from(kinds))
        unknown = draw(st.integers(0, 3)) == 0
        value = draw(values | st.none()) if action is OperationKind.GET else draw(values)
        calls.append(
            call(
                invoked,
                0 if unknown else returned,
                action,
                value,
                expected=draw(values | st.none()),
                swapped=draw(st.booleans()),
            )
        )
    return calls


@settings(max_examples=600, deadline=None)
@given(histories())
def test_the_verdict_agrees_with_enumeration(calls: list[OperationCall]) -> None:
    expected = Verdict.LINEARIZABLE if by_every_order(calls) else Verdict.VIOLATED
    assert check_key(calls) is expected


def generated(seed: int, *, clients: int, operations: int, unknown: float) -> OperationHistory:
    """A linearizable history of one register: each operation takes effect between its invocation
    and its return; those with unknown status at some later time, or never."""
    dice = RealRandom(seed)
    history, value = OperationHistory(), None
    running: dict[int, tuple[ClientOperation, OperationResult | None]] = {}
    late: list[ClientOperation] = []

    def take_effect(operation: ClientOperation) -> OperationResult:
        nonlocal value
        if operation.action is OperationKind.GET:
            return OperationResult(OperationStatus.OK, value)
        if operation.action is OperationKind.CAS and operation.expected != value:
            return OperationResult(OperationStatus.OK)
        if operation.action is OperationKind.APPEND:
            value = (value or b"")[-8:] + operation.value
            value = value[-40:]
        else:
            value = operation.value
        return OperationResult(OperationStatus.OK, None, operation.action is OperationKind.CAS)

    actions = (OperationKind.GET, OperationKind.PUT, OperationKind.CAS, OperationKind.GET)
    for number in range(1, operations * 3):
        client = int(dice.uniform(0, clients))
        if client not in running:
            action = actions[int(dice.uniform(0, len(actions)))]
            wanted = value if dice.uniform(0, 1) < 0.7 else b"other"
            operation = ClientOperation(number, client, "k", action, b"%d" % number, wanted)
            history.invoke(operation)
            running[client] = (operation, None)
            continue
        operation, result = running[client]
        if result is None and dice.uniform(0, 1) < unknown:
            history.finish(operation, OperationResult(OperationStatus.UNKNOWN))
            late.append(operation)
            del running[client]
        elif result is None:
            running[client] = (operation, take_effect(operation))
        else:
            history.finish(operation, result)
            del running[client]
        if late and dice.uniform(0, 1) < 0.05:
            take_effect(late.pop(int(dice.uniform(0, len(late)))))
    return history


@pytest.mark.parametrize("seed", range(20))
def test_long_histories_with_many_unknown_results_are_decided(seed: int) -> None:
    """Hundreds of operations on one key, a tenth with unknown status, need few configurations."""
    calls = generated(seed, clients=8, operations=400, unknown=0.15).calls()["k"]
    assert len(calls) > 200
    assert check_key(calls, configurations_max=20_000) is Verdict.LINEARIZABLE


def test_unseen_writes_with_unknown_results_cost_no_time() -> None:
    """Forty writes stay open, and a wrong result follows: all orders would be 2 to the 40th
    configurations."""
    calls = [put(1, 2, b"a")]
    calls += [put(3 + number, 0, b"p%d" % number) for number in range(20)]
    calls += [append(30 + number, 0, b"q%d" % number) for number in range(20)]
    calls += [cas(100, 101, b"a", b"b", swapped=False), put(102, 103, b"c"), get(104, 105, b"c")]
    assert check_key(calls, configurations_max=100) is Verdict.LINEARIZABLE
    assert check_key([*calls, get(106, 107, b"a")], configurations_max=1000) is Verdict.VIOLATED


@pytest.mark.parametrize("seed", range(20))
def test_one_wrong_read_in_a_long_history_is_found(seed: int) -> None:
    calls = generated(seed, clients=5, operations=300, unknown=0.1).calls()["k"]
    reads = [c for c in calls if c.result is not None and c.operation.action is OperationKind.GET]
    target = reads[len(reads) // 2]
    old = next(
        c.operation.value
        for c in calls
        if c.operation.action is OperationKind.PUT
        and c.returned < target.invoked
        and target.result is not None
        and c.operation.value != target.result.value
    )
    wrong = OperationCall(
        target.operation, target.invoked, target.returned, OperationResult(OperationStatus.OK, old)
    )
    changed = [wrong if c is target else c for c in calls]
    assert check_key(changed, configurations_max=50_000) is Verdict.VIOLATED


def test_a_search_beyond_its_limit_is_undecided() -> None:
    calls = [append(1, 0, b"%d" % number) for number in range(9)] + [get(2, 3, b"012345678x")]
    assert check_key(calls, configurations_max=5) is Verdict.UNDECIDED
    assert check_key(calls) is Verdict.VIOLATED


def run(
    checker: Linearizability, *steps: tuple[str, ClientOperation, OperationResult | None]
) -> None:
    for what, operation, result in steps:
        if what == "invoke":
            checker.on_invoke(operation)
        else:
            assert result is not None
            checker.on_return(operation, result)
    checker.at_end({})


def test_the_checker_reports_the_operations_up_to_the_violation() -> None:
    write = ClientOperation(1, 1, "k", OperationKind.PUT, b"a")
    read = ClientOperation(2, 2, "k", OperationKind.GET)
    other = ClientOperation(3, 2, "other", OperationKind.PUT, b"b")
    with pytest.raises(InvariantBroken) as broken:
        run(
            Linearizability(),
            ("invoke", write, None),
            ("return", write, OperationResult(OperationStatus.OK)),
            ("invoke", other, None),
            ("return", other, OperationResult(OperationStatus.OK)),
            ("invoke", read, None),
            ("return", read, OperationResult(OperationStatus.OK, None)),
        )
    assert broken.value.name == "linearizable reads and writes"
    assert "key 'k'" in broken.value.text
    assert "get -> None" in broken.value.text


def test_failed_operations_have_no_effect_and_unknown_ones_may() -> None:
    failed = ClientOperation(1, 1, "k", OperationKind.PUT, b"a")
    lost = ClientOperation(2, 2, "k", OperationKind.PUT, b"b")
    read = ClientOperation(3, 3, "k", OperationKind.GET)
    steps: list[tuple[str, ClientOperation, OperationResult | None]] = [
        ("invoke", failed, None),
        ("invoke", lost, None),
        ("return", failed, OperationResult(OperationStatus.FAILED)),
        ("invoke", read, None),
    ]
    run(Linearizability(), *steps, ("return", read, OperationResult(OperationStatus.OK, b"b")))
    with pytest.raises(InvariantBroken):
        run(Linearizability(), *steps, ("return", read, OperationResult(OperationStatus.OK, b"a")))


def test_an_undecided_key_is_recorded() -> None:
    checker = Linearizability(configurations_max=5)
    writes = [
        ClientOperation(number, number, "k", OperationKind.APPEND, b"x") for number in range(1, 12)
    ]
    read = ClientOperation(99, 99, "k", OperationKind.GET)
    for operation in [*writes, read]:
        checker.on_invoke(operation)
    run(checker, ("return", read, OperationResult(OperationStatus.OK, b"xxxxxxxxxy")))
    assert checker.undecided == ["k"]
