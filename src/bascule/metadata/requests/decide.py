"""The decision on each request to the controller: commands, or an error."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bascule.errors import CannotAlter, ConfigError, FencedEpoch, UnknownPartition, UnknownStream
from bascule.metadata import controller
from bascule.metadata.apply import apply
from bascule.metadata.commands import (
    AlterStream,
    ChangePartitions,
    ClusterCommand,
    Command,
    CreateStream,
    FenceNode,
    ForgetDeletions,
    PartitionChange,
    RegisterNode,
    SetBalancing,
    SetCatchUpRate,
    SetClusterVersion,
)
from bascule.metadata.controller import Existing
from bascule.metadata.elections import (
    acknowledge_loss,
    change_isr,
    changes_after_less_needed,
    changes_after_loss,
    changes_after_lost_writes,
    changes_after_return,
    changes_after_silence,
    changes_before_stop,
    elect_longest,
    elect_uncleanly,
    resign,
)
from bascule.metadata.image import Image
from bascule.metadata.nodes import (
    admit,
    check_registration,
    drain,
    finish_leaving,
    leave,
    note_nats,
    note_stopping,
    resume,
    stay,
)
from bascule.metadata.replicas.balance import balance_replicas
from bascule.metadata.replicas.eligible import unsynced_away
from bascule.metadata.replicas.leadership import (
    elect_leaders,
    moves_from_drained,
    moves_from_lacking,
    moves_to_preferred,
)
from bascule.metadata.replicas.placement import choose_target, count_load, place_partitions
from bascule.metadata.replicas.reassignment import (
    MOVED,
    begin_moves,
    cancel_moves,
    finish_moves,
    reassign,
)
from bascule.metadata.requests.kinds import (
    AcknowledgeLoss,
    Admit,
    Alter,
    BalanceLeaders,
    BalanceReplicas,
    CancelMoves,
    ChangeIsrs,
    ControllerRequest,
    Create,
    Delete,
    Drain,
    ElectLeaders,
    ElectLongest,
    ElectUncleanly,
    FinishLeaving,
    FinishMoves,
    Forget,
    GiveLeaders,
    Leave,
    LeaveLacking,
    LimitCatchUp,
    LookUp,
    LoseNode,
    MoveReplicas,
    NoteNats,
    OperatorRequest,
    PartitionRequest,
    RaiseVersion,
    Reassign,
    RegisterProcess,
    ReplaceLeader,
    Resign,
    Resume,
    SetBalance,
    SetPaused,
    SettingRequest,
    Stay,
    StepDown,
)
from bascule.metadata.versions import check_table, version_for_all
from bascule.model import PartitionState, StreamDefinition, SyncPolicy


def decide(image: Image, request: ControllerRequest) -> tuple[Command, ...]:
    """The commands that fulfil `request`; empty where there is nothing to do.

    Raises: the errors of `controller`, `placement` and `elections`.
    """
    match request:
        case Create():
            return _create(image, request)
        case Alter():
            return _alter(image, request)
        case SetPaused():
            choose = controller.pause_stream if request.paused else controller.resume_stream
            decision = choose(image, request.name)
            return () if isinstance(decision, Existing) else (decision,)
        case Delete():
            return _delete(image, request)
        case RegisterProcess() | LoseNode() | Admit() | LookUp() | NoteNats():
            return _decide_on_node(image, request)
        case Leave() | Stay() | FinishLeaving() | Drain() | Resume():
            return _decide_for_operator(image, request)
        case SetBalance() | LimitCatchUp() | BalanceReplicas() | RaiseVersion():
            return _decide_on_setting(image, request)
        case Forget():
            ids = tuple(each for each in request.ids if each in image.deletions)
            return (ForgetDeletions(ids, request.node_id),) if ids else ()
        case _:
            return _decide_on_partitions(image, request)


def _decide_on_node(
    image: Image, request: RegisterProcess | LoseNode | Admit | LookUp | NoteNats
) -> tuple[Command, ...]:
    match request:
        case RegisterProcess():
            return _register(image, request)
        case LoseNode():
            return _lose(image, request)
        case Admit():
            return admit(image, request.node)
        case LookUp():
            check_registration(image, request.node)
            return ()
        case NoteNats():
            return note_nats(image, request.notes)


def _decide_on_setting(image: Image, request: SettingRequest) -> tuple[Command, ...]:
    match request:
        case SetBalance():
            if image.is_balancing == request.is_balancing:
                return ()
            return (SetBalancing(request.is_balancing),)
        case LimitCatchUp():
            rate = request.bytes_per_second
            return () if image.catch_up_rate == rate else (SetCatchUpRate(rate),)
        case BalanceReplicas():
            return balance_replicas(image, request.moves, by_itself=request.by_itself)
        case RaiseVersion():
            version = version_for_all(image, request.members)
            return () if version == image.cluster_version else (SetClusterVersion(version),)


def _decide_for_operator(image: Image, request: OperatorRequest) -> tuple[Command, ...]:
    match request:
        case Leave():
            return leave(image, request.node_id, force=request.force)
        case Stay():
            return stay(image, request.node_id)
        case FinishLeaving():
            return finish_leaving(image, request.node_id)
        case Drain():
            drained = drain(image, request.node_id, empties=request.empties, reason=request.reason)
            for command in drained:
                image = apply(image, command)
            change = moves_from_drained(image)
            return drained if change is None else (*drained, change)
        case Resume():
            return resume(image, request.node_id)


def _decide_on_partitions(image: Image, request: PartitionRequest) -> tuple[Command, ...]:
    change: ChangePartitions | None
    match request:
        case ChangeIsrs():
            return _change_isrs(image, request)
        case Resign():
            change = resign(
                image,
                request.stream_id,
                request.partition,
                node=request.node_id,
                leader_epoch=request.leader_epoch,
                is_whole=request.is_whole,
            )
        case ReplaceLeader():
            change = changes_after_silence(image, request.node_id, request.epoch, request.reporters)
        case StepDown():
            return _step_down(image, request)
        case Reassign():
            change = _reassign(image, request)
        case ElectUncleanly():
            change = elect_uncleanly(image, request.compared, by_operator=request.by_operator)
        case ElectLongest():
            change = elect_longest(image, request.compared)
        case AcknowledgeLoss():
            definition = _stream(image, request.name)
            change = acknowledge_loss(image, definition.id, request.partition)
        case MoveReplicas():
            change = begin_moves(image, request.moves)
        case CancelMoves():
            change = cancel_moves(image, _stream(image, request.name), request.partition)
        case ElectLeaders():
            change = elect_leaders(
                image,
                _stream(image, request.name),
                partition=request.partition,
                node=request.node_id,
            )
        case FinishMoves():
            change = finish_moves(image, request.finishing)
        case GiveLeaders():
            change = moves_from_drained(image, count_max=request.count_max)
        case LeaveLacking():
            change = moves_from_lacking(
                image, request.lacking, request.able, count_max=request.count_max
            )
        case BalanceLeaders():
            change = moves_to_preferred(image, count_max=request.count_max)
    return () if change is None else (change,)


def settle(image: Image) -> tuple[Command, ...]:
    """What a new controller finds undone: its predecessor may have stopped between decisions."""
    commands: list[ClusterCommand] = []
    for node_id, node in image.nodes.items():
        if not node.alive and (change := changes_after_loss(image, node_id)) is not None:
            commands.append(change)
            image = apply(image, change)
    if (change := changes_after_return(image)) is not None:
        commands.append(change)
    return tuple(commands)


def _create(image: Image, request: Create) -> tuple[Command, ...]:
    present = image.streams.get(request.name)
    if present is not None and present.id == request.id:
        return ()  # The same request again.
    decision = controller.create_stream(
        image,
        request.name,
        request.config,
        id=request.id,
        now_ms=request.now_ms,
        internal=request.internal,
    )
    if isinstance(decision, Existing):
        return ()
    config = request.config
    check_table(image, config)
    placed = place_partitions(image, config.partitions, replicas=config.replicas)
    return (CreateStream(decision.definition, placed),)


def _alter(image: Image, request: Alter) -> tuple[Command, ...]:
    # The number of copies of the cluster's own streams is a matter of its operators.
    internal = request.internal or request.changes.keys() == {"replicas"}
    decision = controller.alter_stream(image, request.name, request.changes, internal=internal)
    if isinstance(decision, Existing):
        return ()
    config, before = decision.config, image.streams[request.name]
    check_table(image, config)
    if config.sync is SyncPolicy.ALWAYS and (away := unsynced_away(image, before)):
        raise CannotAlter(
            before.name,
            "sync",
            present=str(before.config.sync),
            asked=str(config.sync),
            instead=f"the replicas on nodes {', '.join(map(str, away))} count as up to date, are "
            "not alive, and may have records that are not synced; start them first",
        )
    more = config.partitions - before.config.partitions
    added = place_partitions(image, more, replicas=config.replicas) if more else ()
    altered = AlterStream(decision.name, decision.id, config, added)
    commands: list[Command] = []
    if config.replicas != before.config.replicas:
        moved = _change_replicas(image, before, replace(before, config=config))
        # The moves first: with more replicas the stream may need more of them in sync.
        commands += [ChangePartitions(moved)] if moved else []
    commands.append(altered)
    for command in commands:
        image = apply(image, command)
    for choose in (changes_after_less_needed, changes_after_return):
        if (change := choose(image, (before.id,))) is not None:
            commands.append(change)
            image = apply(image, change)
    return tuple(commands)


def _change_replicas(
    image: Image, before: StreamDefinition, after: StreamDefinition
) -> tuple[PartitionChange, ...]:
    """Moves of all partitions of a stream to another number of replicas. Raises: NotEnoughNodes."""
    load = count_load(image)
    less = before.min_isr if before.min_isr < after.min_isr else 0
    changes = []
    for index, state in enumerate(image.partitions.get(before.id, ())):
        target = choose_target(image, state, after.config.replicas, load)
        if set(target) != set(state.target or state.replicas):
            moved = reassign(image, after, state, target, min_isr=less)
            changes.append(_moved(before.id, index, state, moved))
    return tuple(changes)


def _moved(
    stream_id: bytes, index: int, before: PartitionState, after: PartitionState
) -> PartitionChange:
    reason = MOVED if after.leader != before.leader else ""
    return PartitionChange(stream_id, index, after, reason)


def _stream(image: Image, name: str) -> StreamDefinition:
    definition = image.streams.get(name)
    if definition is None:
        raise UnknownStream(name)
    return definition


def _reassign(image: Image, request: Reassign) -> ChangePartitions | None:
    definition = _stream(image, request.name)
    states = image.partitions[definition.id]
    chosen = range(len(states)) if request.partition is None else (request.partition,)
    if request.partition is not None and not 0 <= request.partition < len(states):
        raise UnknownPartition(request.name, request.partition, len(states))
    moving = {node for index in chosen for node in states[index].target}
    _check_replicas(image, definition, request.replicas, moving)
    changes = []
    for index in chosen:
        state = states[index]
        if request.replicas != (state.target or state.replicas):
            moved = reassign(image, definition, state, request.replicas)
            changes.append(_moved(definition.id, index, state, moved))
    return ChangePartitions(tuple(changes)) if changes else None


def _check_replicas(
    image: Image, definition: StreamDefinition, replicas: tuple[int, ...], moving: Collection[int]
) -> None:
    """`moving` are the nodes that partitions move to already. Raises: ConfigError for nodes that
    cannot be the replicas of a stream."""
    usable = image.usable()
    if len(set(replicas)) != len(replicas):
        raise ConfigError(f"replicas names a node twice: {list(replicas)}", field="replicas")
    if len(replicas) != definition.config.replicas:
        raise ConfigError(
            f"replicas names {len(replicas)} nodes, and stream {definition.name!r} has "
            f"{definition.config.replicas} replicas: name as many, or change their number with "
            "`bascule stream alter --replicas`",
            field="replicas",
        )
    for node in replicas:
        if node not in usable:
            stands = (
                "; the move to it that is under way still stands: `bascule stream reassign "
                f"{definition.name} --cancel` takes it back"
                if node in moving
                else ""
            )
            raise ConfigError(
                f"replicas names node {node}, which cannot get replicas: the nodes that are alive, "
                f"stay and are not drained are {usable}{stands}",
                field="replicas",
            )


def _delete(image: Image, request: Delete) -> tuple[Command, ...]:
    present = image.streams.get(request.name)
    if request.id and (present is None or present.id != request.id):
        return ()
    return (controller.delete_stream(image, request.name, internal=request.internal),)


def _register(image: Image, request: RegisterProcess) -> tuple[Command, ...]:
    node = request.node
    check_registration(image, node)
    present = image.nodes.get(node.node_id)
    if present is not None and present.alive and present.incarnation == node.incarnation:
        same = present == replace(
            node,
            epoch=present.epoch,
            alive=True,
            directory=node.directory or present.directory,
            is_leaving=present.is_leaving,
            is_stopping=present.is_stopping,
            is_drained=present.is_drained,
            is_emptied=present.is_emptied,
            drain_reason=present.drain_reason,
            lacks_nats_since_ms=present.lacks_nats_since_ms,
        )
        return () if same else (RegisterNode(node),)
    commands: list[ClusterCommand] = []
    if present is not None:
        if present.alive:
            # Nobody noticed the end of its last process, which led until now.
            commands.append(FenceNode(present.node_id, present.epoch))
            image = apply(image, commands[-1])
        # Also where the loss was noticed: in a large image it has steps, which may not be done.
        if (change := changes_after_loss(image, present.node_id, is_back=True)) is not None:
            commands.append(change)
            image = apply(image, change)
    if request.has_lost_writes:
        change = changes_after_lost_writes(image, node.node_id)
        commands += [] if change is None else [change]
        image = image if change is None else apply(image, change)
    commands.append(RegisterNode(node))
    image = apply(image, commands[-1])
    if (change := changes_after_return(image)) is not None:
        commands.append(change)
    return tuple(commands)


def _step_down(image: Image, request: StepDown) -> tuple[ClusterCommand, ...]:
    stopping = note_stopping(image, request.node_id, request.epoch)
    for command in stopping:
        image = apply(image, command)
    change = changes_before_stop(image, request.node_id, request.epoch)
    return stopping if change is None else (*stopping, change)


def _change_isrs(image: Image, request: ChangeIsrs) -> tuple[ClusterCommand, ...]:
    """Those that can take effect; the leader sees in the image which did."""
    changes = []
    for each in request.changes:
        try:
            change = change_isr(
                image,
                each.stream_id,
                each.partition,
                leader=request.leader,
                leader_epoch=each.leader_epoch,
                version=each.version,
                members=each.members,
            )
        except (FencedEpoch, UnknownPartition):
            continue  # It was deposed, or the stream is deleted.
        if change is not None:
            changes.append(change)
    return (ChangePartitions(tuple(changes)),) if changes else ()


def _lose(image: Image, request: LoseNode) -> tuple[ClusterCommand, ...]:
    node = image.nodes.get(request.node_id)
    if node is None or not node.alive or node.epoch != request.epoch:
        return ()
    fence = FenceNode(request.node_id, request.epoch)
    change = changes_after_loss(apply(image, fence), request.node_id)
    return (fence,) if change is None else (fence, change)
