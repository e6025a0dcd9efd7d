"""NATS's own key-value clients in Go, unchanged: the library nats.go and the program `nats`.

The same calls are made at a node and at a NATS server with JetStream, and have the same results.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from support.foreign_clients import INSTALLED
from support.nats_go import CallFailed, NatsGo, nats_go
from support.processes import Node, running_nats, running_node

Call = tuple[str, dict[str, Any]]
CLI_SECONDS_MAX: Final = 60
BUCKET_SETTINGS: Final = ("bucket", "history", "ttl_ms")
"""What a status has that both know alike: a table has a limit of values, and keeps markers for a
time."""


class Doors(NamedTuple):
    """Addresses of NATS servers."""

    ours: str
    theirs: str
    """With JetStream, which answers the clients itself."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("key-value")) as node:
        yield node


@pytest.fixture(scope="module")
def doors(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    directory = tmp_path_factory.mktemp("jetstream")
    with running_nats(directory, "-js", "-sd", str(directory / "store")) as server:
        yield Doors(node.addresses["nats"], server.url)


def results(url: str, calls: Sequence[Call]) -> list[Any]:
    with nats_go(url) as client:
        return [result(client, name, arguments) for name, arguments in calls]


def result(client: NatsGo, name: str, arguments: dict[str, Any]) -> Any:
    """What a call returns; of an error what programs compare, or its text."""
    try:
        found = client.call(name, **arguments)
    except CallFailed as error:
        return error.kind or str(error)
    if isinstance(found, dict) and "history" in found:
        return {name: found[name] for name in BUCKET_SETTINGS}
    return found


def both(doors: Doors, calls: Sequence[Call]) -> list[Any]:
    """The results, which are the same at both servers."""
    ours, theirs = results(doors.ours, calls), results(doors.theirs, calls)
    for (name, arguments), found, expected in zip(calls, ours, theirs, strict=True):
        assert found == expected, (name, arguments)
    return ours


def entry(key: str, value: str, revision: int, operation: str = "Put") -> dict[str, Any]:
    return {
        "key": key, "value": value, "revision": revision, "operation": f"KeyValue{operation}Op",
    }  # fmt: skip


def test_the_calls_of_a_bucket_from_its_creation_to_its_deletion(doors: Doors) -> None:
    def of(name: str, **arguments: Any) -> Call:
        return name, {"bucket": "life", **arguments}

    found = both(
        doors,
        [
            of("status"),
            of("create_bucket"),
            of("create_bucket"),
            of("keys"),
            of("put", key="a.1", value="one"),
            of("put", key="a.2", value="two"),
            of("create", key="a.1", value="x"),
            of("create", key="d", value="y"),
            of("update", key="d", value="z", revision=3),
            of("update", key="d", value="z", revision=3),
            of("get", key="d"),
            of("get", key="none"),
            of("get_revision", key="d", revision=4),
            of("get_revision", key="d", revision=3),
            of("delete", key="a.1"),
            of("purge", key="a.2"),
            of("get", key="a.2"),
            of("keys"),
            of("list_keys", keys=["a.*", "d"]),
            of("history", key="d"),
            of("history", key="a.1"),
            of("history", key="a.2"),
            of("delete", key="d", revision=1),
            of("delete", key="d", revision=4),
            of("create", key="d", value="again"),
            of("put", key="empty", value=""),
            of("get", key="empty"),
            ("bucket_names", {}),
            ("buckets", {}),
            of("delete_bucket"),
            of("delete_bucket"),
            of("get", key="d"),
        ],
    )
    assert found[0] == "ErrBucketNotFound"
    assert found[3:8] == ["ErrNoKeysFound", 1, 2, "ErrKeyExists", 3]
    assert found[10:14] == [
        entry("d", "z", 4), "ErrKeyNotFound", entry("d", "z", 4), "ErrKeyNotFound",
    ]  # fmt: skip
    assert found[16:18] == ["ErrKeyNotFound", ["d"]]
    assert found[20:22] == [[entry("a.1", "", 5, "Delete")], [entry("a.2", "", 6, "Purge")]]
    assert found[22] == "ErrKeyExists"  # the code is the same for any wrong last sequence
    assert found[23:25] == [None, 8]
    assert found[26] == entry("empty", "", 9)
    assert "life" in found[27]


def test_watchers_see_the_same_in_the_same_order(doors: Doors) -> None:
    def of(name: str, **arguments: Any) -> Call:
        return name, {"bucket": "watched", **arguments}

    watchers: dict[str, dict[str, Any]] = {
        "all": {},
        "two patterns": {"keys": ["a.*", "c"]},
        "no deletes": {"options": ["ignore_deletes"]},
        "only deletes": {"keys": ["a.*"], "options": ["ignore_deletes"]},
        "meta": {"options": ["meta_only"]},
        "history": {"options": ["history"]},
        "none": {"keys": ["none"]},
        "resumed": {"revision": 4},
        "resumed one key": {"keys": ["d"], "revision": 1},
    }
    calls = [
        of("create_bucket"),
        *[of("put", key=key, value=key) for key in ("a.2", "a.1", "c", "d", "e", "a.3")],
        of("delete", key="a.2"),
        of("put", key="d", value="newer"),
        of("purge", key="a.1"),
        of("put", key="e", value="newer"),
        of("delete", key="a.3"),
    ]
    for name, arguments in watchers.items():
        calls.append(of("watch", watcher=name, **{"keys": [">"], **arguments}))
        calls.append(of("next", watcher=name))
    calls += [
        of("watch", watcher="updates", keys=[">"], options=["updates_only"]),
        of("put", key="c", value="newer"),
        of("delete", key="d"),
        of("create", key="d", value="again"),
        of("purge", key="d"),
        of("put", key="a.1", value="again"),
    ]
    for name, count in {"all": 5, "updates": 5, "two patterns": 2, "no deletes": 3}.items():
        calls.append(of("next", watcher=name, count=count))
    calls += [of("next", watcher="resumed", count=5), of("next", watcher="only deletes", count=1)]
    found = both(doors, calls)
    assert found[13] == [
        entry("c", "c", 3),
        entry("a.2", "", 7, "Delete"),
        entry("d", "newer", 8),
        entry("a.1", "", 9, "Purge"),
        entry("e", "newer", 10),
        entry("a.3", "", 11, "Delete"),
        None,
    ]
    assert found[-6] == [
        entry("c", "newer", 12),
        entry("d", "", 13, "Delete"),
        entry("d", "again", 14),
        entry("d", "", 15, "Purge"),
        entry("a.1", "again", 16),
    ]


def test_purged_markers_are_shown_no_more(doors: Doors) -> None:
    """A bucket of ours gives its purges sequences, so later revisions differ."""

    def of(name: str, **arguments: Any) -> Call:
        return name, {"bucket": "markers", **arguments}

    found = both(
        doors,
        [
            of("create_bucket"),
            of("put", key="a", value="1"),
            of("put", key="b", value="2"),
            of("delete", key="a"),
            of("watch", watcher="before", keys=[">"]),
            of("next", watcher="before"),
            of("purge_deletes", ttl_ms=60_000),
            of("history", key="a"),
            of("purge_deletes", ttl_ms=-1),
            of("watch", watcher="after", keys=[">"]),
            of("next", watcher="after"),
            of("history", key="a"),
            of("get", key="a"),
            of("purge_deletes", ttl_ms=-1),
        ],
    )
    assert found[5] == [entry("b", "2", 2), entry("a", "", 3, "Delete"), None]
    assert found[7] == [entry("a", "", 3, "Delete")]
    assert found[10:13] == [[entry("b", "2", 2), None], "ErrKeyNotFound", "ErrKeyNotFound"]
    with nats_go(doors.ours) as client:
        assert client.call("create", "markers", key="a", value="3") > 3
        assert client.call("get", "markers", key="a")["value"] == "3"


def test_keys_expire_alike(doors: Doors) -> None:
    def of(name: str, **arguments: Any) -> Call:
        return name, {"bucket": "times", **arguments}

    found = both(
        doors,
        [
            of("create_bucket", marker_ttl_ms=3_600_000),
            of("watch", watcher="w", keys=[">"]),
            of("next", watcher="w"),
            of("create", key="k", value="v", ttl_ms=1_000),
            of("next", watcher="w", count=2),
            of("watch", watcher="later", keys=[">"]),
            of("next", watcher="later"),
            of("get", key="k"),
            of("create", key="k", value="again"),
            of("purge", key="k", ttl_ms=60_000),
            of("next", watcher="w", count=2),
        ],
    )
    assert found[4] == [entry("k", "v", 1), entry("k", "", 2, "Purge")]
    assert found[6] == [entry("k", "", 2, "Purge"), None]
    assert found[7:9] == ["ErrKeyNotFound", 3]


def test_a_bucket_is_updated_or_is_as_it_should_be(doors: Doors, node: Node) -> None:
    def of(name: str, **arguments: Any) -> Call:
        return name, {"bucket": "updated", **arguments}

    both(
        doors,
        [
            of("update_bucket"),
            of("create_or_update_bucket"),
            of("put", key="a", value="1"),
            of("create_or_update_bucket"),
            of("create_or_update_bucket", ttl_ms=3_600_000),
            of("create_or_update_bucket", ttl_ms=3_600_000),
            of("get", key="a"),
            of("update_bucket"),
            of("status"),
        ],
    )
    before = node.call("GET", "/v1/streams/updated")
    with nats_go(doors.ours) as client:
        client.call("update_bucket", "updated", value_bytes_max=4_096, marker_ttl_ms=60_000)
        found = client.call("update_bucket", "updated")
        assert (found["value_bytes_max"], found["marker_ttl_ms"]) == (4_096, 60_000)
    after = node.call("GET", "/v1/streams/updated")
    changed = {name for name in before["config"] if before["config"][name] != after["config"][name]}
    assert changed == {"message_bytes_max", "tombstone_retention_ms"}


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("create_bucket", {"bucket": "refused", "history": 5}, "a history of 5 values"),
        ("create_bucket", {"bucket": "refused", "max_bytes": 10_000}, "max_bytes (10000)"),
        ("create_bucket", {"bucket": "refused", "replicas": 3}, "replicas"),
        ("update_bucket", {"bucket": "present", "history": 2}, "a history of 2 values"),
        ("create_or_update_bucket", {"bucket": "present", "max_bytes": 9}, "max_bytes (9)"),
        ("create_or_update_bucket", {"bucket": "present", "replicas": 3}, "replicas"),
        ("create_or_update_bucket", {"bucket": "present", "ttl_ms": 5}, "max_age"),
        ("put", {"bucket": "present", "key": "k", "value": "x" * 2_000}, "1000 bytes"),
        ("put", {"bucket": "present", "key": "k" * 1_025, "value": "x"}, "it has 1025 bytes"),
        ("put", {"bucket": "present", "key": "", "value": "x"}, "ErrInvalidKey"),
    ],
)
def test_what_is_refused_says_why(
    doors: Doors, name: str, arguments: dict[str, Any], text: str
) -> None:
    with nats_go(doors.ours) as client:
        client.call("create_or_update_bucket", "present", value_bytes_max=1_000)
        with pytest.raises(CallFailed, match=re.escape(text)):
            client.call(name, **arguments)


