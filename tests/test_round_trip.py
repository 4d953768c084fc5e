"""From one kind of store to another and back: the same bytes, the same answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes import ADA, BOB, Clock, everything, open_memory
from postgres_server import fresh_schema, server_uri
from sqlite_fakes import look
from store_suite.exporting import OPERATIONS, SEEN, lines, live

from vmem_core import Draft, PostgresStore, SqliteStore, import_jsonl
from vmem_core.stores import _dump


@pytest.fixture
async def postgres(clock: Clock) -> AsyncIterator[PostgresStore]:
    uri = server_uri()
    with fresh_schema() as schema:
        made = PostgresStore(uri, schema=schema, clock=clock)
        yield made
        await made.close()


@pytest.mark.parametrize("page", [1, 3, 1_000])
async def test_from_sqlite_to_postgres_and_back_the_files_are_equal_byte_for_byte(
    tmp_path: Path, postgres: PostgresStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(_dump, "_PAGE", page)
    async with (
        SqliteStore(tmp_path / "a.db", clock=clock) as first,
        SqliteStore(tmp_path / "b.db", clock=clock) as last,
    ):
        ada, bob = open_memory(first), open_memory(first, BOB)
        await bob.remember_many([Draft(f"Bob's {n}", f"b{n}") for n in range(5)])
        await live(ada, clock)
        await bob.revise("b1", text="changed")
        there = {}
        for scope in (ADA, BOB):
            there[scope] = await lines(first, scope)
            await import_jsonl(postgres, there[scope])
            assert await lines(postgres, scope) == there[scope]
            await import_jsonl(last, await lines(postgres, scope))
            assert await lines(last, scope) == there[scope]
        again = open_memory(last)
        assert await everything(again, *SEEN) == await everything(ada, *SEEN)
        assert [await again.receipt(name) for name in OPERATIONS] == [await ada.receipt(name) for name in OPERATIONS]
        assert (await again.remember("anything", operation_id="many")).replayed
    assert look(tmp_path / "b.db", "pragma integrity_check") == [("ok",)]


async def test_a_scope_after_scrub_and_pruned_receipts_is_exported_all_the_same(path: Path, clock: Clock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await live(open_memory(store), clock)
        before = await lines(store)
        await store.scrub()
        assert await lines(store) == before
        await store.prune_operations(clock.now)
        after = await lines(store)
        assert len(after) < len(before)
        async with SqliteStore(path.with_name("copy.db"), clock=clock) as copy:
            await import_jsonl(copy, after)
            assert await lines(copy) == after
            assert await everything(open_memory(copy), *SEEN) == await everything(open_memory(store), *SEEN)
