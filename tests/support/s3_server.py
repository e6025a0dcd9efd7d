"""A server that speaks S3, with one bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer

BUCKET = "backups"
ACCESS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def running_s3() -> Iterator[str]:
    """The options of an `s3://` URL that lead to it. This process has the credentials meanwhile."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        urlopen(Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")).close()
        with patch.dict(os.environ, ACCESS):
            yield f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()
