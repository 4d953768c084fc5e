"""Moving to another model: embedders that fail or lie, budgets, refusals, spans, and writes that meet the switch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from fake_models import FakeLLM, add, decisions, fact, facts, user
from fakes import FakeEmbedder, RawEmbedder, open_memory, refusal
from store_suite.reembedding import NewEmbedder, reembed
from test_tracing import of, provider, spans, told  # noqa: F401 - fixtures are asked for by their names

from vmem_core import (
    BudgetExceededError,
    Draft,
    EmbeddingMismatchError,
    Embeddings,
    Generation,
    InMemoryStore,
    InvalidRequestError,
    MemorySession,
    ReembedResult,
    Usage,
    UsageLedger,
    accounted,
)


@pytest.fixture
async def store() -> InMemoryStore:
    """In memory alone: what a store must do is asked of all of them in the suite."""
    return InMemoryStore()


async def fill(memory: MemorySession, count: int) -> None:
    await memory.remember_many([Draft(f"SECRET {n}", f"id{n}") for n in range(count)])


# --------------------------------------------------------------------------------------------- embedders that fail


async def test_an_embedder_that_is_away_ends_the_job_with_its_own_error_after_one_more_try(
    store: InMemoryStore, seeing: MemorySession
) -> None:
    await fill(seeing, 9)
    away = RawEmbedder(ConnectionError("the model is away"))
    with pytest.raises(ConnectionError, match="the model is away"):
        await reembed(seeing, away, batch_size=8)
    assert away.calls == 2
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")
    new = NewEmbedder()
    assert await reembed(seeing, new) == ReembedResult(2, 9, 0, True)


class Fading(NewEmbedder):
    """Answers so many calls, and then no more."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        if self.left == 0:
            raise ConnectionError("the model is away")
        self.left -= 1
        return await super().embed(texts, purpose=purpose)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_what_was_paid_for_is_stored_when_the_embedder_goes_away(
    store: InMemoryStore, seeing: MemorySession, concurrency: int
) -> None:
    await fill(seeing, 20)
    with pytest.raises(ConnectionError):
        await reembed(seeing, Fading(4), batch_size=2, concurrency=concurrency)
    assert await store.embeddings.missing(2) == 12
    new = NewEmbedder()
    assert await reembed(seeing, new) == ReembedResult(2, 12, 0, True)
    assert len(new.documents) == 12


async def test_a_text_that_fails_is_found_by_halves(seeing: MemorySession) -> None:
    await fill(seeing, 64)
    new = NewEmbedder()
    new.bad = {"SECRET 5"}
    result = await reembed(seeing, new)
    assert (result.embedded, result.reasons, result.failed) == (63, {"failed": 1}, ("id5",))
    sizes = [len(texts) for _, texts in new.calls if texts != ("a",)]
    assert sizes[:12] == [64, 32, 16, 8, 4, 4, 2, 1, 1, 2, 8, 16]
    assert sizes[12:] == [32, 1, 1]  # the other half; then it is tried once a pass


async def test_a_text_that_fails_once_is_embedded_in_the_next_pass(seeing: MemorySession) -> None:
    await fill(seeing, 4)
    new = NewEmbedder()
    new.bad = {"SECRET 1"}

    async def mend() -> None:
        if len(new.documents) > 12:
            new.bad = set()

    new.before = mend
    assert await reembed(seeing, new) == ReembedResult(2, 4, 0, True)


async def test_ids_of_failures_are_named_up_to_a_hundred_and_all_are_counted(seeing: MemorySession) -> None:
    await fill(seeing, 103)
    new = NewEmbedder()
    new.bad = {f"SECRET {n}" for n in range(103)}
    result = await reembed(seeing, new, batch_size=1)
    assert (result.skipped, result.reasons, len(result.failed)) == (103, {"failed": 103}, 100)


# ----------------------------------------------------------------------------------------------- embedders that lie


@pytest.mark.parametrize(
    ("answer", "model"),
    [([[1.0] * 8] * 3, "fake-a"), ([[1.0] * 4] * 3, "fake-a"), ([[1.0] * 8] * 3, "fake-b")],
    ids=["the old model", "another model", "another size"],
)
async def test_an_embedder_of_another_model_or_size_is_refused(
    store: InMemoryStore, seeing: MemorySession, answer: Any, model: str
) -> None:
    await fill(seeing, 3)
    wrong = RawEmbedder(answer, model)
    error = await refusal(reembed(seeing, wrong))
    assert isinstance(error, EmbeddingMismatchError)
    assert (error.active_model, error.active_dims) == ("fake-b", 4)
    assert (error.model, error.dims) == (model, len(answer[0]))
    assert wrong.calls == 1
    assert await store.embeddings.missing(2) == 3
    assert (await seeing.recall("SECRET"))[0].match == "hybrid"


