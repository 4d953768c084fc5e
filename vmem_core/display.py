"""How values look: HTML for notebooks, from plain JSON data.

Owns the mark-up. Imports nothing of the library, so that records can show themselves. Every text is escaped:
a stored text can never become mark-up of the page that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_LONGEST_CELL = 240


def record_row(record: Mapping[str, Any]) -> dict[str, str]:
    """The cells of one record, by column."""
    return {
        "text": record["text"],
        "origin": record["origin"],
        "status": record["status"],
        "kind": record["kind"],
        "revision": str(record["revision"]),
        "recorded at": record["recorded_at"][:19].replace("T", " "),
        "id": record["id"],
    }


def hit_row(hit: Mapping[str, Any]) -> dict[str, str]:
    """The cells of one hit: how it was found, then its record."""
    return {"match": hit["match"], "score": f"{hit['score']:.4f}", **record_row(hit["record"])}


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of equal columns as an HTML table; long cells are cut with an ellipsis.

    >>> table([{"text": "<b>tea</b>"}])
    '<table><tr><th>text</th></tr><tr><td>&lt;b&gt;tea&lt;/b&gt;</td></tr></table>'
    """
    if not rows:
        return "<p><em>nothing found</em></p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{_cell(text)}</td>" for text in row.values()) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(text: str) -> str:
    return escape(text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…")


def receipt(data: Mapping[str, Any]) -> str:
    """A receipt as one line."""
    changes = ", ".join(f"{c['action']} {c['record_id']} r{c['revision']}" for c in data["changes"][:20])
    notes = ", ".join(f"{n['code']} ×{n['count']}" for n in data["notes"])
    parts = [data["kind"], f"operation {data['operation_id']}", f"scope revision {data['scope_revision']}"]
    parts += [part for part in (changes or "no change", notes, "redacted" if data["redacted"] else "") if part]
    return f"<p><code>{escape(' · '.join(parts))}</code></p>"
