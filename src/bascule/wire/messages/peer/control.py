"""Messages between nodes, with API keys of Bascule's own: the handshake, and control requests.

A connection between nodes has Kafka's framing. Its first request is PeerHello.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from bascule.wire.schema import Int16, Int32, Int64, Message, Records, Request, String, Versions

ANY_NODE: Final = 0
"""In place of the number of the node that a connection is for: whoever listens there."""


@dataclass(slots=True)
class PeerHelloResponse(Message):
    """`node_epoch` is that of the answering node; -1 before it has registered."""

    API_KEY: ClassVar[int] = 1000
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    error_code: Int16 = 0
    error_message: String = ""
    node_epoch: Int64 = -1
    cluster_id: Annotated[String, Versions("1+")] = ""
    """That of the answering node; empty if it does not know it."""


@dataclass(slots=True)
class PeerHelloRequest(Request[PeerHelloResponse]):
    """Who connects, and to whom: a node refuses peers of other clusters and mistaken addresses.

    A peer that does not know the number of the node, ANY_NODE, is told why it is refused, and so is
    one that says its cluster id. Without an id a peer may only ask to join where all nodes of the
    cluster say theirs; see `cluster_identity`.
    """

    API_KEY: ClassVar[int] = 1000
    VERSIONS: ClassVar[Versions] = Versions("0-1")
    RESPONSE: ClassVar[type[Message]] = PeerHelloResponse
    cluster: String = ""
    source: Int32 = 0
    target: Int32 = 0
    node_epoch: Int64 = -1
    cluster_id: Annotated[String, Versions("1+")] = ""


@dataclass(slots=True)
class ControlResponse(Message):
    """`body` is MessagePack: the answer, or, with an error code, the error as plain values."""

    API_KEY: ClassVar[int] = 1002
    VERSIONS: ClassVar[Versions] = Versions("0")
    error_code: Int16 = 0
    body: Records = None


@dataclass(slots=True)
class ControlRequest(Request[ControlResponse]):
    """A request of the controller to a node, or of a node to the controller or to a leader."""

    API_KEY: ClassVar[int] = 1002
    VERSIONS: ClassVar[Versions] = Versions("0")
    RESPONSE: ClassVar[type[Message]] = ControlResponse
    kind: String = ""
    body: Records = None
