"""Texts of forgotten records, found and taken out of values of any shape.

Owns what counts as a copy: what a recall answered, what a call wanted remembered, and the same text anywhere else.
Pure. Does not own where the values are stored (``checkpoints.py``).
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from langchain_core.messages import AIMessage, ToolMessage
from pydantic import BaseModel

from vmem_langchain.arguments import answer_text
from vmem_langchain.conversation import is_memory_record, parse

FORGOTTEN: Final = "[forgotten]"
_LEAST_ELSEWHERE: Final = 4  # characters: a shorter text that was found is taken out only where it surely is the record
_ESCAPES: Final = 2  # JSON inside JSON, as providers keep arguments


class Scrubber:
    """Knows what to take out, learns more of it from what it is shown, and takes it out.

    Args:
        record_ids: The forgotten records.
        texts: Texts that are known to the host.
    """

    def __init__(self, record_ids: Collection[str], texts: Collection[str]) -> None:
        self._ids = frozenset(record_ids)
        self._texts: dict[str, set[str]] = {text: set() for text in texts}  # text: the records it is known to be of
        self._wanted: dict[str, str] = {}  # call id: the text of a call that may have written a record
        self._variants: list[tuple[str, str]] | None = None

    # --- learning ---------------------------------------------------------------------------------------------

    def learn(self, value: Any) -> None:
        """Look for texts of the records in a value: in answers of recall, and in calls whose answer names a record."""
        for one in _walk(value):
            if isinstance(one, AIMessage):
                for call in one.tool_calls:
                    self._learn_call(call["id"] or "", call["args"])
            elif isinstance(one, ToolMessage):
                self._learn_answer(one)

    def _learn_call(self, call_id: str, args: Mapping[str, Any]) -> None:
        text = args.get("text")
        if not isinstance(text, str):
            return
        self._wanted[call_id] = text
        if args.get("id") in self._ids and "expected_revision" in args:
            self._add(text, str(args["id"]))

    def _learn_answer(self, message: ToolMessage) -> None:
        answer = parse(message.content)
        for one in answer if isinstance(answer, list) else [answer]:
            record_id = one.get("id") if isinstance(one, dict) else None
            if not isinstance(record_id, str) or record_id not in self._ids:
                continue
            if is_memory_record(one):
                self._add(one["text"], record_id)
            elif "replayed" in one and message.tool_call_id in self._wanted:
                self._add(self._wanted[message.tool_call_id], record_id)

    def _add(self, text: Any, record_id: str) -> None:
        if isinstance(text, str) and text.strip() and text != FORGOTTEN:
            self._texts.setdefault(text, set()).add(record_id)
            self._variants = None

    # --- finding and taking out -------------------------------------------------------------------------------

    def found_in(self, value: Any) -> frozenset[str]:
        """The ids of records of which a value holds a text; ``""`` stands for a text of the host's."""
        found: set[str] = set()
        for one in _walk(value):
            if isinstance(one, str | bytes):
                found |= self._found_in_text(one)
        return frozenset(found)

    def _found_in_text(self, text: str | bytes) -> set[str]:
        found: set[str] = set()
        for variant, original in self._all_variants():
            if (variant in text) if isinstance(text, str) else (_utf8(variant) in text):
                found |= self._texts[original] or {""}
        return found

    def scrub(self, value: Any) -> Any:
        """The value without the texts; the very same object if there is none."""
        return _rebuilt(value, self._scrub_one)

    def _scrub_one(self, value: Any) -> Any:
        if isinstance(value, ToolMessage):
            return self._scrub_answer(value)
        if isinstance(value, dict) and isinstance(value.get("text"), str):
            return self._scrub_fields(value)
        return self._scrub_text(value) if isinstance(value, str) else value

    def _scrub_answer(self, message: ToolMessage) -> ToolMessage:
        """What a recall answered, also where the text is too short to be looked for elsewhere."""
        answer = parse(message.content)
        if not isinstance(answer, list) or not any(self._is_ours(one) for one in answer):
            return message
        clean = [{**one, "text": FORGOTTEN} if self._is_ours(one) else one for one in answer]
        return message.model_copy(update={"content": answer_text(clean)})

    def _is_ours(self, value: Any) -> bool:
        return is_memory_record(value) and value["id"] in self._ids and value["text"] != FORGOTTEN

    def _scrub_fields(self, value: dict[str, Any]) -> dict[str, Any]:
        """Arguments of a call, or a block: a text that is the record's own."""
        return {**value, "text": FORGOTTEN} if value["text"] in self._texts else value

    def _scrub_text(self, text: str) -> str:
        for variant, _ in self._all_variants():
            if variant in text:
                text = text.replace(variant, FORGOTTEN)
        return text

    def _all_variants(self) -> list[tuple[str, str]]:
        """Each text as it may stand in a string, with the text it is; the longest first."""
        if self._variants is None:
            long = [text for text, ids in self._texts.items() if len(text) >= _LEAST_ELSEWHERE or not ids]
            made = {variant: text for text in long for variant in _variants(text)}
            self._variants = sorted(made.items(), key=lambda one: -len(one[0]))
        return self._variants


def _variants(text: str) -> Iterator[str]:
    """A text as it is, as it stands inside JSON and inside JSON inside JSON, and as Python shows it."""
    # A question to a reviewer shows the arguments of a call as Python does, in either kind of quotes.
    shown = [repr(part)[1:-1] for part in text.split("'")]
    yield from ("'".join(shown), "\\'".join(shown))
    for ascii_only in (False, True):
        variant = text
        yield variant
        for _ in range(_ESCAPES):
            variant = json.dumps(variant, ensure_ascii=ascii_only)[1:-1]
            yield variant


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --- values of any shape ------------------------------------------------------------------------------------------


def _parts(value: Any) -> Iterable[Any]:
    """What a value is made of, one level down."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return _fields(value).values()


def _walk(value: Any) -> Iterator[Any]:
    """A value and everything in it, in order; without recursion, for values can be deep."""
    stack, seen = [value], set()
    while stack:
        one = stack.pop()
        if not isinstance(one, str | bytes | int | float | None):
            if id(one) in seen:
                continue
            seen.add(id(one))
        yield one
        stack.extend(reversed(list(_parts(one))))


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with everything in it changed; the very same object if nothing changes."""
    value = change(value)
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, dict):
        made = {_rebuilt(key, change): _rebuilt(one, change) for key, one in value.items()}
        same = all(a is b for a, b in zip(made, value, strict=False)) and all(made[k] is value[k] for k in made)
        return value if same and len(made) == len(value) else made
    if isinstance(value, list | tuple | set | frozenset):
        items = [_rebuilt(one, change) for one in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    fields = _fields(value)
    changed = {name: new for name, old in fields.items() if (new := _rebuilt(old, change)) is not old}
    return _copied(value, changed) if changed else value


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a message, a model, a dataclass or an object with slots (LangGraph's ``Send``); else none."""
    if isinstance(value, type):
        return {}
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    slots = getattr(type(value), "__slots__", ())
    if isinstance(slots, tuple) and type(value).__module__.startswith("langgraph."):
        return {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {}


def _copied(value: Any, changed: dict[str, Any]) -> Any:
    if isinstance(value, BaseModel):
        return value.model_copy(update=changed)
    made = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(made, name, new)
    return made
