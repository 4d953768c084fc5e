"""One large scope beside the floor, what its index takes in memory, and small scopes of a large store.

Owns the sizes and the table. The systems and their turns are those of ``speed.py``. What vectors take is told by two
processes that make their first recall, one in a store with vectors and one in a store of the same texts without. Does
not own speed at everyday sizes (``speed.py``) or what a thousand scopes cost on disk (``scaling.py``).

    python benchmarks/large_scope.py [--records 100000] [--scopes 1000] [--queries 100] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from speed import DIMS, MOST_DRAFTS, SCOPE, TOP_K, Floor, Library, Workload, in_turns, spread, timed

from vmem_core import Draft, MemorySession, Scope, SqliteStore

SMALL: Final = 100  # records in each of many scopes
OPENINGS: Final = 5  # processes that each make a first recall
FIRST: Final = """
import asyncio, sys, time
import numpy as np
from vmem_core import Embeddings, MemorySession, Scope, SqliteStore

path, user, dims, cache = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Fixed:
    async def embed(self, texts, *, purpose):
        return Embeddings(np.eye(len(texts), dims, dtype=np.float32), "made-384")

def memory(name):
    if not sys.platform.startswith("linux"):
        return float("nan")
    with open("/proc/self/status") as lines:  # not ru_maxrss: a child begins with its parent's
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

async def main():
    store = SqliteStore(path, index_cache_bytes=cache)
    embedder = Fixed() if dims else None
    other = MemorySession(store, Scope(user_id="nobody"), embedder=embedder)
    await other.recall("w1 w2 w3")
    before = memory("VmRSS")
    session = MemorySession(store, Scope(user_id=user), embedder=embedder)
    begin = time.perf_counter()
    found = await session.recall("w1 w20 w300", top_k=5)
    first = time.perf_counter() - begin
    taken = []
    for n in range(5):
        begin = time.perf_counter()
        await session.recall(f"w{n:x} w2{n:x} w30{n:x}", top_k=5)
        taken.append(time.perf_counter() - begin)
    if len(found) != 5:
        raise SystemExit("a recall found too few records")
    print(first * 1e3, sorted(taken)[2] * 1e3, memory("VmRSS") - before, memory("VmHWM") - before)

