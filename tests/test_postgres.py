"""What only PostgreSQL can break: pools, schemas, roles, a server that is away, many processes at set-up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest
from fakes import ADA, BOB, FakeEmbedder
from postgres_server import fresh_schema, server_uri
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from vmem_core import (
    InvalidRequestError,
    Limits,
    MemorySession,
    PostgresStore,
    RecordConflictError,
    RevisionConflictError,
    SchemaVersionError,
    Scope,
    StoreUnavailableError,
    VmemError,
)
from vmem_core.stores import _postgres, _postgres_database
from vmem_core.values import to_micros


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


@pytest.mark.parametrize("name", ["my-schema", "Select", 'a"b', "o'brien; drop schema public", "\u65e5\u672c %s"])
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


FOREIGN = {
    "vmem_schema": ("table {}.vmem_schema(version text)",),
    "vmem_schema of another shape": ("table {}.vmem_schema(number integer)",),
    "a view": ("view {}.vmem_schema as select 1 as version",),
    "vmem_records": ("table {}.vmem_records(song text)",),
    "a sequence": ("sequence {}.vmem_entries",),
}


@pytest.mark.parametrize("made", FOREIGN.values(), ids=FOREIGN)
async def test_tables_of_our_names_that_somebody_else_made_are_refused_and_left_alone(
    uri: str, schema: str, made: tuple[str, ...]
) -> None:
    run(uri, f'create schema "{schema}"')
    for statement in made:
        run(uri, "create " + statement.format(f'"{schema}"'))
    before = relations(uri, schema)
    store = PostgresStore(uri, schema=schema)
    with pytest.raises(StoreUnavailableError, match="vmem_") as caught:
        await MemorySession(store, ADA).remember("tea")
    assert not caught.value.retryable
    assert relations(uri, schema) == before
    await store.close()


async def test_a_table_of_vectors_that_somebody_else_made_is_refused_at_the_first_vector(
    store: PostgresStore, uri: str, schema: str
) -> None:
    await store.scopes()
    run(uri, f'create table "{schema}".vmem_vectors_1(song text)')
    with pytest.raises(StoreUnavailableError, match="did not make") as caught:
        await MemorySession(store, ADA, embedder=FakeEmbedder()).remember("tea")
    assert not caught.value.retryable
    assert await MemorySession(store, ADA).count() == 0
    assert not (await MemorySession(store, ADA).remember("tea")).replayed  # by words alone


async def test_other_tables_of_the_schema_are_left_alone(uri: str, schema: str) -> None:
    run(uri, f'create schema "{schema}"')
    run(uri, f"create table \"{schema}\".songs as select 'la' as song")
    store = PostgresStore(uri, schema=schema)
    memory = MemorySession(store, ADA, embedder=FakeEmbedder())
    record = (await memory.remember("tea")).records[0]
    await memory.forget(record.id)
    await store.scrub()
    await store.close()
    with psycopg.connect(uri) as connection:
        assert connection.execute(f'select song from "{schema}".songs'.encode()).fetchall() == [("la",)]


def relations(uri: str, schema: str) -> list[tuple[str, str]]:
    """Names and kinds of all that lies in the schema."""
    with psycopg.connect(uri) as connection:
        return connection.execute(
            "select relname, relkind::text from pg_class where relnamespace = %s::regnamespace order by 1",
            (f'"{schema}"',),
        ).fetchall()


async def test_a_role_that_may_use_one_schema_alone_and_create_no_extension_has_a_whole_store(
    uri: str, schema: str
) -> None:
    role = f"vmem role {schema}"
    run(uri, f'create role "{role}" login')
    run(uri, f'create schema "{schema}" authorization "{role}"')
    try:
        store = PostgresStore(make_conninfo(uri, user=role), schema=schema)
        memory = MemorySession(store, ADA, embedder=FakeEmbedder())
        record = (await memory.remember("tea")).records[0]
        assert (await memory.revise(record.id, text="green tea")).records[0].revision == 2
        assert [hit.match for hit in await memory.recall("green tea")] == ["hybrid"]
        await memory.forget(record.id)
        await store.scrub()
        await store.close()
    finally:
        run(uri, f'drop owned by "{role}" cascade')
        run(uri, f'drop role "{role}"')


async def test_of_two_languages_at_the_first_set_up_one_is_kept_and_the_other_told(uri: str, schema: str) -> None:
    languages = ["english", "french", "english", "french"]
    stores = [PostgresStore(uri, schema=schema, language=language) for language in languages]
    answers = await asyncio.gather(*(store.scopes() for store in stores), return_exceptions=True)
    kept = {language for language, answer in zip(languages, answers, strict=True) if not isinstance(answer, Exception)}
    assert len(kept) == 1
    for language, answer in zip(languages, answers, strict=True):
        assert isinstance(answer, InvalidRequestError) is (language not in kept)
    for store in stores:
        await store.close()


async def test_a_database_whose_clock_steps_back_reorders_nothing(store: PostgresStore, uri: str, schema: str) -> None:
    memory = MemorySession(store, ADA)
    first = (await memory.remember("tea", id="r1", ttl=timedelta(hours=1))).records[0]
    later = first.recorded_at + timedelta(days=1)  # as if the last commit had been stamped a day ahead of now
    run(uri, f'update "{schema}".vmem_scopes set last_stamp = {to_micros(later)}')
    revised = (await memory.revise("r1", text="coffee")).records[0]
    assert (revised.recorded_at, revised.scope_revision) == (later, 2)
    assert (await memory.remember("rain")).receipt.committed_at == later
    assert [hit.record.text for hit in await memory.recall()] == ["rain"]  # of the hour nothing is left


async def test_an_id_of_a_megabyte_that_the_limits_let_pass_is_refused_whole(store: PostgresStore) -> None:
    memory = MemorySession(store, ADA, limits=Limits(id_chars=2**21))
    long = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(2**20))  # does not compress
    for write in (memory.remember("tea", id=long), memory.remember("tea", operation_id=long)):
        with pytest.raises(InvalidRequestError):
            await write
    assert (await memory.scope_revision(), await memory.count()) == (0, 0)
    assert (await memory.remember("tea", operation_id="short")).receipt.scope_revision == 1


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


async def test_a_server_that_takes_no_writes_says_where_to_write(store: PostgresStore, uri: str, schema: str) -> None:
    await MemorySession(store, ADA).remember("tea")
    read_only = PostgresStore(uri + "&options=-c%20default_transaction_read_only%3Don", schema=schema)
    memory = MemorySession(read_only, ADA)
    assert [hit.record.text for hit in await memory.recall("tea")] == ["tea"]
    with pytest.raises(StoreUnavailableError, match="primary") as caught:
        await memory.remember("rain")
    assert not caught.value.retryable
    await read_only.close()


async def test_a_refusal_in_mid_transaction_leaves_no_text_in_the_drivers_log(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    memory = MemorySession(store, ADA)
    record = (await memory.remember("tea")).records[0]
    await asyncio.gather(
        *(memory.revise(record.id, text="SENTINEL", expected_revision=1) for _ in range(10)),
        *(memory.remember("SENTINEL", id="one") for _ in range(10)),
        return_exceptions=True,
    )
    assert "SENTINEL" not in caplog.text


@pytest.mark.parametrize("dsn", ["postgresql://ada:S3cret%zz@localhost/db", "host=localhost password", "tea"])
def test_what_is_no_connection_string_is_refused_at_once_without_quoting_it(dsn: str) -> None:
    with pytest.raises(InvalidRequestError, match="percent-encode") as caught:
        PostgresStore(dsn).sync.scopes()
    assert caught.value.path == "dsn_or_pool"
    assert "S3cret" not in str(caught.value)


@pytest.mark.parametrize("dsn", ["mysql://ada:S3cret@localhost/db", "postgresql+psycopg://ada:S3cret@localhost/db"])
def test_an_address_of_another_kind_is_refused_naming_the_kind_that_is_taken(dsn: str) -> None:
    with pytest.raises(InvalidRequestError, match="PostgresStore takes postgresql://USER@HOST/DATABASE") as caught:
        PostgresStore(dsn)
    assert caught.value.path == "dsn_or_pool"
    assert "S3cret" not in str(caught.value)


async def test_nothing_of_our_own_pool_s_connection_string_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_postgres._POOL, "timeout", 0.3)
    away = PostgresStore("postgresql://ada:S3@cret@nowhere.invalid/db?host=/nowhere")
    with caplog.at_level("DEBUG"), pytest.raises(StoreUnavailableError):
        await away.scopes()
    assert "cret" not in caplog.text
    await away.close()


async def test_a_doctor_looks_while_generations_switch(store: PostgresStore, uri: str, schema: str) -> None:
    memory, other = MemorySession(store, ADA, embedder=FakeEmbedder()), PostgresStore(uri, schema=schema)
    await memory.remember("tea")
    switched = asyncio.Event()

    async def switch() -> None:
        for number in range(8):
            model = FakeEmbedder(model=f"model-{number}")
            assert (await memory.reembed(embedder=model, model_id=model.model, dims=model.dims)).activated
        switched.set()

    async def look() -> None:
        while not switched.is_set():
            assert await other.diagnose() == []

    await asyncio.gather(switch(), look(), look())
    await other.close()


async def test_a_switch_that_a_long_reader_holds_up_lets_writers_through(
    store: PostgresStore, uri: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres_database, "_LONGEST_SWITCH", "20ms")
    memory = MemorySession(store, ADA, embedder=FakeEmbedder())
    await memory.remember("tea")
    model = FakeEmbedder(model="next")
    with psycopg.connect(uri) as reader:
        reader.execute(f'select * from "{schema}".vmem_vectors_1')  # type: ignore[call-overload]
        moving = asyncio.ensure_future(memory.reembed(embedder=model, model_id=model.model, dims=model.dims))
        for number in range(10):
            await MemorySession(store, BOB).remember(f"rain {number}")
        reader.rollback()
    assert (await moving).activated
    assert await store.diagnose() == []
