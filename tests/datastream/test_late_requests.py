"""Requests that had to wait: their connection may be gone by then, and the log another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from crc32c import crc32c

from bascule.datastream.disk.whole_reads import Awaiting
from bascule.datastream.session import Key, Session
from bascule.errors import Broken
from bascule.record.payload_links import Payload, PayloadLink
from bascule.wire.datastream import frames
from bascule.wire.datastream.messages import OpenPayload
from support.payload_nodes import STREAM, STREAM_ID, PayloadNode, RawSender, payload_nodes

T = TypeVar("T")

SECONDS_MAX = 20
ID = "ab" * 16
KEY: Key = (STREAM_ID, 0, ID)
DATA = b"weights" * 1_000


def ask(node: PayloadNode, look: Callable[[], T]) -> T:
    """What the thread of data streaming finds, after all that it was asked before."""
    found: Future[T] = Future()
    node.streams._reactor.call(lambda: found.set_result(look()))
    return found.result(SECONDS_MAX)


def test_an_opening_whose_connection_is_gone_changes_nothing(tmp_path: Path) -> None:
    """It has waited until the part of the payload was read, for somebody else."""
    told: list[Exception | None] = []
    is_gone = threading.Event()
    with payload_nodes(tmp_path, 1) as nodes:
        node, streams = nodes[1], nodes[1].streams
        place, opening = node.place_of(STREAM, 0), OpenPayload(ID, STREAM, 0, begins_anew=True)
        reading = Awaiting(lambda: True)

        def open_while_it_is_read() -> None:
            streams._loading[KEY] = reading
            streams.prepare_session(
                place, opening, lambda _, error: told.append(error),
                is_wanted=lambda: not is_gone.is_set(),
            )  # fmt: skip
            del streams._loading[KEY]

        ask(node, open_while_it_is_read)
        assert not told
        is_gone.set()
        sender = RawSender(node.port)
        sender.open(ID)
        sender.until(frames.OPENED)
        sender.packet(0, DATA)
        (again,) = reading.calls
        ask(node, again)
        assert isinstance(told[0], Broken)
        sender.finish(DATA)
        sender.until(frames.CLOSED)
        sender.close()


def test_who_asks_for_a_log_that_was_closed_leaves_the_next_one_alone(tmp_path: Path) -> None:
    refused: list[Exception | None] = []
    with payload_nodes(tmp_path, 2) as nodes:
        node = nodes[2]
        before = node.place_of(STREAM, 0)
        node.open_again()
        sender = RawSender(node.port)
        sender.open(ID)
        sender.until(frames.OPENED)

        def open_before() -> None:
            def ready(session: Session | None, error: Exception | None) -> None:
                assert session is None
                refused.append(error)

            opening = OpenPayload(ID, STREAM, 0)
            node.streams.prepare_session(before, opening, ready, is_wanted=lambda: True)

        ask(node, open_before)
        fetched = Future[Exception | None]()
        link = PayloadLink(0, Payload(ID, 5, crc32c(b"other")))
        node.streams.fetch(before, link, fetched.set_result)
        refused.append(fetched.result(SECONDS_MAX))
        assert [type(each) for each in refused] == [Broken, Broken]
        sender.packet(0, DATA)
        sender.finish(DATA)
        sender.until(frames.CLOSED)
        sender.close()
