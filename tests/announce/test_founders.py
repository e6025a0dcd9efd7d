"""Founders that agree on one set, over a network that loses, delays and repeats, with crashes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.announce.founders import FounderAgreement, Refused
from bascule.wire.founding import (
    Founder,
    FounderAnnouncement,
    FoundingSet,
    KeptPromise,
    decode_founder,
    encode_founder,
)

STEP_MS = 100
INTERVAL_MS = 500


def founder(number: int, directory: int = 0, peer: str = "") -> Founder:
    text = f"{number:08x}{directory:08x}"
    return Founder(number, text, peer or f"host{number}-{directory}:7000")


@dataclass
class Machine:
    """One node: its disk survives crashes."""

    me: Founder
    expect: int
    disk: KeptPromise = field(init=False)
    agreement: FounderAgreement | None = None
    refused: str = ""
    writing: KeptPromise | None = None
    made: list[FoundingSet] = field(default_factory=list)
    """Every promise that was on the disk."""

    def __post_init__(self) -> None:
        self.disk = KeptPromise(self.me.directory)

    def start(self, now_ms: int) -> None:
        self.agreement = FounderAgreement(self.me, self.disk, expect=self.expect, now_ms=now_ms)

    def crash(self, *, write_survives: bool) -> None:
        if self.writing is not None and write_survives:
            self.write(self.writing)
        self.agreement = self.writing = None

    def write(self, kept: KeptPromise) -> None:
        self.disk = kept
        if kept.promise is not None and kept.promise not in self.made:
            self.made.append(kept.promise)

    def turn(self, now_ms: int, *, disk_is_done: bool) -> None:
        """Begin a write, or end one."""
        if self.agreement is None:
            return
        if self.writing is not None:
            if disk_is_done:
                self.write(self.writing)
                self.agreement.on_kept(self.writing)
                self.writing = None
            return
        wanted = self.agreement.wanted(now_ms)
        if isinstance(wanted, Refused):
            self.refused, self.agreement = wanted.text, None
        else:
            self.writing = wanted


class World:
    """Machines on one NATS, under virtual time and drawn faults."""

    def __init__(self, seed: int, machines: list[Machine]) -> None:
        self.dice = random.Random(seed)
        self.now_ms = 0
        self.machines = machines
        self.in_flight: list[tuple[int, Machine, bytes]] = []
        self.loss = self.dice.choice([0.0, 0.1, 0.5])
        self.delay_ms_max = self.dice.choice([0, 300, 5_000])
        self.faults = True

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            if self.faults:
                self.break_something()
            for machine in self.machines:
                if machine.agreement is not None and self.dice.random() < STEP_MS / INTERVAL_MS:
                    self.publish(machine)
            self.deliver()
            for machine in self.machines:
                machine.turn(self.now_ms, disk_is_done=self.dice.random() < 0.5)
            self.check()

    def break_something(self) -> None:
        for machine in self.machines:
            if machine.agreement is None:
                if not machine.refused and self.dice.random() < 0.1:
                    machine.start(self.now_ms)
            elif self.dice.random() < 0.02:
                machine.crash(write_survives=self.dice.random() < 0.5)

    def publish(self, machine: Machine) -> None:
        assert machine.agreement is not None
        data = encode_founder(machine.agreement.announcement(self.now_ms))
        for other in self.machines:
            copies = self.dice.choice([1, 1, 2]) if self.faults else 1
            for _ in range(copies):
                if self.faults and self.dice.random() < self.loss:
                    continue
                delay_ms = self.dice.randint(0, self.delay_ms_max) if self.faults else 0
                self.in_flight.append((self.now_ms + delay_ms, other, data))

    def deliver(self) -> None:
        due = [each for each in self.in_flight if each[0] <= self.now_ms]
        self.in_flight = [each for each in self.in_flight if each[0] > self.now_ms]
        self.dice.shuffle(due)
        for _, machine, data in due:
            said = decode_founder(data)
            assert said is not None
            if machine.agreement is not None and machine.me != said.founder:
                machine.agreement.on_announcement(said, self.now_ms)

    def decided(self) -> set[FoundingSet]:
        return {m.disk.promise for m in self.machines if m.disk.decided and m.disk.promise}

    def check(self) -> None:
        assert len(self.decided()) <= 1, self.decided()
        for machine in self.machines:
            rounds = [promise.round for promise in machine.made]
            assert rounds == sorted(set(rounds)), "one promise in a round, and rounds rise"
        for promise in self.decided():
            members = {each.directory for each in promise.founders}
            held = [m for m in self.machines if m.me.directory in members]
            assert all(machine.disk.promise == promise for machine in held), "nobody leaves it"

    def calm(self) -> None:
        """Faults end, and everybody who was not refused runs."""
        self.faults = False
        self.in_flight.clear()
        for machine in self.machines:
            if machine.agreement is None and not machine.refused:
                machine.start(self.now_ms)
        self.run(20_000)


@pytest.mark.parametrize("seed", range(150))
def test_all_founders_decide_on_one_set_whatever_was_lost(seed: int) -> None:
    expect = random.Random(seed).choice([1, 2, 3, 3, 5])
    world = World(seed, [Machine(founder(n), expect) for n in range(1, expect + 1)])
    world.run(random.Random(seed).choice([0, 5_000, 20_000]))
    world.calm()
    assert len(world.decided()) == 1
    assert all(machine.disk.decided for machine in world.machines)
    assert not any(machine.refused for machine in world.machines)


@pytest.mark.parametrize("seed", range(150))
def test_nodes_with_one_id_never_make_two_clusters(seed: int) -> None:
    """Two of five nodes have numbers of others. Some are refused; what is left is one cluster."""
    dice = random.Random(seed)
    machines = [Machine(founder(n), 3) for n in (1, 2, 3)]
    machines += [Machine(founder(dice.choice([1, 2, 3]), 1), 3)]
    machines += [Machine(founder(dice.choice([1, 2, 3]), 2), 3)]
    world = World(seed, machines)
    world.run(20_000)
    world.calm()
    refused = {machine.me.directory for machine in machines if machine.refused}
    stuck = [
        machine
        for machine in machines
        if not machine.refused
        and machine.disk.promise is not None
        and not machine.disk.decided
        and refused & {each.directory for each in machine.disk.promise.founders}
    ]
    if not stuck:
        running = [machine for machine in machines if not machine.refused]
        numbers = {machine.me.node_id for machine in running}
        assert len(running) == len(numbers), "one node of each number at most"
        # Two that started at about the same time may both be refused.
        assert all(machine.disk.decided for machine in running) or len(numbers) < 3


@pytest.mark.parametrize("seed", range(100))
def test_a_founder_whose_address_changes_before_the_promise_is_followed(seed: int) -> None:
    world = World(seed, [Machine(founder(n), 3) for n in (1, 2, 3)])
    world.run(3_000)
    moved = world.machines[1]
    if moved.disk.promise is None:
        moved.crash(write_survives=False)
        # NATS delivers nothing to a subscriber that was sent before it subscribed.
        world.in_flight = [each for each in world.in_flight if each[1] is not moved]
        moved.me = founder(2, 0, "elsewhere:7000")
    world.run(5_000)
    world.calm()
    assert len(world.decided()) == 1
    assert all(machine.disk.decided for machine in world.machines)


def heard(agreement: FounderAgreement, *others: FounderAnnouncement, now_ms: int = 0) -> None:
    for each in others:
        agreement.on_announcement(each, now_ms)


def says(who: Founder, promise: FoundingSet | None = None, **more: object) -> FounderAnnouncement:
    values = {"expect": 3, "age_ms": 60_000, **more}
    return FounderAnnouncement(founder=who, promise=promise, **values)  # type: ignore[arg-type]


def empty(me: Founder) -> FounderAgreement:
    return FounderAgreement(me, KeptPromise(me.directory), expect=3, now_ms=0)


ONE, TWO, THREE = founder(1), founder(2), founder(3)
ALL = FoundingSet(1, (ONE, TWO, THREE))


def test_no_promise_before_all_are_there() -> None:
    agreement = empty(ONE)
    heard(agreement, says(TWO))
    assert agreement.wanted(0) is None
    assert agreement.waits_for(0) == ["node 3"]
    heard(agreement, says(THREE))
    assert agreement.wanted(0) == KeptPromise(ONE.directory, ALL)
    assert agreement.wanted(60_000) is None, "they are no longer heard"


def test_decided_when_all_have_made_the_promise() -> None:
    agreement = FounderAgreement(ONE, KeptPromise(ONE.directory, ALL), expect=3, now_ms=0)
    heard(agreement, says(TWO, ALL))
    assert agreement.wanted(0) is None
    assert agreement.waits_for(0) == ["node 3"]
    heard(agreement, says(THREE, ALL))
    assert agreement.wanted(0) == KeptPromise(ONE.directory, ALL, decided=True)


def test_a_promise_stands_while_a_founder_of_it_is_only_silent() -> None:
    agreement = FounderAgreement(ONE, KeptPromise(ONE.directory, ALL), expect=3, now_ms=0)
    other_two = founder(2, 9)
    heard(agreement, says(other_two), says(THREE))
    assert agreement.wanted(0) is None, "node 2 may have decided before it lost its disk"


def test_a_dead_promise_is_given_up() -> None:
    agreement = FounderAgreement(ONE, KeptPromise(ONE.directory, ALL), expect=3, now_ms=0)
    other_two = founder(2, 9)
    other = FoundingSet(1, (ONE, other_two, THREE))
    heard(agreement, says(other_two), says(THREE, other))
    wanted = agreement.wanted(0)
    assert isinstance(wanted, KeptPromise)
    assert wanted.promise == FoundingSet(2, other.founders)


def refusal(agreement: FounderAgreement) -> str:
    found = agreement.wanted(0)
    assert isinstance(found, Refused)
    return found.text


def test_who_is_refused() -> None:
    agreement = empty(ONE)
    heard(agreement, says(founder(1, 9, "elsewhere:1")))
    assert (
        f"two nodes have the number 1: this one, at {ONE.peer}, and one at elsewhere:1"
        in refusal(agreement)
    )

    first = empty(ONE)
    heard(first, says(founder(1, 9), age_ms=0), now_ms=60_000)
    assert first.wanted(60_000) is None, "the newcomer is refused"

    agreement = empty(TWO)
    lost = FoundingSet(1, (ONE, founder(2, 9), THREE))
    heard(agreement, says(ONE, lost, decided=True))
    assert "the cluster has formed" in refusal(agreement)

    agreement = empty(TWO)
    heard(agreement, says(ONE, expect=5))
    assert "--bootstrap-expect 5, and this one with 3" in refusal(agreement)

    agreement = empty(TWO)
    heard(agreement, says(Founder(2, TWO.directory, "copy:1")))
    assert "has a copy" in refusal(agreement)


@given(
    apart=st.integers(0, 5_000), delays=st.tuples(*[st.integers(0, 499)] * 2), swapped=st.booleans()
)
def test_two_nodes_with_one_number_never_both_wait(
    apart: int, delays: tuple[int, int], swapped: bool
) -> None:
    """Whatever their ages seem to be to each other, one of them is refused."""
    elder, younger = (founder(1, 2), founder(1, 1)) if swapped else (founder(1, 1), founder(1, 2))
    first = FounderAgreement(elder, KeptPromise(elder.directory), expect=3, now_ms=0)
    second = FounderAgreement(younger, KeptPromise(younger.directory), expect=3, now_ms=apart)
    sent = apart + 100
    to_first, to_second = second.announcement(sent), first.announcement(sent)
    heard(first, to_first, now_ms=sent + delays[0])
    heard(second, to_second, now_ms=sent + delays[1])
    now = sent + max(delays)
    assert isinstance(first.wanted(now), Refused) or isinstance(second.wanted(now), Refused)
    if apart >= 3_000:
        assert first.wanted(now) is None, "who was there first stays"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        encode_founder(says(ONE, v=2)),
        encode_founder(says(ONE, decided=True)),
        encode_founder(says(founder(1, peer="nowhere"))),
        encode_founder(says(founder(1, peer="a,b:1"))),
        encode_founder(says(ONE, FoundingSet(1, (TWO, THREE)))),
        encode_founder(says(ONE, FoundingSet(1, (TWO, ONE, THREE)))),
        b" " * (1 << 15) + encode_founder(says(ONE)),
    ],
)
def test_what_cannot_be_is_not_read(data: bytes) -> None:
    assert decode_founder(data) is None
