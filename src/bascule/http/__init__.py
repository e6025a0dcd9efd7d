"""The HTTP door: the admin API as JSON, Prometheus metrics, health, and a page that explains it.

    routes    what is offered where; the OpenAPI document and /docs are made from it
    shapes    what the JSON looks like, and strict reading of bodies
    answers   errors to statuses, in one table
    app       the handlers, between HTTP and `StreamAdmin`
    door      the listening socket, and the guard of loopback

Nothing is decided here: handlers hand requests to `StreamAdmin` and put words to what it says.
"""

from bascule.http.app import StreamAdmin, create_app
from bascule.http.listener import HttpListener

__all__ = ["HttpListener", "StreamAdmin", "create_app"]
