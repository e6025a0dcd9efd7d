"""The table of requests in docs/kafka.md says what the client listener advertises."""

from __future__ import annotations

import re
from pathlib import Path

from bascule.kafka.handlers import SUPPORTED_VERSIONS
from bascule.wire.messages.registry import REQUESTS

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


def test_the_page_has_each_request_with_its_versions() -> None:
    table = PAGE.read_text().split("## What is served")[1].split("## ")[0]
    documented = {}
    for line in table.splitlines():
        if found := re.match(r"\| ([A-Z][A-Za-z, ]+) \| ([0-9, -]+) \|", line):
            names, versions = found[1].split(", "), found[2].strip().split(", ")
            documented.update(zip(names, versions, strict=True))
    served = {
        REQUESTS[key].__name__.removesuffix("Request"): (
            str(versions.first)
            if versions.first == versions.last
            else f"{versions.first}-{versions.last}"
        )
        for key, versions in SUPPORTED_VERSIONS.items()
    }
    assert documented == served
