"""Several processes on one SQLite file: races, kills, and what each sees of the others."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from fakes import FakeEmbedder, open_memory, refusal
from processes import Script, run_script, start_together
from sqlite_fakes import look

from vmem_core import (
    Draft,
    EmbeddingMismatchError,
    RevisionConflictError,
    SqliteStore,
    WriteResult,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


def heard(scripts: list[Script]) -> list[Any]:
    """All that scripts say until their end, in the order of the scripts."""
    return [json.loads(line) for script in scripts for line in script.end()]


# --- races ------------------------------------------------------------------------------------------------------------

TWENTY_TASKS = """
async def main():
    async with SqliteStore(PATH) as store:
        memory = MemorySession(store, SCOPE)
        say("ready")
        wait()
        for result in await asyncio.gather(*(memory.remember("likes coffee", operation_id="k") for _ in range(20))):
            say([result.receipt.to_json(), result.replayed, [record.to_json() for record in result.records]])

asyncio.run(main())
"""


def test_twenty_tasks_in_each_of_two_processes_race_one_operation_id(path: Path) -> None:
    scripts = [Script(TWENTY_TASKS, path) for _ in range(2)]
    start_together(scripts)
    answers = heard(scripts)
    assert len(answers) == 40
    receipts, replayed, records = zip(*answers, strict=True)
    assert all(receipt == receipts[0] for receipt in receipts)
    assert all(record == records[0] for record in records)
    assert sorted(replayed) == [False] + [True] * 39
    for table in ("vmem_records", "vmem_revisions", "vmem_receipts"):
        assert look(path, f"select count(*) from {table}") == [(1,)]


ONE_ID = """
async def attempt(memory):
    try:
        return type((await memory.remember("likes coffee", id="mine")).receipt).__name__
    except RecordConflictError as error:
        return error.code

async def main():
    async with SqliteStore(PATH) as store:
        memory = MemorySession(store, SCOPE)
        say("ready")
        wait()
        for told in await asyncio.gather(*(attempt(memory) for _ in range(20))):
            say(told)

asyncio.run(main())
"""


def test_tasks_in_two_processes_race_one_record_id_and_one_of_them_gets_it(path: Path) -> None:
    code = TWENTY_TASKS.replace(
        'operation_id="k") for _ in range(20))', 'id="mine") for _ in range(20)), return_exceptions=True'
    )
    code = code.replace("say([result", "say(result.code if isinstance(result, VmemError) else [result")
    scripts = [Script(code, path) for _ in range(2)]
    start_together(scripts)
    answers = heard(scripts)
    assert sum(answer == "record_conflict" for answer in answers) == 39
    assert look(path, "select count(*) from vmem_records") == [(1,)]
    assert look(path, "select revision from vmem_scopes") == [(1,)]


ROUNDS = 100


def test_of_two_who_revise_what_they_read_one_wins_in_every_round(path: Path) -> None:
    """Two stores on one file, each with connections of its own, a thread each, and a barrier before each round."""
    stores = [SqliteStore(path) for _ in range(2)]
    open_memory(stores[0]).sync.remember("round 0", id="r1")
    barrier = Barrier(2)
    answers: dict[int, list[WriteResult | RevisionConflictError]] = {n: [] for n in range(2)}

    def revise(who: int) -> None:
        memory = open_memory(stores[who]).sync
        for n in range(1, ROUNDS + 1):
            barrier.wait()
            try:
                answers[who].append(memory.revise("r1", text=f"round {n} of {who}", expected_revision=n))
            except RevisionConflictError as error:
                answers[who].append(error)
            barrier.wait()

    threads = [Thread(target=revise, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = open_memory(stores[0]).sync.history("r1")
    for n, pair in enumerate(zip(*answers.values(), strict=True), 1):
        [won] = [answer for answer in pair if isinstance(answer, WriteResult)]
        [lost] = [answer for answer in pair if isinstance(answer, RevisionConflictError)]
        assert (lost.expected_revision, lost.actual_revision, lost.attempts) == (n, n + 1, 1)
        assert won.records[0] == history[n]
    assert [record.revision for record in history] == list(range(1, ROUNDS + 2))
    assert [record.scope_revision for record in history] == list(range(1, ROUNDS + 2))
    for store in stores:
        store.sync.close()


REVISER = """
memory = MemorySession(SqliteStore(PATH), SCOPE).sync
say("ready")
wait()
for n in range(30):
    say(memory.revise("r1", text=f"{ARGS[0]} {n}").receipt.scope_revision)
