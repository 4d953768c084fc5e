"""The connections of one PostgreSQL store: a pool, transactions, retries, set-up, errors.

Owns when a transaction begins, ends and runs again. Holds no rule; the statements of a transaction are in
``_transaction.py`` and ``_reader.py``, the same as SQLite's.

A whole transaction is one function on a thread of a small pool, with one connection from psycopg's sync pool: any
event loop and any thread may call. Statements are pipelined: a plain write takes two round trips.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

import psycopg
import psycopg_pool
import tenacity

from vmem_core.clock import Clock
from vmem_core.errors import (
    InvalidRequestError,
    StoreUnavailableError,
    UnsupportedError,
    VmemError,
)
from vmem_core.index import IndexCache, ScopeIndex
from vmem_core.indexing import token_table
from vmem_core.operations import Operation
from vmem_core.plan import Outcome, Survey
from vmem_core.records import Scope
from vmem_core.results import Generation
from vmem_core.store import Found, Search
from vmem_core.stores import _sql, _transaction
from vmem_core.stores._database import Rows
from vmem_core.stores._postgres_sql import (
    ENTRY_PLACE,
    LOCK_GENERATIONS,
    LOCK_SCOPE,
    LOCK_SCOPES,
    TABLES,
    translate,
)
from vmem_core.stores._reader import Reader
from vmem_core.stores._settings import check_language, is_current, setting, write_settings

T = TypeVar("T")
_ATTEMPTS: Final = 12
_STRIPES: Final = 64
_SETUP_LOCK: Final = 0x766D656D  # "vmem": the advisory lock that set-up takes
_AGAIN: Final = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
)


class PostgresDatabase:
    """A psycopg connection that runs the shared statements (see ``_database.py``).

    Args:
        connection: In a transaction, maybe pipelined.
        schema: Quoted.
        own_clock: Whether the store's clock stamps instead of the database's.
    """

    def __init__(self, connection: Any, schema: str, own_clock: bool) -> None:
        self._connection, self._schema, self._own_clock = connection, schema, own_clock

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Run a shared statement; rows are waited for only when they are asked for."""
        place = ENTRY_PLACE.get(statement)
        if place is not None:
            values = [value for index, value in enumerate(values) if index != place]
        rows: Rows = _execute(self._connection, translate(statement, self._schema), values)
        return _WithoutTime(rows) if self._own_clock and statement is _sql.LOAD else rows

    def add_scope(self, key: str) -> int:
        """The id of the scope's row; the lock has made it already."""
        scope_id: int = _execute(self._connection, translate(LOCK_SCOPE[1], self._schema), (key,)).fetchone()[0]
        return scope_id

    def add_revision(self, values: tuple[int, int, int, int, str]) -> int:
        """Append a revision; its entry is known to the database alone, and used there."""
        self.execute(_sql.INSERT_REVISION, values)
        return 0

    def drop_vectors(self, table: str) -> None:
        """Drop a table of vectors: its file goes."""
        self.execute(f"drop table {table}")

    def hold_generations(self, *, exclusively: bool = False) -> None:
        """Keep others from beginning or switching generations, and writers out too if that is asked for."""
        self._connection.execute(translate(LOCK_GENERATIONS[exclusively], self._schema), ())

    def hold_scopes(self, scope_ids: Sequence[int]) -> None:
        """Keep the writers of some scopes out; always in the same order, so that nobody waits in a circle."""
        self.execute(LOCK_SCOPES, (_sql.id_list(scope_ids),)).fetchall()

    def lock(self, key: str) -> None:
        """Make the scope's row if it is missing, and hold it until the end of the transaction."""
        self.hold_generations()
        for statement in LOCK_SCOPE:
            self._connection.execute(translate(statement, self._schema), (key,))


