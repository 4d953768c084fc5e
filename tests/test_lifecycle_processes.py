"""A store and the process it lives in: ends without close, and forks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import Script, run_script
from sqlite_fakes import kept_texts, names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


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
    assert kept_texts(path) == ["acknowledged"]
    assert names(path.parent) == ["memory.db"]


@pytest.mark.parametrize("how", ["at its last line", "by sys.exit", "by an exception"])
def test_writes_that_are_still_queued_when_a_process_ends_are_there(path: Path, how: str) -> None:
    code, status = ENDS[how]
    with Script(QUEUED + code, path) as script:
        script.end(status)
    assert sorted(kept_texts(path)) == sorted(f"queued {n}" for n in range(40))


def test_an_async_process_that_forgets_close_ends(path: Path) -> None:
    assert run_script(ASYNC, path) == []
    assert sorted(kept_texts(path)) == [f"async {n}" for n in range(10)]


def test_close_may_be_registered_for_the_end_of_the_process(path: Path) -> None:
    assert run_script(WRITES + "import atexit\natexit.register(store.sync.close)", path) == []
    assert kept_texts(path) == ["acknowledged"]


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
    assert kept_texts(path) == ["acknowledged"]


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
    assert sorted(kept_texts(path)) == sorted([*["acknowledged"][:before], "of the child", "of the parent", "after"])


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
    assert kept_texts(path) == ["acknowledged", "of the child", *(f"of the child {n}" for n in range(3))]


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
    assert {f"of child {n}" for n in range(8)} <= set(kept_texts(path))


IDLE_CHILD = """
say(join(fork(lambda: None)))
say(join(fork(lambda: store.sync.close())))
say(join(fork(lambda: sys.exit(5))))
memory.sync.remember("after")
"""


def test_a_child_that_does_not_use_the_store_ends_like_any_other(path: Path) -> None:
    assert run_script(FORK + WRITES + IDLE_CHILD, path) == ["0", "0", "5"]
    assert kept_texts(path) == ["acknowledged", "after"]


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
