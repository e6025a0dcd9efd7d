"""What operators, and the controller of itself, do to the model of `replicated_logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bascule.metadata.replicas.balance import due_balancing
from bascule.metadata.replicas.reassignment import due_moves, finishing_moves
from bascule.metadata.requests import (
    Alter,
    BalanceLeaders,
    BalanceReplicas,
    CancelMoves,
    Drain,
    ElectLeaders,
    FinishLeaving,
    FinishMoves,
    GiveLeaders,
    Leave,
    MoveReplicas,
    Reassign,
    Resume,
    SetBalance,
    Stay,
)
from bascule.model import SyncPolicy

if TYPE_CHECKING:
    from support.replicated_logs import ReplicatedLogs


def administer(scene: ReplicatedLogs, kind: str, node: int, name: str) -> None:
    """Do one thing of a kind to a node, or a stream; nothing where it cannot be now."""
    number = scene.random.randint(1, 3)
    match kind:
        case "create" if len(scene.image.streams) < 3:
            scene.create(f"s{scene.draw()}", number)
        case "needs" if scene.are_whole(name):
            scene.submit(Alter(name, {"min_isr": scene.random.randint(0, 3)}))
        case "replicas":
            scene.submit(Alter(name, {"replicas": number}))
        case "unclean":
            scene.submit(Alter(name, {"unclean_election": scene.random.random() < 0.5}))
        case "sync":
            _alter_sync(scene, name)
        case "reassign":
            scene.submit(Reassign(name, None, tuple(scene.random.sample(scene.numbers, number))))
        case "leave":
            scene.submit(Leave(node, force=False))
        case "stay":
            scene.submit(Stay(node))
        case "force" if scene.leaves_whole_logs(node):
            scene.submit(Leave(node, force=True))
        case "admit" if node not in scene.image.nodes:
            scene.admit(node)
        case "upkeep":
            scene.submit(FinishMoves(tuple(finishing_moves(scene.image))))
            scene.submit(MoveReplicas(due_moves(scene.image, count_max=3)))
            scene.submit(FinishLeaving(node))
        case "balance":
            scene.submit(BalanceLeaders(2))
            scene.submit(GiveLeaders(2))
        case "cancel":
            scene.submit(CancelMoves(name, None))
        case "give":
            scene.submit(ElectLeaders(name, None, node if number > 1 else None))
        case "drain":
            scene.submit(Drain(node, empties=number > 1))
        case "resume":
            scene.submit(Resume(node))
        case "even":
            scene.submit(SetBalance(True))
            moves = due_balancing(scene.image, count_max=2)
            scene.submit(BalanceReplicas(moves, by_itself=False))
        case _:
            pass


def _alter_sync(scene: ReplicatedLogs, name: str) -> None:
    policy = scene.random.choice(list(SyncPolicy))
    if policy is SyncPolicy.ALWAYS and not scene.processes.keys() >= {*scene.image.alive()}:
        return  # see decision 61: a machine that went down, and the controller has not noticed
    if scene.submit(Alter(name, {"sync": policy.value})) and policy is SyncPolicy.ALWAYS:
        for node in scene.numbers:
            scene.see(node)
