"""Iceberg tables by pyiceberg alone, as docs/pipelines/lake-tables.md shows it."""

from __future__ import annotations

from pathlib import Path
from weakref import finalize

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table


def load_by_pyiceberg(warehouse: Path, name: str) -> Table:
    """A table of the embedded catalog. Its connections are closed when the table is gone: SQLite's
    warn otherwise, from Python 3.13 on."""
    catalog = SqlCatalog(
        "bascule", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=f"file://{warehouse}"
    )
    finalize(catalog, catalog.engine.dispose)
    return catalog.load_table(name)
