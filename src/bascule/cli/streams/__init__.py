"""`bascule stream ...`: create, alter, list, show, pause, resume, purge and delete streams.

settings    the options that choose a stream's settings, made from the table of keys
commands    what each command asks of the node
tables      what people see of it
"""

from bascule.cli.streams.commands import streams

__all__ = ["streams"]
