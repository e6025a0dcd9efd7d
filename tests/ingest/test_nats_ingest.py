"""NATS ingest without a server: what its callers wait for, and what ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from pathlib import Path

import pytest

from bascule.config import Config
from bascule.errors import Broken, Closed
from bascule.host.real import RealClock, RealRandom
from bascule.ingest import embedded_nats, nats_ingest
from bascule.ingest.embedded_nats import EmbeddedNats, max_payload_for
from bascule.ingest.nats_dialer import Connection, Dialer
from bascule.ingest.nats_ingest import NatsIngest
from bascule.ingest.nats_source import NatsSource
from bascule.ingest.nats_transport import Transport
from bascule.ingest.sequencer import Sequencer
from bascule.model import PartitionBy, StreamConfig, StreamDefinition
from bascule.publish.headers import HashKey
from bascule.wire.nats import ConnectOptions, ServerAddress, ServerInfo, parse_server_url
from support.replicas import NamedReplica

ADDRESS = parse_server_url("nats://127.0.0.1:1")


class NoSink:
    """Takes no batch: no message is delivered here."""

    reserve = submit = None


def make_source() -> NatsSource:
    return NatsSource(
        [ADDRESS],
        ConnectOptions(name="test"),
        sink=NoSink(),  # type: ignore[arg-type]
        sequencer=Sequencer(batch_bytes_max=1 << 20, hash_key=HashKey(bytes(16))),
        clock=RealClock(),
        random=RealRandom(1),
        version="0",
    )


def test_a_confirmation_cannot_be_cancelled_by_its_caller() -> None:
    source = make_source()
    confirmed = source.flush()
    assert not confirmed.cancel(), "the reading thread completes it, and may be about to"
    source.close()
    with pytest.raises(Closed):
        confirmed.result(0)


def test_a_caller_that_gives_up_leaves_no_complaint() -> None:
    """A node that stops leading waits for the end of its subscriptions for half a second."""
    source = make_source()
    complaints: list[str] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context["message"])
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await nats_ingest._confirmed([source.flush(), source.flush()])
        gc.collect()

    asyncio.run(scene())
    source.close()
    gc.collect()
    assert complaints == []


class ServerPair:
    """Both ends of a connection, as a dialer returns it."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair()
        transport = Transport(ours, None, clock=RealClock(), outgoing_bytes_max=1 << 20)
        info = ServerInfo(max_payload=1 << 20)
        self.connection = Connection(ADDRESS, transport, info, b"")


class ScriptedDialer(Dialer):
    """Returns two connections; the second one only after `close` has looked for it."""

    def __init__(self, first: ServerPair, second: ServerPair, joining: threading.Event) -> None:
        self._first, self._second, self._joining = first, second, joining

    def __len__(self) -> int:
        return 1

    def on_info(self, address: ServerAddress, info: ServerInfo) -> None:
        pass

    def connect_first(self) -> Connection:
        return self._first.connection

    def reconnect(self, last: ServerAddress | None, stopping: threading.Event) -> Connection | None:
        assert self._joining.wait(10)
        return self._second.connection


def test_a_connection_made_while_the_source_closes_is_closed() -> None:
    source = make_source()
    first, second = ServerPair(), ServerPair()
    joining = threading.Event()
    source._dialer = ScriptedDialer(first, second, joining)
    source.start()
    thread = source._thread
    assert thread is not None
    join = thread.join

    def join_and_tell(timeout: float | None = None) -> None:
        joining.set()
        join(10)

    thread.join = join_and_tell  # type: ignore[method-assign]
    first.server.close()
    while source.connected:
        threading.Event().wait(0.001)
    source.close()
    is_stopped = not thread.is_alive()
    second.server.close()
    join(10)
    assert is_stopped


def make_ingest() -> NatsIngest:
    return NatsIngest(
        Config(),
        ["nats://127.0.0.1:1"],
        append=lambda replica, batches, on_done=None: None,
        clock=RealClock(),
        random=RealRandom(1),
        hash_key=HashKey(bytes(16)),
        version="0",
    )


def test_a_drain_without_a_connection_ends_the_subscriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_ingest, "CONFIRM_SECONDS_MAX", 0.01)

    async def scenario() -> None:
        ingest = make_ingest()
        with pytest.raises(Broken):
            await ingest.subscribe([([NamedReplica(0)], [0])])
        assert ingest.statistics()["subscription"]["refused"] == {"s": 0}
        await ingest.drain()
        assert ingest.statistics()["subscription"]["refused"] == {}
        await ingest.close()

    asyncio.run(scenario())


