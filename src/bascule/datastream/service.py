"""The data streaming of one node: its sessions, limits and timeouts, and what others call."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bascule.cluster_identity import ClusterIdentity
from bascule.datastream.admission import PayloadAdmission
from bascule.datastream.chunked_payloads import ChunkedPayloads
from bascule.datastream.disk.leftovers import Leftovers
from bascule.datastream.disk.paced_thread import PacedThread
from bascule.datastream.disk.pacing import Pacing
from bascule.datastream.disk.sums_builds import SumsBuilds
from bascule.datastream.disk.whole_reads import Awaiting, WholeReads
from bascule.datastream.fetches import PayloadFetches
from bascule.datastream.inbound import InboundConnection, OnSession
from bascule.datastream.limits import DataStreamCounts, DataStreamLimits
from bascule.datastream.ports import OnFetched, PayloadCluster, PayloadPlace
from bascule.datastream.protocol import routes
from bascule.datastream.protocol.routes import PlannedRoute, Route
from bascule.datastream.session import Key, Session, opened_again, taken_over
from bascule.datastream.successor import Successor
from bascule.datastream.transport.reactor import Reactor
from bascule.errors import (
    BasculeError,
    Broken,
    PayloadDamaged,
    PayloadMissing,
    RemoteProtocolError,
    UnknownPartition,
    UnknownPayload,
    UnknownStream,
)
from bascule.host.api import Clock
from bascule.record.payload_links import Payload, PayloadLink, is_payload_id
from bascule.storage.payloads.block_steps import WaitingSteps
from bascule.storage.payloads.payload_files import PayloadFiles
from bascule.storage.payloads.verified_file import VerifiedFile, is_damage, keep_sums
from bascule.wire.datastream.frames import VERSION
from bascule.wire.datastream.messages import (
    FetchPayload,
    OpenPayload,
    ReplicaAddress,
    StreamHello,
    check_version,
)

log = logging.getLogger(__name__)

POOL_THREADS: Final = 4
"""They sync files and read packets again: nothing that takes long."""
UNWRITTEN_STEPS_MIN: Final = 2
"""What a payload may have in memory only in any case; else its share of what all may have."""
SWEEP_SECONDS: Final = 5.0
DETACHED_SECONDS_MAX: Final = 60.0
"""A session that nobody goes on with for so long gives its file back. One that comes later begins
with what is in the file."""
REFUSALS_LOGGED_SECONDS: Final = 10.0
RATE_FORGOTTEN_PART: Final = 16
"""Of a measured rate at each further measurement that is lower."""


class DataStreams:
    """Any thread may call the public methods above the line; those below are the reactor's."""

    def __init__(
        self,
        node_id: int,
        identity: ClusterIdentity,
        cluster: PayloadCluster,
        clock: Clock,
        limits: DataStreamLimits | None = None,
    ) -> None:
        self.node_id = node_id
        self.counts = DataStreamCounts()
        self.pool = ThreadPoolExecutor(POOL_THREADS, "datastream-disk")
        self._identity = identity
        self._cluster = cluster
        self._clock = clock
        self._limits = limits or DataStreamLimits()
        pacing = Pacing(floor=self._limits.bytes_per_second_min)
        self.write_back_thread = PacedThread(clock, pacing)
        self.on_log_synced = self.write_back_thread.on_log_synced
        """Told of the syncs of logs; any thread may call it."""
        self._reactor = Reactor("datastream", clock)
        self._sessions: dict[Key, Session] = {}
        self.whole_reads = WholeReads(self.pool)
        self._builds = SumsBuilds(self.whole_reads, self.on_damage)
        self._loading: dict[Key, Awaiting] = {}
        """The sessions whose part is read from the disk, and who waits for that."""
        self._admission = PayloadAdmission(clock, self._limits, self.counts, self._loading)
        self._connections = self._admission.connections
        self._fetching = PayloadFetches(
            self, self._reactor, self.pool, clock, self._sessions, self._loading
        )
        self._fetches = self._fetching.running
        self._chunked = ChunkedPayloads(self, cluster, self._reactor, clock)
        self.rates: dict[int, int] = {}
        """Bytes a second to the nodes that could not be sent all that was to be sent."""
        self.take_chunks = self._chunked.take
        """Takes chunks that NATS clients have sent; its reading thread calls it."""
        self.leftovers = Leftovers(
            clock, self._limits, self.counts,
            is_used=lambda key: key in self._sessions or key in self._fetches,
        )  # fmt: skip
        self._is_sweeping = False
        self._refusals_logged_ns = 0

    def adopt(self, sock: socket.socket, peer: str) -> None:
        """Serve a connection whose first bytes, still unread, are those of this protocol."""

        def begin() -> None:
            if not self._admission.admits_connection():
                self.counts.refused += 1
                sock.close()
                return
            connection = InboundConnection(self, self._reactor, sock, peer)
            self._connections.add(connection)
            self.counts.connections = len(self._connections)
            connection.start()
            self._sweep_later()

        if not self._reactor.call(begin):
            sock.close()

    def fetch(self, place: PayloadPlace, link: PayloadLink, on_fetched: OnFetched) -> None:
        """Get the payload of a link from another replica. `on_fetched` runs on the reactor."""
        self._reactor.call(lambda: self._fetching.fetch(place, link, on_fetched))

    def statistics(self) -> DataStreamCounts:
        """A copy of the counters."""
        thread = self.write_back_thread
        return replace(self.counts, disk_limit=thread.limit(), disk_waited_ns=thread.waited_ns)

    def close(self) -> None:
        """End all connections; return once the threads have ended. What was received stays."""
        self._reactor.close(self._end_all)
        self.whole_reads.close()
        self.pool.shutdown()
        self.write_back_thread.close()

    # -- on the thread of the reactor -----------------------------------------------------------

    @property
    def window(self) -> int:
        return self._limits.window_bytes

    @property
    def unwritten_max(self) -> int:
        """What a payload may have in memory only; its sender waits then."""
        thread, payloads = self.write_back_thread, len(self._sessions) + len(self._fetches)
        share = thread.unwritten_max // max(payloads, 1)
        return max(share, UNWRITTEN_STEPS_MIN * thread.step_bytes)

    def _end_all(self) -> None:
        for session in tuple(self._sessions.values()):
            session.end()
        for connection in self._connections:
            connection.close()
        for fetching in self._fetches.values():
            fetching.close()

    def hello(self, node: int) -> StreamHello:
        """What this node says first; `node` is 0 in an answer."""
        identity = self._identity
        id = identity.id if identity.tells_id else ""
        return StreamHello(VERSION, identity.name, id, node)

    def check_hello(self, hello: StreamHello) -> StreamHello:
        """Raises: RemoteProtocolError for another version; ForeignPeer for another cluster."""
        check_version(hello)
        if hello.node > 0:
            self._identity.check_name(hello.cluster)
            self._identity.check_id(hello.cluster_id)
        return hello

    def place(self, opening: OpenPayload, *, is_node: bool) -> PayloadPlace:
        """Where a payload belongs. Raises: as `PayloadCluster.place`; RemoteProtocolError; Broken
        where another node knows the stream and this one does not."""
        if not is_payload_id(opening.id):
            raise RemoteProtocolError(
                f"payload id {opening.id[:40]!r}, expected 32 hexadecimal digits"
            )
        if is_node:
            return self._place_for_node(opening.stream, opening.partition)
        return self._cluster.place(opening)

    def place_of(self, fetch: FetchPayload, *, is_node: bool) -> PayloadPlace:
        """Raises: as `PayloadCluster.place_of`; Broken as `place`."""
        if is_node:
            return self._place_for_node(fetch.stream, fetch.partition)
        return self._cluster.place_of(fetch.stream, fetch.partition)

    def _place_for_node(self, stream: str, partition: int) -> PayloadPlace:
        try:
            return self._cluster.place_of(stream, partition)
        except (UnknownStream, UnknownPartition) as error:
            # As after a start, or where it was created a moment ago. Clients would give up.
            raise Broken(f"node {self.node_id} is behind with the metadata: {error}") from None

    def confirm_leads(self, place: PayloadPlace) -> Future[int]:
        """See `PayloadCluster.confirm_leads`."""
        return self._cluster.confirm_leads(place)

    def catch_up_wait(self, place: PayloadPlace, node: int, count: int) -> float:
        """See `PayloadCluster.catch_up_wait`."""
        return self._cluster.catch_up_wait(place, node, count)

    def find(
        self, place: PayloadPlace, fetch: FetchPayload, *, is_node: bool
    ) -> WaitingSteps[VerifiedFile]:
        """The payload that is asked for. On a thread of `whole_reads`.

        A leader tells other nodes that it lacks one, and they ask the rest before they give it up.
        Clients hear only that it may be elsewhere.

        Raises: UnknownPayload, PayloadMissing, PayloadDamaged, OSError.
        """
        assert place.store is not None
        payloads, id, end = place.store.payloads, fetch.id, place.store.end.offset
        link = place.store.named_link(id, fetch.offset)
        is_in_log = 0 <= fetch.offset < end
        # What is here may be other content of the id. Nodes compare it with the record they have.
        is_by_record = is_in_log and not is_node
        is_here = not is_by_record and payloads.find(id) is not None
        if id and not (is_here if link is None else payloads.has(link.payload)):
            leads = place.leader == self.node_id
            is_known = place.is_confirmed or fetch.offset < place.high_watermark
            # The record is in the log of its leader, and the payload nowhere on its disk.
            is_lost = is_in_log and leads and is_known
            if is_lost and (is_node or self.payload_at(place, fetch.offset).id != id):
                raise UnknownPayload(place.stream, place.partition, fetch.offset)
            if link is None and is_by_record:
                raise PayloadMissing(id, "this replica, for this record")
        if not id:
            link = PayloadLink(fetch.offset, self.payload_at(place, fetch.offset))
            id = link.payload.id
        try:
            return (yield from self._builds.open_verified(place, fetch, id, link))
        except (PayloadDamaged, OSError) as error:
            self.on_damage(place, id, error, fetch.offset)
            raise

    def payload_at(self, place: PayloadPlace, offset: int) -> Payload:
        """The payload of the record at an offset, if it is here. May read the disk.

        Of a confirmed place there is no record yet where it is not committed. Of another one this
        node says nothing of such records: who has been deposed without knowing it lacks those of
        the next leader, and may have some that are undone.

        Raises: UnknownPayload if it is nowhere; PayloadMissing if another replica may have it;
        CorruptData, OSError.
        """
        store = place.store
        assert store is not None
        if offset >= place.high_watermark:
            if not place.is_confirmed:
                raise PayloadMissing(f"of offset {offset}", "this replica, yet")
            raise UnknownPayload(place.stream, place.partition, offset)
        # Of a record that was purged the file may still be there for a moment.
        found = store.payloads.find_at(offset) if offset >= store.start_offset else None
        if found is not None:
            return found.payload
        link = store.link_at(offset)
        if link is None:
            raise UnknownPayload(place.stream, place.partition, offset)
        if not store.payloads.has(link.payload):
            if store.payloads.is_given_up(link):
                raise UnknownPayload(place.stream, place.partition, offset)
            # As after its file was removed by hand.
            self.repair(place, link)
            raise PayloadMissing(link.payload.id, "this replica")
        return link.payload  # as a second record of one payload, from a release before

    def plan(
        self, place: PayloadPlace, opening: OpenPayload, *, is_node: bool
    ) -> PlannedRoute | ReplicaAddress:
        """The tree below this node, or the node where it begins instead: that of the route that
        the client asks for, or a follower, so that the leader forwards nothing. Raises:
        InvalidRoute."""
        given = routes.as_route(opening.route)
        if is_node:
            return PlannedRoute(given, "as the node before it says")
        if self.node_id not in place.nodes:
            raise Broken(f"node {self.node_id} is not one of the living replicas")
        gone = ""
        if given:
            head = routes.head(given)
            if head not in place.nodes and head in place.all_nodes:
                gone = f"the first node of the route, {head}, is not alive; "
            else:
                lost = set(place.all_nodes).difference(place.nodes)
                routes.check(given, primary=head, nodes=place.nodes, lost=lost)
                if head != self.node_id:
                    return next(each for each in place.replicas if each.node == head)
                return PlannedRoute(given, "as asked")
        links = self._cluster.links_between(place.nodes)
        if opening.prefers_follower and place.leader == self.node_id:
            racks = {each.node: each.rack for each in place.replicas if each.address}
            follower = routes.first_follower(self.node_id, racks, links)
            if follower >= 0:
                return next(each for each in place.replicas if each.node == follower)
        planned = routes.plan(
            opening.topology,
            primary=self.node_id,
            leader=place.leader,
            racks=place.racks,
            quorum=opening.quorum,
            links=links,
        )
        planned = planned._replace(why=gone + planned.why)
        log.debug(
            "data streaming: a route is chosen",
            extra={
                "stream": place.stream,
                "partition": place.partition,
                "payload": opening.id,
                "route": " ".join(f"{a}>{b}" for a, after in planned.route for b in after),
                "why": planned.why,
            },
        )
        return planned

    def prepare_session(
        self,
        place: PayloadPlace,
        opening: OpenPayload,
        ready: OnSession,
        *,
        is_wanted: Callable[[], bool],
        request_bytes: int = 0,
        is_node: bool = False,
    ) -> None:
        """Give `ready` the session of a payload, with what was received of it; or the error that
        this raised: Broken, CorruptData, OSError. `is_wanted`: whether `ready` needs it still; any
        thread may ask. `request_bytes`: what `opening` takes of the memory. `is_node`: another node
        asks, which a later attempt of its client excludes."""
        assert place.store is not None
        payloads, key = place.store.payloads, (place.stream_id, place.partition, opening.id)
        if not is_wanted() or place.is_closed:  # any more: it may have waited here
            ready(None, opened_again(opening.id))
            return
        if (waiting := self._loading.get(key)) is not None:
            # Who reads the part cuts off what is behind it, so nobody may write meanwhile.
            again = partial(self.prepare_session, place, opening, ready, is_wanted=is_wanted)
            waiting.add(lambda: again(request_bytes=request_bytes, is_node=is_node), is_wanted)
            return
        session = self._sessions.get(key)
        if session is not None and session.payloads is not payloads:
            session.fail(opened_again(opening.id))
            session = None
        if session is not None and is_node and session.is_sent_since(opening.attempt):
            # Its client has gone to another node, or to this one.
            ready(None, Broken(f"payload {opening.id} is sent by another node since"))
            return
        if session is not None and session.closing is None and not opening.begins_anew:
            session.used_at_ns = self._clock.monotonic_ns()
            try:
                self._admission.hold_opening(session, request_bytes)
            except Broken as error:
                ready(None, error)
                return
            ready(session, None)
            return
        if session is not None and session.is_being_closed:
            ready(None, Broken(f"payload {opening.id} is being closed"))
            return
        if key in self._fetches:
            ready(None, Broken(f"payload {opening.id} is fetched from another replica"))
            return
        if session is not None and session.closing is None:
            session.fail(taken_over(opening.id))
        elif session is not None:
            session.end()
        try:
            self._admission.admit_session()
        except Broken as error:
            ready(None, error)
            return
        session = Session(
            self, self._reactor, self.pool, place, opening, payloads, window=self.window
        )
        session.used_at_ns = self._clock.monotonic_ns()
        self._sessions[key] = session
        self._admission.sessions.add(session)
        self.counts.opened += 1
        self.counts.sessions = len(self._sessions)
        self._sweep_later()
        try:
            self._admission.hold_opening(session, request_bytes)
        except Broken as error:
            session.end()
            ready(None, error)
            return
        self._load(session, payloads, ready, is_wanted)

    def _load(
        self,
        session: Session,
        payloads: PayloadFiles,
        ready: OnSession,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Take over what the disk has of a payload."""
        id = session.opening.id
        try:
            if payloads.find(id) is not None:
                session.adopt_whole(*payloads.open_whole(id))
            elif session.opening.begins_anew:
                payloads.discard(id)
            elif id in payloads.open_ids():
                self._read_part(session, payloads, ready, Awaiting(is_wanted))
                return
        except (OSError, BasculeError) as error:
            session.end()
            ready(None, error)
            return
        ready(session, None)

    def _read_part(
        self, session: Session, payloads: PayloadFiles, ready: OnSession, awaiting: Awaiting
    ) -> None:
        """Read what was received before, for its checksum."""
        self._loading[session.key] = awaiting

        def end(found: tuple[int, int] | None, error: Exception | None) -> None:
            for each in self._loading.pop(session.key).calls:
                self._reactor.call(each)
            if session.has_ended:
                ready(None, Broken(f"payload {session.opening.id} is sent over another connection"))
            elif found is None:
                session.end()
                ready(None, error)
            else:
                session.adopt_part(*found)
                ready(session, None)

        self.whole_reads.run(
            payloads.recover_part(session.opening.id),
            lambda found, error: self._reactor.call(lambda: end(found, error)),
            is_wanted=lambda: not session.has_ended and awaiting.is_wanted(),
        )  # fmt: skip

    def on_ended(self, session: Session) -> None:
        """Of a session."""
        self._admission.sessions.remove(session)
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            if not session.is_whole:
                self._fetching.on_not_received(session.key)
        self.counts.sessions = len(self._sessions)

    def on_whole(self, key: Key) -> None:
        """A payload is whole here."""
        self.write_back_thread.on_payload()
        session = self._sessions.get(key)
        if session is not None and session.closing is not None:
            place, files, payload = session.place, session.payloads, session.closing
            self._fetching.on_whole(key, payload)

            def on_kept(_: object, error: Exception | None) -> None:
                if error is not None and not isinstance(error, PayloadMissing) and is_damage(error):
                    self.pool.submit(self._fetching.repair_content, place, payload)

            self.whole_reads.run(
                keep_sums(files, payload, session.received.sums), on_kept,
                is_wanted=lambda: files.has(payload),
            )  # fmt: skip

    def connect(
        self,
        session: Session,
        node: int,
        route: Route,
        on_lost: Callable[[Successor, Exception], None],
    ) -> Successor:
        """Forward a session to a node. Raises: Broken, OSError."""
        opening = session.opening
        forwarded = OpenPayload(
            opening.id,
            session.place.stream,
            session.place.partition,
            size=opening.size,
            route=[(each, list(successors)) for each, successors in route],
            attempt=session.attempt,
            begins_anew=session.begins_anew,
            stream_id=session.place.stream_id,
        )
        return Successor(
            session, node, self.address_of(node), hello=self.hello(self.node_id),
            opening=forwarded, reactor=self._reactor, on_lost=on_lost,
        )  # fmt: skip

    def on_received(self, session: Session, count: int) -> None:
        """So many new bytes of a payload have come."""
        self.counts.bytes_received += count
        self._admission.sessions.on_bytes(session, count)

    def on_detached(self, session: Session) -> None:
        """Nobody sends it: who goes on with it says again what the message has."""
        opening = session.opening
        if session.closing is None:
            session.opening = OpenPayload(opening.id, opening.stream, size=opening.size)
            self._admission.hold_opening(session, 0)

    def hold_request(self, connection: InboundConnection, count: int) -> None:
        """A request has come in part, and has so many bytes; 0: none. Raises: Broken."""
        self._admission.hold_request(connection, count)

    def on_moved(self, connection: InboundConnection, count: int) -> None:
        """So many new bytes of a payload were acknowledged to a connection, or sent to it."""
        self._connections.on_bytes(connection, count)

    def on_rate(self, node: int, bytes_per_s: int) -> None:
        """So much went to a node in a second in which there was more to send to it. The best of
        the last ones counts: others share the way."""
        before = self.rates.get(node, 0)
        self.rates[node] = max(bytes_per_s, before - before // RATE_FORGOTTEN_PART)

    def address_of(self, node: int) -> tuple[str, int]:
        """Raises: Broken where it is not known."""
        address = self._cluster.peer_address(node)
        if address is None:
            raise Broken(f"the address of node {node} is not known")
        return address

    def link(
        self, place: PayloadPlace, opening: OpenPayload, payload: Payload, nodes: list[int]
    ) -> Future[dict[str, Any]]:
        """See `PayloadCluster.link`."""
        self.counts.linked += 1
        return self._cluster.link(place, opening, payload, nodes)

    def on_connection_closed(self, connection: InboundConnection, error: Exception | None) -> None:
        """Of a connection."""
        self._connections.remove(connection)
        self.counts.connections = len(self._connections)

    def on_refused(self, connection: InboundConnection, error: Exception) -> None:
        """A request was refused; one line in ten seconds says so."""
        self.counts.refused += 1
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._refusals_logged_ns:
            self._refusals_logged_ns = now_ns + int(REFUSALS_LOGGED_SECONDS * 1e9)
            log.info(
                "data streaming: a request was refused",
                extra={
                    "peer": connection.peer,
                    "error": str(error),
                    "refused": self.counts.refused,
                },
            )

    # -- damage ---------------------------------------------------------------------------------

    def repair(self, place: PayloadPlace, link: PayloadLink) -> None:
        """The file of a linked payload is damaged or lost: get it from another replica. Any thread
        may call it."""
        self._reactor.call(lambda: self._fetching.repair(place, link))

    def on_damage(self, place: PayloadPlace, id: str, error: Exception, offset: int = -1) -> None:
        """Somebody could not read a payload here, that of the record at `offset` if it is not -1.
        If its file is damaged or lost, it is replaced. Any thread may call it."""
        if is_damage(error):
            self.pool.submit(self._fetching.repair_found, place, id, offset)

    # -- what nobody goes on with ---------------------------------------------------------------

    def _sweep_later(self) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            self._reactor.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """End the sessions that nobody has gone on with; `leftovers` removes their files."""
        self._is_sweeping = False
        now_ns = self._clock.monotonic_ns()
        for session in tuple(self._sessions.values()):
            if not self._admission.may_end(session):
                session.used_at_ns = now_ns
            elif now_ns - session.used_at_ns > DETACHED_SECONDS_MAX * 1e9:
                session.end()
        self._admission.on_look()
        if self._sessions or self._connections:
            self._sweep_later()
