"""`SimTableClient`: reads and writes one table through all nodes.

It writes over NATS and at nodes, and reads over the client listener and at nodes. What it reads is
at most linearizable, of a session, or what a replica has, for the whole run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from bascule.client.publisher import decode_reply
from bascule.errors import (
    BasculeError,
    Indeterminate,
    OffsetOutOfRange,
    PublishRejected,
    WrongVersion,
)
from bascule.log_connection import LogConnection
from bascule.sim.checkers.base import InvariantBroken
from bascule.sim.checkers.history import (
    ClientOperation,
    OperationKind,
    OperationResult,
    OperationStatus,
)
from bascule.sim.cluster.consumers.consumer import CLIENT_PORT, ClientMachine
from bascule.sim.cluster.environment import ClusterEnvironment
from bascule.sim.cluster.publishers import Publication
from bascule.sim.cluster.streams import StreamPlan
from bascule.sim.cluster.tables.checks import FRESH_SESSION, IN_LOG, TableChecks
from bascule.sim.cluster.tables.requests import NoAnswer, NodeRequests
from bascule.sim.cluster.world.loop import NS
from bascule.sim.cluster.world.nats import NatsMessage
from bascule.sim.cluster.world.network import host_of
from bascule.sim.cluster.world.process import SimProcess
from bascule.sim.cluster.world.threads import Event, sleep
from bascule.table_results import TableValues
from bascule.wire.ack_codes import is_not_caught_up
from bascule.wire.messages.table_reads import TableReadsRequest, TableReadsResponse
from bascule.wire.tables.conditions import expected_sequence, message_headers, refusal_of
from bascule.wire.tables.read_batches import KeyRead, decode_answers, encode_reads

FIRST_CLIENT: Final = 400
"""Clients have machines with numbers from here on."""
LINEARIZABLE: Final = "linearizable"
SESSION: Final = "session"
EVENTUAL: Final = "eventual"
CONSISTENCIES: Final = (LINEARIZABLE, SESSION, EVENTUAL)
EXPIRING: Final = b"brief."
"""The beginning of keys that have a time to live."""
KINDS: Final = (EXPIRING, b"count.", b"value.")
"""The beginnings of keys that clients use."""
TTL_SECONDS: Final = (1.0, 3.0)
KEYS: Final = 3
KEY_NS: Final = 4 * NS
"""After that other keys are used: histories stay short enough to be decided."""
ANSWER_SECONDS: Final = 12.0
"""A node gives up after 10 s."""
LISTENER_SECONDS: Final = 2.5
WRITE_NS: Final = 10 * NS
RETRY_SECONDS: Final = 0.05
PAUSE_SECONDS: Final = (0.01, 0.4)
LOOKS: Final = 0.4
"""How likely a client is to look elsewhere at what it has just written."""
MOVES: Final = 0.15
"""How likely a client is to go to another node after an operation."""
UNKNOWN: Final = OperationResult(OperationStatus.UNKNOWN)
FAILED: Final = OperationResult(OperationStatus.FAILED)
SWAPPED: Final = OperationResult(OperationStatus.OK, swapped=True)
NOT_SWAPPED: Final = OperationResult(OperationStatus.OK)


def period_of(key: bytes) -> int:
    """In which time of `KEY_NS` clients use a key; -1: it is another publisher's."""
    return int(key.split(b".")[1]) if key.startswith(KINDS) else -1


class Seen(NamedTuple):
    """What a read has found."""

    version: int | None
    """None: no value."""
    value: bytes | None


