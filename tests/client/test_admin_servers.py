"""Which of several servers a request goes to, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from bascule.client.admin import servers as servers_module
from bascule.client.admin.api import Admin
from bascule.errors import Broken, RemoteProtocolError, RequestFailed

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nback"
CUT = b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n"
HANGS = b""


class Servers:
    """Listeners with an answer each. One without an answer hangs: its connections stay open."""

    def __init__(self, *answers: bytes) -> None:
        self.asked: list[tuple[int, str]] = []
        self.answers = [*answers]
        self._held: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Servers:
        self._servers = [
            await asyncio.start_server(self._answer(number), "127.0.0.1", 0)
            for number in range(len(self.answers))
        ]
        ports = [each.sockets[0].getsockname()[1] for each in self._servers]
        self.addresses = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._held:
            writer.close()
        for server in self._servers:
            server.close()
            await server.wait_closed()

    def _answer(self, number: int):  # type: ignore[no-untyped-def]
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append((number, " ".join(head.decode().split()[:2])))
            if self.answers[number] == HANGS:
                self._held.add(writer)
                return
            writer.write(self.answers[number])
            writer.close()
            await writer.wait_closed()

        return answer


def run(
    scene: Callable[[Servers, Admin], Awaitable[None]], *answers: bytes, timeout: float = 10
) -> list[tuple[int, str]]:
    """What was asked: (number of the server, method and path)."""

    async def test() -> list[tuple[int, str]]:
        async with Servers(*answers) as servers:
            admin = Admin(servers.addresses, timeout=timeout)
            try:
                await scene(servers, admin)
            finally:
                await admin.close()
            return servers.asked

    return asyncio.run(test())


def answer(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


CONFIRMED = answer(200, '{"streams": [], "confirmed": true}')
NOT_IN_FORCE = answer(200, '{"streams": [], "confirmed": false}')
CUT_OFF = answer(503, '{"error": {"code": "not_leader", "message": "no controller is known"}}')
EARLIER = answer(400, '{"error": {"code": "malformed_request", "message": "unknown parameter"}}')


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ((CONFIRMED, CUT_OFF), 1),
        ((CUT_OFF, CONFIRMED), 2),
        ((EARLIER, CONFIRMED), 2),
        ((NOT_IN_FORCE, CUT_OFF, CONFIRMED), 3),
    ],
)
def test_streams_are_listed_by_the_first_node_to_which_they_are_confirmed(
    answers: tuple[bytes, ...], asked: int
) -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        assert await admin.confirmed_streams() == []

    assert [number for number, _ in run(scene, *answers)] == list(range(asked))


@pytest.mark.parametrize(
    "answers", [(EARLIER,), (NOT_IN_FORCE,), (EARLIER, CUT_OFF), (CUT_OFF, EARLIER)]
)
def test_earlier_releases_confirm_no_streams(answers: tuple[bytes, ...]) -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        assert await admin.confirmed_streams() is None

    assert len(run(scene, *answers)) == len(answers)


def test_nodes_that_are_cut_off_say_why_they_confirm_no_streams() -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        with pytest.raises(RequestFailed, match="no controller is known"):
            await admin.confirmed_streams()

    assert len(run(scene, CUT_OFF, CUT_OFF)) == 2


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "UNANSWERED_S", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("first", [CUT, HANGS])
def test_a_read_goes_on_at_the_next_server(first: bytes) -> None:
    """Whether the first one dies within its answer, or hangs; it is not asked again."""

    async def scene(_: Servers, admin: Admin) -> None:
        assert await admin.metrics() == "back"
        assert await admin.metrics() == "back"

    metrics = "GET /metrics"
    assert run(scene, first, WHOLE) == [(0, metrics), (1, metrics), (1, metrics)]


@pytest.mark.parametrize("what", ["a read", "a write"])
def test_what_http_does_not_allow_is_no_node_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nothing is sent, no other server is asked, and the next request goes to the same one."""
    asked: list[str] = []

    async def request(http: httpx.AsyncClient, method: str, url: str, **_: object) -> None:
        asked.append(url)
        raise httpx.LocalProtocolError("Illegal header value b'a\\n'")

    async def test() -> None:
        admin = Admin("http://a,http://b", timeout=10)
        admin._servers._heard_at = asyncio.get_running_loop().time()
        with pytest.raises(RequestFailed, match="Illegal header value") as refused:
            if what == "a read":
                await admin.metrics()
            else:
                await admin.write_key("t", b"k", b"v", if_version=0, message_id="1")
        assert refused.value.code == "invalid_request"
        assert (len(asked), admin.asked_server) == (1, "http://a")
        await admin.close()

    monkeypatch.setattr(httpx.AsyncClient, "request", request)
    asyncio.run(test())


