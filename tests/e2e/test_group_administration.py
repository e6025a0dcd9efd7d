"""Groups through the tools of clients that nobody here wrote, and through Bascule's own, on real
processes: the same members, the same offsets, the same lag."""

from __future__ import annotations

import asyncio
import json
import signal
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from prometheus_client.parser import text_string_to_metric_families

import bascule
from bascule.errors import GroupHasMembers, UnknownGroup
from bascule.wire.offsets import OFFSETS_STREAM
from support import commands, http_calls
from support.clusters import RunningCluster
from support.group_members import SESSION_MS_LONG, group_members
from support.processes import WAIT_SECONDS_MAX, Node, running_node, wait_for

with warnings.catch_warnings():
    # It reads its own schema files in a way that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin
    from kafka.structs import OffsetAndMetadata

    import kafka

PARTITIONS = 3
MESSAGES = 300


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """With the stream `flights`, which has messages in each partition."""
    with running_node(tmp_path_factory.mktemp("groups")) as node:
        fill(node)
        yield node


@pytest.fixture(scope="module")
def confluent(node: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.addresses["client"]})


@pytest.fixture(scope="module")
def kafka_python(node: Node) -> Iterator[kafka.admin.KafkaAdminClient]:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=node.addresses["client"])
    yield admin
    admin.close()


def fill(node: Node) -> None:
    node.create("flights", "flights.*", partitions=PARTITIONS, partition_by="subject")
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.publish_many((f"flights.{n}", b"%d" % n) for n in range(MESSAGES))
        assert all(p.high_watermark > 20 for p in client.stream("flights").partitions)


def ends_of(node: Node) -> list[int]:
    return [p["high_watermark"] for p in node.call("GET", "/v1/streams/flights")["partitions"]]


def run(node: Node, *words: str, code: int = 0) -> Any:
    """What `bascule WORDS --json` prints, or its error."""
    done = commands.run(*words, "--json", env={"BASCULE_SERVER": node.addresses["http"]})
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout) if not code else done.stderr.decode()


def commit(admin: AdminClient, group: str, offsets: Mapping[int, int]) -> None:
    places = [TopicPartition("flights", index, offset) for index, offset in offsets.items()]
    (done,) = admin.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, places)]
    ).values()
    for place in done.result(WAIT_SECONDS_MAX).topic_partitions:
        assert place.error is None, place


def lag_by_confluent(admin: AdminClient, group: str) -> dict[int, int]:
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    places = found.result(WAIT_SECONDS_MAX).topic_partitions
    latest = {TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in places}
    ends = {
        place.partition: end.result(WAIT_SECONDS_MAX).offset
        for place, end in admin.list_offsets(latest).items()
    }
    return {p.partition: ends[p.partition] - p.offset for p in places}


def lag_by_kafka_python(admin: kafka.admin.KafkaAdminClient, group: str) -> dict[int, int]:
    found = admin.list_group_offsets({group: None})[group]
    ends = admin.list_partition_offsets(dict.fromkeys(found, -1))
    return {place.partition: ends[place].offset - at.offset for place, at in found.items()}


def lag_by_metrics(node: Node, group: str) -> dict[int, int]:
    text = http_calls.get(node.addresses["http"] + "/metrics")
    return {
        int(sample.labels["partition"]): int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "bascule_group_lag" and sample.labels["group"] == group
    }


def lag_by_info(info: Mapping[str, Any]) -> dict[int, int]:
    return {entry["partition"]: entry["lag"] for entry in info["offsets"]}


