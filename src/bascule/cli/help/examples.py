"""Lines to copy that `--help` shows at the end of a command."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "serve": (
        "bascule serve --data ./data",
        "bascule serve --data ./data --nats nats://10.0.0.5:4222 --config node.toml",
    ),
    "publish": (
        "bascule publish orders.new 'one message' --key 42",
        "generate | bascule publish orders.new --key-separator :",
    ),
    "read": (
        "bascule read orders --follow",
        "bascule read orders --from 2h --values",
    ),
    "put": (
        "bascule put files report.pdf --subject files.reports",
        "bascule put files *.jpg --subject 'files.{name}'",
    ),
    "get": (
        "bascule get files 12 --output report.pdf",
        "bascule get files 12 --output - --bytes 0-1000",
    ),
    "backup": (
        "bascule backup ./backups",
        "bascule backup s3://bucket/prefix --keep 7",
    ),
    "stream create": (
        "bascule stream create orders --subject 'orders.>' --retention 7d",
        "bascule stream create orders --subject 'orders.>' --partitions 4 --replicas 3",
    ),
    "stream alter": ("bascule stream alter orders --retention 30d --retention-bytes 10GiB",),
    "table create": ("bascule table create prices --replicas 3",),
    "table set": (
        "bascule table set prices apple 1.20",
        "bascule table set prices apple 1.25 --if-version 7",
    ),
    "table get": ("bascule table get prices apple",),
    "table watch": (
        "bascule table watch prices",
        "bascule table watch prices 'fruit.>'",
    ),
    "group reset-offsets": ("bascule group reset-offsets billing --stream orders --to-earliest",),
    "pipeline run": (
        "bascule pipeline new archive && bascule pipeline run archive.toml",
        "bascule pipeline run archive.toml --set table.format=delta",
    ),
    "node drain": (
        "bascule node drain 2 --wait",
        "bascule node resume 2",
    ),
}
"""By the words of the command."""
