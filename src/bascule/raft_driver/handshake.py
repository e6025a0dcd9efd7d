"""The handshake of a connection between peers: the first frame in each direction.

```
dialler                     listener
  hello(source=me, target=you)  ->
                            <-  hello(source=you, target=me)     or it closes the connection
  frames of bundles             ->
```

A frame is a big-endian `u32` length and that many bytes. Bundles go in one direction only, so each
pair of peers has up to two connections, and no rule is needed to choose between them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from bascule.cluster_identity import ClusterIdentity
from bascule.errors import RemoteProtocolError
from bascule.raft.config import LEASES

MAGIC: Final = "bascule-raft"
VERSION: Final = 1
LENGTH_BYTES: Final = 4
HELLO_BYTES_MAX: Final = 4_096
"""Limit of the first frame, and so of the bytes buffered for an unauthenticated peer."""


Settings: TypeAlias = tuple[tuple[str, int], ...]
"""(name, value) in a fixed order."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Cluster, sender and receiver. `incarnation` differs at each start of a node.

    Nodes pass over fields that they do not know, and earlier releases leave the last one out.
    """

    magic: str
    version: int
    cluster: str
    source: int
    target: int
    incarnation: int
    settings: Settings = ()
    """The length of a tick, and `RaftConfig.shared`: equal on all nodes where leases are on."""
    cluster_id: str = ""
    """Empty if the node does not know it."""


_decoder = msgspec.msgpack.Decoder(Hello)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_hello(
    cluster: ClusterIdentity, source: int, target: int, incarnation: int, settings: Settings = ()
) -> bytes:
    """The whole frame, with its length."""
    hello = Hello(MAGIC, VERSION, cluster.name, source, target, incarnation, settings, cluster.id)
    return frame(msgspec.msgpack.encode(hello))


def decode_hello(body: bytes) -> Hello:
    """The hello in a frame's body. Raises: RemoteProtocolError where it is none."""
    try:
        hello = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the first frame is not a hello: {error}") from None
    if hello.magic != MAGIC:
        raise RemoteProtocolError(
            f"the first frame is not a hello: its magic is {hello.magic!r:.40}"
        )
    if hello.version != VERSION:
        raise RemoteProtocolError(
            f"the peer has protocol version {hello.version}, expected {VERSION}: its release "
            "cannot run beside this one; upgrade all nodes to a release between them first"
        )
    return hello


def check_hello(
    hello: Hello, *, cluster: ClusterIdentity, target: int, settings: Settings = ()
) -> None:
    """Check that a hello is for this node in this cluster, and that its sender has the same
    `settings`; without leases on both sides these may differ.

    Raises: RemoteProtocolError naming what is wrong; ForeignPeer.
    """
    cluster.check(hello.cluster, hello.cluster_id)
    if hello.target != target:
        raise RemoteProtocolError(
            f"the peer expects node {hello.target} here, this is node {target}"
        )
    _check_settings(dict(hello.settings), dict(settings))


def _check_settings(theirs: dict[str, int], ours: dict[str, int]) -> None:
    if theirs.get(LEASES) == ours.get(LEASES) == 0:
        return
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise RemoteProtocolError(
                f"the peer has the setting {name} = {theirs.get(name)}, expected {value}: leases "
                "count on equal settings, so restart all nodes with the same ones"
            )