def test_a_second_partition_puts_the_first_into_the_queue_group_beside_other_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A subscription without the group would deliver every message a second time."""
    monkeypatch.setattr(nats_ingest, "CONFIRM_SECONDS_MAX", 0.01)
    config = StreamConfig(subject="g", partition_by=PartitionBy.GROUP)
    grouped = StreamDefinition("g", b"g" * 16, 0, config)

    async def scenario() -> None:
        ingest = make_ingest()
        for count in (1, 2):
            replicas = [NamedReplica(index, grouped) for index in range(count)]
            with pytest.raises(Broken):
                await ingest.subscribe([([NamedReplica(0)], [0]), (replicas, range(len(replicas)))])
        found = ingest._source._subscriptions._by_sid.values()
        assert [(each.subject, each.group) for each in found] == [
            ("s", None), ("g", "bascule.g"), ("g", "bascule.g"),
        ]  # fmt: skip
        await ingest.close()

    asyncio.run(scenario())


def test_the_leader_of_a_mapped_partition_subscribes_on_its_own_subject(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nats_ingest, "CONFIRM_SECONDS_MAX", 0.01)
    config = StreamConfig(subject="shop.*.*", partitions=3, partition_by=PartitionBy.MAPPING)
    mapped = StreamDefinition("s", b"s" * 16, 0, config)

    async def scenario() -> None:
        ingest = make_ingest()
        replicas = [NamedReplica(index, mapped) for index in range(3)]
        subscriptions = ingest._source._subscriptions
        for led, expected in (
            ([0, 2], {"shop.0.*", "shop.2.*"}),
            ([1, 2], {"shop.1.*", "shop.2.*"}),
            ([], set()),
        ):
            with contextlib.suppress(Broken):
                await ingest.subscribe([(replicas, led)])
            found = subscriptions._by_sid.values()
            assert {(each.subject, each.group) for each in found} == {(s, None) for s in expected}
        await ingest.close()

    asyncio.run(scenario())


class Reloading:
    """A `nats-server` that logs that it has read its configuration file."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file

    def send_signal(self, number: int) -> None:
        with self._log_file.open("a") as output:
            output.write("[INF] Reloaded server configuration\n")


def test_max_payload_is_raised_by_the_next_call_where_the_first_one_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(embedded_nats, "START_SECONDS_MAX", 0.0)

    async def scenario() -> None:
        nats = EmbeddedNats(tmp_path, host="127.0.0.1", port=0, message_bytes_max=0, token="t")
        nats._process = Reloading(nats.log_file)  # type: ignore[assignment]
        announced = 8 << 20

        async def read_announced() -> ServerInfo:
            return ServerInfo(max_payload=announced, auth_required=True)

        monkeypatch.setattr(nats, "_announced", read_announced)
        for _ in range(2):
            with pytest.raises(Broken):
                await nats.raise_max_payload(9 << 20)
        announced = max_payload_for(9 << 20)
        await nats.raise_max_payload(9 << 20)

    asyncio.run(scenario())


def test_routes_that_were_not_set_are_set_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        nats = EmbeddedNats(
            tmp_path, host="127.0.0.1", port=0, message_bytes_max=0, token="t", cluster="c"
        )
        nats._process = Reloading(nats.log_file)  # type: ignore[assignment]
        asked, is_reachable = 0, False

        async def read_announced() -> ServerInfo:
            nonlocal asked
            asked += 1
            if not is_reachable:
                raise Broken("it is restarting")
            return ServerInfo(max_payload=8 << 20, auth_required=True)

        monkeypatch.setattr(nats, "_announced", read_announced)
        for _ in range(2):
            with pytest.raises(Broken):
                await nats.set_routes(["127.0.0.1:6222"])
        assert "nats-route://127.0.0.1:6222" in (tmp_path / "nats-server.conf").read_text()
        is_reachable = True
        for _ in range(2):
            await nats.set_routes(["127.0.0.1:6222"])
        assert asked == 3, "what is set is not set again"

    asyncio.run(scenario())


def test_a_server_that_hangs_holds_up_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes of all streams wait for that of `max_payload`."""
    monkeypatch.setattr(embedded_nats, "ANNOUNCED_SECONDS_MAX", 0.1)

    class Process:
        def send_signal(self, number: int) -> None:
            pass

    async def scenario() -> None:
        nats = EmbeddedNats(tmp_path, host="127.0.0.1", port=0, message_bytes_max=0, token="t")
        nats._process = Process()  # type: ignore[assignment]
        with socket.create_server(("127.0.0.1", 0)) as hanging:
            nats._url = f"nats://127.0.0.1:{hanging.getsockname()[1]}"
            with pytest.raises(Broken, match="says nothing"):
                await asyncio.wait_for(nats.raise_max_payload(9 << 20), 30)

    asyncio.run(scenario())


def test_what_tls_answers_comes_behind_what_is_queued() -> None:
    """As the answer to a KeyUpdate: a record out of its order ends the connection."""

    class Tls:
        def decrypt_into(self, view: memoryview) -> tuple[int, bytes]:
            return 0, b"answer"

    near, far = socket.socketpair()
    with near, far:
        transport = Transport(near, Tls(), clock=RealClock(), outgoing_bytes_max=100)  # type: ignore[arg-type]
        transport._queue.append(memoryview(b"queued "))
        transport._queued_bytes = 7
        assert transport.receive_into(memoryview(bytearray(10))) == 0
        far.settimeout(30)
        received = b""
        while len(received) < 13:
            received += far.recv(100)
        assert received == b"queued answer"
        transport.close()
