"""The handshake of a connection between peers: the first frame in each direction.

```
dialler                     listener
  hello(source=me, target=you)  ->
                            <-  hello(source=you, target=me)     or it closes the connection
  frames of bundles             ->
```

A node that refuses a peer for good answers with the reason in its hello, and closes the connection.

A frame is a big-endian `u32` length and that many bytes. Bundles go in one direction only, so each
pair of peers has up to two connections, and no rule is needed to choose between them.
"""

from __future__ import annotations

import logging
from typing import Final, TypeAlias

import msgspec

from bascule.cluster_identity import ClusterIdentity
from bascule.errors import RemoteProtocolError
from bascule.raft.config import LEASES

log = logging.getLogger("bascule.raft_driver")

MAGIC: Final = "bascule-raft"
VERSION: Final = 1
LENGTH_BYTES: Final = 4
HELLO_BYTES_MAX: Final = 4_096
"""Limit of the first frame, and so of the bytes buffered for an unauthenticated peer."""
TRIAL_SECONDS: Final = 3.0
"""A process that comes back is taken for one that runs when it was connected for so long. One whose
node was removed meanwhile has found that out by then, and ended."""
EARLIER_MAX: Final = 8
"""Processes of a node that are remembered, of those before and of those that are refused."""


Settings: TypeAlias = tuple[tuple[str, int], ...]
"""(name, value) in a fixed order."""


class RefusedProcess(RemoteProtocolError):
    """A process may not be its node, since another one with the number runs."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Cluster, sender and receiver. `incarnation` differs at each start of a node.

    Nodes pass over fields that they do not know, and earlier releases leave the last two out.
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
    refusal: str = ""
    """In an answer: why the process of the dialler may not be this node; empty: it may."""


_decoder = msgspec.msgpack.Decoder(Hello)


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_hello(
    cluster: ClusterIdentity,
    source: int,
    target: int,
    incarnation: int,
    settings: Settings = (),
    refusal: str = "",
) -> bytes:
    """The whole frame, with its length."""
    hello = Hello(
        MAGIC, VERSION, cluster.name, source, target, incarnation, settings, cluster.id, refusal
    )
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


class KnownProcesses:
    """The processes of each node that have connected, of which one runs at a time.

    A process that has ended never comes back. So a process that was there before the present one,
    and connects again, shows that two processes use one number: a copy of the data directory runs.
    The earlier one keeps the number, and the later one is refused, once the earlier one has stayed
    connected for `TRIAL_SECONDS`. What a dead process has sent may arrive late; it is followed by
    the end of its connection.
    """

    def __init__(self) -> None:
        self._nodes: dict[int, _Processes] = {}

    def on_hello(
        self, node: int, incarnation: int, address: str, now: float, trial: object
    ) -> None:
        """A process connects from `address`. `trial` is its connection.

        Raises: RefusedProcess; RemoteProtocolError where it has to try again.
        """
        known = self._nodes.get(node)
        if known is None:
            self._nodes[node] = _Processes(incarnation, address)
        elif incarnation in known.refused:
            raise RefusedProcess(known.refused[incarnation])
        elif incarnation in known.earlier:
            known.trial, known.trial_since = (incarnation, trial), now
            known.earlier[incarnation] = address
        elif incarnation != known.incarnation:
            known.earlier[known.incarnation] = known.address
            known.incarnation, known.address = incarnation, address
            known.trial = None
            while len(known.earlier) > EARLIER_MAX:
                del known.earlier[next(iter(known.earlier))]
        elif known.trial is not None:
            self._judge(node, known, address, now)

    def _judge(self, node: int, known: _Processes, address: str, now: float) -> None:
        """The later process connects again, and the earlier one is connected."""
        assert known.trial is not None
        kept = known.trial[0]
        at = known.earlier[kept]
        if now - known.trial_since < TRIAL_SECONDS:
            raise RemoteProtocolError(
                f"node {node} connects from {address}, and is connected from {at} already"
            )
        text = (
            f"another process of node {node} runs at {at}: stop it if it is not the right one; a "
            "copy of a data directory cannot be a node"
        )
        if len(known.refused) >= EARLIER_MAX:
            del known.refused[next(iter(known.refused))]
        known.refused[known.incarnation] = text
        del known.earlier[kept]
        known.incarnation, known.address, known.trial = kept, at, None
        log.error(
            "two processes use the number of one node; the later one is refused",
            extra={"node": node, "kept": at, "refused": address},
        )
        raise RefusedProcess(text)

    def on_removed(self, node: int) -> None:
        """The node is no peer any more: another directory may get its number, and come first."""
        self._nodes.pop(node, None)

    def on_gone(self, node: int, trial: object) -> None:
        """A connection has ended."""
        known = self._nodes.get(node)
        if known is not None and known.trial is not None and known.trial[1] is trial:
            known.trial = None


class _Processes:
    """Those of one node."""

    __slots__ = ("address", "earlier", "incarnation", "refused", "trial", "trial_since")

    def __init__(self, incarnation: int, address: str) -> None:
        self.incarnation = incarnation
        """Of the latest one."""
        self.address = address
        self.earlier: dict[int, str] = {}
        """Incarnation -> address of those before."""
        self.refused: dict[int, str] = {}
        """Incarnation -> why."""
        self.trial: tuple[int, object] | None = None
        """An earlier one that is connected again: its incarnation and connection."""
        self.trial_since = 0.0
