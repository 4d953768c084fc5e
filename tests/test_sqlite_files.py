"""What only a file can do to a SQLite store: be missing, foreign, locked, full, read-only, newer."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, open_memory, refusal, texts
from processes import Script, run_script, start_together

from vmem_core import Draft, InvalidRequestError, SchemaVersionError, SqliteStore, StoreUnavailableError

SHORT = timedelta(milliseconds=50)
FIRST_CALLS: dict[str, Callable[[SqliteStore], Awaitable[Any]]] = {
    "scope_revision": lambda store: store.scope_revision(ADA),
    "remember": lambda store: open_memory(store).remember("Ada likes tea."),
    "recall": lambda store: open_memory(store).recall("tea"),
    "forget": lambda store: open_memory(store).forget("r1"),
    "active": lambda store: store.embeddings.active(),
    "scrub": lambda store: store.scrub(),
    "enter": lambda store: store.__aenter__(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture(params=FIRST_CALLS)
def call(request: pytest.FixtureRequest) -> Callable[[SqliteStore], Awaitable[Any]]:
    """A first call to a store."""
    return FIRST_CALLS[request.param]


async def on_writer(store: SqliteStore, statement: str) -> Any:
    """The first row of a statement on the very connection that writes: some limits hold for one connection only."""
    future = store._opened().write(lambda connection: connection.execute(statement).fetchone())
    return await asyncio.wrap_future(future)


def look(path: Path, statement: str) -> list[tuple[Any, ...]]:
    """What another program sees in the file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def sqlite_file(path: Path, *statements: str) -> None:
    """A file made without the library."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


# --- the arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [":memory:", Path(":memory:"), "", b"memory.db", None, 7, "file:memory.db", "a\x00.db", ["memory.db"]], ids=repr
)
def test_a_path_that_is_no_file_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SqliteStore(wrong)
    assert caught.value.path == "path"


@pytest.mark.parametrize("wrong", [30, None, timedelta(seconds=-1), "30 s"])
def test_a_busy_timeout_must_be_a_timedelta_of_zero_or_more(path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SqliteStore(path, busy_timeout=wrong)
    assert caught.value.path == "busy_timeout"


@pytest.mark.parametrize("wrong", [-1, None, 1.5, True])
def test_the_bytes_of_the_index_cache_must_be_an_integer_of_zero_or_more(path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SqliteStore(path, index_cache_bytes=wrong)
    assert caught.value.path == "index_cache_bytes"


@pytest.mark.parametrize("days", [0, 1, 40, 100_000])
async def test_a_busy_timeout_of_any_length_is_kept_as_far_as_the_driver_can(path: Path, days: int) -> None:
    async with SqliteStore(path, busy_timeout=timedelta(days=days)) as store:
        await store.scrub()
        (kept,) = await on_writer(store, "pragma busy_timeout")
        assert kept == min(days, 24) * 86_400_000


def test_a_store_that_is_only_made_touches_no_file(path: Path) -> None:
    SqliteStore(path)
    assert not list(path.parent.iterdir())


async def test_a_relative_path_means_the_folder_of_the_moment_the_store_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    store = SqliteStore("memory.db")
    monkeypatch.chdir("/")
    await open_memory(store).remember("Ada likes tea.")
    await store.close()
    assert path.exists()


@pytest.mark.parametrize("name", ["a?mode=ro", "a#b", "a%20b", "a b'\";--", "Zürich ☕", ":memory:.db", "-"])
async def test_every_character_of_a_file_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    async with SqliteStore(tmp_path / name) as store:
        await open_memory(store).remember("Ada likes tea.")
    assert [found.name for found in tmp_path.iterdir()] == [name]


async def test_every_connection_is_durable_zeroes_what_is_freed_and_makes_no_temporary_file(path: Path) -> None:
    async with SqliteStore(path) as store:
        await open_memory(store).remember("Ada likes tea.")
        expected = {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "temp_store": 2}

        def settings(connection: sqlite3.Connection, *_: Any) -> dict[str, Any]:
            return {name: connection.execute(f"pragma {name}").fetchone()[0] for name in expected}

        engine = store._opened()
        assert await asyncio.wrap_future(engine.write(settings)) == expected
        assert await asyncio.wrap_future(engine.read(settings)) == expected

        def change(connection: sqlite3.Connection, *_: Any) -> None:
            connection.execute("delete from vmem_records")

        error = await refusal(asyncio.wrap_future(engine.read(change)))
        assert isinstance(error, StoreUnavailableError)  # a reader cannot write
        assert await open_memory(store).count() == 1


# --- what stands in place of a store ------------------------------------------------------------------------------


def not_a_database(path: Path) -> Path:
    path.write_bytes(b"This is a letter to Ada and no database. " * 200)
    return path


def too_short(path: Path) -> Path:
    path.write_bytes(b"hi")
    return path


def a_folder(path: Path) -> Path:
    path.mkdir()
    return path


def in_a_missing_folder(path: Path) -> Path:
    return path.parent / "missing" / path.name


def inside_a_file(path: Path) -> Path:
    return not_a_database(path) / "memory.db"


def damaged(path: Path) -> Path:
    store = SqliteStore(path)
    open_memory(store).sync.remember_many([Draft(f"fact {n}") for n in range(200)])
    store.sync.close()
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xa5" * (len(data) - 100))
    return path


LOGS = ("-wal", "-shm")  # SQLite leaves them beside a file that it could open but not read
UNUSABLE = {
    not_a_database: "not a SQLite database",
    too_short: "not a SQLite database",
    a_folder: "cannot be opened",
    in_a_missing_folder: "cannot be opened",
    inside_a_file: "cannot be opened",
    damaged: "damaged",
}


@pytest.mark.parametrize("make", UNUSABLE, ids=lambda make: make.__name__)
async def test_what_is_no_store_is_told_by_every_call_and_left_as_it_is(
    path: Path, make: Callable[[Path], Path]
) -> None:
    store = SqliteStore(make(path), busy_timeout=SHORT)
    before = contents(path.parent)
    for call in FIRST_CALLS.values():
        error = await refusal(call(store))
        assert isinstance(error, StoreUnavailableError)
        assert (error.code, error.retryable) == ("store_unavailable", False)
        assert UNUSABLE[make] in str(error)
    await store.close()
    assert {name: data for name, data in contents(path.parent).items() if not name.endswith(LOGS)} == before


async def test_a_store_works_as_soon_as_its_folder_is_there(path: Path) -> None:
    late = in_a_missing_folder(path)
    store = SqliteStore(late)
    assert isinstance(await refusal(store.scope_revision(ADA)), StoreUnavailableError)
    late.parent.mkdir()
    await open_memory(store).remember("Ada likes tea.")
    assert await store.scope_revision(ADA) == 1
    await store.close()


async def test_an_empty_file_becomes_a_store(path: Path, call: Callable[[SqliteStore], Awaitable[Any]]) -> None:
    path.touch()
    async with SqliteStore(path) as store:
        await call(store)
        await open_memory(store).remember("Ada likes coffee.")
        assert texts(await open_memory(store).recall("coffee")) == ["Ada likes coffee."]


NEWER = {
    "another version": ["create table vmem_schema(version integer)", "insert into vmem_schema values(99)"],
    "another version, same tables": [
        "create table vmem_schema(version integer)",
        "insert into vmem_schema values(1), (99)",
        "create table vmem_store(name text primary key, value text not null) without rowid",
        "insert into vmem_store values('language', 'english'), ('tokenizer', '1')",
    ],
    "another tokenizer": [
        "create table vmem_schema(version integer)",
        "insert into vmem_schema values(1)",
        "create table vmem_store(name text primary key, value text not null) without rowid",
        "insert into vmem_store values('language', 'english'), ('tokenizer', '99')",
    ],
}


@pytest.mark.parametrize("statements", NEWER.values(), ids=NEWER)
async def test_a_file_of_a_newer_library_is_refused_and_not_a_byte_of_it_is_changed(
    path: Path, statements: list[str]
) -> None:
    sqlite_file(path, *statements)
    before = contents(path.parent)
    store = SqliteStore(path)
    for call in FIRST_CALLS.values():
        error = await refusal(call(store))
        assert isinstance(error, SchemaVersionError)
        assert error.found in (1, 99)
        assert error.supported == 1
    await store.close()
    assert contents(path.parent) == before


FOREIGN = {
    "a table of our name": ["create table vmem_store(x)"],
    "another one": ["create table vmem_records(x)", "insert into vmem_records values('mine')"],
    "a version table of another shape": ["create table vmem_schema(v)"],
    "a version that is a word": ["create table vmem_schema(version)", "insert into vmem_schema values('one')"],
    "no version": ["create table vmem_schema(version)"],
    "no settings": ["create table vmem_schema(version)", "insert into vmem_schema values(1)"],
    "empty settings": [
        "create table vmem_schema(version)",
        "insert into vmem_schema values(1)",
        "create table vmem_store(name, value)",
    ],
    "a tokenizer that is a word": [
        "create table vmem_schema(version)",
        "insert into vmem_schema values(1)",
        "create table vmem_store(name, value)",
        "insert into vmem_store values('language', 'english'), ('tokenizer', 'one')",
    ],
    "a view": ["create view vmem_schema as select 1 as version"],
}


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
async def test_tables_that_somebody_else_named_like_ours_are_left_as_they_are(
    path: Path, statements: list[str]
) -> None:
    sqlite_file(path, *statements)
    before = contents(path.parent)
    store = SqliteStore(path)
    for call in FIRST_CALLS.values():
        error = await refusal(call(store))
        assert isinstance(error, StoreUnavailableError)
        assert not error.retryable
        assert "vmem_" in str(error)
    await store.close()
    assert contents(path.parent) == before


async def test_nothing_else_in_the_file_is_touched(path: Path) -> None:
    sqlite_file(
        path,
        "pragma page_size = 8192",
        "create table orders(id integer primary key, note text)",
        "insert into orders values(1, 'two teas'), (7, 'one coffee')",
        "create index orders_note on orders(note)",
        "create table log(line)",
        "create trigger orders_log after update on orders begin insert into log values(new.note); end",
        "create view notes as select note from orders",
        "create table vmemory(x)",
        "pragma user_version = 42",
        "pragma application_id = 77",
    )
    rest = "select type, name, sql from sqlite_schema where tbl_name not like 'vmem\\_%' escape '\\' order by name"
    questions = [rest, "select * from orders", "select * from log", "pragma user_version", "pragma application_id"]
    before = [look(path, question) for question in [*questions, "pragma page_size"]]
    async with SqliteStore(path) as store:
        memory = open_memory(store)
        kept = (await memory.remember("Ada likes tea.")).records[0]
        await memory.revise(kept.id, text="Ada likes coffee.")
        await memory.forget(kept.id)
        await store.scrub()
    assert [look(path, question) for question in [*questions, "pragma page_size"]] == before
    assert look(path, "pragma integrity_check") == [("ok",)]


async def test_a_file_keeps_its_language(path: Path) -> None:
    async with SqliteStore(path, language="french") as store:
        await open_memory(store).remember("Les chevaux mangent.")
    async with SqliteStore(path) as store:
        assert texts(await open_memory(store).recall("cheval")) == ["Les chevaux mangent."]
    async with SqliteStore(path, language="french") as store:
        assert texts(await open_memory(store).recall("cheval")) == ["Les chevaux mangent."]


async def test_another_language_than_the_files_is_refused_by_both_names(path: Path) -> None:
    async with SqliteStore(path, language="french") as store:
        await store.scope_revision(ADA)
    store = SqliteStore(path, language="english")
    for call in FIRST_CALLS.values():
        error = await refusal(call(store))
        assert isinstance(error, InvalidRequestError)
        assert error.path == "language"
        assert "'french'" in str(error)
        assert "'english'" in str(error)
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


# --- full -----------------------------------------------------------------------------------------------------------


async def test_a_full_file_refuses_writes_whole_and_works_again_when_there_is_room(path: Path) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store)
        kept = (await memory.remember("Ada likes tea.")).records[0]
        (pages,) = await on_writer(store, "pragma page_count")
        await on_writer(store, f"pragma max_page_count = {pages}")
        for long in ("x" * 50_000, "y" * 90_000):
            for write in (memory.remember(long, operation_id="big"), memory.revise(kept.id, text=long)):
                error = await refusal(write)
                assert isinstance(error, StoreUnavailableError)
                assert error.retryable
                assert "full" in str(error)
        assert await memory.receipt("big") is None
        assert (await memory.scope_revision(), await memory.count()) == (1, 1)
        assert texts(await memory.recall("tea")) == ["Ada likes tea."]
        await on_writer(store, "pragma max_page_count = 1073741823")
        assert not (await memory.remember("x" * 50_000, operation_id="big")).replayed
        assert await memory.scope_revision() == 2
    assert look(path, "pragma integrity_check") == [("ok",)]


async def test_a_write_too_big_for_a_full_file_takes_no_other_with_it_silently(path: Path) -> None:
    async with SqliteStore(path) as store:
        memory = open_memory(store)
        await memory.remember("Ada likes tea.")
        (pages,) = await on_writer(store, "pragma page_count")
        await on_writer(store, f"pragma max_page_count = {pages}")
        writes = [memory.remember("z" * 90_000 if n == 3 else f"fact {n}", operation_id=f"o{n}") for n in range(8)]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        stand = [answer.receipt for answer in answers if not isinstance(answer, BaseException)]
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(answers[3], StoreUnavailableError)
        assert all(isinstance(error, StoreUnavailableError) and error.retryable for error in refused)
        # Whoever got a receipt has its record, whoever got an error has none.
        assert [await memory.receipt(receipt.operation_id) for receipt in stand] == stand
        assert await memory.count() == 1 + len(stand) == await memory.scope_revision()


# A file that may not grow beyond a size: the kernel refuses the write, as on a full disk.
FULL_DISK = """
import resource

