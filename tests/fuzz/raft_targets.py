"""Bundles that another node may send to this one."""

from __future__ import annotations

from crc32c import crc32c

from bascule.errors import RemoteProtocolError
from bascule.raft import codec
from bascule.raft.membership import Members
from bascule.raft.messages import (
    AppendReply,
    AppendRequest,
    ChunkReply,
    ChunkRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    SnapshotOffer,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.raft.multi.bundle import Bundle, Hibernation
from fuzz.target import Target

BEAT = Bundle(1, 2, 9, 8, 100, 99, 3, 4, 17)
EVERY_MESSAGE = (
    (1, VoteRequest(1, 2, 5, True, 7, 4, True)), (2, VoteReply(1, 2, 5, False, True)),
    (3, AppendRequest(1, 2, 5, 6, 4, 6, (
        Entry(7, 4, EntryKind.NORMAL, b"put a 1"), Entry(8, 5, 1, b""),
    ))),
    (3, AppendReply(1, 2, 5, False, 8, 6, 4)), (4, Heartbeat(1, 2, 5, 6, 70_000)),
    (4, HeartbeatReply(1, 2, 5, 70_000)), (5, TimeoutNow(1, 2, 5)),
    (6, SnapshotOffer(1, 2, 5, 6, 4, Members((1, 2), (3,), 2), (0, 0xFFFFFFFF), (1, 2))),
    (6, SnapshotReply(1, 2, 5, 6)), (6, ChunkRequest(1, 2, 5, 6, 1)),
    (6, ChunkReply(1, 2, 5, 6, 1, b"chunk")), (1 << 40, ChunkReply(1, 2, 5, 6, 1, None)),
)  # fmt: skip
BUNDLES = (
    BEAT,
    Bundle(*(getattr(BEAT, name) for name in BEAT.__struct_fields__[:9]), messages=EVERY_MESSAGE),
    Bundle(
        *(getattr(BEAT, name) for name in BEAT.__struct_fields__[:9]),
        base=3, version=6, hibernated=(Hibernation(1, 5, 8), Hibernation(2, 5, 80)), woken=(4,),
        refused=(Hibernation(7, 3, 3),),
    ),
)  # fmt: skip


def run_codec(data: bytes) -> None:
    """A body decodes to a bundle that is encoded and decoded again without change, or gives a
    protocol error. The checksum is corrected first; otherwise no mutation would pass it.
    """
    body = bytearray(data)
    if len(body) > codec.HEAD_BYTES:
        body[1 : codec.HEAD_BYTES] = crc32c(body[codec.HEAD_BYTES :]).to_bytes(4, "big")
    try:
        bundle = codec.decode(body)
    except RemoteProtocolError:
        return
    assert codec.decode(codec.encode(bundle)) == bundle


TARGETS = [Target("raft-codec", lambda: [bytes(codec.encode(b)) for b in BUNDLES], run_codec)]
