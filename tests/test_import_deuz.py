"""The readers of the Deuz SDK's legacy stores: the same records out of SQLite, PostgreSQL, a vault and Redis."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fakes import ADA, START, Clock, ids, refusal
from postgres_server import fresh_schema, server_uri
from redis_server import server_socket

from vmem_core import (
    ImportResult,
    InMemoryStore,
    InvalidRequestError,
    LegacyRecord,
    MemorySession,
    PostgresStore,
    Record,
    Scope,
    SqliteStore,
    StoreUnavailableError,
    UnsupportedError,
    from_deuz_markdown,
    from_deuz_postgres,
    from_deuz_redis,
    from_deuz_sqlite,
    import_legacy,
)
from vmem_core.legacy import deuz_sqlite
from vmem_core.legacy.deuz import camel
from vmem_core.legacy.deuz_markdown import read_note

NOW = int(START.timestamp() * 1_000)
COLUMNS = (
    "id", "text", "hash", "kind", "user_id", "agent_id", "run_id", "actor_id", "chat_id", "importance", "metadata",
    "created_at", "updated_at", "last_accessed_at", "expires_at", "valid_at", "invalid_at",
)  # fmt: skip


def row(record_id: str | None, text: str, **more: Any) -> dict[str, Any]:
    """A legacy record with its columns, all that are not given empty."""
    made = dict.fromkeys(COLUMNS)
    given = {"id": record_id, "text": text, "hash": "h", "user_id": "ada", "kind": "semantic"}
    return made | given | {"created_at": NOW - 1_000, "updated_at": NOW, **more}


ROWS = [
    row("m-1", "Ada prefers tea.", importance=0.5, metadata={"topic": "drinks", "n": [1, 2.5]}, last_accessed_at=NOW),
    row("m/2 ü:%", "Zürich – 咖啡\n\nsecond paragraph", kind="episodic", chat_id="c1"),
    row("gone", "Expired.", expires_at=NOW), row("wrong", "Invalid.", invalid_at=NOW - 5),
    row("later", "Expires later.", expires_at=NOW + 60_000, valid_at=NOW - 5), row("blank", " "),
    row("seconds", "Its times are in seconds.", created_at=NOW // 1_000), row("nobody's", "No scope.", user_id=None),
]  # fmt: skip
EXPECTED = ImportResult(8, 4, 4, {"blank": 1, "expired": 1, "invalidated": 1, "no_scope": 1})


def make_sqlite(path: Path, rows: list[dict[str, Any]], suffix: str = "") -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(
            "create table deuz_memory(id text primary key, text text, hash text, kind text, user_id text, "
            "agent_id text, run_id text, actor_id text, chat_id text, importance real, metadata text, embedding blob, "
            "embedding_model_id text, created_at integer, updated_at integer, last_accessed_at integer, "
            f"expires_at integer, valid_at integer, invalid_at integer){suffix}"
        )
        for one in rows:
            values = {**one, "metadata": json.dumps(one["metadata"]) if one["metadata"] else None}
            connection.execute(
                f"insert into deuz_memory({', '.join(COLUMNS)}, embedding, embedding_model_id) "
                f"values({', '.join('?' * len(COLUMNS))}, x'00', 'm')",
                tuple(values[name] for name in COLUMNS),
            )
    connection.close()


def as_object(one: dict[str, Any]) -> dict[str, Any]:
    """A record with its names in camel case and its scope as an object."""
    scope = {camel(name): one[name] for name in ("user_id", "chat_id") if one[name] is not None}
    rest = {camel(name): value for name, value in one.items() if value is not None and not name.endswith("_id")}
    return {**rest, "scope": scope, "embedding": [0.1], "embeddingModelId": "m"}


def make_vault(folder: Path, rows: list[dict[str, Any]]) -> None:
    for one in rows:
        fields = {
            camel(name): value for name, value in one.items() if value is not None and name not in ("text", "metadata")
        }
        lines = [
            f"{name}: {json.dumps(value, ensure_ascii=False)}"
            for name, value in {**fields, **(one["metadata"] or {})}.items()
        ]
        note = "\n".join(["---", *lines, "---", one["text"], ""])
        (folder / f"{quote(str(one['id']), safe='')}.md").write_text(note, encoding="utf-8")
    (folder / ".deuz-vectors.json").write_text("{}", encoding="utf-8")
    (folder / "notes.txt").write_text("no record", encoding="utf-8")


Source = Callable[[], AsyncIterator[LegacyRecord]]


@pytest.fixture
def sqlite(tmp_path: Path) -> Source:
    make_sqlite(tmp_path / "app.db", ROWS)
    return lambda: from_deuz_sqlite(tmp_path / "app.db")


@pytest.fixture
def markdown(tmp_path: Path) -> Source:
    make_vault(tmp_path, ROWS)
    return lambda: from_deuz_markdown(tmp_path)


@pytest.fixture
def postgres() -> Iterator[Source]:
    import psycopg

    uri = server_uri()
    with fresh_schema() as schema:
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(f'create schema "{schema}"')
            connection.execute(
                f'create table "{schema}".deuz_memory(id text primary key, text text, hash text, kind text, '
                "user_id text, "
                "agent_id text, run_id text, actor_id text, chat_id text, importance double precision, metadata jsonb, "
                "embedding_json double precision[], embedding_model_id text, created_at bigint, updated_at bigint, "
                "last_accessed_at bigint, expires_at bigint, valid_at bigint, invalid_at bigint)"
            )
            for one in ROWS:
                values = {**one, "metadata": json.dumps(one["metadata"]) if one["metadata"] else None}
                connection.execute(
                    f'insert into "{schema}".deuz_memory({", ".join(COLUMNS)}, embedding_json) '
                    f"values({', '.join(['%s'] * len(COLUMNS))}, '{{0.1}}')",
                    tuple(values[name] for name in COLUMNS),
                )
        yield lambda: from_deuz_postgres(uri, schema=schema)


@pytest.fixture
def redis() -> Source:
    import redis as driver

    socket = server_socket()
    with driver.Redis(unix_socket_path=socket) as client:
        client.flushall()
        for one in ROWS:
            client.sadd("deuz:mem:ix:all", one["id"])
            client.set(f"deuz:mem:rec:{quote(one['id'], safe=chr(39) + '!()*~-_.')}", json.dumps(as_object(one)))
        client.sadd("deuz:mem:ix:all", "an id without a record")
        client.set("other:mem:rec:m-1", "{}")
    return lambda: from_deuz_redis(f"unix://{socket}")


async def imported(store: InMemoryStore) -> dict[str, Record]:
    """Every record of the store by its id."""
    found = {}
    for scope in await store.scopes():
        for record in (await MemorySession(store, scope).list(status=None)).records:
            found[record.id] = record
    return found


@pytest.mark.parametrize("system", ["sqlite", "markdown", "postgres", "redis"])
async def test_the_same_records_come_out_of_every_legacy_store(
    system: str, request: pytest.FixtureRequest, clock: Clock
) -> None:
    source: Source = request.getfixturevalue(system)
    store = InMemoryStore(clock=clock)
    assert await import_legacy(source(), store, dry_run=True) == EXPECTED
    assert await import_legacy(source(), store) == EXPECTED
    records = await imported(store)
    assert set(records) == {"m-1", "m/2 ü:%", "later", "seconds"}
    first, second = records["m-1"], records["m/2 ü:%"]
    assert (first.text, first.importance, first.scope, first.origin) == ("Ada prefers tea.", 0.5, ADA, "inferred")
    assert first.metadata == {
        "topic": "drinks", "n": [1, 2.5],
        "legacy_import": {
            "created_at": "2026-03-01T09:59:59+00:00", "updated_at": "2026-03-01T10:00:00+00:00",
            "last_accessed_at": "2026-03-01T10:00:00+00:00",
        },
    }  # fmt: skip
    assert (second.text, second.kind) == ("Zürich – 咖啡\n\nsecond paragraph", "episodic")
    assert second.scope == Scope(user_id="ada", chat_id="c1")
    assert records["later"].expires_at == START.replace(minute=1)
    assert records["seconds"].metadata["legacy_import"]["created_at"] == "2026-03-01T10:00:00+00:00"
    again = await import_legacy(source(), store)
    assert again == ImportResult(8, 0, 8, {**EXPECTED.reasons, "already_imported": 4})


# --------------------------------------------------------------------------------------------------------- SQLite


async def test_a_legacy_table_and_the_new_store_may_share_a_file(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "app.db"
    make_sqlite(path, ROWS)
    async with SqliteStore(path, clock=clock) as store:
        assert (await import_legacy(from_deuz_sqlite(path), store, batch_size=1)).imported == 4
        assert (await import_legacy(from_deuz_sqlite(path), store)).imported == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("select count(*) from deuz_memory").fetchone() == (8,)
    connection.close()


@pytest.mark.parametrize("suffix", ["", " without rowid"])
async def test_every_page_of_the_table_is_read(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(deuz_sqlite, "_ROWS", 3)
    make_sqlite(tmp_path / "app.db", [row(f"m-{n}", f"fact {n}") for n in range(10)], suffix)
    assert (await import_legacy(from_deuz_sqlite(tmp_path / "app.db"), InMemoryStore(clock=clock))).imported == 10


async def test_odd_rows_of_the_table_are_skipped_or_mended_and_fail_no_other(tmp_path: Path, clock: Clock) -> None:
    path, store = tmp_path / "app.db", InMemoryStore(clock=clock)
    make_sqlite(path, [row(None, "no id"), row("good", "good"), row("json", "cut metadata")])
    with sqlite3.connect(path) as connection:
        connection.execute("update deuz_memory set metadata = '{' where id = 'json'")
        connection.execute(
            "insert into deuz_memory(id, text, user_id) values('bytes', cast(x'746561ff00' as text), 'ada')"
        )
        connection.execute("insert into deuz_memory(id, text, user_id) values('blob', x'00', 'ada')")
        connection.execute("insert into deuz_memory(id, text, user_id, expires_at) values('time', 't', 'ada', 'soon')")
    connection.close()
    result = await import_legacy(from_deuz_sqlite(path), store)
    assert result == ImportResult(6, 2, 4, {"no_id": 1, "unreadable": 2, "unreadable_time": 1})
    assert (await imported(store))["bytes"].text == "tea\ufffd\ufffd"


async def test_a_file_that_is_no_legacy_store_is_refused_and_stays_as_it_is(tmp_path: Path, clock: Clock) -> None:
    store = InMemoryStore(clock=clock)
    (tmp_path / "text.db").write_text("no database, but long enough to be looked at " * 10)
    sqlite3.connect(tmp_path / "other.db").close()
    for name, words in (
        ("missing.db", "there is no file"),
        ("text.db", "cannot be read"),
        ("other.db", "has no table"),
    ):
        error = await refusal(import_legacy(from_deuz_sqlite(tmp_path / name), store))
        assert isinstance(error, InvalidRequestError)
        assert (error.path, words in str(error), str(tmp_path) in str(error)) == ("path", True, False)
    assert not (tmp_path / "missing.db").exists()


async def test_a_store_of_this_library_is_refused_as_one_with_the_way_to_move_it(tmp_path: Path) -> None:
    file = SqliteStore(tmp_path / "memory.db")
    with fresh_schema() as schema:
        server = PostgresStore(server_uri(), schema=schema)
        for store, source, path in (
            (file, from_deuz_sqlite(tmp_path / "memory.db"), "path"),
            (server, from_deuz_postgres(server_uri(), schema=schema), "schema"),
        ):
            await MemorySession(store, ADA).remember("Ada likes tea.")
            await store.close()
            error = await refusal(import_legacy(source, InMemoryStore()))
            assert isinstance(error, InvalidRequestError)
            assert error.path == path
            assert "is a store of this library, and needs no import: open it as one (vmem list --store)" in str(error)
            assert not hasattr(error, "__notes__")  # nothing was read, and to run it again would not help


# ------------------------------------------------------------------------------------------------------- Markdown


@pytest.mark.parametrize(
    ("note", "found"),
    [
        ("---\nid: a\n---\ntext", {"id": "a", "text": "text"}),
        ('---\r\nid: "a: b"\r\nimportance: 1\r\n---\r\nline\r\n\r\nline\r\n', {
            "id": "a: b", "importance": 1, "text": "line\n\nline"}),
        ('---\ntags: [a, "b, c", "\\"d\\"", 1]\nempty: []\nnone:\nyes: true\n---\n', {
            "tags": ["a", "b, c", '"d"', 1], "empty": [], "none": None, "yes": True, "text": ""}),
        ("---\nurl: https://example.org/a\n---\n---\nnot a fence", {
            "url": "https://example.org/a", "text": "---\nnot a fence"}),
    ],
)  # fmt: skip
def test_a_note_is_read_as_front_matter_and_text(note: str, found: dict[str, Any]) -> None:
    assert read_note(note) == found


@pytest.mark.parametrize(
    "note",
    ["", "text alone", "---\nid: a\n", "---\nid: a\ntext", "---\nno value\n---\n", '---\nid: "a\n---\n',
     "---\nt: [a\n---\n", "---\n: a\n---\n"],
)  # fmt: skip
async def test_front_matter_that_is_cut_is_unreadable_and_fails_no_other(
    tmp_path: Path, clock: Clock, note: str
) -> None:
    make_vault(tmp_path, ROWS[:1])
    (tmp_path / "a-cut.md").write_text(note, encoding="utf-8")
    (tmp_path / "bytes.md").write_bytes(b"---\nid: \xff\n---\n")
    result = await import_legacy(from_deuz_markdown(tmp_path), InMemoryStore(clock=clock))
    assert result == ImportResult(3, 1, 2, {"unreadable": 2})


async def test_a_note_without_an_id_has_the_name_of_its_file(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "m-9.md").write_text('---\nuserId: "ada"\n---\n\nAda likes tea.\n', encoding="utf-8")
    store = InMemoryStore(clock=clock)
    await import_legacy(from_deuz_markdown(tmp_path), store)
    assert [(r.id, r.text) for r in (await imported(store)).values()] == [("m-9", "Ada likes tea.")]
    error = await refusal(import_legacy(from_deuz_markdown(tmp_path / "m-9.md"), store))
    assert str(error) == "folder: is no folder"


# ---------------------------------------------------------------------------------------------- PostgreSQL, Redis


async def test_a_database_without_the_table_or_that_cannot_be_reached_is_a_typed_error(
    postgres: Source, clock: Clock
) -> None:
    store = InMemoryStore(clock=clock)
    error = await refusal(import_legacy(from_deuz_postgres(server_uri(), schema="nowhere"), store))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "schema"
    error = await refusal(import_legacy(from_deuz_postgres("host=/nowhere password=secret dbname=x"), store))
    assert isinstance(error, StoreUnavailableError)
    assert "secret" not in str(error)


async def test_odd_values_in_redis_are_unreadable_and_another_prefix_is_read_by_its_name(
    redis: Source, clock: Clock
) -> None:
    import redis as driver

    with driver.Redis(unix_socket_path=server_socket()) as client:
        for name, value in (("cut", '{"id"'), ("list", "[]"), ("good", '{"text": "tea", "scope": {"userId": "ada"}}')):
            client.sadd("mine:mem:ix:all", name)
            client.set(f"mine:mem:rec:{name}", value)
    store = InMemoryStore(clock=clock)
    result = await import_legacy(from_deuz_redis(f"unix://{server_socket()}", "mine"), store)
    assert result == ImportResult(3, 1, 2, {"unreadable": 2})
    assert ids((await MemorySession(store, ADA).list()).records) == ["good"]


@pytest.mark.parametrize(
    ("url", "kind"),
    [("unix:///nowhere.sock", StoreUnavailableError), ("http://x", InvalidRequestError), ("", InvalidRequestError)],
)
async def test_a_redis_that_cannot_be_reached_is_a_typed_error(clock: Clock, url: str, kind: type[Exception]) -> None:
    error = await refusal(import_legacy(from_deuz_redis(url), InMemoryStore(clock=clock)))
    assert isinstance(error, kind)


@pytest.mark.parametrize(
    ("driver", "source", "extra"),
    [
        ("psycopg", lambda: from_deuz_postgres("dbname=x"), "postgres"),
        ("redis", lambda: from_deuz_redis("redis://x"), "redis"),
    ],
)
async def test_without_its_driver_a_reader_says_which_extra_it_needs(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, driver: str, source: Source, extra: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, driver, None)
    error = await refusal(import_legacy(source(), InMemoryStore(clock=clock)))
    assert isinstance(error, UnsupportedError)
    assert f'pip install "versioned-memory[{extra}]"' in str(error)
