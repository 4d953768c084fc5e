"""The pieces a display is made of: the frame, badges, facts, tables.

Owns escaping. What a host, a user or a model said enters a page through ``said``, ``name`` and ``block`` only, which
escape it and isolate its direction. Everything else that is handed in is mark-up of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from vmem_core.display.style import SHEET
from vmem_core.display.texts import label, shortened

LONGEST_CELL: Final = 240
LONGEST_BLOCK: Final = 2_000
MOST_ROWS: Final = 100
_NO_FORMULAS: Final = "tex2jax_ignore mathjax_ignore"  # a notebook would typeset what stands between two $
_TONES: Final = {
    "asserted": "v-sure", "inferred": "v-guess", "retracted": "v-gone", "create": "v-sure", "revise": "v-from",
    "retract": "v-gone", "forget": "v-gone", "redacted": "v-gone", "failed": "v-gone",
}  # fmt: skip

_WIDTHS: Final = {"sources": "v-middle"}  # what it holds may break anywhere


def frame(*parts: str) -> str:
    """A display as one element, with its style sheet. No script, and no mark-up that needs one."""
    return f'<div class="vmem {_NO_FORMULAS}"><style>{SHEET}</style>{"".join(parts)}</div>'


def said(text: str, longest: int = LONGEST_CELL) -> str:
    """A stored text within a line of ours; a long one is cut, with its length told."""
    shown, rest = shortened(text, longest)
    return f'<span dir="auto">{escape(shown)}</span>{_rest(rest)}'


def block(text: str, longest: int = LONGEST_CELL, more: str = "") -> str:
    """A stored text with its line breaks, in a paragraph of its own."""
    shown, rest = shortened(text, longest)
    classes = f"v-text {more}".rstrip()
    return f'<div class="{classes}" dir="auto">{escape(shown)}</div>{_rest(rest)}'


def _rest(rest: str) -> str:
    return f" <small>{rest}</small>" if rest else ""


def name(text: str) -> str:
    """An id or name: in one line, never cut, so that it can be copied."""
    return f'<code dir="auto">{escape(label(text))}</code>'


def badge(word: str, tone: str | None = None) -> str:
    """A word of ours, marked. Its colour only repeats what it says."""
    tone = _TONES.get(word, "") if tone is None else tone
    return f'<span class="{f"v-badge {tone}".rstrip()}">{escape(word)}</span>'


def source_badge(kind: str, named: str | None) -> str:
    """A kind of source, and what was read."""
    inner = escape(kind) + (f" {said(label(named), 60)}" if named is not None else "")
    return f'<span class="v-badge v-from">{inner}</span>'


def moment(instant: str) -> str:
    """An instant to the second, in UTC; exact for programs."""
    shown = instant[:19].replace("T", " ")
    return f'<time class="v-short" datetime="{escape(instant)}">{escape(shown)}</time>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names of ours and what they stand for (mark-up), a line each."""
    return f"<dl>{''.join(f'<dt>{escape(term)}</dt><dd>{value}</dd>' for term, value in pairs)}</dl>"


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], wide: int = 0) -> str:
    """Rows of mark-up under the names of their columns; the first cell heads its row. Beyond 100, rows are counted.

    Args:
        caption: What the table is, in words of ours.
        columns: Their names.
        rows: As many cells each.
        wide: The column that gets most of the room.
    """
    classes = ["v-wide" if place == wide else _WIDTHS.get(column, "v-short") for place, column in enumerate(columns)]
    head = "".join(
        f'<th scope="col" class="{given}">{escape(column)}</th>' for given, column in zip(classes, columns, strict=True)
    )
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>and {len(rows) - MOST_ROWS:,} more</p>" if len(rows) > MOST_ROWS else ""
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
    )


def _row(cells: Sequence[str]) -> str:
    first, *others = cells
    return f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others)


def line(*parts: str) -> str:
    """Mark-up in a paragraph."""
    return f"<p>{' '.join(part for part in parts if part)}</p>"


def quiet(words: str) -> str:
    """Words of ours about what was shown."""
    return f'<p class="v-quiet">{escape(words)}</p>'


def counted(count: int, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "change"), counted(2_000, "change")
    ('1 change', '2,000 changes')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
