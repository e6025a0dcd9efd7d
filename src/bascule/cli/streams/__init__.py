"""`bascule stream ...`: create, alter, list, show, pause, resume, purge and delete streams.

settings    the options for a stream's settings, made from the table of keys
commands    the commands
moves       `stream reassign` and `stream elect-leader`
recovery    `stream recover`
scrub       `scrub`
tables      the output
"""

from bascule.cli.streams.commands import streams

__all__ = ["streams"]
