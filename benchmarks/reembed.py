"""A store moves to another embedding model while others use it: what they see before, during and after.

Owns a made store, two made embedding models, the processes that use the store, and the table. Four writers revise
records and a reader searches, each a process of its own, while a third kind runs the job and is killed on the way, each
time in the middle of a batch that was paid for. Then the same move with nobody else there, to see what the job adds to
the embedder's own time. Does not own the job (``vmem_core/reembed.py``).

    python benchmarks/reembed.py [--records 20000] [--writers 4] [--kills 3] [--model-ms 50] [--json]
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from vmem_core import Draft, Embeddings, MemorySession, Scope, SqliteStore

SCOPE: Final = Scope(user_id="bench")
CONCEPTS, IN_A_TEXT, IN_A_QUERY = 4_000, 6, 3
OLD, NEW = ("made-old", 64), ("made-new", 256)
QUERIES: Final = 400
SETTLE_SECONDS = 1.5  # before the job begins and after the store has switched


# --- the data: concepts have a word in texts and another one in queries, so that words alone find nothing -------------


def concepts_of(number: int) -> list[int]:
    """The concepts of a record."""
    return random.Random(number).sample(range(CONCEPTS), IN_A_TEXT)


def text_of(number: int, revised: int = 0) -> str:
    """A record's text; a revised one holds one more concept, and still answers the same query."""
    words = [f"word{concept}" for concept in concepts_of(number)]
    return " ".join([f"Note {number}:", *words, *([f"word{revised % CONCEPTS}"] if revised else [])])


def query_of(number: int) -> str:
    """What a record answers: some of its concepts in other words."""
    return " ".join(f"term{concept}" for concept in concepts_of(number)[:IN_A_QUERY])


@functools.cache
def direction(concept: int, model: str, dims: int) -> np.ndarray:
    """Where a model puts a concept."""
    seed = hashlib.sha256(f"{model} {concept}".encode()).digest()[:8]
    made: np.ndarray = np.random.default_rng(int.from_bytes(seed)).standard_normal(dims)
    return made


@dataclass
class MadeModel:
    """An embedder that takes its time, notes what it was paid for, and may die in the middle of a call.

    Args:
        model: Its id.
        dims: Its size.
        seconds: How long a call takes.
        paid: A file that gets a line a call with the number of its texts; None: none.
        dies_at: The call that ends the process by SIGKILL after it was paid for; 0: none.
    """

    model: str
    dims: int
    seconds: float = 0.0
    paid: Path | None = None
    dies_at: int = 0
    calls: int = 0
    spent: float = 0.0

    def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        """The sum of the directions of a text's concepts."""
        begin = time.perf_counter()
        self.calls += 1
        if self.paid is not None:
            with self.paid.open("a") as file:
                file.write(f"{len(texts)}\n")
        if self.calls == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        vectors = [self._vector(text) for text in texts]
        time.sleep(max(0.0, self.seconds - (time.perf_counter() - begin)))
        self.spent += time.perf_counter() - begin
        return Embeddings(np.array(vectors), self.model)

    def _vector(self, text: str) -> np.ndarray:
        found = [int(word[4:]) for word in text.split() if word[:4] in ("word", "term") and word[4:].isdigit()]
        made: np.ndarray = sum((direction(concept, self.model, self.dims) for concept in found), np.zeros(self.dims))
        return made


# --- the processes ----------------------------------------------------------------------------------------------------


def session_of(path: Path) -> tuple[SqliteStore, Any]:
    """A store and a session that knows both models, as a process that is about to be moved has them."""
    store = SqliteStore(path)
    return store, MemorySession(store, SCOPE, embedder=MadeModel(*OLD), next_embedder=MadeModel(*NEW)).sync


def write(path: Path, who: int, records: int, pause: float) -> dict[str, Any]:
    """Revise records until the file ``stop`` is there."""
    store, memory = session_of(path)
    choose, errors, count = random.Random(who), [], 0
    memory.recall(query_of(0))
    (path.parent / f"ready {who}").touch()
    while not (path.parent / "stop").exists():
        number = choose.randrange(records)
        count += 1
        try:
            memory.revise(f"r{number}", text=text_of(number, count * 4 + who + 1))
        except Exception as error:  # noqa: BLE001 - every kind is counted
            errors.append(type(error).__name__)
        time.sleep(pause)
    store.sync.close()
    return {"revised": count, "errors": errors}


