"""Requests to other nodes over their peer listeners, on the event loop.

A connection answers one request at a time, so each request in flight has its own. Connections are
kept for the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar, cast

import msgspec

from bascule.cluster_identity import ClusterIdentity, ForeignPeer
from bascule.errors import Broken, ConnectionGone, RemoteProtocolError
from bascule.errors.plain import from_plain
from bascule.wire.connection import NEED_DATA, ClientConnection
from bascule.wire.messages.peer.control import (
    ANY_NODE,
    ControlRequest,
    ControlResponse,
    PeerHelloRequest,
    PeerHelloResponse,
)
from bascule.wire.schema import Message, Request

CLIENT_ID: Final = "bascule-node"
FRAME_BYTES_MAX: Final = 64 << 20
IDLE_CONNECTIONS_MAX: Final = 32
"""Kept for one node; more are closed after their request. Requests that come together, such as the
creation of many streams, use one each."""
READ_BYTES: Final = 64 << 10
ResponseT = TypeVar("ResponseT", bound=Message)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = ClientConnection(client_id=CLIENT_ID, frame_bytes_max=FRAME_BYTES_MAX)
        self.told_id = False
        """Whether its hello said the cluster id."""

    async def request(self, request: Request[ResponseT], *, version: int = 0) -> ResponseT:
        """Raises: Broken, RemoteProtocolError, OSError."""
        self._writer.write(self._protocol.send(request, version=version))
        await self._writer.drain()
        while (event := self._protocol.next_event()) is NEED_DATA:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise Broken("the node closed the connection")
            self._protocol.feed(data)
        return cast(ResponseT, event.message)

    @property
    def is_usable(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()


class PeerClient:
    """Connections to other nodes. Belongs to the event loop."""

    def __init__(
        self, node_id: int, cluster: ClusterIdentity, *, node_epoch: Callable[[], int]
    ) -> None:
        """`node_epoch` returns that of this node's registration, -1 before it."""
        self._node_id = node_id
        self._cluster = cluster
        self._node_epoch = node_epoch
        self._addresses: dict[int, tuple[str, int]] = {}
        self._idle: dict[int, list[_Connection]] = {}

    def set_peer(self, node: int, host: str, port: int) -> None:
        """The address of a node's peer listener."""
        if self._addresses.get(node) != (host, port):
            self._addresses[node] = host, port
            self._close_idle(node)

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """Send a control request; return the body of the answer.

        Raises: ConnectionGone where no process listens; Broken; what the other node raised.
        """
        request = ControlRequest(kind=kind, body=body)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._request(node, request)
        except TimeoutError:
            # What has lost this connection, such as a firewall, may have lost the others, too.
            self._close_idle(node)
            raise Broken(f"node {node} did not answer within {timeout_s} s") from None
        return _body(response)

    def remove_peer(self, node: int) -> None:
        """The node is not in the cluster any more."""
        self._addresses.pop(node, None)
        self._close_idle(node)

    async def control_at(
        self, address: tuple[str, int], kind: str, body: bytes, *, timeout_s: float
    ) -> bytes:
        """As `control`, to whatever node listens at an address; it is not told the cluster id.
        Also raises: RemoteProtocolError for a node of a cluster with another name."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connect_to(ANY_NODE, address)
                try:
                    response = await connection.request(ControlRequest(kind=kind, body=body))
                finally:
                    connection.close()
        except TimeoutError:
            raise Broken(f"no answer from {_text(address)} within {timeout_s} s") from None
        except OSError as error:
            raise Broken(f"{_text(address)}: {error}") from error
        return _body(response)

    async def _request(self, node: int, request: ControlRequest) -> ControlResponse:
        idle = self._idle.setdefault(node, [])
        while idle:
            connection = idle.pop()
            if not connection.is_usable or connection.told_id < self._cluster.tells_id:
                connection.close()
                continue
            try:
                return await self._ask(node, connection, request)
            except (OSError, Broken):
                # It may have been closed since its last request. Control requests can be repeated.
                break
        return await self._ask(node, await self._connect(node), request)

    async def _ask(
        self, node: int, connection: _Connection, request: ControlRequest
    ) -> ControlResponse:
        is_whole = False
        try:
            response = await connection.request(request)
            is_whole = True
            return response
        except OSError as error:
            raise Broken(f"node {node}: {error}") from error
        finally:
            idle = self._idle.setdefault(node, [])
            if is_whole and len(idle) < IDLE_CONNECTIONS_MAX:
                idle.append(connection)
            else:
                connection.close()

    async def _connect(self, node: int) -> _Connection:
        address = self._addresses.get(node)
        if address is None:
            raise Broken(f"the address of node {node} is not known")
        return await self._connect_to(node, address)

    async def _connect_to(self, node: int, address: tuple[str, int]) -> _Connection:
        try:
            connection = _Connection(*await asyncio.open_connection(*address))
        except ConnectionRefusedError as error:
            raise ConnectionGone(f"{_name(node)} does not listen at {_text(address)}") from error
        except OSError as error:
            raise Broken(f"{_name(node)} at {_text(address)}: {error}") from error
        cluster = self._cluster
        connection.told_id = cluster.tells_id and node != ANY_NODE
        id = cluster.id if connection.told_id else ""
        hello = PeerHelloRequest(cluster.name, self._node_id, node, self._node_epoch(), id)
        try:
            response: PeerHelloResponse = await connection.request(
                hello, version=int(connection.told_id)
            )
            if connection.told_id:
                self._check(node, address, response.cluster_id)
            if response.error_code:
                raise RemoteProtocolError(
                    f"{_name(node)} at {_text(address)} refused: {response.error_message}"
                )
        except OSError as error:
            connection.close()
            raise Broken(f"node {node} at {_text(address)}: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, node: int, address: tuple[str, int], id: str) -> None:
        """Raises: Broken where a node of another cluster listens; a later attempt may succeed."""
        try:
            self._cluster.check_id(id)
        except ForeignPeer as error:
            self._cluster.on_misled(error, node=node, address=_text(address))
            raise Broken(f"{_name(node)} at {_text(address)}: {error}") from error

    def close(self) -> None:
        for node in list(self._idle):
            self._close_idle(node)

    def _close_idle(self, node: int) -> None:
        for connection in self._idle.pop(node, ()):
            connection.close()


def _body(response: ControlResponse) -> bytes:
    """The body of an answer. Raises: what the other node raised."""
    answer = bytes(cast("bytes", response.body or b""))
    if response.error_code:
        raise from_plain(*msgspec.msgpack.decode(answer))
    return answer


def _name(node: int) -> str:
    return "a node" if node == ANY_NODE else f"node {node}"


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
