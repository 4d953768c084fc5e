"""Pruning, where stores differ: pages, files, and what a trace tells of it."""

# ruff: noqa: F811 - a fixture is asked for by its name
from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from fakes import START, Clock, FakeEmbedder, open_memory, texts
from processes import Script
from sqlite_fakes import SEARCHER, Disk, look, needle
from test_tracing import of, provider, spans, told  # noqa: F401 - fixtures

from vmem_core import ImportResult, InMemoryStore, LegacyRecord, Scope, SqliteStore, import_legacy
from vmem_core.stores import _pruning

FAR = START + timedelta(days=365)


@pytest.mark.parametrize("page", [1, 2, 3, 100])
async def test_every_page_of_past_revisions_is_pruned(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(_pruning, "_PAGE", page)
    async with SqliteStore(tmp_path / "memory.db", clock=clock) as store:
        memory = open_memory(store)
        for name in "abcd":
            await memory.remember(f"{name} one", id=name)
            await memory.revise(name, text=f"{name} two")
        for name in "acd":
            await memory.retract(name)
        clock.step(hours=1)
        assert await store.prune_history(FAR, dry_run=True) == 6
        assert await store.prune_history(FAR) == 6
        assert texts(await memory.history("b")) == ["b one", "b two"]
        assert texts(await memory.history("d")) == ["d two"]


async def test_no_byte_of_a_pruned_text_is_left_in_any_file(path: Path, clock: Clock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        memory = open_memory(store, embedder=FakeEmbedder())
        for n in range(60):
            await memory.remember(f"fact {n} {'padding ' * n} {needle(n)}", id=f"r{n}")
            await memory.revise(f"r{n}", text=f"fact {n}, said in other words")
            await memory.retract(f"r{n}")
        clock.step(hours=1)
        with Script(SEARCHER, path, library=False) as searcher:
            disk = Disk(searcher)
            assert disk.needles() == set(range(60))
            assert await store.prune_history(FAR) == 120
            assert disk.needles() == set()
    assert look(path, "select count(*) from vmem_past_vectors_1") == [(0,)]
    assert look(path, "pragma integrity_check") == [("ok",)]


async def test_a_prune_and_an_import_are_spans_with_counts(
    clock: Clock,
    spans,
) -> None:
    store = InMemoryStore(clock=clock)
    source = [LegacyRecord("a", "secret", Scope(user_id="ada")), LegacyRecord(None, "secret")]
    assert await import_legacy(source, store) == ImportResult(2, 1, 1, {"no_id": 1})
    assert told(spans) == of("import", 1)
    await open_memory(store).retract("a")
    told(spans)
    clock.step(hours=1)
    assert await store.prune_history(FAR) == 1
    assert told(spans) == of("prune_history", 1)
    assert await store.prune_operations(FAR) == 2
    assert told(spans) == of("prune_operations", 2)


async def test_a_prune_on_a_file_is_one_span_too(tmp_path: Path, spans) -> None:
    async with SqliteStore(tmp_path / "memory.db") as store:
        assert await store.prune_history(START) == 0
        assert await store.prune_operations(START) == 0
    assert told(spans) == of("prune_history", 0) + of("prune_operations", 0)
