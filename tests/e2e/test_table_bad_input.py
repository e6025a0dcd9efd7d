"""Bad input at every door of a table: the same faults, with the same codes and texts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import nats
import pytest

import bascule
from bascule.cli.main import main
from bascule.client import SyncClient
from bascule.errors import (
    BasculeError,
    InvalidKey,
    InvalidPattern,
    NotATable,
    PublishRejected,
    UnknownStream,
    WrongVersion,
)
from support.processes import Node, running_node

LIMIT = 1_000
LONG = "k" * 1_025


class Door:
    """A way to a table. Each method returns the code of a refusal and its text."""

    def __init__(self, node: Node, client: SyncClient) -> None:
        self.node = node
        self.client = client

    def get(self, table: str, key: str) -> tuple[Any, str]:
        raise NotImplementedError

    def set(
        self, table: str, key: str, value: bytes = b"v", if_version: int | None = None
    ) -> tuple[Any, str]:
        raise NotImplementedError

    def watch(self, table: str, pattern: str) -> tuple[Any, str]:
        raise NotImplementedError


class PythonDoor(Door):
    def get(self, table: str, key: str) -> tuple[Any, str]:
        return self._refused(lambda: self.client.table(table).get(key))

    def set(
        self, table: str, key: str, value: bytes = b"v", if_version: int | None = None
    ) -> tuple[Any, str]:
        return self._refused(
            lambda: self.client.table(table).set(key, value, if_version=if_version)
        )

    def watch(self, table: str, pattern: str) -> tuple[Any, str]:
        return self._refused(lambda: next(iter(self.client.table(table).watch(pattern))))

    @staticmethod
    def _refused(call: Callable[[], object]) -> tuple[Any, str]:
        with pytest.raises(BasculeError) as raised:
            call()
        return type(raised.value), str(raised.value)


class CommandDoor(Door):
    """`bascule table`; the code is the exit code."""

    capfd: pytest.CaptureFixture[str]

    def get(self, table: str, key: str) -> tuple[Any, str]:
        return self._run("get", table, key)

    def set(
        self, table: str, key: str, value: bytes = b"v", if_version: int | None = None
    ) -> tuple[Any, str]:
        condition = () if if_version is None else ("--if-version", str(if_version))
        return self._run("set", table, key, value.decode(), *condition)

    def watch(self, table: str, pattern: str) -> tuple[Any, str]:
        return self._run("watch", table, pattern)

    def _run(self, *arguments: str) -> tuple[Any, str]:
        self.capfd.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("BASCULE_SERVER", self.node.addresses["http"])
            code = main(["table", *arguments])
        return code, self.capfd.readouterr().err.removeprefix("error: ")


class HttpDoor(Door):
    """The code is the status and the word."""

    def get(self, table: str, key: str) -> tuple[Any, str]:
        return self._ask("GET", f"{table}/keys/{key}")

    def set(
        self, table: str, key: str, value: bytes = b"v", if_version: int | None = None
    ) -> tuple[Any, str]:
        headers = {} if if_version is None else {"if-match": f'"{if_version}"'}
        return self._ask("PUT", f"{table}/keys/{key}", content=value, headers=headers)

    def watch(self, table: str, pattern: str) -> tuple[Any, str]:
        return self._ask("GET", f"{table}/watch", params={"pattern": pattern})

    def _ask(self, method: str, path: str, **more: Any) -> tuple[Any, str]:
        url = f"{self.node.addresses['http']}/v1/tables/{path}"
        answer = httpx.request(method, url, **more)
        error = answer.json()["error"]
        return (answer.status_code, error["code"]), error["message"]


class NatsDoor(Door):
    """What a key-value client sends; the code is `code` and `err_code`."""

    def get(self, table: str, key: str) -> tuple[Any, str]:
        return self._ask(f"STREAM.MSG.GET.KV_{table}", {"last_by_subj": f"$KV.{table}.{key}"})

    def set(
        self, table: str, key: str, value: bytes = b"v", if_version: int | None = None
    ) -> tuple[Any, str]:
        headers = {"Nats-Expected-Last-Subject-Sequence": str((if_version or 0) + 1)}
        return self._request(
            f"$KV.{table}.{key}", value, headers=None if if_version is None else headers
        )

    def watch(self, table: str, pattern: str) -> tuple[Any, str]:
        config = {"deliver_subject": "d", "filter_subject": f"$KV.{table}.{pattern}"}
        return self._ask(f"CONSUMER.CREATE.KV_{table}.c", {"config": config})

    def _ask(self, operation: str, body: dict[str, Any]) -> tuple[Any, str]:
        return self._request(f"$JS.API.{operation}", json.dumps(body).encode())

    def _request(
        self, subject: str, body: bytes, headers: dict[str, str] | None = None
    ) -> tuple[Any, str]:
        async def request() -> Any:
            client = await nats.connect(self.node.addresses["nats"])
            try:
                return await client.request(subject, body, timeout=20, headers=headers)
            finally:
                await client.close()

        error = json.loads(asyncio.run(request()).data)["error"]
        return (error["code"], error["err_code"]), error["description"]


DOORS: dict[str, type[Door]] = {
    "python": PythonDoor,
    "command": CommandDoor,
    "http": HttpDoor,
    "nats": NatsDoor,
}


@dataclass(frozen=True)
class Fault:
    """What is asked, what each door answers, and what the text names: the thing, what was found
    and what is expected."""

    ask: Callable[[Door], tuple[Any, str]]
    codes: dict[str, Any]
    names: tuple[str, ...]


UNKNOWN = {
    "python": UnknownStream, "command": 3, "http": (404, "unknown_stream"), "nats": (404, 10059),
}  # fmt: skip
NO_TABLE = {
    "python": NotATable, "command": 4, "http": (409, "not_a_table"), "nats": (404, 10059),
}  # fmt: skip
NO_KEY = {
    "python": InvalidKey, "command": 2, "http": (400, "invalid_key"), "nats": (400, 20009),
}  # fmt: skip
NO_PATTERN = {
    "python": InvalidPattern, "command": 2, "http": (400, "invalid_pattern"), "nats": (400, 10003),
}  # fmt: skip
TOO_LARGE = {
    "python": PublishRejected, "command": 7, "http": (413, "limit_exceeded"), "nats": (400, 10054),
}  # fmt: skip
STALE = {
    "python": WrongVersion, "command": 7, "http": (412, "wrong_version"), "nats": (400, 10071),
}  # fmt: skip

FAULTS = {
    "unknown table, read": Fault(lambda door: door.get("none", "k"), UNKNOWN, ("'none'",)),
    "unknown table, watched": Fault(lambda door: door.watch("none", ">"), UNKNOWN, ("'none'",)),
    "not compacted, read": Fault(
        lambda door: door.get("plain", "k"), NO_TABLE, ("'plain'", "delete", "compact")
    ),
    "not compacted, watched": Fault(
        lambda door: door.watch("plain", ">"), NO_TABLE, ("'plain'", "delete", "compact")
    ),
    "not opened": Fault(
        lambda door: door.get("closed", "k"), NO_TABLE, ("'closed'", "stream alter --table")
    ),
    "long key, read": Fault(lambda door: door.get("t", LONG), NO_KEY, ("'kkk", "1025", "1024")),
    "long key, set": Fault(lambda door: door.set("t", LONG), NO_KEY, ("'kkk", "1025", "1024")),
    "empty key, read": Fault(lambda door: door.get("t", ""), NO_KEY, ("key ''", "expected", "1")),
    "large value": Fault(
        lambda door: door.set("t", "k", b"x" * 2_000),
        TOO_LARGE,
        ("message of 20", " bytes exceeds the stream's limit of 1000 bytes"),
    ),
    "pattern": Fault(
        lambda door: door.watch("t", "a.>.b"), NO_PATTERN, ("'a.>.b'", "> ", "the last token")
    ),
    "pattern with a part of a token": Fault(
        lambda door: door.watch("t", "a*"), NO_PATTERN, ("'a*'", "a token of its own")
    ),
    "wrong version": Fault(lambda door: door.set("t", "k", if_version=0), STALE, ()),
    "version of no value": Fault(lambda door: door.set("t", "new", if_version=7), STALE, ()),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("bad-input")) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("t", message_bytes_max=LIMIT)
        client.create_stream("plain", "$KV.plain.>", key_from="subject")
        client.create_stream("closed", "$KV.closed.>", cleanup=["compact"], key_from="subject")
        table = client.table("t")
        assert [table.set("k", b"1"), table.set("k", b"2")] == [0, 1]
        yield client


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fault", FAULTS)
def test_bad_input_has_the_same_code_at_every_door(
    node: Node,
    client: SyncClient,
    capfd: pytest.CaptureFixture[str],
    door: str,
    fault: str,
) -> None:
    asked = DOORS[door](node, client)
    if isinstance(asked, CommandDoor):
        asked.capfd = capfd
    code, text = FAULTS[fault].ask(asked)
    assert code == FAULTS[fault].codes[door], text
    for each in FAULTS[fault].names:
        assert each in text
    found = client.table("t", consistency="linearizable").get("k")
    assert found is not None
    assert found.value == b"2"


def test_a_wrong_version_is_named_with_what_was_found(
    node: Node, client: SyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    """A NATS client gets the sequence, the version and 1, as JetStream's text has it."""
    for name, kind in DOORS.items():
        door = kind(node, client)
        if isinstance(door, CommandDoor):
            door.capfd = capfd
        _, text = door.set("t", "k", if_version=0)
        _, of_none = door.set("t", "new", if_version=7)
        if name == "nats":
            assert (text, of_none) == ("wrong last sequence: 2", "wrong last sequence: 0")
        else:
            assert "key 'k' of table 't': expected version 0, found version 1" in text
            assert "key 'new' of table 't': expected version 7, found none" in of_none


def test_a_large_value_has_one_number_at_every_door(
    node: Node, client: SyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    """The `err_code` of a message that is too large."""
    with pytest.raises(PublishRejected) as refused:
        client.table("t").set("k", b"x" * 2_000)
    assert refused.value.err_code == 10054
    url = f"{node.addresses['http']}/v1/tables/t/keys/k"
    answer = httpx.put(url, content=b"x" * 2_000).json()["error"]
    assert (answer["err_code"], "of 2000 bytes" in answer["message"]) == (10054, True)
    door = CommandDoor(node, client)
    door.capfd = capfd
    assert "err_code 10054" in door.set("t", "k", b"x" * 2_000)[1]
