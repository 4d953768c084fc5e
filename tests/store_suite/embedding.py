"""Embedding: the first generation, mismatches, vectors bound to revisions, and what an embedder may answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import (
    ADA,
    BOB,
    FakeEmbedder,
    Ids,
    RawEmbedder,
    everything,
    ids,
    open_memory,
    refusal,
    refusals,
    texts,
    word_vector,
)

from vmem_core import (
    Draft,
    EmbeddingMismatchError,
    Embeddings,
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
    await seeing.revise("a", text="two", kind="working")
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


# ------------------------------------------------------------------------------------------ what an embedder answers


@pytest.mark.parametrize(
    "vector", [[0.0] * 3, [NAN, 1, 1], [INFINITY, 0, 0], [-INFINITY, 1, 0], [NAN] * 3], ids=range(5)
)
async def test_a_vector_without_a_direction_means_not_embedded(store: Store, new_id: Ids, vector: list[float]) -> None:
    embedder = FakeEmbedder(dims=3, vectors={"bad": vector})
    memory = open_memory(store, embedder=embedder, new_id=new_id)
    result = await memory.remember_many([Draft("bad"), Draft("tea good"), Draft("bad", "own")])
    assert result.receipt.notes == (Note("not_embedded", 2),)
    assert await memory.receipt(result.receipt.operation_id) == result.receipt
    assert await match(memory, "bad") == {"r1": "lexical", "own": "lexical"}
    assert (await match(memory, "tea"))["r2"] == "hybrid"
    revised = await memory.revise("r2", text="bad")
    assert revised.receipt.notes == (Note("not_embedded", 1),)
    assert await match(memory, "tea") == {}
    for hit in await memory.recall("bad"):
        assert hit.score > 0


async def test_a_query_without_a_direction_uses_text_alone(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    await seeing.remember_many([Draft("tea"), Draft("coffee")])
    for vector in ([0.0] * 8, [NAN] * 8, [INFINITY] + [0.0] * 7):
        embedder.vectors["tea"] = vector
        assert await match(seeing, "tea") == {"r1": "lexical"}


WRONG: list[tuple[Any, str]] = [
    ([], "wrong count"), ([[1.0, 2.0]] * 3, "wrong count"), ([[1.0, 2.0], [1.0]], "ragged"), ([[1.0], []], "ragged"),
    ([["1", "2"], ["3", "4"]], "strings"), ([[1.0, "x"], [1.0, 2.0]], "strings"), (["ab", "cd"], "strings"), (None, "nothing"),
    ([None, None], "nothing"), ([[None, 1.0], [1.0, 2.0]], "nothing"), ([1.0, 2.0], "flat"), (5, "number"), ("ab", "string"),
    ([[[1.0]], [[2.0]]], "too deep"), ([[], []], "no dimension"), ([[True, False], [False, True]], "truth values"),
    ([[1j, 2], [3, 4]], "complex"), ([[2**70, 1], [1, 2]], "beyond 64 bits"), ({0: [1.0], 1: [2.0]}, "a dict"),
    (np.zeros((2, 0)), "no dimension"), (np.array([["a"], ["b"]]), "strings"),
    ([[b"1", b"2"], [b"3", b"4"]], "bytes"), ((row for row in [[1.0], [2.0]]), "a generator"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=[f"{n} {name}" for n, (_, name) in enumerate(WRONG)])
async def test_a_wrong_answer_of_an_embedder_is_refused_with_nothing_written(
    store: Store, case: tuple[Any, str]
) -> None:
    memory = open_memory(store, embedder=RawEmbedder(case[0]))
    error = await refusal(memory.remember_many([Draft("SENTINEL one"), Draft("SENTINEL two")], operation_id="op"))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "embeddings.vectors"
    assert "SENTINEL" not in str(error)
    assert await memory.scope_revision() == 0
    assert await memory.receipt("op") is None
    assert await store.embeddings.active() is None


@pytest.mark.parametrize("answer", [[[1.0], [2.0]], [], [["a"]], [[1.0, 2.0], [1.0]], None], ids=range(5))
async def test_a_wrong_answer_for_a_query_is_refused(store: Store, seeing: MemorySession, answer: Any) -> None:
    await seeing.remember("tea")
    error = await refusal(open_memory(store, embedder=RawEmbedder(answer)).recall("tea"))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "embeddings.vectors"


@pytest.mark.parametrize(
    "answer", [[[1.0]], None, "x", ([[1.0]], "model"), {"vectors": [[1.0]], "model": "m"}], ids=range(5)
)
async def test_an_embedder_must_answer_with_embeddings(store: Store, answer: Any) -> None:
    memory = open_memory(store, embedder=lambda texts, *, purpose: answer)
    error = await refusal(memory.remember("tea"))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "embedder"
    assert await memory.scope_revision() == 0


@pytest.mark.parametrize("model", ["", " ", None, 5, "a\x00", "\ud800"], ids=range(6))
async def test_embeddings_name_their_model(store: Store, model: Any) -> None:
    memory = open_memory(store, embedder=RawEmbedder([[1.0]], model))
    error = await refusal(memory.remember("tea"))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "embeddings.model"


@pytest.mark.parametrize(
    "convert",
    [list, tuple, np.array, lambda v: np.array(v, np.float32), lambda v: np.array(v, np.float16), lambda v: np.asfortranarray(v),
     lambda v: [np.array(row) for row in v], lambda v: np.array(v, np.int64), lambda v: [tuple(map(int, row)) for row in v],
     lambda v: np.array(v, ">f8")],
    ids=range(10),
)  # fmt: skip
async def test_vectors_may_be_arrays_or_sequences_of_any_real_type(store: Store, convert: Any) -> None:
    rows = {"one": [1.0, 0.0], "two": [3.0, 4.0], "q": [4.0, 3.0]}
    memory = open_memory(store, embedder=RawEmbedder(lambda asked: convert([rows[text] for text in asked])))
    await memory.remember_many([Draft("one", "one"), Draft("two", "two")])
    hits = await memory.recall("q")
    assert [(hit.record.id, hit.vector_rank) for hit in hits] == [("two", 1), ("one", 2)]


async def test_an_embedder_may_be_an_object_or_a_callable_sync_or_async(store: Store, new_id: Ids) -> None:
    calls: list[str] = []

    def plain(texts, *, purpose):
        calls.append("plain")
        return Embeddings([[1.0, 2.0] for _ in texts], "m")

    async def coroutine(texts, *, purpose):
        return plain(texts, purpose=purpose)

    class Object:
        def __call__(self, texts, *, purpose):
            return coroutine(texts, purpose=purpose)

        async def embed(self, texts, *, purpose):
            return plain(texts, purpose=purpose)

    class AsyncCallable:
        async def __call__(self, texts, *, purpose):
            return plain(texts, purpose=purpose)

    for embedder in (plain, coroutine, Object(), AsyncCallable(), lambda t, *, purpose: coroutine(t, purpose=purpose)):
        calls.clear()
        memory = open_memory(store, embedder=embedder, new_id=new_id)
        await memory.remember("tea")
        assert len(await memory.recall("query", top_k=100)) == new_id.made
        assert calls == ["plain", "plain"]


async def test_an_embedders_own_error_reaches_the_caller(store: Store, seeing: MemorySession) -> None:
    memory = open_memory(store, embedder=RawEmbedder(ConnectionError("the model is away")))
    with pytest.raises(ConnectionError, match="the model is away"):
        await memory.remember("tea", operation_id="op")
    assert await memory.scope_revision() == 0
    await seeing.remember("tea", operation_id="op")
    with pytest.raises(ConnectionError):
        await memory.recall("tea")
    assert (await memory.remember("tea", operation_id="op")).replayed is True


async def test_a_model_id_and_size_of_any_kind_are_kept(store: Store) -> None:
    name = 'm\u00f6del "x"; --\U0001f600'
    memory = open_memory(store, embedder=RawEmbedder([[1.0] * 3072], name))
    await memory.remember("tea")
    assert await store.embeddings.active() == Generation(1, name, 3072, "active")
    assert ids(await memory.recall("other")) == ids((await memory.list()).records)
