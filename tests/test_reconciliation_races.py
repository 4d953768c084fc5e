"""Reconciliation: no call for nothing, writers that come first, and whatever a reply may say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fake_models import (
    FakeLLM,
    Gate,
    decisions,
    existing_lines,
    fact,
    facts,
    new_lines,
    notes,
    obey,
    update,
    user,
)
from fakes import ADA, BOB, FakeEmbedder, Ids, ids, open_memory, refusal, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reconciling import ABOUT, NEW, OLD, WORDS, existing, told

from vmem_core import (
    AssertedRecordError,
    Draft,
    InMemoryStore,
    InvalidRequestError,
    MemorySession,
    OperationConflictError,
    Prompt,
    Record,
    RevisionConflictError,
    Scope,
    SqliteStore,
    Store,
)
from vmem_core.edits import Amend, Create, Extract, Withdraw

# ------------------------------------------------------------------------------------------------ no call for nothing


async def test_no_similar_record_means_no_model_call(store: Store) -> None:
    llm = FakeLLM(facts("Ada likes tea", "Ada has a cat"))
    memory = open_memory(store, llm=llm)
    assert len((await memory.remember("The sky was blue")).records) == 1
    assert len((await memory.extract([user("m1", "hi")])).records) == 2
    assert len((await memory.remember("Nothing alike")).records) == 1
    assert llm.tasks == ["extract"]


async def test_only_facts_without_an_equal_are_shown(store: Store) -> None:
    await existing(store, "asserted")
    llm = FakeLLM(facts(OLD, NEW), obey)
    result = await open_memory(store, llm=llm).extract([user("m1", "hi")])
    assert new_lines(llm.prompts[1]) == [("n0", NEW)]
    assert (texts(result.records), notes(result)) == ([NEW], {"duplicate": 1})


@pytest.mark.parametrize("mode", ["add", "skip_equal"])
async def test_other_modes_ask_no_model(store: Store, mode: Any) -> None:
    await existing(store, "asserted")
    llm = FakeLLM(facts(NEW))
    memory = open_memory(store, llm=llm)
    assert len((await memory.remember(NEW, supersede=mode)).records) == 1
    assert llm.prompts == []
    if mode == "add":
        assert len((await memory.extract([user("m1", "hi")], supersede="add")).records) == 1
        assert llm.tasks == ["extract"]


async def test_remember_many_asks_no_model(store: Store) -> None:
    await existing(store, "asserted")
    memory = open_memory(store, llm=FakeLLM())
    assert len((await memory.remember_many([Draft(OLD), Draft(NEW)])).records) == 2


async def test_reconciling_is_the_default_with_a_model_and_refused_without(store: Store) -> None:
    await existing(store, "asserted")
    llm = FakeLLM(decisions=obey)
    for more in ({}, {"supersede": None}, {"supersede": "reconcile"}):
        await open_memory(store, llm=llm).remember(f"{NEW} {len(llm.prompts)}", **more)  # type: ignore[arg-type]
    assert len(llm.prompts) == 3
    error = await refusal(open_memory(store).remember(NEW, supersede="reconcile"))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "supersede"


async def test_a_replay_makes_no_call(store: Store) -> None:
    await existing(store, "asserted")
    llm, embedder = FakeLLM(decisions=[decisions(update(0, WORDS))]), FakeEmbedder()
    memory = open_memory(store, llm=llm, embedder=embedder)
    first = await memory.remember(NEW, operation_id="op")
    calls = (len(llm.prompts), len(embedder.calls))
    again = await memory.remember(NEW, operation_id="op")
    assert (len(llm.prompts), len(embedder.calls)) == calls
    assert (again.replayed, again.receipt, again.records) == (True, first.receipt, first.records)
    plain = await refusal(memory.remember(NEW, operation_id="op", supersede="add"))
    assert isinstance(plain, OperationConflictError)
    assert len(llm.prompts) == 1


async def test_the_vector_is_of_the_final_text(store: Store) -> None:
    embedder = FakeEmbedder()
    plain = open_memory(store, embedder=embedder)
    await plain.remember(OLD, id="old", origin="inferred")
    llm = FakeLLM(facts(NEW), decisions(update(0, "quite other words")))
    await open_memory(store, llm=llm, embedder=embedder).extract([user("m1", "hi")])
    (hit,) = await plain.recall("quite other words", top_k=1)
    assert (hit.record.id, hit.match) == ("old", "hybrid")


# ------------------------------------------------------------------------------------------------------- conflicts


async def test_a_host_edit_during_a_slow_reconciliation_survives_and_the_plan_is_remade_once(store: Store) -> None:
    await existing(store, "inferred")
    gate = Gate()
    llm = FakeLLM(facts(NEW), [decisions(update(0, "stale words")), decisions(update(0, "fresh words"))], before=None)

    async def hold_reconciliation(prompt: Prompt) -> None:
        if prompt.system.startswith("You reconcile"):
            await gate(prompt)

    llm.before = hold_reconciliation
    task = asyncio.create_task(open_memory(store, llm=llm, new_id=Ids("new")).extract([user("m1", "hi")]))
    await gate.arrived.wait()
    host = open_memory(store)
    edited = await host.revise("old", text="Ada drinks green tea only", expected_revision=1)
    gate.opened.set()
    result = await task
    assert result.conflict_retries == 1
    assert llm.tasks == ["extract", "reconcile", "reconcile"]
    assert existing_lines(llm.prompts[2]) == [("0", "Ada drinks green tea only")]
    assert await host.get("old") == edited.records[0]
    assert [told(record) for record in result.records] == [("new1", 1, "fresh words", "inferred", "active", ABOUT)]
    assert notes(result) == {"about_asserted": 1}


async def test_a_remember_is_planned_again_too(store: Store) -> None:
    await existing(store, "asserted")
    gate = Gate()
    llm = FakeLLM(decisions=[decisions(update(0, WORDS)), decisions(update(0, WORDS))], before=gate)
    embedder = FakeEmbedder()
    task = asyncio.create_task(open_memory(store, llm=llm, embedder=embedder).remember(NEW))
    await gate.arrived.wait()
    await open_memory(store).revise("old", text="Ada likes black tea", expected_revision=1)
    gate.opened.set()
    result = await task
    assert (result.conflict_retries, len(llm.prompts), len(embedder.calls)) == (1, 2, 1)
    assert texts(await open_memory(store).history("old")) == [OLD, "Ada likes black tea", NEW]


async def test_a_write_in_another_scope_is_no_conflict(store: Store) -> None:
    await existing(store, "asserted")

    async def interfere(prompt: Prompt) -> None:
        await open_memory(store, BOB).remember("Bob's")

    result = await open_memory(store, llm=FakeLLM(decisions=obey, before=interfere)).remember(NEW)
    assert result.conflict_retries == 0


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
async def test_when_others_always_come_first_the_conflict_is_told_with_its_attempts(
    store: Store, attempts: int
) -> None:
    host = open_memory(store)
    await existing(store, "asserted")

    async def interfere(prompt: Prompt) -> None:
        await host.remember("another write", supersede="add")

    llm = FakeLLM(decisions=obey, before=interfere)
    more = {} if attempts == 3 else {"max_conflict_retries": attempts}
    error = await refusal(open_memory(store, llm=llm, **more).remember(NEW, operation_id="op"))
    assert isinstance(error, RevisionConflictError)
    assert (error.code, error.attempts) == ("revision_conflict", attempts)
    assert (error.expected_revision, error.actual_revision) == (attempts, attempts + 1)
    assert len(llm.prompts) == attempts
    assert await host.receipt("op") is None
    assert NEW not in texts((await host.list()).records)


async def test_a_write_that_comes_when_there_was_nothing_to_decide_is_a_conflict_too(store: Store) -> None:
    """Two hosts say the same at once: the second looks again, and finds it said."""
    original, surveyed = store.survey, []

    async def survey(*given: Any) -> Any:
        surveyed.append(await original(*given))
        if len(surveyed) == 1:
            await open_memory(store).remember("ADA LIKES GREEN TEA")
        return surveyed[-1]

    store.survey = survey  # type: ignore[method-assign]
    result = await open_memory(store, llm=FakeLLM()).remember(NEW)
    assert (result.conflict_retries, result.records, notes(result)) == (1, (), {"duplicate": 1})


async def test_racing_remembers_of_one_text_store_it_once(store: Store) -> None:
    memory = open_memory(store, llm=FakeLLM(decisions=obey), max_conflict_retries=25)
    results = await asyncio.gather(*(memory.remember("likes coffee") for _ in range(20)))
    assert sum(len(result.records) for result in results) == 1
    assert await memory.count() == 1
    assert await memory.scope_revision() == 20


async def test_racing_remembers_of_one_operation_id_get_equal_receipts(store: Store) -> None:
    await existing(store, "inferred")
    memory = open_memory(store, llm=FakeLLM(decisions=decisions(update(0, WORDS))))
    results = await asyncio.gather(*(memory.remember(NEW, operation_id="k") for _ in range(20)))
    assert {result.receipt for result in results} == {results[0].receipt}
    assert [result.replayed for result in results].count(False) == 1
    assert await memory.count() == 1


async def test_nothing_is_held_while_a_model_thinks(store: Store, tmp_path: Path) -> None:
    """Others read, write and forget in the same scope and file while a model thinks, and are not kept waiting."""
    await existing(store, "inferred")
    gate = Gate()
    memory = open_memory(store, llm=FakeLLM(decisions=obey, before=gate))
    task = asyncio.create_task(memory.remember(NEW))
    await gate.arrived.wait()
    others = [open_memory(store)]
    if isinstance(store, SqliteStore):
        second = SqliteStore(tmp_path / "memory.db", busy_timeout=timedelta(milliseconds=1))
        others.append(open_memory(second))
    for other in others:
        written = (await other.remember("written meanwhile")).records[0]
        assert ids(await other.recall("written meanwhile"))[0] == written.id
        assert (await other.forget(written.id)).revisions == (1,)
        await other.store.scrub()
    gate.opened.set()
    assert (await task).conflict_retries == 1
    for other in others[1:]:
        await other.store.close()


async def test_a_host_callables_own_exception_reaches_the_caller_with_nothing_written(store: Store) -> None:
    await existing(store, "inferred")
    failure = RuntimeError("model is down")
    memory = open_memory(store, llm=FakeLLM(decisions=[failure, obey]))
    with pytest.raises(RuntimeError) as caught:
        await memory.remember(NEW, operation_id="op")
    assert caught.value is failure
    assert (await memory.scope_revision(), await memory.receipt("op")) == (1, None)
    assert texts((await memory.remember(NEW, operation_id="op")).records) == [NEW]


# --------------------------------------------------------------------------------------- inside the transaction


def planned(*edits: Any, origin: Any = "inferred") -> Extract:
    """Edits as a plan would hand them to a store, right or wrong."""
    return Extract(
        scope=ADA, operation_id="op", salt=bytes(16), canonical_request="made", edits=edits, origin=origin,
        expected_scope_revision=2,
    )  # fmt: skip


@pytest.mark.parametrize("edit", [Withdraw("said"), Amend("said", {"text": WORDS}), Amend("said", {"kind": "working"})])
async def test_no_plan_of_a_model_gets_past_the_last_look_at_what_is_asserted(store: Store, edit: Any) -> None:
    memory = open_memory(store)
    said = (await memory.remember(OLD, id="said")).records[0]
    await memory.remember(NEW, id="guessed", origin="inferred")
    error = await refusal(store.run(planned(Create("new1", Draft("new")), Withdraw("guessed"), edit)))
    assert isinstance(error, AssertedRecordError)
    assert error.record_id == "said"
    assert await memory.history("said") == [said]
    assert (await memory.scope_revision(), await memory.get("new1"), await memory.receipt("op")) == (2, None, None)


async def test_what_is_created_and_revised_comes_before_what_is_retracted(store: Store) -> None:
    await open_memory(store).remember_many([Draft("a", "a"), Draft("b", "b")], origin="inferred")
    await open_memory(store).remember("c")
    outcome = await store.run(planned(Withdraw("a"), Create("new1", Draft("new")), Amend("b", {"text": "b!"})))
    assert [(one.record_id, one.action) for one in outcome.receipt.changes] == [
        ("new1", "create"), ("b", "revise"), ("a", "retract"),
    ]  # fmt: skip
    assert ids(outcome.records) == ["new1", "b", "a"]


# ------------------------------------------------------------------------------------------------------- properties

ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "event": st.sampled_from(["ADD", "UPDATE", "DELETE", "NOOP", "add", "MERGE", None]),
        "id": st.integers(-1, 7) | st.sampled_from(["0", "1", "2", "x", "", None, "old0", 0.0, True]),
        "fact": st.sampled_from(["n0", "n1", "n2", "n9", "", None, 0]),
        "text": st.sampled_from(["", " ", "old asserted 0", "old inferred 1", "new fact 0", None, 7])
        | st.text(max_size=9),
        "kind": st.sampled_from(["working", "nonsense", None]),
        "importance": st.floats() | st.none(),
        "origin": st.just("asserted"),
    },
)
REPLIES = st.lists(ENTRIES, max_size=8).map(lambda entries: json.dumps({"memory": entries})) | st.text(max_size=30)
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def kept_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One store for all examples of a property: each has a scope of its own."""
    folder = tmp_path_factory.mktemp("properties")
    store = InMemoryStore() if request.param == "memory" else SqliteStore(folder / "memory.db")
    yield store
    store.sync.close()


