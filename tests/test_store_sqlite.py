"""The contract of a store, on the SQLite store; and that all of it survives closing and opening the file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from fakes import ADA, Clock, FakeEmbedder, everything, ids, open_memory, refusal
from store_suite import *  # noqa: F403 - its tests run here

from vmem_core import Draft, Generation, SqliteStore


@pytest.fixture
async def store(clock: Clock, tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "memory.db", clock=clock)
    yield made
    await made.close()


async def test_everything_is_the_same_after_closing_and_opening(
    store: SqliteStore, clock: Clock, tmp_path: Path, embedder: FakeEmbedder
) -> None:
    memory = open_memory(store, embedder=embedder)
    await memory.remember_many([Draft(f"tea number {n}", f"a{n}", metadata={"n": n / 3}) for n in range(30)])
    await memory.remember("coffee", id="b", ttl=timedelta(seconds=5), operation_id="op")
    await memory.revise("a1", text="tea revised")
    await memory.retract("a2")
    await memory.forget("a3", operation_id="gone")
    clock.step(seconds=5)
    seen = [f"a{n}" for n in range(5)] + ["b"]
    before = await everything(memory, *seen)
    hits = await memory.recall("tea number 7", top_k=20)
    then = await memory.recall("tea number 7", top_k=20, at_scope_revision=1)
    receipts = [await memory.receipt(name) for name in ("op", "gone")]
    page = await memory.list(limit=7)
    await store.close()

    again = SqliteStore(tmp_path / "memory.db", clock=clock)
    memory = open_memory(again, embedder=embedder)
    assert await everything(memory, *seen) == before
    assert await memory.recall("tea number 7", top_k=20) == hits
    assert await memory.recall("tea number 7", top_k=20, at_scope_revision=1) == then
    assert [await memory.receipt(name) for name in ("op", "gone")] == receipts
    assert ids((await memory.list(limit=3, cursor=page.cursor)).records) == ["a22", "a21", "a20"]
    assert await again.embeddings.active() == Generation(1, "fake-a", 8, "active")
    assert list(await again.scopes()) == [ADA]
    replay = await memory.remember("coffee", id="b", ttl=timedelta(seconds=5), operation_id="op")
    assert (replay.replayed, replay.receipt) == (True, receipts[0])
    assert (await memory.forget("a3")).already_forgotten is True
    assert (await refusal(memory.remember("x", id="a3"))).code == "record_conflict"
    await again.close()


async def test_a_clock_that_stepped_back_while_the_file_was_closed_reorders_nothing(
    store: SqliteStore, clock: Clock, tmp_path: Path
) -> None:
    first = (await open_memory(store).remember("tea", id="a")).records[0]
    await store.close()
    clock.step(days=-30)
    again = SqliteStore(tmp_path / "memory.db", clock=clock)
    revised = (await open_memory(again).revise("a", text="coffee")).records[0]
    assert (revised.recorded_at, revised.scope_revision) == (first.recorded_at, 2)
    await again.close()
