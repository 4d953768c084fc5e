"""A model's reply, however it is wrapped, as facts or decisions. Pure.

Owns how a reply is read: fences, prose, thoughts, several objects, lists for objects, strings for objects. A reply
that was cut off is unreadable as a whole: no prefix of it is ever applied. What is complete but broken is mended by
``json_repair``; there is no parser here, only a look for where the outermost brackets close. Does not own what a
decision does (``reconcile.py``).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from vmem_core.records import KINDS
from vmem_core.text import is_blank, mend_string

T = TypeVar("T")
MOST_ENTRIES: Final = 100
EVENTS: Final = ("ADD", "UPDATE", "DELETE", "NOOP")
_PAIRS: Final = {"{": "}", "[": "]"}
_TAG = r"<(?P<close>/?)(?:think|thinking|thought|reasoning)>"
_NEXT = re.compile(rf"{_TAG}|[\[{{]", re.IGNORECASE)
_THOUGHT_ENDS = re.compile(_TAG.replace("/?", "/"), re.IGNORECASE)
_OPENS = re.compile(r"[\[{]")
_INSIDE = re.compile(
    r"""[\[\]{}]|"(?:[^"\\]|\\.)*(?:"|\Z)|(?<=[\[{,:\s])'(?:[^'\\]|\\.)*(?:'|\Z)""",  # brackets and strings
    re.DOTALL,
)
_REFUSAL = re.compile(
    r"\W*(?:unfortunately\W+)?(?:"
    r"(?:(?:i['’]?m|i am|we['’]?re|we are)\s+)?(?:very\s+|so\s+)?(?:sorry|afraid|unable|not able)"
    r"|(?:i|we)\s+(?:can['’]?t|cannot|can not|won['’]?t|will not|must decline|decline|apologi[sz]e)"
    r"|as an ai)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FactEntry:
    """A fact that a model extracted. What is not of the right type or range is None."""

    text: str
    sources: tuple[str, ...] = ()
    kind: str | None = None
    importance: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a model decided about a fact or a record.

    Args:
        event: ``ADD``, ``UPDATE``, ``DELETE`` or ``NOOP``.
        id: A handle of EXISTING; None if it gave none, -1 if what it gave cannot be one.
        fact: A handle of NEW, such as ``n0``, or None.
        text: The text it proposes.
        kind: The kind it proposes.
        importance: The importance it proposes.
    """

    event: str
    id: int | None = None
    fact: str | None = None
    text: str | None = None
    kind: str | None = None
    importance: float | None = None


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What a reply says.

    Args:
        outcome: ``read``; ``unparsed``: unreadable, ask once more; ``refused``: empty, or words of refusal.
        entries: What was read, at most 100.
        invalid: How many entries were not understood.
        over: How many entries came beyond the limit.
    """

    outcome: str
    entries: tuple[T, ...] = ()
    invalid: int = 0
    over: int = 0


def read_facts(reply: object) -> Reply[FactEntry]:
    """The facts of an extraction's reply, ``{"facts": [{"text", "sources", "kind"?, "importance"?}]}``.

    Args:
        reply: A text, or what a careless model function returns instead: None, blocks, parsed JSON.

    >>> read_facts('Sure! {"facts": [{"text": "Ada likes tea", "sources": ["s0"]}]} Hope {this} helps').entries
    (FactEntry(text='Ada likes tea', sources=('s0',), kind=None, importance=None),)
    """
    return _read(reply, "facts", _fact)


def read_decisions(reply: object) -> Reply[Decision]:
    """The decisions of a reconciliation's reply, ``{"memory": [{"event", "id"?, "fact"?, "text"?, …}]}``.

    >>> read_decisions('{"memory": [{"event": "update", "id": "0", "text": "x"}]').outcome
    'unparsed'
    """
    return _read(reply, "memory", _decision)


def _read(reply: object, key: str, entry: Callable[[Any], T | None]) -> Reply[T]:
    text = _plain_text(reply)
    if is_blank(text):
        return Reply("refused")
    segments = _segments(text)
    items = None if segments is None else _last_list(segments, key)
    if items is None:
        refused = not segments and segments is not None and _REFUSAL.match(text)
        return Reply("refused" if refused else "unparsed")
    read = [entry(item) for item in items[:MOST_ENTRIES]]
    entries = tuple(one for one in read if one is not None)
    return Reply("read", entries, len(read) - len(entries), max(0, len(items) - MOST_ENTRIES))


def _plain_text(reply: object) -> str:
    """The text of whatever a model function returned."""
    if isinstance(reply, str):
        return reply
    if isinstance(reply, list) and all(isinstance(block, str) or _is_block(block) for block in reply):
        return "".join(block if isinstance(block, str) else str(block.get("text") or "") for block in reply)
    if isinstance(reply, dict | list) and reply:
        try:
            return json.dumps(reply)
        except (TypeError, ValueError, RecursionError):
            return ""
    return ""


def _is_block(block: object) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get("type"), str)


