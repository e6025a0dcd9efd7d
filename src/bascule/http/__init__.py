"""The HTTP listener: admin API as JSON, Prometheus metrics, health checks, OpenAPI document.

    routes       the route table; routing, the OpenAPI document and /docs are generated from it
    requests     the request bodies, and their strict decoding
    schemas      the response bodies, and conversion from the model
    responses    JSON responses; the one table from errors to HTTP statuses
    app          the application: handlers between HTTP and the ports of the node
    cluster      the handlers of what operators do to nodes, leaders and replicas
    groups       the handlers and bodies of groups and committed offsets
    tables       the handlers and bodies of tables
    table_watch  changes of tables as server-sent events
    payloads     storing payloads, and reading them whole or in ranges
    health       checks of the parts of a node
    openapi      the OpenAPI document and the page /docs
    listener     the socket, its limits, and the guard of loopback addresses
    metrics      the statistics of the node as Prometheus metrics

Promises:

* A request body is decoded strictly: an unknown field or a wrong type is an error.
* Every error has the same JSON shape, and each error class one status and code.
* The OpenAPI document describes every operation, field and error code that is served.
* A request to a loopback address is refused unless its Host is an address or localhost.
* A page of another site changes nothing: a browser asks first, or the request is refused.

It never makes decisions: handlers pass requests to `StreamAdmin` and `GroupsAdmin`, and encode
their results.
"""

from bascule.http.app import StreamAdmin, create_app
from bascule.http.listener import HttpListener

__all__ = ["HttpListener", "StreamAdmin", "create_app"]
