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
    counts = f"{done:,}" if total is None else f"{done:,} of {total:,} ({100 * done // max(total, 1)} %)"
    if total == 0:
        counts = "nothing to do"
    place = "" if total is None else f' max="{max(total, 1)}" value="{done if total else 1}"'
    words = f"{one_line(label)}: {counts}"
    return markup.frame(f"<label>{escape(words)}<progress{place}></progress></label>"), words
