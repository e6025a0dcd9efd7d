"""The nodes at the end of a run: roles, directories and subscriptions are as the image says."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bascule.metadata.image import Image
from bascule.model import NO_LEADER, PartitionBy
from bascule.replica.roles import PartitionRole
from bascule.sim.cluster.checkers.log_contents import Key
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.machine import DATA, Machine, SimulatedNode


def why_not_settled(
    world: ClusterEnvironment, machines: Mapping[int, Machine], unrepaired: Collection[Key]
) -> str:
    """In what a node differs from the image, or its image from that of another node; empty: in
    nothing. The roles of `unrepaired` partitions are not compared: they have no leader."""
    nodes = {n: each.running for n, each in machines.items() if each.running is not None}
    images = {n: node.controller.image for n, node in nodes.items()}
    if len(nodes) != len(machines) or not images:
        return "not all nodes run"
    image = next(iter(images.values()))
    for number, other in images.items():
        if found := _image_difference(image, other):
            return f"the image of node {number} has other {found}"
    for number, node in nodes.items():
        reason = _role_difference(number, node, image, unrepaired) or _directory_difference(
            machines[number], image
        )
        if reason:
            return f"node {number} is not as the image says: {reason}"
    return _subscription_difference(world, image, {name for name, _ in unrepaired})


def _image_difference(image: Image, other: Image) -> str:
    for name in ("streams", "partitions", "nodes", "deletions", "removed"):
        if getattr(image, name) != getattr(other, name):
            return name
    return "deletions that nobody carries out" if image.deletions else ""


def _role_difference(
    number: int, node: SimulatedNode, image: Image, unrepaired: Collection[Key]
) -> str:
    for name, definition in image.streams.items():
        present = node.partitions.stream(name) or ()
        for index, state in enumerate(image.partitions[definition.id]):
            wanted = PartitionRole.NONE
            if number == state.leader:
                wanted = PartitionRole.LEADER
            elif number in state.replicas and state.leader != NO_LEADER:
                wanted = PartitionRole.FOLLOWER
            if index >= len(present):
                return f"{name} {index} is not there"
            partition = present[index]
            if (name, index) in unrepaired:
                continue
            if partition.role is not wanted or partition.leader_epoch != state.leader_epoch:
                return f"{name} {index} is {partition.role} of {partition.leader_epoch}: {state}"
    unknown = [name for name in node.partitions.streams() if name not in image.streams]
    return f"it serves {unknown}" if unknown else ""


def _directory_difference(machine: Machine, image: Image) -> str:
    files = machine.files
    wanted = sorted(
        f"{name}/{index}"
        for name, definition in image.streams.items()
        for index, state in enumerate(image.partitions[definition.id])
        if machine.node in state.replicas
    )
    streams = f"{DATA}/streams"
    found = sorted(
        f"{name}/{index}"
        for name in files.list_dir(streams)
        for index in files.list_dir(f"{streams}/{name}")
    )
    if found != wanted:
        return f"its directories are {found}, expected {wanted}"
    left = files.list_dir(f"{DATA}/removed")
    return f"data of removed streams is there still: {left}" if left else ""


def _subscription_difference(
    world: ClusterEnvironment, image: Image, unrepaired: Collection[str]
) -> str:
    for name, definition in image.streams.items():
        if name in unrepaired:
            continue
        leaders = sorted(state.leader for state in image.partitions[definition.id])
        found = sorted(world.nats.subscribers(definition.config.subject))
        if definition.config.partition_by is not PartitionBy.GROUP:
            leaders = sorted(set(leaders))  # one subscription serves all partitions
        if found != leaders:
            return f"{name} is led by nodes {leaders}, and subscribed for by {found}"
    return ""
