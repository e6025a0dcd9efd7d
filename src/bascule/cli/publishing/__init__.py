"""`bascule publish`: messages from the command line or standard input, and what is said of their
acks."""

from bascule.cli.publishing.commands import publish

__all__ = ["publish"]
