"""Watching tables of real nodes: the Python client, the command line, and HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

import bascule
from bascule.errors import Broken, ConfigError, InvalidKey, InvalidPattern, NotATable, UnknownStream
from bascule.table_results import TableChange
from support.clusters import RunningCluster, running_cluster
from support.processes import BIN, Node, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("watches")) as node:
        yield node


def test_changes_are_seen_as_they_come(node: Node) -> None:
    async def test() -> None:
        async with bascule.connect(node.addresses["http"]) as client:
            await client.create_table("users")
            table = client.table("users")
            await table.set("user.1", b"old")
            await table.set("other", b"x")
            current: list[int] = []
            changes = table.watch("user.*", start="state", on_current=current.append)
            first = await anext(changes)
            assert (first.key, first.value) == (b"user.1", b"old")
            coming = asyncio.ensure_future(anext(changes))
            while not current:
                await asyncio.sleep(0.01)
            await table.set("user.2", b"\xff")
            assert (await coming).value == b"\xff"
            version = await table.remove("user.1")
            removed = await anext(changes)
            assert (removed.key, removed.version, removed.value) == (b"user.1", version, None)
            coming = asyncio.ensure_future(anext(changes))
            await table.set("user.4", b"{}", content_type="application/json")
            assert (await coming).content_type == "application/json"
            assert current == [2]
            await changes.aclose()

            changes = table.watch("user.>")
            coming = asyncio.ensure_future(anext(changes))
            for _ in range(200):
                await table.set("user.3", b"now")
                if coming.done():
                    break
                await asyncio.sleep(0.02)
            assert (await coming).key == b"user.3"
            await changes.aclose()

    asyncio.run(test())


def test_one_key_that_is_as_a_pattern_is_watched(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("stars")
        table = client.table("stars")
        for key in ("*", ">", "a*b", "a.*", "a.b", "z"):
            table.set(key, b"v")
        for key in ("*", ">", "a*b", "a.*", "a.b"):
            with closing(table.watch(key=key, start="state")) as changes:
                assert next(changes).key == key.encode()
                table.set("z", b"2")
                table.set(key, b"2")
                assert next(changes).key == key.encode()
        with pytest.raises(ConfigError, match="one of a pattern and `key`"):
            table.watch("a.*", key="a.*")
        with pytest.raises(InvalidKey):
            table.watch(key="")
    url = f"{node.addresses['http']}/v1/tables/stars/watch"
    both = httpx.get(url, params={"pattern": "a", "key": "b"})
    assert (both.status_code, both.json()["error"]["field"]) == (400, "key")
    command = [str(BIN / "bascule"), "table", "watch", "stars", "--key", "*", "--state", "--json"]
    command += ["--server", node.addresses["http"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["key"] == "*"
        process.kill()


def test_what_cannot_be_watched(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("refusing")
        client.create_stream("plain", "plain.>")
        with pytest.raises(InvalidPattern):
            next(client.table("refusing").watch("a*"))
        with pytest.raises(UnknownStream):
            next(client.table("none").watch())
        with pytest.raises(NotATable):
            next(client.table("plain").watch())
        with pytest.raises(ConfigError, match="start"):
            next(client.table("refusing").watch(start="then"))


def test_the_events_over_http(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("events")
        table = client.table("events")
        versions = [table.set("a.b", b"1"), table.set("c", b"2"), table.remove("c")]
        url = f"{node.addresses['http']}/v1/tables/events/watch"

        def events(count: int, start: str, last: str = "") -> list[dict[str, str]]:
            found: list[dict[str, str]] = [{}]
            headers = {"last-event-id": last} if last else {}
            with httpx.stream("GET", url, params={"start": start}, headers=headers) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                for line in response.iter_lines():
                    if line:
                        name, _, value = line.partition(": ")
                        found[-1][name] = value
                    elif len(found) == count:
                        return found
                    else:
                        found.append({})
            raise AssertionError("the stream of events ended")

        shown = events(3, "state")
        assert [each["event"] for each in shown] == ["restart", "set", "position"]
        assert shown[0]["id"] == "state"  # whoever loses the connection here is shown all again
        assert events(3, "now", last="state") == shown
        assert json.loads(shown[1]["data"])["value"] == "1"
        mark = shown[2]["id"].split("-")[2]
        later = events(2, "now", last=f"{versions[0] + 1}-0-{mark}")
        assert [each["event"] for each in later] == ["remove", "position"]
        assert json.loads(later[0]["data"])["version"] == versions[2]
        assert later[0]["id"] == f"{versions[2] + 1}-0-{mark}"
        assert events(2, str(versions[0] + 1)) == later
        # Ids of no table, of another one, and of records that were never there.
        for last in (f"{versions[0] + 1}-0", f"1-0-{'0' * 32}", f"77-0-{mark}"):
            assert events(3, "now", last=last) == shown
        assert events(3, "77") == shown
        for bad in ("-1-0", "1-", "then", "9" * 19, f"1-0-{mark}0", "1_0", "\u0661"):
            assert httpx.get(url, params={"start": bad}).status_code == 400


@pytest.mark.parametrize("written", [0, 3, 9])
def test_a_position_of_a_deleted_table_is_none_of_the_new_one(node: Node, written: int) -> None:
    """Whether the new log is shorter than the position, or longer: offsets begin again."""
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("anew")
        table = client.table("anew")
        for number in range(6):
            table.set(f"old.{number}", b"1")
        with closing(table.watch(start=0)) as found:
            position = [next(found) for _ in range(6)][-1].position
        client.delete_stream("anew")
        client.create_table("anew")
        table = client.table("anew")
        for number in range(written):
            table.set(f"new.{number}", b"2")
        table.set("newest", b"2")
        restarts: list[None] = []
        found = table.watch(start=position, on_restart=lambda: restarts.append(None))
        with closing(found):
            seen = [next(found).key for _ in range(written + 1)]
        assert seen == [*(b"new.%d" % each for each in range(written)), b"newest"]
        assert restarts == [None]
        client.delete_stream("anew")


def test_a_watcher_goes_on_at_a_position(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("going")
        table = client.table("going")
        table.set("a", b"1")
        table.set("b", b"2")
        table.remove("a")
        with closing(table.watch(start=1)) as found:
            second, third = next(found), next(found)
        assert [(second.key, second.version), (third.key, third.version)] == [(b"b", 1), (b"a", 2)]
        with closing(table.watch(start=second.position)) as found:
            assert next(found)[:4] == third[:4]
        with pytest.raises(ConfigError, match="start"):
            next(table.watch(start=-1))
        command = [str(BIN / "bascule"), "table", "watch", "going", "--json", "--server"]
        for start in (second.position, "2"):
            watching = subprocess.Popen(
                [*command, node.addresses["http"], "--from", start],
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert watching.stdout is not None
                shown = json.loads(watching.stdout.readline())
                assert (shown["version"], shown["position"]) == (2, third.position)
            finally:
                watching.terminate()
                watching.communicate(timeout=20)


def test_the_command_line_shows_changes(node: Node) -> None:
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.create_table("shown")
        table = client.table("shown")
        table.set("a", b"1")
        command = [str(BIN / "bascule"), "table", "watch", "shown", "--state", "--json"]
        watching = subprocess.Popen(
            [*command, "--server", node.addresses["http"]], stdout=subprocess.PIPE, text=True
        )
        try:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["value"] == "1"
            table.remove("a")
            assert json.loads(watching.stdout.readline())["removed"] is True
        finally:
            watching.terminate()
            watching.communicate(timeout=20)


def test_a_node_stops_at_once_although_it_is_watched(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        with bascule.connect_sync(node.addresses["http"]) as client:
            client.create_table("t")
            client.table("t").set("a", b"1")
        url = f"{node.addresses['http']}/v1/tables/t/watch"
        began = threading.Event()

        def watch() -> None:
            with httpx.stream("GET", url, timeout=60) as response:
                began.set()
                for _ in response.iter_lines():
                    pass

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        assert began.wait(20)
        before = time.monotonic()
        node.stop()
        assert time.monotonic() - before < 4
        thread.join(20)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("watched-cluster")) as cluster:
        yield cluster


def test_a_node_without_a_replica_says_who_has_one(cluster: RunningCluster) -> None:
    async def test() -> None:
        urls = [node.addresses["http"] for node in cluster.nodes.values()]
        async with bascule.connect(urls[0]) as client:
            await client.create_table("alone", replicas=1)
            await client.table("alone").set("a", b"1")
        for url in urls:
            async with bascule.connect(url) as client:
                changes = client.table("alone").watch(start="state")
                assert (await anext(changes)).value == b"1"
                await changes.aclose()

    asyncio.run(test())


def test_a_watcher_goes_on_across_failovers(cluster: RunningCluster) -> None:
    async def test() -> None:
        nodes = cluster.nodes
        servers = ",".join(node.addresses["http"] for node in nodes.values())
        async with bascule.connect(servers) as client, bascule.connect(servers) as other:
            await client.create_table("moving", replicas=3)
            await asyncio.to_thread(cluster.wait_in_sync, "moving")
            seen: list[TableChange] = []
            current = asyncio.Event()

            async def follow() -> None:
                changes = other.table("moving").watch(
                    "k.*", start="state", on_current=lambda _: current.set()
                )
                async for change in changes:
                    seen.append(change)

            following = asyncio.create_task(follow())
            await asyncio.wait_for(current.wait(), 20)
            table, written = client.table("moving"), dict[bytes, tuple[int, bytes]]()

            async def write(count: int) -> None:
                for n in range(count):
                    key, value = b"k.%d" % (n % 5), b"%d" % len(seen)
                    version = await table.set(key, value, timeout=30)
                    written[key] = version, value

            await write(30)
            for number in (1, 2, 3):
                await asyncio.to_thread(nodes[number].stop, 9)
                await write(20)
                await asyncio.to_thread(nodes[number].start)
                await asyncio.to_thread(cluster.wait_in_sync, "moving")
            await write(20)

            def last() -> dict[bytes, tuple[int, bytes | None]]:
                return {each.key: (each.version, each.value) for each in seen}

            deadline = time.monotonic() + 30
            while last() != written and time.monotonic() < deadline:
                assert not following.done(), following.exception()
                await asyncio.sleep(0.1)
            assert last() == written
            for key in written:
                versions = [each.version for each in seen if each.key == key]
                assert versions == sorted(set(versions))
            following.cancel()

    asyncio.run(test())


def test_a_watcher_gives_up_after_its_timeout(tmp_path: Path) -> None:
    with (
        running_node(tmp_path, keep_ports=True) as node,
        bascule.connect_sync(node.addresses["http"]) as client,
    ):
        client.create_table("t")
        table = client.table("t")
        table.set("a", b"1")
        changes = table.watch(start="state", timeout=1)
        assert next(changes).value == b"1"
        node.stop(9)
        with pytest.raises(Broken, match="could be watched"):
            next(changes)
