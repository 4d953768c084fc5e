"""How fast single durable writes and recalls are, beside the least that SQLite can do for the same rows.

Owns the made workload, the floor it is compared with, and the table. One run times both systems, turn by turn in short
blocks, so that a busy machine is busy for both; read the ratio, not the milliseconds. Vectors are looked up, never
computed: what is timed is the memory alone. Does not own how well recall finds things (``locomo.py``).

    python benchmarks/speed.py [--records 2000 10000] [--queries 300] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from vmem_core import Draft, Embeddings, MemorySession, Scope, SqliteStore
from vmem_core.ids import new_id, new_salt

DIMS: Final = 384
TOP_K: Final = 5
LIST_DEPTH: Final = 50  # how many the floor takes from each of its two lists
RRF_K: Final = 60
BLOCK: Final = 50  # calls of one system before the other's turn
TASKS: Final = 8
ROUNDS: Final = 5
MOST_DRAFTS: Final = 10_000
VOCABULARY: Final = 20_000
SCOPE: Final = Scope(user_id="ada")
MODULES: Final = (
    "aiosqlite", "bm25s", "langchain_core", "langgraph", "llama_index", "numpy", "opentelemetry", "psycopg", "pydantic",
    "sqlite3", "Stemmer", "tenacity", "wordllama",
)  # fmt: skip
WRITER: Final = """
import asyncio, itertools, sys, time
from vmem_core import MemorySession, Scope, SqliteStore

async def write():
    memory = MemorySession(SqliteStore(sys.argv[1]), Scope(user_id="ada"))
    begin = time.perf_counter()
    for number in itertools.count():
        await memory.remember(f"written meanwhile {number}")
        await asyncio.sleep(max(0.0, begin + number / 500 - time.perf_counter()))

