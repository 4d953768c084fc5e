"""Generations of vectors: begin, what is missing, put, switch; and what callers see before, during and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import (
    ADA,
    BOB,
    FakeEmbedder,
    Ids,
    open_memory,
    refusal,
    texts,
    word_vector,
)

from store_suite.embedding import match
from vmem_core import (
    Draft,
    EmbeddingMismatchError,
    Generation,
    InvalidRequestError,
    MemorySession,
    Store,
)

NAN, INFINITY = float("nan"), float("inf")
NEW = FakeEmbedder("fake-b", 4)


async def fill(store: Store, number: int, dims: int = 4) -> int:
    """Put a vector for every record that a generation lacks, as a host would that runs the job itself."""
    put, after = 0, None
    while page := await store.embeddings.pending(number, 2, after=after):
        after = page[-1][0]
        put += await store.embeddings.put(number, [(id, rev, word_vector(text, dims)) for id, rev, text in page])
    return put


async def move(store: Store, model_id: str = "fake-b", dims: int = 4) -> Generation:
    """Move a store to another model."""
    generation = await store.embeddings.begin(model_id, dims)
    await fill(store, generation.number, dims)
    assert await store.embeddings.activate(generation.number) is True
    return generation


def after_switch(store: Store, **more: Any) -> MemorySession:
    """A session that embeds with the model that ``move`` moves to."""
    return open_memory(store, embedder=FakeEmbedder("fake-b", 4), **more)


# ------------------------------------------------------------------------------------------------------------- begin


async def test_begin_gives_a_pending_generation_and_search_goes_on_with_the_active_one(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember("tea")
    assert await store.embeddings.prepared() is None
    assert await store.embeddings.begin("fake-b", 4) == Generation(2, "fake-b", 4, "pending")
    assert await store.embeddings.prepared() == Generation(2, "fake-b", 4, "pending")
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")
    assert await match(seeing, "tea") == {"r1": "hybrid"}
    await seeing.remember("coffee")
    assert await match(seeing, "coffee") == {"r2": "hybrid", "r1": "vector"}


async def test_begin_with_the_same_model_and_size_resumes(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    first = await store.embeddings.begin("fake-b", 4)
    assert await store.embeddings.put(first.number, [("r1", 1, [1, 0, 0, 0])]) == 1
    assert await store.embeddings.begin("fake-b", 4) == first
    assert await store.embeddings.pending(first.number, 10) == [("r2", 1, "milk")]


@pytest.mark.parametrize(("model", "dims"), [("fake-c", 4), ("fake-b", 5), ("fake-a", 8)])
async def test_begin_with_another_model_or_size_gives_up_the_pending_generation(
    store: Store, seeing: MemorySession, model: str, dims: int
) -> None:
    await seeing.remember("tea")
    given_up = await store.embeddings.begin("fake-b", 4)
    await fill(store, given_up.number)
    begun = await store.embeddings.begin(model, dims)
    assert begun == (
        Generation(1, model, dims, "active") if model == "fake-a" else Generation(3, model, dims, "pending")
    )
    assert await store.embeddings.pending(given_up.number, 10) == []
    assert await store.embeddings.missing(given_up.number) == 0
    assert await store.embeddings.put(given_up.number, [("r1", 1, [1, 0, 0, 0])]) == 0
    assert await store.embeddings.activate(given_up.number) is False
    # Its number and its vectors never come back.
    again = await store.embeddings.begin("fake-b", 4)
    assert again.number > given_up.number
    assert await store.embeddings.pending(again.number, 10) == [("r1", 1, "tea")]
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")


async def test_begin_with_the_active_model_gives_the_active_generation(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    assert await store.embeddings.begin("fake-a", 8) == Generation(1, "fake-a", 8, "active")
    other_size = await store.embeddings.begin("fake-a", 9)
    assert other_size == Generation(2, "fake-a", 9, "pending")


async def test_a_store_without_vectors_is_moved_too(store: Store, ada: MemorySession) -> None:
    await ada.remember_many([Draft("tea"), Draft("milk")])
    assert await move(store) == Generation(1, "fake-b", 4, "pending")
    assert await match(after_switch(store), "tea") == {"r1": "hybrid", "r2": "vector"}
    assert await store.embeddings.active() == Generation(1, "fake-b", 4, "active")


async def test_an_empty_store_switches_at_once(store: Store) -> None:
    generation = await store.embeddings.begin("fake-b", 4)
    assert await store.embeddings.pending(generation.number, 10) == []
    assert await store.embeddings.activate(generation.number) is True
    error = await refusal(open_memory(store, embedder=FakeEmbedder()).remember("tea"))
    assert isinstance(error, EmbeddingMismatchError)
    await after_switch(store).remember("tea")


async def test_a_first_vector_that_is_written_meanwhile_starts_a_generation_of_its_own(
    store: Store, ada: MemorySession, seeing: MemorySession
) -> None:
    await ada.remember("milk")
    prepared = await store.embeddings.begin("fake-b", 4)
    await seeing.remember("tea")
    assert await store.embeddings.active() == Generation(2, "fake-a", 8, "active")
    assert await match(seeing, "tea") == {"r2": "hybrid"}
    await fill(store, prepared.number)
    assert await store.embeddings.activate(prepared.number) is True
    assert await match(after_switch(store), "tea") == {"r2": "hybrid", "r1": "vector"}


async def test_the_pending_model_may_be_written_first_by_a_session(store: Store, ada: MemorySession) -> None:
    await ada.remember("milk")
    prepared = await store.embeddings.begin("fake-b", 4)
    await after_switch(store).remember("tea", id="b")
    assert await store.embeddings.active() == Generation(2, "fake-b", 4, "active")
    assert await store.embeddings.begin("fake-b", 4) == prepared
    await fill(store, prepared.number)
    assert await store.embeddings.activate(prepared.number) is True
    assert await match(after_switch(store), "tea") == {"b": "hybrid", "r1": "vector"}


@pytest.mark.parametrize(
    ("model", "dims", "path"),
    [("", 4, "model_id"), (" ", 4, "model_id"), (None, 4, "model_id"), ("a\x00", 4, "model_id"), ("m", 0, "dims"),
     ("m", -1, "dims"), ("m", True, "dims"), ("m", 4.0, "dims"), ("m", 65_537, "dims"), ("m", 2**70, "dims")],
)  # fmt: skip
async def test_begin_refuses_what_is_no_model(store: Store, model: Any, dims: Any, path: str) -> None:
    error = await refusal(store.embeddings.begin(model, dims))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path
    assert (await store.embeddings.begin("m", 1)).number == 1


# ----------------------------------------------------------------------------------------------------------- pending


async def test_pending_lists_every_scope_retracted_and_expired_records_too(
    store: Store, ada: MemorySession, bob: MemorySession
) -> None:
    from datetime import timedelta

    await ada.remember("tea", ttl=timedelta(seconds=0.000001))
    await bob.remember("milk")
    await ada.remember("rum")
    await ada.retract("r3")
    await ada.remember("gone")
    await ada.forget("r4")
    number = (await store.embeddings.begin("fake-b", 4)).number
    everything = await store.embeddings.pending(number, 10)
    assert everything == [("r1", 1, "tea"), ("r3", 2, "rum"), ("r2", 1, "milk")]
    assert await store.embeddings.missing(number) == 3


async def test_pending_goes_on_after_a_record_that_was_seen_also_if_it_was_forgotten(
    store: Store, ada: MemorySession, bob: MemorySession
) -> None:
    await ada.remember_many([Draft("a", "a"), Draft("b", "b"), Draft("c", "c")])
    await bob.remember("d", id="d")
    number = (await store.embeddings.begin("fake-b", 4)).number
    pages, after = [], None
    while page := await store.embeddings.pending(number, 2, after=after):
        pages.append([record_id for record_id, _, _ in page])
        after = page[-1][0]
    assert pages == [["a", "b"], ["c", "d"]]
    await ada.forget("b")
    assert [one[0] for one in await store.embeddings.pending(number, 9, after="b")] == ["c", "d"]
    assert await store.embeddings.pending(number, 9, after="d") == []


@pytest.mark.parametrize(
    ("arguments", "path"),
    [((0, 1), "number"), ((True, 1), "number"), (("1", 1), "number"), ((1, 0), "limit"), ((1, 1001), "limit"),
     ((1, 1, ""), "after"), ((1, 1, "unknown"), "after"), ((1, 1, 5), "after")],
)  # fmt: skip
async def test_pending_refuses_wrong_arguments(
    store: Store, seeing: MemorySession, arguments: tuple[Any, ...], path: str
) -> None:
    await seeing.remember("tea")
    number, limit, *after = arguments
    error = await refusal(store.embeddings.pending(number, limit, after=after[0] if after else None))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path


async def test_of_an_unknown_generation_nothing_is_pending_nothing_is_put_and_nothing_switches(
    store: Store, seeing: MemorySession
) -> None:
    for number in (1, 99, 2**31 - 1):
        assert await store.embeddings.pending(number, 10) == []
        assert await store.embeddings.missing(number) == 0
        assert await store.embeddings.put(number, [("r1", 1, [1.0, 2.0])]) == 0
        assert await store.embeddings.activate(number) is False
    assert await store.embeddings.active() is None
    await seeing.remember("tea")
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")


# --------------------------------------------------------------------------------------------------------------- put


async def test_a_vector_of_an_old_revision_is_not_taken(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    number = (await store.embeddings.begin("fake-b", 4)).number
    await seeing.revise("r1", text="coffee")
    one = [1.0, 0, 0, 0]
    assert await store.embeddings.put(number, [("r1", 1, one), ("r2", 1, one), ("r1", 3, one), ("no", 1, one)]) == 1
    assert await store.embeddings.pending(number, 10) == [("r1", 2, "coffee")]
    assert await store.embeddings.activate(number) is False
    assert await store.embeddings.put(number, [("r1", 2, one)]) == 1
    assert await store.embeddings.activate(number) is True


@pytest.mark.parametrize("change", ["revise", "retract", "metadata"])
async def test_a_record_that_was_put_and_then_revised_is_pending_again(
    store: Store, seeing: MemorySession, change: str
) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    number = (await store.embeddings.begin("fake-b", 4)).number
    assert await fill(store, number) == 2
    changes: dict[str, Any] = {
        "revise": lambda: seeing.revise("r1", text="coffee"),
        "retract": lambda: seeing.retract("r1"),
        "metadata": lambda: seeing.revise("r1", metadata={"a": 1}),
    }
    await changes[change]()
    assert await store.embeddings.activate(number) is False
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")
    assert [one[:2] for one in await store.embeddings.pending(number, 10)] == [("r1", 2)]
    await fill(store, number)
    assert await store.embeddings.activate(number) is True
    hits = await after_switch(store).recall("coffee" if change == "revise" else "tea", include_retracted=True)
    assert hits[0].record.id == "r1"
    assert hits[0].vector_rank == 1


async def test_a_record_that_is_written_during_the_job_is_pending(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    number = (await store.embeddings.begin("fake-b", 4)).number
    await fill(store, number)
    await seeing.remember("milk")
    assert await store.embeddings.activate(number) is False
    assert await store.embeddings.pending(number, 10) == [("r2", 1, "milk")]


async def test_a_record_that_is_forgotten_during_the_job_leaves_nothing(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk"), Draft("rum")])
    number = (await store.embeddings.begin("fake-b", 4)).number
    await store.embeddings.put(number, [("r1", 1, [1, 0, 0, 0]), ("r3", 1, None)])
    await seeing.forget("r1")
    await seeing.forget("r3")
    for vector in ([0, 1, 0, 0], None):
        assert await store.embeddings.put(number, [("r1", 1, vector), ("r3", 1, vector)]) == 0
    assert await store.embeddings.pending(number, 10) == [("r2", 1, "milk")]
    await fill(store, number)
    assert await store.embeddings.activate(number) is True
    assert await match(after_switch(store), "tea") == {"r2": "vector"}


@pytest.mark.parametrize("vector", [None, [0, 0, 0, 0], [NAN, 1, 1, 1], [INFINITY, 0, 0, 0]], ids=range(4))
async def test_what_cannot_be_embedded_is_marked_and_found_by_its_words(
    store: Store, seeing: MemorySession, vector: Any
) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    number = (await store.embeddings.begin("fake-b", 4)).number
    assert await store.embeddings.put(number, [("r1", 1, vector), ("r2", 1, word_vector("milk", 4))]) == 2
    assert await store.embeddings.pending(number, 10) == []
    assert await store.embeddings.activate(number) is True
    memory = after_switch(store)
    assert await match(memory, "tea") == {"r1": "lexical", "r2": "vector"}
    assert await store.embeddings.missing(number) == 0
    # A mark is of one revision: what is written anew is asked for anew.
    await open_memory(store).revise("r1", text="coffee")
    assert await store.embeddings.pending(number, 10) == [("r1", 2, "coffee")]


async def test_a_mark_gives_way_to_a_vector_and_a_vector_to_a_mark(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    for vector, found in ((None, "lexical"), (word_vector("tea", 8), "hybrid"), (None, "lexical")):
        assert await store.embeddings.put(1, [("r1", 1, vector)]) == 1
        assert await match(seeing, "tea") == {"r1": found}
        assert await store.embeddings.missing(1) == 0


async def test_gaps_of_the_active_generation_are_filled_in_place(
    store: Store, ada: MemorySession, seeing: MemorySession
) -> None:
    await ada.remember_many([Draft("tea"), Draft("milk")])
    await seeing.remember("rum")
    assert await match(seeing, "tea") == {"r1": "lexical", "r3": "vector"}
    assert await store.embeddings.missing(1) == 2
    assert await store.embeddings.activate(1) is False
    await fill(store, 1, 8)
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector", "r3": "vector"}
    assert await store.embeddings.activate(1) is True
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")


async def test_filling_a_gap_never_takes_the_place_of_a_newer_text(
    store: Store, ada: MemorySession, seeing: MemorySession
) -> None:
    await seeing.remember("rum")
    await ada.remember("tea", id="a")
    [(record_id, revision, text)] = await store.embeddings.pending(1, 10)
    await ada.revise("a", text="milk")
    assert await store.embeddings.put(1, [(record_id, revision, word_vector(text, 8))]) == 0
    assert await match(seeing, "tea") == {"r1": "vector"}
    assert await match(seeing, "milk") == {"a": "lexical", "r1": "vector"}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("size", [3, 5, 8, 1])
async def test_vectors_of_another_size_are_a_mismatch_and_nothing_is_stored(
    store: Store, seeing: MemorySession, number: int, size: int
) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    await store.embeddings.begin("fake-b", 4)
    if (number, size) == (1, 8):
        size = 4
    error = await refusal(store.embeddings.put(number, [("r1", 1, None), ("r2", 1, [1.0] * size)]))
    assert isinstance(error, EmbeddingMismatchError)
    assert (error.active_dims, error.dims) == ({1: 8, 2: 4}[number], size)
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector"}
    assert await store.embeddings.missing(2) == 2


WRONG: list[tuple[Any, str]] = [
    (None, "vectors"), ("ab", "vectors"), ({}, "vectors"), (5, "vectors"),
    ([5], "vectors[0]"), ([("r1", 1)], "vectors[0]"), (["abc"], "vectors[0]"), ([("r1", 1, None, 1)], "vectors[0]"),
    ([("r1", 1, None), (5, 1, None)], "vectors[1][0]"), ([("", 1, None)], "vectors[0][0]"),
    ([("r1", 0, None)], "vectors[0][1]"), ([("r1", True, None)], "vectors[0][1]"), ([("r1", "1", 0)], "vectors[0][1]"),
    ([("r1", 1, None), ("r2", 1, "abcd")], "vectors[1][2]"), ([("r1", 1, [])], "vectors[0][2]"),
    ([("r1", 1, [1.0] * 4), ("r2", 1, ["1"] * 4)], "vectors[1][2]"), ([("r1", 1, [[1.0] * 4])], "vectors[0][2]"),
    ([("r1", 1, [True] * 4)], "vectors[0][2]"), ([("r1", 1, [1j] * 4)], "vectors[0][2]"),
    ([("r1", 1, [None] * 4)], "vectors[0][2]"), ([("r1", 1, [1.0] * 4), ("r2", 1, [1.0] * 3)], "vectors"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=[str(number) for number in range(len(WRONG))])
async def test_put_refuses_what_is_no_list_of_vectors(
    store: Store, seeing: MemorySession, case: tuple[Any, str]
) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    number = (await store.embeddings.begin("fake-b", 4)).number
    error = await refusal(store.embeddings.put(number, case[0]))
    assert isinstance(error, InvalidRequestError)
    assert error.path == case[1]
    assert await store.embeddings.missing(number) == 2


async def test_vectors_that_are_put_are_the_same_as_those_that_are_written(store: Store, new_id: Ids) -> None:
    vector = [0.1, 0.7, -0.3, 2.5]
    rows = {"tea": vector, "other": [1.0, 2.0, 3.0, 4.0]}
    embedder = FakeEmbedder("fake-b", 4, vectors=rows)
    await open_memory(store, embedder=embedder).remember("tea", id="written")
    await open_memory(store).remember("tea", id="array")
    await open_memory(store).remember("tea", id="list")
    put = [("array", 1, np.array(vector, np.float64)), ("list", 1, tuple(vector))]
    assert await store.embeddings.put(1, put) == 2
    hits = await open_memory(store, embedder=embedder).recall("other")
    assert [hit.record.id for hit in hits] == ["list", "array", "written"]  # equal scores: the newest first


# ---------------------------------------------------------------------------------------------------------- activate


async def test_after_the_switch_the_new_model_finds_and_the_old_one_is_refused(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector"}
    await move(store)
    assert await store.embeddings.active() == Generation(2, "fake-b", 4, "active")
    for refused in (seeing.recall("tea"), seeing.remember("rum")):
        error = await refusal(refused)
        assert isinstance(error, EmbeddingMismatchError)
        assert (error.active_model, error.model) == ("fake-b", "fake-a")
    memory = after_switch(store)
    assert await match(memory, "tea") == {"r1": "hybrid", "r2": "vector"}
    await memory.remember("rum", id="rum")
    assert (await match(memory, "rum"))["rum"] == "hybrid"
    assert [record.text for record in (await memory.list()).records] == ["rum", "milk", "tea"]


async def test_a_model_of_the_same_size_is_another_model_and_the_index_follows(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector"}
    generation = await store.embeddings.begin("fake-b", 8)
    towards, away = [1.0] + [0.0] * 7, [0.0] * 7 + [1.0]
    await store.embeddings.put(generation.number, [("r1", 1, away), ("r2", 1, towards)])
    assert await store.embeddings.activate(generation.number) is True
    memory = open_memory(store, embedder=FakeEmbedder("fake-b", 8, vectors={"query": towards}))
    assert [(hit.record.id, hit.vector_rank) for hit in await memory.recall("query")] == [("r2", 1), ("r1", 2)]
    assert isinstance(await refusal(seeing.recall("tea")), EmbeddingMismatchError)


async def test_a_switch_moves_no_scope_revision_and_writes_no_receipt(store: Store, seeing: MemorySession) -> None:
    result = await seeing.remember("tea", operation_id="op")
    await move(store)
    assert await store.scope_revision(ADA) == 1
    assert await seeing.receipt("op") == result.receipt
    assert (await open_memory(store).history("r1"))[0] == result.records[0]


async def test_a_replaced_generation_never_returns(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    await move(store)
    assert await store.embeddings.pending(1, 10) == []
    assert await store.embeddings.put(1, [("r1", 1, [1.0] * 8)]) == 0
    assert await store.embeddings.activate(1) is False
    back = await store.embeddings.begin("fake-a", 8)
    assert back == Generation(3, "fake-a", 8, "pending")
    assert await store.embeddings.pending(3, 10) == [("r1", 1, "tea")]


async def test_activating_again_changes_nothing(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    generation = await move(store)
    assert await store.embeddings.prepared() is None
    assert await store.embeddings.activate(generation.number) is True
    assert await store.embeddings.active() == Generation(2, "fake-b", 4, "active")
    assert await match(after_switch(store), "tea") == {"r1": "hybrid"}


async def test_the_active_generation_stays_whole_beside_a_pending_one(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    await store.embeddings.begin("fake-b", 4)
    assert await store.embeddings.activate(1) is True
    assert await store.embeddings.pending(2, 10) == [("r1", 1, "tea")]


async def test_every_scope_switches_at_the_same_moment(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    await open_memory(store, BOB, embedder=FakeEmbedder()).remember("tea", id="b")
    await move(store)
    for scope, expected in ((ADA, "r1"), (BOB, "b")):
        memory = open_memory(store, scope, embedder=FakeEmbedder("fake-b", 4))
        assert await match(memory, "tea") == {expected: "hybrid"}


async def test_a_revise_after_the_switch_drops_the_vector_of_the_old_text(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft("tea"), Draft("milk")])
    await move(store)
    memory = after_switch(store)
    assert await match(memory, "tea") == {"r1": "hybrid", "r2": "vector"}
    await open_memory(store).revise("r1", text="coffee")
    assert await match(memory, "tea") == {"r2": "vector"}
    await memory.revise("r2", metadata={"kept": True})
    assert await match(memory, "tea") == {"r2": "vector"}
    assert await store.embeddings.missing(2) == 1


# ------------------------------------------------------------------------------------------------------- what was known


async def test_what_was_known_then_is_found_by_meaning_where_the_text_is_still_the_same(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember("tea", id="same")  # scope revision 1
    await seeing.remember("milk", id="changed")
    await seeing.revise("same", metadata={"n": 1})
    await seeing.revise("changed", text="rum")
    await seeing.retract("same")
    await seeing.revise("same")  # scope revision 6
    await move(store)
    memory = after_switch(store)

    async def then(revision: int) -> dict[str, str]:
        hits = await memory.recall("tea milk", at_scope_revision=revision, include_retracted=True)
        return {hit.record.id: hit.match for hit in hits}

    assert await then(1) == {"same": "hybrid"}
    assert await then(2) == {"same": "hybrid", "changed": "lexical"}
    assert await then(3) == {"same": "hybrid", "changed": "lexical"}
    assert await then(6) == {"same": "hybrid", "changed": "vector"}
    assert texts(await memory.recall("milk", at_scope_revision=2))[0] == "milk"


async def test_a_text_that_came_back_does_not_lend_its_vector_to_what_stood_between(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember("tea", id="a")
    await seeing.revise("a", text="milk")
    await seeing.revise("a", text="tea")
    await seeing.revise("a", kind="working")
    await move(store)
    memory = after_switch(store)
    found = [await memory.recall("tea", at_scope_revision=number) for number in (1, 2, 3, 4)]
    assert [[hit.match for hit in hits] for hits in found] == [["lexical"], [], ["hybrid"], ["hybrid"]]


async def test_texts_that_change_after_the_switch_keep_their_vectors_for_what_was_known(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember("tea", id="a")
    await move(store)
    memory = after_switch(store)
    await memory.revise("a", text="milk")
    assert [hit.match for hit in await memory.recall("tea", at_scope_revision=1)] == ["hybrid"]
    await memory.forget("a")
    assert await memory.recall("tea", at_scope_revision=1) == []


async def test_the_verbs_of_generations_without_await(store: Store) -> None:
    generations = store.sync.embeddings
    assert generations.active() is None
    number = generations.begin("fake-b", 4).number
    assert (generations.pending(number, 1), generations.missing(number)) == ([], 0)
    assert generations.put(number, []) == 0
    assert generations.activate(number) is True
