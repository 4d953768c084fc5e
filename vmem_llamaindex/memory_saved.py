"""What is kept of a chat memory with a saved context, and what must be there to go on with it.

Owns the names under which it is saved, the messages of an unfinished turn, and the refusal of a binding that stands
for nothing or for another scope. Does not own bindings (``binding.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llama_index.core.base.llms.types import ChatMessage

from vmem_core import InvalidRequestError, MemorySession, text_digest
from vmem_llamaindex.binding import bind_session, bound_session, check_binding
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


def bind(binding: str, session: MemorySession) -> None:
    """Bind a session, unless a resolver that finds the session of each run has the name."""
    try:
        found = bound_session(binding)
    except InvalidRequestError:
        found = None
    if found is None or isinstance(found, MemorySession):
        bind_session(binding, session)


def check_bound(data: dict[str, Any]) -> None:
    """Refuse what this process cannot go on with.

    Raises:
        InvalidRequestError: If it is no saved memory, if the binding stands for nothing here or for another scope, or
            if the chat store of the history was not bound here.
    """
    missing = {*SAVED, "insert_method"} - data.keys()
    if missing:
        raise InvalidRequestError(f"is no saved VersionedMemory: {min(missing)} is missing", path="data")
    binding = check_binding(data.get("binding"))
    found = bound_session(binding)
    if isinstance(found, MemorySession) and text_digest(found.scope.key) != data.get("scope_digest"):
        raise InvalidRequestError(ANOTHER_SCOPE, path="binding")
    if data.get("history") == "given" and bound_chat_store(binding, str(data.get("scope_digest"))) is None:
        raise InvalidRequestError(
            f"the chat history is in a chat store that is not bound in this process; call "
            f"bind_chat_store({binding!r}, chat_store) before the context is restored",
            path="chat_store",
        )


def unfinished_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a turn that has no answer yet."""
    found = turns(kept([ChatMessage.model_validate(row) for row in rows]))
    if not found or not found[-1][0].begins_turn or found[-1][-1].ends_turn:
        return []
    return list(rows[-len(found[-1]) :])
