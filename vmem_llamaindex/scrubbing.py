r"""Texts of forgotten records, found and taken out of what LlamaIndex saves: JSON, with JSON in its strings.

Owns what counts as a copy: what a recall answered or showed, what a call wanted remembered, and the same text anywhere
else. Pure. Does not own where the values are stored (``redaction.py``).
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from vmem_llamaindex.conversation import is_memory_record

FORGOTTEN: Final = "[forgotten]"
_LEAST_ELSEWHERE: Final = 4  # characters: a shorter text that was found is taken out only where it surely is the record
_ESCAPES: Final = 3  # JSON inside JSON, where it stands among other words
_LINE: Final = r"\[id=%s revision=\d+ origin=\w+[^\]\n]*\] <<(.*?)>>"  # a record, as a context shows it
_SAID: Final = re.compile(r"^(?:Action Input|Observation): (.*)$", re.MULTILINE)


class Scrubber:
    """Knows what to take out, learns more of it from what it is shown, and takes it out.

    Args:
        record_ids: The forgotten records.
        texts: Texts that are known to the host.
    """

    def __init__(self, record_ids: Collection[str], texts: Collection[str]) -> None:
        self._ids = frozenset(record_ids)
        self._texts: dict[str, set[str]] = {text: set() for text in texts}  # text: the records it is known to be of
        self._wanted: dict[str, set[str]] = {}  # call id: the texts of calls that may have written a record
        self._answered: list[tuple[str, str]] = []  # call id, and a record that its answer says was written
        self._variants: list[tuple[str, str]] | None = None
        self._lines = [(one, re.compile(_LINE % re.escape(one), re.DOTALL)) for one in sorted(self._ids)]

    # --- learning ---------------------------------------------------------------------------------------------

    def learn(self, value: Any) -> None:
        """Look for texts of the records in a value: in answers, in shown contexts, in calls whose answer names one."""
        for one in _walk(value):
            if isinstance(one, str):
                self._learn_text(one)
            elif isinstance(one, Mapping):
                self._learn_object(one)
        for call_id, record_id in self._answered:
            for text in self._wanted.get(call_id, ()):
                self._add(text, record_id)

    def _learn_object(self, one: Mapping[str, Any]) -> None:
        if self._is_record(one) or self._is_node(one):
            self._add(one.get("text"), str(self._record_id(one)))
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
        text = arguments.get("text") if isinstance(arguments, Mapping) else None
        if not isinstance(text, str):
            return
        self._wanted.setdefault(call_id, set()).add(text)
        if self._is_id(arguments.get("id")) and "expected_revision" in arguments:
            self._add(text, str(arguments["id"]))

    def _learn_answer(self, call_id: str, message: Mapping[str, Any]) -> None:
        blocks = message.get("blocks")
        for block in blocks if isinstance(blocks, list) else ():
            record_id = self._written_id(_parsed(block.get("text")) if isinstance(block, Mapping) else None)
            if record_id is not None and call_id:
                self._answered.append((call_id, record_id))

    def _written_id(self, answer: Any) -> str | None:
        """The record that an answer says was written."""
        if isinstance(answer, Mapping) and "replayed" in answer and self._is_id(answer.get("id")):
            return str(answer["id"])
        return None

    def _learn_text(self, text: str) -> None:
        """What is shown in words: lines of a context, and what a model of the ReAct manner did and saw."""
        for record_id, line in self._lines:
            for found in line.findall(text):
                self._add(found, record_id)
        wanted: Any = None
        for said in _SAID.finditer(text):
            if said[0].startswith("Action"):
                wanted = _literal(said[1])
                continue
            answer = _parsed(said[1])
            for one in answer if isinstance(answer, list) else [answer]:
                if isinstance(one, Mapping) and self._is_record(one):
                    self._add(one["text"], str(one["id"]))
            written = self._written_id(answer)
            if written is not None and isinstance(wanted, Mapping):
                self._add(wanted.get("text"), written)

    def _is_record(self, value: Any) -> bool:
        return is_memory_record(value) and self._is_id(value["id"])

    def _is_node(self, value: Mapping[str, Any]) -> bool:
        return isinstance(value.get("metadata"), Mapping) and self._is_id(self._record_id(value)) and "text" in value

    def _is_id(self, value: Any) -> bool:
        return isinstance(value, str) and value in self._ids

    def _record_id(self, value: Mapping[str, Any]) -> Any:
        """The record that an answer of recall, or a node of the retriever, shows."""
        metadata = value.get("metadata")
        return metadata.get("record_id") if isinstance(metadata, Mapping) else value.get("id")

    def _add(self, text: Any, record_id: str) -> None:
        if isinstance(text, str) and text.strip() and text != FORGOTTEN:
            self._texts.setdefault(text, set()).add(record_id)
            self._variants = None

    # --- finding and taking out -------------------------------------------------------------------------------

    def found_in(self, value: Any) -> frozenset[str]:
        """The ids of records of which a value holds a text; ``""`` stands for a text of the host's."""
        found: set[str] = set()
        for one in _walk(value):
            if isinstance(one, str):
                packed = _packed(one)
                for variant, original in self._all_variants():
                    if variant in one or (packed is not None and variant.encode("utf-8", "surrogatepass") in packed):
                        found |= self._texts[original] or {""}
        return frozenset(found)

    def scrub(self, value: Any) -> Any:
        """The value without the texts; the very same object if there is none."""
        if isinstance(value, str):
            return self._scrub_text(value)
        if isinstance(value, list):
            items = [self.scrub(one) for one in value]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        if isinstance(value, dict):
            return self._scrub_object(value)
        return value

    def _scrub_object(self, value: dict[str, Any]) -> dict[str, Any]:
        text = value.get("text")
        ours = self._is_record(value) or self._is_node(value) or (isinstance(text, str) and text in self._texts)
        if ours and text != FORGOTTEN:
            value = {**value, "text": FORGOTTEN}
        made = {self.scrub(key): self.scrub(one) for key, one in value.items()}
        same = len(made) == len(value) and all(key in made and made[key] is one for key, one in value.items())
        return value if same else made

    def _scrub_text(self, text: str) -> str:
        inner = _parsed(text)
        if inner is not None:
            clean = self.scrub(inner)
            return text if clean is inner else _style_of(text, inner)(clean)
        for _, line in self._lines:
            text = line.sub(_without_text, text)
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


