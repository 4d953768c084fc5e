"""Writes that wait together, are cancelled, or lose their answer."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import BOB, FakeEmbedder, open_memory, texts
from sqlite_fakes import Gate, look, queued

from vmem_core import (
    AssertedRecordError,
    Draft,
    MemorySession,
    OperationConflictError,
    RecordConflictError,
    RecordNotFoundError,
    RevisionConflictError,
    SqliteStore,
    StoreUnavailableError,
    VmemError,
    WriteResult,
)

STEPS = ("loaded", "applied", "before commit", "after commit")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
async def store(path: Path, gate: Gate) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(path)
    made._probe = gate
    yield made
    gate.open()
    await made.close()


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def together(store: SqliteStore, gate: Gate, *writes: Awaitable[Any]) -> list[Any]:
    """What writes answer that share a commit: they wait while the one before them is held."""
    gate.seen.clear()
    gate.hold("before commit")
    first = asyncio.ensure_future(open_memory(store).remember("the one before"))
    await gate.reached()
    tasks = await queued(store, *writes)
    gate.open()
    await first
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert gate.seen.count("before commit") == 2
    return answers


# --- operations that share a commit ---------------------------------------------------------------------------------

Refused = Callable[[MemorySession], Awaitable[Any]]
REFUSED: dict[type[VmemError], Refused] = {
    RecordNotFoundError: lambda memory: memory.revise("unknown", text="never"),
    RecordConflictError: lambda memory: memory.remember("never", id="r1"),
    OperationConflictError: lambda memory: memory.remember("never", operation_id="first"),
    RevisionConflictError: lambda memory: memory.revise("r1", text="never", expected_revision=7),
    AssertedRecordError: lambda memory: memory.retract("r1", by_model=True),
}


@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("error", REFUSED, ids=lambda error: error.code)
async def test_one_refused_operation_among_eight_fails_no_other(
    store: SqliteStore, gate: Gate, error: type[VmemError], place: int
) -> None:
    memory = open_memory(store)
    await memory.remember("Ada likes tea.", id="r1", operation_id="first")
    writes: list[Awaitable[Any]] = [memory.remember(f"fact {n}", operation_id=f"o{n}") for n in range(7)]
    writes.insert(place, REFUSED[error](memory))
    answers = await together(store, gate, *writes)
    assert isinstance(answers.pop(place), error)
    assert [answer.receipt.scope_revision for answer in answers] == list(range(3, 10))
    assert [await memory.receipt(f"o{n}") for n in range(7)] == [answer.receipt for answer in answers]
    assert sorted(texts((await memory.list(limit=7)).records)) == [f"fact {n}" for n in range(7)]
    assert texts(await memory.history("r1")) == ["Ada likes tea."]
    assert await memory.scope_revision() == 9


async def test_operations_that_share_a_commit_see_each_other_in_their_order(store: SqliteStore, gate: Gate) -> None:
    memory, bob = open_memory(store), open_memory(store, BOB)
    answers = await together(
        store,
        gate,
        memory.remember("Ada likes tea.", id="r1", operation_id="k"),
        memory.remember("Ada likes tea.", id="r1", operation_id="k"),
        memory.remember("another", id="r1"),
        bob.remember("Bob's", id="r1"),
        bob.remember("Bob likes tea.", operation_id="k"),
        memory.revise("r1", text="Ada likes coffee.", expected_revision=1),
        memory.forget("r1"),
        memory.revise("r1", text="never"),
    )
    assert (answers[0].replayed, answers[1].replayed) == (False, True)
    assert answers[1].receipt == answers[0].receipt
    assert [type(answers[n]) for n in (2, 3, 7)] == [RecordConflictError] * 3
    assert answers[4].receipt.scope_revision == 1
    assert answers[5].records[0].text == "Ada likes coffee."
    assert (answers[6].revisions, answers[6].scrubbed) == ((1, 2), True)
    assert await memory.scope_revision() == 4
    assert await memory.history("r1") == []
    assert (await memory.receipt("k")).redacted


async def test_a_commit_that_fails_fails_all_that_share_it_and_each_may_be_sent_again(
    store: SqliteStore, gate: Gate
) -> None:
    memory = open_memory(store)
    await memory.remember("the first")

    def writes() -> list[Awaitable[Any]]:
        return [memory.remember(f"fact {n}", operation_id=f"o{n}") for n in range(8)]

    gate.hold("before commit")
    first = asyncio.ensure_future(memory.remember("the one before"))
    await gate.reached()
    gate.fail("before commit", sqlite3.OperationalError("disk I/O error"))
    tasks = await queued(store, *writes())
    gate.open()
    await first
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, StoreUnavailableError) for error in errors)
    assert len({id(error) for error in errors}) == 8  # each caller gets an error, and a traceback, of its own
    assert (await memory.count(), await memory.scope_revision()) == (2, 2)
    answers = await asyncio.gather(*writes())
    assert [(answer.receipt.scope_revision, answer.replayed) for answer in answers] == [
        (n, False) for n in range(3, 11)
    ]


async def test_a_fault_of_ours_in_one_operation_fails_no_other(store: SqliteStore, gate: Gate) -> None:
    memory = open_memory(store)
    gate.hold("before commit")
    first = asyncio.ensure_future(memory.remember("the one before"))
    await gate.reached()
    for _ in ("in the group", "alone, after it was rolled back"):
        gate.let_pass("applied")
        gate.fail("applied", RuntimeError("a fault"))
    tasks = await queued(store, *(memory.remember(f"fact {n}", operation_id=f"o{n}") for n in range(8)))
    gate.open()
    await first
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers.pop(1), RuntimeError)
    assert [answer.receipt.scope_revision for answer in answers] == list(range(2, 9))
    assert await memory.receipt("o1") is None
    assert await memory.count() == await memory.scope_revision() == 8


async def test_a_fault_that_is_gone_when_each_is_tried_alone_fails_none(store: SqliteStore, gate: Gate) -> None:
    memory = open_memory(store)
    gate.hold("before commit")
    first = asyncio.ensure_future(memory.remember("the one before"))
    await gate.reached()
    gate.let_pass("applied")
    gate.fail("applied", sqlite3.OperationalError("disk I/O error"))
    tasks = await queued(store, *(memory.remember(f"fact {n}") for n in range(4)))
    gate.open()
    await first
    answers = await asyncio.gather(*tasks)
    assert [(answer.receipt.scope_revision, answer.replayed) for answer in answers] == [(n, False) for n in range(2, 6)]
    assert await memory.count() == await memory.scope_revision() == 5


async def test_operations_that_come_before_a_commit_share_it(store: SqliteStore, gate: Gate) -> None:
    memory = open_memory(store)
    gate.hold("applied")
    first = asyncio.ensure_future(memory.remember("the first"))
    await gate.reached()
    tasks = await queued(store, *(memory.remember(f"fact {n}") for n in range(5)))
    gate.open()
    answers = [await first, *await asyncio.gather(*tasks)]
    assert [answer.receipt.scope_revision for answer in answers] == list(range(1, 7))
    assert gate.seen.count("before commit") == 1


async def test_a_long_text_that_comes_before_a_commit_waits_for_the_next(store: SqliteStore, gate: Gate) -> None:
    memory = open_memory(store)
    gate.hold("applied")
    first = asyncio.ensure_future(memory.remember("the first"))
    await gate.reached()
    long = memory.remember_many([Draft("tea " * 2_000) for _ in range(3)])
    tasks = await queued(store, memory.remember("joins"), long, memory.remember("keeps its place"))
    gate.open()
    answers = [await first, *await asyncio.gather(*tasks)]
    assert [answer.receipt.scope_revision for answer in answers] == [1, 2, 3, 4]
    assert gate.seen.count("before commit") == 2


async def test_one_that_joined_and_cannot_be_applied_fails_no_other(store: SqliteStore, gate: Gate) -> None:
    memory = open_memory(store)
    gate.hold("applied")
    first = asyncio.ensure_future(memory.remember("the first"))
    await gate.reached()
    gate.let_pass("applied")
    gate.fail("applied", RuntimeError("in the group"))
    gate.let_pass("applied")
    gate.let_pass("applied")
    gate.fail("applied", RuntimeError("alone"))
    tasks = await queued(store, *(memory.remember(f"fact {n}", operation_id=f"o{n}") for n in range(3)))
    gate.open()
    answers = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert isinstance(answers.pop(2), RuntimeError)
    assert [answer.receipt.scope_revision for answer in answers] == [1, 2, 3]
    assert await memory.receipt("o1") is None


async def test_more_operations_than_one_commit_takes_are_all_applied(store: SqliteStore, gate: Gate) -> None:
    memory = open_memory(store)
    gate.hold("loaded")
    first = asyncio.ensure_future(memory.remember("the one before"))
    await gate.reached()
    tasks = await queued(store, *(memory.remember(f"fact {n}") for n in range(200)))
    gate.open()
    await first
    answers = await asyncio.gather(*tasks)
    assert [answer.receipt.scope_revision for answer in answers] == list(range(2, 202))
    assert 1 < gate.seen.count("before commit") < 20


# --- cancelled ------------------------------------------------------------------------------------------------------


async def test_a_queued_write_that_is_cancelled_is_not_applied(store: SqliteStore, gate: Gate) -> None:
    memory = open_memory(store)
    gate.hold("loaded")
    first = asyncio.ensure_future(memory.remember("the one before"))
    await gate.reached()
    tasks = await queued(store, *(memory.remember(f"fact {n}", operation_id=f"o{n}") for n in range(4)))
    for task in tasks[1:3]:
        assert task.cancel()
    answers = await asyncio.gather(*tasks[1:3], return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
    gate.open()
    assert [(await task).receipt.scope_revision for task in (first, tasks[0], tasks[3])] == [1, 2, 3]
    assert [await memory.receipt(f"o{n}") is not None for n in range(4)] == [True, False, False, True]
    assert not (await memory.remember("fact 1", operation_id="o1")).replayed
    assert await memory.count() == await memory.scope_revision() == 4


@pytest.mark.parametrize("step", STEPS)
async def test_a_write_that_is_cancelled_while_it_runs_stands_and_its_operation_id_tells(
    store: SqliteStore, gate: Gate, step: str
) -> None:
    memory = open_memory(store)
    gate.hold(step)
    write = asyncio.ensure_future(memory.remember("Ada likes tea.", id="r1", operation_id="k"))
    await gate.reached()
    assert write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    gate.open()
    replay = await memory.remember("Ada likes tea.", id="r1", operation_id="k")
    assert replay.replayed
    assert replay.receipt == await memory.receipt("k")
    assert texts(replay.records) == ["Ada likes tea."]
    assert await memory.count() == await memory.scope_revision() == 1


async def test_many_writes_of_which_every_third_is_cancelled_are_each_whole_or_not_there(store: SqliteStore) -> None:
    memory = open_memory(store)

    def write(n: int) -> Awaitable[WriteResult]:
        return memory.remember_many([Draft(f"{n} {m}") for m in range(5)], operation_id=f"o{n}")

    tasks = [asyncio.ensure_future(write(n)) for n in range(60)]
    for turn in range(20):
        tasks[3 * turn].cancel()
        await asyncio.sleep(0)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    stand = 0
    for n, answer in enumerate(answers):
        receipt = await memory.receipt(f"o{n}")
        assert receipt is not None or isinstance(answer, asyncio.CancelledError)
        stand += receipt is not None
        assert (await write(n)).replayed is (receipt is not None)
    assert 40 <= stand < 60
    assert await memory.count() == 300
    assert await memory.scope_revision() == 60


# --- an answer that never came --------------------------------------------------------------------------------------


async def test_an_answer_lost_after_the_commit_is_replayed_with_nothing_doubled(
    store: SqliteStore, gate: Gate, path: Path
) -> None:
    embedder = FakeEmbedder()
    memory = open_memory(store, embedder=embedder)
    gate.fail("after commit", ConnectionResetError("the answer got lost"))
    with pytest.raises(ConnectionResetError):
        await memory.remember("Tea at 4", operation_id="k1")
    assert len(embedder.calls) == 1
    again = await memory.remember("Tea at 4", operation_id="k1")
    assert again.replayed
    assert again.receipt == await memory.receipt("k1")
    assert texts(again.records) == ["Tea at 4"]
    assert len(embedder.calls) == 1
    assert [hit.match for hit in await memory.recall("tea")] == ["hybrid"]
    await store.close()
    for table in ("vmem_records", "vmem_revisions", "vmem_receipts", "vmem_vectors_1", "vmem_scopes"):
        assert look(path, f"select count(*) from {table}") == [(1,)], table


@pytest.mark.parametrize("step", STEPS[:-1])
async def test_a_fault_before_the_commit_leaves_nothing(store: SqliteStore, gate: Gate, step: str) -> None:
    memory = open_memory(store, embedder=FakeEmbedder())
    gate.fail(step, ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError):
        await memory.remember("Tea at 4", operation_id="k1")
    assert (await memory.receipt("k1"), await memory.count(), await memory.scope_revision()) == (None, 0, 0)
    assert await store.embeddings.active() is None
    assert not (await memory.remember("Tea at 4", operation_id="k1")).replayed


async def test_only_what_need_not_last_leaves_full_durability_and_comes_back_to_it_also_after_a_fault(
    store: SqliteStore,
) -> None:
    await store.scopes()
    engine, sent = store._opened(), []
    engine.write(lambda connection: connection.set_trace_callback(sent.append)).result()

    def durability() -> list[str]:
        told = [statement for statement in sent if "synchronous" in statement]
        sent.clear()
        return told

    engine.transact(lambda connection: None, lasting=True).result()
    assert durability() == []
    there_and_back = ["pragma synchronous = normal", "pragma synchronous = full"]
    engine.transact(lambda connection: None, lasting=False).result()
    assert durability() == there_and_back
    with pytest.raises(ZeroDivisionError):
        engine.transact(lambda connection: 1 // 0, lasting=False).result()
    assert durability() == there_and_back
