"""Records of a LangGraph ``BaseStore``, in the shape that langmem gives them.

Owns the pages of a namespace and how a value becomes a text. A search of a ``BaseStore`` finds every namespace that
begins alike, on some stores even by the letters alone; only the namespace that was asked for is read. Does not import
LangGraph: the store is the host's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from vmem_core.errors import InvalidRequestError
from vmem_core.legacy.records import LegacyRecord

Namespace = tuple[str, ...]
_PAGE: Final = 500


async def from_langgraph_store(
    store: Any, namespace: Sequence[str], *, scope_of: Callable[[Namespace], Any] | None = None
) -> AsyncIterator[LegacyRecord]:
    """Legacy records from a LangGraph ``BaseStore``.

    langmem keeps ``{"content": text}``, or ``{"kind": schema, "content": {...}}``: the text is the content, or the
    ``content`` inside of it; any other value is taken as compact JSON. The key is the record's id.

    Args:
        store: The store, such as ``InMemoryStore`` or ``AsyncPostgresStore``.
        namespace: The namespace, such as ``("memories", "ada")``. Records have no scope of their own: give the
            import one with ``scope=``.
        scope_of: Takes a namespace and returns its scope, or None. With it, every namespace below ``namespace`` is
            read too.

    Raises:
        InvalidRequestError: If it is no such store or namespace.

    >>> from vmem_core.legacy.langgraph import text_of
    >>> text_of({"content": "Ada likes tea."})
    'Ada likes tea.'
    """
    if not callable(getattr(store, "asearch", None)):
        raise InvalidRequestError("must be a LangGraph BaseStore", path="store")
    if not isinstance(namespace, list | tuple) or not all(part and isinstance(part, str) for part in namespace):
        raise InvalidRequestError('must be a tuple of strings, such as ("memories", "ada")', path="namespace")
    wanted, offset = tuple(namespace), 0
    # To look at a memory must not make it live longer.
    while page := await store.asearch(wanted, limit=_PAGE, offset=offset, refresh_ttl=False):
        for item in page:
            if _is_below(tuple(item.namespace), wanted) if scope_of else tuple(item.namespace) == wanted:
                yield _record(item, scope_of)
        offset += len(page)


def _is_below(namespace: Namespace, wanted: Namespace) -> bool:
    return namespace[: len(wanted)] == wanted


def _record(item: Any, scope_of: Callable[[Namespace], Any] | None) -> LegacyRecord:
    value = item.value if isinstance(item.value, Mapping) else {"content": item.value}
    return LegacyRecord(
        id=item.key,
        text=text_of(value),
        scope=None if scope_of is None else scope_of(tuple(item.namespace)),
        kind=value.get("kind") if "content" in value else None,
        metadata={key: part for key, part in value.items() if key not in ("content", "kind")}
        if "content" in value
        else None,
        created_at=item.created_at,
        updated_at=item.updated_at,
    )


def text_of(value: Mapping[str, Any]) -> Any:
    """The text of a stored value."""
    content = value.get("content", value)
    if isinstance(content, Mapping) and isinstance(content.get("content"), str) and len(content) == 1:
        return content["content"]
    if isinstance(content, str) or content is None:
        return content
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return content
