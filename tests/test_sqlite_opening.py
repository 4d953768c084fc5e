"""A SQLite file that others hold, or that many open at the same moment."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
from fakes import ADA, open_memory, refusal, texts
from processes import Script, start_together
from sqlite_fakes import FIRST_CALLS, look, sqlite_file, with_one_record

from vmem_core import SqliteStore, StoreUnavailableError

SHORT = timedelta(milliseconds=50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


HOLDER = """
import sqlite3
connection = sqlite3.connect(PATH, isolation_level=None)
connection.execute(ARGS[0])
if ARGS[0] == "begin immediate":
    connection.execute("create table if not exists other(x)")
say("held")
wait()
connection.execute("rollback")
connection.close()
"""


@pytest.mark.parametrize("how", ["begin immediate", "begin exclusive"])
@pytest.mark.parametrize("opened", [True, False], ids=["open already", "not yet open"])
async def test_a_file_that_another_process_holds_is_a_retryable_error_and_the_next_call_works(
    path: Path, how: str, opened: bool
) -> None:
    await with_one_record(path)
    store = SqliteStore(path, busy_timeout=SHORT)
    memory = open_memory(store)
    if opened:
        assert await memory.count() == 1
    with Script(HOLDER, path, how, library=False) as holder:
        holder.hear()
        for write in (memory.remember("Ada likes coffee.", operation_id="o1"), memory.forget("r1"), store.scrub()):
            error = await refusal(write)
            assert isinstance(error, StoreUnavailableError)
            assert error.retryable
            assert "busy_timeout" in str(error)
        assert texts(await memory.recall("tea")) == ["Ada likes tea."]  # readers are not held up
        holder.tell()
        holder.end()
    assert not (await memory.remember("Ada likes coffee.", operation_id="o1")).replayed
    assert await memory.scope_revision() == 2
    await store.scrub()
    await store.close()


@pytest.mark.parametrize("how", ["begin immediate", "begin exclusive"])
async def test_a_new_store_in_a_file_that_another_process_holds_is_a_retryable_error(path: Path, how: str) -> None:
    sqlite_file(path, "create table orders(x)")  # not yet in write-ahead mode
    store = SqliteStore(path, busy_timeout=SHORT)
    with Script(HOLDER, path, how, library=False) as holder:
        holder.hear()
        for call in FIRST_CALLS.values():
            error = await refusal(call(store))
            assert isinstance(error, StoreUnavailableError)
            assert error.retryable
        holder.tell()
        holder.end()
    assert await store.scope_revision(ADA) == 0
    await store.close()


FIRST_WRITE = """
say("ready")
wait()
memory = MemorySession(SqliteStore(PATH), SCOPE).sync
written = memory.remember(f"fact of process {ARGS[0]}")
assert memory.recall("fact of process")
say(written.receipt.scope_revision)
"""


@pytest.mark.parametrize(("foreign", "many"), [(False, 10), (True, 4)], ids=["no file", "a file with other tables"])
def test_ten_processes_open_a_new_file_at_the_same_moment(path: Path, foreign: bool, many: int) -> None:
    if foreign:
        sqlite_file(path, "create table orders(x)")
    scripts = [Script(FIRST_WRITE, path, n) for n in range(many)]
    start_together(scripts)
    revisions = [json.loads(line) for script in scripts for line in script.end()]
    assert sorted(revisions) == list(range(1, many + 1))
    assert look(path, "select version from vmem_schema") == [(1,)]
    assert look(path, "select count(*) from vmem_records") == [(many,)]
    assert look(path, "pragma integrity_check") == [("ok",)]


OPEN_AND_CLOSE = """
say("ready")
wait()
for n in range(20):
    store = SqliteStore(PATH)
    MemorySession(store, SCOPE).sync.remember(f"fact {n} of process {ARGS[0]}")
    store.sync.close()
"""


def test_processes_that_open_and_close_a_file_over_and_over_lose_nothing(path: Path) -> None:
    scripts = [Script(OPEN_AND_CLOSE, path, n) for n in range(4)]
    start_together(scripts)
    for script in scripts:
        script.end()
    assert look(path, "select count(*) from vmem_records") == [(80,)]
    assert look(path, "select revision from vmem_scopes") == [(80,)]
    assert look(path, "pragma integrity_check") == [("ok",)]


async def test_twenty_first_calls_at_once_open_the_file_once_though_one_is_cancelled(path: Path) -> None:
    store = SqliteStore(path)
    memory = open_memory(store)
    calls = [asyncio.ensure_future(memory.remember(f"fact {n}", operation_id=f"o{n}")) for n in range(20)]
    reads = [asyncio.ensure_future(memory.recall("fact")) for _ in range(5)]
    await asyncio.sleep(0)  # each is queued now
    assert calls[0].cancel()
    assert reads[0].cancel()
    answers = await asyncio.gather(*calls, *reads, return_exceptions=True)
    cancelled = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(answer) for answer in cancelled] == [asyncio.CancelledError] * 2
    stands = await memory.receipt("o0") is not None
    assert await memory.count() == await memory.scope_revision() == 19 + stands
    await store.close()


LANGUAGE_RACE = """
say("ready")
wait()
try:
    SqliteStore(PATH, language=ARGS[0]).sync.scope_revision(SCOPE)
    say(ARGS[0])
except InvalidRequestError as error:
    assert "'french'" in str(error) and "'german'" in str(error), error
    say(None)
"""


def test_of_two_processes_that_make_a_file_in_two_languages_one_is_refused(path: Path) -> None:
    scripts = [Script(LANGUAGE_RACE, path, language) for language in ("french", "german")]
    start_together(scripts)
    first, second = (json.loads(line) for script in scripts for line in script.end())
    assert (first is None) != (second is None)
    assert look(path, "select value from vmem_store where name = 'language'") == [(first or second,)]
