"""A store and its callers: loops that close under it, threads, and what comes after close."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, FakeEmbedder, open_memory, refusal
from sqlite_fakes import gated, kept_texts, names, queued

from vmem_core import SqliteStore, StoreUnavailableError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


# --- event loops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["loaded", "before commit", "after commit"])
def test_a_loop_that_closes_with_a_call_in_flight_harms_no_later_call(path: Path, step: str) -> None:
    store, gate = gated(path)
    gate.hold(step)
    memory = open_memory(store)

    async def leave() -> None:
        asyncio.ensure_future(memory.remember("Ada likes tea.", operation_id="k"))  # noqa: RUF006 - left behind
        await gate.reached()

    asyncio.run(leave())
    gate.open()

    async def go_on() -> tuple[bool, int]:
        again = await memory.remember("Ada likes tea.", operation_id="k")
        count = await memory.count()
        await store.close()
        return again.replayed, count

    assert asyncio.run(go_on()) == (True, 1)


def test_a_loop_that_is_closed_without_cancelling_its_tasks_harms_no_later_call(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, gate = gated(path)
    gate.hold("loaded")
    memory = open_memory(store)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(memory.remember(f"Zanzibar {n}", operation_id=f"o{n}")) for n in range(3)]
    loop.run_until_complete(gate.reached())
    loop.close()
    gate.open()
    assert memory.sync.count() == 3
    assert [memory.sync.remember(f"Zanzibar {n}", operation_id=f"o{n}").replayed for n in range(3)] == [True] * 3
    store.sync.close()
    del tasks
    gc.collect()
    assert "Zanzibar" not in caplog.text


def test_one_store_serves_many_threads_and_many_loops_in_each(path: Path) -> None:
    store = SqliteStore(path)
    memory = open_memory(store, embedder=FakeEmbedder())
    start = threading.Barrier(4)

    async def eight(name: str) -> list[int]:
        results = await asyncio.gather(*(memory.remember(f"{name} {n}") for n in range(8)), memory.recall("fact"))
        return [result.receipt.scope_revision for result in results[:8]]

    def work(who: int) -> list[int]:
        start.wait()
        return [revision for turn in range(5) for revision in asyncio.run(eight(f"fact {turn} of {who}"))]

    with ThreadPoolExecutor(4) as pool:
        revisions = [revision for part in pool.map(work, range(4)) for revision in part]
    assert sorted(revisions) == list(range(1, 161))
    assert memory.sync.count() == 160
    store.sync.close()


# --- close ----------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "remember": lambda store: open_memory(store).remember("Ada likes tea."),
    "revise": lambda store: open_memory(store).revise("r1", text="x"),
    "retract": lambda store: open_memory(store).retract("r1"),
    "forget": lambda store: open_memory(store).forget("r1"),
    "forget_scope": lambda store: open_memory(store).forget_scope(),
    "recall": lambda store: open_memory(store, embedder=FakeEmbedder()).recall("tea"),
    "get": lambda store: open_memory(store).get("r1"),
    "history": lambda store: open_memory(store).history("r1"),
    "receipt": lambda store: open_memory(store).receipt("k"),
    "list": lambda store: open_memory(store).list(),
    "count": lambda store: open_memory(store).count(),
    "scope_revision": lambda store: store.scope_revision(ADA),
    "scopes": lambda store: store.scopes(),
    "scrub": lambda store: store.scrub(),
    "active": lambda store: store.embeddings.active(),
    "enter": lambda store: store.__aenter__(),
}


@pytest.mark.parametrize("used", [True, False], ids=["used", "never used"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_after_close_every_call_is_refused(store: Any, call: Callable[[Any], Awaitable[Any]], used: bool) -> None:
    if used:
        await open_memory(store).remember("Ada likes tea.", id="r1")
    await store.close()
    await store.close()
    error = await refusal(call(store))
    assert isinstance(error, StoreUnavailableError)
    assert not error.retryable
    assert "closed" in str(error)


async def test_close_waits_for_what_is_queued(path: Path) -> None:
    store, gate = gated(path)
    gate.hold("loaded")
    memory = open_memory(store)
    first = asyncio.ensure_future(memory.remember("the one before"))
    await gate.reached()
    tasks = await queued(store, *(memory.remember(f"fact {n}") for n in range(50)))
    reads = [asyncio.ensure_future(memory.count()) for _ in range(3)]
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    assert isinstance(await refusal(memory.remember("too late")), StoreUnavailableError)
    gate.open()
    await closing
    answers = await asyncio.gather(first, *tasks)
    assert [answer.receipt.scope_revision for answer in answers] == list(range(1, 52))
    counts = await asyncio.gather(*reads)
    assert all(0 <= count <= 51 for count in counts)
    assert kept_texts(path) == ["the one before", *(f"fact {n}" for n in range(50))]


async def test_a_close_that_is_cancelled_closes_all_the_same(path: Path) -> None:
    store, gate = gated(path)
    gate.hold("loaded")
    first = asyncio.ensure_future(open_memory(store).remember("Ada likes tea."))
    await gate.reached()
    engine = store._opened()
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.open()
    assert (await first).receipt.scope_revision == 1
    assert isinstance(await refusal(open_memory(store).count()), StoreUnavailableError)
    ended = weakref.ref(store)
    del store
    gc.collect()
    assert ended() is None
    for connection in engine.connections:
        connection.join()
        assert connection._connection is None


def test_a_store_closed_by_one_thread_under_the_writes_of_others_tells_each_the_truth(path: Path) -> None:
    for turn in range(10):
        store = SqliteStore(path)
        memory, under_way = open_memory(store).sync, threading.Barrier(5)

        def work(who: int, memory: Any = memory, under_way: Any = under_way, turn: int = turn) -> list[str]:
            told: list[str] = []
            for n in range(10_000):
                if n == 5:
                    under_way.wait()
                try:
                    told.append(memory.remember(f"fact {n} of {who} in {turn}").records[0].text)
                except StoreUnavailableError:
                    return told
            raise AssertionError("the store was never closed")

        with ThreadPoolExecutor(4) as pool:
            parts = [pool.submit(work, who) for who in range(4)]
            under_way.wait()
            store.sync.close()
            told = [text for part in parts for text in part.result()]
        assert len(told) >= 20
        assert sorted(told) == sorted(text for text in kept_texts(path) if text.endswith(f"in {turn}"))


async def test_a_call_that_got_hold_of_the_file_just_before_it_was_closed_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    await open_memory(store).remember("Ada likes tea.")
    engine = store._opened()
    await store.close()
    for late in (lambda: engine.write(lambda connection: None), lambda: engine.read(lambda connection, reader: None)):
        with pytest.raises(StoreUnavailableError):
            late()


def test_a_store_that_nobody_refers_to_any_more_closes_its_file_and_ends_its_threads(path: Path) -> None:
    store = SqliteStore(path)
    memory = open_memory(store)
    memory.sync.remember("Ada likes tea.")
    memory.sync.recall("tea")
    threads = [connection._thread for connection in store._opened().connections]
    assert all(thread.is_alive() for thread in threads)
    del store, memory
    gc.collect()
    assert not any(thread.is_alive() for thread in threads)
    assert names(path.parent) == ["memory.db"]  # the log went into the file
    assert kept_texts(path) == ["Ada likes tea."]