def read(path: Path, records: int) -> dict[str, Any]:
    """Search until the file ``stop`` is there; of each search the generation, rank, hits, milliseconds, error."""
    store, memory = session_of(path)
    asked, seen = random.Random(0).sample(range(records), min(QUERIES, records)), []
    memory.recall(query_of(0))
    (path.parent / "ready").touch()
    while not (path.parent / "stop").exists():
        for number in asked:
            begin, error, ids = time.perf_counter(), None, []
            try:
                ids = [hit.record.id for hit in memory.recall(query_of(number), top_k=5)]
            except Exception as failure:  # noqa: BLE001 - every kind is counted
                error = type(failure).__name__
            taken = (time.perf_counter() - begin) * 1e3
            generation = store.known_generation
            row = (time.time(), generation.number if generation else 0, f"r{number}" in ids, len(ids), taken, error)
            seen.append(row)
            if (path.parent / "stop").exists():
                break
            time.sleep(0.005)
    store.sync.close()
    return {"seen": seen}


def run_job(path: Path, batch_size: int, seconds: float, dies_at: int) -> dict[str, Any]:
    """One call of ``reembed`` by a process of its own."""
    store = SqliteStore(path)
    model = MadeModel(*NEW, seconds=seconds, paid=path.parent / "paid", dies_at=dies_at)
    begin = time.perf_counter()
    result = MemorySession(store, SCOPE).sync.reembed(
        embedder=model, model_id=model.model, dims=model.dims, batch_size=batch_size
    )
    wall = time.perf_counter() - begin
    store.sync.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"result": result.to_json(), "wall": wall, "model": model.spent, "ended": time.time(), "peak_mb": peak}


ROLES: Final = {"write": write, "read": read, "job": run_job}


class Child:
    """A role in a process of its own.

    Args:
        role: Of ``ROLES``.
        path: The store's file.
        arguments: The role's others.
    """

    def __init__(self, role: str, path: Path, *arguments: Any) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--role", json.dumps([role, str(path), *arguments])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def answer(self) -> dict[str, Any] | None:
        """What it answers at its end; None if it was killed."""
        printed, _ = self.process.communicate()
        if self.process.returncode == -signal.SIGKILL:
            return None
        if self.process.returncode:
            raise RuntimeError(f"a process ended with {self.process.returncode}")
        answer: dict[str, Any] = json.loads(printed)
        return answer


# --- the experiment ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How large everything is."""

    records: int
    writers: int
    kills: int
    batch_size: int
    model_seconds: float
    pause: float


def fill(path: Path, records: int) -> None:
    """A store with vectors of the old model."""
    store = SqliteStore(path)
    memory = MemorySession(store, SCOPE, embedder=MadeModel(*OLD)).sync
    for begin in range(0, records, 5_000):
        memory.remember_many([Draft(text_of(n), f"r{n}") for n in range(begin, min(begin + 5_000, records))])
    store.sync.close()


