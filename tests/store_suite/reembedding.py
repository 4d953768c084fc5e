"""Moving a store to another embedding model with ``reembed``: what is embedded, what others see, what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from fakes import ADA, BOB, FakeEmbedder, ids, open_memory, refusal, word_vector

from store_suite.embedding import match
from vmem_core import (
    Draft,
    EmbeddingMismatchError,
    Embeddings,
    Generation,
    MemorySession,
    ReembedResult,
    Store,
)

TEA, MILK, RUM = Draft("tea"), Draft("milk"), Draft("rum")


class NewEmbedder(FakeEmbedder):
    """Of the model ``fake-b`` with 4 dimensions. Raises for texts that hold ``bad``."""

    def __init__(self, **more: Any) -> None:
        super().__init__("fake-b", 4, **more)
        self.bad: set[str] = set()

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        answer = await super().embed(texts, purpose=purpose)
        if self.bad.intersection(texts):
            raise ValueError(f"cannot embed {texts!r}")
        return answer

    @property
    def documents(self) -> list[str]:
        """The texts that were embedded as documents, in order."""
        return [text for purpose, texts in self.calls for text in texts if purpose == "document"]


async def reembed(memory: MemorySession, embedder: Any, **more: Any) -> ReembedResult:
    return await memory.reembed(**{"embedder": embedder, "model_id": "fake-b", "dims": 4, **more})


async def test_a_store_is_moved_to_another_model_and_the_session_goes_with_it(
    store: Store, seeing: MemorySession, bob: MemorySession
) -> None:
    await seeing.remember_many([TEA, MILK])
    await bob.remember("rum")
    new = NewEmbedder()
    assert await reembed(seeing, new) == ReembedResult(2, 3, 0, True)
    assert await store.embeddings.active() == Generation(2, "fake-b", 4, "active")
    assert new.documents == ["tea", "milk", "rum"]
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector"}
    await seeing.remember("wine")
    assert new.calls[-1] == ("document", ("wine",))
    other = open_memory(store, BOB, embedder=new)
    assert await match(other, "rum") == {"r3": "hybrid"}


async def test_vectors_are_the_same_as_if_they_had_been_written(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea with milk", id="moved")
    new = NewEmbedder(vectors={"query": [0.3, 0.9, 0.1, 0.2]})
    await reembed(seeing, new)
    await seeing.remember("tea with milk", id="written", supersede="add")
    hits = await seeing.recall("query")
    assert ids(hits) == ["written", "moved"]  # equal to the last bit: the newest first


async def test_batches_are_as_large_as_asked_and_equal_texts_are_embedded_once(
    store: Store, ada: MemorySession
) -> None:
    await ada.remember_many([Draft(f"n{number}") for number in range(5)] + [Draft("n4")])
    new = NewEmbedder()
    result = await reembed(ada, new, batch_size=2)
    assert [texts for _, texts in new.calls] == [("n0", "n1"), ("n2", "n3"), ("n4",)]
    assert result == ReembedResult(1, 6, 0, True)


async def test_search_and_writes_go_on_meanwhile_and_what_is_written_is_embedded_too(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember_many([TEA, MILK])
    others = open_memory(store, embedder=FakeEmbedder())
    new = NewEmbedder()

    async def meanwhile() -> None:
        new.before = None
        assert await match(others, "tea") == {"r1": "hybrid", "r2": "vector"}
        await others.revise("r1", text="coffee")
        await others.remember("wine", id="w")
        await others.revise("r2", metadata={"n": 1})

    new.before = meanwhile
    result = await reembed(seeing, new)
    assert (result.activated, result.embedded, result.reasons) == (True, 3, {"revised": 2})
    assert sorted(new.documents) == ["coffee", "milk", "milk", "tea", "wine"]
    assert await match(seeing, "coffee") == {"r1": "hybrid", "r2": "vector", "w": "vector"}
    assert "r1" in await match(seeing, "wine")


async def test_after_three_passes_over_records_that_keep_changing_it_has_not_switched(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember_many([TEA, MILK])
    others = open_memory(store, embedder=FakeEmbedder())
    new, count = NewEmbedder(), 0

    async def meanwhile() -> None:
        nonlocal count
        count += 1
        await others.revise("r1", text=f"coffee {count}")

    new.before = meanwhile
    result = await reembed(seeing, new)
    assert result == ReembedResult(2, 1, 3, False, {"revised": 3})
    assert count == 3
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")
    assert await match(seeing, "milk") == {"r2": "hybrid", "r1": "vector"}
    new.before = None
    assert await reembed(seeing, new) == ReembedResult(2, 1, 0, True)


async def test_a_forget_meanwhile_leaves_nothing_to_do(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([TEA, MILK])
    new = NewEmbedder()

    async def meanwhile() -> None:
        new.before = None
        await open_memory(store).forget("r1")

    new.before = meanwhile
    result = await reembed(seeing, new)
    assert (result.activated, result.embedded, result.reasons) == (True, 1, {"revised": 1})
    assert await match(seeing, "tea") == {"r2": "vector"}


async def test_gaps_of_the_active_model_are_filled_without_a_new_generation(
    store: Store, ada: MemorySession, seeing: MemorySession, embedder: FakeEmbedder
) -> None:
    await seeing.remember("rum")
    await ada.remember_many([TEA, MILK])
    embedder.calls.clear()
    result = await ada.reembed(embedder=embedder, model_id="fake-a", dims=8)
    assert result == ReembedResult(1, 2, 0, True)
    assert embedder.calls == [("document", ("tea", "milk"))]
    assert await match(ada, "tea") == {"r2": "hybrid", "r1": "vector", "r3": "vector"}
    assert await ada.reembed(embedder=embedder, model_id="fake-a", dims=8) == ReembedResult(1, 0, 0, True)


async def test_texts_without_a_direction_are_marked_and_asked_for_once(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([TEA, MILK])
    new = NewEmbedder(vectors={"tea": [0.0] * 4})
    assert await reembed(seeing, new) == ReembedResult(2, 1, 1, True, {"not_embeddable": 1})
    assert await match(seeing, "tea") == {"r1": "lexical"}
    again = NewEmbedder()
    assert await reembed(seeing, again) == ReembedResult(2, 0, 0, True)
    assert again.calls == []


async def test_a_text_that_cannot_be_embedded_stops_nothing_but_the_switch(
    store: Store, seeing: MemorySession, caplog: pytest.LogCaptureFixture
) -> None:
    await seeing.remember_many([Draft(f"SECRET {n}", f"id{n}") for n in range(9)])
    new = NewEmbedder()
    new.bad = {"SECRET 3", "SECRET 4"}
    result = await reembed(seeing, new, batch_size=8)
    assert result == ReembedResult(2, 7, 2, False, {"failed": 2}, ("id3", "id4"))
    assert "SECRET" not in caplog.text
    assert await store.embeddings.missing(2) == 2
    assert await store.embeddings.put(2, [("id3", 1, None)]) == 1
    new.bad = set()
    assert await reembed(seeing, new) == ReembedResult(2, 1, 0, True)
    assert "id3" not in {hit.record.id for hit in await seeing.recall("SECRET", top_k=9) if hit.vector_rank}


async def test_another_model_meanwhile_takes_the_job_over(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([TEA, MILK])
    new = NewEmbedder()

    async def meanwhile() -> None:
        new.before = None
        await store.embeddings.begin("fake-c", 2)

    new.before = meanwhile
    result = await reembed(seeing, new, batch_size=1)
    assert (result.generation, result.embedded, result.activated) == (2, 0, False)
    assert await store.embeddings.active() == Generation(1, "fake-a", 8, "active")
    assert new.documents in (["tea"], ["tea", "milk"])  # the second may have been read before
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector"}


async def test_the_way_out_of_a_move_is_the_model_the_store_has(
    store: Store, seeing: MemorySession, embedder: FakeEmbedder
) -> None:
    await seeing.remember_many([TEA, MILK])
    broken = NewEmbedder()
    broken.bad = {"milk"}
    assert (await reembed(seeing, broken)).activated is False
    assert await seeing.reembed(embedder=embedder, model_id="fake-a", dims=8) == ReembedResult(1, 0, 0, True)
    assert await store.embeddings.pending(2, 10) == []
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector"}


async def test_a_cancelled_job_leaves_the_rest_to_the_next(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft(f"n{number}") for number in range(6)])
    new = NewEmbedder()
    reached = asyncio.Event()

    async def third_call() -> None:
        if len(new.calls) == 3:
            reached.set()
            await asyncio.Event().wait()

    new.before = third_call
    task = asyncio.create_task(reembed(seeing, new, batch_size=2))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await match(seeing, "n1")  # still the old model
    again = NewEmbedder()
    assert await reembed(seeing, again, batch_size=2) == ReembedResult(2, 2, 0, True)
    assert again.documents == ["n4", "n5"]


async def test_calls_run_side_by_side_and_every_record_is_embedded_once(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft(f"n{number}") for number in range(20)])
    new, running, most = NewEmbedder(), 0, 0
    together = asyncio.Event()

    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            together.set()
        await together.wait()
        running -= 1

    new.before = count
    result = await reembed(seeing, new, batch_size=2, concurrency=3)
    assert result == ReembedResult(2, 20, 0, True)
    assert most == 3
    assert sorted(new.documents) == sorted(f"n{number}" for number in range(20))


async def test_a_session_that_knows_the_next_embedder_never_meets_a_mismatch(
    store: Store, seeing: MemorySession
) -> None:
    await seeing.remember_many([TEA, MILK])
    reading = open_memory(store, embedder=FakeEmbedder(), next_embedder=NewEmbedder())
    writing = open_memory(store, embedder=FakeEmbedder(), next_embedder=NewEmbedder())
    assert await match(reading, "tea") == {"r1": "hybrid", "r2": "vector"}
    assert isinstance(await refusal(open_memory(store, embedder=NewEmbedder()).recall("tea")), EmbeddingMismatchError)
    await reembed(seeing, NewEmbedder())
    assert await match(reading, "tea") == {"r1": "hybrid", "r2": "vector"}
    await writing.remember("rum", id="rum", operation_id="op")
    assert (await writing.remember("rum", id="rum", operation_id="op")).replayed is True
    await writing.revise("r1", text="coffee")
    assert await match(reading, "rum") == {"rum": "hybrid", "r1": "vector", "r2": "vector"}
    third = open_memory(store, embedder=FakeEmbedder(), next_embedder=FakeEmbedder("fake-c", 4))
    error = await refusal(third.recall("tea"))
    assert isinstance(error, EmbeddingMismatchError)
    assert error.active_model == "fake-b"


async def test_the_session_itself_may_search_and_write_through_the_switch(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([TEA, MILK])
    done = asyncio.Event()

    async def search() -> int:
        rounds = 0
        while not done.is_set():
            assert set(await match(seeing, "tea")) >= {"r1", "r2"}
            if rounds < 20:
                await seeing.revise("r2", text=f"milk {rounds}")
            rounds += 1
            await asyncio.sleep(0)
        return rounds

    searching = asyncio.create_task(search())
    results = []
    while not any(result.activated for result in results):
        results.append(await reembed(seeing, NewEmbedder()))
        await asyncio.sleep(0)
    done.set()
    assert await searching > 0
    assert await match(seeing, "tea") == {"r1": "hybrid", "r2": "vector"}


async def test_progress_is_told_from_nothing_to_all(store: Store, seeing: MemorySession) -> None:
    await seeing.remember_many([Draft(f"n{number}") for number in range(5)])
    told: list[tuple[int, int]] = []
    await reembed(seeing, NewEmbedder(), batch_size=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 5), (2, 5), (4, 5), (5, 5)]
    await store.embeddings.begin("fake-c", 4)
    await store.embeddings.put(3, [("r1", 1, word_vector("n0", 4))])
    told.clear()

    async def later(done: int, total: int) -> None:
        told.append((done, total))

    await seeing.reembed(embedder=FakeEmbedder("fake-c", 4), model_id="fake-c", dims=4, progress=later)
    assert told == [(0, 4), (4, 4)]


async def test_reembed_writes_no_receipt_and_moves_no_revision(store: Store, seeing: MemorySession) -> None:
    await seeing.remember("tea")
    await reembed(seeing, NewEmbedder())
    assert await store.scope_revision(ADA) == 1
    assert [record.revision for record in await seeing.history("r1")] == [1]


async def test_filling_gaps_of_the_active_model_keeps_what_the_store_may_move_to(store: Store) -> None:
    now, later = FakeEmbedder(), FakeEmbedder(model="fake-b")
    memory = MemorySession(store, ADA, embedder=now, next_embedder=later)
    await memory.remember("tea")
    assert (await memory.reembed(embedder=now, model_id=now.model, dims=now.dims)).activated
    other = MemorySession(store, ADA, embedder=now)
    assert (await other.reembed(embedder=later, model_id=later.model, dims=later.dims)).activated
    assert [hit.match for hit in await memory.recall("tea")] == ["hybrid"]