async def test_an_embedder_that_changes_its_size_in_the_middle_keeps_what_it_did(
    store: InMemoryStore, seeing: MemorySession
) -> None:
    await fill(seeing, 6)
    new = NewEmbedder()

    async def grow() -> None:
        new.dims = 4 if len(new.calls) < 3 else 5

    new.before = grow
    error = await refusal(reembed(seeing, new, batch_size=2))
    assert isinstance(error, EmbeddingMismatchError)
    assert (error.active_dims, error.dims) == (4, 5)
    assert await store.embeddings.missing(2) == 2
    assert await reembed(seeing, NewEmbedder()) == ReembedResult(2, 2, 0, True)


@pytest.mark.parametrize("answer", [[], [[1.0] * 4] * 2, [[1.0] * 4, [1.0]] * 2, None, ["a"] * 3], ids=range(5))
async def test_a_wrong_answer_is_refused_and_no_text_is_blamed(
    store: InMemoryStore, seeing: MemorySession, answer: Any
) -> None:
    await fill(seeing, 3)
    wrong = RawEmbedder(answer, "fake-b")
    error = await refusal(reembed(seeing, wrong))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "embeddings.vectors"
    assert "SECRET" not in str(error)
    assert wrong.calls == 1


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "path"),
    [({"embedder": None}, "embedder"), ({"embedder": 5}, "embedder"), ({"model_id": ""}, "model_id"),
     ({"model_id": None}, "model_id"), ({"dims": 0}, "dims"), ({"dims": "4"}, "dims"), ({"dims": 65_537}, "dims"),
     ({"batch_size": 0}, "batch_size"), ({"batch_size": 1001}, "batch_size"), ({"batch_size": 2.5}, "batch_size"),
     ({"concurrency": 0}, "concurrency"), ({"concurrency": 101}, "concurrency"), ({"progress": 5}, "progress")],
)  # fmt: skip
async def test_a_wrong_argument_is_refused_before_anything_is_written(
    store: InMemoryStore, seeing: MemorySession, given: dict[str, Any], path: str
) -> None:
    await fill(seeing, 1)
    pending = await store.embeddings.begin("fake-c", 2)
    error = await refusal(seeing.reembed(**{"embedder": NewEmbedder(), "model_id": "fake-b", "dims": 4, **given}))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path
    assert await store.embeddings.missing(pending.number) == 1


def test_a_next_embedder_follows_an_embedder(store: InMemoryStore) -> None:
    for given in ({"next_embedder": NewEmbedder()}, {"embedder": FakeEmbedder(), "next_embedder": 5}):
        with pytest.raises(InvalidRequestError):
            open_memory(store, **given)


async def test_an_error_of_the_progress_callback_reaches_the_caller_and_the_job_can_go_on(
    seeing: MemorySession,
) -> None:
    await fill(seeing, 4)

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyError("the bar is gone")

    with pytest.raises(KeyError):
        await reembed(seeing, NewEmbedder(), batch_size=2, progress=stop)
    new = NewEmbedder()
    assert await reembed(seeing, new) == ReembedResult(2, 2, 0, True)


@pytest.mark.parametrize(
    "wrong",
    [{"generation": 0}, {"embedded": -1}, {"skipped": 2}, {"activated": 1}, {"reasons": {"other": 1}},
     {"reasons": {"failed": 0}}, {"failed": ("",)}, {"failed": "id"}],
)  # fmt: skip
def test_a_wrong_result_cannot_be_built(wrong: dict[str, Any]) -> None:
    right = {"generation": 2, "embedded": 1, "skipped": 1, "activated": False, "reasons": {"failed": 1}}
    made = ReembedResult(**{**right, "failed": ("id",)})
    assert ReembedResult.from_json(made.to_json()) == made
    with pytest.raises(InvalidRequestError):
        ReembedResult(**{**right, **wrong})


# ---------------------------------------------------------------------------------------------------------- accounts


