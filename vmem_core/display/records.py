"""Records, what a recall found, and a record's history as a line in time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vmem_core.display import markup
from vmem_core.display.differences import difference
from vmem_core.display.markup import badge, block, facts, line, moment, name, quiet, said, table

Data = Mapping[str, Any]
_MOST_SOURCES: Final = 3
_SOURCE_NAMES: Final = ("tool_name", "uri", "message_id")
_COLUMNS: Final = ("text and id", "revision", "origin", "sources", "recorded (UTC)")


def record(data: Data) -> str:
    """A record with what is known about it."""
    return markup.frame(block(data["text"], markup.LONGEST_BLOCK, "v-big"), line(*_badges(data)), facts(_facts(data)))


def _badges(data: Data) -> list[str]:
    return [badge(f"revision {data['revision']}"), _state(data), _sources(data["sources"])]


def _state(data: Data) -> str:
    """The origin, and what is out of the ordinary."""
    found = [badge(data["origin"])]
    if data["status"] != "active":
        found.append(badge(data["status"]))
    if data["kind"] != "semantic":
        found.append(badge(data["kind"]))
    if data["expires_at"] is not None:
        found.append(f'<span class="v-badge v-short">until {moment(data["expires_at"])}</span>')
    return " ".join(found)


def _sources(sources: Sequence[Data]) -> str:
    """What kinds of source there are, and what was read, without a digest."""
    shown = [
        markup.source_badge(one["kind"], next((one[key] for key in _SOURCE_NAMES if one[key] is not None), None))
        for one in sources[:_MOST_SOURCES]
    ]
    return " ".join(shown) + (f" and {len(sources) - _MOST_SOURCES} more" if len(sources) > _MOST_SOURCES else "")


def _facts(data: Data) -> list[tuple[str, str]]:
    links = [("link", f"{said(one['relation'])} {name(one['record_id'])}") for one in data["links"]]
    optional = [
        ("importance", "" if data["importance"] is None else f"{data['importance']:g}"),
        ("metadata", said(json.dumps(data["metadata"], ensure_ascii=False)) if data["metadata"] else ""),
    ]
    return [
        ("id", name(data["id"])),
        ("scope", scope(data["scope"])),
        ("recorded", f"{moment(data['recorded_at'])} UTC, at scope revision {data['scope_revision']}"),
        *(pair for pair in optional if pair[1]),
        *links,
    ]


def scope(data: Data) -> str:
    """The fields of a scope that are given."""
    return ", ".join(f"{key} {name(value)}" for key, value in data.items() if value is not None)


def _cells(data: Data) -> list[str]:
    return [
        f"{block(data['text'])}<div>{name(data['id'])}</div>",
        str(data["revision"]),
        _state(data),
        _sources(data["sources"]),
        moment(data["recorded_at"]),
    ]


def records_table(rows: Sequence[Data], caption: str) -> str:
    """Records, a row each."""
    return table(caption, _COLUMNS, [_cells(row) for row in rows])


def page(rows: Sequence[Data], has_more: bool) -> str:
    """One page of a list."""
    if not rows:
        return markup.frame(quiet("nothing found"))
    more = "; more with cursor=" if has_more else ""
    return markup.frame(records_table(rows, f"{markup.counted(len(rows), 'record')}, newest first{more}"))


def hits(rows: Sequence[Data]) -> str:
    """What a recall found, best first, with its place in either list."""
    if not rows:
        return markup.frame(quiet("nothing found"))
    count = markup.counted(len(rows), "hit")
    if all(row["match"] == "recent" for row in rows):  # nothing was compared
        return markup.frame(table(f"{count}, changed last first", _COLUMNS, [_cells(row["record"]) for row in rows]))
    columns = ("text and id", "found by", "score", *_COLUMNS[1:])
    return markup.frame(table(f"{count}, best first", columns, [_hit_cells(row) for row in rows]))


def _hit_cells(row: Data) -> list[str]:
    text, *others = _cells(row["record"])
    ranks = (("meaning", row["vector_rank"]), ("words", row["lexical_rank"]))
    found = [f'<span class="v-short">{word} #{rank}</span>' for word, rank in ranks if rank is not None]
    return [text, "<br>".join(found) or row["match"], f"{row['score']:.4f}", *others]


# --- history ------------------------------------------------------------------------------------------------------


def timeline(rows: Sequence[Data]) -> str:
    """The revisions of one record, oldest first, each with what it changed of the one before."""
    if not rows:
        return markup.frame(quiet("nothing found"))
    shown = rows[-markup.MOST_ROWS :]
    first = len(rows) - len(shown)
    before = [rows[first - 1] if first else None, *shown]
    items = [_revision(one, earlier) for earlier, one in zip(before, shown, strict=False)]
    heading = f"{markup.counted(len(rows), 'revision')} of {name(rows[-1]['id'])}, oldest first"
    more = quiet(f"{markup.counted(first, 'earlier revision')} not shown") if first else ""
    legend = quiet("− taken out and + put in, compared with the revision before") if "<ins>" in "".join(items) else ""
    return markup.frame(line(heading), more, f'<ol class="v-line">{"".join(items)}</ol>', legend)


def _revision(data: Data, before: Data | None) -> str:
    missing = data["revision"] - (before["revision"] if before else 0) - 1
    gap = quiet(f"{markup.counted(missing, 'revision')} before this no longer kept") if missing > 0 else ""
    head = line(badge(f"revision {data['revision']}"), _what_happened(data, before), _sources(data["sources"]))
    when = f'<p class="v-quiet">{moment(data["recorded_at"])} UTC, at scope revision {data["scope_revision"]}</p>'
    return f"<li>{gap}{head}{_text(data, before)}{when}</li>"


def _what_happened(data: Data, before: Data | None) -> str:
    state = _state(data)
    if before is None:
        return state
    if before["status"] != data["status"] and data["status"] == "active":
        return f"{badge('active again', 'v-sure')} {state}"
    changed = [
        key for key in ("origin", "kind", "importance", "metadata", "links", "expires_at") if data[key] != before[key]
    ]
    return f"{state} {badge('changed: ' + ', '.join(changed).replace('expires_at', 'expiry'))}" if changed else state


def _text(data: Data, before: Data | None) -> str:
    if before is None:
        return block(data["text"], markup.LONGEST_BLOCK)
    if before["text"] == data["text"]:
        return quiet("the same text")
    return f'<div class="v-text" dir="auto">{difference(before["text"], data["text"])}</div>'