def _execute(connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
    """Run a statement; its rows are tuples, also on a connection of the host's that makes something else of them."""
    return connection.cursor(row_factory=psycopg.rows.tuple_row).execute(statement, values)


class _WithoutTime:
    """The loaded row without the database's time, for a store with a clock of its own."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def fetchone(self) -> Any:
        return (*self._rows.fetchone()[:-1], None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def __iter__(self) -> Any:
        return iter(self._rows)


class _SharedReader(Reader):
    """A reader for several threads: one at a time in a scope, whose index is refreshed and searched."""

    def __init__(self, clock: Clock, language: str, cache_bytes: int) -> None:
        super().__init__(clock, language, cache_bytes)
        self._cache = _SharedCache(cache_bytes)
        self._stripes = [threading.RLock() for _ in range(_STRIPES)]

    def search(self, connection: Any, scope: Scope, search: Search) -> list[Found]:
        """The best hits, in order."""
        with self._stripes[hash(scope) % _STRIPES]:
            return super().search(connection, scope, search)

    def survey(self, connection: Any, scope: Scope, searches: Sequence[Search], equal_texts: Sequence[int]) -> Survey:
        """What a plan is made against. The snapshot is taken with the stripe held, so that no index is newer."""
        with self._stripes[hash(scope) % _STRIPES]:
            return super().survey(connection, scope, searches, equal_texts)


class _SharedCache(IndexCache):
    """A cache that several threads use; its lock is held for the look-up only."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._lock = threading.Lock()

    def get(self, key: Any) -> ScopeIndex | None:
        with self._lock:
            return super().get(key)

    def put(self, key: Any, index: ScopeIndex) -> None:
        with self._lock:
            super().put(key, index)


class PostgresEngine:
    """One database, used by one process.

    Args:
        target: A DSN, or the host's own ``ConnectionPool``, which is never closed here.
        schema: The schema's name, not quoted.
        pgvector: ``auto``, ``require`` or ``off``.
        clock: The store's clock; None: the database's.
        language: Of the search tokens, or None for the store's own.
        cache_bytes: How many bytes of search indexes are kept.
        fallback_clock: What expiry is judged by where no row tells the database's time.
        probe: Called with the name of each step of a write; tests stop there.
    """

    def __init__(
        self,
        target: Any,
        schema: str,
        pgvector: str,
        clock: Clock | None,
        language: str | None,
        cache_bytes: int,
        fallback_clock: Clock,
        probe: Callable[[str], None],
    ) -> None:
        self.pid = os.getpid()
        self.generation: Generation | None = None
        self._schema_name = schema
        self.schema = '"' + schema.replace('"', '""').replace("%", "%%") + '"'
        self._pgvector, self._own_clock, self._clock = pgvector, clock is not None, clock or fallback_clock
        self._asked_language, self._cache_bytes, self._probe = language, cache_bytes, probe
        self._owns_pool = isinstance(target, str)
        self._pool: psycopg_pool.ConnectionPool[Any] = (
            psycopg_pool.ConnectionPool(target, min_size=0, max_size=8, open=False, timeout=30, name="vmem")
            if self._owns_pool
            else target
        )
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="vmem-postgres")
        self._setup_lock = threading.Lock()
        self._language: str | None = None
        self._reader: _SharedReader | None = None

    # --- from any thread --------------------------------------------------------------------------------------

    def run(self, operation: Operation) -> Future[Outcome]:
        """Queue an operation: one transaction, run again while others get in its way."""
        return self._submit(lambda: self._commit(operation))

    def read(self, function: Callable[[PostgresDatabase, Reader], T]) -> Future[T]:
        """Queue a function that reads one snapshot of the database."""
        return self._submit(lambda: _again(lambda: self._snapshot(function), _reading_attempts()))

    def transact(self, function: Callable[[PostgresDatabase], T], *, lasting: bool) -> Future[T]:
        """Queue a function that writes: one transaction, run again while others get in its way.

        Args:
            function: What the transaction does.
            lasting: Whether it survives a crash of the server at once; else it does once a later commit that lasts
                is done.
        """
        return self._submit(lambda: _again(lambda: self._in_transaction(function, lasting), _attempts()))

    def see_generation(self, database: PostgresDatabase) -> Generation | None:
        """The active generation, read from the database and kept as the one last seen."""
        self.generation = _transaction.active_generation(database)
        return self.generation

    def scrub(self) -> Future[None]:
        """Queue a VACUUM of all tables: what was forgotten leaves their files."""
        return self._submit(self._vacuum)

    def stop(self) -> None:
        """Finish what is queued, and close the pool if it is ours. Not in a forked child."""
        if self.pid != os.getpid():
            return
        self._threads.shutdown(wait=True)
        if self._owns_pool:
            self._pool.close()

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        def work() -> T:
            try:
                return function()
            except BaseException as error:
                meant = meaning_of(error)
                if meant is error:
                    raise
                raise meant from None  # the driver's details may quote values

        try:
            return self._threads.submit(work)
        except RuntimeError:
            raise StoreUnavailableError("the store is closed; make a new one", retryable=False) from None

    # --- on a thread of the pool --------------------------------------------------------------------------------

    def _connect(self) -> AbstractContextManager[Any]:
        if self._owns_pool and self._pool.closed:
            self._pool.open()
        return self._pool.connection()

    def _commit(self, operation: Operation) -> Outcome:
        self._ready()
        assert self._language is not None
        tokens = token_table(operation.texts(), self._language)
        return _again(lambda: self._transact(operation, tokens), _attempts())

    def _transact(self, operation: Operation, tokens: dict[str, bytes]) -> Outcome:
        with self._connect() as connection:
            database = PostgresDatabase(connection, self.schema, self._own_clock)
            with connection.transaction(), connection.pipeline():
                database.lock(operation.scope.key)
                loaded = _transaction.load(database, operation, self._clock)
                self._probe("loaded")
                plan = operation.decide(loaded.snapshot)
                if not plan.replayed:
                    _transaction.apply(database, plan, operation.scope, loaded, tokens)
                self._probe("applied")
                outcome = _transaction.outcome(database, plan)
                self._probe("before commit")
        self._probe("after commit")
        self.generation = loaded.state.generation
        return outcome

    def _in_transaction(self, function: Callable[[PostgresDatabase], T], lasting: bool) -> T:
        self._ready()
        with self._connect() as connection, connection.transaction(), connection.pipeline():
            if not lasting:
                _execute(connection, "set local synchronous_commit to off")
            result = function(PostgresDatabase(connection, self.schema, self._own_clock))
            self._probe("before commit")
        self._probe("after commit")
        return result

    def _snapshot(self, function: Callable[[PostgresDatabase, Reader], T]) -> T:
        self._ready()
        assert self._reader is not None
        with self._connect() as connection, connection.transaction():
            _execute(connection, "set transaction isolation level repeatable read, read only")
            return function(PostgresDatabase(connection, self.schema, self._own_clock), self._reader)

    def _vacuum(self) -> None:
        self._ready()
        with self._connect() as connection:
            with connection.transaction():
                _execute(connection, translate(_sql.DROP_HUSKS, self.schema))
            connection.commit()
            autocommit = connection.autocommit
            connection.autocommit = True
            try:
                rows = _execute(
                    connection,
                    r"select quote_ident(tablename) from pg_tables where schemaname = %s and tablename like 'vmem\_%%'",
                    (self._schema_name,),
                ).fetchall()
                for (table,) in rows:
                    _execute(connection, f"vacuum full {self.schema}.{table}")
            finally:
                connection.autocommit = autocommit

    # --- set-up -------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        if self._reader is not None:
            return
        with self._setup_lock:
            if self._reader is None:
                for attempt in _attempts():
                    with attempt:
                        self._set_up()

    def _set_up(self) -> None:
        with self._connect() as connection, connection.transaction():
            self._check_server(connection)
            # Many processes may set up at once; the lock ends with the transaction, so that a pooler does no harm.
            _execute(connection, "select pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
            database = PostgresDatabase(connection, self.schema, self._own_clock)
            name = f"{self.schema}.vmem_schema".replace("%%", "%")
            if _execute(connection, "select to_regclass(%s)", (name,)).fetchone()[0] is None:
                self._make_tables(connection, database)
            elif not is_current(database):
                _transaction.tokenize_again(database, setting(database, "language"))
            check_language(database, self._asked_language)
            language = setting(database, "language")
            self.see_generation(database)
        self._language = language
        self._reader = _SharedReader(self._clock, language, self._cache_bytes)

    def _check_server(self, connection: Any) -> None:
        if _execute(connection, "show server_encoding").fetchone()[0] != "UTF8":
            raise UnsupportedError("the database's encoding must be UTF8; make the database with encoding 'UTF8'")
        has_vector = _execute(connection, "select to_regtype('vector') is not null").fetchone()[0]
        if self._pgvector == "require" and not has_vector:
            raise UnsupportedError(
                "the database has no pgvector; have its owner run `create extension vector`, or use pgvector='auto'"
            )

    def _make_tables(self, connection: Any, database: PostgresDatabase) -> None:
        _execute(connection, f"create schema if not exists {self.schema}")
        for statement in TABLES:
            database.execute(statement)
        write_settings(database, self._asked_language)


def _attempts() -> tenacity.Retrying:
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_AGAIN),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.5),
        reraise=True,
    )


