"""A node that is registered again while its fetcher connects: the leader has to hear its epoch."""

from __future__ import annotations

import queue
import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

from bascule.cluster_identity import ClusterIdentity
from bascule.host.real import RealClock
from bascule.replica.follower.fetcher import FollowerFetcher, PeerIdentity
from bascule.replica.follower.followed_partition import FollowedPartition
from bascule.wire.connection import NEED_DATA, ServerConnection
from bascule.wire.messages.peer.control import PeerHelloRequest, PeerHelloResponse
from bascule.wire.messages.registry import PEER_REQUESTS

LIMIT_SECONDS = 60


class Leader:
    """Takes hellos, and answers each when the test says so. Fetches are held."""

    def __init__(self) -> None:
        self.hellos: queue.Queue[int] = queue.Queue()
        """The epochs of nodes that connected."""
        self.may_answer = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = cast("tuple[str, int]", self._listener.getsockname())
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        served = {key: kind.VERSIONS for key, kind in PEER_REQUESTS.items()}
        protocol = ServerConnection(served=served, frame_bytes_max=1 << 20, requests=PEER_REQUESTS)
        with sock:
            while data := sock.recv(1 << 16):
                protocol.feed(data)
                while (request := protocol.next_event()) is not NEED_DATA:
                    if isinstance(request.message, PeerHelloRequest):
                        self.hellos.put(request.message.node_epoch)
                        self.may_answer.acquire()
                        response = PeerHelloResponse(node_epoch=1)
                        sock.sendall(b"".join(cast(Any, protocol.send(request, response))))


def test_an_epoch_that_comes_while_the_hello_is_under_way_is_told() -> None:
    leader, epochs = Leader(), [7]
    fetcher = FollowerFetcher(
        3,
        PeerIdentity(2, ClusterIdentity("c"), lambda: epochs[-1]),
        address=lambda: leader.address,
        writer=cast(Any, SimpleNamespace(call=lambda _: None)),
        syncer=cast(Any, None),
        send_acks=lambda _: None,
        on_silent=lambda *_: None,
        clock=RealClock(),
        silence_seconds_max=LIMIT_SECONDS,
    )
    try:
        fetcher.follow(cast(FollowedPartition, SimpleNamespace(key=(b"s", 0), attempt=0)))
        assert leader.hellos.get(timeout=LIMIT_SECONDS) == 7
        epochs.append(8)
        fetcher.renew()
        leader.may_answer.release()
        assert leader.hellos.get(timeout=LIMIT_SECONDS) == 8
        leader.may_answer.release()
    finally:
        leader.may_answer.release(10)
        leader.close()
        fetcher.close()
