"""`bascule backup` and `bascule restore`."""

from bascule.cli.backup.commands import backup, restore

__all__ = ["backup", "restore"]