def _reading_attempts() -> tenacity.Retrying:
    """A generation may be switched, and its table dropped, between a reader's snapshot and its look at the vectors."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(psycopg.errors.UndefinedTable),
        stop=tenacity.stop_after_attempt(3),
        reraise=True,
    )


def _again(function: Callable[[], T], attempts: tenacity.Retrying) -> T:
    for attempt in attempts:
        with attempt:
            return function()
    raise AssertionError("unreachable: the last attempt returns or raises")


def meaning_of(error: BaseException) -> BaseException:
    """Our error for one of the driver's; any other error as it is."""
    if isinstance(error, VmemError) or not isinstance(error, psycopg.Error | psycopg_pool.PoolTimeout):
        return error
    name = type(error).__name__
    if isinstance(error, psycopg.errors.ProgramLimitExceeded):
        return InvalidRequestError(
            "an id, or the scope as a whole, is longer than the 2,600 bytes of a PostgreSQL index entry; shorten it",
            path="scope",
        )
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailableError(
            f"the server cannot be reached or has given up the transaction ({name}); try again", retryable=True
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return StoreUnavailableError(
            "the role may not do this; grant it create and usage on the schema, or rights on the vmem_* tables",
            retryable=False,
        )
    if isinstance(error, _AGAIN):
        return StoreUnavailableError(f"other writers kept getting in the way ({name}); try again", retryable=True)
    return StoreUnavailableError(
        f"the database cannot be used as a store ({name}); check that only this library writes vmem_*", retryable=False
    )
