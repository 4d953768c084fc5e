"""How the command line shows records: tables on a terminal, plain lines elsewhere, JSON for scripts.

Owns the looks. Every stored text is shown as text: no mark-up of a text is followed, and no control character reaches
a terminal. An id is never cut, so that it can be copied. Does not own HTML, or what is spelled out of a text
(``vmem_core/display``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from vmem_core import Finding, Hit, Record, Source
from vmem_core.display import is_right_to_left, shortened
from vmem_core.display import label as label
from vmem_core.display import visible as visible

ORIGIN_STYLES: Final = {"asserted": "green", "inferred": "yellow"}
_LONGEST_LINE: Final = 200
_LEFT_TO_RIGHT: Final = "\u200e"
_LONGEST_REVISION: Final = 2_000
_LONGEST_SHOWN: Final = 5_000
_BESIDE_ID: Final = 42  # columns of a table beside the one that holds the id
# What stays in JSON as it is would be obeyed, or read by nobody but a model: the lines that JSON leaves raw.
_IN_JSON: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f\U000e0100-\U000e01ef]")


def console() -> Console:
    """Standard output, with colours where it is a terminal that wants them."""
    return Console(highlight=False, markup=False, emoji=False)


def one_line(text: str, longest: int | None = _LONGEST_LINE) -> str:
    r"""A text on one line, its white space as single blanks; a long one is cut, with its length told.

    >>> one_line("tea\n  and cake")
    'tea and cake'
    >>> one_line("green tea", 5)
    'green… 9 characters in all'
    """
    line = " ".join(text.split())
    return visible(line) if longest is None else "".join(shortened(line, longest, len(text)))


def instant(moment: datetime) -> str:
    """An instant to the second, in UTC."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def found_by(hit: Hit) -> str:
    """How a hit was found, with its place in either list, a line each."""
    ranks = (("meaning", hit.vector_rank), ("words", hit.lexical_rank))
    return "\n".join(f"{name} #{rank}" for name, rank in ranks if rank is not None) or hit.match


def source_line(source: Source) -> str:
    """A source without its digest."""
    named = (
        ("tool", source.tool_name),
        ("call", source.tool_call_id),
        ("message", source.message_id),
        ("chat", source.chat_id),
        ("run", source.run_id),
        ("at", source.uri),
    )
    return " · ".join([source.kind, *(f"{name} {label(value)}" for name, value in named if value is not None)])


def print_json(out: Console, data: Any) -> None:
    """Data as indented JSON, other scripts readable."""
    made = json.dumps(data, ensure_ascii=False, indent=2)
    # Escaped in a JSON string, these are still themselves for a program, and harmless to a terminal.
    print_lines(out, [_IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], made)])


def print_lines(out: Console, lines: Iterable[str]) -> None:
    """Lines as they are: not wrapped, not styled."""
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def remark(out: Console, line: str) -> None:
    """A line about what was shown."""
    out.print(Text(label(line), "dim"), soft_wrap=True)


# --- lists of records -------------------------------------------------------------------------------------------

Column = tuple[str, Callable[[Any], str]]


def print_records(out: Console, records: Sequence[Record]) -> None:
    """Records, one below the other."""
    if out.is_terminal:
        _print_rows(out, records, lambda record: record)
    else:
        print_lines(out, _plain(records, _record_columns(lambda record: record)))


def print_hits(out: Console, hits: Sequence[Hit]) -> None:
    """Hits, the best first, with how each was found."""
    found: Column = ("found by", found_by)
    if out.is_terminal:
        _print_rows(out, hits, lambda hit: hit.record, (found,))
    else:
        flat: Column = ("found by", lambda hit: found_by(hit).replace("\n", ", "))
        print_lines(out, _plain(hits, [flat, *_record_columns(lambda hit: hit.record)]))


def print_findings(out: Console, findings: Sequence[Finding]) -> None:
    """What a doctor found, each with where."""
    columns: list[Column] = [
        ("code", lambda row: row.code),
        ("scope", lambda row: "" if row.scope is None else label(row.scope.key)),
        ("record", lambda row: label(row.record_id or "")),
        ("operation", lambda row: label(row.operation_id or "")),
        ("what", lambda row: label(row.detail)),
    ]
    if not out.is_terminal:
        print_lines(out, _plain(findings, columns))
        return
    for finding in findings:
        where = (show(finding) for _, show in columns[1:4])
        out.print(Text.assemble((finding.code, "bold red"), "  ", columns[4][1](finding)))
        out.print(Text(" · ".join(place for place in where if place), "dim"), "", sep="\n", soft_wrap=True)


