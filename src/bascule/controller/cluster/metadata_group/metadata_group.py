"""The Raft group that agrees on the metadata: its state machine, and decisions on requests.

The leader of the group is the controller. It decides on one request after the other, on the image
as it will be after everything that it has proposed, and answers a request once its commands are
applied. So requests that come together share a write and a sync. Every other node forwards its
requests. Each request has an id, and the image remembers those of the latest requests. So a request
whose answer was lost is repeated without harm, also at another controller.

A controller that loses the leadership loses what it foresaw: its next decision is in another term,
on what the group has applied. No answer depends on what may still be lost: an error, or that there
is nothing to do, is said once everything is committed that it was decided on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from bascule.controller.cluster.decision_log import (
    UNFINISHED,
    cause_of,
    log_changes,
    log_if_committed,
    log_lost_writes,
    log_unclean_elections,
)
from bascule.controller.cluster.metadata_group.disk_check import DiskCheck
from bascule.controller.cluster.metadata_group.foreseen import Foreseen
from bascule.controller.cluster.metadata_group.watching import Watchers
from bascule.controller.metadata_machine import MetadataMachine, OnImage
from bascule.controller.remembered_requests import ENTRIES_KEPT
from bascule.errors import (
    BasculeError,
    Broken,
    CannotReplicate,
    Closed,
    Indeterminate,
    LaggingIndex,
    NodeRefused,
    NotLeader,
    NotSupported,
    RequestExpired,
)
from bascule.host.api import Random
from bascule.metadata.command_codec import RequestId, encode_commands
from bascule.metadata.commands import ChangePartitions, Command, SetClusterId
from bascule.metadata.image import Image
from bascule.metadata.replicas.steps import Steps, settle_in_steps, steps_of
from bascule.metadata.requests import (
    Admit,
    ControllerRequest,
    LoseNode,
    RegisterProcess,
    ReplaceLeader,
    StepDown,
)
from bascule.raft.effects import Role
from bascule.raft.membership import MemberChange, Members
from bascule.raft.store import RaftStore
from bascule.raft_driver.driver import RaftDriver
from bascule.raft_driver.group import Committed, RaftGroup
from bascule.raft_driver.observer import GroupObserver

log = logging.getLogger("bascule.controller")

GROUP: Final = 1
"""The number of the metadata group."""
REQUEST_ID_BYTES: Final = 16
COMMIT_COMMANDS: Final = 1_000
"""Commands in one entry of `commit`."""
APPLIED_AT_A_TIME: Final = 16
"""Entries that are applied before the event loop does other work; each changes some hundred
partitions at most."""
STEPS_IN_FLIGHT: Final = 4
"""Steps of a decision that are not committed yet."""
SUBMIT_SECONDS_MAX: Final = 20.0
"""How long a request is repeated while there is no controller."""
PROPOSE_SECONDS_MAX: Final = 5.0
RETRY_SECONDS: Final = 0.05
DECIDE: Final = "decide"
"""The kind of control request that carries a request to the controller."""

T = TypeVar("T")
_TRY_AGAIN: Final = (NotLeader, CannotReplicate, LaggingIndex, Indeterminate, Broken, Closed)


@dataclass(slots=True)
class ControllerCounts:
    """For metrics. What this node has done as the controller. Counts only grow."""

    unclean_elections: int = 0
    """Partitions that got a leader which was not in sync."""
    silence_reports: int = 0
    """Reports of followers whose leader did not answer them."""
    silent_leaders_replaced: int = 0
    """Partitions that got another leader since theirs did not answer its followers."""


class Peers(Protocol):
    """Requests to other nodes; see `peer_client`."""

    async def control(self, node: int, kind: str, body: bytes, *, timeout_s: float) -> bytes:
        """The answer. Raises: Broken, and what the other node raised."""
        ...


class _Decide(msgspec.Struct, array_like=True):
    """The body of a forwarded request."""

    request_id: bytes
    request: ControllerRequest
    last_index: int = 0
    """See `RequestId`; 0: the node has an earlier release."""


_decode = msgspec.msgpack.Decoder(_Decide)


class MetadataGroup(GroupObserver):
    """This node's member of the metadata group. Belongs to the event loop."""

    def __init__(
        self,
        driver: RaftDriver,
        peers: Peers,
        random: Random,
        *,
        cluster_id: str,
        make_room: Callable[[], None],
    ) -> None:
        """`cluster_id` is that of a new cluster, if this node is its first controller. `make_room`
        is called on a thread before each decision is written; it raises DiskFull."""
        self._driver = driver
        self._peers = peers
        self._random = random
        self._cluster_id = cluster_id
        self.disk_check = DiskCheck(driver.node_id, make_room)
        self._machine = MetadataMachine(
            self._on_new_image, self._on_command, lambda version: self.on_unsupported(version)
        )
        self.watchers = Watchers()
        """Told after each new image, and whenever another node is the controller, or none."""
        self.counts = ControllerCounts()
        self.on_image: OnImage = lambda *_: None
        """Called on the event loop with each new image; set before `open`."""
        self.on_members_changed: Callable[[Members], None] = lambda _: None
        """Called with the members whenever a change of them is committed; set before `open`."""
        self.on_own_removal: Callable[[], None] = lambda: None
        """Called when this node is no member any more; set before `open`."""
        self.on_unsupported: Callable[[int], None] = lambda _: None
        """Called with a cluster version that this release does not support, where the metadata has
        it; the group is of no use then. Set before `open`."""
        self.on_role_changed: Callable[[], None] = lambda: None
        """Called when this node begins or ends to be the controller, also in another term; set
        before `open`."""
        self._group: RaftGroup | None = None
        self._settling = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._foreseen: Foreseen | None = None
        self.told_controller = 0
        """Whom this node asks while no controller reaches it at its new address; 0: nobody."""
        self._settled_term = 0
        """The term in which this controller has looked for what its predecessor left undone."""

    def _on_new_image(self, image: Image, touched: Collection[bytes] | None) -> None:
        self.on_image(image, touched)
        self.watchers.tell()

    def _on_command(self, before: Image, command: Command) -> None:
        """Report and count, as the controller, what operators have to know of."""
        if not self.is_controller or not isinstance(command, ChangePartitions):
            return
        log_lost_writes(before, command)
        self.counts.unclean_elections += log_unclean_elections(before, command)

    @property
    def image(self) -> Image:
        return self._machine.image

    @property
    def controller_id(self) -> int:
        """The controller as far as known, else 0."""
        return 0 if self._group is None else self._group.leader

    @property
    def is_controller(self) -> bool:
        return self._group is not None and self._group.is_leader

    @property
    def term(self) -> int:
        return 0 if self._group is None else self._group.node.term

    @property
    def applied(self) -> int:
        return self._machine.applied

    @property
    def members(self) -> Members:
        """The members in force, committed or not."""
        return Members(()) if self._group is None else self._group.members

    @property
    def are_members_committed(self) -> bool:
        return self._group is not None and self._group.state.is_members_committed

    @property
    def is_only_voter(self) -> bool:
        """Whether nobody else can be the controller."""
        return self.members.voters == (self._driver.node_id,)

    async def open(
        self,
        *,
        voters: Iterable[int] | None,
        votes_from: int = 0,
        cluster_id: str = "",
        store: RaftStore | None = None,
    ) -> None:
        """Join the group; `voters` are its founding members, None on a node that joined later.
        `cluster_id` is that of the cluster where its founders have agreed on it.

        That one votes once its log reaches the index `votes_from`, at which it was admitted.
        Without `store` the group is stored in the driver's directory. Raises: CorruptData, OSError.
        """
        self._cluster_id = cluster_id or self._cluster_id
        founding = None if voters is None else Members.of(*voters)
        self._group = await self._driver.open_group(
            GROUP,
            self._machine,
            initial_members=founding,
            store=store,
            config=msgspec.structs.replace(
                self._driver.config, apply_entries_max=APPLIED_AT_A_TIME
            ),
            observer=self,
            votes_from=votes_from,
        )
        if self.is_only_voter:
            self._group.campaign()

    def on_role(self, role: Role, *, term: int, leader: int) -> None:
        """See `GroupObserver`."""
        self.on_role_changed()
        self.watchers.tell()

    def on_members(self, members: Members, *, is_committed: bool) -> None:
        """See `GroupObserver`."""
        if is_committed:
            self.on_members_changed(members)

    def on_removed(self, members: Members) -> None:
        """See `GroupObserver`."""
        self.on_own_removal()

    async def change_members(self, change: MemberChange, node: int) -> Members:
        """As the controller: change the members of the group; return once that is committed.

        Raises: NotLeader, CannotReplicate, Indeterminate, ConfigError where nothing would change.
        """
        assert self._group is not None
        await self._group.change_members(change, node, timeout_s=PROPOSE_SECONDS_MAX)
        return self._group.members

    async def transfer(self, node: int) -> None:
        """As the controller: have another voter be it. Raises: as `RaftGroup.transfer`."""
        assert self._group is not None
        await self._group.transfer(node)

    async def submit(self, request: ControllerRequest) -> int:
        """Have the controller decide on `request`; return once its effect is in this node's image.

        The result is an index of the log at which the effect is there. Raises: what `decide`
        raises; Indeterminate after `SUBMIT_SECONDS_MAX` without a controller; RequestExpired where
        an earlier attempt may have had an effect that is not remembered any more.
        """
        identity, is_open = self._draw_request(), False
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SUBMIT_SECONDS_MAX
        while True:
            try:
                index = await self._submit_once(identity, request)
                await self.wait_applied(index)
                return index
            except _TRY_AGAIN as error:
                if isinstance(error, RequestExpired):
                    if is_open:
                        raise
                    # No attempt has had an effect: this node's log is far behind.
                    identity = RequestId(identity.id, error.index + ENTRIES_KEPT)
                elif not isinstance(error, NotLeader):
                    is_open = True
                if loop.time() > deadline:
                    what = type(request).__name__.lower()
                    raise Indeterminate(f"no controller has answered ({what}): {error}") from error
                log.debug("no controller yet", extra={"error": str(error)})
            await asyncio.sleep(RETRY_SECONDS)

    def _draw_request(self) -> RequestId:
        id = self._random.bytes(REQUEST_ID_BYTES)
        return RequestId(id, self.applied + ENTRIES_KEPT)

    async def decide_here(self, request: ControllerRequest) -> int:
        """Decide on `request` as the controller, and only as this one; see `submit`.

        Raises: NotLeader, and as `submit`.
        """
        return await self._decide(self._draw_request(), request)

    async def wait_applied(self, index: int) -> None:
        """Return once this node's image has everything up to `index`. Raises: LaggingIndex, Broken
        before the group is open."""
        if self._group is None:
            raise Broken(f"node {self._driver.node_id} has not opened its metadata yet")
        await self._group.barrier(index, timeout_s=SUBMIT_SECONDS_MAX)

    async def handle_decide(self, body: bytes) -> bytes:
        """Answer a forwarded request. Raises: NotLeader, and as `submit`."""
        if self._group is None:  # A node that starts answers before it has opened the group.
            raise NotLeader(None, term=0)
        try:
            asked = _decode.decode(body)
        except msgspec.MsgspecError as error:
            raise NotSupported(
                f"a request of a newer one to node {self._driver.node_id}, the controller: {error}"
            ) from None
        last_index = asked.last_index or self.applied + ENTRIES_KEPT
        identity = RequestId(asked.request_id, last_index)
        return msgspec.msgpack.encode(await self._decide(identity, asked.request))

    async def read(self) -> int:
        """As the controller: an index with all that was committed before. Raises: NotLeader,
        CannotReplicate."""
        if self._group is None:
            raise NotLeader(None, term=0)
        return await self._group.read(timeout_s=PROPOSE_SECONDS_MAX)

    async def settle(self) -> None:
        """As a new controller, finish what the predecessor left undone. Raises: as `submit`."""
        async with self._settling:
            await self._settle()

    async def lead_alone(self) -> None:
        """Return once this node, which is the only voter, is the controller and has the image of
        everything that it has decided before. Raises: as `submit`."""
        assert self._group is not None
        await self._group.wait_leader()
        await self.settle()

    async def commit(self, commands: Sequence[Command]) -> None:
        """Put commands into the image of a node alone, which has decided on them by itself.

        Raises: as `submit`, except for errors of a decision.
        """
        async with self._settling:
            for start in range(0, len(commands), COMMIT_COMMANDS):
                await self._propose(commands[start : start + COMMIT_COMMANDS])

    async def _submit_once(self, identity: RequestId, request: ControllerRequest) -> int:
        assert self._group is not None
        if self._group.is_leader:
            return await self._decide(identity, request)
        controller = self._group.leader or self.told_controller
        if not controller:
            raise NotLeader(None, term=self._group.node.term)
        body = msgspec.msgpack.encode(_Decide(identity.id, request, identity.last_index))
        reply = await self.watchers.ask_while(
            lambda: self._group is not None and self._group.leader in (0, controller),
            self._peers.control(controller, DECIDE, body, timeout_s=PROPOSE_SECONDS_MAX),
            otherwise=f"node {controller} is not the controller any more",
        )
        return int(msgspec.msgpack.decode(reply))

    async def _decide(self, identity: RequestId, request: ControllerRequest) -> int:
        if not isinstance(request, LoseNode | RegisterProcess | ReplaceLeader | StepDown):
            return await self._decide_once(identity, request)
        # The steps go on where nobody waits for them any more: the session that has reported the
        # loss of a node ends with the first of them, and a node that stops may end before them.
        return await asyncio.shield(self._start(self._decide_once(identity, request)))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have a task do this; what it raises is for whoever waits."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _decide_once(self, identity: RequestId, request: ControllerRequest) -> int:
        group, machine = self._group, self._machine
        assert group is not None
        await self.disk_check.pass_through()
        while True:
            if not group.is_leader:
                raise NotLeader(group.leader or None, term=group.node.term)
            if self._settled_term == group.node.term:
                break
            await self.settle()
        # Nothing is awaited from here to the proposal: the decision is on what is appended last.
        if machine.has_done(identity.id):
            return machine.applied
        term = group.node.term
        foreseen = self._foresee(term)
        if (index := foreseen.requests.get(identity.id)) is not None:
            # A repetition; the first one is not answered yet.
            await self._confirm(term, index)
            return index
        self._check_in_time(identity)
        index = foreseen.last
        try:
            self._check_number(foreseen.image, request)
            steps = steps_of(foreseen.image, request)
            del foreseen  # the steps outlive this image
            commands = await self._take_steps(steps, term, cause_of(request))
        except BasculeError:
            await self._confirm(term, index)
            raise
        # Nor from the last step on.
        foreseen = self._foresee(term)
        if not commands:
            await self._confirm(term, foreseen.last)
            return machine.applied
        self._check_in_time(identity)
        before = foreseen.image
        payload = encode_commands(commands, version=before.cluster_version, request=identity)
        committing = group.propose_nowait(payload, timeout_s=PROPOSE_SECONDS_MAX)
        foreseen.add(identity.id, commands, group.node.log.last)
        committed = await committing
        foreseen.requests.pop(identity.id, None)
        log_changes(before, commands, cause_of(request))
        return committed.index

    def _check_in_time(self, identity: RequestId) -> None:
        """Raises: RequestExpired where the next entry would not have an effect."""
        assert self._group is not None
        index = self._group.node.log.last + 1
        if index > identity.last_index:
            raise RequestExpired(identity.last_index, index)

    async def _take_steps(self, steps: Steps, term: int, cause: str) -> tuple[Command, ...]:
        """Propose what comes before the last step, whose commands are returned: they are decided on
        what is appended last. `cause` is for the log.

        Raises: NotLeader in another term; what the steps raise.
        """
        group = self._group
        assert group is not None
        committing: list[asyncio.Future[Committed]] = []
        try:
            commands = next(steps)
            while True:
                if commands:
                    foreseen = self._foresee(term)
                    payload = encode_commands(commands, version=foreseen.image.cluster_version)
                    proposed = group.propose_nowait(payload, timeout_s=PROPOSE_SECONDS_MAX)
                    proposed.add_done_callback(
                        partial(log_if_committed, foreseen.image, commands, cause)
                    )
                    committing.append(proposed)
                    foreseen.add(b"", commands, group.node.log.last)
                if len(committing) >= STEPS_IN_FLIGHT:
                    await committing[-STEPS_IN_FLIGHT]
                await asyncio.sleep(0)
                if not group.is_leader or group.node.term != term:
                    raise NotLeader(group.leader or None, term=group.node.term)
                commands = steps.send(self._foresee(term).image)
        except StopIteration as last:
            found: tuple[Command, ...] = last.value
            return found
        except BasculeError:
            if committing and self._settled_term == term:
                # Some steps are done, and the others have to be: as a new controller would.
                self._settled_term = 0
                self._start(self._settle_again(term))
            raise

    async def _settle_again(self, term: int) -> None:
        """Finish what was begun, as long as this node is the controller of this term."""
        while self.is_controller and self.term == term:
            try:
                await self.settle()
                break
            except Closed:
                break
            except BasculeError as error:
                log.debug("not settled yet", extra={"error": str(error)})
            await asyncio.sleep(RETRY_SECONDS)

    def _foresee(self, term: int) -> Foreseen:
        """The image as it will be after every entry of the log of this leader."""
        found, machine = self._foreseen, self._machine
        if found is None or found.term != term or found.last <= machine.applied:
            found = self._foreseen = Foreseen(term, machine.image, machine.applied)
        found.forget(machine.applied)
        return found

    async def _confirm(self, term: int, index: int) -> None:
        """Return once everything up to `index` is committed and applied, and no other controller
        can have changed the image meanwhile. Raises: NotLeader, LaggingIndex, CannotReplicate."""
        group = self._group
        assert group is not None
        if index > self._machine.applied:
            await group.barrier(index, timeout_s=PROPOSE_SECONDS_MAX)
        await group.read(timeout_s=PROPOSE_SECONDS_MAX)
        if group.node.term != term:
            raise NotLeader(group.leader or None, term=group.node.term)

    def _check_number(self, image: Image, request: ControllerRequest) -> None:
        """A number is free for another directory once the group has no member of it: the old one
        counts until then. Raises: NodeRefused, CannotReplicate."""
        if not isinstance(request, Admit):
            return
        members, number = self.members, request.node.node_id
        if number in image.removed:
            if number in members or not self.are_members_committed:
                raise CannotReplicate(f"the removal of node {number} is under way")
        elif number in members and number not in image.nodes:
            raise NodeRefused(number, "its number is that of a founding node; use another number")

    async def _settle(self) -> None:
        """Once in each term: apply what is committed, and finish what was begun."""
        group = self._group
        assert group is not None
        if self._settled_term == (term := group.node.term):
            return
        await group.read(timeout_s=PROPOSE_SECONDS_MAX)
        if not self._machine.image.cluster_id:
            await self._propose((SetClusterId(self._cluster_id),))
        await self.disk_check.pass_through()
        steps = settle_in_steps(self._foresee(term).image)
        commands = await self._take_steps(steps, term, UNFINISHED)
        if commands:
            before = self._foresee(term).image
            await self._propose(commands)
            log_changes(before, commands, UNFINISHED)
        self._settled_term = term

    async def _propose(self, commands: Sequence[Command]) -> int:
        assert self._group is not None
        await self.disk_check.pass_through()
        payload = encode_commands(commands, version=self._machine.image.cluster_version)
        return (await self._group.propose(payload, timeout_s=PROPOSE_SECONDS_MAX)).index
