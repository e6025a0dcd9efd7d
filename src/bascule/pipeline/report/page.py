"""Renders a `JobResult` as a page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from bascule.pipeline.jobs.model import JobResult, RunFacts, Series, Sum, Table
from bascule.pipeline.report.chart import chart
from bascule.pipeline.report.formatting import figure, title_of
from bascule.version import __version__

ROWS_MAX: Final = 1_000
"""Rows of a table that the page shows."""

FIRST: Final = (
    "rows",
    "rows_written",
    "files",
    "rows_per_s",
    "seconds",
    "malformed",
    "lag",
    "late_rows",
    "faults",
)
"""Figures that are shown first and large, in this order."""
WRONG_ABOVE_ZERO: Final = frozenset({"late_rows", "faults", "lag", "malformed", "missing", "extra"})

STYLE: Final = """
:root{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--text:#1b2430;--soft:#5c6b7c;
--rule:#e3e7ec;--line:#2563a8;--good:#1c7c47;--good-ground:#e2f4e9;--bad:#b3261e;
--bad-ground:#fce8e6;--warm:#96600a}
@media(prefers-color-scheme:dark){:root{--ground:#12161c;--card:#1b212a;--text:#e4e9ef;
--soft:#93a1b1;--rule:#2c3540;--line:#6ea8e6;--good:#6fd39a;--good-ground:#16321f;--bad:#f28b82;
--bad-ground:#3b1a18;--warm:#e5b567}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Ubuntu,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 64px}
header{display:flex;align-items:center;gap:12px;flex-wrap:wrap;margin-bottom:24px}
h1{font-size:26px;line-height:1.2;margin:0;letter-spacing:-.01em}
h2{font-size:15px;margin:0 0 12px;font-weight:600}
h2 small{color:var(--soft);font-weight:400;margin-left:6px}
.kind{color:var(--soft)}
.state{border-radius:99px;padding:3px 12px;font-weight:600;font-size:13px;margin-left:auto}
.ok{color:var(--good);background:var(--good-ground)}
.wrong{color:var(--bad);background:var(--bad-ground)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:16px 18px}
.figures .card b{display:block;font-size:22px;line-height:1.3;font-weight:650;
font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.figures .card span{color:var(--soft);font-size:13px}
.warm b{color:var(--warm)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:12px;margin-top:12px}
section{margin-top:12px}
svg{display:block;width:100%;height:auto;max-height:260px;overflow:visible}
svg text{fill:var(--soft);font-size:12px;font-family:inherit}
.grid{stroke:var(--rule)}.area{fill:var(--line);opacity:.12}
.line{fill:none;stroke:var(--line);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.dot{fill:var(--card);stroke:var(--line);stroke-width:2}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:500;font-size:13px;text-align:left;white-space:nowrap}
th,td{padding:7px 14px 7px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tr:last-child td{border-bottom:0}
.number{text-align:right}
td.key{color:var(--soft);width:1%;white-space:nowrap;padding-right:28px}
.sum{display:flex;flex-wrap:wrap;align-items:baseline;gap:6px 12px;color:var(--soft)}
.sum b{color:var(--text);font-weight:650;font-variant-numeric:tabular-nums}
.sign:empty{display:none}
pre{margin:0;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;tab-size:4}
.more,footer{color:var(--soft);font-size:13px}
footer{margin-top:28px}
@media(max-width:520px){.plots{grid-template-columns:1fr}main{padding:24px 14px}}
"""


def page(result: JobResult) -> str:
    """The whole page."""
    name, kind = escape(result.name), escape(result.kind)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name} · {kind}</title><style>{STYLE}</style></head><body><main>",
        f'<header><h1>{name}</h1><span class="kind">{kind}{_when(result.run)}</span>'
        f"{_state(result)}</header>",
        _figures(result),
        _sum(result.sum),
        _plots(result.series),
        *(_table(table) for table in result.tables),
        _details(result),
        *_run(result.run),
        f"<footer>Bascule {escape(__version__)}</footer>",
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _state(result: JobResult) -> str:
    if not result.ok:
        return '<span class="state wrong">faults found</span>'
    if result.summary.get("interrupted"):
        return '<span class="state wrong">interrupted</span>'
    return '<span class="state ok">done</span>'


def _figures(result: JobResult) -> str:
    names = [name for name in FIRST if name in result.summary]
    cards = []
    for name in names:
        value = result.summary[name]
        is_wrong = name in WRONG_ABOVE_ZERO and isinstance(value, int) and value > 0
        cards.append(
            f'<div class="card{" warm" if is_wrong else ""}"><b>{escape(figure(name, value))}</b>'
            f"<span>{escape(title_of(name))}</span></div>"
        )
    return f'<div class="figures">{"".join(cards)}</div>' if cards else ""


def _sum(sum: Sum | None) -> str:
    """Counts that add up, as the sum that they are."""
    if sum is None:
        return ""
    signs = ["", *("+" for _ in sum.parts[1:]), "="]
    terms = "".join(
        f'<span class="sign">{sign}</span><span class="term"><b>{count:,}</b> {escape(name)}</span>'
        for sign, (name, count) in zip(signs, (*sum.parts, sum.total), strict=True)
    )
    return f'<section class="card sum">{terms}</section>'


def _when(run: RunFacts | None) -> str:
    return "" if run is None else f" · {escape(run.started)}"


def _run(run: RunFacts | None) -> tuple[str, ...]:
    """When, where and by what the job ran, and its declaration."""
    if run is None:
        return ()
    facts = {
        "Started": run.started,
        "File": run.file,
        "Server": run.server,
        "Node": run.node,
        "Spark master": run.master,
        "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        "Set on the command line": ", ".join(run.settings),
    }
    declared = ""
    if run.declaration:
        declared = (
            '<section class="card"><h2>Declaration</h2>'
            f'<div class="wide"><pre>{escape(run.declaration)}</pre></div></section>'
        )
    return _facts("Run", {name: text for name, text in facts.items() if text}), declared


def _plots(series: tuple[Series, ...]) -> str:
    cards = [
        f'<div class="card"><h2>{escape(line.title)}<small>{escape(line.y_name)}</small></h2>'
        f"{drawn}</div>"
        for line in series
        if (drawn := chart(line))
    ]
    return f'<div class="plots">{"".join(cards)}</div>' if cards else ""


def _table(table: Table) -> str:
    numeric = [
        any(_is_number(row[n]) for row in table.rows if n < len(row))
        for n in range(len(table.columns))
    ]
    head = "".join(
        f"<th{_class(is_number)}>{escape(column)}</th>"
        for column, is_number in zip(table.columns, numeric, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(_is_number(cell))}>{escape(figure(column, cell))}</td>"
            for column, cell in zip(table.columns, row, strict=False)
        )
        + "</tr>"
        for row in table.rows[:ROWS_MAX]
    )
    more = len(table.rows) - ROWS_MAX
    rest = f'<p class="more">and {more:,} more rows</p>' if more > 0 else ""
    return (
        f'<section class="card"><h2>{escape(table.title)}</h2><div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{rest}</section>"
    )


def _details(result: JobResult) -> str:
    """The values of the summary that are not among the large figures."""
    rest = {
        title_of(name): figure(name, value)
        for name, value in result.summary.items()
        if name not in FIRST
    }
    return _facts("Details", rest)


def _facts(title: str, facts: Mapping[str, str]) -> str:
    """A table of names and texts."""
    if not facts:
        return ""
    rows = "".join(
        f'<tr><td class="key">{escape(name)}</td><td>{escape(text)}</td></tr>'
        for name, text in facts.items()
    )
    return (
        f'<section class="card"><h2>{escape(title)}</h2><div class="wide"><table><tbody>'
        f"{rows}</tbody></table></div></section>"
    )


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
