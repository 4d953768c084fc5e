"""A job that is under way."""

from __future__ import annotations

from html import escape

from vmem_core.display import markup
from vmem_core.display.texts import label as one_line


def progress(label: str, done: int, total: int | None) -> tuple[str, str]:
    """How far a job is, as a page and as a line.

    Args:
        label: What is being done.
        done: How many records are done.
        total: How many there are in all; None if nobody knows.

    >>> progress("importing", 3, 12)[1]
    'importing: 3 of 12 (25 %)'
    """
    words = f"{one_line(label)}: {_counts(done, total)}"
    bar = "" if total is None else f'<progress max="{max(total, 1)}" value="{done if total else 1}"></progress>'
    return markup.frame(f"<label>{escape(words)}{bar}</label>"), words


def _counts(done: int, total: int | None) -> str:
    if total is None:
        return f"{done:,} done"
    return f"{done:,} of {total:,} ({100 * done // total} %)" if total else "nothing to do"
