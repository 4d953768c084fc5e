"""Records of mem0: what ``get_all`` returns, and its export.

Owns the shapes that versions of mem0 give, told apart: a list of memories (1.0), ``{"results": [...]}`` (1.1 and
later, the platform's pages too), and ``{"memories": [...]}`` (exports). Relations of its graph are no memories and are
left out. Does not own what is wrong with a record (``records.py``).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any, Final

from vmem_core.errors import InvalidRequestError
from vmem_core.legacy.files import read_json
from vmem_core.legacy.records import LegacyRecord
from vmem_core.logs import log

_LISTS: Final = ("results", "memories")
_SCOPE: Final = ("user_id", "agent_id", "run_id", "actor_id")
_READ: Final = frozenset(
    {"id", "memory", "data", "text", "metadata", "created_at", "updated_at", "expiration_date", "hash", "score",
     "event", "payload", "text_lemmatized", *_SCOPE}
)  # fmt: skip


async def from_mem0(items: Any) -> AsyncIterator[LegacyRecord]:
    """Legacy records from mem0.

    Args:
        items: What ``Memory.get_all`` or ``MemoryClient.get_all`` returned (mind its ``top_k``, 20 by default), what
            ``get_memory_export`` returned, an iterable of several such answers or of memories, or the path of a JSON
            file with one of these.

    Raises:
        InvalidRequestError: If it is none of these, for example the answer of another version.

    >>> from vmem_core import run_sync
    >>> async def first(source): return await anext(source)
    >>> run_sync(first(from_mem0({"results": [{"id": "m-1", "memory": "Likes tea", "user_id": "ada"}]}))).text
    'Likes tea'
    """
    if isinstance(items, str | os.PathLike):
        items = await read_json(items)
    for item in _memories(items, "items"):
        yield _record(item)


def _memories(answer: Any, path: str) -> Iterator[Mapping[str, Any]]:
    """The memories of an answer, or of several."""
    if isinstance(answer, Mapping):
        if _is_memory(answer):
            yield answer
            return
        name = next((name for name in _LISTS if isinstance(answer.get(name), list)), None)
        if name is None:
            raise _unknown(path)
        if answer.get("next"):
            log().warning(
                "mem0: the answer is one page of several; pass all pages, or what is on the others is missing"
            )
        answer, path = answer[name], f"{path}.{name}"
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes):
        raise _unknown(path)
    for place, item in enumerate(answer):
        if isinstance(item, Mapping) and not _is_memory(item) and not any(name in item for name in _LISTS):
            raise _unknown(f"{path}[{place}]")
        yield from _memories(item, f"{path}[{place}]")


def _is_memory(item: Mapping[str, Any]) -> bool:
    """A memory has its text, or, in a vector store's own dump, a payload."""
    return "memory" in item or isinstance(item.get("payload"), Mapping) or ("id" in item and "text" in item)


def _unknown(path: str) -> InvalidRequestError:
    return InvalidRequestError(
        "is no answer of mem0's get_all or export that is known here: a list of memories, or an object with "
        "'results' or 'memories', each memory with 'id' and 'memory'",
        path=path,
    )


def _record(item: Mapping[str, Any]) -> LegacyRecord:
    if isinstance(item.get("payload"), Mapping):
        item = {"id": item.get("id"), **item["payload"]}
    if item.get("event") == "DELETE":  # from the answer of an add
        return LegacyRecord(item.get("id"), fault="invalidated")
    metadata = item.get("metadata")
    if metadata is None or isinstance(metadata, Mapping):
        more = {key: value for key, value in item.items() if key not in _READ and value is not None}
        metadata = {**more, **(metadata or {})}
    return LegacyRecord(
        id=item.get("id"),
        text=item.get("memory", item.get("data", item.get("text"))),
        scope={name: item.get(name) for name in _SCOPE},
        metadata=metadata,
        created_at=item.get("created_at"),
        updated_at=item.get("updated_at"),
        expires_at=_end_of(item.get("expiration_date")),
    )


def _end_of(day: Any) -> Any:
    """When a memory expires that lives to the end of a day: mem0 counts that day in."""
    if not day:
        return None
    try:
        return date.fromisoformat(str(day)) + timedelta(days=1)
    except (ValueError, OverflowError):
        return day
