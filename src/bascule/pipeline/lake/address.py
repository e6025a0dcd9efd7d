"""Parses texts and options that name a lake table. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast, get_args

from bascule.errors import ConfigError
from bascule.pipeline.lake.model import TableAddress, TableFormat

FORMATS: Final = get_args(TableFormat)
NAME: Final = re.compile(r"\w[\w-]*(\.\w[\w-]*)+")
SCHEME: Final = re.compile(r"[a-z][a-z0-9+]*://")
CATALOG_PREFIX: Final = "catalog."
MALFORMED: Final = "_malformed"
"""Suffix of the location or name of the table of malformed records."""


def parse_address(text: str) -> TableAddress:
    """Parse the address of a table.

    `parquet:/folder`, `delta:/folder`, `delta:s3://bucket/folder`, `iceberg:/warehouse#db.table`.

    Raises: ConfigError.
    """
    form, colon, rest = text.partition(":")
    if not colon or form not in FORMATS:
        raise ConfigError(
            f"table {text!r} does not begin with its format: expected one of "
            + ", ".join(f"{name}:" for name in FORMATS)
        )
    location, _, name = rest.partition("#")
    return check_address(TableAddress(cast(TableFormat, form), location=location, name=name))


def address_of(options: Mapping[str, str]) -> TableAddress:
    """Build the address from the options `format`, `location`, `name` and `catalog.<property>`.

    The option `table` with a text for `parse_address` replaces the first three.

    Raises: ConfigError.
    """
    known = {key.lower(): value for key, value in options.items() if "." not in key}
    catalog = {
        key[len(CATALOG_PREFIX) :]: value
        for key, value in options.items()
        if key.lower().startswith(CATALOG_PREFIX)
    }
    if "table" in known:
        address = parse_address(known["table"])
    else:
        form = known.get("format", "")
        if form not in FORMATS:
            raise ConfigError(f"format {form!r} is not one of {', '.join(FORMATS)}", field="format")
        address = TableAddress(
            cast(TableFormat, form), known.get("location", ""), known.get("name", "")
        )
    return check_address(
        TableAddress(address.format, address.location, address.name, catalog)
        if catalog
        else address
    )


def check_address(address: TableAddress) -> TableAddress:
    """Return the address if it has exactly the parts that its format needs.

    Raises: ConfigError.
    """
    if address.format == "iceberg":
        if not NAME.fullmatch(address.name):
            raise ConfigError(
                f"an iceberg table needs a name such as lake.flights, found {address.name!r}: "
                "iceberg:/warehouse#lake.flights",
                field="name",
            )
        if not address.location and not address.catalog:
            raise ConfigError(
                "an iceberg table needs a warehouse folder or the properties of a catalog",
                field="location",
            )
        return address
    if address.name or address.catalog:
        raise ConfigError(
            f"a {address.format} table is named by its location alone, found name "
            f"{address.name!r} and {len(address.catalog)} properties of a catalog",
            field="name" if address.name else "catalog",
        )
    if not address.location:
        raise ConfigError(f"a {address.format} table needs a location", field="location")
    is_remote = SCHEME.match(address.location) and not address.location.startswith("file://")
    if address.format == "parquet" and is_remote:
        raise ConfigError(
            f"a parquet table is a folder on this machine, found {address.location!r}: "
            "use delta or iceberg for object stores",
            field="location",
        )
    return address


def malformed_address(address: TableAddress) -> TableAddress:
    """The address of the table of malformed records."""
    if address.format == "iceberg":
        return replace(address, name=address.name + MALFORMED)
    return replace(address, location=address.location.rstrip("/") + MALFORMED)
