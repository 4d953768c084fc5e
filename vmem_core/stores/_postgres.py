"""The connections of one PostgreSQL store: a pool, transactions, retries, set-up, errors.

Owns when a transaction begins, ends and runs again. Holds no rule; the statements of a transaction are in
``_transaction.py`` and ``_reader.py``, the same as SQLite's.

A whole transaction is one function on a thread of a small pool, with one connection from psycopg's sync pool: any
event loop and any thread may call. Statements are pipelined: a plain write takes two round trips.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
import psycopg_pool

from vmem_core.clock import Clock
from vmem_core.errors import (
    StoreUnavailableError,
    UnsupportedError,
)
from vmem_core.imports import Import
from vmem_core.index import IndexCache, Outside, Query, ScopeIndex
from vmem_core.indexing import token_table
from vmem_core.operations import Operation
from vmem_core.plan import Outcome, Survey
from vmem_core.records import Scope
from vmem_core.results import Finding, Generation
from vmem_core.store import Found, Progress, Search
from vmem_core.stores import _imports, _sql, _transaction
from vmem_core.stores._calls import awaited
from vmem_core.stores._postgres_database import READ, WRITE, Layout, PostgresDatabase, find_type, run, transaction
from vmem_core.stores._postgres_errors import (
    AGAIN,
    again,
    attempts,
    check_dsn,
    has_ended,
    meaning_of,
    reading_attempts,
    silence_own_pool,
)
from vmem_core.stores._postgres_reach import reach
from vmem_core.stores._postgres_sql import TABLES, translate
from vmem_core.stores._postgres_vectors import slack
from vmem_core.stores._reader import Reader, matrix
from vmem_core.stores._settings import check_language, is_current, setting, write_settings
from vmem_core.stores._transaction import ScopeState

T = TypeVar("T")
_STRIPES: Final = 64
# Prepared statements belong to a connection of the server's, which a pooler in transaction mode hands to others.
_OPTIONS: Final = {"prepare_threshold": None}
# Who waits meets at least one attempt to reach the server: the pauses between them never outlast a wait.
_POOL: Final[dict[str, Any]] = {
    "min_size": 0, "max_size": 8, "open": False, "timeout": 30, "reconnect_timeout": 30, "name": "vmem"
}  # fmt: skip
silence_own_pool(_POOL["name"])
_SETUP_LOCK: Final = 0x766D656D  # "vmem": the advisory lock that set-up takes


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

    def _outside(self, connection: Any, state: ScopeState, query: Query) -> Outside | None:
        """The vectors of a scope too large for memory: those that pgvector puts first, else all."""
        generation = state.generation
        if generation is None or query.vector is None:
            return None
        pages = connection.nearest(generation.number, state.numbers, query.vector.tobytes(), query.list_depth)
        if pages is None:
            return super()._outside(connection, state, query)
        blocks = (matrix(rows, generation.dims) for rows in pages)
        return Outside(blocks, self._finder(connection, generation), slack(generation.dims))


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
        self._layout = Layout(self.schema, own_clock=clock is not None)
        self._pgvector, self._clock = pgvector, clock or fallback_clock
        self._asked_language, self._cache_bytes, self._probe = language, cache_bytes, probe
        self._owns_pool = isinstance(target, str)
        if self._owns_pool:
            check_dsn(target)
        self._pool: psycopg_pool.ConnectionPool[Any] = (
            psycopg_pool.ConnectionPool(target, kwargs=_OPTIONS, **_POOL) if self._owns_pool else target
        )
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="vmem-postgres")
        self._setup_lock = threading.Lock()
        self._language: str | None = None
        self._reader: _SharedReader | None = None

    # --- from any thread --------------------------------------------------------------------------------------

    def run(self, operation: Operation) -> Awaitable[Outcome]:
        """Queue an operation: one transaction, run again while others get in its way."""
        return awaited(self._submit(lambda: self._commit(operation)))

    def run_imports(self, operations: Sequence[Import], dry_run: bool) -> Future[list[str | None]]:
        """Queue a batch of imports: one transaction, run again while others get in its way."""
        return self._submit(lambda: self._commit_imports(operations, dry_run))

    def change(self, scopes: Sequence[Scope], function: Callable[[PostgresDatabase], T]) -> Future[T]:
        """Queue a function that writes in one transaction, with the scopes held."""
        return self._submit(lambda: self._change(scopes, function))

    def scrub_soon(self) -> Future[None]:
        """Nothing to do: old rows wait for VACUUM, which ``scrub`` runs."""
        return self._submit(lambda: None)

    @property
    def language(self) -> str:
        """The language of the search tokens, once the database was reached."""
        assert self._language is not None
        return self._language

    def meaning(self, error: BaseException) -> BaseException:
        """Our error for one of the driver's."""
        return meaning_of(error)

    @contextmanager
    def snapshot_apart(self) -> Iterator[PostgresDatabase]:
        """A connection of the pool in one snapshot of the database, for many reads."""
        self._ready()
        with self._connect() as connection, transaction(connection, READ):
            yield PostgresDatabase(connection, self._layout)

    @contextmanager
    def transaction_apart(self, scope: Scope) -> Iterator[PostgresDatabase]:
        """A connection of the pool in one transaction that holds a scope, for many writes."""
        self._ready()
        with self._connect() as connection, transaction(connection, WRITE):
            database = PostgresDatabase(connection, self._layout)
            database.lock(scope.key)
            yield database

    def read(self, function: Callable[[PostgresDatabase, Reader], T]) -> Awaitable[T]:
        """Queue a function that reads one snapshot of the database."""
        return awaited(self._submit(lambda: again(lambda: self._snapshot(function), reading_attempts())))

    def transact(self, function: Callable[[PostgresDatabase], T], *, lasting: bool) -> Future[T]:
        """Queue a function that writes: one transaction, run again while others get in its way.

        Args:
            function: What the transaction does.
            lasting: Whether it survives a crash of the server at once; else it does once a later commit that lasts
                is done.
        """
        return self._submit(lambda: self._change((), function, lasting=lasting))

    def see_generation(self, database: PostgresDatabase) -> Generation | None:
        """The active generation, read from the database and kept as the one last seen."""
        self.generation = _transaction.active_generation(database)
        return self.generation

    def scrub(self) -> Future[None]:
        """Queue a VACUUM of all tables: what was forgotten leaves their files."""
        return self._submit(self._vacuum)

    def exists(self) -> Future[bool]:
        """Queue a look for our tables; it makes none."""
        return self._submit(self._look_for_tables)

    def diagnose(self, progress: Progress | None) -> Future[list[Finding]]:
        """Queue a look at all tables, from one snapshot; it makes none, and needs no right to write."""
        return self._submit(lambda: again(lambda: self._inspect(progress), reading_attempts()))

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

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """A connection whose server is still there: those that ended while they lay in the pool are thrown away."""
        if self._owns_pool and self._pool.closed:
            reach(str(self._pool.conninfo))  # what is plainly wrong is told at once; later on, a server may restart
            self._pool.open()
        while True:
            with self._pool.connection() as connection:
                if not has_ended(connection):
                    yield connection
                    return
                connection.close()  # the pool lends no closed one again

    def _commit(self, operation: Operation) -> Outcome:
        self._ready()
        assert self._language is not None
        tokens = token_table(operation.texts(), self._language)
        return again(lambda: self._transact(operation, tokens), attempts())

    def _transact(self, operation: Operation, tokens: dict[str, bytes]) -> Outcome:
        with self._connect() as connection:
            database = PostgresDatabase(connection, self._layout)
            with transaction(connection, WRITE):
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

    def _commit_imports(self, operations: Sequence[Import], dry_run: bool) -> list[str | None]:
        self._ready()
        assert self._language is not None
        tokens = token_table((text for operation in operations for text in operation.texts()), self._language)
        return self._change(
            [operation.scope for operation in operations],
            lambda database: _imports.run_batch(database, operations, tokens, self._clock, dry_run=dry_run),
            undo=dry_run,
        )

    def _change(
        self,
        scopes: Sequence[Scope],
        function: Callable[[PostgresDatabase], T],
        *,
        undo: bool = False,
        lasting: bool = True,
    ) -> T:
        self._ready()
        return again(lambda: self._change_once(scopes, function, undo, lasting), attempts())

    def _change_once(
        self, scopes: Sequence[Scope], function: Callable[[PostgresDatabase], T], undo: bool, lasting: bool
    ) -> T:
        with self._connect() as connection, transaction(connection, WRITE, undo=undo):
            if not lasting:
                run(connection, "set local synchronous_commit to off")
            database = PostgresDatabase(connection, self._layout)
            # Always in one order, so that two that lock several scopes never wait for each other.
            for key in sorted({scope.key for scope in scopes}):
                database.lock(key)
            done = function(database)
            self._probe("before commit")
        self._probe("after commit")
        return done

    def _snapshot(self, function: Callable[[PostgresDatabase, Reader], T]) -> T:
        with self.snapshot_apart() as database:
            assert self._reader is not None
            return function(database, self._reader)

    def _look_for_tables(self) -> bool:
        with self._connect() as connection, transaction(connection, READ):
            found: bool = self._has_tables(connection)
        return found

    def _has_tables(self, connection: Any) -> bool:
        name = f"{self.schema}.vmem_schema".replace("%%", "%")
        return run(connection, "select to_regclass(%s)", (name,)).fetchone()[0] is not None

    def _inspect(self, progress: Progress | None) -> list[Finding]:
        from vmem_core.diagnosis import diagnose
        from vmem_core.stores._facts import facts_of

        with self._connect() as connection, transaction(connection, READ):
            tables = run(connection, "select tablename from pg_tables where schemaname = %s", (self._schema_name,))
            names = {row[0] for row in tables if row[0].startswith("vmem_")}
            facts = facts_of(PostgresDatabase(connection, self._layout), names, self._asked_language, progress)
            return [] if facts is None else list(diagnose(facts))

    def _vacuum(self) -> None:
        self._ready()
        with self._connect() as connection:
            with connection.transaction():
                run(connection, translate(_sql.DROP_HUSKS, self.schema))
            connection.commit()
            autocommit = connection.autocommit
            connection.autocommit = True
            told: list[str | None] = []  # a table of another owner's is skipped with a warning, not with an error

            def hear(notice: psycopg.errors.Diagnostic) -> None:
                told.append(notice.severity_nonlocalized)

            connection.add_notice_handler(hear)
            try:
                rows = run(
                    connection,
                    r"select quote_ident(tablename) from pg_tables where schemaname = %s and tablename like 'vmem\_%%'",
                    (self._schema_name,),
                ).fetchall()
                for (table,) in rows:
                    run(connection, f"vacuum full {self.schema}.{table}")
            finally:
                connection.remove_notice_handler(hear)
                connection.autocommit = autocommit
            if "WARNING" in told:
                raise StoreUnavailableError(
                    "tables were not vacuumed, so that they still hold forgotten text: this role is not their owner; "
                    "scrub with the role that made them",
                    retryable=False,
                )

    # --- set-up -------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        if self._reader is not None:
            return
        with self._setup_lock:
            if self._reader is None:
                again(self._set_up, attempts(AGAIN))

    def _set_up(self) -> None:
        with self._connect() as connection, connection.transaction():
            self._check_server(connection)
            # Many processes may set up at once; the lock ends with the transaction, so that a pooler does no harm.
            run(connection, "select pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
            database = PostgresDatabase(connection, self._layout)
            if not self._has_tables(connection):
                self._make_tables(connection, database)
            elif not is_current(database):
                _transaction.tokenize_again(database, setting(database, "language"))
            check_language(database, self._asked_language)
            language = setting(database, "language")
            self.see_generation(database)
        self._language = language
        self._reader = _SharedReader(self._clock, language, self._cache_bytes)

    def _check_server(self, connection: Any) -> None:
        if run(connection, "show server_encoding").fetchone()[0] != "UTF8":
            raise UnsupportedError("the database's encoding must be UTF8; make the database with encoding 'UTF8'")
        self._layout.vectors = find_type(connection)
        self._layout.ranks = self._pgvector != "off"
        if self._pgvector == "require" and self._layout.vectors is None:
            raise UnsupportedError(
                "the database has no pgvector; have its owner run `create extension vector`, or use pgvector='auto'"
            )

    def _make_tables(self, connection: Any, database: PostgresDatabase) -> None:
        # Only if it is missing: "if not exists" asks for the right to make schemas also where there is one.
        if run(connection, "select 1 from pg_namespace where nspname = %s", (self._schema_name,)).fetchone() is None:
            run(connection, f"create schema {self.schema}")
        for statement in TABLES:
            database.execute(statement)
        write_settings(database, self._asked_language)
