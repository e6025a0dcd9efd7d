"""The first frame of a connection between peers, in both directions.

```
dialler                     listener
  hello(source=me, target=you)  ->
                            <-  hello(source=you, target=me)     the same shape, or it hangs up
  frames of bundles             ->
```

A frame is `u32` length, big-endian, and that many bytes. Bundles go one way only, so each pair of
peers has up to two connections, and no rule is needed for which of two to keep.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bascule.errors import RemoteProtocolError

MAGIC: Final = "bascule-raft"
VERSION: Final = 1
LENGTH_BYTES: Final = 4
HELLO_BYTES_MAX: Final = 4_096
"""Of the first frame; a stranger makes us hold no more."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who speaks, to whom, in what cluster. `incarnation` differs at each start of a node."""

    magic: str
    version: int
    cluster: str
    source: int
    target: int
    incarnation: int


_decoder = msgspec.msgpack.Decoder(Hello)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_hello(cluster: str, source: int, target: int, incarnation: int) -> bytes:
    """The frame, length and all."""
    hello = Hello(MAGIC, VERSION, cluster, source, target, incarnation)
    return frame(msgspec.msgpack.encode(hello))


def decode_hello(body: bytes, *, cluster: str, target: int) -> Hello:
    """The hello in a frame's body, checked to be for this node in this cluster.

    Raises: RemoteProtocolError naming what is wrong.
    """
    try:
        hello = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the first frame is no hello: {error}") from None
    if hello.magic != MAGIC:
        raise RemoteProtocolError(f"the first frame is no hello: it says {hello.magic!r:.40}")
    if hello.version != VERSION:
        raise RemoteProtocolError(f"the peer speaks version {hello.version}, expected {VERSION}")
    if hello.cluster != cluster:
        raise RemoteProtocolError(
            f"the peer belongs to cluster {hello.cluster!r:.80}, expected {cluster!r}"
        )
    if hello.target != target:
        raise RemoteProtocolError(f"the peer takes us for node {hello.target}, this is {target}")
    return hello
