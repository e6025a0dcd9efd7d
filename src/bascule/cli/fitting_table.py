"""Tables that leave columns out on a narrow terminal rather than cut what others have to show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Column, Table
from rich.text import Text

GAP: Final = 2
"""Columns of the terminal between two of a table."""
WORD_MAX: Final = 20
"""A longer word may be broken in a column that wraps."""

MakeTable: TypeAlias = Callable[[Collection[str]], Table]
"""A table without the columns of these titles."""


class FittingTable:
    """Leaves out as few columns as need be, and wraps those that may wrap.

    Columns with `no_wrap` are shown whole, also where the line is longer than the terminal then.
    """

    def __init__(self, make: MakeTable, droppable: Sequence[Collection[str]]) -> None:
        """`droppable` are titles of columns that go together, first those that are missed least."""
        self._make = make
        self._droppable = droppable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        dropped: set[str] = set()
        table = self._make(dropped)
        for titles in self._droppable:
            if _width_needed(table) <= options.max_width:
                break
            dropped |= set(titles)
            table = self._make(dropped)
        if (needed := _width_needed(table)) > options.max_width:
            table.width = needed
        yield table


def _width_needed(table: Table) -> int:
    """Columns of the terminal that the table has to have."""
    return sum(map(_column_width, table.columns)) + GAP * (len(table.columns) - 1)


def _column_width(column: Column) -> int:
    texts = [str(column.header), *(Text.from_markup(str(each)).plain for each in column.cells)]
    widest = max(map(cell_len, texts))
    if column.no_wrap:
        return widest
    return min(widest, WORD_MAX, max(cell_len(word) for text in texts for word in text.split()))
