"""Which of those that take up the places of a node give way to others."""

from __future__ import annotations

from bascule.datastream.admission import SLOW_BYTES_PER_S, Occupants
from bascule.host.real import RealClock


class SetClock(RealClock):
    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def pass_seconds(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def test_the_longest_silent_one_gives_way() -> None:
    clock = SetClock()
    found = Occupants[str](clock, lambda each: each != "waits")
    for each in ("waits", "a", "b", "c"):
        found.add(each)
        clock.pass_seconds(0.2)
    assert found.next_to_yield() is None, "none was silent for a second"
    clock.pass_seconds(0.9)
    found.on_bytes("a", 1)
    assert found.next_to_yield() == "b"
    found.remove("b")
    assert found.next_to_yield() == "c"
    assert list(found) == ["waits", "c", "a"]


def test_else_the_slowest_one_does_if_it_is_slow() -> None:
    clock = SetClock()
    found = Occupants[str](clock, lambda each: each != "waits")
    rates = {"waits": 1, "fast": SLOW_BYTES_PER_S, "slow": SLOW_BYTES_PER_S - 1, "slower": 100}
    for each in rates:
        found.add(each)
    for step in range(40):
        clock.pass_seconds(0.5)
        for each, rate in rates.items():
            found.on_bytes(each, rate // 2 if step % 2 else rate - rate // 2)
        if step % 10 == 9:
            found.on_look()
    assert found.next_to_yield() == "slower"
    found.add("new")
    found.remove("slower")
    assert found.next_to_yield() == "slow"
    found.remove("slow")
    assert found.next_to_yield() is None, "a new one has a second, and a fast one stays"


def test_memory_that_is_held_is_given_back() -> None:
    clock = SetClock()
    found = Occupants[str](clock, lambda each: True)
    for each in ("small", "large", "other"):
        found.add(each)
    found.hold("large", 100)
    found.hold("other", 50)
    found.hold("large", 70)
    found.hold("gone", 1_000)
    assert found.held == 120
    clock.pass_seconds(2)
    assert found.next_to_yield() == "small"
    assert found.next_to_yield(holding=True) == "large"
    found.remove("large")
    assert found.held == 50
    found.remove("large")
    found.hold("other", 0)
    assert (found.held, found.next_to_yield(holding=True)) == (0, None)
