"""`bascule top`: what a node does now.

samples    `/metrics` read at two moments, and the rates between them
render    the table on a terminal
command    polling, and the ways to show it
"""

from bascule.cli.top.command import top

__all__ = ["top"]
