"""Any history of members that join, die, leave, come back and are slow keeps the promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.groups.classic import ClassicGroup, GroupState, JoinAnswer
from bascule.groups.classic.member_table import MemberTable
from bascule.wire.error_codes import ErrorCode
from support.classic_groups import SESSION_MS, GroupDriver

CLIENTS = 6
STATIC = 2
"""The first clients have instance ids."""
VERSIONS = (9, 5, 5, 3, 9, 3)
MEMBERS_MAX = 7
REBALANCE_MS = 15_000
LONG_SESSION_MS = 40_000
STEP_MS = 1_000


@dataclass
class Client:
    """One consumer as a well-behaved client library runs it."""

    number: int
    member_id: str = ""
    generation: int = -1
    leads: JoinAnswer | None = None
    ticket: int | None = None
    stage: str = "outside"
    """outside, joining, joined, syncing or member."""

    @property
    def instance_id(self) -> str | None:
        return f"i{self.number}" if self.number < STATIC else None


@dataclass
class History:
    """Clients of one group, and what all of them were told."""

    driver: GroupDriver = field(
        default_factory=lambda: GroupDriver(initial_delay_ms=500, members_max=MEMBERS_MAX)
    )
    clients: list[Client] = field(default_factory=lambda: [Client(n) for n in range(CLIENTS)])
    told: dict[int, tuple[str | None, str]] = field(default_factory=dict)
    """Generation -> protocol and leader."""
    assigned: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """Generation and assignment -> the client that has it."""
    gone: set[int] = field(default_factory=set)
    """Tickets whose connection is gone, or whose client has died."""
    last_generation: int = 0

    def act(self, client: Client) -> None:
        """The next step of a client."""
        if client.stage == "outside":
            self.join(client)
        elif client.stage == "joining":
            self.on_joined(client)
        elif client.stage == "joined":
            self.sync(client)
        elif client.stage == "syncing":
            self.on_synced(client)
        else:
            error = self.driver.heartbeat(client.member_id, client.generation, client.instance_id)
            self.on_error(client, error)

    def join(self, client: Client) -> None:
        client.stage = "joining"
        client.ticket = self.driver.join(
            client.member_id,
            instance_id=client.instance_id,
            version=VERSIONS[client.number],
            rebalance_timeout_ms=REBALANCE_MS,
            session_timeout_ms=LONG_SESSION_MS if client.number == 0 else SESSION_MS,
        )

    def on_joined(self, client: Client) -> None:
        answer: Any = self.driver.answers.get(client.ticket or 0)
        if answer is None:
            return
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id, client.stage = answer.member_id, "outside"
        elif answer.error:
            self.on_error(client, answer.error)
        else:
            assert answer.member_id
            client.member_id, client.generation = answer.member_id, answer.generation
            client.stage = "joined"
            leads = bool(answer.members) and not answer.skip_assignment
            client.leads = answer if leads else None
            protocol, leader = self.told.setdefault(
                answer.generation, (answer.protocol, answer.leader)
            )
            assert answer.protocol == protocol
            assert answer.leader == leader or client.number < STATIC or leader not in self.ids()

    def ids(self) -> set[str]:
        return {client.member_id for client in self.clients if client.number >= STATIC}

    def sync(self, client: Client) -> None:
        brought = []
        if client.leads is not None:
            brought = [
                (m.member_id, b"%d:%s" % (client.generation, m.member_id.encode()))
                for m in client.leads.members
            ]
        client.stage = "syncing"
        client.ticket = self.driver.sync(
            client.member_id, client.generation, client.instance_id, assignments=brought
        )

    def on_synced(self, client: Client) -> None:
        answer: Any = self.driver.answers.get(client.ticket or 0)
        if answer is None:
            return
        if answer.error:
            self.on_error(client, answer.error)
            return
        client.stage = "member"
        assert answer.assignment.startswith(b"%d:" % client.generation)
        owner = self.assigned.setdefault((client.generation, answer.assignment), client.number)
        assert owner == client.number, "two members with one assignment"

    def on_error(self, client: Client, error: ErrorCode) -> None:
        if not error:
            return
        client.stage = "outside"
        if error is not ErrorCode.REBALANCE_IN_PROGRESS:
            assert error in (
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.GROUP_MAX_SIZE_REACHED,
            ), error
            client.member_id = ""

    def die(self, client: Client, *, disconnects: bool) -> None:
        """Another process begins in its place; it may be unheard of that the first has ended."""
        if client.ticket is not None:
            self.gone.add(client.ticket)
            if disconnects:
                self.driver.disconnect(client.ticket)
        self.clients[client.number] = Client(client.number)

    def leave(self, client: Client) -> None:
        self.driver.leave((client.member_id, client.instance_id))
        if client.ticket is not None:
            self.gone.add(client.ticket)
        self.clients[client.number] = Client(client.number)

    def restart(self) -> None:
        """Another node coordinates the group: it knows what was stored."""
        self.driver.group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.driver.carry_out()
        self.driver.held.clear()
        if self.driver.stored is None:
            self.driver.group = ClassicGroup(self.driver.limits)
            self.last_generation = 0
            self.told.clear()
            self.assigned.clear()
        else:
            self.driver.group = ClassicGroup.restore(
                self.driver.stored, self.driver.limits, self.driver.now_ms
            )
            self.last_generation = self.driver.group.generation
            # What was told of later generations was not stored: nobody was assigned anything.
            self.told = {g: t for g, t in self.told.items() if g <= self.last_generation}
            assert all(g <= self.last_generation for g, _ in self.assigned)

    def check(self) -> None:
        group = self.driver.group
        assert group.generation >= self.last_generation
        self.last_generation = group.generation
        assert len(group.members) <= MEMBERS_MAX
        waits = group.next_deadline_ms() is not None or self.driver.held
        assert group.is_forgettable or waits
        assert bool(group.members) == (group.state is not GroupState.EMPTY)
        if group.state is GroupState.STABLE:
            assert group.leader in group.members
        self.check_sums()

    def check_sums(self) -> None:
        """The sums and indexes are what the members say, counted anew."""
        table, members = self.driver.group._table, list(self.driver.group.members.values())
        anew = MemberTable()
        for member in members:
            anew.add(member)
        anew.pending.update(table.pending)
        assert table.said_bytes == anew.said_bytes == sum(m.size_bytes for m in members)
        assert table.assigned_bytes == anew.assigned_bytes
        assert table.kept_bytes == anew.kept_bytes
        assert table._supporters == anew._supporters
        assert table.static == anew.static
        assert table.joins == {t: m for m in members if (t := m.join_ticket) is not None}
        assert table.syncs == {t: m for m in members if (t := m.sync_ticket) is not None}
        due = [*table.pending.values(), *(d for m in members if (d := m.deadline_ms) is not None)]
        noted_ms = table.next_deadline_ms()
        assert not due or (noted_ms is not None and noted_ms <= min(due))

    def settle(self) -> None:
        """All clients go on undisturbed; then they share a generation, and nothing waits."""
        self.driver.holds_stores = False
        self.driver.carry_out()
        for _ in range(10 * LONG_SESSION_MS // STEP_MS):
            for client in self.clients:
                self.act(client)
            self.driver.pass_time(STEP_MS)
            self.check()
            generations = {c.generation for c in self.clients if c.stage == "member"}
            if (
                len(self.driver.group.members) == CLIENTS
                and self.driver.group.state is GroupState.STABLE
                and generations == {self.driver.group.generation}
                and all(client.stage == "member" for client in self.clients)
            ):
                break
        else:
            raise AssertionError([(c.stage, c.generation) for c in self.clients])
        tickets = set(range(1, self.driver.ticket()))
        assert tickets - self.driver.answers.keys() <= self.gone


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["act"] * 12
            + ["all"] * 3
            + ["time"] * 4
            + ["die", "die", "vanish", "leave", "hold", "stored", "fail", "long", "restart"]
        ),
        st.integers(0, CLIENTS - 1),
    ),
    max_size=120,
)


@settings(max_examples=400, deadline=None)
@given(steps=STEPS)
def test_any_history_keeps_the_promises(steps: list[tuple[str, int]]) -> None:
    history = History()
    driver = history.driver
    for step, number in steps:
        client = history.clients[number]
        match step:
            case "act":
                history.act(client)
            case "all":
                for each in history.clients:
                    history.act(each)
            case "time":
                driver.pass_time(STEP_MS)
            case "long":
                driver.pass_time(SESSION_MS)
            case "die":
                history.die(client, disconnects=True)
            case "vanish":
                history.die(client, disconnects=False)
            case "leave" if client.member_id:
                history.leave(client)
            case "hold":
                driver.holds_stores = True
            case "stored" if driver.held:
                driver.finish_store()
            case "fail" if driver.held:
                driver.finish_store(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            case "restart":
                history.restart()
        history.check()
    history.settle()