asyncio.run(write())
"""
IMPORT: Final = f"""
import sys, time
begin = time.perf_counter()
import vmem_core
took = time.perf_counter() - begin
print(took * 1e3, *[name for name in {MODULES!r} if name in sys.modules])
"""


class Workload:
    """Made texts, queries and their vectors: the same for everyone, from one seed.

    Words are drawn log-uniformly from 20,000, so that some are in most texts and most are rare, as in prose.

    Args:
        records: How many texts.
        queries: How many queries.
    """

    def __init__(self, records: int, queries: int) -> None:
        words, numbers = random.Random(7), np.random.default_rng(7)
        self.texts = [f"Note {n}: {_phrase(words, 14)}" for n in range(records)]
        self.queries = [_phrase(words, 6) for _ in range(queries)]
        rows = numbers.standard_normal((records + queries, DIMS)).astype(np.float32)
        self._rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self._place = {text: place for place, text in enumerate(self.texts + self.queries)}

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

    async def fill(self, texts: Sequence[str]) -> None:
        """Write many records, untimed."""

    async def close(self) -> None:
        """Let go of the file."""


class Library:
    """This library, as a host calls it."""

    async def fill(self, texts: Sequence[str]) -> None:
        """Write many records, untimed."""
        for start in range(0, len(texts), MOST_DRAFTS):
            await self.session.remember_many([Draft(text) for text in texts[start : start + MOST_DRAFTS]])

    async def close(self) -> None:
        """Close the file."""
        await self.store.close()

    def __init__(self, path: Path, work: Workload) -> None:
        self.store = SqliteStore(path)
        self.session = MemorySession(self.store, SCOPE, embedder=work)

    async def remember(self, text: str) -> None:
        """Write one record."""
        await self.session.remember(text)

    async def recall(self, query: str) -> int:
        """Find the best 5."""
        return len(await self.session.recall(query, top_k=TOP_K))


class Floor:
    """The least a durable hybrid memory can do in SQLite: one plain connection, no thread, no checks, no layers.

    A write is one transaction of the same rows (record, revision, scope, receipt, vector, and a row of FTS5). A recall
    fuses FTS5 with a matrix that is kept in memory.
    """

    TABLES: Final = """
        create table scopes(scope integer primary key, revision integer not null);
        create table records(number integer primary key, id text not null unique, scope integer, revision integer);
        create table revisions(number integer, revision integer, body text, primary key(number, revision))
          without rowid;
        create table receipts(scope integer, operation text, digest blob, body text, primary key(scope, operation))
          without rowid;
        create table vectors(number integer primary key, revision integer, vector blob);
        create virtual table words using fts5(body);
        insert into scopes values(1, 0);
    """

    def __init__(self, path: Path, work: Workload) -> None:
        self._work, self._count = work, 0
        self._matrix = np.zeros((0, DIMS), np.float32)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.executescript(self.TABLES)

    async def remember(self, text: str) -> None:
        """Write one record."""
        run, number, record, operation = self._connection.execute, self._count + 1, new_id(), new_id()
        vector = self._work.vectors([text]).tobytes()
        run("begin immediate")
        self._insert(number, record, operation, text, vector)
        run("commit")
        self._count = number

    async def fill(self, texts: Sequence[str]) -> None:
        """Write many records in one transaction, untimed."""
        self._connection.execute("begin immediate")
        for number, text in enumerate(texts, self._count + 1):
            self._insert(number, new_id(), new_id(), text, self._work.vectors([text]).tobytes())
        self._connection.execute("commit")
        self._count += len(texts)

    def _insert(self, number: int, record: str, operation: str, text: str, vector: bytes) -> None:
        run = self._connection.execute
        (revision,) = run("select revision from scopes where scope = 1").fetchone()
        run("select body from receipts where scope = 1 and operation = ?", (operation,)).fetchone()
        run("insert into records values(?, ?, 1, 1)", (number, record))
        run("insert into revisions values(?, 1, ?)", (number, text))
        run("insert into vectors values(?, 1, ?)", (number, vector))
        run("insert into words(rowid, body) values(?, ?)", (number, text))
        run("insert into receipts values(1, ?, ?, ?)", (operation, new_salt() * 2, f'["{record}",1]'))
        run("update scopes set revision = ? where scope = 1", (revision + 1,))

    async def recall(self, query: str) -> int:
        """Find the best 5."""
        if len(self._matrix) != self._count:
            blobs = self._connection.execute("select vector from vectors order by number").fetchall()
            self._matrix = np.frombuffer(b"".join(blob for (blob,) in blobs), np.float32).reshape(-1, DIMS)
        fused: dict[int, float] = {}
        for ranked in (self._by_vector(query), self._by_words(query)):
            for rank, number in enumerate(ranked, 1):
                fused[number] = fused.get(number, 0.0) + 1 / (RRF_K + rank)
        best = sorted(fused, key=lambda number: fused[number], reverse=True)[:TOP_K]
        statement = "select body from revisions where number = ? and revision = 1"
        return len([self._connection.execute(statement, (number,)).fetchone() for number in best])

    def _by_vector(self, query: str) -> list[int]:
        scores = self._matrix @ self._work.vectors([query])[0]
        depth = min(LIST_DEPTH, len(scores))
        best = np.argpartition(-scores, depth - 1)[:depth]
        return [int(row) + 1 for row in best[np.argsort(-scores[best])]]

    def _by_words(self, query: str) -> list[int]:
        words = " OR ".join(query.split())
        statement = "select rowid from words where words match ? order by rank limit ?"
        return [number for (number,) in self._connection.execute(statement, (words, LIST_DEPTH))]

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


class LangGraph:
    """LangGraph's ``AsyncSqliteStore`` with sqlite-vec, on a Python whose ``sqlite3`` may load extensions."""

    def __init__(self, path: Path, work: Workload) -> None:
        async def embed(texts: Sequence[str]) -> list[list[float]]:
            # It embeds the whole value as JSON, whatever fields are named.
            plain = [json.loads(text)["text"] if text.startswith("{") else text for text in texts]
            return work.vectors(plain).tolist()  # type: ignore[no-any-return]

        self._path, self._index = str(path), {"dims": DIMS, "embed": embed, "fields": ["text"]}
        self._opening: Any = None
        self._store: Any = None
        self._count = 0

    async def fill(self, texts: Sequence[str]) -> None:
        """Write many records, untimed."""
        from langgraph.store.base import PutOp

        if self._store is None:
            from langgraph.store.sqlite.aio import AsyncSqliteStore

            self._opening = AsyncSqliteStore.from_conn_string(self._path, index=self._index)
            self._store = await self._opening.__aenter__()
            await self._store.setup()
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

    async def close(self) -> None:
        """Close the file."""
        await self._opening.__aexit__(None, None, None)