_scopes = count()


def some_memory(store: Any, reply: str) -> tuple[Any, list[Record], list[Record]]:
    """A new scope with asserted and inferred records, and a model that finds three facts and answers one reply."""
    scope = Scope(user_id=f"user {next(_scopes)}")
    found = facts(*(fact(f"new fact {n}", "s0") for n in range(3)))
    memory = MemorySession(store, scope, llm=FakeLLM(found, reply)).sync
    asserted = memory.remember_many([Draft(f"old asserted fact {n}") for n in range(3)]).records
    inferred = memory.remember_many([Draft(f"old inferred fact {n}") for n in range(3)], origin="inferred").records
    return memory, asserted, inferred


@PROPERTY
@given(reply=REPLIES, infer=st.booleans())
def test_no_reply_makes_an_inferred_write_touch_an_asserted_record(kept_store: Any, reply: str, infer: bool) -> None:
    memory, asserted, _ = some_memory(kept_store, reply)
    result = memory.extract([user("m1", "a fact")], infer=infer)
    assert all(record.origin == "inferred" for record in result.records)
    for record in asserted:
        assert memory.history(record.id) == [record]
    assert memory.scope_revision() == 3
    assert len({change.record_id for change in result.receipt.changes}) == len(result.receipt.changes)


@PROPERTY
@given(reply=REPLIES, origin=st.sampled_from(["asserted", "inferred"]))
def test_no_reply_makes_remember_lose_or_reword_a_text(kept_store: Any, reply: str, origin: Any) -> None:
    memory, asserted, _ = some_memory(kept_store, reply)
    result = memory.remember("the new fact", origin=origin)
    written = [record for record in result.records if record.status == "active"]
    met = [record for record in result.present if record.origin == "asserted"]
    assert [record.text for record in written] == ([] if met else ["the new fact"])
    assert all(record.origin == origin for record in written)
    if origin == "inferred":
        assert all(memory.history(record.id) == [record] for record in asserted)


@PROPERTY
@given(entries=st.lists(ENTRIES, min_size=1, max_size=5), share=st.floats(0, 1))
def test_a_reply_that_is_cut_at_any_byte_is_applied_whole_or_not_at_all(
    kept_store: Any, entries: list[Any], share: float
) -> None:
    whole = json.dumps({"memory": entries}).encode()
    cut = whole[: int(share * (len(whole) - 1))].decode("utf-8", "ignore")
    memory, asserted, inferred = some_memory(kept_store, cut)
    result = memory.extract([user("m1", "a fact")])
    assert (result.records, set(notes(result)) <= {"unparsed", "refused"}) == ((), True)
    assert all(memory.history(record.id) == [record] for record in (*asserted, *inferred))