def move_in_use(folder: Path, plan: Plan) -> dict[str, Any]:
    """The move while others write and read; killed on the way."""
    path = folder / "memory.db"
    users = [Child("write", path, who, plan.records, plan.pause) for who in range(plan.writers)]
    reader = Child("read", path, plan.records)
    while len(list(folder.glob("ready*"))) <= plan.writers:
        time.sleep(0.01)
    time.sleep(SETTLE_SECONDS)
    begun = time.time()
    dies_at = max(1, plan.records // plan.batch_size // (plan.kills + 1))
    kills, ended = 0, []
    while not ended or not ended[-1]["result"]["activated"]:
        answer = Child("job", path, plan.batch_size, plan.model_seconds, dies_at if kills < plan.kills else 0).answer()
        if answer is None:
            kills += 1
        else:
            ended.append(answer)
    time.sleep(SETTLE_SECONDS)
    (folder / "stop").touch()
    written = [answer for user in users if (answer := user.answer()) is not None]
    seen = (reader.answer() or {})["seen"]
    return {
        "kills": kills, "calls": kills + len(ended), "seconds": ended[-1]["ended"] - begun,
        "paid": sum(map(int, (folder / "paid").read_text().split())),
        "revised": sum(one["revised"] for one in written),
        "write_errors": [error for one in written for error in one["errors"]],
        "phases": phases(seen, begun), **check(path, seen),
    }  # fmt: skip


def phases(seen: Sequence[Sequence[Any]], begun: float) -> dict[str, dict[str, Any]]:
    """What the reader saw before the job began, until the switch, and after it."""
    old = min(row[1] for row in seen)
    rows = {
        "before": [row for row in seen if row[0] < begun],
        "during": [row for row in seen if row[0] >= begun and row[1] == old],
        "after": [row for row in seen if row[1] != old],
    }
    return {name: summary(found) for name, found in rows.items()}


def summary(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Searches of one phase."""
    taken = sorted(row[4] for row in rows) or [0.0]
    return {
        "searches": len(rows), "R@5": statistics.fmean(row[2] for row in rows) if rows else 0.0,
        "errors": sum(row[5] is not None for row in rows), "empty": sum(row[3] == 0 for row in rows),
        "p50_ms": taken[len(taken) // 2], "worst_ms": taken[-1],
    }  # fmt: skip


def check(path: Path, seen: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """How often the reader saw another generation than before, and what the store lacks at the end."""
    numbers = [row[1] for row in seen]
    store = SqliteStore(path)
    active = store.sync.embeddings.active()
    assert active is not None
    left = store.sync.embeddings.missing(active.number)
    store.sync.close()
    switches = sum(one != other for one, other in itertools.pairwise(numbers))
    return {"switches": switches, "model": active.model_id, "lacking": left}


def measure(plan: Plan, folder: Path) -> dict[str, Any]:
    """Everything, as plain data."""
    (alone := folder / "alone").mkdir()
    fill(folder / "memory.db", plan.records)
    shutil.copy(folder / "memory.db", alone / "memory.db")
    used = move_in_use(folder, plan)
    quiet = Child("job", alone / "memory.db", plan.batch_size, plan.model_seconds, 0).answer()
    assert quiet is not None
    adds = (quiet["wall"] - quiet["model"]) / quiet["model"]
    return {"records": plan.records, "batch_size": plan.batch_size, **used, "alone": {**quiet, "adds": adds}}


def lines(measured: dict[str, Any]) -> Iterator[str]:
    """The table."""
    columns = ("searches", "R@5", "errors", "empty", "p50_ms", "worst_ms")
    yield f"{'':<8}" + "".join(f"{name:>10}" for name in columns)
    for name, row in measured["phases"].items():
        cells = (f"{row[c]:>10.3f}" if c == "R@5" else f"{row[c]:>10.1f}" if "ms" in c else f"{row[c]:>10,}"
                 for c in columns)  # fmt: skip
        yield f"{name:<8}" + "".join(cells)
    yield ""
    killed = measured["kills"] * measured["batch_size"]
    alone = measured["alone"]
    rows = (
        ("records", f"{measured['records']:,}"),
        ("revisions meanwhile, errors", f"{measured['revised']:,}, {len(measured['write_errors'])}"),
        ("calls of reembed, of which killed", f"{measured['calls']}, {measured['kills']}"),
        ("switches that the reader saw", str(measured["switches"])),
        ("texts embedded by the job, of which killed", f"{measured['paid']:,}, {killed:,}"),
        ("records that lack a vector at the end", str(measured["lacking"])),
        ("from the first call to the switch", f"{measured['seconds']:.1f} s"),
        ("alone: embedder, in all", f"{alone['model']:.2f} s, {alone['wall']:.2f} s (adds {alone['adds']:.1%})"),
        ("alone: peak memory of the process", f"{alone['peak_mb']:.0f} MB"),
    )
    for label, value in rows:
        yield f"{label:<44}{value}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="A store moves to another model while others use it.")
    parser.add_argument("--records", type=int, default=20_000, help="in the one scope")
    parser.add_argument("--writers", type=int, default=4, help="processes that revise records")
    parser.add_argument("--kills", type=int, default=3, help="how often the job is killed on the way")
    parser.add_argument("--batch-size", type=int, default=64, help="texts a call")
    parser.add_argument("--model-ms", type=float, default=50.0, help="what a call of the new model takes")
    parser.add_argument("--pause-ms", type=float, default=200.0, help="what a writer waits between two revisions")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.role is not None:
        role, path, *others = json.loads(given.role)
        print(json.dumps(ROLES[role](Path(path), *others)))  # type: ignore[operator]
        return
    if min(given.records, given.batch_size) < 1 or min(given.writers, given.kills) < 0:
        parser.error("--records and --batch-size must be 1 or more, --writers and --kills 0 or more")
    plan = Plan(
        given.records, given.writers, given.kills, given.batch_size, given.model_ms / 1e3, given.pause_ms / 1e3
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(plan, Path(folder))
    print(json.dumps(measured) if given.json else "\n".join(lines(measured)))


if __name__ == "__main__":
    main()
