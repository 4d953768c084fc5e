"""Records from any iterable: what a host has already read itself.

Owns how a mapping becomes a legacy record. Does not own what is wrong with one (``records.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from vmem_core.legacy.records import LegacyRecord, made_id
from vmem_core.records import Scope

_FIELDS: Final = tuple(field.name for field in fields(LegacyRecord) if field.name not in ("scope", "metadata", "fault"))
_SCOPE_FIELDS: Final = tuple(field.name for field in fields(Scope))
_CAMEL: Final = {
    name.split("_")[0] + "".join(word.title() for word in name.split("_")[1:]): name
    for name in (*_FIELDS, *_SCOPE_FIELDS)
    if "_" in name
}


async def from_items(
    items: Iterable[Any] | AsyncIterable[Any], *, text: str = "text", id: str | None = "id"
) -> AsyncIterator[LegacyRecord]:
    """Legacy records from an iterable of ``LegacyRecord`` or of mappings with its fields.

    The fields of a scope may stand beside the others or in a mapping of their own, ``scope``; names may be in snake
    case or camel case. What is no field of ``LegacyRecord`` is metadata.

    Args:
        items: Async or not; read once, as the import goes.
        text: The name of the field that holds the text.
        id: The name of the field that holds the id. None: there is none, and each record gets one made of its scope
            and text, so that equal ones are one record and an import can be run again.

    >>> from vmem_core import run_sync
    >>> async def first(source): return await anext(source)
    >>> run_sync(first(from_items([{"id": 7, "text": "tea", "user_id": "ada"}]))).scope
    {'user_id': 'ada'}
    """
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield record_of(item, text, id)
    else:
        for item in items:
            yield record_of(item, text, id)


def record_of(item: Any, text: str = "text", id: str | None = "id") -> LegacyRecord:
    """A legacy record from a mapping; anything else is ``unreadable``."""
    if isinstance(item, LegacyRecord):
        return item
    if not isinstance(item, Mapping):
        return LegacyRecord(fault="unreadable")
    given = {_CAMEL.get(key, key) if isinstance(key, str) else key: value for key, value in item.items()}
    said = given.pop(text, None)
    record_id = given.pop(id, None) if id is not None else None
    scope = given.pop("scope", None)
    beside = {name: given.pop(name) for name in _SCOPE_FIELDS if name in given}
    if isinstance(scope, Mapping) or scope is None:
        scope = {**beside, **_snake(scope or {})} or None
    metadata = given.pop("metadata", None)
    known = {name: given.pop(name) for name in _FIELDS if name in given and name not in ("id", "text")}
    if given and (metadata is None or isinstance(metadata, Mapping)):
        metadata = {**given, **(metadata or {})}
    record = LegacyRecord(record_id, said, scope, metadata=metadata, **known)
    if id is None:
        record.id = made_id(record)
    return record


def _snake(scope: Mapping[str, Any]) -> dict[str, Any]:
    return {_CAMEL.get(key, key): value for key, value in scope.items()}
