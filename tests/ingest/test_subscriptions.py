"""Which subscription a server confirms or refuses, across connections."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from bascule.errors import Closed
from bascule.ingest.subscriptions import Subscription, Subscriptions, refuse
from bascule.wire.nats import NatsRefused, ServerError


def denied(subject: str) -> ServerError:
    line = f"-ERR 'Permissions Violation for Subscription to \"{subject}\"'"
    return ServerError.decode(line.encode())


TOO_MANY = ServerError.decode(b"-ERR 'maximum subscriptions exceeded'")


class Scene:
    """Subscriptions on a connection that takes everything."""

    def __init__(self) -> None:
        self.book = Subscriptions()

    def subscribe(
        self, subject: str, *, group: str | None = None, stream: str = ""
    ) -> Future[None]:
        sid = self.book.reserve_sid()
        self.book.add(sid, Subscription(subject, group, stream or subject))
        done: Future[None] = Future()
        self.book.await_pong(done, sid)
        return done

    def pong(self) -> Subscription | None:
        done, back = self.book.on_pong()
        if done is not None and not done.done():
            done.set_result(None)
        return back

    def error(self, error: ServerError) -> list[str]:
        about, done = self.book.on_refused(error)
        refuse(done, error)
        return [found.stream for found in about]


def test_each_is_confirmed_by_its_own_pong() -> None:
    scene = Scene()
    a, b = scene.subscribe("a"), scene.subscribe("b")
    assert scene.pong() is None
    assert (a.done(), b.done()) == (True, False)
    assert scene.pong() is None
    assert b.result() is None
    assert scene.book.on_pong() == (None, None)


def test_a_refusal_is_about_the_subject_it_names() -> None:
    scene = Scene()
    a, b, c = (
        scene.subscribe("x", stream="a"),
        scene.subscribe("y", stream="b"),
        scene.subscribe("x", stream="c"),
    )
    assert scene.error(denied("y")) == ["b"]
    assert scene.error(denied("x")) == ["a"]
    assert scene.error(denied("x")) == ["c"]
    for done in (a, b, c):
        scene.pong()
        assert isinstance(done.exception(), NatsRefused)
    assert scene.book.refusals().keys() == {"a", "b", "c"}
    assert scene.book.streams() == ["a", "b", "c"]


def test_a_limit_is_about_the_one_whose_answer_is_next() -> None:
    scene = Scene()
    a, b = scene.subscribe("a"), scene.subscribe("b")
    scene.pong()
    assert scene.error(TOO_MANY) == ["b"]
    scene.pong()
    assert a.result() is None
    assert isinstance(b.exception(), NatsRefused)


def test_permissions_that_change_later_are_about_every_stream_of_the_subject() -> None:
    scene = Scene()
    scene.subscribe("x", stream="a")
    scene.subscribe("x", group="g", stream="b")
    scene.subscribe("y", stream="c")
    for _ in range(3):
        scene.pong()
    assert scene.error(denied("x")) == ["a", "b"]
    assert scene.book.refused() == [1, 2]
    assert scene.error(ServerError.decode(b"-ERR 'Invalid Subject'")) == []


def test_what_was_under_way_is_confirmed_by_the_next_connection() -> None:
    scene = Scene()
    a, b = scene.subscribe("a"), scene.subscribe("b", group="g")
    flushed: Future[None] = Future()
    scene.book.await_pong(flushed)
    scene.pong()
    scene.book.lost()
    later: Future[None] = Future()
    scene.book.keep_waiting(later)
    assert scene.book.all_again() == b"SUB a 1\r\nPING\r\nSUB b g 2\r\nPING\r\nPING\r\n"
    assert scene.error(denied("a")) == ["a"]
    scene.pong()
    assert a.result() is None
    scene.pong()
    assert b.result() is None
    assert not flushed.done()
    scene.pong()
    assert flushed.done()
    assert later.done()


def test_one_that_works_again_is_told() -> None:
    scene = Scene()
    scene.subscribe("a")
    scene.error(denied("a"))
    assert scene.pong() is None
    scene.book.all_again()
    back = scene.pong()
    assert back is not None
    assert back.stream == "a"
    assert scene.book.refusals() == {}


def test_who_waits_is_told_of_the_end() -> None:
    scene = Scene()
    a = scene.subscribe("a")
    kept: Future[None] = Future()
    scene.book.keep_waiting(kept)
    scene.book.fail_all(Closed("closed"))
    for done in (a, kept):
        with pytest.raises(Closed):
            done.result()


def test_ids_are_used_again() -> None:
    book = Subscriptions()
    assert [book.reserve_sid(), book.reserve_sid()] == [1, 2]
    book.add(1, Subscription("a", None, "a"))
    assert book.remove(1) == b"UNSUB 1\r\n"
    book.release_sid(1)
    assert book.reserve_sid() == 1
    book.add(1, Subscription("b", None, "b"))
    book.add(2, Subscription("c", None, "c"))
    assert book.end_all() == b"UNSUB 1\r\nUNSUB 2\r\n"
    assert book.streams() == ["b", "c"]
    assert book.clear() == b"UNSUB 1\r\nUNSUB 2\r\n"
    assert book.streams() == []
