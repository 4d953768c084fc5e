"""Embedding: the first generation, mismatches, and vectors bound to revisions."""

from __future__ import annotations

import pytest
from fakes import (
    ADA,
    BOB,
    FakeEmbedder,
    everything,
    open_memory,
    refusal,
    refusals,
    texts,
    word_vector,
)

from vmem_core import (
    Draft,
    EmbeddingMismatchError,
    Generation,
    InvalidRequestError,
    MemorySession,
    Note,
    Store,
)

NAN, INFINITY = float("nan"), float("inf")


async def match(memory: MemorySession, text: str) -> dict[str, str]:
    """By which list each record is found."""
    return {hit.record.id: hit.match for hit in await memory.recall(text, top_k=100)}


# ---------------------------------------------------------------------------------------------------- generations


async def test_the_first_stored_vector_starts_generation_one(store: Store, seeing: MemorySession) -> None:
    assert await store.embeddings.active() is None
    await seeing.remember("tea")
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")
    await seeing.remember("coffee")
    await seeing.forget_scope()
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")


async def test_without_a_stored_vector_there_is_no_generation(
    store: Store, ada: MemorySession, seeing: MemorySession
) -> None:
    await ada.remember("tea")
    await ada.revise("r1", text="coffee")
    await seeing.recall("tea")
    await seeing.retract("r1")
    await seeing.revise("r1")
    await seeing.remember_many([])
    assert await store.embeddings.active() is None


async def test_vectors_that_cannot_be_used_start_no_generation(
    store: Store, seeing: MemorySession, embedder: FakeEmbedder
) -> None:
    embedder.vectors["nothing"] = [0.0] * 8
    result = await seeing.remember("nothing")
    assert result.receipt.notes == (Note("not_embedded", 1),)
    assert await store.embeddings.active() is None
    other = open_memory(store, embedder=FakeEmbedder("fake-b", 4))
    await other.remember("tea")
    assert await store.embeddings.active() == Generation(1, "fake-b", 4, "active")


