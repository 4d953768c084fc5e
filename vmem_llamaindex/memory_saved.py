"""What is kept of a chat memory with a saved context, and what must be there to go on with it.

Owns the names under which it is saved, the messages of an unfinished turn, and the refusal of a binding that stands
for nothing, for another scope or for another store. Does not own bindings (``binding.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llama_index.core.base.llms.types import ChatMessage

from vmem_core import InvalidRequestError, MemorySession, store_digest, text_digest
from vmem_llamaindex.binding import bind_own_session, bound_session, check_binding
from vmem_llamaindex.conversation import kept, turns
from vmem_llamaindex.memory_history import bound_chat_store

SAVED: Final = (
    "binding", "scope_digest", "session_id", "trusted_tools", "extract", "on_error", "top_k", "max_tokens",
    "token_limit", "token_flush_size", "chat_history_token_ratio",
)  # fmt: skip
ANOTHER_SCOPE: Final = (
    "stands for another scope in this process than the one that this memory was made for; bind the right session, or "
    "start with a new Context"
)


ANOTHER_STORE: Final = (
    "stands for an equal scope in another store than the one that this memory was made for; bind the right session, "
    "or start with a new Context"
)
_KNOWN: set[str] = set()  # digests of the stores that memories of this process were made for


def bind(binding: str, session: MemorySession) -> tuple[str, str]:
    """Bind a session, unless a resolver that finds the session of each run has the name.

    Returns:
        The digests of its scope and of its store.
    """
    bind_own_session(binding, session)
    store = store_digest(session.store)
    _KNOWN.add(store)
    return text_digest(session.scope.key), store


def check_whose(session: MemorySession, scope: str, store: str) -> MemorySession:
    """Refuse a session of another scope or another store than a memory was made for.

    Raises:
        InvalidRequestError: For such a session.
    """
    if text_digest(session.scope.key) != scope:
        raise InvalidRequestError(ANOTHER_SCOPE, path="binding")
    if is_another_store(store, store_digest(session.store)):
        raise InvalidRequestError(ANOTHER_STORE, path="binding")
    return session


def is_another_store(made_for: str, found: str) -> bool:
    """Whether a memory was made for another store than is found now, as far as this process can tell.

    The store of an earlier process may be somewhere else by now: its file was moved, its server has a new name.
    """
    return made_for != found and made_for in _KNOWN


def check_bound(data: dict[str, Any]) -> str:
    """Refuse what this process cannot go on with.

    Returns:
        The digest of the store that the binding stands for; with a resolver, of the one that the memory was made for.

    Raises:
        InvalidRequestError: If it is no saved memory, if the binding stands for nothing here, for another scope or for
            another store, or if the chat store of the history was not bound here.
    """
    missing = {*SAVED, "insert_method"} - data.keys()
    if missing:
        raise InvalidRequestError(f"is no saved VersionedMemory: {min(missing)} is missing", path="data")
    binding = check_binding(data.get("binding"))
    found = bound_session(binding)
    scope, store = str(data.get("scope_digest")), str(data.get("store_digest") or "")
    if isinstance(found, MemorySession):
        check_whose(found, scope, store)
        store = store_digest(found.store)
    if data.get("history") == "given" and bound_chat_store(binding, scope, store) is None:
        raise InvalidRequestError(
            f"the chat history is in a chat store that is not bound in this process; call "
            f"bind_chat_store({binding!r}, chat_store) before the context is restored",
            path="chat_store",
        )
    return store


def unfinished_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a turn that has no answer yet."""
    found = turns(kept([ChatMessage.model_validate(row) for row in rows]))
    if not found or not found[-1][0].begins_turn or found[-1][-1].ends_turn:
        return []
    return list(rows[-len(found[-1]) :])
