"""Tables: the latest value of each key of a compacted stream, on every replica.

`rows` makes rows of records, `table_file` keeps those of one partition in SQLite, `table_replica`
keeps a file up with the log, at the times that `pace` says, and `tables` has those of a node.
"""

from __future__ import annotations

from bascule.tables.tables import Tables

__all__ = ["Tables"]
