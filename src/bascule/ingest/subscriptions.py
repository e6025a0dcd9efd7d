"""The subscriptions of a NATS connection, and what the server has yet to confirm of them.

A SUB is confirmed by the PONG of a PING sent behind it: a server answers in order, and a refusal
(-ERR) comes before the PONG. All of it outlives connections. The owner's lock guards every call.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from bascule.wire.nats import ErrorKind, NatsRefused, ServerError, encode_sub, encode_unsub

PING = b"PING\r\n"


@dataclass(slots=True)
class Subscription:
    """One subscription, and why the server does not serve it, if so."""

    subject: str
    group: str | None
    stream: str
    refusal: str | None = None


@dataclass(slots=True)
class _Awaited:
    """A PING under way: who waits for its PONG, and the subscription sent before it."""

    done: Future[None]
    sid: int | None
    is_refused: bool = False


class Subscriptions:
    """What is subscribed, what was refused, and the futures of what is not confirmed yet."""

    def __init__(self) -> None:
        self._by_sid: dict[int, Subscription] = {}
        self._free_sids: list[int] = []
        self._sid_last = 0
        self._awaited: deque[_Awaited] = deque()
        self._waiting: list[tuple[Future[None], int | None]] = []
        """Not sent, or sent on a connection that ended: what comes next confirms them."""

    def reserve_sid(self) -> int:
        if self._free_sids:
            return self._free_sids.pop()
        self._sid_last += 1
        return self._sid_last

    def release_sid(self, sid: int) -> None:
        self._free_sids.append(sid)

    def add(self, sid: int, subscription: Subscription) -> bytes:
        """Note the subscription; the operation that makes it."""
        self._by_sid[sid] = subscription
        return encode_sub(subscription.subject, sid, group=subscription.group)

    def remove(self, sid: int) -> bytes:
        del self._by_sid[sid]
        return encode_unsub(sid)

    def clear(self) -> bytes:
        """Forget all; the operations that end them."""
        operations = self.end_all()
        self._by_sid.clear()
        return operations

    def end_all(self) -> bytes:
        """The operations that end all subscriptions on one connection, which are kept here."""
        return b"".join(encode_unsub(sid) for sid in self._by_sid)

    def await_pong(self, done: Future[None], sid: int | None = None) -> None:
        """A PING was sent, for `sid` if given; its PONG completes `done`."""
        self._awaited.append(_Awaited(done, sid))

    def keep_waiting(self, done: Future[None], sid: int | None = None) -> None:
        """There is no connection to send on: the next one confirms `done`."""
        self._waiting.append((done, sid))

    def lost(self) -> None:
        """The connection ended: whatever was under way may not have arrived."""
        self._waiting.extend((awaited.done, awaited.sid) for awaited in self._awaited)
        self._awaited.clear()

    def all_again(self) -> bytes:
        """The operations that subscribe to everything on a new connection, each with its PING."""
        waiting, self._waiting = self._waiting, []
        by_sid: dict[int | None, list[Future[None]]] = {}
        for done, sid in waiting:
            by_sid.setdefault(sid if sid in self._by_sid else None, []).append(done)
        operations = []
        for sid, subscription in self._by_sid.items():
            operations += [self.add(sid, subscription), PING]
            self._awaited.append(_Awaited(_shared(by_sid.pop(sid, [])), sid))
        operations.append(PING)
        self._awaited.append(_Awaited(_shared(by_sid.pop(None, [])), None))
        return b"".join(operations)

    def refused(self) -> list[int]:
        """The subscriptions that the server does not serve."""
        return [sid for sid, found in self._by_sid.items() if found.refusal is not None]

    def refusals(self) -> dict[str, str]:
        """Stream -> why the server does not deliver to it."""
        return {s.stream: s.refusal for s in self._by_sid.values() if s.refusal is not None}

    def get(self, sid: int) -> Subscription | None:
        return self._by_sid.get(sid)

    def streams(self) -> list[str]:
        return sorted({found.stream for found in self._by_sid.values()})

    def on_pong(self) -> tuple[Future[None] | None, Subscription | None]:
        """The future to complete, and a subscription that was refused before and works now."""
        if not self._awaited:
            return None, None
        awaited = self._awaited.popleft()
        found = None if awaited.sid is None else self._by_sid.get(awaited.sid)
        if found is None or awaited.is_refused or found.refusal is None:
            return awaited.done, None
        found.refusal = None
        return awaited.done, found

    def on_refused(self, error: ServerError) -> tuple[list[Subscription], Future[None] | None]:
        """Which subscriptions an error is about, and the future to fail; none for other errors.

        By its subject where it names one, else the one whose PONG is next.
        """
        if error.kind not in (ErrorKind.SUBSCRIBE_PERMISSION, ErrorKind.SUBSCRIPTIONS):
            return [], None
        awaited = next((a for a in self._awaited if self._is_about(a, error)), None)
        if awaited is not None:
            awaited.is_refused = True
            assert awaited.sid is not None
            about = [self._by_sid[awaited.sid]]
        elif error.subject:
            # Permissions that changed while the connection lasts.
            about = [s for s in self._by_sid.values() if s.subject == error.subject]
        else:
            about = []
        for found in about:
            found.refusal = error.text
        return about, None if awaited is None else awaited.done

    def fail_all(self, error: Exception) -> None:
        """There is no next connection: tell everybody who still waits."""
        found = [a.done for a in self._awaited] + [done for done, _ in self._waiting]
        self._awaited.clear()
        self._waiting.clear()
        for done in found:
            if not done.done():
                done.set_exception(error)

    def _is_about(self, awaited: _Awaited, error: ServerError) -> bool:
        if awaited.sid is None or awaited.is_refused:
            return False
        found = self._by_sid.get(awaited.sid)
        if found is None:
            return False
        return not error.subject or found.subject == error.subject


def _shared(futures: list[Future[None]]) -> Future[None]:
    """One future whose outcome becomes that of all of them."""
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


def refuse(done: Future[None] | None, error: ServerError) -> None:
    """Tell who waits for a subscription that it is refused."""
    if done is not None and not done.done():
        done.set_exception(NatsRefused(str(error), error.kind))