class SimTableClient:
    """One client for the whole run."""

    def __init__(
        self,
        world: ClusterEnvironment,
        number: int,
        plan: StreamPlan,
        consistency: str,
        requests: NodeRequests,
        checks: TableChecks,
        on_ack: Callable[[Publication, dict[str, Any]], None],
    ) -> None:
        self.world = world
        self.plan = plan
        self.consistency = consistency
        self.machine = ClientMachine(world, FIRST_CLIENT + number)
        self.sent: list[Publication] = []
        """All its writes."""
        self.given_up: list[Publication] = []
        self.answered = 0
        """Operations with a result."""
        self.key = ""
        """Of its latest operation, which may be under way."""
        self.is_stopping = self.is_idle = False
        self._number = number
        self._requests = requests
        self._checks = checks
        self._on_ack = on_ack
        self._node = 0
        self._connection: LogConnection | None = None
        self._seen = 0
        """A position of the session: everything below was written or read here."""
        self._fresh = FRESH_SESSION * (number + 1)

    @property
    def name(self) -> str:
        return f"{self.consistency} client {self.machine.node} of {self.plan.name}"

    def start(self) -> None:
        process = SimProcess(self.world.loop, self.machine, 1)
        process.context.run(process.start_thread, self._run, "table client")

    # -- on the thread of the process -----------------------------------------------------------

    def _run(self) -> None:
        prng = self.world.prng
        self._move()
        while not self.is_stopping:
            self._step()
            if prng.happens(MOVES):
                self._move()
            low, high = PAUSE_SECONDS
            sleep(prng.log_uniform(low, high))
        self._move()
        self.is_idle = True

    def _move(self) -> None:
        """Go to another node."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._node = self.world.prng.pick(list(self.world.founders))

    def _step(self) -> None:
        prng, period = self.world.prng, self.world.loop.now_ns // KEY_NS
        if prng.happens(0.15):
            self.key = key = f"count.{period}"
            if prng.happens(0.6):
                self._increment(key)
            else:
                self._read(key)
            return
        if prng.happens(0.1):
            self.key = key = f"{EXPIRING.decode()}{period}"
            if prng.happens(0.5):
                self._put_briefly(key)
            else:
                self._read_alone(key)
            return
        self.key = key = f"value.{period}.{prng.below(KEYS)}"
        if prng.happens(0.4):
            self._read(key)
            return
        if prng.happens(0.5):
            self._swap(key)
        elif prng.happens(0.7):
            self._put(key)
        else:
            self._remove(key)
        if prng.happens(LOOKS):
            self._move()
            self._read(key)

    # -- operations -----------------------------------------------------------------------------

    def _read(self, key: str) -> Seen | None:
        """What the key has; None if nobody answers."""
        if self.consistency != LINEARIZABLE:
            return self._read_alone(key)
        operation = self._operation(key, OperationKind.GET)
        self._checks.on_invoke(operation)
        seen = self._read_alone(key)
        result = FAILED if seen is None else OperationResult(OperationStatus.OK, seen.value)
        self._checks.on_return(operation, result)
        return seen

    def _read_alone(self, key: str) -> Seen | None:
        """As `_read`, and in no history of a key."""
        try:
            found = self._ask(key)
        except BasculeError as error:
            if isinstance(error, OffsetOutOfRange):
                self._on_out_of_range(error)
            self._move()
            return None
        self.answered += 1
        seen = Seen(None, None)
        if found.entries:
            seen = Seen(found.entries[0].version, found.entries[0].value)
        session = self._number
        if self.consistency == EVENTUAL:
            self._fresh += 1
            session = self._fresh
        else:
            self._seen = max(self._seen, found.position)
        self._checks.on_read(session, key, *seen)
        return seen

    def _put(self, key: str) -> None:
        operation = self._operation(key, OperationKind.PUT)
        self._write(operation, operation.value, sequence=None)

    def _swap(self, key: str) -> None:
        """Set what was read."""
        seen = self._read(key)
        if seen is None:
            return
        operation = self._operation(key, OperationKind.CAS, seen.value)
        sequence = expected_sequence(seen.version, seen.version is None)
        self._write(operation, operation.value, sequence)

    def _remove(self, key: str) -> None:
        self._checks.on_removal_begun(key)
        self._write(self._operation(key, OperationKind.REMOVE), None, sequence=None)

    def _put_briefly(self, key: str) -> None:
        """Set a key that expires. That is in no history, since no client removes it."""
        low, high = TTL_SECONDS
        ttl = round(self.world.prng.uniform(low, high), 3)
        operation = self._operation(key, OperationKind.PUT)
        publication = self._publication(operation, operation.value)
        self._publication(operation, None)  # which is the removal
        self._checks.on_removal_begun(key)
        above = self._checks.latest
        try:
            version = self._send(publication, None, ttl)
        except BasculeError:
            self._move()
        else:
            self._on_acked(publication, version, above)

    def _increment(self, key: str) -> None:
        by = self.world.prng.between(1, 5)
        operation = ClientOperation(
            self._checks.number(), self._number, key, OperationKind.INCREMENT, by=by
        )
        publication = self._publication(operation, b"")
        above = self._checks.on_invoke(operation)
        try:
            version, total = self._requests.ask(
                self._node,
                lambda tables: tables.writes.increment(self.plan.name, key.encode(), by),
                seconds=ANSWER_SECONDS,
            )
        except BasculeError as error:
            self._checks.on_return(operation, _failure(error))
            self._move()
            return
        assert total is not None, "it had no message id"
        publication.body = b"%d" % total
        result = OperationResult(OperationStatus.OK, publication.body)
        self._on_written(operation, publication, version, result, above)

    def _operation(
        self, key: str, kind: OperationKind, expected: bytes | None = None
    ) -> ClientOperation:
        number = self._checks.number()
        value = b"%d" % number if kind in (OperationKind.PUT, OperationKind.CAS) else b""
        return ClientOperation(number, self._number, key, kind, value, expected)

    def _write(self, operation: ClientOperation, value: bytes | None, sequence: int | None) -> None:
        is_cas = operation.action is OperationKind.CAS
        publication = self._publication(operation, value)
        above = self._checks.on_invoke(operation)
        try:
            version = self._send(publication, sequence)
        except WrongVersion:
            self.answered += 1
            self._checks.on_return(operation, NOT_SWAPPED)
        except BasculeError as error:
            self._checks.on_return(operation, _failure(error))
            self._move()
        else:
            result = SWAPPED if is_cas else NOT_SWAPPED
            self._on_written(operation, publication, version, result, above)

    def _on_written(
        self,
        operation: ClientOperation,
        publication: Publication,
        version: int,
        result: OperationResult,
        above: int,
    ) -> None:
        self._checks.on_return(operation, result)
        self._on_acked(publication, version, above)

    def _on_acked(self, publication: Publication, version: int, above: int) -> None:
        self.answered += 1
        publication.offset, publication.partition = version, 0
        key = (publication.key or b"").decode()
        self._checks.on_written(self._number, key, version, publication.body, above=above)
        self._seen = max(self._seen, version + 1)

    def _publication(self, operation: ClientOperation, value: bytes | None) -> Publication:
        id = f"{self.plan.name}-t{operation.number}"
        key = operation.key.encode()
        made = Publication(id, self.plan.name, operation.number, value, key, self.world.loop.now_ns)
        self.sent.append(made)
        return made

    # -- writing --------------------------------------------------------------------------------

    def _send(
        self, publication: Publication, sequence: int | None, ttl: float | None = None
    ) -> int:
        """Write over NATS, or at a node; the version. Raises: BasculeError."""
        at_node = self.world.prng.happens(0.5)
        if self.world.publishes_swaps:
            at_node = not sequence
        write = self._write_at_node if at_node else self._publish
        return write(publication, sequence, ttl)

    def _write_at_node(
        self, publication: Publication, sequence: int | None, ttl: float | None
    ) -> int:
        """The version. Raises: BasculeError."""
        key, version = publication.key or b"", None if not sequence else sequence - 1
        return self._requests.ask(
            self._node,
            lambda tables: tables.writes.set(
                self.plan.name,
                key,
                publication.body,
                if_version=version,
                if_absent=sequence == 0,
                ttl=ttl,
                message_id=publication.id,
            ),
            seconds=ANSWER_SECONDS,
        )

    def _publish(self, publication: Publication, sequence: int | None, ttl: float | None) -> int:
        """Publish as `client.publish` does: again after a time-out, if the stream remembers ids.

        The version. Raises: BasculeError.
        """
        world, plan = self.world, self.plan
        answers: list[bytes] = []
        came = Event()

        def on_answer(body: bytes) -> None:
            answer = json.loads(body)
            if "error" not in answer:
                self._on_ack(publication, answer)
                publication.offset, publication.partition = answer["offset"], 0
            answers.append(body)
            came.set()

        inbox = f"_INBOX.{publication.id}"
        world.nats.open_inbox(inbox, on_answer)
        message = NatsMessage(
            plan.name, inbox, _head(publication, sequence, ttl), publication.body or b""
        )
        deadline_ns = world.loop.now_ns + WRITE_NS
        while True:
            publication.sends += 1
            came.clear()
            world.at(world.nats.arrival_ns(), world.nats.publish, message)
            if not came.wait(world.plan.ack_timeout_ns / NS) or not answers:
                if not plan.remembers_ids or world.loop.now_ns > deadline_ns:
                    raise Indeterminate("no ack")
                continue
            reply = decode_reply(answers.pop(0), plan.name)
            assert reply is not None
            if not isinstance(reply, BasculeError):
                return reply.offset
            if not is_repeated(reply) or world.loop.now_ns > deadline_ns:
                refusal = reply
                if isinstance(reply, PublishRejected):
                    refusal = refusal_of(reply, plan.name, publication.key or b"", sequence)
                if publication.sends > 1 and not isinstance(refusal, WrongVersion):
                    raise Indeterminate(str(refusal)) from reply
                raise refusal
            sleep(RETRY_SECONDS)

    # -- reading --------------------------------------------------------------------------------

    def _ask(self, key: str) -> TableValues:
        """Raises: BasculeError."""
        name, linearizable = self.plan.name, self.consistency == LINEARIZABLE
        at_least = self._seen if self.consistency == SESSION else 0
        asked = KeyRead(name, [key.encode()], at_least, linearizable)
        if self.world.prng.happens(0.7) and (found := self._ask_listener(asked)) is not None:
            return found
        return self._requests.ask(
            self._node,
            lambda tables: tables.get_many(
                name, asked.keys, at_least=at_least, linearizable=linearizable
            ),
            seconds=ANSWER_SECONDS,
        )

    def _ask_listener(self, asked: KeyRead) -> TableValues | None:
        """None: ask over HTTP. Raises: BasculeError."""
        if self._connection is None:
            self._connection = LogConnection(
                host_of(self._node), CLIENT_PORT, timeout=LISTENER_SECONDS, negotiates=False
            )
        answer: TableReadsResponse = self._connection.request(
            TableReadsRequest(encode_reads([asked])), version=0
        )
        (found,) = decode_answers(bytes(answer.body or b""))  # type: ignore[arg-type]
        return found

    def _on_out_of_range(self, error: OffsetOutOfRange) -> None:
        """The position of the session is not in the log: it begins anew."""
        self._checks.find(InvariantBroken(IN_LOG, f"{self.name} at {self._seen} got: {error}"))
        self._seen = 0


def is_repeated(error: BasculeError) -> bool:
    """Whether a message is published again after this answer."""
    return isinstance(error, PublishRejected) and is_not_caught_up(error)


def _failure(error: BasculeError) -> OperationResult:
    """What a client knows about a write that got this error."""
    return UNKNOWN if isinstance(error, Indeterminate | NoAnswer) else FAILED


def _head(publication: Publication, sequence: int | None, ttl: float | None) -> bytes:
    """The header block of a message."""
    headers = message_headers(
        sequence=sequence,
        message_id=publication.id,
        ttl=ttl,
        removes=publication.body is None,
    )
    lines = [f"{name}: {text}".encode() for name, text in headers]
    lines.append(b"Bascule-Key: %b" % (publication.key or b""))
    return b"\r\n".join((b"NATS/1.0", *lines, b"", b""))
