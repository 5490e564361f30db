"""What `describe` found, for people: a table with small charts, and a page.

Names of columns, jobs and sites are other people's text. The page escapes them, and its policy lets it load nothing and
run nothing, so that it may be sent around.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from rich import box
from rich.table import Table

from commonscale.cli.console import cell, out, table

_NUMBERS = {
    "count": "values", "missing": "missing", "mean": "mean", "sd": "deviation", "min": "smallest",
    "lower": "25 %", "median": "median", "upper": "75 %", "max": "largest",
}  # fmt: skip
_WIDTH, _HEIGHT = 180, 56
# Characters of a terminal.
_WIDE = 100

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1f24; --faint: #57606a; --line: #d0d7de; --paper: #fff; --bar: #0969da; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --faint: #9aa4af; --line: #30363d; --paper: #0d1117; --bar: #58a6ff; }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); }}
p {{ color: var(--faint); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .4rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }}
th:first-child {{ text-align: left; }}
td {{ font-variant-numeric: tabular-nums; }}
rect {{ fill: var(--bar); }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
{tables}
</body>
</html>
"""


def description_table(number: int, step: dict[str, Any]) -> Table:
    """One row a column; on a narrow terminal without quartiles beside the median."""
    left_out = ("lower", "upper") if out.width < _WIDE else ()
    cells = {name: _cells(step, name, digits=4) for name in _NUMBERS if name in step and name not in left_out}
    if step["histogram"]:
        cells["histogram"] = ["".join(_block(count, max(counts)) for count in counts) for counts in step["histogram"]]
    rows = list(zip(step["columns"], *cells.values(), strict=True))
    title = f"step {number}: describe, {step['rows']} rows"
    return table("column", *cells, rows=rows, title=title, box=box.SIMPLE_HEAD, pad_edge=False)


def page(job_id: str, sites: Sequence[str], steps: Sequence[dict[str, Any]]) -> str:
    """One file."""
    about = f"{steps[0]['rows']:,} rows of {len(sites)} sites, pooled: {', '.join(sites)}"
    tables = "\n".join(map(_html_table, steps))
    return _PAGE.format(title=escape(f"What the columns of {job_id} hold"), about=escape(about), tables=tables)


def _html_table(step: dict[str, Any]) -> str:
    shown = [name for name in _NUMBERS if name in step]
    cells = [_cells(step, name) for name in shown]
    heads = [f'<th scope="col">{head}</th>' for head in ("column", *(_NUMBERS[name] for name in shown))]
    charts = [""] * len(step["columns"])
    if step["histogram"]:
        heads.append('<th scope="col">histogram</th>')
        charts = [
            f"<td>{_chart(counts, edges)}</td>" for counts, edges in zip(step["histogram"], step["edges"], strict=True)
        ]
    rows = [
        f'<tr><th scope="row">{escape(column)}</th>{"".join(f"<td>{escape(numbers[at])}</td>" for numbers in cells)}'
        f"{charts[at]}</tr>"
        for at, column in enumerate(step["columns"])
    ]
    body = "\n".join(rows)
    return (
        f'<div class="wide"><table>\n<thead><tr>{"".join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
    )


def _chart(counts: Sequence[int], edges: Sequence[float]) -> str:
    """Bars, each with its bounds and count where one points at it; a bin that holds a value is seen."""
    if not counts:
        return ""
    bars, step = [], _WIDTH / len(counts)
    for at, count in enumerate(counts):
        height = max(1, round(_HEIGHT * count / max(counts))) if count else 0
        said = f"{edges[at]:.6g} to {edges[at + 1]:.6g}: {count:,}"
        bars.append(
            f'<rect x="{at * step:.1f}" y="{_HEIGHT - height}" width="{0.85 * step:.1f}" height="{height}">'
            f"<title>{said}</title></rect>"
        )
    said = f"histogram of {len(counts)} bins from {edges[0]:.6g} to {edges[-1]:.6g}"
    return f'<svg role="img" aria-label="{said}" width="{_WIDTH}" height="{_HEIGHT}">{"".join(bars)}</svg>'


def _cells(step: dict[str, Any], name: str, digits: int = 6) -> list[str]:
    return [_share(value) if name == "missing" else cell(value, digits) for value in step[name]]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _block(count: int, largest: int) -> str:
    """A value that is there is seen, however rare it is."""
    return " ▁▂▃▄▅▆▇█"[-(-8 * count // max(largest, 1))]