TIMES: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def cli(url: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of `nats`, without times."""
    done = subprocess.run(
        [INSTALLED / "nats", "--server", url, "--no-context", *arguments],
        capture_output=True, text=True, timeout=CLI_SECONDS_MAX, env=environment(),
    )  # fmt: skip
    return done.returncode, TIMES.sub("TIME", done.stdout + done.stderr)


def environment() -> dict[str, str]:
    """Without contexts that somebody has on this machine."""
    return {**os.environ, "XDG_CONFIG_HOME": "/nonexistent", "HOME": "/nonexistent"}


def test_the_program_nats_shows_the_same(doors: Doors) -> None:
    commands = [
        "put cli a.1 one",
        "put cli a.2 two",
        "create cli a.1 x",
        "create cli c three",
        "update cli c four 3",
        "update cli c five 3",
        "get cli c",
        "get cli c --raw",
        "get cli c --raw --revision 4",
        "get cli c --raw --revision 3",
        "get cli none",
        "del cli a.1 --force",
        "purge cli a.2 --force",
        "ls cli",
        "ls cli --verbose --display-value",
        "ls cli a.>",
        "history cli c",
        "history cli a.1",
        "history cli a.2",
        "revert cli c 4 --force",
        "compact cli --force",
        "put cli c five",
        "get cli c --raw",
        "status none",
        "ls none",
        "del none --force",
    ]
    for url in doors:
        assert cli(url, "kv", "add", "cli")[0] == 0
        assert cli(url, "kv", "add", "cli")[0] == 0
    for command in commands:
        ours, theirs = (cli(url, "kv", *command.split()) for url in doors)
        assert ours == theirs, command
    code, shown = cli(doors.ours, "kv", "status", "cli")
    assert code == 0
    for line in (
        "Bucket Name: cli",
        "History Kept: 1",
        "Values Stored: 1",
        "Key TTL Supported: true",
    ):
        assert line in shown
    code, shown = cli(doors.ours, "kv", "edit", "cli", "--ttl", "2h")
    assert (code, "Maximum Age: 2h0m0s" in shown) == (0, True)
    assert "cli" in cli(doors.ours, "kv", "ls", "--names")[1].split()
    code, shown = cli(doors.ours, "kv", "add", "longer", "--history", "5")
    assert (code, "a history of 5 values" in shown) == (1, True)
    assert cli(doors.ours, "kv", "del", "cli", "--force")[0] == 0
    assert cli(doors.ours, "kv", "status", "cli") == cli(doors.theirs, "kv", "status", "none")


def test_the_program_nats_watches(doors: Doors, tmp_path: Path) -> None:
    seen = []
    for url in doors:
        assert cli(url, "kv", "add", "seen")[0] == 0
        cli(url, "kv", "put", "seen", "a.1", "one")
        cli(url, "kv", "put", "seen", "b", "two")
        cli(url, "kv", "del", "seen", "a.1", "--force")
        watching = subprocess.Popen(
            [INSTALLED / "nats", "--server", url, "--no-context", "kv", "watch", "seen"],
            stdout=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        try:
            assert watching.stdout is not None
            lines = [watching.stdout.readline() for _ in range(2)]
            cli(url, "kv", "put", "seen", "a.2", "three")
            cli(url, "kv", "purge", "seen", "b", "--force")
            lines += [watching.stdout.readline() for _ in range(2)]
        finally:
            watching.kill()
            watching.communicate()
        seen.append([TIMES.sub("TIME", line) for line in lines])
    assert seen[0] == seen[1]
    assert "a.1" in seen[0][1]
    assert "DEL" in seen[0][1]
    assert "three" in seen[0][2]
