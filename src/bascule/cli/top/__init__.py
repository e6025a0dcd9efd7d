"""`bascule top`: shows the current activity of a node.

samples    two samples of `/metrics`, and the rates between them
display    the table on a terminal
quit_key   the key that ends it
command    polling and output
"""

from bascule.cli.top.command import top

__all__ = ["top"]
