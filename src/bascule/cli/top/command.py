"""Polls a node and shows its rates: live, once, or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bascule.cli.output import JsonOption, ServerOption, out, print_json
from bascule.cli.top.display import SORTS, render_view
from bascule.cli.top.quit_key import QuitKey
from bascule.cli.top.samples import RateView, Sample, StreamRow, sample_of, view_of
from bascule.cli.units import parse_duration
from bascule.errors import Broken, RemoteProtocolError
from bascule.model import is_internal_stream

if TYPE_CHECKING:
    from bascule.client import SyncClient


def top(
    interval: Annotated[
        str, typer.Option("--interval", "-i", metavar="TIME", help="Time between samples.")
    ] = "2s",
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Take two samples, an interval apart, print the rates and exit."
        ),
    ] = False,
    sort: Annotated[
        str, typer.Option("--sort", metavar="|".join(SORTS), help="Order of the streams.")
    ] = "name",
    internal: Annotated[bool, typer.Option("--internal", help="Include internal streams.")] = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Watch a node: input and output of each stream, its sync lag, and the lag of groups.

    The key q quits. With --json, one line per interval. in/s counts messages. The lag of a stream
    is the time that a record waits for its sync. The lag of a group counts the records that it has
    not processed yet; in a cluster the node that leads _offsets shows the groups.
    """
    import bascule

    if sort not in SORTS:
        raise typer.BadParameter(f"--sort {sort!r} is not one of {', '.join(SORTS)}")
    interval_ms = parse_duration(interval)
    if interval_ms < 100:
        raise typer.BadParameter("--interval must be at least 100ms")
    seconds = interval_ms / 1_000
    with bascule.connect_sync(server) as client:
        if once or json or not out.is_terminal:
            for view, _ in _views(client, seconds, patient=not (once or json), wait=_sleep):
                _print(view, _chosen(view, sort, internal=internal), json=json, once=once)
                if once:
                    return
        else:
            with QuitKey() as key:
                views = _views(client, seconds, patient=True, wait=key.wait)
                _live(views, sort, internal=internal)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _views(
    client: SyncClient, seconds: float, *, patient: bool, wait: Callable[[float], bool]
) -> Iterator[tuple[RateView, str]]:
    """Yield a view per interval until `wait` returns True. A `patient` one continues with an error
    text while the node does not reply.

    Raises: Broken, RemoteProtocolError.
    """
    before, view = _sample(client), None
    due = before.at_s
    while True:
        due = max(due + seconds, time.monotonic())
        if wait(max(due - time.monotonic(), 0)):
            return
        try:
            now = _sample(client)
        except (Broken, RemoteProtocolError) as error:
            if not patient or view is None:
                raise
            yield view, str(error)
            continue
        view = view_of(before, now)
        before = now
        yield view, ""


def _sample(client: SyncClient) -> Sample:
    text = client.metrics()
    return sample_of(text, at_s=time.monotonic())


def _chosen(view: RateView, sort: str, *, internal: bool) -> list[StreamRow]:
    rows = [row for row in view.rows if internal or not is_internal_stream(row.name)]
    return sorted(rows, key=SORTS[sort])


def _live(views: Iterator[tuple[RateView, str]], sort: str, *, internal: bool) -> None:
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False) as live:
        for view, news in views:
            rows = _chosen(view, sort, internal=internal)
            live.update(render_view(view, rows, height=out.height, news=news), refresh=True)


def _print(view: RateView, rows: list[StreamRow], *, json: bool, once: bool) -> None:
    if json:
        print_json(as_json(view, rows), indent=once)
    else:
        out.print(render_view(view, rows, height=None, cut=sys.stdout.isatty()))


def as_json(view: RateView, rows: list[StreamRow]) -> dict[str, Any]:
    """A view as JSON, with integers and booleans for the metrics' floats."""
    node = asdict(view.node)
    for name, value in node.items():
        if name in ("ready", "nats_connected"):
            node[name] = bool(value)
        elif name.endswith(("bytes", "bytes_max")) or name == "connections":
            node[name] = int(value)
    node |= {"cpu_percent": view.cpu_percent, "stalled_percent": view.stalled_percent}
    return {
        "seconds": view.seconds,
        "node": node,
        "streams": [asdict(row) for row in rows],
        "groups": [asdict(row) for row in view.groups],
    }
