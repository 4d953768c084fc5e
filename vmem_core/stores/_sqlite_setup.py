"""Opening one SQLite file: settings, journal, tables, language, and the log's end.

Owns what happens once a connection, and the schema's version. Does not own threads or transactions (``_sqlite.py``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import tenacity

from vmem_core.stores import _sql, _transaction
from vmem_core.stores._settings import check_language, is_current, setting, write_settings
from vmem_core.stores._sqlite_errors import is_busy


class StoreConnection(sqlite3.Connection):
    """A connection that runs the shared statements (see ``_database.py``)."""

    def add_scope(self, key: str) -> int:
        """Make the row of a scope, and return its id."""
        return self.execute(_sql.INSERT_SCOPE, (key,)).lastrowid or 0

    def add_revision(self, values: tuple[int, int, int, int, str]) -> int:
        """Append a revision, and return its entry."""
        return self.execute(_sql.INSERT_REVISION, values).lastrowid or 0

    def make_vectors(self, generation: int, dims: int) -> None:
        """Make the tables of a generation's vectors, of any size."""
        for statement in _sql.create_vectors(generation):
            self.execute(statement)

    def add_revisions(self, rows: Sequence[tuple[int, int, int, int, str]]) -> Sequence[int]:
        """Append revisions, and return their entries: the next ones, as SQLite itself would number them."""
        first = self.execute(_sql.NEXT_ENTRY).fetchone()[0]
        entries = range(first, first + len(rows))
        self.executemany(_sql.INSERT_NUMBERED, zip(entries, *zip(*rows, strict=True), strict=True))
        return entries

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]], /) -> None:
        """Run a statement once for each row of values."""
        self.executemany(statement, rows)

    def drop_vectors(self, table: str) -> None:
        """Drop a table of vectors, and leave its pages to whoever needs some.

        To write zeros over each of them first takes 40 seconds for a million vectors, in which nobody can write.
        """
        self.execute("pragma secure_delete = off")
        try:
            self.execute(f"drop table {table}")
        finally:
            self.execute("pragma secure_delete = on")

    def hold_generations(self, *, exclusively: bool = False) -> None:
        """Nothing to do: a transaction that writes is alone in the file."""

    def hold_scopes(self, scope_ids: Sequence[int]) -> None:
        """Nothing to do: a transaction that writes is alone in the file."""


def connect(path: str, busy_timeout: timedelta) -> StoreConnection:
    """A connection with the settings that every one of ours has."""
    connection = sqlite3.connect(
        path,
        factory=StoreConnection,
        timeout=busy_timeout.total_seconds(),
        isolation_level=None,  # transactions begin and end where this file says so
        check_same_thread=False,  # the finalizer may close from another thread
        cached_statements=256,
    )
    # Freed bytes are zeroed, and no temporary file ever holds text.
    try:
        for pragma in ("synchronous = full", "secure_delete = on", "temp_store = memory"):
            connection.execute(f"pragma {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: StoreConnection) -> Iterator[None]:
    """A transaction that may write: committed at the end, undone by any error."""
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def set_journal(connection: StoreConnection, busy_timeout: timedelta) -> None:
    """Switch the file to write-ahead logging. The switch ignores SQLite's own busy timeout, so it is tried again."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_busy),
        stop=tenacity.stop_after_delay(busy_timeout),
        wait=tenacity.wait_random(0.001, 0.02),
        reraise=True,
    )
    for attempt in retrying:
        with attempt:
            if connection.execute("pragma journal_mode").fetchone()[0] != "wal":
                connection.execute("pragma journal_mode = wal")


def set_up(connection: StoreConnection, language: str | None) -> None:
    """Make the tables, or check those there are; safe from many processes at once.

    Raises:
        SchemaVersionError: If a newer library wrote the file.
        InvalidRequestError: If ``language`` is not the file's.
    """
    if _has_tables(connection) and is_current(connection):
        check_language(connection, language)
        return
    connection.execute("begin immediate")
    try:
        if not _has_tables(connection):
            for statement in _sql.TABLES:
                connection.execute(statement)
            write_settings(connection, language)
        elif not is_current(connection):
            _transaction.tokenize_again(connection, setting(connection, "language"))
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    check_language(connection, language)


def _has_tables(connection: StoreConnection) -> bool:
    found = connection.execute("select count(*) from sqlite_schema where type = 'table' and name = 'vmem_schema'")
    return bool(found.fetchone()[0])


def truncate_log(connection: StoreConnection, wait: timedelta = timedelta(0)) -> bool:
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
