"""Members of groups with clients in other languages, which `make test-clients` installs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from support.group_members import PYTHON, SESSION_MS_MIN, MemberProgram

INSTALLED: Final = Path(__file__).parents[2] / "build" / "foreign-clients"
JARS: Final = f"{INSTALLED / 'jars'}/*:{INSTALLED / 'classes'}"
JAVA: Final = ("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", JARS)
SILENT: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
TOOL_SECONDS_MAX: Final = 120
SHORT_SESSIONS: Final[Mapping[str, str]] = {
    "BASCULE_GROUPS_CONSUMER_SESSION_MS": "6000",
    "BASCULE_GROUPS_CONSUMER_HEARTBEAT_MS": "500",
}
"""Environment of a node on which members of the consumer protocol die as fast as others."""


def _node_command(
    client: str, address: str, group: str, topic: str, _instance: str | None
) -> Sequence[str | Path]:
    return ["node", INSTALLED / "node" / "member.mjs", client, address, group, topic]


def _go_command(
    client: str, address: str, group: str, topic: str, _instance: str | None
) -> Sequence[str | Path]:
    return [INSTALLED / "member", client, address, group, topic]


def _java_command(
    client: str, address: str, group: str, topic: str, instance: str | None
) -> Sequence[str | Path]:
    """`client` ends with the protocol."""
    protocol = client.rpartition("/")[2]
    more = [instance] if instance else []
    return [*JAVA, SILENT, "GroupMember", protocol, address, group, topic, *more]


def _verifiable_command(
    client: str, address: str, group: str, topic: str, instance: str | None
) -> Sequence[str | Path]:
    """`client` ends with the assignor's class."""
    assignor = client.rpartition(":")[2]
    return [
        *JAVA, SILENT, "org.apache.kafka.tools.VerifiableConsumer",
        "--bootstrap-server", address, "--group-id", group, "--topic", topic, "--verbose",
        "--session-timeout", str(SESSION_MS_MIN), "--reset-policy", "earliest",
        "--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}",
        *(["--group-instance-id", instance] if instance else []),
    ]  # fmt: skip


def _verifiable_line(line: str) -> list[dict[str, Any]]:
    """An event of VerifiableConsumer. It does not know what it owns beside what it is given."""
    event = json.loads(line)
    match event["name"]:
        case "record_data":
            return [{"at": [event["partition"], event["offset"]]}]
        case "partitions_assigned":
            return [{"added": [each["partition"] for each in event["partitions"]]}]
        case "partitions_revoked" | "partitions_lost":
            return [{"removed": [each["partition"] for each in event["partitions"]]}]
    return []


def _console_command(
    _client: str, address: str, group: str, topic: str, _instance: str | None
) -> Sequence[str | Path]:
    return [
        *JAVA, SILENT, "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server", address, "--group", group, "--topic", topic,
        "--property", "print.partition=true",
        "--property", "print.offset=true",
        "--consumer-property", "auto.offset.reset=earliest",
        "--consumer-property", f"session.timeout.ms={SESSION_MS_MIN}",
        "--consumer-property", "heartbeat.interval.ms=500",
        "--consumer-property", "auto.commit.interval.ms=500",
    ]  # fmt: skip


def _console_line(line: str) -> list[dict[str, Any]]:
    """`Partition:0 Offset:3 value`, with tabs."""
    partition, offset, _ = line.split("\t", 2)
    return [{"at": [int(partition.partition(":")[2]), int(offset.partition(":")[2])]}]


_NODE: Final = MemberProgram(_node_command)
_JAVA: Final = MemberProgram(_java_command)
_VERIFIABLE: Final = MemberProgram(_verifiable_command, _verifiable_line)
PROGRAMS: Final[Mapping[str, MemberProgram]] = {
    "kafkajs": _NODE,
    "platformatic": _NODE,
    "franz-go": MemberProgram(_go_command),
    "java:RangeAssignor": _VERIFIABLE,
    "java:CooperativeStickyAssignor": _VERIFIABLE,
    "java/consumer": _JAVA,
}
"""By client. `java/consumer` speaks the consumer protocol (KIP-848), the others the classic one."""
CONSOLE: Final = MemberProgram(_console_command, _console_line)


def program_of(client: str) -> MemberProgram:
    """The program of a client, those for Python included. `java/classic` is Java's with the classic
    protocol."""
    return _JAVA if client == "java/classic" else PROGRAMS.get(client, PYTHON)


def run_tool(name: str, *arguments: str, check: bool = True) -> str:
    """What a command line tool of Apache Kafka writes, `name` being its main class."""
    done = subprocess.run(
        [*JAVA, SILENT, name, *arguments],
        capture_output=True, text=True, timeout=TOOL_SECONDS_MAX,
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout + done.stderr