@contextmanager
def progress(out: Console | None) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for work that counts records, on a terminal only; it is gone at the end."""
    if out is None or not out.is_terminal:
        yield None
        return
    with Progress(console=out, transient=True) as bar:
        task = bar.add_task("records")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_history(out: Console, records: Sequence[Record]) -> None:
    """The revisions of one record, oldest first, each with its whole text and its sources."""
    if not out.is_terminal:
        columns = _record_columns(lambda record: record, longest=None)[1:]
        cited: Column = ("sources", lambda record: " + ".join(source_line(source) for source in record.sources))
        print_lines(out, _plain(records, [*columns[:-1], cited, columns[-1]]))
        return
    table = _empty_table()
    table.add_column("rev", justify="right")
    table.add_column("text and sources", ratio=1, overflow="fold")
    table.add_column("origin")
    table.add_column("recorded (UTC)", no_wrap=True)
    for record in records:
        lines = [
            _whole(record.text, _LONGEST_REVISION),
            *(Text(source_line(source), "dim") for source in record.sources),
        ]
        table.add_row(str(record.revision), Group(*lines), _state(record), instant(record.recorded_at))
    out.print(table)


def _whole(text: str, longest: int, style: str = "") -> Text:
    """A text with its line breaks; on a terminal only so much of it as can be looked at."""
    shown, rest = shortened(text, longest)
    return Text.assemble((shown, style), (f" {rest}; --json has all of it", "dim") if rest else "")


def _record_columns(record_of: Callable[[Any], Record], longest: int | None = _LONGEST_LINE) -> list[Column]:
    return [
        ("id", lambda row: label(record_of(row).id)),
        ("rev", lambda row: str(record_of(row).revision)),
        ("origin", lambda row: record_of(row).origin),
        ("status", lambda row: record_of(row).status),
        ("kind", lambda row: record_of(row).kind),
        ("recorded (UTC)", lambda row: instant(record_of(row).recorded_at)),
        ("text", lambda row: one_line(record_of(row).text, longest)),
    ]


def _plain(rows: Sequence[Any], columns: Sequence[Column]) -> list[str]:
    """A head and one line a row, in aligned columns of any width."""
    cells = [[name for name, _ in columns], *([show(row) for _, show in columns] for row in rows)]
    widths = [max(cell_len(line[place]) for line in cells) for place in range(len(columns))]
    return [
        "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _empty_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, expand=True, header_style="bold", padding=(0, 1), pad_edge=False)


def _print_rows(
    out: Console, rows: Sequence[Any], record_of: Callable[[Any], Record], more: Sequence[Column] = ()
) -> None:
    """On a terminal: a table where it is wide enough, else one row below the other."""
    longest = max(cell_len(label(record_of(row).id)) for row in rows)
    if out.width >= longest + _BESIDE_ID + 13 * len(more):
        out.print(_table(rows, record_of, more))
        return
    for row in rows:
        record = record_of(row)
        facts = (
            f"r{record.revision}",
            record.origin,
            record.status,
            *(show(row).replace("\n", ", ") for _, show in more),
        )
        out.print(Text(one_line(record.text)))
        out.print(Text(" · ".join(facts), ORIGIN_STYLES[record.origin]))
        out.print(Text(label(record.id), "dim"), "", sep="\n", soft_wrap=True)  # nothing but the terminal wraps an id


def _table(rows: Sequence[Any], record_of: Callable[[Any], Record], more: Sequence[Column]) -> Table:
    """Each record's text with its id below it, which leaves the text most of the width."""
    table = _empty_table()
    table.add_column("text and id", ratio=1, overflow="fold")
    table.add_column("rev", justify="right")
    table.add_column("origin")
    for name, _ in more:
        table.add_column(name)
    table.add_column("recorded (UTC)", no_wrap=True)
    for row in rows:
        record = record_of(row)
        text = Group(Text(one_line(record.text)), Text(label(record.id), "dim"))
        # A number that follows letters written from right to left would be drawn on their other side.
        number = (_LEFT_TO_RIGHT if is_right_to_left(record.text) else "") + str(record.revision)
        cells: list[RenderableType] = [text, number, _state(record), *(show(row) for _, show in more)]
        table.add_row(*cells, instant(record.recorded_at))
    return table


def _state(record: Record) -> Group:
    """The origin, and below it what is out of the ordinary."""
    lines = [Text(record.origin, ORIGIN_STYLES[record.origin])]
    if record.status != "active":
        lines.append(Text(record.status, "red"))
    if record.kind != "semantic":
        lines.append(Text(record.kind, "dim"))
    return Group(*lines)


# --- one record -------------------------------------------------------------------------------------------------


def print_record(out: Console, record: Record, *, expired: bool) -> None:
    """A record's whole text and everything that is known about it."""
    facts = _facts(record, expired=expired)
    if not out.is_terminal:
        width = max(len(name) for name, _ in facts) + 2
        print_lines(out, (f"{name:<{width}}{value}" for name, value in facts))
        print_lines(out, ["", visible(record.text)])
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        shown = _whole(value, _LONGEST_REVISION) if name == "metadata" else Text(value, ORIGIN_STYLES.get(value, ""))
        grid.add_row(name, shown)
    out.print(Padding(_whole(record.text, _LONGEST_SHOWN, "bold"), (1, 0, 1, 0)))
    out.print(grid)


def _facts(record: Record, *, expired: bool) -> list[tuple[str, str]]:
    until = record.expires_at
    optional = [
        ("expires", "" if until is None else f"{instant(until)} UTC{', expired' if expired else ''}"),
        ("importance", "" if record.importance is None else f"{record.importance:g}"),
        ("metadata", label(json.dumps(record.metadata, ensure_ascii=False)) if record.metadata else ""),
    ]
    links = [("link", f"{label(link.relation)} {label(link.record_id)}") for link in record.links]
    sources = [("source", f"{source_line(source)} · {source.digest}") for source in record.sources]
    return [
        ("id", label(record.id)),
        ("revision", str(record.revision)),
        ("origin", record.origin),
        ("status", record.status),
        ("kind", record.kind),
        ("created", f"{instant(record.created_at)} UTC"),
        ("recorded", f"{instant(record.recorded_at)} UTC"),
        *((name, value) for name, value in optional if value),
        *links,
        *sources,
        ("operation", label(record.operation_id)),
    ]