def test_the_lag_is_the_same_in_every_tool(
    node: Node, confluent: AdminClient, kafka_python: kafka.admin.KafkaAdminClient
) -> None:
    ends = ends_of(node)
    commit(confluent, "behind", {0: 5, 1: 0, 2: ends[2]})
    lag = {0: ends[0] - 5, 1: ends[1], 2: 0}
    assert lag_by_confluent(confluent, "behind") == lag
    assert lag_by_kafka_python(kafka_python, "behind") == lag
    info = run(node, "group", "info", "behind")
    assert lag_by_info(info) == lag
    assert (info["lag"], info["state"], info["members"]) == (sum(lag.values()), "Empty", [])
    (listed,) = [each for each in run(node, "group", "list") if each["name"] == "behind"]
    assert (listed["lag"], listed["partitions"]) == (sum(lag.values()), 3)
    assert lag_by_metrics(node, "behind") == lag
    (row,) = [
        g for g in run(node, "top", "--once", "-i", "200ms")["groups"] if g["name"] == "behind"
    ]
    assert (row["lag"], row["state"], row["partitions"]) == (sum(lag.values()), "Empty", 3)

    async def by_aiokafka() -> dict[int, int]:
        admin = AIOKafkaAdminClient(bootstrap_servers=node.addresses["client"])
        await admin.start()
        try:
            found = await admin.list_consumer_group_offsets("behind")
            assert ("behind", "") in [g[:2] for g in await admin.list_consumer_groups()]
        finally:
            await admin.close()
        return {place.partition: ends[place.partition] - at.offset for place, at in found.items()}

    assert asyncio.run(by_aiokafka()) == lag

    # Kafka's tools move the offsets, and those of Bascule see it, and the other way round.
    place = kafka.TopicPartition("flights", 0)
    kafka_python.alter_group_offsets("behind", {place: OffsetAndMetadata(9, "by hand", -1)})
    (entry, *_) = run(node, "group", "info", "behind")["offsets"]
    assert (entry["offset"], entry["metadata"]) == (9, "by hand")
    run(node, "group", "reset-offsets", "behind", "--shift-by", "-4")
    assert lag_by_confluent(confluent, "behind") == {0: ends[0] - 5, 1: ends[1], 2: 4}


def test_members_through_every_tool(
    node: Node,
    confluent: AdminClient,
    kafka_python: kafka.admin.KafkaAdminClient,
    tmp_path: Path,
) -> None:
    with group_members(
        tmp_path, node, "billing", "flights", PARTITIONS, session_ms=SESSION_MS_LONG
    ) as members:
        for client in ("confluent-kafka", "kafka-python", "aiokafka"):
            members.add(client)
        members.wait_shared()
        members.wait(lambda: lag_by_metrics(node, "billing") == dict.fromkeys(range(3), 0) or None)

        found = confluent.list_consumer_groups(
            states={ConsumerGroupState.STABLE}, types={ConsumerGroupType.CLASSIC}
        ).result(WAIT_SECONDS_MAX)
        (listed,) = found.valid
        assert (listed.group_id, listed.is_simple_consumer_group) == ("billing", False)
        assert not found.errors
        (described,) = confluent.describe_consumer_groups(["billing"]).values()
        group = described.result(WAIT_SECONDS_MAX)
        assert group.state is ConsumerGroupState.STABLE
        assignor = group.partition_assignor
        assert assignor in ("range", "roundrobin")
        assert group.coordinator.id == 1
        owners = {
            place.partition: member.member_id
            for member in group.members
            for place in member.assignment.topic_partitions
        }
        assert sorted(owners) == [0, 1, 2]
        assert {member.host for member in group.members} == {"127.0.0.1"}

        info = run(node, "group", "info", "billing")
        assert {e["partition"]: e["member_id"] for e in info["offsets"]} == owners
        assert {(m["member_id"], m["client_id"], m["host"]) for m in info["members"]} == {
            (m.member_id, m.client_id, m.host) for m in group.members
        }
        assert (info["state"], info["protocol"], info["lag"]) == ("Stable", assignor, 0)
        assert run(node, "group", "list", "--state", "stable")[0]["members"] == 3
        refused = run(node, "group", "list", "--type", "share", code=1)
        assert "type 'share', expected classic or consumer" in refused

        said = kafka_python.describe_groups(["billing"])["billing"]
        assert {m["member_id"] for m in said["members"]} == set(owners.values())

        async def by_aiokafka() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=node.addresses["client"])
            await admin.start()
            try:
                (response,) = await admin.describe_consumer_groups(["billing"])
            finally:
                await admin.close()
            return response.groups[0]

        group = asyncio.run(by_aiokafka())
        assert (group[1], group[2]) == ("billing", "Stable")
        assert {member[0] for member in group[5]} == set(owners.values())

        # While it has members, nobody removes its offsets.
        (refused,) = confluent.delete_consumer_groups(["billing"]).values()
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            refused.result(WAIT_SECONDS_MAX)
        assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
        place = kafka.TopicPartition("flights", 0)
        (error,) = kafka_python.delete_group_offsets("billing", [place]).values()
        assert "GroupSubscribedToTopic" in repr(error)
        with bascule.connect_sync(node.addresses["http"]) as client:
            with pytest.raises(GroupHasMembers, match="stop them first"):
                client.delete_group("billing")
            for dry_run in (False, True):
                with pytest.raises(GroupHasMembers):
                    client.reset_offsets("billing", to="earliest", dry_run=dry_run)
        assert "`bascule group info GROUP`" in run(
            node, "group", "reset-offsets", "billing", "--to-earliest", code=4
        )
        for each in members.alive():
            each.stop()
    assert run(node, "group", "info", "billing")["state"] == "Empty"
    (deleted,) = confluent.delete_consumer_groups(["billing"]).values()
    deleted.result(WAIT_SECONDS_MAX)
    assert (
        "Group billing not found" in kafka_python.describe_groups(["billing"])["billing"]["error"]
    )
    with bascule.connect_sync(node.addresses["http"]) as client, pytest.raises(UnknownGroup):
        client.group("billing")
    assert "with --stream it need not exist" in run(
        node, "group", "reset-offsets", "billing", "--to-earliest", code=3
    )