"""


def test_revisions_that_expect_nothing_all_apply_one_after_the_other(path: Path) -> None:
    store = SqliteStore(path)
    open_memory(store).sync.remember("first", id="r1")
    scripts = [Script(REVISER, path, name) for name in "abc"]
    start_together(scripts)
    assert sorted(heard(scripts)) == list(range(2, 92))
    history = open_memory(store).sync.history("r1")
    assert [record.revision for record in history] == list(range(1, 92))
    assert {record.text for record in history} == {"first"} | {f"{name} {n}" for name in "abc" for n in range(30)}
    store.sync.close()


WRITER = """
memory = MemorySession(SqliteStore(PATH), SCOPE).sync
say("ready")
wait()
for n in range(200):
    say(memory.remember(f"fact {n} of writer {ARGS[0]}").receipt.scope_revision)
"""
READER = """
memory = MemorySession(SqliteStore(PATH), SCOPE).sync
say("ready")
wait()
seen, rounds = 0, 0
while seen < 800:
    first = memory.scope_revision()
    page, count, hits = memory.list(limit=1000), memory.count(), memory.recall("fact of writer", top_k=20)
    last = memory.scope_revision()
    for found in (len(page.records), count):
        assert first <= found <= last, (first, found, last)
    assert min(first, 20) <= len(hits) <= 20
    numbers = [record.scope_revision for record in page.records]
    assert numbers == list(range(len(numbers), 0, -1)), numbers
    assert seen <= first
    seen, rounds = last, rounds + 1
say(rounds)
"""


def test_four_processes_write_two_hundred_each_while_two_read(path: Path) -> None:
    writers = [Script(WRITER, path, n) for n in range(4)]
    readers = [Script(READER, path) for _ in range(2)]
    start_together([*writers, *readers])
    assert sorted(heard(writers)) == list(range(1, 801))
    assert all(rounds >= 1 for rounds in heard(readers))
    assert look(path, "select count(*), count(distinct record_id) from vmem_records") == [(800, 800)]
    assert look(path, "pragma integrity_check") == [("ok",)]


# --- what a process sees of another -------------------------------------------------------------------------------

ONLOOKER = """
from datetime import timedelta
memory = MemorySession(SqliteStore(PATH), SCOPE).sync

def look():
    found = memory.recall("tea coffee", top_k=100)
    say([sorted(hit.record.text for hit in found), memory.count(), [r.text for r in memory.history("r1")]])

look()
while sys.stdin.readline():
    look()
"""


async def test_an_open_process_sees_at_once_what_another_writes_and_forgets(path: Path) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store)
        await memory.remember("Ada likes tea.", id="r1")
        with Script(ONLOOKER, path) as onlooker:

            def seen() -> Any:
                onlooker.tell()
                return json.loads(onlooker.hear())

            assert json.loads(onlooker.hear()) == [["Ada likes tea."], 1, ["Ada likes tea."]]
            await memory.remember("Bob likes coffee.", id="r2")
            assert seen() == [["Ada likes tea.", "Bob likes coffee."], 2, ["Ada likes tea."]]
            await memory.revise("r1", text="Ada likes coffee.")
            assert seen() == [["Ada likes coffee.", "Bob likes coffee."], 2, ["Ada likes tea.", "Ada likes coffee."]]
            await memory.retract("r2")
            assert seen()[:2] == [["Ada likes coffee."], 1]
            assert (await memory.forget("r1")).scrubbed
            assert seen() == [[], 0, []]
            await memory.remember_many([Draft(f"tea {n}") for n in range(30)])
            assert seen()[0] == sorted(f"tea {n}" for n in range(30))
            await memory.forget_scope()
            assert seen() == [[], 0, []]


FIRST_VECTOR = """
class Embedder:
    def embed(self, texts, *, purpose):
        return Embeddings([[1.0, 0.0]] * len(texts), "theirs")

MemorySession(SqliteStore(PATH), SCOPE, embedder=Embedder()).sync.remember("embedded by another process")
"""


async def test_a_generation_that_another_process_starts_counts_at_once(path: Path) -> None:
    async with SqliteStore(path) as store:
        ours = open_memory(store, embedder=FakeEmbedder(model="ours", dims=2))
        theirs = open_memory(store, embedder=FakeEmbedder(model="theirs", dims=2))
        assert await ours.recall("anything") == []
        run_script(FIRST_VECTOR, path)
        assert isinstance(await refusal(ours.remember("mine")), EmbeddingMismatchError)
        assert isinstance(await refusal(ours.recall("mine")), EmbeddingMismatchError)
        [hit] = await theirs.recall("nothing in common")
        assert (hit.match, hit.record.text) == ("vector", "embedded by another process")
