"""Apache Kafka's command line tools on a real node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import bascule
from support.foreign_clients import CONSOLE, run_tool
from support.group_members import SESSION_MS_LONG, group_members
from support.processes import BIN, WAIT_SECONDS_MAX, Node, running_node

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
GROUP = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
NOBODY = "has no active members."
"""Ends a warning, which the tool writes to another stream than the table."""
PARTITIONS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("tools")) as node:
        yield node


def run(node: Node, name: str, *arguments: str) -> str:
    return run_tool(name, "--bootstrap-server", node.addresses["client"], *arguments)


def test_a_topic_is_made_described_altered_and_deleted(node: Node) -> None:
    topic = ("--topic", "orders")
    made = run(node, TOPICS, "--create", *topic, "--partitions", "2",
               "--config", "retention.ms=86400000")  # fmt: skip
    assert "Created topic orders" in made
    described = run(node, TOPICS, "--describe", *topic)
    assert "PartitionCount: 2\tReplicationFactor: 1" in described
    assert "retention.ms=86400000" in described
    assert "orders" in run(node, TOPICS, "--list").split()
    run(node, TOPICS, "--alter", *topic, "--partitions", "4")
    entity = ("--entity-type", "topics", "--entity-name", "orders")
    run(node, CONFIGS, "--alter", *entity, "--add-config", "retention.ms=3600000")
    assert "retention.ms=3600000" in run(node, CONFIGS, "--describe", *entity)
    with bascule.connect_sync(node.addresses["http"]) as client:
        info = client.stream("orders")
    assert len(info.partitions) == 4
    assert info.definition.config.retention_ms_max == 3_600_000
    run(node, CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms=3600000" not in run(node, CONFIGS, "--describe", *entity)
    broker = run(node, CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1",
                 "--all")  # fmt: skip
    assert "node.id=1" in broker
    run(node, TOPICS, "--delete", *topic)
    assert "orders" not in run(node, TOPICS, "--list").split()


def test_console_consumers_share_a_stream(
    node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("console")
    node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.publish_many((f"flights.{n}", b"%d" % n) for n in range(300))
        ends = {p.partition: p.high_watermark for p in client.stream("flights").partitions}
        stored = {(p, n) for p, end in ends.items() for n in range(end)}
        with group_members(directory, node, "console", "flights", PARTITIONS) as members:
            for _ in range(3):
                members.add("console", program=CONSOLE)
            members.wait(lambda: stored <= members.read() or None)
            members.members[0].kill()
            members.wait(
                lambda: (
                    {e.partition: e.offset for e in client.offsets(consumer="console")} == ends
                    or None
                )
            )
    said = run(node, OFFSETS, "--topic", "flights")
    assert {tuple(map(int, line.split(":")[1:])) for line in said.split()} == set(ends.items())


# -- groups ---------------------------------------------------------------------------------------


def rows(text: str) -> list[dict[str, str]]:
    """The lines of a table, by the heads of its columns; the last columns may be empty."""
    lines = [line for line in text.splitlines() if line.strip() and not line.endswith(NOBODY)]
    (at,) = (number for number, line in enumerate(lines) if line.startswith("GROUP "))
    head, lines = lines[at], lines[at + 1 :]
    heads = head.replace("COORDINATOR (ID)", "COORDINATOR ID").split()
    fields = [line.split() for line in lines]
    assert all(len(each) <= len(heads) for each in fields), text
    return [dict(zip_longest(heads, each, fillvalue="")) for each in fields]


def group_info(node: Node, group: str) -> Any:
    """What `bascule group info GROUP --json` prints."""
    done = subprocess.run(
        [str(BIN / "bascule"), "group", "info", group, "--json"],
        capture_output=True,
        timeout=WAIT_SECONDS_MAX,
        check=True,
        env={**os.environ, "BASCULE_SERVER": node.addresses["http"]},
    )
    return json.loads(done.stdout)


def shown_lag(node: Node, group: str) -> dict[int, tuple[int, int, int]]:
    """Partition -> committed offset, end and lag, which the Java tool and Bascule's both show."""
    described = rows(run(node, GROUP, "--describe", "--group", group))
    assert all((row["GROUP"], row["TOPIC"]) == (group, "trains") for row in described)
    by_java = {
        int(row["PARTITION"]): tuple(
            int(row[name]) for name in ("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
        )
        for row in described
    }
    by_bascule = {
        each["partition"]: (each["offset"], each["high_watermark"], each["lag"])
        for each in group_info(node, group)["offsets"]
    }
    assert by_java == by_bascule
    return by_bascule


@pytest.fixture(scope="module")
def trains(node: Node) -> Node:
    """The node, with the stream `trains`."""
    node.create("trains", "trains.*", partitions=PARTITIONS, partition_by="subject")
    publish_trains(node)
    return node


def publish_trains(node: Node) -> list[int]:
    """More messages in each partition; the ends of the partitions."""
    with bascule.connect_sync(node.addresses["http"]) as client:
        before = [p.high_watermark for p in client.stream("trains").partitions]
        client.publish_many((f"trains.{n}", b"%d" % n) for n in range(300))
        ends = [p.high_watermark for p in client.stream("trains").partitions]
    assert all(end > start + 20 for start, end in zip(before, ends, strict=True))
    return ends


GROUP_KINDS = [
    ("confluent-kafka", "Classic", "range"),
    ("confluent-kafka/consumer", "Consumer", "uniform"),
]
"""A client, the type of its groups as tools show it, and the assignor."""


@pytest.mark.parametrize(("client", "kind", "assignor"), GROUP_KINDS)
def test_a_group_with_members_is_listed_and_described_and_stays(
    trains: Node, tmp_path: Path, client: str, kind: str, assignor: str
) -> None:
    node, group = trains, f"{kind.lower()} with members".replace(" ", "-")
    this = ("--group", group)
    with group_members(
        tmp_path, node, group, "trains", PARTITIONS, session_ms=SESSION_MS_LONG
    ) as members:
        for _ in range(2):
            members.add(client)
        members.wait_shared()

        def is_done() -> bool | None:
            info = group_info(node, group)
            offsets = info["offsets"]
            has_committed = len(offsets) == PARTITIONS and not any(e["lag"] for e in offsets)
            return (info["state"] == "Stable" and has_committed) or None

        members.wait(is_done)
        assert {lag for _, _, lag in shown_lag(node, group).values()} == {0}

        assert group in run(node, GROUP, "--list").split()
        states = {row["GROUP"]: row for row in rows(run(node, GROUP, "--list", "--state"))}
        assert states[group] == {"GROUP": group, "STATE": "Stable"}
        types = {row["GROUP"]: row for row in rows(run(node, GROUP, "--list", "--type"))}
        assert types[group] == {"GROUP": group, "TYPE": kind}
        both = run(node, GROUP, "--list", "--state", "stable", "--type", kind.lower())
        assert rows(both) == [{"GROUP": group, "TYPE": kind, "STATE": "Stable"}]
        assert group not in run(node, GROUP, "--list", "--state", "empty").split()
        listed = {row["GROUP"]: row for row in rows(run(node, GROUPS, "--list"))}
        assert listed[group] == {"GROUP": group, "TYPE": kind, "PROTOCOL": "consumer"}
        chosen = run(node, GROUPS, "--list", "--group-type", kind.lower(), "--protocol", "consumer")
        assert rows(chosen) == [listed[group]]

        owned = {m["member_id"]: m for m in group_info(node, group)["members"]}
        assert len(owned) == 2
        owners = {int(row["PARTITION"]): row for row in rows(run(node, GROUP, "--describe", *this))}
        assert {row["CONSUMER-ID"] for row in owners.values()} == owned.keys()
        assert {(row["HOST"], row["CLIENT-ID"]) for row in owners.values()} == {
            (m["host"], m["client_id"]) for m in owned.values()
        }
        verbose = rows(run(node, GROUP, "--describe", *this, "--members", "--verbose"))
        assert {row["CONSUMER-ID"] for row in verbose} == owned.keys()
        for row in verbose:
            indexes = [i for i in owners if owners[i]["CONSUMER-ID"] == row["CONSUMER-ID"]]
            places = "trains:" + ",".join(map(str, sorted(indexes)))
            assert (row["CURRENT-ASSIGNMENT"], int(row["#PARTITIONS"])) == (places, len(indexes))
            if kind == "Consumer":
                assert row["TARGET-ASSIGNMENT"] == places
                assert row["CURRENT-EPOCH"] == row["TARGET-EPOCH"] != "-"
        (state,) = rows(run(node, GROUP, "--describe", *this, "--state"))
        assert state == {
            "GROUP": group, "COORDINATOR": node.addresses["client"], "ID": "(1)",
            "ASSIGNMENT-STRATEGY": assignor, "STATE": "Stable", "#MEMBERS": "2",
        }  # fmt: skip

        # The members stand still, so the lag does too.
        for each in members.alive():
            each.process.send_signal(signal.SIGSTOP)
        publish_trains(node)
        assert all(lag > 20 for _, _, lag in shown_lag(node, group).values())
        for each in members.alive():
            each.process.send_signal(signal.SIGCONT)
        members.wait(is_done)

        before = shown_lag(node, group)
        refused = run(node, GROUP, "--delete", *this)
        assert f"Group '{group}' could not be deleted due to" in refused
        assert "The group is not empty." in refused
        refused = run(node, GROUP, "--delete-offsets", *this, "--topic", "trains:0")
        assert "GroupSubscribedToTopicException" in refused
        for how in ("--dry-run", "--execute"):
            refused = run(node, GROUP, "--reset-offsets", *this, "--topic", "trains",
                          "--to-earliest", how)  # fmt: skip
            assert f"if the group '{group}' is inactive, but the current state is Stable" in refused
        assert shown_lag(node, group) == before
        members.wait_shared(2)
        for each in members.alive():
            each.stop()


@pytest.mark.parametrize(("client", "kind", "_assignor"), GROUP_KINDS)
def test_offsets_of_a_group_are_reset_and_it_is_deleted_once_its_members_have_left(
    trains: Node, tmp_path: Path, client: str, kind: str, _assignor: str
) -> None:
    node, group = trains, f"{kind.lower()} that is left".replace(" ", "-")
    this = ("--group", group)
    ends = publish_trains(node)
    with group_members(
        tmp_path, node, group, "trains", PARTITIONS, session_ms=SESSION_MS_LONG
    ) as members:
        member = members.add(client)
        stored = {(index, n) for index, end in enumerate(ends) for n in range(end)}
        members.wait(lambda: stored <= members.read() or None)
        member.stop()
    assert shown_lag(node, group) == {index: (end, end, 0) for index, end in enumerate(ends)}
    (state,) = rows(run(node, GROUP, "--describe", *this, "--state"))
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", "0")
    assert group in run(node, GROUP, "--list", "--state", "empty").split()

    def reset(*how: str, topic: str = "trains") -> dict[int, int]:
        said = run(node, GROUP, "--reset-offsets", *this, "--topic", topic, *how)
        found = rows(said)
        assert all((row["GROUP"], row["TOPIC"]) == (group, "trains") for row in found), said
        return {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in found}

    shifted = {index: end - 7 for index, end in enumerate(ends)}
    assert reset("--shift-by", "-7", "--dry-run") == shifted
    assert {lag for _, _, lag in shown_lag(node, group).values()} == {0}
    assert reset("--shift-by", "-7", "--execute") == shifted
    assert {lag for _, _, lag in shown_lag(node, group).values()} == {7}
    assert reset("--to-earliest", "--execute", topic="trains:1") == {1: 0}
    assert [at for at, _, _ in shown_lag(node, group).values()] == [shifted[0], 0, shifted[2]]
    assert reset("--to-datetime", "2020-01-01T00:00:00.000", "--dry-run") == {0: 0, 1: 0, 2: 0}
    assert reset("--to-latest", "--execute") == dict(enumerate(ends))

    done = run(node, GROUP, "--delete-offsets", *this, "--topic", "trains:1")
    assert ["trains", "1", "Successful"] in [line.split() for line in done.splitlines()]
    assert shown_lag(node, group).keys() == {0, 2}
    done = run(node, GROUP, "--delete", *this)
    assert f"Deletion of requested consumer groups ('{group}') was successful." in done
    assert group not in run(node, GROUP, "--list").split()
    assert group not in run(node, GROUPS, "--list").split()


def test_a_group_that_does_not_exist_is_said_not_to(trains: Node) -> None:
    for how in (("--describe",), ("--delete",), ("--delete-offsets", "--topic", "trains:0")):
        said = run_tool(
            GROUP, "--bootstrap-server", trains.addresses["client"], *how, "--group", "nobody",
            check=False,
        )  # fmt: skip
        assert "GroupIdNotFoundException" in said, said
        assert "exist" in said, said
    assert "nobody" not in run(trains, GROUP, "--list").split()
