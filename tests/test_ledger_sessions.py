"""The ledger in a session: each model call is reserved before it runs, settled after, and refused in time."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest
from fake_models import FakeLLM, Gate, add, answer_from, decisions, facts, obey, user
from fakes import FakeEmbedder, open_memory, refusal, texts
from test_ledger import PRICES, whole

from vmem_core import (
    BudgetExceededError,
    Embeddings,
    InMemoryStore,
    InvalidRequestError,
    LLMReply,
    Prompt,
    Store,
    Totals,
    Usage,
    UsageLedger,
    accounted,
)

TEA = user("m1", "I like tea")
LOGGER = "vmem_core"


SOME = Usage(100, 20)


def paid(*answers: str, usage: Usage | None = SOME, model_id: str | None = None) -> FakeLLM:
    """A language model that reports its usage with each answer."""
    replies = [LLMReply(answer, usage, model_id) for answer in answers]
    return FakeLLM(list(replies), list(replies))


class PaidEmbedder(FakeEmbedder):
    """An embedder that reports ten tokens a text."""

    async def embed(self, texts: Any, *, purpose: str) -> Embeddings:
        answer = await super().embed(texts, purpose=purpose)
        return Embeddings(answer.vectors, answer.model, Usage(10 * len(texts)))


# ------------------------------------------------------------------------------------------- the calls of a session


async def test_a_call_is_reserved_at_a_quarter_of_its_characters_and_256_out(store: Store) -> None:
    ledger = UsageLedger()
    gate = Gate()
    llm = FakeLLM(facts(), before=gate)
    task = asyncio.create_task(open_memory(store, llm=llm, ledger=ledger).extract([TEA]))
    await gate.arrived.wait()
    prompt = llm.prompts[0]
    size = len(prompt.system) + len(prompt.user)
    assert whole(ledger) == (1, math.ceil(size / 4), 256, 0.0, 1)
    gate.opened.set()
    await task
    assert whole(ledger) == (1, math.ceil(size / 4), 256, 0.0, 1)


async def test_an_embedding_call_is_reserved_at_a_quarter_of_its_characters_and_none_out(store: Store) -> None:
    ledger = UsageLedger()
    memory = open_memory(store, embedder=FakeEmbedder(), ledger=ledger)
    await memory.remember("x" * 401)
    assert whole(ledger) == (1, 101, 0, 0.0, 1)
    await memory.recall("four")
    assert whole(ledger) == (2, 102, 0, 0.0, 2)
    await memory.recall()
    await memory.get("x")
    assert ledger.totals().calls == 2


async def test_an_accounted_call_is_settled_with_the_usage_and_the_model_it_reports(store: Store) -> None:
    ledger = UsageLedger(prices=PRICES)
    llm = accounted(paid(facts("Ada likes tea"), model_id="chat-1"))
    memory = open_memory(store, llm=llm, embedder=accounted(PaidEmbedder("embed-1")), ledger=ledger)
    written = await memory.extract([TEA])
    assert len(written.records) == 1
    assert ledger.totals().models == {
        "chat-1": Totals(1, 100, 20, pytest.approx(0.0004), 0), "embed-1": Totals(1, 10, 0, pytest.approx(5e-6), 0),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("llm", "given"),
    [
        (accounted(paid(facts()), model_id="chat-1"), {}),
        (accounted(paid(facts())), {"llm_model_id": "chat-1"}),
        (accounted(paid(facts()), model_id="other"), {"llm_model_id": "chat-1"}),
    ],
    ids=["accounted with its id", "id given to the session", "the session's id counts"],
)
async def test_calls_are_reserved_under_the_model_id_that_was_given(llm: Any, given: dict[str, Any]) -> None:
    ledger = UsageLedger(allowed_models={"chat-1"}, prices=PRICES)
    await open_memory(InMemoryStore(), llm=llm, ledger=ledger, **given).extract([TEA])
    assert ledger.totals().models == {"chat-1": Totals(1, 100, 20, pytest.approx(0.0004), 0)}


async def test_an_accounted_embedder_is_reserved_under_its_id(store: Store) -> None:
    embedder = accounted(PaidEmbedder("embed-1"), model_id="embed-1")
    ledger = UsageLedger(allowed_models={"embed-1"}, prices=PRICES, unknown_price="reject")
    memory = open_memory(store, embedder=embedder, ledger=ledger)
    await memory.remember("tea")
    await memory.recall("tea")
    assert ledger.totals().models == {"embed-1": Totals(2, 20, 0, pytest.approx(1e-5), 0)}


async def test_a_call_that_reports_no_usage_is_never_free(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    ledger = UsageLedger(prices=PRICES)
    for llm in (FakeLLM([facts()]), accounted(FakeLLM([facts()])), paid(facts(), usage=None), paid(facts())):
        before = ledger.totals()
        memory = open_memory(store, llm=llm, ledger=ledger, llm_model_id="chat-1")
        await memory.extract([user(f"m{before.calls}", "I like tea")])
        after = ledger.totals()
        assert (after.calls, after.unknown) == (before.calls + 1, before.unknown + 1)
        assert after.output_tokens == before.output_tokens + 256
        assert after.cost > before.cost


async def test_the_missing_report_is_warned_of_once_a_session(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    ledger = UsageLedger()

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    with caplog.at_level(logging.WARNING, LOGGER):
        memory = open_memory(store, llm=FakeLLM(obey, obey), embedder=FakeEmbedder(), ledger=ledger)
        for number in range(3):
            await memory.extract([user(f"m{number}", f"I like tea {number}")])
        assert len(warnings()) == 1
        assert "I like tea" not in warnings()[0]
        await open_memory(store, embedder=FakeEmbedder(), ledger=ledger).remember("another session")
        assert len(warnings()) == 2
        llm = accounted(paid(facts()))
        await open_memory(store, llm=llm, embedder=accounted(PaidEmbedder()), ledger=ledger).extract([TEA])
        await open_memory(store, llm=FakeLLM(obey, obey)).extract([user("m9", "no ledger")])
    assert len(warnings()) == 2


async def test_a_call_that_fails_or_is_cancelled_keeps_its_estimate(store: Store) -> None:
    ledger = UsageLedger()
    failing = open_memory(store, llm=accounted(FakeLLM(RuntimeError("down"))), ledger=ledger)
    with pytest.raises(RuntimeError, match="down"):
        await failing.extract([TEA])
    first = ledger.totals()
    assert (first.calls, first.unknown, first.output_tokens) == (1, 1, 256)
    gate = Gate()
    hanging = open_memory(store, llm=FakeLLM(facts(), before=gate), ledger=ledger)
    task = asyncio.create_task(hanging.extract([TEA]))
    await gate.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ledger.totals().calls, ledger.totals().unknown) == (2, 2)


# ------------------------------------------------------------------------------------------- refused in a session


async def check_refused(store: Store, code: str, operation: Any, llm: FakeLLM, calls: int = 0) -> None:
    """An operation ``op`` was refused before its call ran, and left nothing behind."""
    error = await refusal(operation)
    assert isinstance(error, BudgetExceededError)
    assert error.code == code
    assert len(llm.prompts) == calls
    memory = open_memory(store)
    assert (await memory.scope_revision(), await memory.receipt("op"), await memory.count()) == (0, None, 0)


async def test_a_refusal_comes_before_the_call_and_nothing_is_written(store: Store) -> None:
    refused: list[tuple[UsageLedger, str]] = [
        (UsageLedger(max_tokens=100), "budget_exceeded"),
        (UsageLedger(max_cost=1e-9, prices={"chat-1": (1, 1)}), "budget_exceeded"),
        (UsageLedger(allowed_models={"other"}), "model_not_allowed"),
        (UsageLedger(unknown_price="reject", prices={"chat-1": (1, 1)}), "price_unknown"),
        (UsageLedger(unknown_price="reject"), "price_unknown"),
    ]
    for ledger, code in refused:
        llm, embedder = FakeLLM(), FakeEmbedder()
        memory = open_memory(store, llm=llm, embedder=embedder, ledger=ledger, llm_model_id="chat-1")
        await check_refused(store, code, memory.extract([TEA], operation_id="op"), llm)
        assert (embedder.calls, ledger.totals().calls) == ([], 0)
    no_refusal = open_memory(store, llm=FakeLLM(facts("Ada likes tea")))
    assert texts((await no_refusal.extract([TEA], operation_id="op")).records) == ["Ada likes tea"]


async def test_an_embedding_call_is_refused_too(store: Store) -> None:
    embedder = FakeEmbedder()
    memory = open_memory(store, embedder=embedder, ledger=UsageLedger(max_tokens=2))
    await check_refused(store, "budget_exceeded", memory.remember("a longer text", operation_id="op"), FakeLLM())
    assert embedder.calls == []
    await memory.remember("tea")
    error = await refusal(memory.recall("longer query"))
    assert isinstance(error, BudgetExceededError)
    assert len(embedder.calls) == 1


@pytest.mark.parametrize(("last", "embeds"), [(99, 0), (90, 1)], ids=["at the embedding", "at the reconciliation"])
async def test_a_budget_that_is_spent_half_way_through_an_extraction_writes_nothing(
    store: Store, last: int, embeds: int
) -> None:
    await open_memory(store).remember("Ada likes coffee")
    ledger, embedder = UsageLedger(max_tokens=1_000), PaidEmbedder()
    llm = paid(facts("Ada likes tea"), facts("Ada likes tea"), usage=Usage(900, last))
    memory = open_memory(store, llm=accounted(llm), embedder=accounted(embedder), ledger=ledger)
    error = await refusal(memory.extract([TEA], operation_id="op"))
    assert isinstance(error, BudgetExceededError)
    assert (llm.tasks, len(embedder.calls), ledger.totals().tokens) == (["extract"], embeds, 900 + last + 10 * embeds)
    assert (await memory.receipt("op"), await memory.scope_revision()) == (None, 1)
    unread = await open_memory(store).extract([TEA], infer=False)
    assert texts(unread.records) == ["I like tea"]


async def test_a_budget_that_ends_before_the_second_asking_writes_nothing(store: Store) -> None:
    ledger = UsageLedger(max_tokens=1_000)
    llm = paid("garbage", usage=Usage(900, 50))
    memory = open_memory(store, llm=accounted(llm), ledger=ledger)
    await check_refused(store, "budget_exceeded", memory.extract([TEA], operation_id="op"), llm, calls=1)


async def test_a_replay_and_what_needs_no_call_cost_nothing(store: Store) -> None:
    ledger = UsageLedger()
    memory = open_memory(store, llm=FakeLLM(obey, obey), ledger=ledger)
    await memory.extract([TEA], operation_id="op")
    spent = ledger.totals()
    await memory.extract([TEA], operation_id="op")
    await memory.extract([TEA])
    await memory.remember("I like tea")
    assert ledger.totals() == spent


async def test_one_ledger_serves_many_sessions_at_once(store: Store) -> None:
    ledger = UsageLedger()
    llm = accounted(FakeLLM(lambda prompt: LLMReply(facts(), Usage(10, 1))))
    sessions = [open_memory(store, llm=llm, ledger=ledger, llm_model_id="chat-1") for _ in range(5)]
    await asyncio.gather(*(one.extract([user(f"m{n}", "tea")]) for n, one in enumerate(sessions)))
    assert ledger.totals().models == {"chat-1": Totals(5, 50, 5, 0.0, 0)}


# --------------------------------------------------------------------------------------------- what a host plugs in


async def test_accounted_marks_functions_and_objects_sync_and_async(store: Store) -> None:
    def plain(prompt: Prompt) -> LLMReply:
        return LLMReply(answer_from(facts(), prompt), Usage(1, 1))

    async def waiting(prompt: Prompt) -> LLMReply:
        return plain(prompt)

    ledger = UsageLedger(unknown_price="reject", prices={"m": (1, 1)})
    for number, llm in enumerate((plain, waiting, FakeLLM(lambda prompt: plain(prompt)))):
        await open_memory(store, llm=accounted(llm, model_id="m"), ledger=ledger).extract([user(f"m{number}", "x")])
    assert ledger.totals().models == {"m": Totals(3, 3, 3, pytest.approx(6e-6), 0)}


@pytest.mark.parametrize("wrong", [None, "gpt", 7, object()])
def test_accounted_takes_only_what_can_be_called(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError):
        accounted(wrong)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ((-1, 0), "usage.input_tokens"),
        ((1, -1), "usage.output_tokens"),
        ((1.5, 0), "usage.input_tokens"),
        ((True, 0), "usage.input_tokens"),
    ],
)
def test_usage_is_counted_in_whole_tokens(given: Any, path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Usage(*given)
    assert caught.value.path == path


@pytest.mark.parametrize("llm", ["gpt", 7, object(), {"model": "x"}])
def test_a_session_takes_only_a_model_that_can_be_called(llm: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        open_memory(InMemoryStore(), llm=llm)
    assert caught.value.path == "llm"


async def test_reconciliation_is_counted_too(store: Store) -> None:
    await open_memory(store).remember("Ada likes coffee")
    ledger = UsageLedger()
    llm = FakeLLM(LLMReply(facts("Ada likes tea"), Usage(10, 1)), LLMReply(decisions(add()), Usage(20, 2)))
    await open_memory(store, llm=accounted(llm, model_id="m"), ledger=ledger).extract([TEA])
    assert ledger.totals().models == {"m": Totals(2, 30, 3, 0.0, 0)}
