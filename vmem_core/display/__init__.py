"""How values look: HTML for notebooks and safe text for terminals, from plain JSON data.

Owns the mark-up. Imports nothing of the library, so that values can show themselves. Every text is escaped, and what a
page or a terminal would obey instead of showing is spelled out: a stored text can never become part of what shows it.
Nothing is loaded before something is shown, which most programs never do.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vmem_core.display.records import hits, page, record, timeline
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
    "reembedded",
    "scope_forgotten",
    "shortened",
    "timeline",
    "visible",
    "written",
]

_HOMES = {
    "records": ("hits", "page", "record", "timeline"),
    "results": (
        "context",
        "findings",
        "forgotten",
        "imported",
        "other",
        "receipt",
        "reembedded",
        "scope_forgotten",
        "written",
    ),
    "running": ("progress",),
    "texts": ("is_right_to_left", "label", "quoted", "shortened", "visible"),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
