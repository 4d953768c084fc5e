r"""Texts of forgotten records, found and taken out of what LlamaIndex saves: JSON, with JSON in its strings.

Owns where in messages, nodes, contexts and a ReAct agent's words a record stands. Pure. Does not own what counts as a
copy (``vmem_core``) or where the values are stored (``redaction.py``).
"""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from vmem_core import ForgottenTexts, read_json

_SAID: Final = re.compile(r"^(?:Action Input|Observation): (.*)$", re.MULTILINE)


class Scrubber(ForgottenTexts):
    """Knows what to take out, learns more of it from what it is shown, and takes it out.

    Args:
        record_ids: The forgotten records.
        texts: Texts that are known to the host.
    """

    def __init__(self, record_ids: Collection[str], texts: Collection[str]) -> None:
        super().__init__(record_ids, texts)
        self._calls = _Calls()

    # --- learning ---------------------------------------------------------------------------------------------

    def learn(self, conversation: Any) -> None:
        """Look for texts of the records: in answers, in shown contexts, in calls whose answer names one.

        Args:
            conversation: All of one conversation, in order: ids of calls may come again in the next one, and in this
                one's next reply.
        """
        self._calls = _Calls()
        for one in _walk(conversation):
            if isinstance(one, str):
                self._learn_words(one)
            elif isinstance(one, Mapping):
                self._learn_object(one)

    def _learn_object(self, one: Mapping[str, Any]) -> None:
        if self.is_record(one) or self._is_node(one):
            self.learn_text(one.get("text"), str(self._record_id(one)))
        if "role" in one:
            self._calls.next_message()
        call_id = str(one.get("tool_call_id") or one.get("tool_id") or one.get("id") or "")
        arguments, output = one.get("tool_kwargs"), one.get("tool_output")
        if arguments is None and isinstance(one.get("function"), Mapping):
            arguments = one["function"].get("arguments")
        wanted = None if arguments is None else self.learn_call(_parsed(arguments))
        if isinstance(output, Mapping):  # a result that has its call with it
            for record_id in self._written_in(output):
                self.learn_text(wanted, record_id)
        elif arguments is not None:
            self._learn_pairs(self._calls.call(call_id, wanted))
        kwargs = one.get("additional_kwargs")
        if one.get("role") in ("tool", "function") and isinstance(kwargs, Mapping):
            answered = str(kwargs.get("tool_call_id") or "")
            self._learn_pairs(self._calls.answer(answered, self._written_in(one)))

    def _learn_pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        for text, record_id in pairs:
            self.learn_text(text, record_id)

    def _written_in(self, message: Mapping[str, Any]) -> list[str]:
        """Which of the records an answer says were written."""
        blocks = message.get("blocks")
        texts = (_parsed(block.get("text")) for block in blocks or () if isinstance(block, Mapping))
        return [record_id for record_id in map(self.written_id, texts) if record_id is not None]

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


# --- calls and answers --------------------------------------------------------------------------------------------


class _Calls:
    """Which call an answer is of. Ids alone do not tell: some providers count anew in each reply, or give a tool name.

    An answer is of the last message before it that calls with its id; values that a context saves may have an answer
    before the call. Where one message calls twice with one id, its answers stand in the order in which they were done,
    so that each may be of either call: then all of its texts count, since what was forgotten must not be left.
    """

    def __init__(self) -> None:
        self._message = 0
        self._wanted: dict[
            str, tuple[int, list[str]]
        ] = {}  # call id: the message, and what its calls wanted remembered
        self._early: dict[str, list[str]] = {}  # call id: records that an answer named before any call

    def next_message(self) -> None:
        """What comes now is of another message."""
        self._message += 1

    def call(self, call_id: str, text: str | None) -> list[tuple[str, str]]:
        """A call, and the text it wanted remembered, if any; returns texts with the records they became."""
        message, texts = self._wanted.get(call_id, (-1, []))
        if message != self._message:
            if texts:
                self._early.pop(call_id, None)  # they were of the message before
            texts = []
            self._wanted[call_id] = (self._message, texts)
        if text is None:
            return []
        texts.append(text)
        return [(text, record_id) for record_id in self._early.get(call_id, ())]

    def answer(self, call_id: str, record_ids: list[str]) -> list[tuple[str, str]]:
        """An answer, and the records it says were written; returns texts with the records they became."""
        if call_id not in self._wanted:
            self._early.setdefault(call_id, []).extend(record_ids)
            return []
        _, texts = self._wanted[call_id]
        return [(text, record_id) for text in texts for record_id in record_ids]


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
