"""Strangers at the client listener: each costs itself the connection and nobody else anything."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from bascule.kafka import ListenerLimits
from bascule.kafka.handlers import SUPPORTED_VERSIONS
from bascule.replica.partition import Partition
from bascule.replica.partitions import Partitions
from bascule.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from bascule.wire.messages.metadata import MetadataRequest
from bascule.wire.messages.produce import ProducePartition, ProduceRequest, ProduceTopic
from fuzz.kafka_targets import request_frames
from fuzz.mutation import mutate
from support.raw_client import RawClient, ServerClosed, fetch, read_all
from support.served_stream import (
    ListenerThread,
    append,
    make_records,
    open_stream,
    running_listener,
    stored_bytes,
)

RECORD_COUNT = 20_000
LIMITS = ListenerLimits(
    connections_max=40,
    request_bytes_max=100_000,
    request_ms_max=500,
    idle_ms_max=60_000,
    write_stall_ms_max=500,
)


class Scene(NamedTuple):
    listener: ListenerThread
    flights: Partition

    def client(self, **options: int) -> RawClient:
        return RawClient(self.listener.host, self.listener.port, **options)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    partitions = Partitions()
    flights = open_stream(tmp_path, partitions, segment_bytes_max=1_000_000)
    for first in range(0, RECORD_COUNT, 500):
        append(flights, make_records(first, 500, bytes_each=200), commit=False)
    flights.sync()
    with running_listener(partitions, LIMITS) as listener:
        yield Scene(listener, flights)


class Bystander:
    """Another client, who reads the stream over and over while something happens."""

    def __init__(self, scene: Scene) -> None:
        self._expected = stored_bytes(scene.flights)
        self._client = scene.client()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.wrong: list[object] = []

    def _run(self) -> None:
        try:
            while not self._stop.is_set() or self.rounds < 3:
                data = read_all(self._client, RECORD_COUNT, bytes_max=200_000)
                if data != self._expected:
                    self.wrong.append(f"round {self.rounds} differs")
                self.rounds += 1
        except (OSError, ServerClosed, AssertionError) as error:
            self.wrong.append(error)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._client.close()
        assert self.wrong == []
        assert self.rounds >= 3


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030102000100") + b"\1" * 300,
    "zeros": b"\0" * 64,
    "negative size": struct.pack(">i", -5),
    "huge size": struct.pack(">i", 2**31 - 1) + b"x" * 10_000,
    "one over the limit": struct.pack(">i", 100_001),
    "unknown api": struct.pack(">ihhih", 10, 77, 0, 1, -1),
    "unknown version": struct.pack(">ihhih", 10, 1, 99, 1, -1),
    "huge count": struct.pack(">ihhihiiiibi", 31, 1, 4, 1, -1, -1, 0, 0, 0, 0, 2**31 - 1),
    "follower of a text": struct.pack(">ihhih", 9999, 3, 1, 1, 32_000) + b"\xff" * 9989,
    "nonsense": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_costs_only_its_sender(scene: Scene, data: bytes) -> None:
    with Bystander(scene), scene.client() as stranger:
        stranger.socket.sendall(data)
        assert stranger.wait_closed_by_server()
    statistics = scene.listener.statistics()
    assert statistics.protocol_errors + statistics.connections_expired == 1
    assert statistics.handler_errors == 0


def test_mutated_requests_of_every_api_cost_only_their_sender(scene: Scene) -> None:
    """Any of them may be answered, or close the connection that it came on."""
    seeds = request_frames()
    assert {struct.unpack_from(">h", seed, 4)[0] for seed in seeds} == set(SUPPORTED_VERSIONS)
    random = Random(20261122)
    with Bystander(scene):
        for number in range(10 * len(SUPPORTED_VERSIONS)):
            body = mutate(seeds[random.randrange(len(seeds))][4:], random, seeds)
            with scene.client() as stranger:
                stranger.socket.settimeout(0.05)
                with suppress(TimeoutError, ConnectionError):
                    # Two frames: what comes behind a hostile request is hostile, too.
                    stranger.socket.sendall(2 * (struct.pack(">i", len(body)) + body))
                    while stranger.socket.recv(1 << 16):
                        pass
            assert scene.listener.statistics().handler_errors == 0, f"request {number}: {body!r}"


def test_a_request_that_trickles_in_must_end(scene: Scene) -> None:
    with Bystander(scene), scene.client() as slow:
        slow.socket.sendall(struct.pack(">i", 90_000))
        slow.socket.settimeout(0.05)
        left = False
        for _ in range(400):
            try:
                slow.socket.sendall(b"\0")
                left = slow.socket.recv(1) == b""
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                left = True
            if left:
                break
        assert left, "20 s of trickling did not end it"
    assert scene.listener.statistics().connections_expired == 1


def test_an_answer_may_take_longer_than_its_request_may_take_to_arrive(scene: Scene) -> None:
    with scene.client() as client:
        data = client.connection.send(fetch(RECORD_COUNT, wait_ms=3_000), version=11)
        client.socket.sendall(data[:10])
        while scene.listener.statistics().bytes_in < 10:
            threading.Event().wait(0.01)
        client.socket.sendall(data[10:])
        assert client.receive().responses[0].partitions[0].error_code == 0
    assert scene.listener.statistics().connections_expired == 0


def test_who_leaves_in_the_middle_of_a_response(scene: Scene) -> None:
    with Bystander(scene):
        for how in (0, 1):
            with scene.client(receive_buffer_bytes=4096) as leaver:
                leaver.send(fetch(0, bytes_max=4_000_000), 11)
                assert leaver.socket.recv(1000)
                if how:  # with a reset instead of a farewell
                    linger = struct.pack("ii", 1, 0)
                    leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert scene.listener.statistics().handler_errors == 0


def test_who_takes_nothing_of_a_response(scene: Scene) -> None:
    with Bystander(scene), scene.client(receive_buffer_bytes=4096) as stalled:
        for _ in range(5):
            stalled.send(fetch(0, bytes_max=4_000_000), 11)
        while scene.listener.statistics().connections_expired == 0:
            threading.Event().wait(0.05)
        assert stalled.wait_closed_by_server()


def test_who_leaves_while_waiting_is_forgotten(scene: Scene) -> None:
    with scene.client() as client:
        client.send(fetch(RECORD_COUNT, wait_ms=50_000), 11)
        while not scene.listener.call(lambda: bool(scene.flights.watchers)):
            threading.Event().wait(0.01)
        assert scene.listener.statistics().waiting == 1
    while scene.listener.call(lambda: bool(scene.flights.watchers)):
        threading.Event().wait(0.01)
    assert scene.listener.statistics().waiting == 0


def test_pipelined_requests_are_answered_in_order(scene: Scene) -> None:
    count = 3_000
    with Bystander(scene), scene.client() as client:

        def send() -> None:
            for n in range(count):
                client.send(ApiVersionsRequest() if n % 3 else MetadataRequest(None), n % 2 + 1)

        sender = threading.Thread(target=send)
        sender.start()
        for n in range(count):
            assert isinstance(client.receive(), ApiVersionsResponse) is bool(n % 3)
        sender.join()


def test_requests_behind_a_waiting_one_wait_too(scene: Scene) -> None:
    with scene.client() as client:
        client.send(fetch(RECORD_COUNT, wait_ms=50_000), 11)
        client.send(MetadataRequest(None), 1)
        while not scene.listener.call(lambda: bool(scene.flights.watchers)):
            threading.Event().wait(0.01)
        append(scene.flights, make_records(RECORD_COUNT, 1))
        (partition,) = client.receive().responses[0].partitions
        assert partition.high_watermark == RECORD_COUNT + 1
        assert client.receive().topics[0].name == "flights"


def test_no_more_connections_than_the_limit(scene: Scene) -> None:
    clients = [scene.client() for _ in range(LIMITS.connections_max)]
    for client in clients:
        client.request(ApiVersionsRequest(), 0)
    with scene.client() as refused:
        assert refused.wait_closed_by_server()
    assert scene.listener.statistics().connections_refused == 1
    clients.pop().close()
    while scene.listener.statistics().connections == LIMITS.connections_max:
        threading.Event().wait(0.01)
    with scene.client() as admitted:
        admitted.request(ApiVersionsRequest(), 0)
    for client in clients:
        client.close()


def test_produce_without_acks_closes(scene: Scene) -> None:
    with scene.client() as client:
        topic = ProduceTopic("flights", partition_data=[ProducePartition(0, b"x")])
        client.send(ProduceRequest(acks=0, topic_data=[topic]), 7)
        assert client.wait_closed_by_server()


def test_closing_answers_those_who_wait(scene: Scene) -> None:
    with scene.client() as waiting, scene.client() as idle:
        idle.request(ApiVersionsRequest(), 0)
        waiting.send(fetch(RECORD_COUNT, wait_ms=50_000), 11)
        while not scene.listener.call(lambda: bool(scene.flights.watchers)):
            threading.Event().wait(0.01)
        scene.listener.close()
        (partition,) = waiting.receive().responses[0].partitions
        assert partition.error_code == 0
        assert waiting.wait_closed_by_server()
        assert idle.wait_closed_by_server()
