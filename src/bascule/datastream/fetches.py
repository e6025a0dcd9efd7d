"""The payloads that a node gets from other replicas: those it lacks, and those that are damaged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final

from bascule.datastream.disk.whole_reads import Awaiting
from bascule.datastream.fetching import Fetching, FetchingOwner
from bascule.datastream.ports import OnFetched, PayloadPlace
from bascule.datastream.session import Key, Session, opened_again
from bascule.datastream.transport.reactor import Reactor
from bascule.errors import BasculeError, Broken, PayloadMissing, UnknownPayload
from bascule.host.api import Clock
from bascule.record.payload_links import Payload, PayloadLink

log = logging.getLogger("bascule.datastream.service")

REPAIR_AGAIN_NS: Final = 5_000_000_000
"""After an attempt to repair a payload that has failed."""
FAILED_MAX: Final = 4_096


class PayloadFetches:
    """Belongs to the thread of the reactor, but for `repair_found`."""

    def __init__(
        self,
        service: FetchingOwner,
        reactor: Reactor,
        pool: Executor,
        clock: Clock,
        sessions: Mapping[Key, Session],
        loading: Mapping[Key, Awaiting],
    ) -> None:
        """`loading` has those who wait until a part of a payload was read that was received before:
        who reads it cuts off what is behind it."""
        self._service = service
        self._reactor = reactor
        self._pool = pool
        self._clock = clock
        self._sessions = sessions
        self._loading = loading
        self.running: dict[Key, Fetching] = {}
        self._attempts: dict[Key, int] = {}
        """Of payloads that could not be fetched the last time."""
        self._repairs_failed: dict[Key, int] = {}
        """When the last attempt to repair a payload failed."""

    def fetch(self, place: PayloadPlace, link: PayloadLink, on_fetched: OnFetched) -> None:
        """Get the payload of a link from another replica, if it is not here."""
        payload = link.payload
        if place.store is None:
            on_fetched(PayloadMissing(payload.id, "a partition without a replica here"))
            return
        self._begin(place, link, on_fetched, is_repair=False)

    def repair(self, place: PayloadPlace, link: PayloadLink) -> None:
        """Get a linked payload again, because its file is damaged or lost."""
        key = place.stream_id, place.partition, link.payload.id
        now_ns = self._clock.monotonic_ns()
        failed_ns = self._repairs_failed.get(key)
        too_early = failed_ns is not None and now_ns - failed_ns < REPAIR_AGAIN_NS
        if place.store is None or place.is_closed or key in self.running or too_early:
            return
        self._service.counts.damaged += 1
        log.warning(
            "data streaming: a payload is damaged; it is fetched again",
            extra={
                "stream": place.stream,
                "partition": place.partition,
                "payload": link.payload.id,
                "offset": link.offset,
            },
        )

        def on_fetched(error: Exception | None) -> None:
            if error is None:
                self._repairs_failed.pop(key, None)
                self._service.counts.repaired += 1
                log.info(
                    "data streaming: a payload is repaired",
                    extra={
                        "stream": place.stream,
                        "partition": place.partition,
                        "payload": link.payload.id,
                    },
                )
                return
            self._service.counts.repairs_failed += 1
            if len(self._repairs_failed) >= FAILED_MAX:
                self._repairs_failed.clear()
            self._repairs_failed[key] = self._clock.monotonic_ns()
            log.error(
                "data streaming: a payload cannot be repaired",
                extra={
                    "stream": place.stream,
                    "partition": place.partition,
                    "payload": link.payload.id,
                    "error": str(error),
                },
            )

        self._begin(place, link, on_fetched, is_repair=True)

    def repair_found(self, place: PayloadPlace, id: str, offset: int = -1) -> None:
        """Repair the payload with this id, if possible that of the record at `offset`, as its
        record says what it is. On a thread of the pool: it reads the disk."""
        store = place.store
        assert store is not None
        found = store.payloads.find_at(offset)
        if found is None or found.payload.id != id:
            found = store.payloads.find(id)
        if found is not None:
            self._repair_record(place, id, found.offset)

    def repair_content(self, place: PayloadPlace, payload: Payload) -> None:
        """As `repair_found`, for a payload whose record is not known: records of other content may
        have its id."""
        store = place.store
        assert store is not None
        linked = store.payloads.linked_as(payload.id)
        offsets = [each.offset for each in linked if each.payload == payload]
        if offsets or store.payloads.has(payload):
            self._repair_record(place, payload.id, offsets[0] if offsets else -1)

    def _repair_record(self, place: PayloadPlace, id: str, offset: int) -> None:
        """Repair the payload of the record at `offset`; -1: no record names it."""
        store = place.store
        assert store is not None
        try:
            if offset < 0:  # it is fetched when a record names it
                store.payloads.discard_whole(id)
                return
            link = store.link_at(offset)
        except (BasculeError, OSError) as caught:
            log.warning(
                "data streaming: the record of a damaged payload cannot be read",
                extra={"stream": place.stream, "payload": id, "error": str(caught)},
            )
            return
        if link is not None and link.payload.id == id:
            self._reactor.call(lambda: self.repair(place, link))

    def _begin(
        self, place: PayloadPlace, link: PayloadLink, on_fetched: OnFetched, *, is_repair: bool
    ) -> None:
        store = place.store
        assert store is not None
        if place.is_closed:  # what is received now belongs to another log
            on_fetched(opened_again(link.payload.id))
            return
        if not is_repair and store.payloads.has(link.payload):
            on_fetched(None)
            return
        key = place.stream_id, place.partition, link.payload.id
        again = partial(self._begin, place, link, on_fetched, is_repair=is_repair)
        fetching = self.running.get(key)
        if fetching is not None:
            if fetching.link == link and fetching.is_repair == is_repair:
                fetching.waiting.append(on_fetched)
            else:  # what that comes to says nothing of this one
                fetching.behind.append(again)
            return
        if (waiting := self._loading.get(key)) is not None:
            waiting.add(again, lambda: False)  # what is read is of no use to it
            return
        session = self._sessions.get(key)
        if session is not None and session.payloads is not store.payloads:
            session.fail(opened_again(key[2]))
            session = None
        if session is not None and session.closing is None:
            session.fail(Broken(f"payload {key[2]} is fetched from another replica"))
        fetching = self.running[key] = Fetching(
            self._service, self._reactor, self._pool, place, link, store.payloads,
            self._sources(place, key, is_repair=is_repair), self._on_fetched, is_repair=is_repair,
        )  # fmt: skip
        fetching.waiting.append(on_fetched)
        # One that is being finished says how that ends: they would write to one file.
        if session is None or not session.is_being_finished:
            self._start(fetching)

    def _start(self, fetching: Fetching) -> None:
        """Ask other nodes, unless that has begun, or is not wanted any more."""
        if self.running.get(fetching.key) is not fetching or fetching.has_started:
            return
        others = (each for each in self.running.values() if each is not fetching)
        try:
            fetching.start(promised=sum(each.missing_bytes for each in others))
        except (OSError, BasculeError) as error:
            self._on_fetched(fetching, error)

    def _sources(self, place: PayloadPlace, key: Key, *, is_repair: bool) -> list[int]:
        """The nodes to ask, the leader first; after each failed attempt another one is the first.

        A repair asks this node, too, last: of its file only some blocks may be damaged.
        """
        own = self._service.node_id
        others = sorted(
            (each for each in place.nodes if each != own),
            key=lambda node: node != place.leader,
        )
        if others:
            first = self._attempts.get(key, 0) % len(others)
            others = others[first:] + others[:first]
        return [*others, own] if is_repair else others

    def on_whole(self, key: Key, payload: Payload) -> None:
        """A payload has come from its client. It may have other content than a record wants, and
        what a repair is to replace is still damaged."""
        fetching = self.running.get(key)
        if fetching is None:
            return
        if fetching.is_repair or fetching.payload != payload:
            self.on_not_received(key)
            return
        del self.running[key]
        fetching.close()
        self._tell(fetching, None)

    def on_not_received(self, key: Key) -> None:
        """A sender that had sent everything here has ended, and what was wanted is not whole."""
        fetching = self.running.get(key)
        if fetching is not None:
            # Later: the file is removed after this where the disk has failed.
            self._reactor.call(lambda: self._start(fetching))

    def _on_fetched(self, fetching: Fetching, error: Exception | None) -> None:
        key = fetching.key
        if self.running.get(key) is fetching:
            del self.running[key]
        if isinstance(error, UnknownPayload):
            self._give_up(fetching)
            self._attempts.pop(key, None)
            # A record can be copied without its payload; a file cannot be repaired without it.
            self._tell(fetching, error if fetching.is_repair else None)
            return
        if error is None:
            self._service.counts.fetched += 1
            self._service.write_back_thread.on_payload()
            self._attempts.pop(key, None)
        else:
            self._note_failure(key, fetching, error)
        self._tell(fetching, error)

    def _note_failure(self, key: Key, fetching: Fetching, error: Exception) -> None:
        """Log it once, until the payload is here."""
        self._service.counts.fetches_failed += 1
        self._attempts[key] = attempts = self._attempts.get(key, 0) + 1
        if attempts > 1 or fetching.is_repair:
            return
        place = fetching.place
        log.warning(
            "data streaming: a payload cannot be fetched; it is tried again",
            extra={
                "stream": place.stream,
                "partition": place.partition,
                "payload": fetching.link.payload.id,
                "error": str(error),
            },
        )

    def _give_up(self, fetching: Fetching) -> None:
        """The leader has the record and not the payload, and no other replica has it."""
        self._service.counts.lost += 1
        place = fetching.place
        store = place.store
        assert store is not None
        store.payloads.give_up(fetching.link)
        log.error(
            "data streaming: no replica has a payload; its record is copied without it",
            extra={
                "stream": place.stream,
                "partition": place.partition,
                "payload": fetching.link.payload.id,
                "bytes": fetching.payload.size,
            },
        )

    def _tell(self, fetching: Fetching, error: Exception | None) -> None:
        waiting, fetching.waiting = fetching.waiting, []
        for each in waiting:
            each(error)
        for again in fetching.behind:
            self._reactor.call(again)
