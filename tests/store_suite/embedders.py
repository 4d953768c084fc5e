"""Embedders: what they may answer, what is refused, what means "not embedded", and in which forms they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import (
    FakeEmbedder,
    Ids,
    RawEmbedder,
    ids,
    open_memory,
    refusal,
)

from store_suite.embedding import match
from vmem_core import (
    Draft,
    Embeddings,
    Generation,
    InvalidRequestError,
    MemorySession,
    Note,
    Store,
)

NAN, INFINITY = float("nan"), float("inf")


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
    ([["1", "2"], ["3", "4"]], "strings"), ([[1.0, "x"], [1.0, 2.0]], "strings"), (["ab", "cd"], "strings"),
    (None, "nothing"),
    ([None, None], "nothing"), ([[None, 1.0], [1.0, 2.0]], "nothing"), ([1.0, 2.0], "flat"), (5, "number"),
    ("ab", "string"),
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
    [list, tuple, np.array, lambda v: np.array(v, np.float32), lambda v: np.array(v, np.float16),
     lambda v: np.asfortranarray(v),
     lambda v: [np.array(row) for row in v], lambda v: np.array(v, np.int64),
     lambda v: [tuple(map(int, row)) for row in v],
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
