"""Extraction: transcripts that grow and race, replays, and how few calls it takes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_models import (
    FakeLLM,
    Gate,
    add,
    assistant,
    call,
    decisions,
    fact,
    facts,
    notes,
    obey,
    result,
    user,
)
from fakes import BOB, FakeEmbedder, open_memory, refusal, texts

from vmem_core import (
    EmbeddingMismatchError,
    ExtractionPolicy,
    InMemoryStore,
    Link,
    OperationConflictError,
    Prompt,
    RevisionConflictError,
    Store,
)

TEA = user("m1", "I like tea")


# ----------------------------------------------------------------------------------------------- a growing transcript


async def test_a_growing_transcript_that_is_sent_again_makes_nothing_twice(store: Store) -> None:
    llm = FakeLLM(obey, obey)
    memory = open_memory(store, llm=llm)
    messages = [user(f"m{number}", f"I like drink {number}") for number in range(4)]
    for end in range(1, 5):
        written = await memory.extract(messages[:end])
        assert texts(written.records) == [f"I like drink {end - 1}"]
        assert notes(written) == ({"already_processed": end - 1} if end > 1 else {})
    again = await memory.extract(messages)
    assert (again.records, notes(again)) == ((), {"already_processed": 4, "nothing_readable": 1})
    assert await memory.count() == 4
    assert llm.tasks.count("extract") == 4


async def test_messages_are_known_by_scope_and_by_other_sessions(store: Store) -> None:
    memory = open_memory(store)
    await memory.extract([TEA], infer=False)
    other = await open_memory(store).extract([TEA], infer=False)
    assert (other.records, notes(other)) == ((), {"already_processed": 1, "nothing_readable": 1})
    assert len((await open_memory(store, BOB).extract([TEA], infer=False)).records) == 1


async def test_what_was_not_read_stays_unread_until_it_may_be(store: Store) -> None:
    messages = [call("m1", "c1", "search"), result("m2", "c1", "Friday"), assistant("m3", "hi")]
    await open_memory(store).extract(messages, infer=False)
    trusting = open_memory(store, extraction=ExtractionPolicy({"search"}, read_assistant=True))
    assert texts((await trusting.extract(messages, infer=False)).records) == ["Friday", "hi"]


async def test_a_policy_for_one_extraction_is_used_in_the_place_of_the_sessions(store: Store) -> None:
    memory = open_memory(store)
    messages = [call("m1", "c1", "search"), result("m2", "c1", "Friday")]
    written = await memory.extract(messages, infer=False, policy=ExtractionPolicy({"search"}))
    assert texts(written.records) == ["Friday"]


@pytest.mark.parametrize("whole_scope", [False, True])
async def test_read_messages_stay_read_after_a_forget(store: Store, whole_scope: bool) -> None:
    memory = open_memory(store)
    (record,) = (await memory.extract([TEA], infer=False)).records
    await (memory.forget_scope() if whole_scope else memory.forget(record.id))
    again = await memory.extract([TEA], infer=False)
    assert (again.records, notes(again)) == ((), {"already_processed": 1, "nothing_readable": 1})
    assert await memory.count() == 0


async def test_read_messages_stay_read_when_the_store_is_opened_again(tmp_path: Path) -> None:
    from vmem_core import SqliteStore

    for expected in (1, 0):
        async with SqliteStore(tmp_path / "memory.db") as store:
            assert len((await open_memory(store).extract([TEA], infer=False)).records) == expected


@pytest.mark.parametrize("supersede", ["add", "reconcile"])
async def test_two_racing_extractions_of_one_transcript_make_nothing_twice(store: Store, supersede: Any) -> None:
    gate = Gate()
    slow = open_memory(store, llm=FakeLLM(obey, obey, before=gate))
    fast = open_memory(store, llm=FakeLLM(obey, obey))
    behind = asyncio.create_task(slow.extract([TEA, user("m2", "I like coffee")], supersede=supersede))
    await gate.arrived.wait()
    ahead = await fast.extract([TEA], supersede=supersede)
    gate.opened.set()
    written = await behind
    assert texts(ahead.records) == ["I like tea"]
    assert texts(written.records) == ["I like coffee"]
    assert sorted(texts((await fast.list()).records)) == ["I like coffee", "I like tea"]


@pytest.mark.parametrize("supersede", ["add", "reconcile"])
async def test_facts_in_other_words_of_a_racing_extraction_are_dropped_too(store: Store, supersede: Any) -> None:
    gate = Gate()
    slow = open_memory(store, llm=FakeLLM(facts(fact("Ada is fond of tea", "s0")), obey, before=gate))
    behind = asyncio.create_task(slow.extract([TEA], supersede=supersede))
    await gate.arrived.wait()
    await open_memory(store, llm=FakeLLM(obey, obey)).extract([TEA], supersede=supersede)
    gate.opened.set()
    written = await behind
    assert (written.records, notes(written)) == ((), {"already_processed": 1})
    assert await slow.count() == 1


async def test_a_plan_that_is_remade_asks_nothing_of_what_others_have_read_meanwhile(store: Store) -> None:
    await open_memory(store).remember("Ada likes milk")
    gate = Gate()

    async def hold_reconciliation(prompt: Prompt) -> None:
        if prompt.system.startswith("You reconcile"):
            await gate(prompt)

    llm = FakeLLM(facts(fact("Ada likes tea", "s0")), obey, before=hold_reconciliation)
    behind = asyncio.create_task(open_memory(store, llm=llm).extract([TEA]))
    await gate.arrived.wait()
    await open_memory(store).extract([TEA], infer=False)
    gate.opened.set()
    written = await behind
    assert (written.records, notes(written), written.conflict_retries) == ((), {"already_processed": 1}, 1)
    assert llm.tasks == ["extract", "reconcile"]


async def test_twenty_racing_extractions_of_one_message_make_one_record(store: Store) -> None:
    """Each is applied, or told that others came first: none is half applied, and none is doubled."""
    memory = open_memory(store, llm=FakeLLM(obey, obey), max_conflict_retries=25)
    results = await asyncio.gather(*(memory.extract([user("m1", "likes coffee")]) for _ in range(20)))
    assert sum(len(written.records) for written in results) == 1
    assert await memory.count() == 1
    assert await memory.scope_revision() == 20


async def test_twenty_racing_extractions_of_one_operation_id_get_one_receipt(store: Store) -> None:
    memory = open_memory(store, llm=FakeLLM(obey, obey))
    results = await asyncio.gather(*(memory.extract([TEA], operation_id="op") for _ in range(20)))
    assert {written.receipt for written in results} == {results[0].receipt}
    assert [written.replayed for written in results].count(False) == 1
    assert await memory.count() == 1
    assert await memory.scope_revision() == 1


# --------------------------------------------------------------------------------------------------------- replays


async def test_a_replay_makes_no_model_and_no_embedding_call(store: Store) -> None:
    llm, embedder = FakeLLM([facts("Ada likes tea")]), FakeEmbedder()
    memory = open_memory(store, llm=llm, embedder=embedder)
    first = await memory.extract([TEA], operation_id="op")
    calls = (len(llm.prompts), len(embedder.calls))
    again = await memory.extract([TEA], operation_id="op")
    assert (len(llm.prompts), len(embedder.calls)) == calls
    assert (again.replayed, again.receipt, again.records) == (True, first.receipt, first.records)
    assert await memory.scope_revision() == 1


async def test_the_same_request_is_the_same_whatever_is_left_out_or_how_a_dict_is_ordered(store: Store) -> None:
    memory = open_memory(store, llm=FakeLLM(facts()))
    messages = [
        call("m1", "c1", "lookup", a=1, b=2),
        result("m2", "c1", {"x": 1, "y": [1]}),
        user("m3", "hi"),
    ]
    same = [call("m1", "c1", "lookup", b=2, a=1), result("m2", "c1", {"y": (1,), "x": 1}), user("m3", "hi")]
    await memory.extract(messages, operation_id="op")
    assert (await memory.extract(same, operation_id="op")).replayed
    explicit = await memory.extract(
        tuple(messages), kind=None, ttl=None, links=[], top_k=5, supersede="reconcile", instructions=None, infer=True,
        operation_id="op",
    )  # fmt: skip
    assert explicit.replayed


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [user("m1", "I like coffee")]},
        {"messages": [user("m2", "I like tea")]},
        {"messages": [TEA, user("m2", "x")]},
        {"messages": [user("m1", "I like tea", run_id="run1")]},
        {"messages": [user("m1", "I like tea", model_written=True)]},
        {"messages": [user("m1", [{"type": "text", "text": "I like tea"}])]},
        {"messages": [assistant("m1", "I like tea")]},
        {"kind": "episodic"},
        {"ttl": timedelta(seconds=1)},
        {"links": [Link("about", "x")]},
        {"top_k": 6},
        {"supersede": "add"},
        {"instructions": "x"},
        {"infer": False},
    ],
    ids=range(14),
)
async def test_another_request_under_the_same_id_is_a_conflict(other: dict[str, Any]) -> None:
    memory = open_memory(InMemoryStore(), llm=FakeLLM(facts()))
    await memory.extract([TEA], operation_id="op")
    error = await refusal(memory.extract(**{"messages": [TEA], "operation_id": "op", **other}))
    assert isinstance(error, OperationConflictError)
    assert await memory.scope_revision() == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({1: "a", "b": 2}, {1: "z", "b": 2}),
        (b"one", b"two"),
        ({"half": "\ud83d"}, {"half": "\ud83e"}),
        ([[1], 2], [1, [2]]),
        (1, "1"),
        (1, 1.0),
        (True, 1),
    ],
)
async def test_the_content_of_a_message_counts_whatever_it_is(one: Any, other: Any) -> None:
    memory = open_memory(InMemoryStore())
    await memory.extract([result("m1", "c1", one)], infer=False, operation_id="op")
    error = await refusal(memory.extract([result("m1", "c1", other)], infer=False, operation_id="op"))
    assert isinstance(error, OperationConflictError)
    assert (await memory.extract([result("m1", "c1", one)], infer=False, operation_id="op")).replayed


async def test_a_redacted_receipt_replays_and_brings_nothing_back(store: Store) -> None:
    llm = FakeLLM([facts("Ada likes tea", "Ada likes coffee")])
    memory = open_memory(store, llm=llm)
    first = await memory.extract([TEA], operation_id="op")
    await memory.forget(first.records[0].id)
    again = await memory.extract([user("m9", "anything")], operation_id="op")
    assert (again.replayed, again.receipt.redacted, texts(again.records)) == (True, True, ["Ada likes coffee"])
    assert await memory.count() == 1


# ----------------------------------------------------------------------------------------------- vectors and calls


async def test_ten_facts_are_embedded_in_one_batch_and_the_store_is_read_once(store: Store) -> None:
    llm, embedder = FakeLLM(facts(*(f"fact number {n}" for n in range(10))), obey), FakeEmbedder()
    memory = open_memory(store, llm=llm, embedder=embedder)
    await memory.remember("some fact", supersede="add")
    embedder.calls.clear()
    surveys = _count(store, "survey")
    searches = _count(store, "search")
    written = await memory.extract([TEA])
    assert len(written.records) == 10
    assert embedder.calls == [("document", tuple(f"fact number {n}" for n in range(10)))]
    assert (len(surveys), len(searches), llm.tasks) == (1, 0, ["extract", "reconcile"])
    hits = await memory.recall("fact number 3")
    assert {hit.match for hit in hits} == {"hybrid"}


def _count(store: Any, verb: str) -> list[Any]:
    """Counts the calls of a verb of a store from here on."""
    calls: list[Any] = []
    original = getattr(store, verb)

    async def counted(*given: Any, **more: Any) -> Any:
        calls.append(given)
        return await original(*given, **more)

    setattr(store, verb, counted)
    return calls


async def test_texts_that_a_model_reworded_are_embedded_as_they_are_stored(store: Store) -> None:
    llm = FakeLLM(facts("Ada likes tea", "It rains"), decisions(add("Ada is fond of tea"), add("It rains", "n1")))
    embedder = FakeEmbedder()
    memory = open_memory(store, llm=llm, embedder=embedder)
    await memory.remember("Bob likes tea", supersede="add")
    embedder.calls.clear()
    await memory.extract([TEA])
    assert embedder.calls == [
        ("document", ("Ada likes tea", "It rains")), ("document", ("Ada is fond of tea",))
    ]  # fmt: skip
    (hit,) = await memory.recall("Ada is fond of tea", top_k=1)
    assert (hit.record.text, hit.match, hit.score > 0) == ("Ada is fond of tea", "hybrid", True)


async def test_another_embedding_model_is_refused_before_the_reconciliation_is_asked(store: Store) -> None:
    await open_memory(store, embedder=FakeEmbedder("fake-a")).remember("Ada likes tea")
    llm = FakeLLM(facts("Ada likes green tea"))
    memory = open_memory(store, llm=llm, embedder=FakeEmbedder("fake-b"))
    error = await refusal(memory.extract([TEA], operation_id="op"))
    assert isinstance(error, EmbeddingMismatchError)
    assert llm.tasks == ["extract"]
    assert (await memory.scope_revision(), await memory.receipt("op")) == (1, None)


async def test_a_fact_that_cannot_be_embedded_is_noted_and_found_by_its_words(store: Store) -> None:
    embedder = FakeEmbedder(vectors={"Ada likes tea": [0.0] * 8})
    memory = open_memory(store, llm=FakeLLM(facts("Ada likes tea")), embedder=embedder)
    written = await memory.extract([TEA])
    assert notes(written) == {"not_embedded": 1}
    assert texts(await memory.recall("tea")) == ["Ada likes tea"]


async def test_one_extraction_call_an_operation_whatever_conflicts_happen(store: Store) -> None:
    host = open_memory(store)
    await host.remember("Ada likes tea")

    async def interfere(prompt: Prompt) -> None:
        await host.remember(f"something else {len(llm.prompts)}")

    llm = FakeLLM([facts("Ada likes green tea")], obey, before=interfere)
    memory = open_memory(store, llm=llm, max_conflict_retries=4)
    error = await refusal(memory.extract([user("m1", "tea")], operation_id="op"))
    assert isinstance(error, RevisionConflictError)
    assert error.attempts == 4
    assert llm.tasks == ["extract", *["reconcile"] * 4]
    assert await memory.receipt("op") is None
    assert (await host.extract([user("m1", "tea")], infer=False)).records != ()
