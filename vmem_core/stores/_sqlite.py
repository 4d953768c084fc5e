"""The connections of one SQLite file: threads, transactions, group commit, set-up, scrubbing, errors.

Owns two connections, one that writes and one that reads, each on a thread of its own, and when a transaction
begins and ends. Holds no rule; the statements are in ``_transaction.py`` and ``_reader.py``.

A whole transaction is one function on the connection's thread (``docs/decisions/0001-one-trip-per-transaction.md``).
That thread never touches an event loop, so that any loop and any thread may call, and a loop that closes with a
call in flight does no harm.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar

import aiosqlite
import tenacity

from vmem_core import indexing
from vmem_core.clock import Clock
from vmem_core.errors import InvalidRequestError, SchemaVersionError, StoreUnavailableError, VmemError
from vmem_core.operations import Operation
from vmem_core.plan import Outcome, Plan
from vmem_core.results import Generation
from vmem_core.stores import _sql, _transaction
from vmem_core.stores._reader import Reader
from vmem_core.tokens import DEFAULT_LANGUAGE, TOKENIZER_VERSION

T = TypeVar("T")
_LARGEST_GROUP: Final = 64  # operations that share a commit
_JOIN_SECONDS: Final = 60.0


class _Applied(NamedTuple):
    """An operation that stands once its group is committed."""

    plan: Plan
    outcome: Outcome
    generation: Generation | None


class _Job:
    """A function on its way to a connection's thread. Its repr is bare: the driver logs jobs at debug level."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def __call__(self) -> None:
        self._function()

    def __repr__(self) -> str:
        return "<vmem job>"


