r"""Texts of forgotten records, found and taken out of what LlamaIndex saves: JSON, with JSON in its strings.

Owns where in messages, nodes, contexts and a ReAct agent's words a record stands. Pure. Does not own what counts as a
copy (``vmem_core``) or where the values are stored (``redaction.py``).
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from vmem_core import ForgottenTexts, read_json

FORGOTTEN: Final = "[forgotten]"
_SAID: Final = re.compile(r"^(?:Action Input|Observation): (.*)$", re.MULTILINE)


class Scrubber(ForgottenTexts):
    """Knows what to take out, learns more of it from what it is shown, and takes it out.

    Args:
        record_ids: The forgotten records.
        texts: Texts that are known to the host.
    """

    def __init__(self, record_ids: Collection[str], texts: Collection[str]) -> None:
        super().__init__(record_ids, texts)
        self._wanted: dict[str, set[str]] = {}  # call id: the texts of calls that may have written a record
        self._answered: list[tuple[str, str]] = []  # call id, and a record that its answer says was written

    # --- learning ---------------------------------------------------------------------------------------------

    def learn(self, value: Any) -> None:
        """Look for texts of the records in a value: in answers, in shown contexts, in calls whose answer names one."""
        for one in _walk(value):
            if isinstance(one, str):
                self._learn_words(one)
            elif isinstance(one, Mapping):
                self._learn_object(one)
        for call_id, record_id in self._answered:
            for text in self._wanted.get(call_id, ()):
                self.learn_text(text, record_id)

    def _learn_object(self, one: Mapping[str, Any]) -> None:
        if self.is_record(one) or self._is_node(one):
            self.learn_text(one.get("text"), str(self._record_id(one)))
        call_id = one.get("tool_call_id") or one.get("tool_id") or one.get("id")
        arguments = one.get("tool_kwargs")
        if arguments is None and isinstance(one.get("function"), Mapping):
            arguments = one["function"].get("arguments")
        if arguments is not None:
            self._learn_call(str(call_id or ""), _parsed(arguments))
        if isinstance(one.get("tool_output"), Mapping):
            self._learn_answer(str(call_id or ""), one["tool_output"])
        kwargs = one.get("additional_kwargs")
        if one.get("role") in ("tool", "function") and isinstance(kwargs, Mapping):
            self._learn_answer(str(kwargs.get("tool_call_id") or ""), one)

    def _learn_call(self, call_id: str, arguments: Any) -> None:
        text = self.learn_call(arguments)
        if text is not None:
            self._wanted.setdefault(call_id, set()).add(text)

    def _learn_answer(self, call_id: str, message: Mapping[str, Any]) -> None:
        blocks = message.get("blocks")
        for block in blocks if isinstance(blocks, list) else ():
            record_id = self.written_id(_parsed(block.get("text")) if isinstance(block, Mapping) else None)
            if record_id is not None and call_id:
                self._answered.append((call_id, record_id))

    def _learn_words(self, text: str) -> None:
        """What is shown in words: lines of a context, and what a model of the ReAct manner did and saw."""
        self.learn_shown(text)
        wanted: Any = None
        for said in _SAID.finditer(text):
            if said[0].startswith("Action"):
                wanted = _literal(said[1])
                continue
            answer = _parsed(said[1])
            for one in answer if isinstance(answer, list) else [answer]:
                if isinstance(one, Mapping) and self.is_record(one):
                    self.learn_text(one["text"], str(one["id"]))
            written = self.written_id(answer)
            if written is not None and isinstance(wanted, Mapping):
                self.learn_text(wanted.get("text"), written)

    def _is_node(self, value: Mapping[str, Any]) -> bool:
        return isinstance(value.get("metadata"), Mapping) and self.is_id(self._record_id(value)) and "text" in value

    def is_ours(self, value: Mapping[str, Any]) -> bool:
        """Whether the ``text`` of an object is one of the records'; here also that of a retriever's node."""
        return super().is_ours(value) or self._is_node(value)

    def _record_id(self, value: Mapping[str, Any]) -> Any:
        """The record that an answer of recall, or a node of the retriever, shows."""
        metadata = value.get("metadata")
        return metadata.get("record_id") if isinstance(metadata, Mapping) else value.get("id")

    # --- finding and taking out -------------------------------------------------------------------------------

    def found_in(self, value: Any) -> frozenset[str]:
        """The ids of records of which a value holds a text; ``""`` stands for a text of the host's."""
        found: set[str] = set()
        for one in _walk(value):
            if isinstance(one, str):
                found |= self.found_in_text(one)
                packed = _packed(one)
                if packed is not None:
                    found |= self.found_in_text(packed)
        return frozenset(found)

    def scrub(self, value: Any) -> Any:
        """The value without the texts; the very same object if there is none."""
        return self.scrub_json(value)


# --- JSON inside strings ------------------------------------------------------------------------------------------


def _parsed(value: Any) -> Any:
    """The object, list or string that a text is as JSON; what is no text as it is; else None."""
    return read_json(value) if isinstance(value, str) else value


def _literal(text: str) -> Any:
    """A dict, as JSON or as Python shows it."""
    found = _parsed(text)
    if found is not None:
        return found
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _packed(text: str) -> bytes | None:
    """The bytes of a value that was pickled into a context."""
    if len(text) % 4 or not text.startswith("gA"):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


def _walk(value: Any) -> Iterator[Any]:
    """A value and everything in it, also in the JSON of its strings, in order."""
    stack = [value]
    while stack:
        one = stack.pop()
        yield one
        if isinstance(one, Mapping):
            stack.extend(reversed([*one.keys(), *one.values()]))
        elif isinstance(one, list | tuple):
            stack.extend(reversed(one))
        elif isinstance(one, str):
            inner = _parsed(one)
            if inner is not None:
                stack.append(inner)
