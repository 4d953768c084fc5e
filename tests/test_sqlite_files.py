"""What stands in the place of a SQLite store's file: a wrong path, other data, other tables, a newer schema."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, open_memory, refusal, texts
from sqlite_fakes import FIRST_CALLS, contents, look, names, on_writer, sqlite_file

from vmem_core import Draft, InvalidRequestError, SchemaVersionError, SqliteStore, StoreUnavailableError

SHORT = timedelta(milliseconds=50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture(params=FIRST_CALLS)
def call(request: pytest.FixtureRequest) -> Callable[[SqliteStore], Awaitable[Any]]:
    """A first call to a store."""
    return FIRST_CALLS[request.param]


# --- the arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [":memory:", Path(":memory:"), "", b"memory.db", None, 7, "file:memory.db", "a\x00.db", ["memory.db"]],
    ids=repr,
)
def test_a_path_that_is_no_file_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SqliteStore(wrong)
    assert caught.value.path == "path"


@pytest.mark.parametrize("address", ["sqlite:///memory.db", "postgresql://ada:S3cret@db.example/memory", "mysql://x/y"])
def test_an_address_is_refused_as_no_path_and_not_repeated(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="with no scheme before it; the address of a server") as caught:
        SqliteStore(address)
    assert "S3cret" not in str(caught.value)


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
    assert names(path.parent) == ["memory.db"]


@pytest.mark.parametrize("name", ["a?mode=ro", "a#b", "a%20b", "a b'\";--", "Zürich ☕", ":memory:.db", "-"])
async def test_every_character_of_a_file_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    async with SqliteStore(tmp_path / name) as store:
        await open_memory(store).remember("Ada likes tea.")
    assert names(tmp_path) == [name]


async def test_every_connection_is_durable_zeroes_what_is_freed_and_makes_no_temporary_file(path: Path) -> None:
    async with SqliteStore(path) as store:
        await open_memory(store).remember("Ada likes tea.")
        expected = {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "temp_store": 2}

        def settings(connection: sqlite3.Connection, *_: Any) -> dict[str, Any]:
            return {name: connection.execute(f"pragma {name}").fetchone()[0] for name in expected}

        engine = store._opened()
        assert await asyncio.wrap_future(engine.write(settings)) == expected
        assert await engine.read(settings) == expected

        change = engine.read(lambda connection, _: connection.execute("delete from vmem_records"))
        with pytest.raises(StoreUnavailableError):  # a reader cannot write
            await change
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
    sqlite_file(path)
    assert contents(path.parent) == {"memory.db": b""}
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
