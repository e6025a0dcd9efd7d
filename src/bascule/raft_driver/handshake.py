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

from bascule.errors import RemoteProtocolError

MAGIC: Final = "bascule-raft"
VERSION: Final = 1
LENGTH_BYTES: Final = 4
HELLO_BYTES_MAX: Final = 4_096
"""Limit of the first frame, and so of the bytes buffered for an unauthenticated peer."""


Settings: TypeAlias = tuple[tuple[str, int], ...]
"""(name, value) in a fixed order."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Cluster, sender and receiver. `incarnation` differs at each start of a node."""

    magic: str
    version: int
    cluster: str
    source: int
    target: int
    incarnation: int
    settings: Settings = ()
    """Those that have to be equal on all nodes: the length of a tick, and `RaftConfig.shared`."""


_decoder = msgspec.msgpack.Decoder(Hello)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_hello(
    cluster: str, source: int, target: int, incarnation: int, settings: Settings = ()
) -> bytes:
    """The whole frame, with its length."""
    hello = Hello(MAGIC, VERSION, cluster, source, target, incarnation, settings)
    return frame(msgspec.msgpack.encode(hello))


def decode_hello(body: bytes, *, cluster: str, target: int, settings: Settings = ()) -> Hello:
    """The hello in a frame's body. It is checked that it is for this node in this cluster, and that
    its sender has the same `settings`.

    Raises: RemoteProtocolError naming what is wrong.
    """
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
            f"the peer has protocol version {hello.version}, expected {VERSION}"
        )
    if hello.cluster != cluster:
        raise RemoteProtocolError(
            f"the peer belongs to cluster {hello.cluster!r:.80}, expected {cluster!r}"
        )
    if hello.target != target:
        raise RemoteProtocolError(
            f"the peer expects node {hello.target} here, this is node {target}"
        )
    for name, value in settings:
        found = dict(hello.settings).get(name)
        if found != value:
            raise RemoteProtocolError(
                f"the peer has the setting {name} = {found}, expected {value}"
            )
    return hello
