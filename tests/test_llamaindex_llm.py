"""A LlamaIndex model as the language model of a session: what it is asked, and what it reports."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, TextBlock, ThinkingBlock
from llama_index.core.llms import LLMMetadata, MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from pydantic import Field

from vmem_core import (
    InMemoryStore,
    InvalidRequestError,
    LLMReply,
    MemorySession,
    Message,
    Prompt,
    Scope,
    Usage,
    UsageLedger,
)
from vmem_llamaindex import LlamaIndexLLM

REPLY = '{"facts": [{"text": "Ada likes tea.", "sources": ["s0"]}]}'
PROMPT = Prompt("You extract", "SOURCES:", {"type": "object"})
SAID = [Message("m1", "user", "I like tea.")]


class Model(MockFunctionCallingLLM):
    """A model of a provider: answers one message, and keeps how it was called."""

    answer: Any = REPLY
    raw: Any = None
    beside: dict[str, Any] = Field(default_factory=dict)
    name: str = "unknown"
    ways: list[str] = Field(default_factory=list)
    sent: list[Any] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        if self.name == "new":
            raise ValueError("no context window is known for this model")
        return LLMMetadata(model_name=self.name, is_chat_model=True)

    def chat(self, messages: Any, **more: Any) -> ChatResponse:
        return self._respond("sync", messages)

    async def achat(self, messages: Any, **more: Any) -> ChatResponse:
        return self._respond("async", messages)

    def _respond(self, way: str, messages: Any) -> ChatResponse:
        self.ways.append(way)
        self.sent.append(messages)
        if isinstance(self.answer, Exception):
            raise self.answer
        blocks = [TextBlock(text=self.answer)] if isinstance(self.answer, str) else self.answer
        message = ChatMessage(role="assistant", blocks=blocks)
        return ChatResponse(message=message, raw=self.raw, additional_kwargs=self.beside)


class NamedModel(Model):
    """A model with its name where most integrations have it."""

    model: str = "big"


def memory_of(llm: Any, **more: Any) -> MemorySession:
    return MemorySession(InMemoryStore(), Scope(user_id="ada"), llm=llm, **more)


async def ask(model: Any, **more: Any) -> LLMReply:
    return await LlamaIndexLLM(model, **more)(PROMPT)


async def test_system_and_user_part_are_two_messages() -> None:
    model = Model()
    assert (await ask(model)).text == REPLY
    assert [(message.role, message.content) for message in model.sent[0]] == [
        ("system", "You extract"), ("user", "SOURCES:")
    ]  # fmt: skip


async def test_braces_in_what_is_read_are_no_variables() -> None:
    model = Model()
    await LlamaIndexLLM(model)(Prompt("You {x}", "SOURCES: {text} {{}}"))
    assert model.sent[0][1].content == "SOURCES: {text} {{}}"


# --- sync and async -----------------------------------------------------------------------------------------------


async def test_called_from_async_code_it_is_async_and_from_sync_code_sync() -> None:
    model = Model()
    memory = memory_of(LlamaIndexLLM(model))
    memory.sync.extract(SAID)
    await memory.extract([Message("m2", "user", "I like tea.")])
    await asyncio.to_thread(memory.sync.extract, [Message("m3", "user", "I like tea.")])
    assert model.ways == ["sync", "async", "sync"]


def test_only_the_first_loop_uses_the_async_client() -> None:
    model = Model()
    llm = LlamaIndexLLM(model)
    first = asyncio.new_event_loop()
    first.run_until_complete(llm(PROMPT))
    asyncio.run(llm(PROMPT))
    first.run_until_complete(llm(PROMPT))
    first.close()
    assert model.ways == ["async", "sync", "async"]


async def test_a_model_without_async_methods_of_its_own_never_holds_up_the_loop() -> None:
    threads: list[str] = []

    class Local(MockLLM):
        def complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
            threads.append(threading.current_thread().name)
            return super().complete(prompt, formatted, **more)

    reply = await LlamaIndexLLM(Local())(PROMPT)
    assert "SOURCES:" in str(reply.text)
    assert threads
    assert threading.main_thread().name not in threads


# --- usage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "beside"),
    [
        ({"usage": {"prompt_tokens": 120, "completion_tokens": 9}}, {}),
        ({"usage": {"input_tokens": 120, "output_tokens": 9}}, {}),
        ({"usage_metadata": {"prompt_token_count": 120, "candidates_token_count": 9}}, {}),
        (SimpleNamespace(usage=SimpleNamespace(prompt_tokens=120, completion_tokens=9)), {}),
        ({"prompt_eval_count": 120, "eval_count": 9}, {}),
        ({"usage": None}, {"prompt_tokens": 120, "completion_tokens": 9}),
        (None, {"prompt_tokens": 120, "completion_tokens": 9, "total_tokens": 129}),
    ],
)
async def test_usage_is_found_wherever_an_integration_leaves_it(raw: Any, beside: dict[str, Any]) -> None:
    assert (await ask(Model(raw=raw, beside=beside))).usage == Usage(120, 9)


@pytest.mark.parametrize("raw", [None, {}, {"usage": {}}, {"usage": {"prompt_tokens": None}}, object(), "raw"])
async def test_no_usage_is_none_and_never_zero(raw: Any) -> None:
    assert (await ask(Model(raw=raw))).usage is None


async def test_the_model_that_ran_is_reported() -> None:
    raw = {"model": "big-2026-01", "usage": {"prompt_tokens": 120, "completion_tokens": 9}}
    assert await ask(NamedModel(raw=raw)) == LLMReply(REPLY, Usage(120, 9), "big-2026-01")
    assert await ask(NamedModel(raw=raw), model_id="mine") == LLMReply(REPLY, Usage(120, 9), "mine")
    assert await ask(NamedModel()) == LLMReply(REPLY, None, "big")


def test_a_model_is_reserved_under_its_own_name() -> None:
    assert LlamaIndexLLM(NamedModel()).model_id == "big"
    assert LlamaIndexLLM(Model(name="small")).model_id == "small"
    assert LlamaIndexLLM(NamedModel(), model_id="mine").model_id == "mine"
    assert LlamaIndexLLM(Model()).model_id is None
    assert LlamaIndexLLM(Model(name="new")).model_id is None


def test_a_ledger_counts_what_the_model_reports() -> None:
    raw = {"model": "big-2026-01", "usage": {"prompt_tokens": 120, "completion_tokens": 9}}
    ledger = UsageLedger(prices={"big": (10, 100), "big-2026-01": (10, 100)}, unknown_price="reject")
    memory_of(LlamaIndexLLM(NamedModel(raw=raw)), ledger=ledger).sync.extract(SAID)
    total = ledger.totals().models["big-2026-01"]
    assert (total.calls, total.input_tokens, total.output_tokens, total.unknown) == (1, 120, 9, 0)


# --- replies ------------------------------------------------------------------------------------------------------


async def test_a_reply_is_its_text_without_its_thoughts() -> None:
    assert (await ask(Model(answer=[ThinkingBlock(content="hm"), TextBlock(text=REPLY)]))).text == REPLY
    assert (await ask(Model(answer=[]))).text is None
    assert (await ask(Model(answer=""))).text is None


async def test_what_the_model_raises_reaches_the_caller() -> None:
    with pytest.raises(RuntimeError, match="down"):
        await ask(Model(answer=RuntimeError("down")))


@pytest.mark.parametrize(
    ("given", "path"),
    [({"llm": "gpt"}, "llm"), ({"model_id": ""}, "model_id"), ({"model_id": 3}, "model_id")],
)
def test_a_wrong_argument_is_refused(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        LlamaIndexLLM(**{"llm": Model(), **given})
    assert refused.value.path == path


def test_it_shows_itself_without_keys() -> None:
    assert repr(LlamaIndexLLM(NamedModel(), model_id="big")) == "LlamaIndexLLM(NamedModel, model_id='big')"