asyncio.run(main())
"""


def first_recall(path: Path, user: str, dims: int, cache: int) -> dict[str, float]:
    """A new process: its first recall in a scope, later ones (ms), and the memory they took (bytes).

    The store is open already: what is timed is the scope's index, not Python's imports.
    """
    command = [sys.executable, "-c", FIRST, str(path), user, str(dims), str(cache)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(("first_ms", "later_ms", "held_bytes", "peak_bytes"), map(float, printed), strict=True))


def median_of(path: Path, user: str, dims: int, cache: int) -> dict[str, float]:
    """The median of each figure over new processes."""
    made = [first_recall(path, user, dims, cache) for _ in range(OPENINGS)]
    return {name: statistics.median(one[name] for one in made) for name in made[0]}


async def _large(folder: Path, work: Workload, records: int) -> dict[str, Any]:
    systems = {"vmem": Library(folder / "vmem.db", work), "floor": Floor(folder / "floor.db", work)}
    for system in systems.values():
        await system.fill(work.texts[:records])
        if await system.recall(work.queries[0]) != min(TOP_K, records):  # makes the index and the matrix
            raise RuntimeError("a recall found too few records: what is timed here is not a recall")
    calls = {name: system.recall for name, system in systems.items()}
    row = await in_turns(calls, work.queries)
    for system in systems.values():
        await system.close()
    async with SqliteStore(folder / "words.db") as store:
        words = MemorySession(store, SCOPE)
        for start in range(0, records, MOST_DRAFTS):
            await words.remember_many([Draft(text) for text in work.texts[start : min(records, start + MOST_DRAFTS)]])
    return row


async def _scopes(folder: Path, work: Workload, scopes: int) -> dict[str, float]:
    """Recalls in one of many small scopes that was read before."""
    store = SqliteStore(folder / "scopes.db")
    async with store:
        for number in range(scopes):
            begin = number * SMALL % max(1, len(work.texts) - SMALL)
            session = MemorySession(store, Scope(user_id=f"user-{number}"), embedder=work)
            await session.remember_many([Draft(text) for text in work.texts[begin : begin + SMALL]])
        middle = MemorySession(store, Scope(user_id=f"user-{scopes // 2}"), embedder=work)
        await middle.recall(work.queries[0], top_k=TOP_K)
        return spread(await timed(lambda query: middle.recall(query, top_k=TOP_K), work.queries))


def measure(records: int, scopes: int, queries: int, folder: Path) -> dict[str, Any]:
    """Everything, as plain data.

    Args:
        records: In the one large scope, 5 or more.
        scopes: Of 100 records, in a file of their own.
        queries: Recalls of each system.
        folder: An empty folder.
    """
    work = Workload(records, queries)
    beside = asyncio.run(_large(folder, work, records))
    path, user = folder / "vmem.db", SCOPE.user_id or ""
    vectors, whole = records * DIMS * 4, 2**40
    small = asyncio.run(_scopes(folder, work, scopes))
    return {
        "records": records,
        "scopes": scopes,
        "recall": beside,
        "vector_bytes": vectors,
        "with_vectors": median_of(path, user, DIMS, whole),
        "words_alone": median_of(folder / "words.db", user, 0, whole),
        "beyond_the_limit": median_of(path, user, DIMS, vectors // 2),
        "small_scope": small,
        "small_scope_first": median_of(folder / "scopes.db", f"user-{scopes // 2}", DIMS, whole),
    }


def lines(measured: dict[str, Any]) -> Iterator[str]:
    """The table."""
    recall, records = measured["recall"], f"{measured['records']:,} records"
    ours, floor = recall["vmem"], recall["floor"]
    yield f"recall, {records}: {ours['p50']:.1f} ms, p95 {ours['p95']:.1f}"
    yield f"  floor: {floor['p50']:.1f} ms, p95 {floor['p95']:.1f}; p50 by p50 {recall['ratio']:.3f}"
    whole, bare, beyond = (measured[name] for name in ("with_vectors", "words_alone", "beyond_the_limit"))
    yield f"  first of a process: {whole['first_ms']:,.0f} ms; by words alone {bare['first_ms']:,.0f}"
    yield f"  index_cache_bytes half of the vectors: first {beyond['first_ms']:,.0f} ms, then {beyond['later_ms']:,.0f}"
    own = measured["vector_bytes"] / 1e6
    yield f"memory of the vectors, {own:,.0f} MB as float32: " + ", ".join(
        f"{label} {(whole[name] - bare[name]) / 1e6:,.0f} MB"
        for label, name in (("held", "held_bytes"), ("at most", "peak_bytes"))
    )
    yield f"  all of the index: held {whole['held_bytes'] / 1e6:,.0f} MB, at most {whole['peak_bytes'] / 1e6:,.0f} MB"
    yield f"  beyond the limit: held {beyond['held_bytes'] / 1e6:,.0f} MB, at most {beyond['peak_bytes'] / 1e6:,.0f} MB"
    small, first = measured["small_scope"], measured["small_scope_first"]
    yield f"recall, one of {measured['scopes']:,} scopes of {SMALL}: {small['p50']:.2f} ms, p95 {small['p95']:.2f}"
    yield f"  first of a process: {first['first_ms']:.1f} ms"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="One large scope beside the least that SQLite can do, and many small.")
    parser.add_argument("--records", type=int, default=100_000, help="in the one scope")
    parser.add_argument("--scopes", type=int, default=1_000, help=f"of {SMALL} records, in another file")
    parser.add_argument("--queries", type=int, default=100, help="recalls of each system")
    parser.add_argument("--folder", help="where the files are made, and deleted; default: the system's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if given.records < TOP_K or min(given.scopes, given.queries) < 1:
        parser.error(f"--records must be {TOP_K} or more, --scopes and --queries 1 or more")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measured = measure(given.records, given.scopes, given.queries, Path(folder))
    print(json.dumps(measured) if given.json else "\n".join(lines(measured)))


if __name__ == "__main__":
    main()
