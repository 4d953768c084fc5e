"""What the page on scaling promises of PostgreSQL: the partitions that it prints carry a store."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from fakes import ADA, BOB, Clock, FakeEmbedder, open_memory, texts
from postgres_server import server_uri
from store_suite.diagnosing import live

from vmem_core import PostgresStore

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scaling.md"
(BLOCK,) = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def schema() -> object:
    """The page's schema, dropped at the end."""
    yield "memory"
    with psycopg.connect(server_uri(), autocommit=True) as connection:
        connection.execute("drop schema if exists memory cascade")


async def test_a_store_lives_in_partitions_by_scope(schema: str, clock: Clock) -> None:
    store = PostgresStore(server_uri(), schema=schema, clock=clock)
    await store.scope_revision(ADA)  # makes the tables
    with psycopg.connect(server_uri(), autocommit=True) as connection:
        connection.execute(BLOCK.replace("100001", "2"))  # type: ignore[arg-type]
    await live(store, clock, steps=40)
    for scope in (ADA, BOB):
        await open_memory(store, scope, embedder=FakeEmbedder()).remember(f"tea of {scope.user_id}", id=scope.user_id)
    assert "tea of bob" in texts(await open_memory(store, BOB).recall("bob tea"))
    assert (await open_memory(store).forget("ada")).revisions == (1,)
    await store.scrub()
    assert await store.diagnose() == []
    with psycopg.connect(server_uri()) as connection:
        for table in ("vmem_revisions", "vmem_receipts"):
            for half in ("low", "high"):
                found = connection.execute(f"select count(*) from memory.{table}_{half}").fetchone()  # type: ignore[arg-type]
                assert found is not None
                assert found[0] > 0
    await store.close()