@pytest.mark.usefixtures("impatient")
def test_reads_that_find_a_node_hanging_together_turn_to_the_same_one() -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        assert await asyncio.gather(*(admin.metrics() for _ in range(5))) == ["back"] * 5

    asked = run(scene, HANGS, WHOLE, CUT)
    assert sorted(number for number, _ in asked if number) == [1] * 6, (
        "one asked whether it is there"
    )
    assert [number for number, _ in asked].count(0) == 5


@pytest.mark.usefixtures("impatient")
def test_the_last_server_has_all_the_time() -> None:
    """Also if it has been asked before: the only one that is slow is waited for."""

    async def scene(servers: Servers, admin: Admin) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Broken, match=r"did not answer GET /metrics in time") as error:
            await admin.metrics()
        assert servers.addresses.split(",")[1] in str(error.value)
        assert loop.time() - began >= 1

    assert [number for number, _ in run(scene, HANGS, HANGS, timeout=1)] == [0, 1]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("first", [CUT, HANGS])
def test_a_change_goes_to_a_node_that_answers(first: bytes) -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        with pytest.raises(RemoteProtocolError, match="no JSON; is it a Bascule node"):
            await admin.pause_stream("orders")

    alive, pause = "GET /healthz", "POST /v1/streams/orders/pause"
    assert run(scene, first, WHOLE, CUT) == [(0, alive), (1, alive), (1, pause)]
    assert run(scene, first, WHOLE) == [(0, alive), (1, alive), (1, pause)]


@pytest.mark.usefixtures("impatient")
def test_of_several_that_hang_none_is_waited_for_in_turn() -> None:
    async def scene(servers: Servers, admin: Admin) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RemoteProtocolError, match="no JSON"):
            await admin.pause_stream("orders")
        assert loop.time() - began < 3

    servers_module.UNANSWERED_S = 3.0
    asked = run(scene, HANGS, HANGS, HANGS, WHOLE)
    assert asked[-1] == (3, "POST /v1/streams/orders/pause")


@pytest.mark.usefixtures("impatient")
def test_a_read_that_is_a_post_goes_on_at_the_next_server() -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        await admin.metrics()
        _.answers[0] = HANGS
        with pytest.raises(RemoteProtocolError, match="no JSON"):
            await admin.table_values("t", [b"k"], consistency={})

    read = "POST /v1/tables/t/get"
    assert run(scene, WHOLE, WHOLE) == [(0, "GET /metrics"), (0, read), (1, read)]


def test_requests_to_a_node_that_hangs_do_not_keep_others_waiting() -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        pending = [asyncio.create_task(admin.delete_stream(f"s{n}")) for n in range(120)]
        await asyncio.wait(pending, timeout=0.5)
        admin.turn_from(admin.asked_server)
        async with asyncio.timeout(5):
            assert await admin.metrics() == "back"
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    asked = run(scene, HANGS, WHOLE, timeout=20)
    assert asked[-1] == (1, "GET /metrics")


def test_who_watches_is_not_turned_back_to_the_node_that_hangs() -> None:
    """Another request may have turned from it already; of two servers the next is the first."""

    async def scene(_: Servers, admin: Admin) -> None:
        asked = admin.asked_server
        admin.turn_from(asked)
        admin.turn_from(asked)
        assert admin.asked_server != asked

    assert run(scene, HANGS, WHOLE) == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("broken", "why"), [(CUT, "no Bascule node answers"), (HANGS, "did not answer DELETE")]
)
def test_a_change_is_not_sent_again_after_it_was_sent(broken: bytes, why: str) -> None:
    """The next request goes to another node."""

    async def scene(servers: Servers, admin: Admin) -> None:
        await admin.metrics()
        servers.answers[0] = broken
        with pytest.raises(Broken, match=why):
            await admin.delete_stream("orders")
        await admin.metrics()

    assert run(scene, WHOLE, WHOLE, timeout=0.5) == [
        (0, "GET /metrics"), (0, "DELETE /v1/streams/orders"), (1, "GET /metrics"),
    ]  # fmt: skip


def test_one_server_is_asked_nothing_but_what_is_to_be_asked() -> None:
    async def scene(_: Servers, admin: Admin) -> None:
        with pytest.raises(Broken):
            await admin.delete_stream("orders")

    assert run(scene, CUT) == [(0, "DELETE /v1/streams/orders")]
