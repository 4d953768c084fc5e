"""A scope whose index does not fit into its memory is found as well as one that does."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import BOB, FakeEmbedder, open_memory

from vmem_core import Draft, SqliteStore
from vmem_core.stores import _reader


async def test_a_cache_of_any_size_gives_the_same_hits_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reader, "_BLOCK_ROWS", 64)
    stores = [SqliteStore(tmp_path / "memory.db", index_cache_bytes=size) for size in (256 * 2**20, 2_000, 0)]
    sessions = [open_memory(store, embedder=FakeEmbedder(dims=16)) for store in stores]
    words = ["tea", "coffee", "rain", "snow", "harbour", "lamp", "Ada", "Bob"]
    facts = [Draft(f"{words[n % 8]} {words[n // 8 % 8]} {n}", id=f"r{n}", metadata={"odd": n % 2}) for n in range(500)]
    queries = [("tea and rain", {}), ("Ada lamp 41", {"metadata": {"odd": 1}}), ("snow", {"include_retracted": True})]
    await sessions[0].remember_many(facts)

    async def same() -> None:
        for text, arguments in queries:
            found = [await session.recall(text, top_k=40, **arguments) for session in sessions]
            assert len(found[0]) == 40
            assert {hit.match for hit in found[0]} >= {"hybrid"}
            assert found[1] == found[0]
            assert found[2] == found[0]
        assert await sessions[2].recall(top_k=7) == await sessions[0].recall(top_k=7)

    await same()
    for n in range(0, 120, 6):
        session = sessions[n % 3]
        await session.revise(f"r{n}", text=f"snow and tea {n}")
        await session.retract(f"r{n + 1}")
        await session.forget(f"r{n + 2}")
        await open_memory(stores[1], BOB, embedder=FakeEmbedder(dims=16)).remember(f"Bob's tea {n}")
    await same()
    for store in stores:
        await store.close()
