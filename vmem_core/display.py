"""How values look: HTML for notebooks, from plain JSON data.

Owns the mark-up. Imports nothing of the library, so that records can show themselves. Every text is escaped:
a stored text can never become mark-up of the page that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST_CELL = 240
_NO_FORMULAS = 'class="tex2jax_ignore mathjax_ignore"'  # a notebook would typeset what stands between two $
_MOST_SOURCES = 3
_MOST_CHANGES = 20
_SOURCE_NAMES = ("tool_name", "uri", "message_id")
_STYLES = {
    "text": "white-space:pre-wrap;min-width:14em",
    "sources": "white-space:normal",
    "origin": "white-space:normal",
    "id": "white-space:nowrap;font-size:85%",
}


def record_row(record: Mapping[str, Any]) -> dict[str, str]:
    """The cells of one record, by column. Retracted and expiring records say so beside their origin."""
    state = [record["origin"]]
    if record["status"] != "active":
        state.append(record["status"])
    if record["expires_at"] is not None:
        state.append(f"until {_moment(record['expires_at'])}")
    return {
        "text": record["text"],
        "revision": str(record["revision"]),
        "origin": ", ".join(state),
        "kind": record["kind"],
        "sources": _sources(record["sources"]),
        "recorded (UTC)": _moment(record["recorded_at"]),
        "id": record["id"],
    }


def _moment(instant: str) -> str:
    return instant[:19].replace("T", " ")


def _sources(sources: Sequence[Mapping[str, Any]]) -> str:
    """What kinds of source there are, and what was read, without a digest."""
    shown = [
        f"{source['kind']} {next((source[name] for name in _SOURCE_NAMES if source[name] is not None), '')}".rstrip()
        for source in sources[:_MOST_SOURCES]
    ]
    return ", ".join(shown) + (f" and {len(sources) - _MOST_SOURCES} more" if len(sources) > _MOST_SOURCES else "")


def hit_row(hit: Mapping[str, Any]) -> dict[str, str]:
    """The cells of one hit: its record, and how it was found."""
    row = record_row(hit["record"])
    score = "" if hit["match"] == "recent" else f"{hit['score']:.4f}"  # nothing was compared
    return {"text": row.pop("text"), "match": hit["match"], "score": score, **row}


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of equal columns as an HTML table; long cells are cut with an ellipsis, an id never.

    >>> "&lt;b&gt;tea&lt;/b&gt;" in table([{"text": "<b>tea</b>"}])
    True
    """
    if not rows:
        return "<p><em>nothing found</em></p>"
    head = "".join(f'<th style="text-align:left">{_escape(name)}</th>' for name in rows[0])
    body = "".join("<tr>" + "".join(_cell(name, text) for name, text in row.items()) + "</tr>" for row in rows)
    return f"<table {_NO_FORMULAS}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(name: str, text: str) -> str:
    style = "text-align:left;" + _STYLES.get(name, "white-space:nowrap")
    if name == "id":
        return f'<td style="{style}"><code>{_escape(text)}</code></td>'
    return f'<td style="{style}">{_escape(_shortened(text))}</td>'


def _escape(text: str) -> str:
    from html import escape  # it loads a table of all entities, which most programs never show

    return escape(text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def receipt(data: Mapping[str, Any]) -> str:
    """A receipt as one line, and one line for each change."""
    parts = [data["kind"], f"scope revision {data['scope_revision']}", f"committed {_moment(data['committed_at'])} UTC"]
    parts += [f"{note['code']} ×{note['count']}" for note in data["notes"]]
    parts += ["redacted"] if data["redacted"] else []
    changes = data["changes"]
    lines = [f"operation {data['operation_id']}"]
    lines += [f"{c['action']} {c['record_id']}, revision {c['revision']}" for c in changes[:_MOST_CHANGES]]
    if len(changes) > _MOST_CHANGES:
        lines.append(f"and {len(changes) - _MOST_CHANGES} more changes")
    if not changes:
        lines.append("no change")
    shown = "<br>".join(f"<code>{_escape(line)}</code>" for line in lines)
    return f"<p {_NO_FORMULAS}><b>receipt</b>: {_escape(' · '.join(parts))}<br>{shown}</p>"