class PaidNew(NewEmbedder):
    """Reports ten tokens a text."""

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        answer = await super().embed(texts, purpose=purpose)
        return Embeddings(answer.vectors, answer.model, Usage(10 * len(texts)))


async def test_each_batch_is_reserved_under_the_new_models_id_and_settled(seeing: MemorySession) -> None:
    await fill(seeing, 5)
    ledger = UsageLedger(allowed_models={"fake-b"}, prices={"fake-b": (1.0, 1.0)}, unknown_price="reject")
    memory = open_memory(seeing.store, embedder=FakeEmbedder(), ledger=ledger)
    await reembed(memory, accounted(PaidNew()), batch_size=2)
    totals = ledger.totals()
    assert (totals.calls, totals.tokens, totals.unknown) == (3, 50, 0)
    assert list(totals.models) == ["fake-b"]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_spent_budget_ends_the_job_before_the_call_and_it_can_go_on(
    store: InMemoryStore, seeing: MemorySession, concurrency: int
) -> None:
    await fill(seeing, 10)
    new = PaidNew()
    memory = open_memory(store, embedder=FakeEmbedder(), ledger=UsageLedger(max_tokens=45))
    with pytest.raises(BudgetExceededError):
        await reembed(memory, accounted(new), batch_size=2, concurrency=concurrency)
    assert len(new.documents) == 10 - await store.embeddings.missing(2)
    assert 0 < len(new.documents) < 10
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")
    rich = PaidNew()
    memory = open_memory(store, ledger=UsageLedger())
    assert (await reembed(memory, accounted(rich))).activated is True
    assert len(new.documents) + len(rich.documents) == 10


async def test_a_model_that_the_ledger_does_not_allow_is_never_called(seeing: MemorySession) -> None:
    await fill(seeing, 2)
    new = NewEmbedder()
    memory = open_memory(seeing.store, ledger=UsageLedger(allowed_models={"fake-a"}))
    error = await refusal(reembed(memory, new))
    assert error.code == "model_not_allowed"
    assert new.calls == []


# -------------------------------------------------------------------------------------------------------------- spans


async def test_a_job_is_one_span_with_its_generation(seeing: MemorySession, spans: Any) -> None:  # noqa: F811
    await fill(seeing, 3)
    spans.clear()
    await reembed(seeing, NewEmbedder())
    assert "SECRET" not in "".join(span.to_json() for span in spans.get_finished_spans())
    assert told(spans) == of("reembed", 3, embedding_generation=2)
    await seeing.recall("SECRET")
    assert told(spans) == of("recall", 3, embedding_generation=2)


# ------------------------------------------------------------------------------- writes with a model meet the switch


async def move_away(seeing: MemorySession) -> None:
    """Another session moves the store."""
    mover = open_memory(seeing.store)
    assert (await reembed(mover, NewEmbedder())).activated is True


@pytest.mark.parametrize("moment", ["before", "at the model"])
async def test_a_reconciliation_goes_on_with_the_next_embedder(
    store: InMemoryStore, seeing: MemorySession, moment: str
) -> None:
    await seeing.remember("Ada likes tea", id="old")

    async def meanwhile(prompt: Any) -> None:
        if moment == "at the model":
            await move_away(seeing)

    llm = FakeLLM(decisions=decisions(add()), before=meanwhile)
    memory = open_memory(store, llm=llm, embedder=FakeEmbedder(), next_embedder=NewEmbedder())
    if moment == "before":
        await move_away(seeing)
    result = await memory.remember("Ada likes green tea", id="new")
    assert [record.id for record in result.records] == ["new"]
    assert len(llm.prompts) == 1
    assert {hit.record.id: hit.match for hit in await memory.recall("Ada green")} == {"new": "hybrid", "old": "hybrid"}


async def test_an_extraction_goes_on_with_the_next_embedder_and_asks_its_model_once(
    store: InMemoryStore, seeing: MemorySession
) -> None:
    async def meanwhile(prompt: Any) -> None:
        await move_away(seeing)

    await seeing.remember("rum")
    llm = FakeLLM(facts(fact("Ada likes tea", "s0")), before=meanwhile)
    memory = open_memory(store, llm=llm, embedder=FakeEmbedder(), next_embedder=NewEmbedder())
    await memory.recall("rum")
    await memory.extract([user("m1", "I like tea")], supersede="add")
    assert len(llm.prompts) == 1
    assert [hit.match for hit in await memory.recall("Ada likes tea", top_k=1)] == ["hybrid"]


