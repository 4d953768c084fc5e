"""Texts of forgotten records in what a framework keeps: known by where they stood, found again, taken out.

Owns what counts as a copy: a record as a recall answers it or a context shows it, what a call wanted remembered, and
the same text anywhere else, also as JSON inside of strings and as Python shows it. Pure. Does not own the values of a
framework or where they are stored (the adapters).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from vmem_core.context import FORGOTTEN, line_pattern
from vmem_core.errors import InvalidRequestError
from vmem_core.text import read_json
from vmem_core.tool_answers import is_memory_record

_LEAST_ELSEWHERE: Final = 4  # characters: a shorter text that was found is taken out only where it surely is the record
_ESCAPES: Final = 3  # JSON inside JSON, where it stands among other words


class ForgottenTexts:
    """What is to be taken out. It learns more of it from what it is shown.

    An adapter derives a class of its own, which knows the framework's messages.

    Args:
        record_ids: The forgotten records.
        texts: Texts that are known to the host.

    Raises:
        InvalidRequestError: For anything but lists of strings that are not blank.

    >>> texts = ForgottenTexts(["r1"], ["black tea"])
    >>> texts.learn_shown("[id=r1 revision=1 origin=asserted sources=host] <<Ada likes tea.>>")
    >>> texts.scrub_text('{"said": "Ada likes tea. No black tea."}')
    '{"said": "[forgotten] No [forgotten]."}'
    """

    def __init__(self, record_ids: Collection[str], texts: Collection[str]) -> None:
        _check(record_ids, "record_ids")
        _check(texts, "texts")
        self._ids = frozenset(record_ids)
        self._texts: dict[str, set[str]] = {text: set() for text in texts}  # text: the records it is known to be of
        self._variants: list[tuple[str, str]] | None = None
        self._lines = [(one, line_pattern(one)) for one in sorted(self._ids)]

    # --- learning ---------------------------------------------------------------------------------------------

    def is_id(self, value: object) -> bool:
        """Whether a value is the id of one of the records."""
        return isinstance(value, str) and value in self._ids

    def is_record(self, value: Any) -> bool:
        """Whether a value is one of the records, as a recall answers it."""
        return is_memory_record(value) and self.is_id(value["id"])

    def is_ours(self, value: Mapping[str, Any]) -> bool:
        """Whether the ``text`` of an object is one of the records'; an adapter knows more such objects."""
        text = value.get("text")
        return self.is_record(value) or (isinstance(text, str) and text in self._texts)

    def learn_text(self, text: object, record_id: str) -> None:
        """Take note of a text of a record; of anything that is no text, or a blank one, nothing."""
        if isinstance(text, str) and text.strip() and text != FORGOTTEN:
            self._texts.setdefault(text, set()).add(record_id)
            self._variants = None

    def learn_shown(self, text: str) -> None:
        """Look in a text for records as a context shows them."""
        for record_id, line in self._lines:
            for found in line.findall(text):
                self.learn_text(found, record_id)

    def learn_call(self, arguments: object) -> str | None:
        """Look at the arguments of a call: a revision names its record itself.

        Returns:
            The text that the call wanted remembered, for whoever finds out by the answer which record it became.
        """
        text = arguments.get("text") if isinstance(arguments, Mapping) else None
        if not isinstance(arguments, Mapping) or not isinstance(text, str):
            return None
        if self.is_id(arguments.get("id")) and "expected_revision" in arguments:
            self.learn_text(text, str(arguments["id"]))
        return text

    def written_id(self, answer: object) -> str | None:
        """Which of the records an answer says was written; None: none of them."""
        if isinstance(answer, Mapping) and "replayed" in answer and self.is_id(answer.get("id")):
            return str(answer["id"])
        return None

    # --- finding and taking out -------------------------------------------------------------------------------

    def found_in_text(self, text: str | bytes) -> frozenset[str]:
        """The ids of records of which a text holds a text; ``""`` stands for a text of the host's."""
        found: set[str] = set()
        for variant, original in self._all_variants():
            if (variant in text) if isinstance(text, str) else (variant.encode("utf-8", "surrogatepass") in text):
                found |= self._texts[original] or {""}
        return frozenset(found)

    def scrub_json(self, value: Any) -> Any:
        """A JSON value without the texts; the very same object if there is none."""
        if isinstance(value, str):
            return self.scrub_text(value)
        if isinstance(value, list):
            items = [self.scrub_json(one) for one in value]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else items
        if isinstance(value, dict):
            ours = self.scrub_fields(value)
            made = {self.scrub_json(key): self.scrub_json(one) for key, one in ours.items()}
            same = len(made) == len(value) and all(key in made and made[key] is one for key, one in value.items())
            return value if same else made
        return value

    def scrub_fields(self, value: dict[str, Any]) -> dict[str, Any]:
        """An object without a text that surely is the record's, however short; the very same object if it has none."""
        return {**value, "text": FORGOTTEN} if value.get("text") != FORGOTTEN and self.is_ours(value) else value

    def scrub_text(self, text: str) -> str:
        """A string without the texts; JSON stays JSON, written as it was."""
        inner = read_json(text)
        if inner is not None:
            try:
                clean = self.scrub_json(inner)
                return text if clean is inner else _style_of(text, inner)(clean)
            except RecursionError:  # deeper than anybody's data: then it is a text like any other
                return self._scrub_plain(text)
        return self._scrub_plain(text)

    def _scrub_plain(self, text: str) -> str:
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


def _check(given: object, path: str) -> None:
    sound = isinstance(given, list | tuple | set | frozenset)
    if not sound or not all(isinstance(one, str) and one.strip() for one in given):  # type: ignore[attr-defined]
        raise InvalidRequestError("must be a list of strings that are not blank", path=path)


def _without_text(line: re.Match[str]) -> str:
    return f"{line[0][: -len(line[1]) - 4]}{FORGOTTEN}"


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


def _style_of(text: str, inner: Any) -> Callable[[Any], str]:
    """Writes JSON as a text was written, as far as that can be told."""
    for ascii_only in (True, False):
        for separators in (None, (",", ":")):
            if json.dumps(inner, ensure_ascii=ascii_only, separators=separators) == text:
                return lambda value, a=ascii_only, s=separators: json.dumps(value, ensure_ascii=a, separators=s)  # type: ignore[misc]
    return json.dumps
