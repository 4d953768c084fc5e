"""Faults that people met in other systems: retries and duplicates, scopes and tenants, deletes that leave copies."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fakes import (
    BOB,
    Clock,
    FakeEmbedder,
    Listener,
    everything,
    ids,
    in_order,
    open_memory,
    refusal,
    texts,
)

from vmem_core import (
    Draft,
    InvalidRequestError,
    MemorySession,
    OperationConflictError,
    RevisionConflictError,
    Scope,
    Source,
    SqliteStore,
    Store,
    text_digest,
)

SENTINEL = "SENTINEL-7f3a"


# --------------------------------------------------------------------------------------------- retries, duplicates


async def test_an_answer_that_got_lost_is_given_again_and_nothing_is_written_twice(
    tmp_path: Path, clock: Clock, embedder: FakeEmbedder
) -> None:
    store = SqliteStore(tmp_path / "memory.db", clock=clock)
    memory = open_memory(store, embedder=embedder)

    def lose_the_answer(step: str) -> None:
        if step == "after commit":
            raise ConnectionError("the caller never hears of it")

    store._probe = lose_the_answer
    with pytest.raises(ConnectionError):
        await memory.remember("Tea at 4", operation_id="k1")
    await store.close()
    store = SqliteStore(tmp_path / "memory.db", clock=clock)
    again = await open_memory(store, embedder=embedder).remember("Tea at 4", operation_id="k1")
    assert again.replayed is True
    assert again.receipt == await open_memory(store).receipt("k1")
    assert texts(again.records) == ["Tea at 4"]
    assert embedder.calls == [("document", ("Tea at 4",))]
    await store.close()
    assert count_rows(tmp_path / "memory.db") == {"records": 1, "revisions": 1, "receipts": 1, "vectors_1": 1}


def count_rows(file: Path) -> dict[str, int]:
    connection = sqlite3.connect(file)
    tables = ("records", "revisions", "receipts", "vectors_1")
    counts = {name: connection.execute(f"select count(*) from vmem_{name}").fetchone()[0] for name in tables}
    connection.close()
    return counts


async def test_one_key_with_two_texts_is_a_conflict_and_another_scopes_key_is_its_own(
    ada: MemorySession, bob: MemorySession
) -> None:
    first = await ada.remember("text A", operation_id="k1")
    error = await refusal(ada.remember("text B", operation_id="k1"))
    assert isinstance(error, OperationConflictError)
    assert error.operation_id == "k1"
    assert "k1" in str(error)
    assert texts(await ada.recall("text")) == ["text A"]
    other = await bob.remember("text B", operation_id="k1")
    assert (other.replayed, other.receipt.scope) == (False, BOB)
    assert await ada.receipt("k1") == first.receipt


async def test_two_simultaneous_adds_under_one_key_are_one_record(store: Store) -> None:
    start = asyncio.Barrier(20)

    async def add() -> Any:
        await start.wait()
        return await open_memory(store).remember("likes coffee", operation_id="k")

    results = await asyncio.gather(*[add() for _ in range(20)])
    assert len({result.receipt for result in results}) == 1
    assert await open_memory(store).count() == 1


async def test_simultaneous_adds_without_a_key_are_as_many_records_unless_equal_ones_are_skipped(store: Store) -> None:
    await asyncio.gather(*[open_memory(store).remember("likes coffee") for _ in range(20)])
    assert await open_memory(store).count() == 20
    tea = await asyncio.gather(*[open_memory(store).remember("likes tea", supersede="skip_equal") for _ in range(20)])
    assert sum(len(result.records) for result in tea) == 1
    assert await open_memory(store).count() == 21


async def test_of_two_revisers_of_one_head_exactly_one_wins(ada: MemorySession) -> None:
    for n in range(100):
        record = (await ada.remember("start", id=f"race {n}")).records[0]
        results = await asyncio.gather(
            ada.revise(record.id, text="x", expected_revision=1),
            ada.revise(record.id, text="y", expected_revision=1),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["RevisionConflictError", "WriteResult"]
        assert [revision.revision for revision in await ada.history(record.id)] == [1, 2]
    await asyncio.gather(ada.revise("race 0", text="x"), ada.revise("race 0", text="y"))
    assert [revision.revision for revision in await ada.history("race 0")] == [1, 2, 3, 4]
    assert RevisionConflictError(1, 2).attempts == 1


async def test_an_exact_duplicate_meets_the_record_and_never_deletes_it(ada: MemorySession) -> None:
    sentence = "Ada moved from London to Paris in the spring of 2025 and likes it there. " * 5
    record = (await ada.remember(sentence)).records[0]
    for _ in range(3):
        again = await ada.remember(sentence, supersede="skip_equal")
        assert (again.records, again.present) == ((), (record,))
        assert [note.code for note in again.receipt.notes] == ["already_stored"]
    assert await ada.get(record.id) == record
    assert await ada.count() == 1


# ------------------------------------------------------------------------------------------------ scopes, tenants


async def test_a_filter_that_nobody_knows_is_never_all(store: Store, seeing: MemorySession, bob: MemorySession) -> None:
    await bob.remember("secret of Bob")
    await seeing.remember("tea of Ada")
    with pytest.raises(TypeError):
        Scope(userid="bob")  # type: ignore[call-arg]
    for scope in (None, "", {}, "bob"):
        with pytest.raises(InvalidRequestError):
            MemorySession(store, scope)  # type: ignore[arg-type]
    assert texts(await seeing.recall("secret of Bob")) == ["tea of Ada"]  # the vector list alone: nothing of Bob
    assert await open_memory(store).recall("secret Bob") == []  # the lexical list alone
    assert texts(await seeing.recall()) == ["tea of Ada"]


async def test_what_was_written_with_several_fields_is_found_with_the_same_fields_only(store: Store) -> None:
    whole = Scope(user_id="u", agent_id="a", run_id="r")
    await open_memory(store, whole).remember("tea")
    assert texts(await open_memory(store, Scope(run_id="r", user_id="u", agent_id="a")).recall("tea")) == ["tea"]
    for part in (Scope(user_id="u"), Scope(user_id="u", agent_id="a"), Scope(agent_id="a"), Scope(run_id="r")):
        assert await open_memory(store, part).recall("tea") == []
        assert await open_memory(store, part).count() == 0


async def test_numbers_do_not_pass_for_names_of_users() -> None:
    with pytest.raises(InvalidRequestError):
        Scope(user_id=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key", ["a') OR 1=1 --", 'a"; drop table vmem_records; --', "a.b", "$", "a[*]", "\U0001f600"], ids=range(6)
)
async def test_keys_of_filters_are_data(ada: MemorySession, bob: MemorySession, key: str) -> None:
    await bob.remember("tea of Bob", metadata={key: 1})
    await ada.remember("tea", id="with", metadata={key: 1})
    await ada.remember("tea", id="without")
    assert ids(await ada.recall("tea", metadata={key: 1})) == ["with"]
    assert await ada.recall("tea", metadata={key: 2}) == []
    assert await ada.recall("tea", metadata={f"{key}x": 1}) == []


# ------------------------------------------------------------------------------------------------------------ deletes


async def test_forgetting_one_user_leaves_the_other_byte_for_byte(ada: MemorySession, bob: MemorySession) -> None:
    for memory in (ada, bob):
        await memory.remember_many([Draft("tea with milk"), Draft("coffee")], operation_id="many")
    before = json.dumps([hit.to_json() for hit in await bob.recall("tea")] + [(await bob.list()).to_json()])
    whole = await everything(bob, "r3", "r4")
    await ada.forget_scope()
    assert await everything(bob, "r3", "r4") == whole
    assert json.dumps([hit.to_json() for hit in await bob.recall("tea")] + [(await bob.list()).to_json()]) == before
    assert await ada.count() == 0


async def test_no_search_answers_from_what_was_forgotten(seeing: MemorySession, clock: Clock) -> None:
    first = await seeing.remember("tea with milk", id="a", operation_id="k")
    before = clock.now
    assert ids(await seeing.recall("tea")) == ["a"]  # whatever is cached is cached now
    clock.step(seconds=1)
    await seeing.forget("a")
    for hits in await in_order(
        seeing.recall("tea"), seeing.recall(), seeing.recall("tea", recorded_as_of=before),
        seeing.recall("tea", at_scope_revision=1), seeing.recall("tea", include_retracted=True, include_expired=True),
        seeing.history("a"),
    ):  # fmt: skip
        assert hits == []
    again = await seeing.remember("tea with milk", id="a", operation_id="k")
    assert (again.replayed, again.records, again.receipt.redacted) == (True, (), True)
    assert again.receipt.changes == first.receipt.changes
    assert await seeing.scope_revision() == 2


async def test_a_second_open_store_sees_the_forget_too(tmp_path: Path, clock: Clock) -> None:
    one, two = (SqliteStore(tmp_path / "memory.db", clock=clock) for _ in range(2))
    here, there = (open_memory(store, embedder=FakeEmbedder()) for store in (one, two))
    await here.remember("tea with milk", id="a")
    assert ids(await there.recall("tea")) == ["a"]
    await here.forget("a")
    assert await there.recall("tea") == []
    assert await there.recall("tea", at_scope_revision=1) == []
    assert await there.history("a") == []
    assert (await there.forget("a")).already_forgotten is True
    await one.close()
    await two.close()


async def test_no_byte_of_a_forgotten_text_is_in_any_file(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore(tmp_path / "memory.db", clock=clock)
    memory = open_memory(store, embedder=FakeEmbedder())
    secret = {
        "metadata": {"note": f"{SENTINEL}m"},
        "sources": [Source("user", text_digest(SENTINEL), uri=f"x:{SENTINEL}u")],
    }
    await memory.remember(f"{SENTINEL} one", id="a", operation_id="k", **secret)  # type: ignore[arg-type]
    for n in range(40):
        await memory.remember(f"another fact number {n}")
    await memory.revise("a", text=f"{SENTINEL} two", **secret)  # type: ignore[arg-type]
    await memory.revise("a", text=f"{SENTINEL} three")
    await memory.remember(f"{SENTINEL} THREE", supersede="skip_equal")
    assert SENTINEL.encode() in _bytes_of(tmp_path)
    result = await memory.forget("a")
    assert result.scrubbed is True
    await store.scrub()
    held = _bytes_of(tmp_path)
    assert SENTINEL.encode() not in held
    assert text_digest(SENTINEL).encode() not in held
    assert text_digest(f"{SENTINEL} one")[7:].encode() not in held
    await store.close()
    assert SENTINEL.encode() not in _bytes_of(tmp_path)


def _bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_forgetting_a_record_takes_nothing_from_one_that_cites_the_same_source(store: Store) -> None:
    listener = Listener()
    memory = open_memory(store, on_forget=listener)
    source = Source("user", text_digest("I like tea"), message_id="m1")
    await memory.remember("likes tea", id="a", sources=[source])
    kept = (await memory.remember("likes hot drinks", id="b", sources=[source])).records[0]
    listener.failure = RuntimeError("away")
    assert (await memory.forget("a")).redaction == "failed"
    assert await memory.history("a") == []
    assert await memory.get("b") == kept
    listener.failure = None
    assert (await memory.forget("a")).redaction == "complete"
    assert [set(event.to_json()) for event in listener.events] == [
        {"scope", "record_id", "revisions", "operation_id", "already_forgotten"}
    ] * 2


async def test_retract_keeps_and_forget_deletes_in_either_order(ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    await ada.retract("a")
    assert await ada.recall("tea") == []
    assert len(await ada.history("a")) == 2
    assert ids(await ada.recall("tea", at_scope_revision=1)) == ["a"]
    assert (await ada.forget("a")).revisions == (1, 2)
    assert await ada.recall("tea", at_scope_revision=1) == []
    assert (await refusal(ada.retract("a"))).code == "record_conflict"
