"""pgvector: the same hits with it and without it, whatever it was told to do and wherever it lies."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import psycopg
import pytest
from fakes import ADA, BOB
from postgres_server import fresh_database, fresh_schema, server_uri

from vmem_core import Draft, Embeddings, Hit, InMemoryStore, MemorySession, PostgresStore, UnsupportedError
from vmem_core.stores import _postgres_database, _postgres_vectors

MODES = ("off", "auto", "require")
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"fusion": "scores"},
    {"kind": "episodic", "metadata": {"place": "here"}},
    {"include_retracted": True},
)


class Directions:
    """Embeds a text as the direction that its last word names: equal words, equal vectors."""

    def __init__(self, dims: int = 24) -> None:
        self.dims = dims

    def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        seeds = [int.from_bytes(text.split()[-1].encode()[:8], "big") for text in texts]
        return Embeddings([np.random.default_rng(seed).standard_normal(self.dims) for seed in seeds], "directions")


@pytest.fixture
def schema() -> Iterator[str]:
    with fresh_schema() as name:
        yield name


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limit and offset of every question that pgvector was asked."""
    found: list[tuple[int, int]] = []
    pages = _postgres_vectors.pages

    def told(depth: int) -> Iterator[tuple[int, int]]:
        for page in pages(depth):
            found.append(page)
            yield page

    monkeypatch.setattr(_postgres_database.pgvector, "pages", told)
    return found


@asynccontextmanager
async def opened(schema: str, pgvector: str = "auto", *, uri: str = "", cache: int = 0) -> AsyncIterator[PostgresStore]:
    """A store whose index holds no vectors, unless it is given bytes for them."""
    store = PostgresStore(uri or server_uri(), schema=schema, pgvector=pgvector, index_cache_bytes=cache)
    yield store
    await store.close()


def session(store: InMemoryStore | PostgresStore, dims: int = 24) -> MemorySession:
    return MemorySession(store, ADA, embedder=Directions(dims))


def shown(hits: Sequence[Hit]) -> list[tuple[str, float, str, int | None, int | None]]:
    return [(hit.record.id, hit.score, hit.match, hit.vector_rank, hit.lexical_rank) for hit in hits]


def drafts(seed: int, count: int) -> list[Draft]:
    draw = random.Random(seed)
    return [
        Draft(
            f"note {draw.randrange(40)} on x{draw.randrange(count // 2)}",
            id=f"r{number}",
            kind=draw.choice(("semantic", "episodic")),
            metadata={"place": draw.choice(("here", "there"))},
        )
        for number in range(count)
    ]


async def fill(memory: MemorySession) -> None:
    await memory.remember_many(drafts(1, 700))
    for number in range(0, 700, 9):
        await memory.retract(f"r{number}")
    await memory.revise("r1", text="note 3 on x5")
    await memory.forget("r2")


async def test_hits_are_the_same_off_auto_required_and_in_memory(schema: str, asked: list[tuple[int, int]]) -> None:
    reference = session(InMemoryStore())
    await fill(reference)
    async with opened(schema) as first:
        await fill(session(first))
    for mode in MODES:
        asked.clear()
        async with opened(schema, mode) as store:
            memory = session(store)
            for number in range(12):
                for filters in FILTERS:
                    query = f"note on x{number}"
                    hits = await memory.recall(query, top_k=6, **filters)
                    assert shown(hits) == shown(await reference.recall(query, top_k=6, **filters)), (mode, filters)
                    assert hits[0].vector_rank is not None or hits[1].vector_rank is not None
        assert bool(asked) == (mode != "off")


async def test_a_scope_within_the_limit_is_ranked_here(schema: str, asked: list[tuple[int, int]]) -> None:
    async with opened(schema, cache=2**20) as store:
        memory = session(store)
        await memory.remember("tea for x1")
        assert shown(await memory.recall("for x1"))[0][2] == "hybrid"
    assert not asked


async def test_filters_that_hide_the_nearest_are_asked_past(schema: str, asked: list[tuple[int, int]]) -> None:
    reference = session(InMemoryStore())
    near = [Draft(f"n{number} x7", id=f"n{number}") for number in range(600)]
    far = [Draft(f"f{number} y{number}", id=f"f{number}", kind="episodic") for number in range(30)]
    async with opened(schema) as store:
        for memory in (reference, session(store)):
            await memory.remember_many(near + far)
        hits = await session(store).recall("x7", kind="episodic", top_k=5)
        assert len(hits) == 5
        assert shown(hits) == shown(await reference.recall("x7", kind="episodic", top_k=5))
    assert len(asked) == 2  # the first 256 are all hidden