async def main():
    store = SqliteStore(PATH)
    memory = MemorySession(store, SCOPE)
    kept = (await memory.remember("kept", id="r1")).records[0]
    await memory.remember_many([Draft("x" * 20_000) for _ in range(40)])
    await store.scrub()
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    refused = 0
    for n in range(8):
        try:
            await memory.remember("y" * 60_000, operation_id=f"o{n}")
        except StoreUnavailableError as error:
            assert error.retryable, error
            refused += 1
            assert await memory.receipt(f"o{n}") is None
    say(refused)
    say(await memory.count())
    gone = await memory.forget("r1")
    say([gone.revisions, gone.scrubbed])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say((await memory.remember("after")).receipt.scope_revision)
    await store.close()

asyncio.run(main())
"""


def test_a_full_disk_is_a_typed_error_and_what_was_acknowledged_stands(path: Path) -> None:
    refused, count, forgotten, revision = map(json.loads, run_script(FULL_DISK, path))
    assert 3 <= refused < 8
    assert count == 41 + 8 - refused
    assert forgotten == [[1], False]  # it stands; the log cannot be cut yet
    assert revision == 2 + 8 - refused + 2
    assert look(path, "pragma integrity_check") == [("ok",)]
    assert look(path, "select count(*) from vmem_receipts") == [(revision,)]
    assert b"kept" not in path.read_bytes()


# --- read-only ------------------------------------------------------------------------------------------------------

# The right to write binds nobody who is root, so a root gives it up; what is imported later it could not read perhaps.
UNPRIVILEGED = """
import concurrent.futures.thread, vmem_core.stores._sqlite, vmem_core.stores._transaction
from vmem_core import tokens
tokens.query_tokens("warm", "english")
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

