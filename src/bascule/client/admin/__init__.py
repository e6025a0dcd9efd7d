"""Administration: streams and the node, over HTTP.

api         `Admin`: requests out, model values and our own errors back
settings    what a stream may be created with, or altered to
faces       the methods as the asynchronous and the blocking client offer them
"""

from bascule.client.admin.api import Admin, PurgedPartition, error_of, server_url, stream_info_of
from bascule.client.admin.mixins import AdminMixin, SyncAdminMixin
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