def _segments(text: str) -> list[str] | None:
    """The outermost bracketed parts outside thoughts, in order; None if one never closes: the reply was cut off."""
    found: list[str] = []
    position = 0
    while match := _NEXT.search(text, position):
        if match["close"] is None:
            end = _closing(text, match.start())
            if end is None:
                return None
            found.append(text[match.start() : end])
            position = end
        elif match["close"]:
            found.clear()  # what came before the end of a thought, marked as one or not, was thought
            position = match.end()
        elif ended := _THOUGHT_ENDS.search(text, match.end()):
            position = ended.end()  # brackets in a thought need not close
        else:
            return found or _object_at_end(text[match.end() :])
    return found


def _object_at_end(thought: str) -> list[str] | None:
    """What a thought that was never ended closes with, if that is an object."""
    last, position = None, 0
    while match := _OPENS.search(thought, position):
        end = _closing(thought, match.start())
        if end is None:
            return None
        last, position = thought[match.start() : end], end
    return [last] if last is not None and not thought[position:].strip("` \n\r\t") else None


def _closing(text: str, start: int) -> int | None:
    """Where the bracket that opens at ``start`` closes, or None. Brackets inside strings do not count."""
    awaited: list[str] = []
    for match in _INSIDE.finditer(text, start):
        if match[0] in _PAIRS:
            awaited.append(_PAIRS[match[0]])
        elif match[0] in "}]":
            if match[0] != awaited.pop():
                return None  # broken in a way that could pass for an end: nothing before it is applied either
            if not awaited:
                return match.end()
    return None


def _last_list(segments: list[str], key: str) -> list[Any] | None:
    """The entries of the last part of the wanted shape, ``{key: …}``; else those of the last bare list."""
    for segment in reversed(segments):
        value = _load(segment) if segment[0] == "{" and key in segment else None
        items = _as_list(value[key]) if isinstance(value, dict) and key in value else None
        if items is not None:
            return items
    for segment in reversed(segments):
        value = _load(segment) if segment[0] == "[" and "{" in segment else None
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            return value
    return [] if any(segment[0] == "[" and not segment[1:-1].strip() for segment in segments) else None


def _as_list(value: Any) -> list[Any] | None:
    """A list of entries, also where a model gave one entry, entries by key, or the list as a text."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return list(value.values()) if value and all(isinstance(one, dict) for one in value.values()) else [value]
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        return _as_list(_load(value))
    return [] if value is None else None


def _load(segment: str) -> Any:
    import json_repair

    for load in (json.loads, functools.partial(json_repair.loads, skip_json_loads=True)):
        try:
            return load(segment)
        except (ValueError, RecursionError):
            continue  # not JSON as it stands: the next one mends it, if it can be mended
    return None


def _fact(item: Any) -> FactEntry | None:
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, dict):
        return None
    text = _text(item.get("text")) or _text(item.get("fact"))
    if text is None:
        return None
    sources = item.get("sources")
    tags = [sources] if isinstance(sources, str) else sources if isinstance(sources, list) else []
    return FactEntry(
        text,
        tuple(tag for tag in tags if isinstance(tag, str)),
        _kind(item.get("kind")),
        _share(item.get("importance")),
    )


def _decision(item: Any) -> Decision | None:
    event = item.get("event") if isinstance(item, dict) else None
    if not isinstance(event, str) or event.strip().upper() not in EVENTS:
        return None
    fact = item.get("fact")
    if isinstance(fact, int) and not isinstance(fact, bool):
        fact = f"n{fact}"
    return Decision(
        event.strip().upper(),
        _handle(item.get("id")),
        fact.strip() if isinstance(fact, str) else None,
        _text(item.get("text")),
        _kind(item.get("kind")),
        _share(item.get("importance")),
    )


def _handle(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else -1
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value):
        return int(value)
    return -1


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    mended = mend_string(value)
    return None if is_blank(mended) else mended


def _kind(value: Any) -> str | None:
    return value.strip().lower() if isinstance(value, str) and value.strip().lower() in KINDS else None


def _share(value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    return None
