"""What only PostgreSQL can break: pools, schemas, roles, a server that is away, many processes at set-up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from fakes import ADA, BOB, FakeEmbedder
from postgres_server import fresh_schema, server_uri
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from vmem_core import (
    InvalidRequestError,
    MemorySession,
    PostgresStore,
    RecordConflictError,
    RevisionConflictError,
    SchemaVersionError,
    Scope,
    StoreUnavailableError,
    VmemError,
)


@pytest.fixture
def uri() -> str:
    return server_uri()


@pytest.fixture
def schema() -> Iterator[str]:
    with fresh_schema() as name:
        yield name


@pytest.fixture
async def store(uri: str, schema: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(uri, schema=schema)
    yield made
    await made.close()


def run(uri: str, statement: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(statement)


async def test_a_bare_connection_is_a_type_error_that_names_the_pool(uri: str) -> None:
    with psycopg.connect(uri) as connection, pytest.raises(TypeError, match="ConnectionPool"):
        PostgresStore(connection)


async def test_an_async_pool_is_a_type_error_that_names_the_pool(uri: str) -> None:
    pool = AsyncConnectionPool(uri, open=False)
    with pytest.raises(TypeError, match=r"psycopg_pool\.ConnectionPool"):
        PostgresStore(pool)


async def test_a_pool_of_the_host_is_used_and_stays_open(uri: str, schema: str) -> None:
    with ConnectionPool(uri, min_size=1, max_size=1, open=True) as pool:
        store = PostgresStore(pool, schema=schema)
        sessions = [MemorySession(store, ADA) for _ in range(50)]
        await asyncio.gather(*(one.remember(f"tea {n}") for n, one in enumerate(sessions)))
        assert await sessions[0].count() == 50
        await store.close()
        with pool.connection() as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        with pytest.raises(StoreUnavailableError):
            await sessions[0].count()


async def test_a_pool_whose_rows_are_dicts_serves_as_well(uri: str, schema: str) -> None:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(uri, kwargs=options, min_size=1, max_size=2, open=True) as pool:
        store = PostgresStore(pool, schema=schema)
        memory = MemorySession(store, ADA, embedder=FakeEmbedder())
        record = (await memory.remember("tea")).records[0]
        assert [hit.record for hit in await memory.recall("tea")] == [record]
        await memory.forget(record.id)
        await store.scrub()
        await store.close()


async def test_a_refusal_is_not_its_own_cause(store: PostgresStore) -> None:
    with pytest.raises(VmemError) as caught:
        await MemorySession(store, ADA).retract("nope")
    assert caught.value.__cause__ is None


async def test_a_scope_too_long_for_an_index_is_refused_before_anything_is_written(store: PostgresStore) -> None:
    words = [chr(0x4E00 + number * 7919 % 20_000) for number in range(1024)]  # what does not compress
    long = Scope(user_id="".join(words[:512]), chat_id="".join(words[512:]))
    with pytest.raises(InvalidRequestError) as caught:
        await MemorySession(store, long).remember("tea")
    assert caught.value.path == "scope"
    assert list(await store.scopes()) == []


async def test_an_older_tokenizer_is_brought_up_to_date_at_set_up(store: PostgresStore, uri: str, schema: str) -> None:
    await MemorySession(store, ADA).remember("green teas")
    run(uri, f"""update "{schema}".vmem_store set value = '0' where name = 'tokenizer'""")
    run(uri, f"""update "{schema}".vmem_records set tokens = ''::bytea""")
    again = PostgresStore(uri, schema=schema)
    assert [hit.record.text for hit in await MemorySession(again, ADA).recall("tea")] == ["green teas"]
    await again.close()


@pytest.mark.parametrize("name", ["my-schema", "Select", 'a"b', "x; drop schema public", "sch\u00e9ma", "%s"])
async def test_any_schema_name_is_quoted(uri: str, name: str) -> None:
    store = PostgresStore(uri, schema=name)
    try:
        memory = MemorySession(store, ADA, embedder=FakeEmbedder())
        record = (await memory.remember("tea")).records[0]
        await memory.revise(record.id, text="green tea")
        assert [hit.record.text for hit in await memory.recall("tea")] == ["green tea"]
        await store.scrub()
    finally:
        await store.close()
        run(uri, 'drop schema "{}" cascade'.format(name.replace('"', '""')))


async def test_a_schema_name_beyond_63_bytes_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        PostgresStore(uri, schema="\u00e9" * 32)
    assert caught.value.path == "schema"


async def test_an_unreachable_server_is_unavailable_and_the_next_call_after_it_returns_works(
    uri: str, schema: str
) -> None:
    with ConnectionPool(uri, min_size=0, max_size=2, open=False, timeout=4) as pool:
        pool.open()
        store = PostgresStore(pool, schema=schema)
        memory = MemorySession(store, ADA)
        pool.conninfo = "host=/nowhere dbname=none connect_timeout=1"
        with pytest.raises(StoreUnavailableError) as caught:
            await memory.remember("tea", operation_id="k")
        assert caught.value.retryable
        assert "tea" not in str(caught.value)
        pool.conninfo = uri
        assert not (await memory.remember("tea", operation_id="k")).replayed
        await store.close()


async def test_a_backend_that_is_ended_in_mid_use_is_replaced(store: PostgresStore, uri: str) -> None:
    memory = MemorySession(store, ADA)
    await memory.remember("tea", operation_id="k")
    run(
        uri,
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and backend_type = "
        "'client backend'",
    )
    for _ in range(20):  # as many as the pool may hold broken connections
        try:
            assert (await memory.remember("tea", operation_id="k")).replayed
            break
        except StoreUnavailableError as error:
            assert error.retryable  # noqa: PT017 - each call is either right or says that it can be tried again
    else:
        pytest.fail("never came back")


async def test_twenty_stores_set_up_one_schema_at_once(uri: str, schema: str) -> None:
    stores = [PostgresStore(uri, schema=schema) for _ in range(8)]
    await asyncio.gather(*(MemorySession(one, ADA).remember(f"tea {n}") for n, one in enumerate(stores)))
    assert await MemorySession(stores[0], ADA).count() == 8
    for one in stores:
        await one.close()


async def test_another_language_is_refused_naming_both(store: PostgresStore, uri: str, schema: str) -> None:
    await store.scopes()
    other = PostgresStore(uri, schema=schema, language="french")
    with pytest.raises(InvalidRequestError, match=r"english.*french") as caught:
        await other.scopes()
    assert caught.value.path == "language"
    await other.close()


async def test_a_newer_schema_is_refused_and_nothing_is_changed(store: PostgresStore, uri: str, schema: str) -> None:
    await MemorySession(store, ADA).remember("tea")
    run(uri, f'update "{schema}".vmem_schema set version = 99')
    newer = PostgresStore(uri, schema=schema)
    with pytest.raises(SchemaVersionError) as caught:
        await newer.scopes()
    assert (caught.value.found, await MemorySession(store, ADA).count()) == (99, 1)
    await newer.close()


async def test_tables_of_our_names_that_somebody_else_made_are_refused(uri: str, schema: str) -> None:
    run(uri, f'create schema "{schema}"')
    run(uri, f'create table "{schema}".vmem_schema(version text)')
    store = PostgresStore(uri, schema=schema)
    with pytest.raises(StoreUnavailableError, match="did not make") as caught:
        await store.scopes()
    assert not caught.value.retryable
    await store.close()


async def test_a_role_without_rights_is_told_what_to_grant(uri: str, schema: str) -> None:
    run(uri, "drop role if exists vmem_guest")
    run(uri, "create role vmem_guest login")
    guest = PostgresStore(uri.replace("postgres:@", "vmem_guest:@"), schema=schema)
    with pytest.raises(StoreUnavailableError, match="grant") as caught:
        await guest.scopes()
    assert not caught.value.retryable
    await guest.close()
    run(uri, "drop role vmem_guest")


async def test_one_id_created_in_two_scopes_at_once_is_a_conflict_for_one(store: PostgresStore) -> None:
    for round_number in range(10):
        made = await asyncio.gather(
            *(MemorySession(store, scope).remember("tea", id=f"r{round_number}") for scope in (ADA, BOB)),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in made) == ["RecordConflictError", "WriteResult"]
        assert all(isinstance(one, RecordConflictError) for one in made if isinstance(one, VmemError))


async def test_of_two_revisers_one_wins(store: PostgresStore) -> None:
    memory = MemorySession(store, ADA)
    record = (await memory.remember("tea")).records[0]
    for revision in range(1, 20):
        made = await asyncio.gather(
            memory.revise(record.id, text="x", expected_revision=revision),
            memory.revise(record.id, text="y", expected_revision=revision),
            return_exceptions=True,
        )
        assert sum(isinstance(one, RevisionConflictError) for one in made) == 1
    assert [one.revision for one in await memory.history(record.id)] == list(range(1, 21))


async def test_after_forget_and_scrub_no_table_holds_the_text(store: PostgresStore, uri: str, schema: str) -> None:
    memory = MemorySession(store, ADA, embedder=FakeEmbedder())
    record = (await memory.remember("SENTINEL seven", metadata={"note": "SENTINEL"})).records[0]
    await memory.revise(record.id, text="SENTINEL eight")
    kept = (await memory.remember("tea")).records[0]
    await memory.forget(record.id)
    await store.scrub()
    with psycopg.connect(uri) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = %s", (schema,)).fetchall()
        assert len(tables) > 8
        for (table,) in tables:
            rows = connection.execute(f'select t::text from "{schema}".{table} t').fetchall()  # type: ignore[arg-type]
            assert "SENTINEL" not in str(rows)
    assert await memory.get(kept.id) == kept


async def test_the_database_stamps_commits(store: PostgresStore, uri: str) -> None:
    with psycopg.connect(uri) as connection:
        before = connection.execute("select clock_timestamp()").fetchone()
        receipt = (await MemorySession(store, ADA).remember("tea")).receipt
        after = connection.execute("select clock_timestamp()").fetchone()
    assert before is not None
    assert after is not None
    assert before[0] <= receipt.committed_at <= after[0]


async def test_ids_of_scopes_count_scopes_and_not_writes(store: PostgresStore, uri: str, schema: str) -> None:
    for n in range(5):
        await MemorySession(store, ADA).remember(f"tea {n}")
    await MemorySession(store, BOB).remember("tea")
    with psycopg.connect(uri) as connection:
        rows = connection.execute(f'select scope_id from "{schema}".vmem_scopes order by scope_id')  # type: ignore[arg-type]
        assert rows.fetchall() == [(1,), (2,)]
