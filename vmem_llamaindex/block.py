"""Recall for those who keep a memory of their own: a block of LlamaIndex's ``Memory``.

Owns when a turn recalls anew, which a block can only tell by the messages it is shown. Does not own how a context is
made or shortened (``memory_recall.py``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock
from pydantic import Field, PrivateAttr

from vmem_core import (
    ContextBudget,
    InvalidRequestError,
    aresolve_session,
    check_session_source,
    store_digest,
    text_digest,
)
from vmem_llamaindex.binding import LOG, MemoryRequest
from vmem_llamaindex.conversation import is_tool_result, text_of
from vmem_llamaindex.memory_recall import Recalled, fit
from vmem_llamaindex.memory_run import step_context

_MOST_CONVERSATIONS: Final = 256


class VersionedMemoryBlock(BaseMemoryBlock[str]):
    """What is known for the user's question, among the blocks of a ``Memory``. It recalls and never learns.

    Recall happens once a turn, however often the memory is read; whole records are left out when the memory's token
    limit is short. Messages that the memory archives are not read: for learning use ``VersionedMemory``.

    Args:
        session: A session; or a function that gets a ``MemoryRequest`` at each turn and returns one, or None.
        name: Of the block, which the model sees as a tag.
        priority: LlamaIndex's: 0 is never shortened, then the highest first.
        top_k: How many records at most, 1 to 1,000.
        max_tokens: What their text may take.
        count_tokens: Counts the tokens of a text; None: a quarter of its characters.
        on_error: ``"log"``: a failure is logged by ``vmem_llamaindex``, by the error's class alone, and nothing is
            shown. ``"raise"``: it reaches whoever reads the memory.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from llama_index.core.llms import ChatMessage
    >>> from vmem_core import InMemoryStore, MemorySession, Scope
    >>> session = MemorySession(InMemoryStore(), Scope(user_id="ada"))
    >>> _ = session.sync.remember("Ada likes tea.", id="r1")
    >>> block = VersionedMemoryBlock(session=session)
    >>> import asyncio
    >>> print(asyncio.run(block.aget([ChatMessage(role="user", content="Which tea?")])).splitlines()[1])
    [id=r1 revision=1 origin=asserted sources=host] <<Ada likes tea.>>
    """

    name: str = "versioned_memory"
    description: str | None = "Records of long-term memory that bear on the question."
    priority: int = 1
    accept_short_term_memory: bool = False
    session: Any = Field(exclude=True, repr=False)
    top_k: int = 8
    max_tokens: int = 1000
    count_tokens: Any = Field(default=None, exclude=True, repr=False)
    on_error: str = "log"

    _budget: ContextBudget = PrivateAttr()
    _recalled: OrderedDict[str, Recalled] = PrivateAttr(default_factory=OrderedDict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(
        self,
        session: Any,
        *,
        name: str = "versioned_memory",
        priority: int = 1,
        top_k: int = 8,
        max_tokens: int = 1000,
        count_tokens: Callable[[str], int] | None = None,
        on_error: Literal["log", "raise"] = "log",
        **more: Any,
    ) -> None:
        check_session_source(session, "session")
        if on_error not in ("log", "raise"):
            raise InvalidRequestError('must be "log" or "raise"', path="on_error")
        budget = ContextBudget(top_k, max_tokens, count_tokens)
        fields = {"session": session, "top_k": top_k, "max_tokens": max_tokens, "count_tokens": count_tokens}
        super().__init__(**{"name": name, "priority": priority, "on_error": on_error, **fields, **more})
        self._budget = budget

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        said = [text_of(one) for one in messages or () if one.role == MessageRole.USER]
        if not messages or not said or not said[-1].strip():
            return ""
        try:
            return await self._context(said[-1], _turns(messages), str(block_kwargs.get("session_id") or ""))
        except Exception as error:  # whatever a host's resolver, store or model raises
            if self.on_error == "raise":
                raise
            LOG.warning("versioned memory block: recall failed with %s", type(error).__name__)
            return ""

    async def _context(self, asked: str, turn: int, conversation: str) -> str:
        request = MemoryRequest(context=step_context())
        session = await aresolve_session(self.session, request)
        if session is None:
            return ""
        key = f"{text_digest(session.scope.key)}:{store_digest(session.store)}:{turn}:{text_digest(asked)}"
        recalled = self._recalled_of(conversation)
        package = await recalled.once(key, lambda: self._budget.compile(session, asked))
        return await session.render(package)

    def _recalled_of(self, conversation: str) -> Recalled:
        with self._lock:
            found = self._recalled.setdefault(conversation, Recalled())
            self._recalled.move_to_end(conversation)
            while len(self._recalled) > _MOST_CONVERSATIONS:
                self._recalled.popitem(last=False)
            return found

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Nothing: what is archived holds what the assistant and untrusted tools said."""

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> str | None:
        """Leave out whole records, the least relevant first."""
        if not isinstance(content, str):
            return None
        count = self._budget.count
        return fit(content, count(content) - tokens_to_truncate, count) or None


def _turns(messages: Sequence[ChatMessage]) -> int:
    """How often the user spoke. What the memory shows once more at the end, because it is asked with it, is no turn."""
    count, before = 0, None
    for one in messages:
        if one.role == MessageRole.USER and not (before is not None and _is_under_way(before, one)):
            count += 1
        before = one
    return count


def _is_under_way(before: ChatMessage, one: ChatMessage) -> bool:
    return is_tool_result(before) or (before.role == MessageRole.USER and text_of(before) == text_of(one))