async def main():
    store = SqliteStore(PATH)
    memory = MemorySession(store, SCOPE)
    for name, verb in (("write", lambda: memory.remember("Ada likes coffee.")), ("read", lambda: memory.recall("tea"))):
        try:
            found = await verb()
            say([name, [hit.record.text for hit in found]])
        except StoreUnavailableError as error:
            say([name, error.retryable, str(error)])
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A file that does not exist yet, in a folder that other users can reach: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder) / "memory.db"
        os.chmod(folder, 0o755)


async def with_one_record(path: Path) -> None:
    async with SqliteStore(path) as store:
        await open_memory(store).remember("Ada likes tea.")


def test_a_new_file_in_a_folder_that_cannot_be_written_is_told(open_path: Path) -> None:
    open_path.parent.chmod(0o555)
    for line in run_script(UNPRIVILEGED, open_path):
        _, retryable, message = json.loads(line)
        assert not retryable
        assert "cannot be opened; check that its folder exists and can be written" in message
    assert not contents(open_path.parent)


@pytest.mark.parametrize("folder", [0o555, 0o777])
async def test_a_file_that_cannot_be_written_refuses_writes_and_says_why(open_path: Path, folder: int) -> None:
    await with_one_record(open_path)
    before = open_path.read_bytes()
    open_path.chmod(0o444)
    open_path.parent.chmod(folder)
    answers = [json.loads(line) for line in run_script(UNPRIVILEGED, open_path)]
    write, read = (answer[1:] for answer in answers)
    assert write[0] is False
    assert "give this process write access to it and its folder" in write[1]
    # Another process may write at any time, so that even a reader needs the two files beside this one.
    assert read == ([["Ada likes tea."]] if folder == 0o777 else write)
    assert open_path.read_bytes() == before


# --- locked, and opened by many at once -----------------------------------------------------------------------------

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
    with Script(HOLDER, path, how) as holder:
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
    with Script(HOLDER, path, how) as holder:
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


@pytest.mark.parametrize("foreign", [False, True], ids=["no file", "a file with other tables"])
def test_ten_processes_open_a_new_file_at_the_same_moment(path: Path, foreign: bool) -> None:
    if foreign:
        sqlite_file(path, "create table orders(x)")
    scripts = [Script(FIRST_WRITE, path, n) for n in range(10)]
    start_together(scripts)
    revisions = [json.loads(line) for script in scripts for line in script.end()]
    assert sorted(revisions) == list(range(1, 11))
    assert look(path, "select version from vmem_schema") == [(1,)]
    assert look(path, "select count(*) from vmem_records") == [(10,)]
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
