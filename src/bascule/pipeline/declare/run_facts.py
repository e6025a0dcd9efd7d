"""When, where and by what a declared job ran: the facts that a report states beside the result."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bascule.client.admin import server_url
from bascule.errors import BasculeError
from bascule.pipeline.clients import client_of
from bascule.pipeline.declare.sections import Declaration
from bascule.pipeline.jobs.model import RunFacts
from bascule.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HIDDEN: Final = "***"
_SECRET: Final = re.compile(
    r"""([\w.-]*(?:password|secret|token|credential|creds|key|seed)[\w.-]*["']?\s*=\s*)"""
    r'''("""[\s\S]*?"""|\'\'\'[\s\S]*?\'\'\'|"[^"\n]*"|'[^'\n]*'|[^\s"'#,}\n]+)''',
    re.IGNORECASE,
)
"""A key that names a secret, and its value."""
_USER: Final = re.compile(r"(://)[^/@\s\"']+@")
_LIBRARIES: Final = {"iceberg": ("pyiceberg",), "delta": ("deltalake",), "parquet": ()}


def run_facts(
    spark: SparkSession,
    declaration: Declaration,
    origin: str,
    *,
    settings: Sequence[str] = (),
    started: datetime | None = None,
) -> RunFacts:
    """The facts of a run of the declaration in the file `origin`. Secrets are hidden."""
    kind = declaration.pipeline.kind
    server = "" if kind == "compact-lake" else server_url(declaration.pipeline.server or None)
    try:
        text = Path(origin).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return RunFacts(
        started=(started or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M:%S UTC"),
        file=origin,
        server=without_secrets(server),
        node=_node(server),
        master=spark.sparkContext.master or "",
        versions={
            "bascule": __version__,
            "spark": spark.version,
            "python": platform.python_version(),
            **_libraries(declaration),
        },
        declaration=without_secrets(text),
        settings=tuple(without_secrets(setting) for setting in settings),
    )


def without_secrets(text: str) -> str:
    """Hide the values of keys that name a secret, and users in addresses. `${NAME}` stays."""

    def hidden(found: re.Match[str]) -> str:
        return found[0] if "${" in found[2] else f'{found[1]}"{HIDDEN}"'

    return _USER.sub(rf"\1{HIDDEN}@", _SECRET.sub(hidden, text))


def _node(server: str) -> str:
    """Version and cluster of the node; empty if it does not answer."""
    if not server:
        return ""
    try:
        info = client_of(server).node()
    except BasculeError:
        return ""
    return f"bascule {info.version} ({info.twin}), node {info.node_id} of cluster {info.cluster_id}"


def _libraries(declaration: Declaration) -> dict[str, str]:
    names = ["pyarrow"]
    if declaration.table is not None:
        names += _LIBRARIES[declaration.table.format]
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
