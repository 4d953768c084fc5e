"""Forgotten text in the log of a SQLite file: who holds it there, and who removes it later."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes import open_memory, refusal, texts
from processes import Script
from sqlite_fakes import SEARCHER, Disk

from vmem_core import SqliteStore, StoreUnavailableError

SHORT = timedelta(milliseconds=50)


@pytest.fixture
def disk(path: Path) -> Iterator[Disk]:
    with Script(SEARCHER, path, library=False) as searcher:
        yield Disk(searcher)


READER = """
import sqlite3
connection = sqlite3.connect(PATH, isolation_level=None)
connection.execute("begin")
say(connection.execute("select count(*) from vmem_records").fetchone()[0])
wait()
connection.execute("rollback")
connection.close()
"""


@contextmanager
def reader(path: Path, other_process: bool) -> Iterator[Any]:
    """Somebody who reads an old state of the file; calling what it yields ends that."""
    if other_process:
        with Script(READER, path, library=False) as script:
            script.hear()
            yield lambda: (script.tell(), script.end())
    else:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("begin")
        connection.execute("select count(*) from vmem_records").fetchone()
        yield connection.close
        connection.close()


LATER = {
    "remember": lambda memory: memory.remember("another"),
    "replay": lambda memory: memory.remember("kept", id="r0", operation_id="k"),
    "forget again": lambda memory: memory.forget("r1"),
    "scrub": lambda memory: memory.store.scrub(),
}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("other_process", [True, False], ids=["another process", "another connection"])
async def test_a_reader_holds_the_log_and_a_later_operation_scrubs(
    path: Path, disk: Disk, other_process: bool, later: str
) -> None:
    async with SqliteStore(path, busy_timeout=SHORT) as store:
        memory = open_memory(store)
        await memory.remember("kept", id="r0", operation_id="k")
        await memory.remember("Ada likes tea from Tlaxcala.", id="r1")
        with reader(path, other_process) as end:
            result = await memory.forget("r1")
            assert (result.revisions, result.scrubbed) == ((1,), False)
            assert disk.holding("Tlaxcala")["Tlaxcala"] >= {"memory.db-wal"}
            assert await memory.get("r1") is None
            assert not (await memory.forget("r1")).scrubbed
            await memory.remember("while the reader reads")
            assert disk.holding("Tlaxcala")["Tlaxcala"] >= {"memory.db-wal"}
            end()
            await LATER[later](memory)
            assert disk.holding("Tlaxcala") == {}
        assert (await memory.forget("r1")).scrubbed


@pytest.mark.parametrize("other_process", [True, False], ids=["another process", "another connection"])
async def test_scrub_tells_of_a_reader_that_stays_and_works_when_it_is_gone(
    path: Path, disk: Disk, other_process: bool
) -> None:
    async with SqliteStore(path, busy_timeout=SHORT) as store:
        memory = open_memory(store)
        await memory.remember("Ada likes tea from Tlaxcala.", id="r1")
        with reader(path, other_process) as end:
            await memory.forget("r1")
            for _ in range(2):
                error = await refusal(store.scrub())
                assert isinstance(error, StoreUnavailableError)
                assert error.retryable
                assert "reader" in str(error)
            await memory.remember("written meanwhile")
            assert texts(await memory.recall("meanwhile")) == ["written meanwhile"]
            end()
            await store.scrub()
            assert disk.holding("Tlaxcala") == {}
        assert (await memory.forget("r1")).scrubbed


OWING = """
memory = MemorySession(SqliteStore(PATH, busy_timeout=timedelta(milliseconds=50)), SCOPE).sync
say(memory.forget("r1", operation_id="k").scrubbed)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("again", ["k", None])
@pytest.mark.parametrize("opened", [True, False], ids=["a store that was open", "a store opened later"])
async def test_what_a_killed_process_owed_is_scrubbed_by_the_next_forget_of_another(
    path: Path, disk: Disk, opened: bool, again: str | None
) -> None:
    store = SqliteStore(path, busy_timeout=SHORT)
    memory = open_memory(store)
    await memory.remember("Ada likes tea from Tlaxcala.", id="r1")
    await memory.remember("another")
    if not opened:
        await store.close()
    with reader(path, other_process=False) as end:
        with Script(OWING, path) as script:
            assert script.end(-9) == ["false"]
        assert disk.holding("Tlaxcala")
        end()
    if not opened:
        store = SqliteStore(path, busy_timeout=SHORT)
        memory = open_memory(store)
    result = await memory.forget("r1", operation_id=again)
    assert (result.replayed, result.already_forgotten, result.scrubbed) == (again == "k", True, True)
    assert disk.holding("Tlaxcala") == {}
    await store.close()


DYING = """
store = SqliteStore(PATH)
memory = MemorySession(store, SCOPE).sync
armed = False

def probe(step):
    if armed and step == "after commit":
        os.kill(os.getpid(), signal.SIGKILL)

store._probe = probe
memory.remember("Ada likes tea from Tlaxcala.", id="r1")
armed = True
memory.forget("r1")
"""


async def test_the_first_write_after_a_crash_scrubs_what_the_dead_process_owed(path: Path, disk: Disk) -> None:
    with Script(DYING, path) as script:
        assert script.end(-9) == []
    assert disk.holding("Tlaxcala")
    async with SqliteStore(path) as store:
        await open_memory(store).remember("another")
        assert disk.holding("Tlaxcala") == {}