# --- timing -----------------------------------------------------------------------------------------------------------


async def timed(call: Callable[[str], Awaitable[object]], texts: Sequence[str]) -> list[float]:
    """Milliseconds of each call, one after the other."""
    taken = []
    for text in texts:
        begin = time.perf_counter()
        await call(text)
        taken.append((time.perf_counter() - begin) * 1e3)
    return taken


async def in_turns(calls: dict[str, Callable[[str], Awaitable[object]]], texts: Sequence[str]) -> dict[str, Any]:
    """Every system does every text, in blocks by turns: p50 and p95 in ms, and the first system's p50 by the last's."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for start in range(0, len(texts), BLOCK):
        for name, call in calls.items():
            taken[name] += await timed(call, texts[start : start + BLOCK])
    row: dict[str, Any] = {name: spread(times) for name, times in taken.items()}
    first, *_, last = (row[name]["p50"] for name in calls)
    return {**row, "ratio": first / last}


def spread(times: Sequence[float]) -> dict[str, float]:
    """The median and the 95th percentile."""
    ordered = sorted(times)
    return {"p50": statistics.median(ordered), "p95": ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]}


async def beside_floor(
    folder: Path, work: Workload, sizes: Sequence[int], calls: int, *, peer: bool = False
) -> list[dict[str, Any]]:
    """Single writes up to each size, the last ``calls`` of them timed, and recalls there, of every system."""
    systems: dict[str, System] = {"vmem": Library(folder / "vmem.db", work), "floor": Floor(folder / "floor.db", work)}
    if peer:
        systems = {"vmem": systems["vmem"], "langgraph": LangGraph(folder / "peer.db", work), "floor": systems["floor"]}
    rows, written = [], 0
    for size in sizes:
        begin = max(written, size - calls)
        for system in systems.values():
            await system.fill(work.texts[written:begin])
        writes = await in_turns({n: s.remember for n, s in systems.items()}, work.texts[begin:size])
        for system in systems.values():
            if await system.recall(work.queries[0]) != min(TOP_K, size):  # makes the index and the matrix
                raise RuntimeError("a recall found too few records: what is timed here is not a recall")
        reads = await in_turns({n: s.recall for n, s in systems.items()}, work.queries)
        rows += [{"records": size, "call": "remember", **writes}, {"records": size, "call": "recall", **reads}]
        written = size
    for system in systems.values():
        await system.close()
    return rows


# --- this library alone -----------------------------------------------------------------------------------------------


def alone(folder: Path, work: Workload, records: int, calls: int) -> dict[str, Any]:
    """Other ways to call this library, on the file that ``beside_floor`` left; ``calls`` of each."""
    texts = iter(work.texts[records:])
    first, refresh = asyncio.run(_first_and_refresh(folder, work, take(texts, calls)))
    return {
        "file_bytes_a_record": {name: size_of(folder / f"{name}.db") / records for name in ("vmem", "floor")},
        "first_recall_ms": first,
        "recall_after_a_write_ms": refresh,
        "remember_async_ms": asyncio.run(_async_writes(folder, work, take(texts, calls))),
        "remember_sync_ms": _sync_writes(folder, work, take(texts, calls)),
        "recall_while_written_ms": asyncio.run(_while_written(folder, work)),
        "tasks": TASKS,
        "writes_a_second_by_tasks": asyncio.run(_tasks(folder, work, take(texts, calls), records)),
        "many": _many(folder, work, work.texts[: min(records, MOST_DRAFTS)]),
    }


def take(texts: Iterator[str], count: int) -> list[str]:
    """The next texts."""
    return list(islice(texts, count))


def size_of(path: Path) -> int:
    """Bytes of a database with its log."""
    return sum(one.stat().st_size for one in path.parent.glob(f"{path.name}*"))


async def _first_and_refresh(folder: Path, work: Workload, texts: list[str]) -> tuple[float, dict[str, float]]:
    """The first recall of a process, after the file is opened; and recalls that each follow a write."""
    library = Library(folder / "vmem.db", work)
    async with library.store:
        (first,) = await timed(library.recall, work.queries[:1])
        after = []
        for text, query in zip(texts, work.queries, strict=False):
            await library.remember(text)
            after += await timed(library.recall, [query])
    return first, spread(after)


async def _while_written(folder: Path, work: Workload) -> dict[str, Any]:
    """Recalls while another process commits 500 times a second, and before that."""
    library = Library(folder / "vmem.db", work)
    async with library.store:
        await timed(library.recall, work.queries[:5])
        quiet = spread(await timed(library.recall, work.queries))
        before = await library.session.scope_revision()
        writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(folder / "vmem.db"))
        while await library.session.scope_revision() == before:  # noqa: ASYNC110 - another process does not tell
            await asyncio.sleep(0.01)
        begin, before = time.perf_counter(), await library.session.scope_revision()
        busy = spread(await timed(library.recall, work.queries))
        rate = (await library.session.scope_revision() - before) / (time.perf_counter() - begin)
        writer.kill()
        await writer.wait()
    return {"quiet": quiet, "busy": busy, "commits_a_second": rate}


async def _async_writes(folder: Path, work: Workload, texts: list[str]) -> dict[str, float]:
    library = Library(folder / "vmem.db", work)
    async with library.store:
        return spread(await timed(library.remember, texts))


def _sync_writes(folder: Path, work: Workload, texts: list[str]) -> dict[str, float]:
    library, taken = Library(folder / "vmem.db", work), []
    library.store.sync.scope_revision(SCOPE)  # opens the file
    remember = library.session.sync.remember
    for text in texts:
        begin = time.perf_counter()
        remember(text)
        taken.append((time.perf_counter() - begin) * 1e3)
    library.store.sync.close()
    return spread(taken)


async def _tasks(folder: Path, work: Workload, texts: list[str], records: int) -> dict[str, float]:
    """Writes a second of tasks that write at once, and of the floor, which takes turns with them.

    Those that wait together share a commit. The floor's writes come one after the other: it has no other way.
    """
    library, floor = Library(folder / "vmem.db", work), Floor(folder / "tasks.db", work)
    await floor.fill(work.texts[:records])
    rates: dict[str, list[float]] = {"vmem": [], "floor": []}
    async with library.store:
        for part in (texts[n::ROUNDS] for n in range(min(ROUNDS, len(texts)))):
            begin = time.perf_counter()
            await asyncio.gather(*(timed(library.remember, part[n::TASKS]) for n in range(TASKS)))
            rates["vmem"].append(len(part) / (time.perf_counter() - begin))
            rates["floor"].append(len(part) / sum(await timed(floor.remember, part)) * 1e3)
    await floor.close()
    return {name: statistics.median(found) for name, found in rates.items()}


def _many(folder: Path, work: Workload, texts: list[str]) -> dict[str, float]:
    """One ``remember_many`` into a new file."""
    library = Library(folder / "many.db", work)
    library.store.sync.scope_revision(SCOPE)
    drafts = [Draft(text) for text in texts]
    begin = time.perf_counter()
    library.session.sync.remember_many(drafts)
    seconds = time.perf_counter() - begin
    library.store.sync.close()
    return {"records": len(drafts), "records_a_second": len(drafts) / seconds}


def imports(runs: int) -> dict[str, Any]:
    """``import vmem_core`` in new processes: the median in ms, and which heavy modules it loads."""
    command = [sys.executable, "-c", IMPORT]
    printed = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(runs)]
    return {"import_ms": statistics.median(float(ms) for ms, *_ in printed), "loaded": printed[-1][1:]}


# --- the table --------------------------------------------------------------------------------------------------------


def measure(sizes: Sequence[int], queries: int, folder: Path, *, peer: bool = False) -> dict[str, Any]:
    """Everything, as plain data.

    Args:
        sizes: Records in the one scope at which to measure, ascending.
        queries: Recalls at each size, and calls of each other kind.
        folder: An empty folder; its disk is what durable writes wait for.
        peer: Whether LangGraph's store is timed too.
    """
    work = Workload(sizes[-1] + 4 * queries, queries)
    beside = asyncio.run(beside_floor(folder, work, sizes, max(queries, 1_000), peer=peer))
    return {"beside_floor": beside, **alone(folder, work, sizes[-1], queries), **imports(runs=min(7, queries))}


def lines(measured: dict[str, Any]) -> Iterator[str]:
    """The table."""
    yield f"{'records':>8}  {'ms':<9}{'vmem p50':>10}{'p95':>8}{'floor p50':>12}{'p95':>8}{'p50 : p50':>12}"
    for row in measured["beside_floor"]:
        figures = (row["vmem"]["p50"], row["vmem"]["p95"], row["floor"]["p50"], row["floor"]["p95"])
        ours, tail, floor, floor_tail = (f"{figure:.2f}" for figure in figures)
        label = f"{row['records']:>8,}  {row['call']:<9}"
        yield f"{label}{ours:>10}{tail:>8}{floor:>12}{floor_tail:>8}{row['ratio']:>12.2f}"
    if "langgraph" in measured["beside_floor"][0]:
        yield ""
        yield f"{'records':>8}  {'ms':<9}{'LangGraph p50':>15}{'p95':>8}{'by vmem':>12}"
        for row in measured["beside_floor"]:
            peer, times = row["langgraph"], row["langgraph"]["p50"] / row["vmem"]["p50"]
            yield f"{row['records']:>8,}  {row['call']:<9}{peer['p50']:>15.2f}{peer['p95']:>8.2f}{times:>12.1f}"
    yield ""
    for label, value in _alone_rows(measured):
        yield f"{label:<44}{value}"


def _alone_rows(measured: dict[str, Any]) -> Iterator[tuple[str, str]]:
    def p50_p95(name: str) -> str:
        return f"{measured[name]['p50']:.2f} ms, p95 {measured[name]['p95']:.2f}"

    many, size = measured["many"], measured["file_bytes_a_record"]
    yield "import vmem_core, in a new process", f"{measured['import_ms']:.0f} ms"
    yield "  heavy modules it loads", ", ".join(measured["loaded"]) or "none"
    yield "remember, async", p50_p95("remember_async_ms")
    yield "remember, .sync", p50_p95("remember_sync_ms")
    by_tasks = measured["writes_a_second_by_tasks"]
    yield f"remember, {measured['tasks']} tasks at once", f"{by_tasks['vmem']:,.0f} a second"
    yield "  by the floor's", f"{by_tasks['vmem'] / by_tasks['floor']:.2f}"
    yield f"remember_many of {many['records']:,}", f"{many['records_a_second']:,.0f} records a second"
    yield "first recall of a process", f"{measured['first_recall_ms']:.0f} ms"
    writing = measured["recall_while_written_ms"]
    label = f"recall, {writing['commits_a_second']:.0f} commits/s by another process"
    told = f"{writing['busy']['p50']:.2f} ms, p95 {writing['busy']['p95']:.2f}"
    yield label, f"{told} (quiet {writing['quiet']['p50']:.2f}, {writing['quiet']['p95']:.2f})"
    yield "recall that follows a write", p50_p95("recall_after_a_write_ms")
    yield "file, bytes a record", f"{size['vmem']:,.0f} (floor {size['floor']:,.0f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="This library beside the least that SQLite can do.")
    parser.add_argument("--records", type=int, nargs="+", default=[2_000, 10_000], help="sizes of the scope")
    parser.add_argument("--queries", type=int, default=300, help="recalls at each size")
    parser.add_argument("--folder", help="where the files are made, and deleted; default: the system's")
    parser.add_argument("--peer", action="store_true", help="LangGraph's AsyncSqliteStore too (needs sqlite-vec)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if min(*given.records, given.queries) < 1:
        parser.error("--records and --queries must be 1 or more")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measured = measure(sorted(set(given.records)), given.queries, Path(folder), peer=given.peer)
    print(json.dumps(measured) if given.json else "\n".join(lines(measured)))


if __name__ == "__main__":
    main()
