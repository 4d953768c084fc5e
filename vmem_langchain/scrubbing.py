"""Texts of forgotten records, found and taken out of LangChain's messages and of values of any shape.

Owns where in messages and documents a record stands, and how values of any shape are walked through and rebuilt. Pure.
Does not own what counts as a copy (``vmem_core``) or where the values are stored (``checkpoints.py``).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ToolMessage
from pydantic import BaseModel

from vmem_core import ForgottenTexts, has_memory_labels, read_json
from vmem_langchain.conversation import text_of

FORGOTTEN: Final = "[forgotten]"


class Scrubber(ForgottenTexts):
    """Knows what to take out, learns more of it from what it is shown, and takes it out.

    Args:
        record_ids: The forgotten records.
        texts: Texts that are known to the host.
    """

    def __init__(self, record_ids: Collection[str], texts: Collection[str]) -> None:
        super().__init__(record_ids, texts)
        self._wanted: dict[str, list[str]] = {}  # call id: the texts that the last message with it wanted remembered

    # --- learning ---------------------------------------------------------------------------------------------

    def learn(self, value: Any) -> None:
        """Look for texts of the records in a value: in answers, in shown contexts, in calls whose answer names one."""
        for one in _walk(value):
            if isinstance(one, str):
                self.learn_shown(one)
            elif isinstance(one, AIMessage):
                self._learn_calls(one)
            elif isinstance(one, ToolMessage):
                self._learn_answer(one)
            elif isinstance(one, Document) and self._is_document(one):
                self.learn_text(one.page_content, str(one.id))
            elif self.is_record(one):
                self.learn_text(one["text"], one["id"])

    def _learn_calls(self, message: AIMessage) -> None:
        wanted: dict[str, list[str]] = {}
        for call in message.tool_calls:
            text = self.learn_call(call["args"])
            if text is not None:
                wanted.setdefault(call["id"] or "", []).append(text)
        self._wanted |= wanted

    def _learn_answer(self, message: ToolMessage) -> None:
        written = self.written_id(read_json(text_of(message.content)))
        if written is not None:  # of several calls with one id any may be meant: what was forgotten must not be left
            for text in self._wanted.get(message.tool_call_id, ()):
                self.learn_text(text, written)

    def _is_document(self, one: Document) -> bool:
        """Whether a document is one of the records, as the retriever finds it."""
        return self.is_id(one.id) and has_memory_labels(one.metadata)

    # --- finding and taking out -------------------------------------------------------------------------------

    def found_in(self, value: Any) -> frozenset[str]:
        """The ids of records of which a value holds a text; ``""`` stands for a text of the host's."""
        return frozenset().union(*(self.found_in_text(one) for one in _walk(value) if isinstance(one, str | bytes)))

    def scrub(self, value: Any) -> Any:
        """The value without the texts; the very same object if there is none."""
        return _rebuilt(value, self._scrub_one)

    def _scrub_one(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.scrub_text(value)
        if isinstance(value, Document) and self._is_document(value) and value.page_content != FORGOTTEN:
            return value.model_copy(update={"page_content": FORGOTTEN})
        return self.scrub_fields(value) if isinstance(value, dict) else value


# --- values of any shape ------------------------------------------------------------------------------------------


def _parts(value: Any) -> Iterable[Any]:
    """What a value is made of, one level down."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, str):
        inner = read_json(value)
        return () if inner is None else (inner,)
    return _fields(value).values()


def _walk(value: Any) -> Iterator[Any]:
    """A value and everything in it, also in the JSON of its strings, in order; not recursive: values can be deep."""
    stack: list[Any] = [value]
    seen: dict[int, Any] = {}  # with the value itself: of one that is gone, another one may get the id
    while stack:
        one = stack.pop()
        if not isinstance(one, str | bytes | int | float | None):
            if id(one) in seen:
                continue
            seen[id(one)] = one
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
