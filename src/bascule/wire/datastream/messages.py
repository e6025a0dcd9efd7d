"""The messages of the data streaming protocol that have a MessagePack body."""

from __future__ import annotations

from typing import Any

import msgspec

from bascule.errors import RemoteProtocolError
from bascule.wire.datastream.frames import VERSION


class StreamHello(msgspec.Struct, array_like=True):
    """The first frame in each direction. A client says no node and no cluster id."""

    version: int = VERSION
    cluster: str = ""
    cluster_id: str = ""
    node: int = 0


def check_version(hello: StreamHello) -> None:
    """Raises: RemoteProtocolError for a version that is not known here."""
    if hello.version != VERSION:
        raise RemoteProtocolError(
            f"data streaming protocol version {hello.version}, supported: {VERSION}"
        )


class ReplicaAddress(msgspec.Struct, array_like=True):
    """A node with a replica of the partition."""

    node: int
    address: str
    """Of its client listener; empty where it is not known."""
    rack: str = ""


class OpenPayload(msgspec.Struct, array_like=True):
    """Begin to send a payload, or go on with it. The first node chooses what is not given."""

    id: str
    stream: str
    partition: int = -1
    """-1: as the key or the subject says."""
    subject: str | None = None
    """None: the stream's subject, if it is one without wildcards."""
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = []
    size: int = -1
    """In bytes, if it is known."""
    topology: str = "auto"
    quorum: bool = False
    """Acknowledge what a majority has written; the others catch up."""
    route: list[tuple[int, list[int]]] = []
    """Each node and the nodes that it forwards to; empty: by `topology`."""
    attempt: int = 0
    """Of the node that leads the tree. A later attempt replaces an earlier one."""
    stream_id: bytes = b""
    """Between nodes."""
    begins_anew: bool = False
    """Drop what was received of it before."""
    prefers_follower: bool = False
    """The leader names a follower instead of taking the payload itself, if there is one. Releases
    before do not know it."""


class PayloadOpened(msgspec.Struct, array_like=True):
    """The payload may be sent from `position` on."""

    position: int
    crc: int
    """CRC-32C of the bytes below it."""
    window: int
    """Send at most so many bytes that are not acknowledged."""
    partition: int = -1
    route: list[tuple[int, list[int]]] = []
    why: str = ""
    """Why this route was chosen."""
    replicas: list[ReplicaAddress] = []
    is_whole: bool = False
    """All bytes are there; only CLOSE is missing."""


class ReplicasElsewhere(msgspec.Struct, array_like=True):
    """This node has no replica of the partition. Instead of `PayloadOpened` or `PayloadFetched`."""

    partition: int
    replicas: list[ReplicaAddress]


class ClosePayload(msgspec.Struct, array_like=True):
    """All has been sent: this many bytes, with this CRC-32C."""

    size: int
    crc: int


class PayloadClosed(msgspec.Struct, array_like=True):
    """The payload is whole and synced on the nodes of the tree and, from the first node to the
    client, its record is committed; `ack` is that of a published message."""

    ack: dict[str, Any] = {}
    nodes: list[int] = []
    """Those that had the payload whole when it was closed."""


class PayloadFailed(msgspec.Struct, array_like=True):
    """An error as plain values; see `errors.plain`."""

    name: str
    text: str
    fields: dict[str, Any] = {}


class FetchPayload(msgspec.Struct, array_like=True):
    """Send a payload: that with `id`, or that of the record at `offset`."""

    stream: str
    partition: int
    id: str = ""
    offset: int = -1
    start: int = 0
    """The first byte to send."""
    end: int = -1
    """Behind the last byte to send; -1: the payload's end."""


class PayloadFetched(msgspec.Struct, array_like=True):
    """The payload, whose bytes from `start` on follow."""

    id: str
    size: int
    crc: int
    """Of the whole payload."""
    start: int
    end: int
    is_compared: bool = False
    """Whether the node compares each block with its checksum before it sends it. Otherwise the
    bytes count only once the whole is right."""
