"""Conditional writes and reads of tables at every door of real nodes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator

import httpx
import pytest

import bascule
from bascule.cli.main import main
from bascule.client import SyncClient
from bascule.errors import (
    ConfigError,
    InvalidPattern,
    NotANumber,
    PublishRejected,
    WrongVersion,
)
from support.clusters import RunningCluster
from support.processes import Node, running_node

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("doors")) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[SyncClient]:
    with bascule.connect_sync(node.addresses["http"]) as client:
        yield client


def run(node: Node, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `bascule table ...`; return its exit code and what it printed."""
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("BASCULE_SERVER", node.addresses["http"])
        code = main(["table", *arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def refused(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_a_write_compares_the_version(client: SyncClient) -> None:
    client.create_table("compared")
    table = client.table("compared")
    first = table.set("k", b"1", if_absent=True)
    with pytest.raises(WrongVersion) as raised:
        table.set("k", b"2", if_absent=True)
    assert (raised.value.expected, raised.value.found) == (None, first)
    second = table.set("k", b"2", if_version=first)
    with pytest.raises(WrongVersion, match=f"expected version {first}, found version {second}"):
        table.set("k", b"3", if_version=first)
    with pytest.raises(WrongVersion) as raised:
        table.remove("other", if_version=7)
    assert (raised.value.expected, raised.value.found) == (7, None)
    with pytest.raises(WrongVersion):
        table.remove("k", if_version=first)
    removed = table.remove("k", if_version=second)
    assert table.get("k") is None
    with pytest.raises(WrongVersion) as raised:
        table.set("k", b"3", if_version=second)
    assert raised.value.found == removed
    assert table.set("k", b"again", if_absent=True) > removed
    with pytest.raises(ConfigError, match="give one of `if_version` and `if_absent`"):
        table.set("k", b"", if_version=1, if_absent=True)
    assert table.get("k").value == b"again"  # type: ignore[union-attr]


def test_numbers_are_incremented_once_each(node: Node, client: SyncClient) -> None:
    client.create_table("counted")
    table = client.table("counted")
    assert table.increment("n")[1] == 1
    version, number = table.increment("n", -3)
    assert number == -2
    assert table.get("n")[1:2] == (version,)  # type: ignore[index]
    table.set("text", b"one")
    with pytest.raises(NotANumber, match="its value is not a whole number"):
        table.increment("text")

    async def count() -> None:
        async with bascule.connect(node.addresses["http"]) as other:
            own = [other.table("counted") for _ in range(4)]
            await asyncio.gather(*(each.increment("many") for each in own * 10))

    asyncio.run(count())
    # This client has not written what it reads: as a session it may see an older value.
    newest = client.table("counted", consistency="linearizable")
    assert newest.get("many").value == b"40"  # type: ignore[union-attr]


def test_many_keys_are_read_at_one_position(client: SyncClient) -> None:
    client.create_table("several")
    table = client.table("several")
    for key in (b"a.1", b"a.2", b"b.1", b"b.x.1", b"\xff"):
        table.set(key, key * 2, content_type="text/x" if key == b"a.1" else None)
    last = table.remove("a.2")
    found = table.get_many(["a.1", "a.2", b"\xff", "a.1"])
    assert found.position == last + 1
    assert list(found.entries) == [b"a.1", b"\xff"]
    assert found.entries[b"\xff"].value == b"\xff\xff"
    assert found.entries[b"a.1"].content_type == "text/x"
    assert found.entries[b"a.1"] == table.get("a.1")
    assert [entry.key for entry in table.range("a.2", b"\xff")] == [b"b.1", b"b.x.1"]
    assert [entry.key for entry in table.range(limit=2)] == [b"a.1", b"b.1"]
    assert [entry.value for entry in table.entries("b.")] == [b"b.1" * 2, b"b.x.1" * 2]
    assert [key for key, _ in table.keys("*.1")] == [b"a.1", b"b.1"]
    assert [key for key, _ in table.keys("b.>")] == [b"b.1", b"b.x.1"]
    assert [entry.key for entry in table.entries("*.*.*")] == [b"b.x.1"]
    assert list(table.keys(prefix="*")) == []
    with pytest.raises(InvalidPattern):
        list(table.keys("a.>.b"))


def test_patterns_of_many_keys_come_in_pages(node: Node, client: SyncClient) -> None:
    client.create_table("patterns")
    table = client.table("patterns")
    client.publish_many(
        (f"$KV.patterns.user.{n:05}.{'name' if n % 9_000 == 0 else 'mail'}", b"x")
        for n in range(25_000)
    )
    table.set("last", b"")
    found = [key.decode() for key, _ in table.keys("user.*.name")]
    assert found == ["user.00000.name", "user.09000.name", "user.18000.name"]
    url = f"{node.addresses['http']}/v1/tables/patterns/keys"
    page = httpx.get(url, params={"pattern": "user.*.none"}).json()
    assert (page["keys"], page["is_last"]) == ([], False)
    assert page["next_after"].startswith("user.")


def test_values_are_written_over_http(node: Node, client: SyncClient) -> None:
    client.create_table("web")
    url = f"{node.addresses['http']}/v1/tables/web/keys"
    made = httpx.put(
        f"{url}/a%20b/%ff", content=b"\x00", headers={"if-none-match": "*", "content-type": "x/y"}
    )
    assert (made.status_code, made.headers["etag"]) == (201, '"0"')
    assert made.json() == {"version": 0}
    again = httpx.put(f"{url}/a%20b/%ff", content=b"", headers={"if-none-match": "*"})
    assert refused(again) == (412, "wrong_version")
    assert again.json()["error"]["found"] == 0
    found = httpx.get(f"{url}/a%20b/%ff", params={"consistency": "linearizable"})
    assert (found.content, found.headers["content-type"]) == (b"\x00", "x/y")
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in found.headers["content-security-policy"]
    changed = httpx.put(f"{url}/a%20b/%ff", content=b"2", headers={"if-match": '"0"'})
    assert (changed.status_code, changed.json()) == (200, {"version": 1})
    form = {"content-type": "application/x-www-form-urlencoded"}
    plain = httpx.put(f"{url}/plain", content=b"x", headers=form).headers["etag"]
    found = httpx.get(f"{url}/plain", params={"consistency": "linearizable"})
    assert found.headers["etag"] == plain == '"2"'
    assert found.headers["content-type"] == "application/octet-stream"
    stale = httpx.delete(f"{url}/a%20b/%ff", headers={"if-match": '"0"'})
    assert refused(stale) == (412, "wrong_version")
    assert (stale.json()["error"]["expected"], stale.json()["error"]["found"]) == (0, 1)
    gone = httpx.delete(f"{url}/a%20b/%ff", headers={"if-match": '"1"'})
    assert (gone.status_code, gone.json()) == (200, {"version": 3})
    missing = httpx.get(f"{url}/a%20b/%ff", params={"at_least": 4})
    assert refused(missing) == (404, "unknown_key")
    assert missing.headers["bascule-position"] == "4"
    once = [
        httpx.put(f"{url}/once", content=b"1", headers={"nats-msg-id": "m", "if-none-match": "*"})
        for _ in range(2)
    ]
    assert [each.json() for each in once] == [{"version": 4}, {"version": 4}]
    for _ in range(2):
        counted = httpx.post(f"{url}/n/increment", params={"by": "-2"}, headers=JSON)
    assert counted.json() == {"version": 6, "value": "-4"}
    assert counted.headers["etag"] == '"6"'
    with_id = {**JSON, "nats-msg-id": "count-once"}
    for _ in range(2):
        counted = httpx.post(f"{url}/n/increment", headers=with_id)
        assert (counted.json(), counted.headers["etag"]) == ({"version": 7, "value": "-3"}, '"7"')
    httpx.put(f"{url}/n", content=b"8")
    counted = httpx.post(f"{url}/n/increment", headers=with_id)
    assert counted.json() == {"version": 7, "value": None}


MATCHES = [
    # tags of a value of version V, what holds of it, and whether it does of a key without one
    ("*", True, False),
    ('"V"', True, False),
    ('W/"V"', False, False),
    ('"V1", "V"', True, False),
    (',"abc" ,W/"7",, "V",', True, False),
    ('"V1"', False, False),
    ('"abc"', False, False),
    ('"0V"', False, False),
]
NONE_MATCHES = [
    ("*", False, True),
    ('"V"', False, True),
    ('W/"V"', False, True),
    ('"V1",W/"V"', False, True),
    ('"V1", "abc"', True, True),
]


@pytest.mark.parametrize(
    ("header", "tags", "with_value", "without"),
    [
        *(("if-match", *case) for case in MATCHES),
        *(("if-none-match", *case) for case in NONE_MATCHES),
    ],
)
def test_conditions_over_http_are_those_of_rfc_9110(
    node: Node, client: SyncClient, header: str, tags: str, with_value: bool, without: bool
) -> None:
    client.create_table("tags")
    table = client.table("tags", consistency="linearizable")
    url = f"{node.addresses['http']}/v1/tables/tags/keys/k"

    def ask(method: str, key: str = "") -> httpx.Response:
        present = table.get("k")
        shown = "9" if present is None else str(present.version)
        headers = {header: tags.replace("V", shown)}
        linearizable = {"consistency": "linearizable"}
        if method == "GET":
            return httpx.get(url + key, headers=headers, params=linearizable)
        return httpx.request(method, url + key, headers=headers)

    table.set("k", b"1")
    found = ask("GET")
    assert found.status_code == (200 if with_value else 412 if header == "if-match" else 304)
    assert found.content == b"1" if found.status_code == 200 else found.content != b"1"
    for method in ("PUT", "DELETE"):
        table.set("k", b"1")
        done = ask(method)
        assert done.status_code == (200 if with_value else 412), done.text
        if not with_value:
            assert refused(done) == (412, "wrong_version")
            assert done.json()["error"]["found"] == table.get("k").version  # type: ignore[union-attr]
    # A condition is for what would be there: there is nothing to get without a value.
    table.remove("k")
    assert refused(ask("GET")) == (404, "unknown_key")
    assert ask("DELETE").status_code == (200 if without else 412)
    put = ask("PUT")
    assert put.status_code == (201 if without else 412), put.text
    assert (table.get("k") is not None) == without


def test_both_conditions_over_http_have_to_hold(node: Node, client: SyncClient) -> None:
    client.create_table("two")
    url = f"{node.addresses['http']}/v1/tables/two/keys/k"
    version = client.table("two").set("k", b"1")
    for match, none_match, status in [
        ("*", f'"{version}"', 412),
        ("*", '"77"', 200),
        ('"77"', '"78"', 412),
        ("*", "*", 412),
    ]:
        headers = {"if-match": match, "if-none-match": none_match}
        assert httpx.put(url, content=b"2", headers=headers).status_code == status, headers
    found = httpx.get(url, headers={"if-match": '"77"', "if-none-match": f'"{version + 1}"'})
    assert found.status_code == 412
    several = httpx.put(url, content=b"3", headers=[("if-match", '"7"'), ("if-match", '"1"')])
    assert (several.status_code, several.json()) == (200, {"version": 2})


def test_a_repetition_under_several_tags_is_stored_once(node: Node, client: SyncClient) -> None:
    client.create_table("repeated")
    url = f"{node.addresses['http']}/v1/tables/repeated/keys/k"
    client.table("repeated").set("k", b"1")
    headers = {"if-match": '"0", "77"', "nats-msg-id": "once"}
    done = [httpx.put(url, content=b"2", headers=headers) for _ in range(2)]
    assert [each.json() for each in done] == [{"version": 1}, {"version": 1}]
    other = httpx.put(url, content=b"2", headers={**headers, "nats-msg-id": "other"})
    assert refused(other) == (412, "wrong_version")
    assert "expected version 0 or 77, found version 1" in other.json()["error"]["message"]
    assert client.table("repeated").get("k").version == 1  # type: ignore[union-attr]


def test_what_http_refuses(node: Node, client: SyncClient) -> None:
    client.create_table("strict", message_bytes_max=1_000)
    client.table("strict").set("text", b"x")
    url = f"{node.addresses['http']}/v1/tables/strict/keys"
    put, post = httpx.put, httpx.post
    assert refused(put(f"{url}/k", content=bytes(1_001))) == (413, "limit_exceeded")
    assert refused(put(f"{url}/k", content=bytes(990))) == (413, "limit_exceeded")
    assert refused(put(f"{url}/{'k' * 1025}", content=b"")) == (400, "invalid_key")
    for headers in (
        {"if-match": "7"},
        {"if-match": '*, "1"'},
        {"if-none-match": '"1'},
        {"if-match": '"1" "2"'},
        {"nats-msg-id": "a b"},
    ):
        answer = put(f"{url}/k", content=b"", headers=headers)
        assert refused(answer) == (400, "malformed_request"), headers
    long = {"content-type": "x" * 256}
    assert refused(put(f"{url}/k", content=b"", headers=long)) == (400, "invalid_config")
    assert refused(post(f"{url}/text/increment", headers=JSON)) == (409, "not_a_number")
    assert refused(post(f"{url}/text/increment")) == (415, "unsupported_media_type")
    answer = post(f"{url}/n/increment", params={"by": "1.5"}, headers=JSON)
    assert refused(answer) == (400, "malformed_request")
    answer = post(f"{url}/n/increment", headers={**JSON, "nats-ttl": "5"})
    assert refused(answer) == (400, "malformed_request")
    assert "that of the table" in answer.text
    answer = post(f"{url}/n/increment", headers={**JSON, "if-match": "*"})
    assert refused(answer) == (400, "malformed_request")
    for query, code in [
        ("keys?pattern=a*", "invalid_pattern"),
        ("entries?pattern=>.a", "invalid_pattern"),
        ("entries?consistency=some", "malformed_request"),
    ]:
        answer = httpx.get(f"{node.addresses['http']}/v1/tables/strict/{query}")
        assert refused(answer) == (400, code), query
    client.pause_stream("strict")
    paused = put(f"{url}/k", content=b"")
    assert refused(paused) == (503, "paused")
    assert paused.json()["error"]["err_code"] == 20001
    with pytest.raises(PublishRejected, match="paused"):
        client.table("strict").set("k", b"")
    client.resume_stream("strict")
    client.alter_stream("strict", read_only=True)
    assert refused(put(f"{url}/k", content=b"")) == (403, "read_only")


def test_several_keys_over_http(node: Node, client: SyncClient) -> None:
    client.create_table("both")
    table = client.table("both")
    table.set("a", b"text")
    last = table.set(b"\xff", b"\xfe")
    url = f"{node.addresses['http']}/v1/tables/both"
    body = {"keys": ["none", "a"], "keys_base64": [base64.b64encode(b"\xff").decode()]}
    found = httpx.post(f"{url}/get", json=body, params={"at_least": last + 1}).json()
    assert found["position"] == last + 1
    assert [(each.get("key"), each.get("value")) for each in found["entries"]] == [
        ("a", "text"),
        (None, None),
    ]
    assert base64.b64decode(found["entries"][1]["value_base64"]) == b"\xfe"
    page = httpx.get(f"{url}/entries", params={"first": "a", "end": "b", "limit": 1}).json()
    assert [each["key"] for each in page["entries"]] == ["a"]
    assert refused(httpx.post(f"{url}/get", json={"keys": [""]})) == (400, "invalid_key")
    malformed = {"keys_base64": ["%"]}
    assert refused(httpx.post(f"{url}/get", json=malformed)) == (400, "malformed_request")


def test_the_command_line(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    run(node, capfd, "create", "cli")
    assert run(node, capfd, "set", "cli", "a.1", "x", "--if-absent")[1] == "version 0\n"
    code, _, said = run(node, capfd, "set", "cli", "a.1", "y", "--if-absent")
    assert code == 7
    assert "expected no value, found version 0" in said
    assert "bascule table get --json" in said
    options = ("--if-version", "0", "--content-type", "text/plain")
    assert run(node, capfd, "set", "cli", "a.1", "y", *options)[1] == "version 1\n"
    code, _, said = run(node, capfd, "set", "cli", "a.1", "y", "--if-version", "1", "--if-absent")
    assert (code, "give one of" in said) == (2, True)
    assert json.loads(run(node, capfd, "get", "cli", "a.1", "--json")[1])["content_type"] == (
        "text/plain"
    )
    assert run(node, capfd, "incr", "cli", "n")[1] == "1\n"
    assert json.loads(run(node, capfd, "incr", "cli", "n", "--by", "5", "--json")[1])["value"] == (
        "6"
    )
    code, _, said = run(node, capfd, "incr", "cli", "a.1")
    assert (code, "cannot be incremented" in said) == (7, True)
    assert run(node, capfd, "keys", "cli", "*.1")[1] == "a.1\n"
    code, _, said = run(node, capfd, "keys", "cli", ">.1")
    assert code == 2
    assert "> at the end" in said
    lines = run(node, capfd, "range", "cli", "b")[1].splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["n"]
    code, printed, said = run(node, capfd, "get", "cli", "n", "none", "a.1", "--json")
    assert [json.loads(line)["key"] for line in printed.splitlines()] == ["n", "a.1"]
    assert (code, said) == (1, "table cli has no key 'none'\n")
    assert run(node, capfd, "get", "cli", "n", "a.1")[0] == 2
    assert run(node, capfd, "get", "cli", "n", "--consistency", "linearizable")[:2] == (0, "6")
    assert run(node, capfd, "rm", "cli", "n", "--if-version", "0")[0] == 7
    assert run(node, capfd, "rm", "cli", "n", "--if-version", "3")[0] == 0


def test_every_node_writes_and_a_failover_loses_no_increment(cluster: RunningCluster) -> None:
    """The table has two replicas of three nodes, so one node neither leads nor follows."""
    with bascule.connect_sync(cluster.nodes[1].addresses["http"]) as client:
        client.create_table("t", replicas=2, min_isr=1)
    cluster.wait_in_sync("t")
    urls = {
        number: f"{node.addresses['http']}/v1/tables/t/keys"
        for number, node in cluster.nodes.items()
    }
    for number, url in urls.items():
        made = httpx.put(f"{url}/{number}", content=b"x", headers={"if-none-match": "*"})
        assert made.status_code == 201, made.text
        again = httpx.put(f"{url}/{number}", content=b"x", headers={"if-none-match": "*"})
        assert (again.status_code, again.json()["error"]["found"]) == (412, made.json()["version"])
        for other in urls.values():
            found = httpx.get(f"{other}/{number}", params={"consistency": "linearizable"})
            assert found.headers["etag"] == made.headers["etag"]
    leader = cluster.leader("t")
    done, uncertain = 0, 0

    async def count(number: int, http: httpx.AsyncClient) -> None:
        nonlocal done, uncertain
        for _ in range(30):
            answer = await http.post(f"{urls[number]}/n/increment", headers=JSON)
            if answer.status_code == 200:
                done += 1
            else:
                assert refused(answer)[1] == "indeterminate", answer.text
                uncertain += 1

    async def count_all() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            left = [number for number in urls if number != leader]
            tasks = [asyncio.create_task(count(number, http)) for number in left]
            await asyncio.sleep(0.3)
            cluster.nodes[leader].stop()
            await asyncio.gather(*tasks)

    asyncio.run(count_all())
    assert done + uncertain == 60
    url = urls[next(number for number in urls if number != leader)]
    final = httpx.get(f"{url}/n", params={"consistency": "linearizable"}, timeout=30)
    assert done <= int(final.text) <= done + uncertain
