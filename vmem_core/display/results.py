"""Receipts and other answers of a session or store. They hold no memory text, except the records of a write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vmem_core.display import markup
from vmem_core.display.markup import badge, counted, facts, line, moment, name, quiet, said, table
from vmem_core.display.records import records_table, scope

Data = Mapping[str, Any]
Pairs = list[tuple[str, str]]

NOTES: Final = {
    "duplicate": "equal facts of one request became one record",
    "already_stored": "an active record has this text already",
    "noop": "nothing new in it",
    "superseded_duplicate": "an inferred record of the same text was replaced",
    "about_asserted": "stored beside an asserted record, which stays as it is",
    "delete_of_asserted_dropped": "a model wanted to delete an asserted record, and was not heard",
    "unknown_handle": "a model named a record that it was not shown",
    "invalid_entry": "a part of the model's answer made no sense and was left out",
    "over_limit": "beyond the largest size or number, and left out",
    "unparsed": "the model's answer could not be read; nothing of it was applied",
    "refused": "the model refused or said nothing",
    "nothing_readable": "there was nothing that may be read",
    "untrusted": "messages of untrusted sources, left unread",
    "already_processed": "messages that were read before",
    "block_skipped": "parts of messages that are no text",
    "truncated": "texts of which only the beginning was read",
    "not_embedded": "stored without a vector, found by words",
}
_SKIPS: Final = {
    "revised": "revised or forgotten meanwhile; the next pass met it again",
    "not_embeddable": "the model gave no usable vector; found by words",
    "failed": "the embedder raised for it; it has no vector yet",
}
_REDACTIONS: Final = {
    "complete": "complete: every listener was told",
    "failed": "failed: a listener raised; forget again to tell them again",
    "none": "none: no listener is configured",
}


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _receipt(data: Data, *badges: str) -> str:
    """What was done, to what, and what is to be remarked."""
    marks = [*badges, badge("redacted") if data["redacted"] else ""]
    what = f"<b>Receipt</b> of {markup.name(data['kind'])}, scope revision {data['scope_revision']}"
    about: Pairs = [
        ("operation", name(data["operation_id"])),
        ("scope", scope(data["scope"])),
        ("committed", f"{moment(data['committed_at'])} UTC"),
    ]
    return line(what, *marks) + facts(about) + _changes(data["changes"]) + _notes(data["notes"])


def _changes(changes: Sequence[Data]) -> str:
    if not changes:
        return quiet("no change")
    shown = [
        f"<li>{badge(one['action'])} {name(one['record_id'])}, revision {one['revision']}</li>"
        for one in changes[: markup.MOST_ROWS]
    ]
    more = len(changes) - markup.MOST_ROWS
    return f"<ul>{''.join(shown)}</ul>" + (quiet(f"and {counted(more, 'more change')}") if more > 0 else "")


def _notes(notes: Sequence[Data]) -> str:
    if not notes:
        return ""
    rows = [[name(one["code"]), f"{one['count']:,}", NOTES.get(one["code"], "")] for one in notes]
    return table("Notes", ("note", "count", "meaning"), rows, wide=2)


def receipt(data: Data) -> str:
    """A receipt with its changes and notes."""
    return markup.frame(_receipt(data))


def written(data: Data) -> str:
    """What a write answers: its records, then its receipt."""
    marks = [badge("replayed: committed before, nothing applied now")] if data["replayed"] else []
    if data["conflict_retries"]:
        marks.append(badge(f"planned again after {counted(data['conflict_retries'], 'conflict')}"))
    shown = [
        records_table(data[key], caption.format(counted(len(data[key]), "record")))
        for key, caption in (("records", "{} written"), ("present", "{} met that stayed as it was"))
        if data[key]
    ]
    return markup.frame(*shown, _receipt(data["receipt"], *marks))


def forgotten(data: Data) -> str:
    """What a forget answers."""
    said_before = "it was forgotten before" if data["already_forgotten"] else "nothing to delete"
    gone = ", ".join(map(str, data["revisions"])) or said_before
    return _forget(data, [("revisions deleted", gone)])


def scope_forgotten(data: Data) -> str:
    """What forgetting a whole scope answers."""
    return _forget(data, [("records forgotten", f"{len(data['record_ids']):,}")])


def _forget(data: Data, pairs: Pairs) -> str:
    more: Pairs = [
        ("copies elsewhere", _REDACTIONS[data["redaction"]]),
        ("files scrubbed", _yes(data["scrubbed"])),
    ]
    marks = [badge("replayed: committed before, nothing applied now")] if data["replayed"] else []
    return markup.frame(facts([*pairs, *more]), _receipt(data["receipt"], *marks))


def context(data: Data) -> str:
    """A context package: references, best first, and how many did not fit."""
    left = f"{data['omitted']:,} left out of the budget; " if data["omitted"] else ""
    about = quiet(f"{left}made at scope revision {data['scope_revision']}; holds references, no text")
    if not data["items"]:
        return markup.frame(quiet("nothing found"), about)
    rows = [
        [name(one["record_id"]), str(one["revision"]), badge(one["origin"]), _kinds(one["source_kinds"])]
        for one in data["items"]
    ]
    caption = f"Context of {counted(len(rows), 'record')}, best first"
    return markup.frame(table(caption, ("record", "revision", "origin", "sources"), rows), about)


def _kinds(kinds: Iterable[str]) -> str:
    return " ".join(badge(kind, "v-from") for kind in kinds)


def _count_rows(counts: Mapping[str, int], meanings: Mapping[str, str]) -> list[list[str]]:
    return [[name(code), f"{count:,}", meanings.get(code, "")] for code, count in counts.items()]


def imported(data: Data) -> str:
    """What an import answers."""
    # A dry run answers the same: what is new here may not be written yet.
    words = f"{counted(data['scanned'], 'record')} read: {data['imported']:,} new, {data['skipped']:,} skipped"
    rows = [[name(code), f"{count:,}"] for code, count in data["reasons"].items()]
    return markup.frame(line(words), table("Skipped", ("reason", "count"), rows) if rows else "")


def reembedded(data: Data) -> str:
    """What moving a store to another embedding model answers."""
    state = "the store searches with it" if data["activated"] else "not complete: call again to go on"
    words = f"Generation {data['generation']}: {counted(data['embedded'], 'vector')} stored; {state}"
    rows = _count_rows(data["reasons"], _SKIPS)
    skipped = table("Without a vector", ("reason", "count", "meaning"), rows, wide=2) if rows else ""
    failed = facts([("failed", ", ".join(map(name, data["failed"])))]) if data["failed"] else ""
    return markup.frame(line(words), skipped, failed)


def findings(rows: Sequence[Data]) -> str:
    """What a doctor found, each with where."""
    if not rows:
        return markup.frame(line(badge("sound", "v-sure"), "nothing found: all that the store keeps agrees"))
    cells = [
        [name(one["code"]), said(one["detail"]), "" if one["scope"] is None else scope(one["scope"]), _where(one)]
        for one in rows
    ]
    caption = f"{counted(len(rows), 'finding')}; the page on the doctor says of each code what to do"
    return markup.frame(table(caption, ("code", "what", "scope", "where"), cells, wide=1))


def _where(one: Data) -> str:
    places = (("record", one["record_id"]), ("operation", one["operation_id"]))
    return "<br>".join(f"{word} {name(value)}" for word, value in places if value is not None)


def other(title: str, data: Data) -> str:
    """Any other value: its fields that are given."""
    pairs = [(key.replace("_", " "), _value(value)) for key, value in data.items() if value not in (None, [], {})]
    return markup.frame(line(f"<b>{title}</b>"), facts(pairs))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return _yes(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{said(str(key))} {_value(one)}" for key, one in value.items() if one is not None)
    if isinstance(value, list):
        return "; ".join(map(_value, value[: markup.MOST_ROWS]))
    return said(str(value))
