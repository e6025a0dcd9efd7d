"""How long a peer was silent, in time in which this process ran."""

from __future__ import annotations

from bascule.heartbeats.silence import (
    LIMIT_NS_MAX,
    LIMIT_NS_MIN,
    TURN_NS_MAX,
    PeerSilence,
    SilenceMeter,
)

MS = 1_000_000
PEER, OTHER = 2, 3


def meter_at(*answered: int) -> SilenceMeter:
    meter = SilenceMeter(0)
    for peer in answered:
        meter.on_answer(peer, incarnation=7)
    return meter


def turns(meter: SilenceMeter, start_ms: int, end_ms: int, step_ms: int = 100) -> None:
    for now in range(start_ms + step_ms, end_ms + 1, step_ms):
        meter.on_turn(now * MS)


def silent_ms(meter: SilenceMeter, peer: int = PEER) -> int:
    found = meter.of(peer)
    assert found is not None
    return found.silent_ns // MS


def test_nothing_is_known_before_the_first_answer() -> None:
    meter = meter_at()
    turns(meter, 0, 5_000)
    assert meter.of(PEER) is None


def test_silence_grows_until_an_answer() -> None:
    meter = meter_at(PEER, OTHER)
    turns(meter, 0, 500)
    meter.on_answer(OTHER, 7)
    turns(meter, 500, 700)
    assert (silent_ms(meter), silent_ms(meter, OTHER)) == (700, 200)


def test_time_in_which_this_process_did_not_run_is_no_silence() -> None:
    meter = meter_at(PEER)
    meter.on_turn(100 * MS)
    meter.on_turn(60_000 * MS)
    assert silent_ms(meter) == 100 + TURN_NS_MAX // MS
    meter.on_answer(PEER, 7)
    assert silent_ms(meter) == 0


def test_a_process_that_gets_little_time_counts_less() -> None:
    meter = meter_at(PEER)
    turns(meter, 0, 3_000, step_ms=1_000)
    assert silent_ms(meter) == 3 * TURN_NS_MAX // MS


def test_silence_is_of_a_connection() -> None:
    meter = meter_at(PEER)
    turns(meter, 0, 500)
    meter.on_ended(PEER)
    turns(meter, 500, 5_000)
    assert meter.of(PEER) == PeerSilence(7, 0, is_connected=False)
    meter.on_answer(PEER, 7)
    found = meter.of(PEER)
    assert found is not None
    assert (found.silent_ns, found.is_connected) == (0, True)


def test_another_process_of_the_peer_begins_anew() -> None:
    meter = meter_at(PEER)
    turns(meter, 0, 500)
    meter.on_answer(PEER, 8)
    assert meter.of(PEER) == PeerSilence(8, 0, is_connected=True)
    assert meter.longest_ns == {PEER: 0}


def test_the_longest_silence_of_a_process_that_went_on() -> None:
    meter = meter_at(PEER)
    for start, end in ((0, 300), (300, 400), (400, 600)):
        turns(meter, start, end)
        meter.on_answer(PEER, 7)
    assert meter.longest_ns == {PEER: 300 * MS}


def test_a_peer_that_is_not_watched_is_forgotten() -> None:
    meter = meter_at(PEER)
    meter.on_ended(PEER)
    meter.forget(PEER)
    assert (meter.of(PEER), meter.longest_ns) == (None, {})


def limit_ms(meter: SilenceMeter) -> int:
    found = meter.of(PEER)
    assert found is not None
    return round(found.limit_ns / MS)


def is_silent(meter: SilenceMeter) -> bool:
    found = meter.of(PEER)
    assert found is not None
    return found.is_silent


def test_a_peer_is_silent_from_its_limit_on() -> None:
    meter = meter_at(PEER)
    turns(meter, 0, LIMIT_NS_MIN // MS - 100)
    assert not is_silent(meter)
    turns(meter, LIMIT_NS_MIN // MS - 100, LIMIT_NS_MIN // MS)
    assert is_silent(meter)
    meter.on_ended(PEER)
    assert not is_silent(meter), "of a connection that has ended nothing is known"


def test_the_limit_is_longer_where_answers_come_late_and_shrinks_again() -> None:
    meter, now = meter_at(PEER), 0
    for late, wanted in ((200, 600), (400, 799), (500, 999), (1_100, 1_500)):
        turns(meter, now, now + late)
        now += late
        meter.on_answer(PEER, 7)
        assert limit_ms(meter) in (wanted, wanted + 1)
    for _ in range(10 * 120):
        meter.on_answer(PEER, 7)
    assert limit_ms(meter) == LIMIT_NS_MIN // MS


def test_a_pause_is_no_delay() -> None:
    """The next pause is noticed as soon as the first one."""
    meter = meter_at(PEER)
    turns(meter, 0, 2 * LIMIT_NS_MAX // MS)
    meter.on_answer(PEER, 7)
    assert limit_ms(meter) == LIMIT_NS_MIN // MS
