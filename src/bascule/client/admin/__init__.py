"""Administration of streams and the node over HTTP.

api         `Admin`: sends requests and returns model values or Bascule's errors
refusals    the exceptions of a node's refusals
settings    settings for creating or altering a stream
servers     which of several nodes a request goes to
mixins      the methods of the asynchronous and the blocking client

table_requests, table_events    requests about tables, and the events of a watched one
"""

from bascule.client.admin.api import Admin, PurgedPartition, server_url, stream_info_of
from bascule.client.admin.mixins import AdminMixin, SyncAdminMixin
from bascule.client.admin.refusals import error_of
from bascule.client.admin.settings import AlterableSettings, StreamSettings

__all__ = [
    "Admin",
    "AdminMixin",
    "AlterableSettings",
    "PurgedPartition",
    "StreamSettings",
    "SyncAdminMixin",
    "error_of",
    "server_url",
    "stream_info_of",
]
