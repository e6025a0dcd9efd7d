"""`python -m bench.many_streams [--streams N]`: creating, stopping and starting with many streams.

A real node creates the streams, one request after the other, from a client with one connection.
What is measured: creations per second among the first and among the last streams, the time from
SIGTERM to the exit with every stream holding a new record, and from the command to the ready file.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import time
from urllib.parse import urlsplit

from bench.harness import confirm, nats_connection, node, report, row, work_directory

STREAMS = 5_000
CREATED_PER_SECOND_MIN = 200.0
STOP_SECONDS_MAX = 10.0
START_SECONDS_MAX = 10.0
TIMED = 200
"""Creations at either end that count for the rates."""


def create(server: http.client.HTTPConnection, number: int) -> None:
    body = json.dumps({"name": f"s{number}", "subject": f"s.{number}"})
    server.request("POST", "/v1/streams", body, {"content-type": "application/json"})
    response = server.getresponse()
    answer = response.read()
    assert response.status == 201, answer


def value(measured: float) -> dict[str, float]:
    return {"value": round(measured, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    streams = parser.parse_args().streams
    timed = min(TIMED, streams // 2)
    with work_directory() as directory:
        with node(directory) as running:
            url = urlsplit(running.addresses["http"])
            server = http.client.HTTPConnection(url.hostname or "", url.port)
            began = time.monotonic()
            times = []
            for number in range(streams):
                create(server, number)
                times.append(time.monotonic() - began)
            first = timed / times[timed - 1]
            last = timed / (times[-1] - times[-1 - timed])
            nats = nats_connection(running.port)
            for number in range(streams):
                nats.sendall(b"PUB s.%d 1\r\nx\r\n" % number)
            confirm(nats)
            began = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(300) == 0
            stopped = time.monotonic() - began
        (directory / "ready.json").unlink(missing_ok=True)
        began = time.monotonic()
        with node(directory):
            started = time.monotonic() - began
    rows = [
        row(f"creations/s, the first {timed}", value(first), at_least=CREATED_PER_SECOND_MIN),
        row(
            f"creations/s, the last {timed} of {streams}",
            value(last),
            at_least=CREATED_PER_SECOND_MIN,
        ),
        row("stop, seconds", value(stopped), at_most=STOP_SECONDS_MAX),
        row("start, seconds", value(started), at_most=START_SECONDS_MAX),
    ]
    report("many_streams", rows)


if __name__ == "__main__":
    main()
