"""A store's life: loops that close under it, threads, ends without close, forks, and what comes after close."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, FakeEmbedder, open_memory, refusal
from processes import Script, run_script

from vmem_core import SqliteStore, StoreUnavailableError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


def kept(path: Path) -> list[str]:
    """The texts in the file, oldest first."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        return [json.loads(row[0])["text"] for row in connection.execute("select body from vmem_revisions")]
    finally:
        connection.close()


class Hold:
    """A probe that holds the writing thread at a step, once."""

    def __init__(self, step: str = "loaded") -> None:
        self.step, self.reached, self.opened = step, threading.Event(), threading.Event()

    def __call__(self, step: str) -> None:
        if step == self.step and not self.reached.is_set():
            self.reached.set()
            self.opened.wait()


def held(path: Path, step: str = "loaded") -> tuple[SqliteStore, Hold]:
    store, hold = SqliteStore(path), Hold(step)
    store._probe = hold
    return store, hold


async def queued(store: SqliteStore, *writes: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Writes that all wait in the queue of a store whose writing thread is held."""
    tasks = [asyncio.ensure_future(write) for write in writes]
    while len(store._opened()._pending) < len(tasks):
        await asyncio.sleep(0)
    return tasks


# --- event loops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["loaded", "before commit", "after commit"])
def test_a_loop_that_closes_with_a_call_in_flight_harms_no_later_call(path: Path, step: str) -> None:
    store, hold = held(path, step)
    memory = open_memory(store)

    async def leave() -> None:
        asyncio.ensure_future(memory.remember("Ada likes tea.", operation_id="k"))  # noqa: RUF006 - left behind
        await asyncio.to_thread(hold.reached.wait)

    asyncio.run(leave())
    hold.opened.set()

    async def go_on() -> tuple[bool, int]:
        again = await memory.remember("Ada likes tea.", operation_id="k")
        count = await memory.count()
        await store.close()
        return again.replayed, count

    assert asyncio.run(go_on()) == (True, 1)


def test_a_loop_that_is_closed_without_cancelling_its_tasks_harms_no_later_call(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, hold = held(path)
    memory = open_memory(store)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(memory.remember(f"Zanzibar {n}", operation_id=f"o{n}")) for n in range(3)]
    loop.run_until_complete(asyncio.to_thread(hold.reached.wait))
    loop.close()
    hold.opened.set()
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
async def test_after_close_every_call_is_refused(
    store: Any, call: Callable[[Any], Awaitable[Any]], used: bool
) -> None:
    if used:
        await open_memory(store).remember("Ada likes tea.", id="r1")
    await store.close()
    await store.close()
    error = await refusal(call(store))
    assert isinstance(error, StoreUnavailableError)
    assert not error.retryable
    assert "closed" in str(error)


async def test_close_waits_for_what_is_queued(path: Path) -> None:
    store, hold = held(path)
    memory = open_memory(store)
    first = asyncio.ensure_future(memory.remember("the one before"))
    await asyncio.to_thread(hold.reached.wait)
    tasks = await queued(store, *(memory.remember(f"fact {n}") for n in range(50)))
    reads = [asyncio.ensure_future(memory.count()) for _ in range(3)]
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    assert isinstance(await refusal(memory.remember("too late")), StoreUnavailableError)
    hold.opened.set()
    await closing
    answers = await asyncio.gather(first, *tasks)
    assert [answer.receipt.scope_revision for answer in answers] == list(range(1, 52))
    counts = await asyncio.gather(*reads)
    assert all(0 <= count <= 51 for count in counts)
    assert kept(path) == ["the one before", *(f"fact {n}" for n in range(50))]


async def test_a_close_that_is_cancelled_closes_all_the_same(path: Path) -> None:
    store, hold = held(path)
    first = asyncio.ensure_future(open_memory(store).remember("Ada likes tea."))
    await asyncio.to_thread(hold.reached.wait)
    engine = store._opened()
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    hold.opened.set()
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
        assert sorted(told) == sorted(text for text in kept(path) if text.endswith(f"in {turn}"))


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
    assert [one.name for one in path.parent.iterdir()] == ["memory.db"]  # the log went into the file
    assert kept(path) == ["Ada likes tea."]


# --- a process that ends ----------------------------------------------------------------------------------------------

WRITES = """
store = SqliteStore(PATH)
memory = MemorySession(store, SCOPE)
memory.sync.remember("acknowledged")
memory.sync.recall("acknowledged")
"""
QUEUED = """
held, opened = threading.Event(), threading.Event()

def probe(step):
    held.set()
    opened.wait()

store = SqliteStore(PATH)
store._probe = probe
memory = MemorySession(store, SCOPE)
engine = store._opened()
run = engine.run
started = threading.Semaphore(0)

def note(operation):
    future = run(operation)
    started.release()
    return future

engine.run = note
for n in range(40):
    threading.Thread(target=memory.sync.remember, args=[f"queued {n}"], daemon=True).start()
for n in range(40):
    started.acquire()
held.wait()
opened.set()
"""
ASYNC = """
async def main():
    global memory
    memory = MemorySession(SqliteStore(PATH), SCOPE)
    await asyncio.gather(*(memory.remember(f"async {n}") for n in range(10)))
    await memory.recall("async")

asyncio.run(main())
"""
ENDS = {
    "at its last line": ("", 0),
    "by sys.exit": ("sys.exit(3)", 3),
    "by an exception": ("sys.excepthook = lambda *error: None\nraise ValueError", 1),
    "with the store in a cycle": ("cycle = [store]; cycle.append(cycle); del store, memory", 0),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_process_that_forgets_close_ends_and_what_it_wrote_is_there(path: Path, how: str) -> None:
    code, status = ENDS[how]
    with Script(WRITES + code, path) as script:
        assert script.end(status) == []
    assert kept(path) == ["acknowledged"]
    assert [one.name for one in path.parent.iterdir()] == ["memory.db"]


@pytest.mark.parametrize("how", ["at its last line", "by sys.exit", "by an exception"])
def test_writes_that_are_still_queued_when_a_process_ends_are_there(path: Path, how: str) -> None:
    code, status = ENDS[how]
    with Script(QUEUED + code, path) as script:
        script.end(status)
    assert sorted(kept(path)) == sorted(f"queued {n}" for n in range(40))


def test_an_async_process_that_forgets_close_ends(path: Path) -> None:
    assert run_script(ASYNC, path) == []
    assert sorted(kept(path)) == [f"async {n}" for n in range(10)]


def test_close_may_be_registered_for_the_end_of_the_process(path: Path) -> None:
    assert run_script(WRITES + "import atexit\natexit.register(store.sync.close)", path) == []
    assert kept(path) == ["acknowledged"]


LATE = """
import atexit

def late():
    try:
        memory.sync.remember("at the very end")
    except StoreUnavailableError:
        say("refused")

atexit.register(late)  # before the store is opened, so that it runs after the store was closed
"""


def test_a_write_after_the_end_has_begun_is_refused_instead_of_waiting_for_ever(path: Path) -> None:
    assert run_script(LATE + WRITES, path) == ['"refused"']
    assert kept(path) == ["acknowledged"]


# --- fork -------------------------------------------------------------------------------------------------------------

FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of a fork beside threads: that is the point

def fork(child):
    "A child that runs a function and ends like any process, atexit handlers included; its exit code."
    if (pid := os.fork()) == 0:
        try:
            child()
        except SystemExit:
            raise
        except BaseException as error:
            print("child:", repr(error), file=sys.stderr, flush=True)
            os._exit(9)
        sys.exit(0)
    return pid

def join(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
CHILD_WRITES = """
def child():
    memory.sync.remember("of the child")
    assert len(memory.sync.recall("of the", top_k=9)) >= 1

pid = fork(child)
memory.sync.remember("of the parent")
say(join(pid))
memory.sync.remember("after")
say([memory.sync.count(), memory.sync.scope_revision()])
"""


@pytest.mark.parametrize("opened", [WRITES, WRITES.replace("memory.sync", "# memory.sync")], ids=["open", "not open"])
def test_a_forked_child_opens_the_file_anew_and_both_go_on(path: Path, opened: str) -> None:
    before = opened == WRITES
    assert run_script(FORK + opened + CHILD_WRITES, path) == ["0", json.dumps([3 + before, 3 + before])]
    assert sorted(kept(path)) == sorted([*["acknowledged"][:before], "of the child", "of the parent", "after"])


PARENT_CLOSES = """
read, write = os.pipe()
parent_read, child_write = os.pipe()

def child():
    memory.sync.remember("of the child")
    os.write(child_write, b"x")
    os.read(read, 1)
    for n in range(3):
        memory.sync.remember(f"of the child {n}")
    os.kill(os.getpid(), signal.SIGKILL)  # its writes were acknowledged

pid = fork(child)
os.read(parent_read, 1)
store.sync.close()
os.write(write, b"x")
say(join(pid))
"""


def test_what_a_child_wrote_stays_when_its_parent_closes_the_file_meanwhile(path: Path) -> None:
    """An open file carried across a fork brings the note of a lock, not the lock: the log would go with the parent."""
    assert run_script(FORK + WRITES + PARENT_CLOSES, path) == ["-9"]
    assert kept(path) == ["acknowledged", "of the child", *(f"of the child {n}" for n in range(3))]


FORKS_AMID_WRITES = """
store = SqliteStore(PATH)
memory = MemorySession(store, SCOPE)
written, ended = [], threading.Event()

def hammer(who):
    while not ended.is_set():
        written.append(memory.sync.remember(f"fact {len(written)} of {who}"))
        memory.sync.recall("fact")

threads = [threading.Thread(target=hammer, args=[who]) for who in range(2)]
for thread in threads:
    thread.start()
codes = []
for n in range(8):
    codes.append(join(fork(lambda: memory.sync.remember(f"of child {n}"))))
ended.set()
for thread in threads:
    thread.join()
say(codes)
say(memory.sync.count() == len(written) + 8 == memory.sync.scope_revision())
"""


def test_forks_in_the_middle_of_writes_lose_nothing_and_hang_nobody(path: Path) -> None:
    assert run_script(FORK + FORKS_AMID_WRITES, path) == [json.dumps([0] * 8), "true"]
    assert {f"of child {n}" for n in range(8)} <= set(kept(path))


IDLE_CHILD = """
say(join(fork(lambda: None)))
say(join(fork(lambda: store.sync.close())))
say(join(fork(lambda: sys.exit(5))))
memory.sync.remember("after")
"""


def test_a_child_that_does_not_use_the_store_ends_like_any_other(path: Path) -> None:
    assert run_script(FORK + WRITES + IDLE_CHILD, path) == ["0", "0", "5"]
    assert kept(path) == ["acknowledged", "after"]


CLOSED_BEFORE = """
store.sync.close()

def child():
    try:
        memory.sync.count()
    except StoreUnavailableError:
        sys.exit(4)

say(join(fork(child)))
"""


def test_a_store_closed_before_a_fork_is_closed_in_the_child(path: Path) -> None:
    assert run_script(FORK + WRITES + CLOSED_BEFORE, path) == ["4"]


POOL = """
import multiprocessing

def work(n):
    return memory.sync.remember(f"of worker {n}").receipt.scope_revision

with multiprocessing.get_context("fork").Pool(3) as pool:
    say(sorted(pool.map(work, range(12))))
say(memory.sync.count())
"""


def test_workers_of_a_forked_pool_share_the_store(path: Path) -> None:
    assert run_script(FORK + WRITES + POOL, path) == [json.dumps(list(range(2, 14))), "13"]