class _Connection(aiosqlite.Connection):
    """An aiosqlite connection that runs whole functions, without a future that belongs to an event loop."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._thread.daemon = True  # a process that forgets close() still exits; the store's finalizer drains first
        self._thread.start()

    def __del__(self) -> None:
        """The store's finalizer closes; there is nobody to warn."""

    def run(self, function: Callable[[], object]) -> None:
        """Queue a function; it must not raise."""
        self._tx.put_nowait((None, _Job(function)))

    def submit(self, function: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue a function of the open connection. A future cancelled while it waits is never run."""
        future: Future[T] = Future()

        def settle() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self.opened()))
                except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
                    future.set_exception(translate(error))

        self.run(settle)
        return future

    def opened(self) -> sqlite3.Connection:
        """The connection, opened on first use. Only from its own thread."""
        if self._connection is None:
            self._connection = self._connector()
        return self._connection

    def finish(self) -> None:
        """Run what is queued, close, and end the thread; do not wait for it."""
        # stop() from the thread itself finds no event loop there, so it leaves none to be called back.
        self.run(self.stop)

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join(_JOIN_SECONDS)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this connection's thread."""
        return threading.current_thread() is self._thread


class Engine:
    """One file, opened by one process.

    Args:
        path: The file.
        clock: Stamps commits.
        language: Of the search tokens, or None for the file's own.
        busy_timeout: How long to wait for another process.
        cache_bytes: How many bytes of search indexes are kept.
        probe: Called with the name of each step of a write; tests stop there.
    """

    def __init__(
        self,
        path: str,
        clock: Clock,
        language: str | None,
        busy_timeout: timedelta,
        cache_bytes: int,
        probe: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.path, self.clock, self.asked_language, self.busy_timeout = path, clock, language, busy_timeout
        self.pid = os.getpid()
        self.generation: Generation | None = None
        self._cache_bytes, self._probe = cache_bytes, probe
        self._language: str | None = None
        self._reader: Reader | None = None
        self._pending: deque[tuple[Operation, Future[Outcome]]] = deque()
        self._scrub_owed = False
        self._writer_connection = _Connection(self._open_writer)
        self._reader_connection = _Connection(self._open_reader)

    # --- from any thread --------------------------------------------------------------------------------------

    def run(self, operation: Operation) -> Future[Outcome]:
        """Queue an operation; those that wait together share a commit."""
        future: Future[Outcome] = Future()
        self._pending.append((operation, future))
        self._writer_connection.run(self._drain)
        return future

    def write(self, function: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queue a function on the writing connection, outside any transaction."""
        return self._writer_connection.submit(function)

    def read(self, function: Callable[[sqlite3.Connection, Reader], T]) -> Future[T]:
        """Queue a function on the reading connection, in one snapshot of the file."""

        def snapshot(connection: sqlite3.Connection) -> T:
            connection.execute("begin")
            try:
                assert self._reader is not None
                return function(connection, self._reader)
            finally:
                connection.execute("rollback")

        return self._reader_connection.submit(snapshot)

    def stop(self) -> None:
        """Run what is queued, close both connections, end both threads."""
        connections = (self._reader_connection, self._writer_connection)
        for connection in connections:
            connection.finish()
            # A store may be collected on one of these very threads, which cannot wait for itself or the other.
            if not any(one.is_current for one in connections):
                connection.join()

    # --- on the writer's thread -------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Commit what waits: a savepoint each, so that one refused operation fails no other."""
        group: list[tuple[Operation, Future[Outcome]]] = []
        while self._pending and len(group) < _LARGEST_GROUP:
            operation, future = self._pending.popleft()
            if future.set_running_or_notify_cancel():
                group.append((operation, future))
        if group:
            settled = self._commit_group([operation for operation, _ in group])
            for (_, future), result in zip(group, settled, strict=True):
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _commit_group(self, operations: list[Operation]) -> list[Outcome | BaseException]:
        try:
            connection = self._writer_connection.opened()
            tokens = [self._tokens(operation) for operation in operations]
            connection.execute("begin immediate")
        except BaseException as error:  # noqa: BLE001 - handed to every caller
            return [translate(error)] * len(operations)
        try:
            results = [
                self._one(connection, operation, token, alone=len(operations) == 1)
                for operation, token in zip(operations, tokens, strict=True)
            ]
            self._probe("before commit")
            connection.execute("commit")
            self._probe("after commit")
        except BaseException as error:  # noqa: BLE001 - handed to every caller
            if connection.in_transaction:
                connection.execute("rollback")
            return [translate(error)] * len(operations)
        return self._after_commit(connection, results)

    def _tokens(self, operation: Operation) -> dict[str, bytes]:
        assert self._language is not None
        return {text: indexing.token_bytes(text, self._language) for text in operation.texts()}

    def _one(
        self, connection: sqlite3.Connection, operation: Operation, tokens: dict[str, bytes], *, alone: bool
    ) -> _Applied | BaseException:
        """One operation inside the group's transaction; its error undoes only what it did itself."""
        if not alone:
            connection.execute("savepoint operation")
        try:
            loaded = _transaction.load(connection, operation, self.clock)
            self._probe("loaded")
            plan = operation.decide(loaded.snapshot)
            if not plan.replayed:
                _transaction.apply(connection, plan, operation.scope, loaded, tokens)
            self._probe("applied")
            outcome = _transaction.outcome(connection, plan)
        except Exception as error:
            if not connection.in_transaction:
                raise  # SQLite has given up the whole transaction: nobody's work stands
            if alone:
                raise
            connection.execute("rollback to operation")
            connection.execute("release operation")
            return translate(error)
        if not alone:
            connection.execute("release operation")
        return _Applied(plan, outcome, loaded.state.generation)

    def _after_commit(
        self, connection: sqlite3.Connection, results: list[_Applied | BaseException]
    ) -> list[Outcome | BaseException]:
        applied = [result for result in results if isinstance(result, _Applied)]
        for one in applied:
            self.generation = one.generation
        self._scrub_owed = self._scrub_owed or any(one.plan.forgets for one in applied)
        if self._scrub_owed:
            self._scrub_owed = not truncate_log(connection)
        clean = not self._scrub_owed
        return [replace(r.outcome, scrubbed=clean) if isinstance(r, _Applied) else r for r in results]

    def see_generation(self, connection: sqlite3.Connection) -> Generation | None:
        """The active generation, read from the file and kept as the one last seen."""
        row = connection.execute(_sql.ACTIVE_GENERATION).fetchone()
        self.generation = None if row is None else Generation(row[0], row[1], row[2], "active")
        return self.generation

    def scrub(self, connection: sqlite3.Connection) -> None:
        """VACUUM and truncate the log; waits for readers up to the busy timeout."""
        connection.execute("begin immediate")
        connection.execute(_sql.DROP_HUSKS)
        connection.execute("commit")
        connection.execute("vacuum")
        if not truncate_log(connection, wait=self.busy_timeout):
            self._scrub_owed = True
            raise StoreUnavailableError(
                "another connection keeps reading an old state of the file, so that its log still holds forgotten "
                "text; end that reader and call scrub() again",
                retryable=True,
            )
        self._scrub_owed = False

    # --- opening, each on its connection's thread ----------------------------------------------------------------

    def _open_writer(self) -> sqlite3.Connection:
        connection = _connect(self.path, self.busy_timeout)
        try:
            set_journal(connection, self.busy_timeout)
            set_up(connection, self.asked_language)
            self._language = _setting(connection, "language")
            self._reader = self._reader or Reader(self.clock, self._language, self._cache_bytes)
            self.see_generation(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_reader(self) -> sqlite3.Connection:
        self._writer_connection.submit(lambda connection: None).result()  # makes and checks the tables
        connection = _connect(self.path, self.busy_timeout)
        connection.execute("pragma query_only = on")
        return connection


def _connect(path: str, busy_timeout: timedelta) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout.total_seconds(),
        isolation_level=None,  # transactions begin and end where this file says so
        check_same_thread=False,  # the finalizer may close from another thread
        cached_statements=256,
    )
    # Freed bytes are zeroed, and no temporary file ever holds text.
    for pragma in ("synchronous = full", "secure_delete = on", "temp_store = memory"):
        connection.execute(f"pragma {pragma}")
    return connection


def set_journal(connection: sqlite3.Connection, busy_timeout: timedelta) -> None:
    """Switch the file to write-ahead logging. The switch ignores SQLite's own busy timeout, so it is tried again."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_busy),
        stop=tenacity.stop_after_delay(busy_timeout),
        wait=tenacity.wait_random(0.001, 0.02),
        reraise=True,
    )
    for attempt in retrying:
        with attempt:
            if connection.execute("pragma journal_mode").fetchone()[0] != "wal":
                connection.execute("pragma journal_mode = wal")


def set_up(connection: sqlite3.Connection, language: str | None) -> None:
    """Make the tables, or check those there are; safe from many processes at once.

    Raises:
        SchemaVersionError: If a newer library wrote the file.
        InvalidRequestError: If ``language`` is not the file's.
    """
    if _is_current(connection):
        _check_language(connection, language)
        return
    connection.execute("begin immediate")
    try:
        if not _has_tables(connection):
            for statement in _sql.TABLES:
                connection.execute(statement)
            connection.execute("insert into vmem_schema values(?)", (_sql.SCHEMA_VERSION,))
            settings = [("language", language or DEFAULT_LANGUAGE), ("tokenizer", str(TOKENIZER_VERSION))]
            connection.executemany("insert into vmem_store values(?, ?)", settings)
        elif int(_setting(connection, "tokenizer")) < TOKENIZER_VERSION:
            _tokenize_again(connection)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    _check_language(connection, language)


def _has_tables(connection: sqlite3.Connection) -> bool:
    found = connection.execute("select count(*) from sqlite_schema where type = 'table' and name = 'vmem_schema'")
    return bool(found.fetchone()[0])


def _is_current(connection: sqlite3.Connection) -> bool:
    if not _has_tables(connection):
        return False
    version = connection.execute("select max(version) from vmem_schema").fetchone()[0]
    tokenizer = int(_setting(connection, "tokenizer"))
    if not isinstance(version, int) or version > _sql.SCHEMA_VERSION:
        raise SchemaVersionError(version if isinstance(version, int) else 0, _sql.SCHEMA_VERSION)
    if tokenizer > TOKENIZER_VERSION:
        raise SchemaVersionError(version, _sql.SCHEMA_VERSION)
    return tokenizer == TOKENIZER_VERSION


def _setting(connection: sqlite3.Connection, name: str) -> str:
    row = connection.execute("select value from vmem_store where name = ?", (name,)).fetchone()
    return str(row[0])


def _check_language(connection: sqlite3.Connection, language: str | None) -> None:
    kept = _setting(connection, "language")
    if language is not None and language != kept:
        raise InvalidRequestError(
            f"the store's language is {kept!r}, {language!r} was given; leave it out or give the store's",
            path="language",
        )


def _tokenize_again(connection: sqlite3.Connection) -> None:
    """Make all search tokens anew, because the tokenizer's rules have changed since the file was written."""
    language = _setting(connection, "language")
    rows = connection.execute(
        "select r.number, v.body from vmem_records r join vmem_revisions v on v.entry = r.entry where r.state >= 0"
    ).fetchall()
    for number, body in rows:
        made = indexing.token_bytes(_sql.body_text(body), language)
        connection.execute("update vmem_records set tokens = ? where number = ?", (made, number))
    connection.execute("update vmem_store set value = ? where name = 'tokenizer'", (str(TOKENIZER_VERSION),))


def truncate_log(connection: sqlite3.Connection, wait: timedelta = timedelta(0)) -> bool:
    """Move the log into the file and cut it to nothing.

    Returns:
        False if it could not be done now, most likely because a reader held the log for longer than ``wait``. What
        was committed stands all the same, and the caller knows that a scrub is owed.
    """
    before = connection.execute("pragma busy_timeout").fetchone()[0]
    connection.execute(f"pragma busy_timeout = {int(wait.total_seconds() * 1000)}")
    try:
        return bool(connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0)
    except sqlite3.OperationalError:
        return False
    finally:
        connection.execute(f"pragma busy_timeout = {before}")


# --- what the driver's errors mean ------------------------------------------------------------------------------

_MEANINGS: Final = {
    sqlite3.SQLITE_BUSY: ("another process holds the file; try again, or raise busy_timeout", True),
    sqlite3.SQLITE_LOCKED: ("another connection holds the file; try again, or raise busy_timeout", True),
    sqlite3.SQLITE_FULL: ("the disk, or the file's own limit, is full; free space and try again", True),
    sqlite3.SQLITE_READONLY: ("the file cannot be written; give this process write access to it and its folder", False),
    sqlite3.SQLITE_NOTADB: ("the file is not a SQLite database; check the path", False),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged; restore it from a backup", False),
    sqlite3.SQLITE_CANTOPEN: ("the file cannot be opened; check that its folder exists and can be written", False),
    sqlite3.SQLITE_IOERR: ("reading or writing the file failed; check the disk", True),
}


def _primary_code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else int(code) & 0xFF


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: BaseException) -> BaseException:
    """Our error for one of the driver's; any other error as it is."""
    if isinstance(error, VmemError) or not isinstance(error, sqlite3.Error):
        return error
    meaning, retryable = _MEANINGS.get(
        _primary_code(error) or 0,
        ("the file cannot be used as a store; check that only this library writes vmem_*", False),
    )
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    translated = StoreUnavailableError(f"{meaning} ({name})", retryable=retryable)
    translated.__cause__ = error
    return translated
