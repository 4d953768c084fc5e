"""A LangChain chat model as the language model of a session: what it is asked, what it reports, who sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from pydantic import ConfigDict

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
from vmem_langchain import LangChainLLM

REPLY = '{"facts": [{"text": "Ada likes tea.", "sources": ["s0"]}]}'
USAGE = {"input_tokens": 120, "output_tokens": 9, "total_tokens": 129}
PROMPT = Prompt("You extract", "SOURCES:", {"type": "object", "properties": {"facts": {"type": "array"}}})
SAID = [Message("m1", "user", "I like tea.")]


class Model(BaseChatModel):
    """A model of a provider: answers one message, and keeps how it was called."""

    model_config = ConfigDict(extra="allow")

    answer: Any = AIMessage(REPLY)
    ways: list[str] = []  # noqa: RUF012 - pydantic copies it for each model
    sent: list[list[BaseMessage]] = []  # noqa: RUF012
    schemas: list[Any] = []  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "model"

    def _result(self, way: str, messages: list[BaseMessage]) -> ChatResult:
        self.ways.append(way)
        self.sent.append(messages)
        if isinstance(self.answer, Exception):
            raise self.answer
        return ChatResult(generations=[ChatGeneration(message=self.answer.model_copy(deep=True))])

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._result("sync", messages)

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._result("async", messages)


class Structured(Model):
    """A model that offers structured output."""

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, **kwargs: Any) -> Any:
        assert include_raw
        self.schemas.append(schema)
        return self | RunnableLambda(lambda raw: {"raw": raw, "parsed": None, "parsing_error": ValueError("no")})


def memory_of(llm: Any, **more: Any) -> MemorySession:
    return MemorySession(InMemoryStore(), Scope(user_id="ada"), llm=llm, **more)


async def ask(model: Any, **more: Any) -> LLMReply:
    return await LangChainLLM(model, **more)(PROMPT)


async def test_system_and_user_part_are_two_messages() -> None:
    model = Model()
    assert (await ask(model)).text == REPLY
    assert [(message.type, message.content) for message in model.sent[0]] == [
        ("system", "You extract"), ("human", "SOURCES:")
    ]  # fmt: skip


# --- sync and async -----------------------------------------------------------------------------------------------


async def test_called_from_async_code_it_is_async_and_from_sync_code_sync() -> None:
    model = Model()
    memory = memory_of(LangChainLLM(model))
    memory.sync.extract(SAID)
    await memory.extract([Message("m2", "user", "I like tea.")])
    await asyncio.to_thread(memory.sync.extract, [Message("m3", "user", "I like tea.")])
    assert model.ways == ["sync", "async", "sync"]


def test_only_the_first_loop_uses_the_async_client() -> None:
    model = Model()
    llm = LangChainLLM(model)
    first = asyncio.new_event_loop()
    first.run_until_complete(llm(PROMPT))
    asyncio.run(llm(PROMPT))
    first.run_until_complete(llm(PROMPT))
    first.close()
    assert model.ways == ["async", "sync", "async"]


# --- usage --------------------------------------------------------------------------------------------------------


async def test_the_usage_and_the_model_that_ran_are_reported() -> None:
    answer = AIMessage(REPLY, usage_metadata=USAGE, response_metadata={"model_name": "big-2026-01"})
    assert await ask(Model(answer=answer)) == LLMReply(REPLY, Usage(120, 9), "big-2026-01")
    assert await ask(Model(answer=answer), model_id="mine") == LLMReply(REPLY, Usage(120, 9), "mine")
    assert await ask(Model()) == LLMReply(REPLY, None, None)
    named = AIMessage(REPLY, response_metadata={"model": "other"})
    assert (await ask(Model(answer=named))).model_id == "other"


async def test_a_model_is_reserved_under_its_own_name() -> None:
    assert LangChainLLM(Model(model_name="big")).model_id == "big"
    assert LangChainLLM(Model(model="big")).model_id == "big"
    assert LangChainLLM(Model(model_name="big"), model_id="mine").model_id == "mine"
    assert LangChainLLM(Model()).model_id is None


def test_a_ledger_counts_what_the_model_reports() -> None:
    answer = AIMessage(REPLY, usage_metadata=USAGE, response_metadata={"model_name": "big-2026-01"})
    ledger = UsageLedger(prices={"big": (10, 100), "big-2026-01": (10, 100)}, unknown_price="reject")
    memory_of(LangChainLLM(Model(answer=answer, model_name="big")), ledger=ledger).sync.extract(SAID)
    total = ledger.totals().models["big-2026-01"]
    assert (total.calls, total.input_tokens, total.output_tokens, total.unknown) == (1, 120, 9, 0)
    assert total.cost == pytest.approx((120 * 10 + 9 * 100) / 1e6)


# --- replies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (AIMessage([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": REPLY}]), REPLY),
        (AIMessage(""), None),
        (AIMessage("", tool_calls=[{"name": "reply", "args": {"facts": []}, "id": "c"}]), '{"facts": []}'),
        (AIMessage("", invalid_tool_calls=[{"name": "r", "args": '{"facts": [', "id": "c", "error": "e"}]),
         '{"facts": ['),
    ],
)  # fmt: skip
async def test_a_reply_is_found_wherever_it_stands(answer: AIMessage, text: str | None) -> None:
    assert (await ask(Model(answer=answer))).text == text


async def test_what_the_model_raises_reaches_the_caller() -> None:
    with pytest.raises(RuntimeError, match="down"):
        await ask(Model(answer=RuntimeError("down")))


async def test_structured_output_is_asked_for_where_the_model_offers_it() -> None:
    offering = Structured(profile={"structured_output": True})
    assert (await ask(offering)).text == REPLY
    assert offering.schemas[0]["properties"] == {"facts": {"type": "array"}}
    assert offering.schemas[0]["title"]

    quiet = Structured()
    assert (await ask(quiet)).text == REPLY
    assert quiet.schemas == []
    assert (await ask(quiet, structured=True)).text == REPLY
    assert len(quiet.schemas) == 1

    refused = Structured(profile={"structured_output": True})
    assert (await ask(refused, structured=False)).text == REPLY
    assert refused.schemas == []
    assert (await LangChainLLM(offering)(Prompt("You", "x"))).text == REPLY  # a prompt without a schema
    assert len(offering.schemas) == 1


async def test_a_model_that_only_says_that_it_offers_it_is_asked_plainly() -> None:
    model = Model(profile={"structured_output": True})  # it has no tools, hence no structured output
    assert (await ask(model)).text == REPLY


# --- who sees it --------------------------------------------------------------------------------------------------


class Eavesdropper(BaseCallbackHandler):
    """A callback of the run that memory is called in."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.heard.append(str(messages))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.heard.append(str(response))


