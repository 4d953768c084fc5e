"""Faults that people met in other systems: texts and words, metadata, vectors, files, and time."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from fakes import (
    ADA,
    START,
    Clock,
    FakeEmbedder,
    ids,
    open_memory,
    refusal,
    refusals,
    texts,
)

from vmem_core import (
    Draft,
    EmbeddingMismatchError,
    InvalidRequestError,
    MemorySession,
    Scope,
    Source,
    SqliteStore,
    Store,
    StoreUnavailableError,
    text_digest,
)

# ------------------------------------------------------------------------------------------------------ text, words


async def test_no_query_crashes_or_changes_its_meaning(ada: MemorySession) -> None:
    await ada.remember("pre-edit check, GB/s and C++", id="a")
    for query in (
        "don't", '"', '""', "*", "NOT", "a AND",
        "NEAR(", "(a", "^a", "text:x", "t:email", "-", "{}", "", "  ", "x" * 100_000,
        "x " * 50_000,
    ):  # fmt: skip
        assert set(ids(await ada.recall(query))) <= {"a"}
    for query in ("pre-edit", "GB/s", "C++", "check", "CHECK!", "edit pre"):
        assert ids(await ada.recall(query)) == ["a"]


WORDS = {
    "我喜欢喝咖啡": ["咖", "咖啡", "喜欢喝咖啡"], "コーヒーが好きです": ["コーヒー", "好き"],
    "커피를 좋아해요": ["커피", "좋아"],
    "ฉันชอบดื่มกาแฟ": ["กาแฟ"], "重跑gen-itgc后": ["itgc", "重跑", "gen-itgc"], "the db is down": ["db", "DB"],
    "un caf\u00e9 noir": ["cafe", "caf\u00e9", "cafe\u0301", "CAF\u00c9"],
    "\u0451\u043b\u043a\u0430": ["\u0435\u043b\u043a\u0430", "\u0401\u041b\u041a\u0410"],
    "ships on 2026-03-01": ["2026", "03"], "order ＡＢＣ１２３": ["abc123"],
}  # fmt: skip


@pytest.mark.parametrize("text", WORDS, ids=range(len(WORDS)))
async def test_words_of_every_script_are_found(ada: MemorySession, text: str) -> None:
    await ada.remember("something else entirely", id="other")
    await ada.remember(text, id="wanted")
    for query in WORDS[text]:
        assert ids(await ada.recall(query)) == ["wanted"], query


@pytest.mark.parametrize("bad", ["hello\x00world", "ok \ud83d", "\udc00"], ids=range(3))
async def test_what_no_store_can_hold_is_refused_wherever_it_enters(store: Store, ada: MemorySession, bad: str) -> None:
    for error in await refusals(
        ada.remember(bad), ada.remember("tea", metadata={"a": {"b": [bad]}}), ada.remember("tea", metadata={bad: 1}),
        ada.remember("tea", operation_id=bad), ada.remember("tea", id=bad), ada.recall(bad),
        ada.recall("tea", metadata={"a": bad}),
        ada.forget(bad), ada.get(bad),
    ):  # fmt: skip
        assert isinstance(error, InvalidRequestError)
        assert error.path
    for build in (
        lambda: Scope(user_id=bad),
        lambda: Source("tool", text_digest("x"), tool_name=bad),
        lambda: Draft(bad),
    ):
        with pytest.raises(InvalidRequestError):
            build()
    assert list(await store.scopes()) == []  # type: ignore[attr-defined]


METADATA: list[Any] = [
    {"a": "x" * 1_000_000}, {str(n): n for n in range(10_000)}, {"a": float("nan")}, {"a": float("inf")}, {"a": 2**63},
    {"a": timedelta(1)}, {"a": START}, {"a": b"x"}, {"a": (1,)}, {1: "a"}, {"a": {1: 2}}, {"a": {1, 2}}, {"a": 1 + 2j},
]  # fmt: skip


@pytest.mark.parametrize("metadata", METADATA, ids=range(len(METADATA)))
async def test_metadata_comes_back_exactly_or_is_refused_by_its_path(ada: MemorySession, metadata: Any) -> None:
    error = await refusal(ada.remember("tea", metadata=metadata))
    assert isinstance(error, InvalidRequestError)
    assert error.path.startswith("metadata")
    assert await ada.scope_revision() == 0


async def test_a_filter_on_a_large_value_hits_no_limit_of_an_index(ada: MemorySession) -> None:
    large = {"a": "x" * 60_000}
    await ada.remember("tea", metadata=large)
    assert len(await ada.recall("tea", metadata=large)) == 1
    assert await ada.recall("tea", metadata={"a": "x" * 59_999}) == []


async def test_blank_input_costs_no_call_and_leaves_no_receipt(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    for blank in ("", " ", "\n", "\u200d"):
        for error in await refusals(
            seeing.remember(blank, operation_id="op"), seeing.remember("tea", id=blank),
            seeing.remember("tea", operation_id=blank), seeing.get(blank), seeing.forget(blank),
        ):  # fmt: skip
            assert isinstance(error, InvalidRequestError)
        assert await seeing.recall(blank) == []
    assert embedder.calls == []
    assert await seeing.receipt("op") is None
    assert await seeing.scope_revision() == 0


# ----------------------------------------------------------------------------------------------------------- vectors


async def test_a_zero_vector_disturbs_no_ranking(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    await seeing.remember_many([Draft("green tea", "a"), Draft("black tea", "b"), Draft("rain", "c")])
    before = [(hit.record.id, hit.score) for hit in await seeing.recall("green tea")]
    embedder.vectors["nothing at all"] = [0.0] * 8
    result = await seeing.remember("nothing at all", id="zero")
    assert [note.code for note in result.receipt.notes] == ["not_embedded"]
    after = await seeing.recall("green tea")
    assert [(hit.record.id, hit.score) for hit in after if hit.record.id != "zero"] == before
    assert "zero" not in ids(after)
    embedder.vectors["green tea"] = [0.0] * 8
    hits = await seeing.recall("green tea")
    assert {hit.match for hit in hits} == {"lexical"}
    assert all(hit.score == hit.score for hit in hits)


async def test_a_store_that_is_opened_with_another_model_says_so(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore(tmp_path / "memory.db", clock=clock)
    await open_memory(store, embedder=FakeEmbedder("small", 8)).remember("tea")
    await store.close()
    for model, dims in (("large", 16), ("another of equal size", 8)):
        store = SqliteStore(tmp_path / "memory.db", clock=clock)
        memory = open_memory(store, embedder=FakeEmbedder(model, dims))
        for error in await refusals(memory.recall("tea"), memory.remember("coffee")):
            assert isinstance(error, EmbeddingMismatchError)
            assert (error.active_model, error.active_dims, error.model, error.dims) == ("small", 8, model, dims)
            assert "small" in str(error)
            assert model in str(error)
        assert texts(await open_memory(store).recall("tea")) == ["tea"]
        await store.close()


# ----------------------------------------------------------------------------------------------------- loops, files


async def test_sync_calls_inside_a_running_loop_return(store: Store) -> None:
    memory = open_memory(store).sync
    memory.remember("tea")
    assert texts(memory.recall("tea")) == ["tea"]


async def test_twenty_first_calls_at_once_find_the_tables_there(tmp_path: Path, clock: Clock) -> None:
    for round_ in range(5):
        store = SqliteStore(tmp_path / f"memory{round_}.db", clock=clock)
        tasks = [
            asyncio.ensure_future(
                open_memory(store).remember(f"text {n}") if n % 2 else open_memory(store).recall("text")
            )
            for n in range(20)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [one for one in results[2:] if isinstance(one, BaseException)]
        assert await open_memory(store).count() in (9, 10)
        await store.close()


async def test_a_write_that_fails_midway_leaves_nothing_and_names_no_id(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore(tmp_path / "memory.db", clock=clock)
    memory = open_memory(store, embedder=FakeEmbedder())
    await memory.remember("first", id="first")
    other = sqlite3.connect(tmp_path / "memory.db")
    other.execute("""create trigger third before insert on vmem_records
        when (select count(*) from vmem_records) = 2 begin select raise(abort, 'no room'); end""")
    other.commit()
    error = await refusal(memory.remember_many([Draft("a", "a"), Draft("b", "b"), Draft("c", "c")], operation_id="op"))
    assert isinstance(error, StoreUnavailableError)
    other.execute("drop trigger third")
    other.commit()
    other.close()
    assert [await memory.get(record_id) for record_id in ("a", "b", "c")] == [None, None, None]
    assert (await memory.receipt("op"), await memory.scope_revision(), await memory.count()) == (None, 1, 1)
    written = await memory.remember_many([Draft("a", "a"), Draft("b", "b"), Draft("c", "c")], operation_id="op")
    second = SqliteStore(tmp_path / "memory.db", clock=clock)
    for record in written.records:
        assert await open_memory(second).get(record.id) == record
    await store.close()
    await second.close()


# ------------------------------------------------------------------------------------------------------- time, expiry


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "America/Los_Angeles", "UTC"])
async def test_expiry_does_not_depend_on_where_the_machine_stands(
    ada: MemorySession, clock: Clock, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        # The night in which Los Angeles puts its clocks forward, told as local time.
        clock.now = START.replace(month=3, day=8, hour=9, minute=59, second=59).astimezone(ZoneInfo(zone))
        expires = (await ada.remember("tea", ttl=timedelta(seconds=2))).records[0].expires_at
        assert expires == START.replace(month=3, day=8, hour=10, minute=0, second=1)
        clock.now = (expires - timedelta(microseconds=1)).astimezone(ZoneInfo(zone))
        assert (await ada.count(), ids(await ada.recall("tea"))) == (1, ["r1"])
        clock.now = expires.astimezone(ZoneInfo(zone))
        assert (await ada.count(), await ada.recall("tea"), await ada.get("r1")) == (0, [], None)
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_nothing_expired_is_returned_and_no_read_renews_it(seeing: MemorySession, clock: Clock) -> None:
    await seeing.remember_many([Draft(f"tea {n}", f"old{n}", ttl=timedelta(seconds=5)) for n in range(30)])
    await seeing.remember_many([Draft(f"tea {n}", f"live{n}") for n in range(12)])
    clock.step(seconds=4)
    for _ in range(3):
        await seeing.recall("tea", top_k=50)
        await seeing.get("old1")
    clock.step(seconds=1)
    for found in (
        await seeing.recall("tea", top_k=10),
        await seeing.recall(top_k=10),
        (await seeing.list(limit=10)).records,
    ):
        assert len(found) == 10
        assert all(one.startswith("live") for one in ids(found))
    assert (await seeing.count(), await seeing.get("old1")) == (12, None)
    assert len(await seeing.recall("tea", top_k=50, recorded_as_of=START + timedelta(seconds=4))) == 42
    revised = (await seeing.revise("old1", text="tea still expired")).records[0]
    assert (revised.expires_at, await seeing.get("old1")) == (START + timedelta(seconds=5), None)


async def test_a_clock_that_ties_or_steps_back_keeps_the_order_of_writes(ada: MemorySession, clock: Clock) -> None:
    record = (await ada.remember("one")).records[0]
    clock.step(seconds=-2)
    await ada.revise(record.id, text="two")
    await ada.revise(record.id, text="three")
    assert [(r.revision, r.recorded_at) for r in await ada.history(record.id)] == [(1, START), (2, START), (3, START)]
    assert texts(await ada.recall(recorded_as_of=START)) == ["three"]
    assert await ada.recall(recorded_as_of=START - timedelta(microseconds=1)) == []
    assert texts(await ada.recall(recorded_as_of=START + timedelta(days=9))) == ["three"]
    assert [texts(await ada.recall(at_scope_revision=n)) for n in (0, 1, 2, 3)] == [[], ["one"], ["two"], ["three"]]


async def test_the_scope_of_a_session_is_the_one_it_was_given(ada: MemorySession) -> None:
    assert ada.scope == ADA
    assert (await ada.remember("tea")).records[0].scope == ADA