async def test_the_newest_of_many_equal_vectors_come_first(schema: str) -> None:
    async with opened(schema) as store:
        memory = session(store)
        await memory.remember_many([Draft(f"{number:03} x7", id=f"r{number}") for number in range(600)])
        hits = await memory.recall("zzz x7", top_k=3)
        assert [hit.record.id for hit in hits if hit.match == "hybrid"] == [hit.record.id for hit in hits]
        ranks = sorted(hit.vector_rank or 0 for hit in hits)
        reference = session(InMemoryStore())
        await reference.remember_many([Draft(f"{number:03} x7", id=f"r{number}") for number in range(600)])
        assert shown(hits) == shown(await reference.recall("zzz x7", top_k=3))
        assert ranks[0] >= 1


async def test_what_was_known_then_is_found_by_its_old_vector(schema: str) -> None:
    async with opened(schema) as store:
        memory = session(store)
        record = (await memory.remember("tea x1")).records[0]
        await memory.revise(record.id, text="rain x2")
        (hit,) = await memory.recall("q x1", at_scope_revision=1)
        assert (hit.record.text, hit.match) == ("tea x1", "hybrid")
        assert [hit.record.text for hit in await memory.recall("q x2")] == ["rain x2"]


async def test_stored_vectors_are_the_very_bits_that_were_given(schema: str) -> None:
    async with opened(schema) as store:
        await session(store).remember("tea x1")
        with psycopg.connect(server_uri()) as connection:
            (text,) = connection.execute(f'select vector::text from "{schema}".vmem_vectors_1').fetchone() or ("",)  # type: ignore[arg-type]
    given = np.asarray(Directions().embed(["x1"], purpose="document").vectors, np.float64)[0]
    unit = (given / np.linalg.norm(given)).astype(np.float32)
    assert np.abs(np.array(text.strip("[]").split(","), np.float32) - unit).max() < 1e-6


async def test_a_database_without_pgvector_is_refused_only_if_it_is_required(schema: str) -> None:
    with fresh_database() as uri:
        async with opened(schema, "require", uri=uri) as store:
            with pytest.raises(UnsupportedError, match="create extension vector"):
                await session(store).count()
        reference = session(InMemoryStore())
        await fill(reference)
        for mode in ("auto", "off"):
            async with opened(f"{schema} {mode}", mode, uri=uri) as store:
                await fill(session(store))
                assert shown(await session(store).recall("on x3")) == shown(await reference.recall("on x3"))


async def test_pgvector_that_comes_later_changes_nothing_of_what_is_stored(schema: str) -> None:
    with fresh_database() as uri:
        async with opened(schema, uri=uri) as store:
            await fill(session(store))
            before = shown(await session(store).recall("on x3"))
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute("create extension vector")
        async with opened(schema, "require", uri=uri) as store:
            assert shown(await session(store).recall("on x3")) == before
            await session(store).remember("new x3")
            assert len(await session(store).recall("new x3")) == 5


async def test_pgvector_may_lie_in_a_schema_that_is_on_nobodys_path(schema: str, asked: list[tuple[int, int]]) -> None:
    with fresh_database() as uri:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute('create schema "Ext %s"')
            connection.execute('create extension vector schema "Ext %s"')
        async with opened(schema, "require", uri=uri) as store:
            await fill(session(store))
            assert len(await session(store).recall("on x3")) == 5
    assert asked


async def test_vectors_too_long_for_pgvector_are_stored_as_bytes(schema: str) -> None:
    async with opened(schema, "require") as store:
        memory = session(store, dims=16_001)
        await memory.remember("tea x1")
        assert [hit.match for hit in await memory.recall("q x1")] == ["hybrid"]


async def test_another_scope_is_never_among_the_nearest(schema: str) -> None:
    async with opened(schema) as store:
        await MemorySession(store, BOB, embedder=Directions()).remember("secret x1")
        await session(store).remember("tea y2")
        assert [hit.record.text for hit in await session(store).recall("q x1")] == ["tea y2"]