async def test_no_callback_of_the_run_hears_what_memory_asks() -> None:
    memory = memory_of(LangChainLLM(Model()))
    ear = Eavesdropper()

    def inside(_: Any) -> Any:
        return memory.sync.extract(SAID)

    async def ainside(_: Any) -> Any:
        return await memory.extract([Message("m2", "user", "I like tea.")])

    both = RunnableLambda(inside, ainside)
    both.invoke(0, {"callbacks": [ear]})
    await both.ainvoke(0, {"callbacks": [ear]})
    assert ear.heard == []
    assert len(memory.sync.list().records) == 1  # both were asked


def test_the_models_own_callbacks_hear_it() -> None:
    ear = Eavesdropper()
    memory_of(LangChainLLM(Model(callbacks=[ear]))).sync.extract(SAID)
    assert len(ear.heard) == 2


@pytest.mark.parametrize(
    ("given", "path"),
    [({"model": "gpt"}, "model"), ({"model_id": ""}, "model_id"), ({"model_id": 3}, "model_id")],
)
def test_a_wrong_argument_is_refused(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        LangChainLLM(**{"model": Model(), **given})
    assert refused.value.path == path


def test_it_shows_itself_without_keys() -> None:
    assert repr(LangChainLLM(Model(api_key="secret"), model_id="big")) == "LangChainLLM(Model, model_id='big')"
