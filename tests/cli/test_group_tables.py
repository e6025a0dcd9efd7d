"""What the tables of `bascule group` show of texts that clients have chosen."""

from __future__ import annotations

import io

from rich.console import Console

from bascule.cli.groups.tables import members_table, offsets_table, summary_grid
from bascule.group_results import GroupInfo, GroupMemberInfo, GroupOffset

HOSTILE = "\x1b]0;title\x07[/red][bold]x\ny"
SHOWN = r"\x1b]0;title\x07[/red][bold]x\ny"


def test_texts_of_clients_control_neither_the_table_nor_the_terminal() -> None:
    """Ids, assignors and metadata are any text, and so are the streams of an assignment."""
    member = GroupMemberInfo("m1", HOSTILE, HOSTILE, "127.0.0.1", ((HOSTILE, 0), (HOSTILE, 1)))
    offset = GroupOffset(HOSTILE, 0, 1, 0, 2, "m1", 0, HOSTILE)
    group = GroupInfo("g", "classic", "Stable", HOSTILE, HOSTILE, 1, (member,), (offset,))
    text = io.StringIO()
    console = Console(file=text, width=1_000, force_terminal=True, color_system=None)
    console.print(summary_grid(group))
    console.print(members_table(group.members))
    console.print(offsets_table(group.offsets, group.members))
    assert text.getvalue().count(SHOWN) == 8
    assert all(line.isprintable() for line in text.getvalue().splitlines())


def test_a_time_that_is_no_date_is_shown_as_a_number() -> None:
    """Who commits over NATS says when it was."""
    committed_ms = (1 << 63) - 1
    offset = GroupOffset("flights", 0, 1, 0, 2, "", committed_ms, "")
    text = io.StringIO()
    Console(file=text, width=1_000).print(offsets_table([offset], ()))
    assert f"{committed_ms} ms" in text.getvalue()
