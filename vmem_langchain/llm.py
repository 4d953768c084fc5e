"""A LangChain chat model as the language model of a session.

Owns the way from a prompt to a chat model and back: structured output where the model offers it, the usage it reports,
and that no callback of the run it happens in sees it. Does not own prompts or what a reply means (``vmem_core``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import var_child_runnable_config

from vmem_core import FirstLoop, InvalidRequestError, LLMReply, Prompt, Usage

T = TypeVar("T")


class LangChainLLM:
    """A LangChain chat model as the ``llm`` of a session. It reports its usage, so that a ledger can count it.

    Called from async code the model's async methods are used, from ``session.sync`` its sync ones. An async client is
    bound to the event loop that it first ran on; on any other loop the sync methods run in a thread.

    Args:
        model: Any of LangChain's chat models.
        model_id: The id that its calls are reserved, priced and counted under; None: what the model calls itself, and
            after a call what the provider says ran.
        structured: Whether to ask for structured output (a JSON schema); None: if the model's profile says that it
            offers it. Replies are read tolerantly all the same.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> from vmem_core import InMemoryStore, MemorySession, Message, Scope
    >>> model = FakeListChatModel(responses=['{"facts": [{"text": "Ada likes tea.", "sources": ["s0"]}]}'])
    >>> memory = MemorySession(InMemoryStore(), Scope(user_id="ada"), llm=LangChainLLM(model)).sync
    >>> memory.extract([Message("m1", "user", "I like tea.")]).records[0].text
    'Ada likes tea.'
    """

    accounted = True

    def __init__(self, model: BaseChatModel, *, model_id: str | None = None, structured: bool | None = None) -> None:
        if not isinstance(model, BaseChatModel):
            raise InvalidRequestError(f"must be a LangChain chat model, not {type(model).__name__}", path="model")
        if model_id is not None and not _is_name(model_id):
            raise InvalidRequestError("must be a name", path="model_id")
        self._model, self._given_id = model, model_id
        self.model_id = model_id or _configured_id(model)
        self._structured = _offers_structure(model) if structured is None else bool(structured)
        self._loop = FirstLoop()

    def __repr__(self) -> str:
        return f"LangChainLLM({type(self._model).__name__}, model_id={self.model_id!r})"

    async def __call__(self, prompt: Prompt) -> LLMReply:
        """Ask the model.

        Returns:
            Its text, its usage if it reports it, and the model that ran.
        """
        chain = self._chain(prompt)
        messages = [SystemMessage(prompt.system), HumanMessage(prompt.user)]
        if self._loop.is_running():
            answer = await apart(chain.ainvoke(messages))
        else:
            answer = await apart(asyncio.to_thread(chain.invoke, messages))
        return self._reply(answer["raw"] if isinstance(answer, dict) else answer)

    def _chain(self, prompt: Prompt) -> Runnable[Any, Any]:
        if not self._structured or prompt.schema is None:
            return self._model
        schema = {"title": "memory_reply", "description": "The reply.", **prompt.schema}
        try:
            return self._model.with_structured_output(schema, include_raw=True)
        except NotImplementedError:
            self._structured = False
            return self._model

    def _reply(self, message: AIMessage) -> LLMReply:
        ran = message.response_metadata.get("model_name") or message.response_metadata.get("model")
        return LLMReply(_text(message), _usage(message), self._given_id or (ran if _is_name(ran) else self.model_id))


async def apart(doing: Awaitable[T]) -> T:
    """Await something outside of the run that we may be in, so that none of its callbacks and streams sees it.

    What a chat model is asked inside a LangGraph node is streamed and traced with the run, unless it is told otherwise:
    the facts of an extraction would be shown to whoever reads the stream.
    """
    token = var_child_runnable_config.set(None)
    try:
        return await doing
    finally:
        var_child_runnable_config.reset(token)


def _configured_id(model: BaseChatModel) -> str | None:
    names = (getattr(model, name, None) for name in ("model_name", "model", "model_id"))
    return next((name for name in names if _is_name(name)), None)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _offers_structure(model: BaseChatModel) -> bool:
    profile = getattr(model, "profile", None)
    return isinstance(profile, Mapping) and bool(profile.get("structured_output"))


def _text(message: AIMessage) -> str | None:
    """What the model said; what it put into a tool call is structured output by another way."""
    if message.text.strip():
        return str(message.text)
    if message.tool_calls:
        return json.dumps(message.tool_calls[0]["args"], ensure_ascii=False)
    return message.invalid_tool_calls[0]["args"] if message.invalid_tool_calls else None


def _usage(message: AIMessage) -> Usage | None:
    reported = message.usage_metadata
    if reported is None:
        return None
    return Usage(max(0, reported["input_tokens"]), max(0, reported["output_tokens"]))
