"""How fast records come in, many at a time, and how much memory a large import takes.

Owns the made records, the floor they are compared with, and the table: what ``import_legacy`` and ``remember_many`` do
beside a plain ``executemany`` of rows of the same size. No vectors. Does not own how fast single writes are
(``speed.py``).

    python benchmarks/imports.py [--records 20000] [--batch 500] [--rounds 3] [--memory] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vmem_core import Draft, LegacyRecord, MemorySession, Scope, SqliteStore, export_jsonl, import_jsonl, import_legacy

SCOPE: Final = Scope(user_id="ada")
VOCABULARY: Final = 20_000
WORDS: Final = 14
MOST_DRAFTS: Final = 10_000
FLOOR: Final = "executemany, plain rows"
Seconds = tuple[float, float]  # by the clock, of the processor


def texts(count: int) -> Iterator[str]:
    """Made texts of about 80 characters, the same for everyone: some words are in most of them, most are rare."""
    words = random.Random(7)
    for number in range(count):
        phrase = " ".join(f"w{int(VOCABULARY ** words.random()) - 1:x}" for _ in range(WORDS))
        yield f"Note {number}: {phrase}"


def legacy(count: int) -> Iterator[LegacyRecord]:
    """The same texts as records of another system, with their times there."""
    for number, text in enumerate(texts(count)):
        yield LegacyRecord(f"m-{number}", text, SCOPE, created_at=1_750_000_000_000 + number)


class Stopwatch:
    """Seconds since it was made: by the clock, and of the processor in all threads of this process."""

    def __init__(self) -> None:
        self._begin, self._busy = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        """Both."""
        return time.perf_counter() - self._begin, time.process_time() - self._busy


async def floor(path: Path, count: int, batch: int) -> Seconds:
    """Rows of the same size by plain ``executemany``: record, revision and receipt, a durable commit a batch."""
    made = list(enumerate(texts(count)))
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "pragma journal_mode = wal",
        "pragma synchronous = full",
        "create table records(number integer primary key, id text unique, tokens blob, state integer)",
        "create table revisions(entry integer primary key, number integer, body text)",
        "create table receipts(number integer primary key, id text unique, request blob, body text)",
    ):
        connection.execute(statement)
    tokens, request, rest, watch = bytes(8 * WORDS), bytes(48), "x" * 320, Stopwatch()
    for start in range(0, count, batch):
        part = made[start : start + batch]
        connection.execute("begin immediate")
        connection.executemany("insert into records values(?, ?, ?, 1)", [(n, f"m-{n}", tokens) for n, _ in part])
        bodies = [(n, text + rest) for n, text in part]
        connection.executemany("insert into revisions(number, body) values(?, ?)", bodies)
        receipts = [(n, f"import:m-{n}", request, f'["import",[["m-{n}",1,"create"]],[]]') for n, _ in part]
        connection.executemany("insert into receipts values(?, ?, ?, ?)", receipts)
        connection.execute("commit")
    took = watch.read()
    connection.close()
    return took


async def take_over(path: Path, records: Any, batch: int) -> Seconds:
    """An import, of records that were made before unless an iterator makes them."""
    async with SqliteStore(path) as store:
        watch = Stopwatch()
        await import_legacy(records, store, batch_size=batch)
        return watch.read()


async def move(path: Path, target: Path) -> Seconds:
    """An export into another file, read and written at once."""
    async with SqliteStore(path) as store, SqliteStore(target) as other:
        watch = Stopwatch()
        await import_jsonl(other, export_jsonl(store, SCOPE))
        return watch.read()


async def remember_many(path: Path, count: int) -> Seconds:
    """``remember_many``, 10,000 drafts a call; the drafts are made before."""
    drafts = [Draft(text) for text in texts(count)]
    async with SqliteStore(path) as store:
        memory, watch = MemorySession(store, SCOPE), Stopwatch()
        for start in range(0, count, MOST_DRAFTS):
            await memory.remember_many(drafts[start : start + MOST_DRAFTS])
        return watch.read()


async def count_of(path: Path) -> int:
    """How many records a file holds."""
    async with SqliteStore(path) as store:
        return await MemorySession(store, SCOPE).count()


def measure(folder: Path, records: int, batch: int, rounds: int) -> dict[str, Any]:
    """The median seconds of each way in, turn by turn, by the clock and of the processor."""
    found: dict[str, list[Seconds]] = {}
    for number in range(rounds):
        files = {name: folder / f"{name} {number}.db" for name in ("floor", "import", "moved", "many")}
        made = list(legacy(records))
        for name, way in (
            (FLOOR, floor(files["floor"], records, batch)),
            ("import_legacy", take_over(files["import"], made, batch)),
            ("import_legacy, again", take_over(files["import"], made, batch)),
            ("export, import_jsonl", move(files["import"], files["moved"])),
            ("remember_many", remember_many(files["many"], records)),
        ):
            found.setdefault(name, []).append(asyncio.run(way))
        for name in ("import", "moved", "many"):
            if asyncio.run(count_of(files[name])) != records:
                raise SystemExit(f"{name}: not all records are there")
    return {
        "records": records,
        "batch": batch,
        "seconds": {name: statistics.median(one for one, _ in taken) for name, taken in found.items()},
        "processor_seconds": {name: statistics.median(one for _, one in taken) for name, taken in found.items()},
    }


def peak_mb() -> float:
    """The most memory that this process has had in use, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)


def memory(folder: Path, records: int, batch: int) -> dict[str, Any]:
    """The most memory of a large import that reads as it goes, then of an export of it into another file, in MB."""
    peaks = {"begin": peak_mb()}
    asyncio.run(take_over(folder / "large.db", legacy(records), batch))
    peaks["import_legacy"] = peak_mb()
    asyncio.run(move(folder / "large.db", folder / "moved.db"))
    peaks["export, import_jsonl"] = peak_mb()
    return {"records": records, "batch": batch, "peak_mb": peaks}


def show(measured: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{measured['records']} records, {measured['batch']} a transaction, one durable SQLite file")
    if "peak_mb" in measured:
        for name, peak in measured["peak_mb"].items():
            print(f"{name:<26}{peak:>8.0f} MB at most so far")
        return
    base = measured["processor_seconds"][FLOOR]
    print(f"{'way in':<26}{'records/s':>11}{'µs':>8}{'µs of processor':>17}{'by the floor':>14}")
    for name, seconds in measured["seconds"].items():
        busy = measured["processor_seconds"][name]
        each, work = (one / measured["records"] * 1e6 for one in (seconds, busy))
        print(f"{name:<26}{1e6 / each:>11,.0f}{each:>8.1f}{work:>17.1f}{busy / base:>14.1f}")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast records come in, many at a time.")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=500, help="records a transaction")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is timed")
    parser.add_argument("--memory", action="store_true", help="measure the use of memory instead")
    parser.add_argument("--folder", type=Path, help="where the files are made; default: a temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if min(options.records, options.batch, options.rounds) < 1:
        parser.error("--records, --batch and --rounds must be 1 or more")
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        if options.memory:
            measured = memory(Path(made), options.records, options.batch)
        else:
            measured = measure(Path(made), options.records, options.batch, options.rounds)
    if options.json:
        print(json.dumps(measured))
    else:
        show(measured)


if __name__ == "__main__":
    main()
