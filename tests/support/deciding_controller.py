"""The controller without a cluster: decisions on requests, applied one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bascule.metadata.apply import apply, touched
from bascule.metadata.command_codec import RequestId, decode_commands, encode_commands
from bascule.metadata.elections import (
    ComparedLogs,
    LogEnd,
    doubtful_candidates,
    unclean_candidates,
)
from bascule.metadata.image import Image
from bascule.metadata.replicas.reassignment import due_moves, finishing_moves
from bascule.metadata.requests import (
    ChangeIsrs,
    ControllerRequest,
    Create,
    ElectLongest,
    ElectUncleanly,
    FinishMoves,
    IsrChange,
    LoseNode,
    MoveReplicas,
    RegisterProcess,
    decide,
)
from bascule.model import NodeRegistration, PartitionState, StreamConfig, SyncPolicy


def registration(
    node: int, incarnation: int = 1, rack: str = "", directory: str = ""
) -> NodeRegistration:
    return NodeRegistration(
        node_id=node,
        peer=f"host{node}:9093",
        client=f"host{node}:9092",
        http=f"http://host{node}:9080",
        incarnation=incarnation,
        rack=rack,
        directory=directory,
    )


class DecidingController:
    """An image and its log; each request is one entry, which is encoded and decoded."""

    def __init__(self) -> None:
        self.image = Image()
        self.index = 0

    def submit(self, request: ControllerRequest) -> int:
        """Commit what is decided. Raises: as `decide`."""
        return self.commit(decide(self.image, request))

    def commit(self, commands: Any) -> int:
        self.index += 1
        request = RequestId(b"id", 1_000)
        version = self.image.cluster_version
        payload = encode_commands(commands, version=version, request=request)
        found, decoded = decode_commands(payload)
        assert found == request
        assert tuple(decoded) == tuple(commands)
        for command in decoded:
            before, self.image = self.image, apply(self.image, command, index=self.index)
            check_touched(before, self.image, set(touched(command)))
        return self.index

    def register(self, *nodes: int) -> None:
        for node in nodes:
            self.submit(RegisterProcess(registration(node)))

    def create(
        self,
        name: str,
        *,
        replicas: int,
        partitions: int = 1,
        min_isr: int = 0,
        unclean: bool = False,
        sync: SyncPolicy = SyncPolicy.ALWAYS,
    ) -> bytes:
        config = StreamConfig(
            name,
            replicas=replicas,
            partitions=partitions,
            min_isr=min_isr,
            unclean_election=unclean,
            sync=sync,
        )
        self.submit(Create(name, config, name.encode().ljust(16), 0))
        return self.image.streams[name].id

    def lose(self, node: int) -> None:
        self.submit(LoseNode(node, self.image.nodes[node].epoch))

    def elect_uncleanly(self, logs: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> None:
        """Compare the logs of all replicas that may be elected: node -> last epoch and end."""
        compared = []
        for stream_id, index, state in self.image.troubled_states():
            nodes = unclean_candidates(self.image, stream_id, state)
            ends = tuple(
                LogEnd(node, self.image.nodes[node].epoch, *logs.get(node, (0, 0)))
                for node in nodes
            )
            if ends:
                compared.append(ComparedLogs(stream_id, index, state.version, ends))
        self.submit(ElectUncleanly(tuple(compared)))

    def elect_longest(self, logs: Mapping[int, tuple[int, int]] = MappingProxyType({})) -> None:
        """As `elect_uncleanly`, where doubtful replicas wait for that."""
        compared = []
        for stream_id, index, state in self.image.troubled_states():
            ends = tuple(
                LogEnd(node, self.image.nodes[node].epoch, *logs.get(node, (0, 0)))
                for node in doubtful_candidates(self.image, state)
            )
            if ends:
                compared.append(ComparedLogs(stream_id, index, state.version, ends))
        self.submit(ElectLongest(tuple(compared)))

    def finish_moves(self) -> None:
        """End the moves whose leaders have handed over."""
        self.submit(FinishMoves(tuple(finishing_moves(self.image))))

    def set_isr(self, name: str, *nodes: int, partition: int = 0) -> None:
        """The leader proposes this ISR."""
        state = self.state(name, partition)
        members = tuple((node, self.image.nodes[node].epoch) for node in sorted(nodes))
        stream_id = self.image.streams[name].id
        change = IsrChange(stream_id, partition, state.leader_epoch, state.version, members)
        self.submit(ChangeIsrs(state.leader, (change,)))

    def begin_due_moves(self, count_max: int) -> None:
        """Begin moves off nodes that give their replicas away, and of what lacks a replica."""
        self.submit(MoveReplicas(due_moves(self.image, count_max=count_max)))

    def state(self, name: str, partition: int = 0) -> PartitionState:
        return self.image.partitions[self.image.streams[name].id][partition]


def isr_change(
    controller: DecidingController, name: str, *, grow: bool, node: int
) -> ControllerRequest:
    state = controller.state(name)
    members = {*state.isr, node} if grow else {*state.isr} - {node} | {state.leader}
    epochs = tuple((each, controller.image.nodes[each].epoch) for each in sorted(members))
    stream_id = controller.image.streams[name].id
    change = IsrChange(stream_id, 0, state.leader_epoch, state.version, epochs)
    return ChangeIsrs(state.leader, (change,))


def check_touched(before: Image, image: Image, ids: set[bytes]) -> None:
    """A command changes no stream but those that it says."""
    names = {**before.index.names, **image.index.names}
    for stream_id, name in names.items():
        if stream_id not in ids:
            assert before.streams.get(name) is image.streams.get(name)
            assert before.partitions.get(stream_id) is image.partitions.get(stream_id)
    changed = {*before.deletions.items()} ^ {*image.deletions.items()}
    assert {stream_id for stream_id, _ in changed} <= ids
