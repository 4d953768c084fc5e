"""A LlamaIndex chat model as the language model of a session.

Owns the way from a prompt to a chat model and back, and the usage it reports. Does not own prompts or what a reply
means (``vmem_core``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.llms import LLM, CustomLLM

from vmem_core import FirstLoop, InvalidRequestError, LLMReply, Prompt, Usage
from vmem_llamaindex.models import given_name

_READ = ("prompt_tokens", "input_tokens", "prompt_token_count", "prompt_eval_count")
_WRITTEN = ("completion_tokens", "output_tokens", "candidates_token_count", "eval_count")


class LlamaIndexLLM:
    """A LlamaIndex chat model as the ``llm`` of a session. It reports its usage, so that a ledger can count it.

    The model's async methods are used on the event loop that they were first used on, where async clients belong; from
    any other one, from ``session.sync``, and for a model that has none of its own, the sync methods run in a thread.

    Args:
        llm: Any of LlamaIndex's models. Text models work too: LlamaIndex makes one text of the messages.
        model_id: The id that its calls are reserved, priced and counted under; None: what the model calls itself, and
            after a call what the provider says ran.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from llama_index.core.base.llms.types import ChatMessage
    >>> from llama_index.core.llms.mock import MockFunctionCallingLLM
    >>> from vmem_core import InMemoryStore, MemorySession, Message, Scope
    >>> said = ChatMessage(role="assistant", content='{"facts": [{"text": "Ada likes tea.", "sources": ["s0"]}]}')
    >>> llm = LlamaIndexLLM(MockFunctionCallingLLM(response_generator=lambda messages, **more: said))
    >>> memory = MemorySession(InMemoryStore(), Scope(user_id="ada"), llm=llm).sync
    >>> memory.extract([Message("m1", "user", "I like tea.")]).records[0].text
    'Ada likes tea.'
    """

    accounted = True

    def __init__(self, llm: LLM, *, model_id: str | None = None) -> None:
        if not isinstance(llm, LLM):
            raise InvalidRequestError(f"must be a LlamaIndex LLM, not {type(llm).__name__}", path="llm")
        if model_id is not None and given_name(model_id) is None:
            raise InvalidRequestError("must be a name", path="model_id")
        self._llm, self._given_id, self._loop = llm, model_id, FirstLoop()
        self.model_id = model_id or _configured_id(llm)

    def __repr__(self) -> str:
        return f"LlamaIndexLLM({type(self._llm).__name__}, model_id={self.model_id!r})"

    async def __call__(self, prompt: Prompt) -> LLMReply:
        """Ask the model.

        Returns:
            Its text, its usage if it reports it, and the model that ran.
        """
        messages = [
            ChatMessage(role=MessageRole.SYSTEM, content=prompt.system),
            ChatMessage(role=MessageRole.USER, content=prompt.user),
        ]
        # The async methods of a custom model are its sync ones, run on the loop.
        if not isinstance(self._llm, CustomLLM) and self._loop.is_running():
            return self._reply(await self._llm.achat(messages))
        return self._reply(await asyncio.to_thread(self._llm.chat, messages))

    def _reply(self, response: ChatResponse) -> LLMReply:
        ran = given_name(_field(response.raw, "model"))
        return LLMReply(response.message.content or None, _usage(response), self._given_id or ran or self.model_id)


def _configured_id(llm: LLM) -> str | None:
    for name in ("model", "model_name"):
        found = given_name(getattr(llm, name, None))
        if found is not None:
            return found
    try:
        return given_name(llm.metadata.model_name)
    except ValueError:  # what integrations raise for a model whose context window they do not know
        return None


def _usage(response: ChatResponse) -> Usage | None:
    """What a call took, wherever the integration left it: in the raw response, or beside it."""
    raw = response.raw
    for place in (_field(raw, "usage"), _field(raw, "usage_metadata"), raw, response.additional_kwargs):
        read, written = _count(place, _READ), _count(place, _WRITTEN)
        if read is not None:
            return Usage(read, written or 0)
    return None


def _count(place: Any, names: tuple[str, ...]) -> int | None:
    found = (_field(place, name) for name in names)
    counts = (one for one in found if isinstance(one, int) and not isinstance(one, bool) and one >= 0)
    return next(counts, None)


def _field(place: Any, name: str) -> Any:
    return place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