async def test_while_a_store_moves_a_session_embeds_what_it_writes_for_both_models(store: InMemoryStore) -> None:
    new = NewEmbedder()
    memory = open_memory(store, embedder=FakeEmbedder(), next_embedder=new)
    await memory.remember("tea", id="a")
    assert new.calls == []  # nothing is prepared yet
    number = (await store.embeddings.begin("fake-b", 4)).number
    await memory.remember_many([Draft("milk", "b"), Draft("rum", "c")])
    await memory.revise("b", text="coffee", operation_id="op")
    await memory.revise("b", text="coffee", operation_id="op")
    assert new.documents == ["milk", "rum", "coffee"]
    assert await store.embeddings.pending(number, 9) == [("a", 1, "tea")]
    await memory.revise("a", text="wine")
    assert await store.embeddings.activate(number) is True
    assert {hit.record.id: hit.match for hit in await memory.recall("coffee")} == {
        "b": "hybrid", "a": "vector", "c": "vector",
    }  # fmt: skip
    await memory.remember("water", id="d")
    assert new.documents[-2:] == ["wine", "water"]


async def test_what_a_model_writes_is_embedded_for_both_models_too(store: InMemoryStore) -> None:
    new = NewEmbedder()
    llm = FakeLLM(facts(fact("Ada likes tea", "s0")), decisions(add()))
    memory = open_memory(store, llm=llm, embedder=FakeEmbedder(), next_embedder=new)
    number = (await store.embeddings.begin("fake-b", 4)).number
    await memory.extract([user("m1", "I like tea")])
    await memory.remember("Ada likes milk")
    assert new.documents == ["Ada likes tea", "Ada likes milk"]
    assert await store.embeddings.missing(number) == 0


@pytest.mark.parametrize(
    "broken",
    [RawEmbedder(ConnectionError("away")), RawEmbedder([]), RawEmbedder([[1.0] * 4], "other"), RawEmbedder([[1.0]])],
    ids=["away", "wrong count", "another model", "another size"],
)
async def test_a_next_embedder_that_fails_is_no_fault_of_the_write(
    store: InMemoryStore, broken: RawEmbedder, caplog: pytest.LogCaptureFixture
) -> None:
    memory = open_memory(store, embedder=FakeEmbedder(), next_embedder=broken)
    number = (await store.embeddings.begin("fake-b", 4)).number
    assert (await memory.remember("SECRET tea", id="a")).records[0].revision == 1
    assert broken.calls == 1
    assert await store.embeddings.pending(number, 9) == [("a", 1, "SECRET tea")]
    assert "SECRET" not in caplog.text
    assert [hit.match for hit in await memory.recall("tea")] == ["hybrid"]


async def test_a_write_that_is_refused_leaves_nothing_for_the_next_model(store: InMemoryStore) -> None:
    memory = open_memory(store, embedder=FakeEmbedder(), next_embedder=NewEmbedder())
    await memory.remember("tea", id="a")
    number = (await store.embeddings.begin("fake-b", 4)).number
    assert (await refusal(memory.revise("a", text="milk", expected_revision=9))).code == "revision_conflict"
    assert await store.embeddings.pending(number, 9) == [("a", 1, "tea")]


async def test_without_a_next_embedder_a_moved_store_refuses(store: InMemoryStore, seeing: MemorySession) -> None:
    await seeing.remember("Ada likes tea")
    await move_away(seeing)
    for memory in (seeing, open_memory(store, embedder=FakeEmbedder(), next_embedder=FakeEmbedder("fake-c", 4))):
        for refused in (memory.recall("tea"), memory.remember("milk"), memory.recall("tea")):
            assert isinstance(await refusal(refused), EmbeddingMismatchError)


async def test_many_calls_that_meet_the_switch_at_once_all_follow(store: InMemoryStore, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    old, opened = FakeEmbedder(), asyncio.Event()
    old.before = opened.wait
    memory = open_memory(store, embedder=old, next_embedder=NewEmbedder())
    tasks = [asyncio.create_task(memory.recall("tea")) for _ in range(5)]
    while len(old.calls) < 5:  # noqa: ASYNC110 - they arrive one after the other
        await asyncio.sleep(0)
    await move_away(seeing)
    opened.set()
    assert [[hit.match for hit in hits] for hits in await asyncio.gather(*tasks)] == [["hybrid"]] * 5