def test_offsets_of_single_partitions_are_removed(
    node: Node, confluent: AdminClient, kafka_python: kafka.admin.KafkaAdminClient
) -> None:
    commit(confluent, "parts", {0: 1, 1: 1, 2: 1})
    kafka_python.delete_group_offsets("parts", [kafka.TopicPartition("flights", 1)])
    assert lag_by_info(run(node, "group", "info", "parts")).keys() == {0, 2}
    run(node, "group", "delete", "parts", "--stream", "flights", "--partition", "2", "--yes")
    assert lag_by_confluent(confluent, "parts").keys() == {0}
    assert kafka_python.delete_groups(["parts"])
    assert "parts" not in [each["name"] for each in run(node, "group", "list")]


def test_internal_topics_of_other_clients_are_streams_like_others(
    node: Node, confluent: AdminClient
) -> None:
    names = ["_schemas", "__amazon_msk_canary", "_confluent-ksql-default_command_topic"]
    created = confluent.create_topics(
        [NewTopic(name, 1, 1, config={"cleanup.policy": "compact"}) for name in names]
    )
    for future in created.values():
        future.result(WAIT_SECONDS_MAX)
    for name in ("_offsets", "_bascule_x"):
        (refused,) = confluent.create_topics([NewTopic(name, 1, 1)]).values()
        with pytest.raises(confluent_kafka.KafkaException):
            refused.result(WAIT_SECONDS_MAX)
    run(node, "stream", "create", "_connect-configs", "--subject", "connect.configs")
    names.append("_connect-configs")
    assert set(names) <= confluent.list_topics(timeout=WAIT_SECONDS_MAX).topics.keys()
    listed = Counter(each["name"] for each in run(node, "stream", "list"))
    assert all(listed[name] == 1 for name in names)
    assert "_offsets" not in listed
    assert [s["name"] for s in run(node, "stream", "list", "--subject", "topics._schemas")] == [
        "_schemas"
    ]
    shown = [row["name"] for row in run(node, "top", "--once", "-i", "200ms")["streams"]]
    assert set(names) <= set(shown)
    with bascule.connect_sync(node.addresses["http"]) as client:
        client.publish("topics._schemas", b"{}", key=b"k")
        assert [m.value for m in client.read("_schemas")] == [b"{}"]
        commit_of = client.reset_offsets("registry", "_schemas", to="latest")
        assert [each.offset for each in commit_of] == [1]
    metrics = http_calls.get(node.addresses["http"] + "/metrics")
    for name in names:
        assert f'bascule_partition_end_offset{{stream="{name}",partition="0"}}' in metrics
    for future in confluent.delete_topics(["_schemas"]).values():
        future.result(WAIT_SECONDS_MAX)


