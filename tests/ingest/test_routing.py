"""Which partition a message goes to: murmur2 as Kafka has it, and where the key is found."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType

import pytest

from bascule.ingest.routing import BY_KEY, BY_SUBJECT, PartitionSlot, Routes
from bascule.wire import _hot as wire_hot
from support.replicas import NamedReplica

Hot = Callable[[str], ModuleType]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # What Kafka's own tests of Utils.murmur2 hold.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(hot: Hot, key: bytes, expected: int) -> None:
    assert hot("ingest/routing").murmur2(key) == expected % (1 << 32)


def slots(hot: Hot, data: bytes, routes: Routes) -> list[int]:
    messages, state = array("i", bytes(4 * 8 * 64)), array("q", bytes(32))
    count = wire_hot.parse_messages(data, 0, len(data), 1 << 20, 4096, messages, state)
    hot("ingest/routing").assign_slots(data, messages, count, array("q"), 13, *routes.arrays)
    return [messages[8 * n] for n in range(count)]


def keyed(sid: int, subject: str, block: bytes) -> bytes:
    line = f"HMSG {subject} {sid} {len(block)} {len(block) + 1}\r\n"
    return line.encode() + block + b"x\r\n"


def test_messages_find_their_slots(hot: Hot) -> None:
    murmur2 = hot("ingest/routing").murmur2
    routes = Routes()
    for number in range(9):
        routes.set_slot(number, PartitionSlot(NamedReplica(number), 100))
    routes.set_route(1, (0,))
    routes.set_route(3, (1, 2, 3, 4), by=BY_SUBJECT)
    routes.set_route(4, (8, 5, 7, 6), by=BY_KEY)

    def pick(key: bytes) -> int:
        return int(murmur2(key) & 0x7FFFFFFF) % 4

    data = (
        b"MSG a 1 1\r\nx\r\n"
        b"MSG a.b 3 1\r\nx\r\n"
        b"MSG nobody 2 1\r\nx\r\n"
        b"MSG nobody 77 1\r\nx\r\n"
        b"MSG no.key 4 1\r\nx\r\n"
        + keyed(4, "s", b"NATS/1.0\r\nBascule-Key: abc\r\n\r\n")
        + keyed(4, "s", b"NATS/1.0\r\nOther: y\r\nbascule-KEY:  a b\t\r\nBascule-Key: z\r\n\r\n")
        + keyed(4, "s", b"NATS/1.0\r\nBascule-Key:\r\n\r\n")
        + keyed(4, "s", b"NATS/1.0\r\nX-Bascule-Key: abc\r\n\r\n")
    )
    by_key = (8, 5, 7, 6)
    assert slots(hot, data, routes) == [
        0,
        (1, 2, 3, 4)[pick(b"a.b")],
        -1,
        -1,
        by_key[pick(b"no.key")],
        by_key[pick(b"abc")],
        by_key[pick(b"a b")],
        by_key[pick(b"")],
        by_key[pick(b"s")],
    ]
