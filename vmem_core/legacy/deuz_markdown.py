"""Records of the Deuz SDK's legacy memory in a Markdown vault: one ``<id>.md`` a record.

Owns the front matter between ``---`` lines: one ``name: value`` a line, a value being a JSON-quoted string, a bare
number or word, or a list in brackets; names in camel case, other names are metadata. The text follows. Vectors
(``.deuz-vectors.json``) are not carried over. Does not own a record's fields (``deuz.py``).
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any, Final

from vmem_core.errors import InvalidRequestError
from vmem_core.legacy.deuz import record_of_object
from vmem_core.legacy.files import check_path
from vmem_core.legacy.records import LegacyRecord

_FILES: Final = 200
_FENCE: Final = "---"


async def from_deuz_markdown(folder: str | os.PathLike[str]) -> AsyncIterator[LegacyRecord]:
    """Legacy records from the Markdown files of a folder, in order of their names.

    A file whose front matter is cut, or cannot be read, is ``unreadable``. Files that are no ``.md`` are passed over.

    Args:
        folder: The vault.

    Raises:
        InvalidRequestError: If there is no such folder.
    """
    import asyncio

    path = check_path(folder, "folder")
    if not await asyncio.to_thread(os.path.isdir, path):
        raise InvalidRequestError("is no folder", path="folder")
    names = iter(sorted(name for name in await asyncio.to_thread(os.listdir, path) if _is_record(name)))
    while records := await asyncio.to_thread(_next_records, path, names):
        for record in records:
            yield record


def _is_record(name: str) -> bool:
    return name.endswith(".md") and not name.startswith(".")


def _next_records(folder: str, names: Iterator[str]) -> list[LegacyRecord]:
    return [_read(folder, name) for name in islice(names, _FILES)]


def _read(folder: str, name: str) -> LegacyRecord:
    with open(os.path.join(folder, name), "rb") as file:
        data = file.read()
    fallback = name.removesuffix(".md")
    try:
        item = read_note(data.decode("utf-8-sig"))
    except ValueError:
        return LegacyRecord(fallback, fault="unreadable")
    return record_of_object({"id": fallback, **item}, more_is_metadata=True)


def read_note(note: str) -> dict[str, Any]:
    r"""The front matter of a note as an object, its text as ``text``.

    Raises:
        ValueError: If the front matter is cut off, or a line of it cannot be read.

    >>> read_note('---\nid: "m-1"\nimportance: 0.5\ntags: [tea, "a, b"]\n---\nAda likes tea.\n')
    {'id': 'm-1', 'importance': 0.5, 'tags': ['tea', 'a, b'], 'text': 'Ada likes tea.'}
    """
    lines = note.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != _FENCE or _FENCE not in (ends := [line.rstrip() for line in lines[1:]]):
        raise ValueError("has no front matter, or one that is cut off")
    end = ends.index(_FENCE) + 1
    found: dict[str, Any] = {}
    for line in lines[1:end]:
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ValueError("has a line that is no name and value")
        found[name.strip()] = _value(value.strip())
    # One line break ends the fence, one may end the file: neither is the text's own.
    text = "\n".join(lines[end + 1 :])
    found["text"] = text.removeprefix("\n").removesuffix("\n")
    return found


def _value(text: str) -> Any:
    """A value of front matter: JSON where it is JSON, a list of bare words, or the words as they stand."""
    if not text or text == "~":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text[0] == '"' or (text[0] == "[") != (text[-1] == "]"):
            raise ValueError("has a string or a list that does not end") from None
    if text[0] != "[":
        return text
    return [_value(item.strip()) for item in _split(text[1:-1])]


def _split(items: str) -> Iterator[str]:
    """The items between commas that stand in no quotes."""
    start, quoted, escaped = 0, False, False
    for place, char in enumerate(items):
        if escaped:
            escaped = False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == "," and not quoted:
            yield items[start:place]
            start = place + 1
    if items.strip():
        yield items[start:]