@pytest.mark.long
def test_groups_at_any_node_of_a_cluster(tmp_path: Path, cluster: RunningCluster) -> None:
    """The stream's partitions have one replica each, on different nodes: the coordinator asks
    their leaders."""
    first = cluster.nodes[1]
    fill(first)
    cluster.wait_in_sync(OFFSETS_STREAM)
    leaders = {cluster.leader("flights", index) for index in range(PARTITIONS)}
    assert len(leaders) == PARTITIONS
    coordinator = cluster.leader(OFFSETS_STREAM)
    addresses = ",".join(each.addresses["client"] for each in cluster.alive())
    admin = AdminClient({"bootstrap.servers": addresses})
    ends = ends_of(first)
    commit(admin, "behind", {0: 5, 1: 0, 2: ends[2]})
    lag = {0: ends[0] - 5, 1: ends[1], 2: 0}
    assert lag_by_confluent(admin, "behind") == lag
    with group_members(
        tmp_path, first, "billing", "flights", PARTITIONS,
        address=addresses, session_ms=SESSION_MS_LONG,
    ) as members:  # fmt: skip
        members.add("confluent-kafka")
        members.wait_shared()
        for number, node in cluster.nodes.items():
            info = run(node, "group", "info", "behind")
            assert lag_by_info(info) == lag, number
            assert info["coordinator"] == coordinator
            listed = {each["name"]: each for each in run(node, "group", "list")}
            assert listed["behind"]["lag"] == sum(lag.values())
            assert listed["billing"]["members"] == 1
            shown = lag_by_metrics(node, "behind")
            assert shown == (lag if number == coordinator else {}), number
            told = run(node, "group", "reset-offsets", "billing", "--to-latest", code=4)
            assert "has members" in told
        found = admin.list_consumer_groups().result(WAIT_SECONDS_MAX)
        assert sorted(each.group_id for each in found.valid) == ["behind", "billing"]
        (described,) = admin.describe_consumer_groups(["billing"]).values()
        assert described.result(WAIT_SECONDS_MAX).coordinator.id == coordinator

        # The next coordinator knows the same.
        run(first, "stream", "elect-leader", OFFSETS_STREAM, "--node", str(coordinator % 3 + 1))

        def moved() -> bool | None:
            return cluster.leader(OFFSETS_STREAM) != coordinator or None

        wait_for(moved, first.process, first.log)
        for node in cluster.alive():
            assert run(node, "group", "info", "billing")["state"] == "Stable"
            assert lag_by_info(run(node, "group", "info", "behind")) == lag
    other = next(n for number, n in cluster.nodes.items() if number != cluster.leader("_offsets"))
    run(other, "group", "reset-offsets", "behind", "--to-latest")
    # A new client: that of before asks the coordinator of before, and confluent-kafka 2.16 crashes
    # on an answer without partitions, such as NOT_COORDINATOR.
    admin = AdminClient({"bootstrap.servers": addresses})
    assert lag_by_confluent(admin, "behind") == {0: 0, 1: 0, 2: 0}
    run(other, "group", "delete", "behind", "--yes")
    for node in cluster.alive():
        assert "does not exist" in run(node, "group", "info", "behind", code=3)

    # The node of a partition without another replica is killed: its end is not known any more.
    run(other, "group", "reset-offsets", "left", "--stream", "flights", "--to-earliest")
    coordinator = cluster.leader(OFFSETS_STREAM)
    lost = next(i for i in range(PARTITIONS) if cluster.leader("flights", i) != coordinator)
    cluster.nodes[cluster.leader("flights", lost)].stop(signal.SIGKILL)
    lag = {index: ends[index] for index in range(PARTITIONS) if index != lost}
    for node in cluster.alive():
        info = run(node, "group", "info", "left")
        assert lag_by_info(info) == {**lag, lost: None}
        assert info["lag"] == sum(lag.values())
    assert lag_by_metrics(cluster.nodes[coordinator], "left") == lag
    text = http_calls.get(cluster.nodes[coordinator].addresses["http"] + "/metrics")
    committed = cluster.nodes[coordinator].call("GET", "/v1/offsets")["offsets"]
    unknown = [each for each in committed if each["high_watermark"] is None]
    assert {each["partition"] for each in unknown} == {lost}
    assert f"bascule_group_lags_left_out {len(unknown)}" in text.splitlines()
