"""Which subscription a server confirms or refuses, across connections."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from bascule.errors import Closed
from bascule.ingest.subscriptions import Subscription, Subscriptions, fail_refused
from bascule.wire.nats import NatsRefused, ServerError


def denied(subject: str) -> ServerError:
    line = f"-ERR 'Permissions Violation for Subscription to \"{subject}\"'"
    return ServerError.decode(line.encode())


TOO_MANY = ServerError.decode(b"-ERR 'maximum subscriptions exceeded'")


class FakeConnection:
    """Subscriptions on a server that takes everything."""

    def __init__(self) -> None:
        self.subscriptions = Subscriptions()

    def subscribe(
        self, subject: str, *, group: str | None = None, stream: str = ""
    ) -> Future[None]:
        sid = self.subscriptions.reserve_sid()
        self.subscriptions.add(sid, Subscription(subject, group, stream or subject))
        done: Future[None] = Future()
        self.subscriptions.await_pong(done, sid)
        return done

    def pong(self) -> Subscription | None:
        done, back = self.subscriptions.on_pong()
        if done is not None and not done.done():
            done.set_result(None)
        return back

    def error(self, error: ServerError) -> list[str]:
        about, done = self.subscriptions.on_refused(error)
        fail_refused(done, error)
        return [found.stream for found in about]


def test_each_is_confirmed_by_its_own_pong() -> None:
    server = FakeConnection()
    a, b = server.subscribe("a"), server.subscribe("b")
    assert server.pong() is None
    assert (a.done(), b.done()) == (True, False)
    assert server.pong() is None
    assert b.result() is None
    assert server.subscriptions.on_pong() == (None, None)


def test_a_refusal_is_about_the_subject_it_names() -> None:
    server = FakeConnection()
    a, b, c = (
        server.subscribe("x", stream="a"),
        server.subscribe("y", stream="b"),
        server.subscribe("x", stream="c"),
    )
    assert server.error(denied("y")) == ["b"]
    assert server.error(denied("x")) == ["a"]
    assert server.error(denied("x")) == ["c"]
    for done in (a, b, c):
        server.pong()
        assert isinstance(done.exception(), NatsRefused)
    assert server.subscriptions.refusals().keys() == {"a", "b", "c"}
    assert server.subscriptions.streams() == ["a", "b", "c"]


def test_a_limit_is_about_the_one_whose_answer_is_next() -> None:
    server = FakeConnection()
    a, b = server.subscribe("a"), server.subscribe("b")
    server.pong()
    assert server.error(TOO_MANY) == ["b"]
    server.pong()
    assert a.result() is None
    assert isinstance(b.exception(), NatsRefused)


def test_permissions_that_change_later_are_about_every_stream_of_the_subject() -> None:
    server = FakeConnection()
    server.subscribe("x", stream="a")
    server.subscribe("x", group="g", stream="b")
    server.subscribe("y", stream="c")
    for _ in range(3):
        server.pong()
    assert server.error(denied("x")) == ["a", "b"]
    assert server.subscriptions.refused_sids() == [1, 2]
    assert server.error(ServerError.decode(b"-ERR 'Invalid Subject'")) == []


def test_what_was_under_way_is_confirmed_by_the_next_connection() -> None:
    server = FakeConnection()
    a, b = server.subscribe("a"), server.subscribe("b", group="g")
    flushed: Future[None] = Future()
    server.subscriptions.await_pong(flushed)
    server.pong()
    server.subscriptions.on_disconnected()
    later: Future[None] = Future()
    server.subscriptions.confirm_on_next_connection(later)
    assert (
        server.subscriptions.resubscribe_all()
        == b"SUB a 1\r\nPING\r\nSUB b g 2\r\nPING\r\nPING\r\n"
    )
    assert server.error(denied("a")) == ["a"]
    server.pong()
    assert a.result() is None
    server.pong()
    assert b.result() is None
    assert not flushed.done()
    server.pong()
    assert flushed.done()
    assert later.done()


def test_a_refused_subscription_that_works_again_is_reported() -> None:
    server = FakeConnection()
    server.subscribe("a")
    server.error(denied("a"))
    assert server.pong() is None
    server.subscriptions.resubscribe_all()
    back = server.pong()
    assert back is not None
    assert back.stream == "a"
    assert server.subscriptions.refusals() == {}


def test_unconfirmed_futures_fail_at_the_end() -> None:
    server = FakeConnection()
    a = server.subscribe("a")
    kept: Future[None] = Future()
    server.subscriptions.confirm_on_next_connection(kept)
    server.subscriptions.fail_all(Closed("closed"))
    for done in (a, kept):
        with pytest.raises(Closed):
            done.result()


def test_ids_are_used_again() -> None:
    subscriptions = Subscriptions()
    assert [subscriptions.reserve_sid(), subscriptions.reserve_sid()] == [1, 2]
    subscriptions.add(1, Subscription("a", None, "a"))
    assert subscriptions.remove(1) == b"UNSUB 1\r\n"
    subscriptions.release_sid(1)
    assert subscriptions.reserve_sid() == 1
    subscriptions.add(1, Subscription("b", None, "b"))
    subscriptions.add(2, Subscription("c", None, "c"))
    assert subscriptions.unsubscribe_all() == b"UNSUB 1\r\nUNSUB 2\r\n"
    assert subscriptions.streams() == ["b", "c"]
    assert subscriptions.clear() == b"UNSUB 1\r\nUNSUB 2\r\n"
    assert subscriptions.streams() == []


def test_a_subscription_of_the_node_is_no_streams() -> None:
    subscriptions = Subscriptions()
    for subject, stream in (("_own", None), ("a", "a")):
        sid = subscriptions.reserve_sid()
        subscriptions.add(sid, Subscription(subject, None, stream))
        subscriptions.await_pong(Future(), sid)
    about, _ = subscriptions.on_refused(denied("_own"))
    assert [(each.stream, each.refusal is not None) for each in about] == [(None, True)]
    subscriptions.on_refused(denied("a"))
    assert list(subscriptions.refusals()) == subscriptions.streams() == ["a"]
    assert subscriptions.refused_sids() == [2], "the node tries its own again when it wants to"
    assert subscriptions.own_subjects() == {"_own"}
    expected = b"SUB a 2\r\nPING\r\nSUB _own 1\r\nPING\r\nPING\r\n"
    assert subscriptions.resubscribe_all() == expected, "streams first, if there is a limit"


def test_a_subscription_may_end_while_the_node_drains() -> None:
    """It stops leading meanwhile, and its subscriptions have ended already."""
    subscriptions = Subscriptions()
    sid = subscriptions.reserve_sid()
    subscriptions.add(sid, Subscription("s", None, "s"))
    subscriptions.clear()
    assert subscriptions.remove(sid) == b"UNSUB %d\r\n" % sid
    assert subscriptions.streams() == []
