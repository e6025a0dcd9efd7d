"""Start the service with the parts of a node."""

from __future__ import annotations

from bascule.config import Config
from bascule.controller.cluster.controller import ClusterController
from bascule.host.api import Clock, Random
from bascule.ingest.embedded_nats import EmbeddedNats
from bascule.ingest.nats_ingest import NatsIngest, connect_options, tls_context
from bascule.keyvalue.held_tables import HeldTables
from bascule.keyvalue.service import KeyValueService
from bascule.nats_connection import NatsConnection
from bascule.replica.internal_publisher import InternalPublisher
from bascule.replica.partitions import Partitions
from bascule.tables import Tables
from bascule.wire.nats import ServerAddress, parse_server_url


def start_key_value(
    config: Config,
    urls: list[str],
    nats: EmbeddedNats | None,
    ingest: NatsIngest,
    tables: Tables,
    partitions: Partitions,
    controller: ClusterController,
    publisher: InternalPublisher,
    clock: Clock,
    dice: Random,
) -> KeyValueService | None:
    """Serve key-value clients at these servers; None where that is turned off."""
    if not config.nats.key_value:
        return None
    options, context = connect_options(config), tls_context(config)
    servers = [parse_server_url(url) for url in urls]

    def connect() -> NatsConnection:
        return NatsConnection(servers, options, tls=context, reconnects=False)

    leaf_url = config.nats.leaf_url

    def leaf() -> ServerAddress | None:
        if nats is not None:
            return nats.leaf_address()
        return parse_server_url(leaf_url) if leaf_url else None

    def raised_to() -> int:
        return 0 if nats is None else nats.payload_bytes_max

    held = HeldTables(config.node_id, tables, partitions, controller.views)
    service = KeyValueService(
        connect,
        lambda: ingest.connected,
        leaf,
        raised_to,
        held,
        controller,
        controller.peers,
        publisher,
        defaults=config.streams,
        clock=clock,
        dice=dice,
        name=f"bascule-{config.node_id}-{dice.bytes(4).hex()}",
    )
    service.start()
    return service
