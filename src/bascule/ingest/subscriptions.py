"""The subscriptions of a NATS connection, and which of them the server has confirmed.

The PONG of a PING sent after a SUB confirms the SUB: a server answers in order, and a refusal
(-ERR) comes before the PONG. This state outlives connections. The caller's lock guards every call.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from bascule.wire.nats import ErrorKind, NatsRefused, ServerError, encode_sub, encode_unsub

PING = b"PING\r\n"


@dataclass(slots=True)
class Subscription:
    """One subscription; `refusal` says why the server refused it."""

    subject: str
    group: str | None
    stream: str | None
    """None: the node's own, for no stream."""
    refusal: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is the node's own."""
        return self.stream is None


@dataclass(slots=True)
class _AwaitedPong:
    """A PING whose PONG is still to come, and the subscription that was sent before it."""

    done: Future[None]
    sid: int | None
    is_refused: bool = False


class Subscriptions:
    """All subscriptions, their refusals, and the futures of unconfirmed operations."""

    def __init__(self) -> None:
        self._by_sid: dict[int, Subscription] = {}
        self._refused: dict[int, Subscription] = {}
        """Those of `_by_sid` with a refusal."""
        self._free_sids: list[int] = []
        self._sid_last = 0
        self._awaited: deque[_AwaitedPong] = deque()
        self._waiting: list[tuple[Future[None], int | None]] = []
        """Futures of operations that the next connection confirms, with their sids."""

    def reserve_sid(self) -> int:
        if self._free_sids:
            return self._free_sids.pop()
        self._sid_last += 1
        return self._sid_last

    def release_sid(self, sid: int) -> None:
        self._free_sids.append(sid)

    def add(self, sid: int, subscription: Subscription) -> bytes:
        """Remember the subscription; return its SUB operation."""
        self._by_sid[sid] = subscription
        if subscription.refusal is not None:
            self._refused[sid] = subscription
        return encode_sub(subscription.subject, sid, group=subscription.group)

    def remove(self, sid: int) -> bytes:
        """Forget the subscription, which `clear` may have ended before; return what ends it."""
        self._by_sid.pop(sid, None)
        self._refused.pop(sid, None)
        return encode_unsub(sid)

    def clear(self) -> bytes:
        """Forget all subscriptions; return the operations that end them."""
        operations = self.unsubscribe_all()
        self._by_sid.clear()
        self._refused.clear()
        return operations

    def unsubscribe_all(self) -> bytes:
        """The operations that end all subscriptions on one connection; they are kept here."""
        return b"".join(encode_unsub(sid) for sid in self._by_sid)

    def await_pong(self, done: Future[None], sid: int | None = None) -> None:
        """A PING was sent, after the SUB of `sid` if given. Its PONG completes `done`."""
        self._awaited.append(_AwaitedPong(done, sid))

    def confirm_on_next_connection(self, done: Future[None], sid: int | None = None) -> None:
        """There is no connection; the next one completes `done`."""
        self._waiting.append((done, sid))

    def on_disconnected(self) -> None:
        """The connection ended: the server may not have received what is unconfirmed."""
        self._waiting.extend((awaited.done, awaited.sid) for awaited in self._awaited)
        self._awaited.clear()

    def resubscribe_all(self) -> bytes:
        """The operations that make all subscriptions on a new connection, each with a PING."""
        waiting, self._waiting = self._waiting, []
        by_sid: dict[int | None, list[Future[None]]] = {}
        for done, sid in waiting:
            by_sid.setdefault(sid if sid in self._by_sid else None, []).append(done)
        operations = []
        # Streams first: the server may have a limit.
        for sid, subscription in sorted(self._by_sid.items(), key=lambda each: each[1].is_own):
            operations += [self.add(sid, subscription), PING]
            self._awaited.append(_AwaitedPong(_combined(by_sid.pop(sid, [])), sid))
        operations.append(PING)
        self._awaited.append(_AwaitedPong(_combined(by_sid.pop(None, [])), None))
        return b"".join(operations)

    def refused_sids(self) -> list[int]:
        """The ids of the streams' subscriptions that the server refused."""
        return [sid for sid, found in self._refused.items() if found.stream is not None]

    def refusals(self) -> dict[str, str]:
        """Stream -> why the server refused its subscription."""
        return {
            found.stream: found.refusal
            for found in self._refused.values()
            if found.stream is not None and found.refusal is not None
        }

    def get(self, sid: int) -> Subscription | None:
        return self._by_sid.get(sid)

    def streams(self) -> list[str]:
        return sorted({each.stream for each in self._by_sid.values() if each.stream is not None})

    def own_subjects(self) -> set[str]:
        """The subjects of the node's own subscriptions."""
        return {found.subject for found in self._by_sid.values() if found.stream is None}

    def on_pong(self) -> tuple[Future[None] | None, Subscription | None]:
        """The future to complete, and the subscription if it was refused before and works now."""
        if not self._awaited:
            return None, None
        awaited = self._awaited.popleft()
        if awaited.sid is None or awaited.is_refused:
            return awaited.done, None
        found = self._refused.pop(awaited.sid, None)
        if found is None:
            return awaited.done, None
        found.refusal = None
        return awaited.done, found

    def on_refused(self, error: ServerError) -> tuple[list[Subscription], Future[None] | None]:
        """The subscriptions that an error refuses, and the future to fail; none for other errors.

        An error that names a subject is about that subject, others about the next PONG.
        """
        if error.kind not in (ErrorKind.SUBSCRIBE_PERMISSION, ErrorKind.SUBSCRIPTIONS):
            return [], None
        awaited = next((a for a in self._awaited if self._is_about(a, error)), None)
        if awaited is not None:
            awaited.is_refused = True
            assert awaited.sid is not None
            about = {awaited.sid: self._by_sid[awaited.sid]}
        elif error.subject:
            # The permissions changed while the connection was open.
            about = {sid: s for sid, s in self._by_sid.items() if s.subject == error.subject}
        else:
            about = {}
        for found in about.values():
            found.refusal = error.text
        self._refused |= about
        return list(about.values()), None if awaited is None else awaited.done

    def fail_all(self, error: Exception) -> None:
        """Fail all futures: there will be no other connection."""
        found = [a.done for a in self._awaited] + [done for done, _ in self._waiting]
        self._awaited.clear()
        self._waiting.clear()
        for done in found:
            if not done.done():
                done.set_exception(error)

    def _is_about(self, awaited: _AwaitedPong, error: ServerError) -> bool:
        if awaited.sid is None or awaited.is_refused:
            return False
        found = self._by_sid.get(awaited.sid)
        if found is None:
            return False
        return not error.subject or found.subject == error.subject


def _combined(futures: list[Future[None]]) -> Future[None]:
    """One future that passes its outcome on to all `futures`."""
    if len(futures) == 1:
        return futures[0]
    one: Future[None] = Future()

    def pass_on(done: Future[None]) -> None:
        error = done.exception()
        for other in futures:
            if not other.done():
                other.set_result(None) if error is None else other.set_exception(error)

    one.add_done_callback(pass_on)
    return one


def fail_refused(done: Future[None] | None, error: ServerError) -> None:
    """Fail the future of a refused subscription, if it is still open."""
    if done is not None and not done.done():
        done.set_exception(NatsRefused(str(error), error.kind))