def _without_text(line: re.Match[str]) -> str:
    return f"{line[0][: -len(line[1]) - 4]}{FORGOTTEN}"


def _variants(text: str) -> Iterator[str]:
    """A text as it is, as it stands inside JSON and inside JSON inside JSON, and as Python shows it."""
    shown = [repr(part)[1:-1] for part in text.split("'")]
    yield from ("'".join(shown), "\\'".join(shown))
    for ascii_only in (False, True):
        variant = text
        yield variant
        for _ in range(_ESCAPES):
            variant = json.dumps(variant, ensure_ascii=ascii_only)[1:-1]
            yield variant


# --- JSON inside strings ------------------------------------------------------------------------------------------


def _parsed(value: Any) -> Any:
    """The object, list or string that a text is as JSON; what is none of these already; else None."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith(("[", "{", '"')):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _literal(text: str) -> Any:
    """A dict, as JSON or as Python shows it."""
    found = _parsed(text)
    if found is not None:
        return found
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _style_of(text: str, inner: Any) -> Callable[[Any], str]:
    """Writes JSON as a text was written, as far as that can be told."""
    for ascii_only in (True, False):
        for separators in (None, (",", ":")):
            if json.dumps(inner, ensure_ascii=ascii_only, separators=separators) == text:
                return lambda value, a=ascii_only, s=separators: json.dumps(value, ensure_ascii=a, separators=s)  # type: ignore[misc]
    return json.dumps


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
