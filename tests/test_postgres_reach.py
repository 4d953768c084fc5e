"""A server that cannot be reached: what is said at once, what is waited for, and that no password is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fakes import ADA, refusal
from postgres_proxy import proxy
from postgres_server import fresh_schema, server_uri
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from vmem_core import InvalidRequestError, MemorySession, PostgresStore, StoreUnavailableError
from vmem_core.stores import _postgres, _postgres_reach
from vmem_core.stores._postgres_reach import refusal_of


@pytest.fixture
def schema() -> Iterator[str]:
    with fresh_schema() as name:
        yield name


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """To fill the pool at all would be told by another error."""
    monkeypatch.setattr(_postgres.psycopg_pool.ConnectionPool, "getconn", lambda *_, **__: pytest.fail("it waits"))


async def told(dsn: str) -> StoreUnavailableError:
    store = PostgresStore(dsn)
    error = await refusal(store.scopes())
    await store.close()
    assert isinstance(error, StoreUnavailableError)
    assert error.__cause__ is error.__context__ is None  # the driver's words may quote what ours leave out
    return error


async def test_a_database_that_is_not_there_is_named_at_once() -> None:
    error = await told(make_conninfo(server_uri(), dbname="nope"))
    assert str(error) == (
        "the server has no database 'nope'; create it (createdb), or correct its name in the connection string"
    )
    assert not error.retryable


async def test_a_role_that_is_not_there_is_named_at_once() -> None:
    error = await told(make_conninfo(server_uri(), user="nobody here"))
    assert str(error).startswith("the server knows no role 'nobody here' that may log in; create it")
    assert not error.retryable


@pytest.fixture
def guarded() -> Iterator[str]:
    """A role whom the server asks for a password."""
    with psycopg.connect(server_uri(), autocommit=True) as connection:
        connection.execute("drop role if exists guarded")
        connection.execute("create role guarded login password 'right'")
        [file] = connection.execute("show hba_file").fetchone() or ()
        before = Path(file).read_text(encoding="utf-8")
        reload(connection, file, f"local all guarded scram-sha-256\n{before}")
        yield "guarded"
        reload(connection, file, before)
        connection.execute("drop role guarded")


def reload(connection: Any, file: str, text: str) -> None:
    """Change who may connect, and wait until the server heeds it."""
    Path(file).write_text(text, encoding="utf-8")
    [before] = connection.execute("select pg_conf_load_time(), pg_reload_conf()").fetchone()[:1]
    for _ in range(1000):
        with psycopg.connect(server_uri()) as new:
            [loaded] = new.execute("select pg_conf_load_time()").fetchone() or ()
        if loaded > before:
            return
    pytest.fail("the server does not read its settings again")


async def test_a_wrong_password_is_told_at_once_and_never_shown(guarded: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        wrong = await told(make_conninfo(server_uri(), user=guarded, password="S3cret"))
        missing = await told(make_conninfo(server_uri(), user=guarded))
    assert str(wrong).startswith("the server does not accept role 'guarded' with this password; correct them")
    assert str(missing).startswith("the server wants a password of role 'guarded'; put it into the connection string")
    assert "S3cret" not in str(wrong) + caplog.text
    assert (wrong.retryable, missing.retryable) == (False, False)


@pytest.mark.parametrize(
    ("words", "said", "retryable"),
    [
        ("connection to server at \"127.0.0.1\", port 6000 failed: Connection refused\n\tIs the server running?",
         "no PostgreSQL server listens at 'db.example', port 6000; start it", True),
        ("failed to resolve host 'db.example': [Errno -2] Name or service not known",
         "there is no host 'db.example'; correct its name", True),
        ("connection timeout expired", "nothing answers at 'db.example', port 6000; ", True),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "ada", database "notes", no encryption',
         "the server lets role 'ada' into database 'notes' neither from here nor in this way", False),
        ('FATAL:  password authentication failed for user "ada"\nFATAL:  no pg_hba.conf entry for host, no encryption',
         "the server does not accept role 'ada' with this password", False),
        ('FATAL:  permission denied for database "notes"', "role 'ada' may not connect to database 'notes'", False),
        ("FATAL:  no such database: notes", "the server has no database 'notes'", False),
        ("server does not support SSL, but SSL was required", "the server at 'db.example', port 6000 and this", False),
        ("FATAL:  Datenbank »notes« existiert nicht", "no connection can be made to the server at 'db.example'", True),
    ],
)  # fmt: skip
def test_each_cause_is_said_in_words_of_ours_with_what_to_do(words: str, said: str, retryable: bool) -> None:
    error = refusal_of(words, "postgresql://ada:S3cret@db.example:6000/notes")
    assert error is not None
    assert str(error).startswith(said)
    assert error.retryable is retryable
    assert "S3cret" not in str(error)


@pytest.mark.parametrize(
    "words",
    [
        "FATAL:  the database system is starting up", "FATAL:  sorry, too many clients already",
        "server closed the connection unexpectedly",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
    ],
)  # fmt: skip
def test_what_mends_itself_is_no_refusal(words: str) -> None:
    assert refusal_of(words, "host=db.example") is None


async def test_a_server_that_is_still_starting_is_waited_for(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # here the pool shall wait
    with proxy(server_uri()) as between:
        between.refusals = [("57P03", "the database system is starting up")] * 2
        store = PostgresStore(between.uri, schema=schema)
        assert await MemorySession(store, ADA).count() == 0
        assert between.refusals == []
        await store.close()


async def test_once_it_was_reached_a_server_that_goes_away_is_waited_for(
    schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with proxy(server_uri()) as between:
        store = PostgresStore(between.uri, schema=schema)
        memory = MemorySession(store, ADA)
        assert await memory.count() == 0
        with store._engine._pool.connection() as connection:
            connection.close()  # as a restart does with all of them
        between.refusals = [("3D000", 'database "postgres" does not exist')] * 2  # as it may look in the middle of it
        assert (await memory.remember("tea")).receipt.scope_revision == 1
        assert between.refusals == []
        await store.close()


def test_the_first_attempt_waits_a_few_seconds_unless_the_connection_string_says_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def connect(dsn: str) -> None:
        asked.append(conninfo_to_dict(dsn).get("connect_timeout"))
        raise errors.ConnectionTimeout("connection timeout expired")

    monkeypatch.setattr(_postgres_reach.psycopg, "connect", connect)
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    for dsn in ("host=db.example", "host=db.example connect_timeout=60"):
        with pytest.raises(StoreUnavailableError, match=r"nothing answers at 'db\.example'"):
            _postgres_reach.reach(dsn)
    assert asked == ["5", "60"]


@pytest.mark.parametrize(
    "dsn",
    ["postgresql://ada:S3@cret@db.example/notes", "postgresql://ada:S3/cret@db.example/notes",
     "postgresql://ada:9999999/cret@db.example/notes"],
)  # fmt: skip
def test_a_password_that_cuts_the_connection_string_is_refused_before_anything_is_asked(dsn: str) -> None:
    with pytest.raises(InvalidRequestError, match="percent-encode special characters of the password") as caught:
        PostgresStore(dsn).sync.scopes()
    assert "cret" not in str(caught.value)


def test_of_a_connection_string_that_was_read_otherwise_than_meant_no_part_is_named() -> None:
    error = refusal_of("Connection refused", "postgresql://ada:123/cret@db.example/notes")
    assert str(error).startswith("no PostgreSQL server listens at the given host, port as given; start it")
