"""Records from a file of JSON lines, one object a line.

Owns the reading of lines. Does not own how an object becomes a record (``items.py``).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from vmem_core.legacy.files import Path, read_lines
from vmem_core.legacy.items import record_of
from vmem_core.legacy.records import LegacyRecord


async def from_jsonl(path: Path, text: str = "text", *, id: str | None = "id") -> AsyncIterator[LegacyRecord]:
    """Legacy records from a file with one JSON object a line, in UTF-8; a line that is none is ``unreadable``.

    Args:
        path: The file.
        text: The name of the field that holds the text.
        id: The name of the field that holds the id. None: there is none, and each record gets one made of its scope
            and text. The other fields are as for ``from_items``.

    Raises:
        OSError: If the file cannot be opened.
    """
    first = True
    async for _, line in read_lines(path):
        try:
            said = line.decode("utf-8-sig" if first else "utf-8")
            item = json.loads(said)
        except (ValueError, RecursionError):
            item = None
        first = False
        yield record_of(item, text, id)
