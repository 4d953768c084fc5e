"""How values look: HTML for notebooks and safe text for terminals, from plain JSON data.

Owns the mark-up. Imports nothing of the library, so that values can show themselves. Every text is escaped, and what a
page or a terminal would obey instead of showing is spelled out: a stored text can never become part of what shows it.
"""

from vmem_core.display.records import hits, page, record, records, timeline
from vmem_core.display.results import (
    context,
    findings,
    forgotten,
    imported,
    other,
    receipt,
    reembedded,
    scope_forgotten,
    written,
)
from vmem_core.display.running import progress
from vmem_core.display.texts import is_right_to_left, label, quoted, shortened, visible

__all__ = [
    "context",
    "findings",
    "forgotten",
    "hits",
    "imported",
    "is_right_to_left",
    "label",
    "other",
    "page",
    "progress",
    "quoted",
    "receipt",
    "record",
    "records",
    "reembedded",
    "scope_forgotten",
    "shortened",
    "timeline",
    "visible",
    "written",
]
