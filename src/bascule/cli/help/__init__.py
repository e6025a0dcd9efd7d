"""What `--help` prints.

Typer's own help cuts names and environment variables on 80 columns and keeps the line ends of
docstrings. Here every name is whole, on a line of its own where it is long, and paragraphs are
wrapped. Options are in the order of their declaration, those with a panel in a section of its name.

    layout       the text of one command or group, and the classes that print it
    examples     lines to copy, by command
"""

from bascule.cli.help.layout import CommandGroup

__all__ = ["CommandGroup"]