async def test_one_generation_serves_every_scope(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    for scope in (ADA, BOB):
        error = await refusal(open_memory(store, scope, embedder=FakeEmbedder("fake-b")).remember("tea"))
        assert isinstance(error, EmbeddingMismatchError)


async def test_a_query_is_embedded_only_once_the_store_has_a_generation(
    seeing: MemorySession, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    await ada.remember("tea")
    assert await match(seeing, "tea") == {"r1": "lexical"}
    assert embedder.calls == []
    await seeing.remember("tea again")
    embedder.calls.clear()
    assert await match(seeing, "tea") == {"r1": "lexical", "r2": "hybrid"}
    assert embedder.calls == [("query", ("tea",))]


async def test_only_texts_are_embedded(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    await seeing.remember("tea")
    embedder.calls.clear()
    await seeing.recall()
    await seeing.revise("r1", kind="working", importance=0.1, metadata={"a": 1}, ttl=None, links=(), sources=())
    await seeing.retract("r1")
    await seeing.revise("r1")
    await seeing.remember_many([])
    await seeing.list()
    await seeing.get("r1")
    await seeing.history("r1")
    await seeing.forget("r1")
    await seeing.forget_scope()
    assert embedder.calls == []


async def test_each_text_of_an_operation_is_embedded_once(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    await seeing.remember_many([Draft("a"), Draft("b"), Draft("a")])
    assert embedder.calls == [("document", ("a", "b"))]
    assert await match(seeing, "a") == {"r1": "hybrid", "r3": "hybrid", "r2": "vector"}


# ------------------------------------------------------------------------------------------------------- mismatch


@pytest.mark.parametrize(
    ("model", "dims"), [("fake-b", 8), ("fake-a", 4), ("fake-a", 16), ("fake-b", 4), ("Fake-a", 8)]
)
async def test_another_model_or_size_is_a_mismatch_on_recall_and_on_write(
    store: Store, seeing: MemorySession, model: str, dims: int
) -> None:
    record = (await seeing.remember("tea")).records[0]
    before = await everything(seeing, record.id)
    other = open_memory(store, embedder=FakeEmbedder(model, dims))
    for error in await refusals(
        other.recall("tea"),
        other.recall("tea", at_scope_revision=1),
        other.remember("coffee", operation_id="op"),
        other.remember_many([Draft("a"), Draft("b")], operation_id="op"),
        other.revise(record.id, text="coffee", operation_id="op"),
        open_memory(store, BOB, embedder=FakeEmbedder(model, dims)).recall("tea"),
    ):
        assert isinstance(error, EmbeddingMismatchError)
        assert (error.active_model, error.active_dims, error.model, error.dims) == ("fake-a", 8, model, dims)
        assert error.code == "embedding_mismatch"
        assert "fake-a" in str(error)
        assert model in str(error)
    assert await everything(seeing, record.id) == before
    assert await seeing.receipt("op") is None


async def test_a_mismatch_is_told_even_for_a_zero_vector(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    other = open_memory(store, embedder=FakeEmbedder("fake-b", vectors={"zero": [0.0] * 8}))
    for error in await refusals(other.recall("zero"), other.remember("zero")):
        assert isinstance(error, EmbeddingMismatchError)


async def test_writes_without_a_text_work_with_another_model(store: Store, seeing: MemorySession) -> None:
    record = (await seeing.remember("tea")).records[0]
    other = open_memory(store, embedder=FakeEmbedder("fake-b"))
    await other.revise(record.id, kind="working")
    await other.retract(record.id)
    await other.revise(record.id)
    assert texts(await other.recall()) == ["tea"]
    assert await match(seeing, "tea") == {record.id: "hybrid"}


# ---------------------------------------------------------------------------------------- vectors follow revisions


async def test_a_changed_text_never_keeps_the_old_vector(
    seeing: MemorySession, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    embedder.vectors |= {
        "one": [1, 0, 0, 0, 0, 0, 0, 0],
        "two": [0, 1, 0, 0, 0, 0, 0, 0],
        "query": [1, 1, 0, 0, 0, 0, 0, 0],
    }
    await seeing.remember("one", id="a")
    await ada.revise("a", text="two")
    assert await match(seeing, "query") == {}
    await seeing.revise("a", text="one")
    assert await match(seeing, "query") == {"a": "vector"}
    assert await match(seeing, "one") == {"a": "hybrid"}
    await seeing.revise("a", text="two")
    assert await match(seeing, "query") == {"a": "vector"}
    await ada.revise("a", text="one")
    assert await match(seeing, "query") == {}


async def test_an_unchanged_text_keeps_its_vector(
    seeing: MemorySession, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    embedder.vectors["query"] = word_vector("tea", 8)
    await seeing.remember("tea", id="a")
    for change in (
        lambda: ada.revise("a", kind="working"),
        lambda: ada.revise("a", text="tea"),
        lambda: ada.revise("a", metadata={"a": 1}),
        lambda: ada.retract("a"),
        lambda: ada.revise("a"),
        lambda: ada.retract("a"),
        lambda: ada.revise("a", importance=0.5, sources=None, origin="inferred"),
    ):
        await change()
        hits = await seeing.recall("query", include_retracted=True)
        assert [(hit.record.id, hit.match) for hit in hits] == [("a", "vector")]
    assert len(await seeing.history("a")) == 8


async def test_a_text_that_only_looks_the_same_is_a_changed_one(
    seeing: MemorySession, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    embedder.vectors["query"] = word_vector("tea", 8)
    await seeing.remember("tea", id="a")
    await ada.revise("a", text="Tea")
    assert await match(seeing, "query") == {}


async def test_a_forgotten_records_vector_is_gone(
    seeing: MemorySession, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    embedder.vectors["query"] = word_vector("tea", 8)
    await seeing.remember_many([Draft("tea", "a"), Draft("tea", "b")])
    await seeing.forget("a")
    assert await match(seeing, "query") == {"b": "vector"}
    await seeing.forget_scope()
    assert await match(seeing, "query") == {}


async def test_a_vector_for_an_old_text_is_not_applied_to_a_newer_revision(
    store: Store, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    await ada.remember("tea", id="a")

    async def another_writer() -> None:
        embedder.before = None
        await ada.revise("a", text="coffee")

    embedder.before = another_writer
    embedder.vectors["query"] = word_vector("milk", 8)
    seeing = open_memory(store, embedder=embedder)
    error = await refusal(seeing.revise("a", text="milk", expected_revision=1))
    assert error.code == "revision_conflict"
    assert await match(seeing, "query") == {}
    embedder.before = lambda: _forget(ada, embedder)
    error = await refusal(seeing.revise("a", text="milk"))
    assert error.code == "record_conflict"
    assert await ada.history("a") == []


async def _forget(memory: MemorySession, embedder: FakeEmbedder) -> None:
    embedder.before = None
    await memory.forget("a")


async def test_a_generation_that_starts_while_a_text_is_embedded_is_checked(
    store: Store, embedder: FakeEmbedder
) -> None:
    late = FakeEmbedder("fake-late")

    async def another_writer() -> None:
        await open_memory(store, embedder=embedder).remember("first")

    late.before = another_writer
    error = await refusal(open_memory(store, embedder=late).remember("second"))
    assert isinstance(error, EmbeddingMismatchError)
    assert texts(await open_memory(store).recall()) == ["first"]


async def test_nothing_is_held_while_an_embedder_works(
    store: Store, ada: MemorySession, embedder: FakeEmbedder
) -> None:
    seen: list[list[str]] = []

    async def use_the_store() -> None:
        embedder.before = None
        await ada.remember("written meanwhile")
        seen.append(texts(await ada.recall("written")))

    embedder.before = use_the_store
    result = await open_memory(store, embedder=embedder).remember("tea")
    assert seen == [["written meanwhile"]]
    assert result.records[0].scope_revision == 2


async def test_both_ways_to_fuse_find_the_same_records_each_in_its_order(store: Store) -> None:
    memory = MemorySession(store, ADA, embedder=FakeEmbedder())
    for text in ("tea with milk", "coffee with milk", "rain on the roof", "tea"):
        await memory.remember(text)
    by_ranks = await memory.recall("tea with milk", top_k=10)
    by_scores = await memory.recall("tea with milk", top_k=10, fusion="scores")
    assert {hit.record.id for hit in by_ranks} == {hit.record.id for hit in by_scores}
    assert by_scores[0].record.text == "tea with milk"
    assert by_scores[0].score == pytest.approx(1.0)  # the best by both
    assert [hit.score for hit in by_scores] == sorted((hit.score for hit in by_scores), reverse=True)


async def test_a_session_fuses_as_it_was_told_unless_a_recall_says_otherwise(store: Store) -> None:
    memory = MemorySession(store, ADA, embedder=FakeEmbedder(), fusion="scores")
    await memory.remember("tea with milk")
    assert (await memory.recall("tea"))[0].score == pytest.approx(1.0)
    assert (await memory.recall("tea", fusion="rrf"))[0].score == pytest.approx(2 / 61)


async def test_an_embedder_can_ask_for_its_fusion_and_the_session_has_the_last_word(store: Store) -> None:
    embedder = FakeEmbedder()
    embedder.fusion = "scores"  # type: ignore[attr-defined]
    memory = MemorySession(store, ADA, embedder=embedder)
    await memory.remember("tea with milk")
    assert (await memory.recall("tea"))[0].score == pytest.approx(1.0)
    by_ranks = MemorySession(store, ADA, embedder=embedder, fusion="rrf")
    assert (await by_ranks.recall("tea"))[0].score == pytest.approx(2 / 61)


@pytest.mark.parametrize("fusion", ["max", "", 1])
async def test_an_unknown_fusion_is_refused(store: Store, fusion: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await MemorySession(store, ADA).recall("tea", fusion=fusion)  # type: ignore[arg-type]
    assert caught.value.path == "fusion"
    with pytest.raises(InvalidRequestError):
        MemorySession(store, ADA, fusion=fusion)  # type: ignore[arg-type]
