"""Files that readers read: whole JSON documents, and lines.

Owns how a file is opened and what is said when it is none: nothing of its content. A file is read in another thread, so
that no event loop waits for a disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any, Final

from vmem_core.errors import InvalidRequestError

Path = str | os.PathLike[str]
_LINES_AT_ONCE: Final = 1_000


def check_path(path: object, name: str = "path") -> str:
    """A path as a string.

    Raises:
        InvalidRequestError: For anything else.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str) or not os.fspath(path):
        raise InvalidRequestError("must be a path", path=name)
    return str(os.fspath(path))


async def read_json(path: Path) -> Any:
    """A JSON document in UTF-8.

    Raises:
        InvalidRequestError: If it is none.
        OSError: If it cannot be opened.
    """
    import asyncio

    return await asyncio.to_thread(_read_json, check_path(path))


def _read_json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return json.load(file)
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{os.path.basename(path)} is not JSON in UTF-8", path="path") from None


async def read_lines(path: Path) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1, read as they are asked for."""
    import asyncio

    file = await asyncio.to_thread(open, check_path(path), "rb")
    try:
        numbered = enumerate(file, 1)
        while lines := await asyncio.to_thread(_next_lines, numbered):
            for number, line in lines:
                if line.strip():
                    yield number, line
    finally:
        file.close()


def _next_lines(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return list(islice(lines, _LINES_AT_ONCE))
