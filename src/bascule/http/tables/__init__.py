"""Tables over HTTP: the latest value of each key of a compacted stream.

`requests` and `conditions` decode, `bodies` has what is answered, `reads`, `writes` and `changes`
(for copies outside the cluster) have the handlers, and `operations` their part of the route table.
"""

from __future__ import annotations

from bascule.http.tables.changes import TableChangesApi
from bascule.http.tables.ports import TablesAdmin
from bascule.http.tables.reads import TableReadsApi
from bascule.http.tables.writes import TableWritesApi


class TablesApi(TableReadsApi, TableWritesApi, TableChangesApi):
    """The handlers of tables."""


__all__ = ["TablesAdmin", "TablesApi"]
