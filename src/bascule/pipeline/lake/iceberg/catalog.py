"""Opens the catalog of an address."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final
from weakref import finalize

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError
from sqlalchemy.exc import IntegrityError, OperationalError

from bascule.errors import ConfigError
from bascule.pipeline.lake import storage
from bascule.pipeline.lake.model import TableAddress

EMBEDDED: Final = "bascule"
"""Catalog name in the embedded catalog."""
FILE: Final = "catalog.db"
WAIT_SECONDS: Final = 60
"""Timeout for SQLite's lock, which each commit holds for milliseconds."""
ATTEMPTS_MAX: Final = 10
FILES: Final = "bascule.pipeline.lake.iceberg.synced_io.SyncedFileIO"


def open_catalog(address: TableAddress, *, create: bool) -> Catalog | None:
    """Open the catalog. None if it is the embedded one, does not exist, and `create` is False.

    Raises: ConfigError for properties that pyiceberg refuses.
    """
    if address.catalog:
        properties = dict(address.catalog)
        if address.location:
            properties.setdefault("warehouse", address.location)
        name = properties.pop("name", EMBEDDED)
        try:
            return _closed_at_its_end(load_catalog(name, **properties))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the catalog of {address}: {error}", field="catalog") from error
    folder = storage.local_path(address.location)
    if not folder:
        raise ConfigError(
            f"{address} needs the properties of a catalog: the one kept in the warehouse itself "
            "is a SQLite file on this machine",
            field="catalog",
        )
    if not create and not (Path(folder) / FILE).exists():
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return _embedded(folder)


def _embedded(folder: str) -> Catalog:
    for attempt in range(ATTEMPTS_MAX):
        try:
            return _closed_at_its_end(
                load_catalog(
                    EMBEDDED,
                    type="sql",
                    uri=f"sqlite:///{folder}/{FILE}?timeout={WAIT_SECONDS}",
                    warehouse=f"file://{folder}",
                    **{"py-io-impl": FILES},
                )
            )
        except OperationalError:
            # Another process created the same catalog tables at this moment.
            if attempt == ATTEMPTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _closed_at_its_end(catalog: Catalog) -> Catalog:
    """Close the pooled connections of a SQL catalog when nothing refers to it any longer. SQLite's
    connections warn otherwise, from Python 3.13 on."""
    if isinstance(catalog, SqlCatalog):
        finalize(catalog, catalog.engine.dispose)
    return catalog


def ensure_namespace(catalog: Catalog, name: str) -> None:
    with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
