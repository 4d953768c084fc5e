"""One PostgreSQL connection as the shared statements see it (``_database.py``), and one pipelined transaction.

Owns how a shared statement is sent and its rows come back. Does not own pools, retries, set-up or what the statements
do (``_postgres.py``, ``_transaction.py``, ``_reader.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from vmem_core.errors import StoreUnavailableError
from vmem_core.stores import _postgres_vectors as pgvector
from vmem_core.stores import _sql
from vmem_core.stores._database import Rows
from vmem_core.stores._postgres_sql import (
    ENTRY_PLACE,
    LOCK_GENERATIONS,
    LOCK_SCOPE,
    LOCK_SCOPES,
    NEXT_ENTRIES,
    translate,
)

WRITE: Final = "begin isolation level read committed"  # a role that is set to read only stays so
_LONGEST_SWITCH: Final = "1s"  # that writers wait for the tables of a generation that goes
READ: Final = "begin isolation level repeatable read, read only"


@dataclass(slots=True)
class Layout:
    """What the statements of one store need to know of its database.

    Args:
        schema: Quoted, and its percent signs doubled.
        own_clock: Whether the store's clock stamps instead of the database's.
        vectors: pgvector's type, if the database has it.
        ranks: Whether pgvector may be asked for the nearest rows.
        types: Of each generation's vectors the column type's number, as far as it was looked up.
    """

    schema: str
    own_clock: bool
    vectors: pgvector.VectorType | None = None
    ranks: bool = False
    types: MutableMapping[int, int] = field(default_factory=dict)


class PostgresDatabase:
    """A psycopg connection that runs the shared statements.

    Args:
        connection: In a transaction, maybe pipelined.
        layout: Of the store.
    """

    def __init__(self, connection: Any, layout: Layout) -> None:
        self._connection, self._layout = connection, layout
        self._made: dict[int, int] = {}  # generations of this transaction: nobody else knows them yet

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Rows:
        """Run a shared statement; rows are waited for only when they are asked for."""
        place = ENTRY_PLACE.get(statement)
        if place is not None:
            values = [value for index, value in enumerate(values) if index != place]
        cursor, wrap = self._cursor(statement)
        rows: Rows = cursor.execute(translate(statement, self._layout.schema), wrap(values))
        return _WithoutTime(rows) if self._layout.own_clock and statement is _sql.LOAD else rows

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]], /) -> None:
        """Run a shared statement once for each row of values, sent together."""
        cursor, wrap = self._cursor(statement)
        cursor.executemany(translate(statement, self._layout.schema), [wrap(row) for row in rows])

    def _cursor(self, statement: str) -> tuple[Any, Callable[[Sequence[Any]], Sequence[Any]]]:
        """A cursor for a statement, and how its values are to be given: vectors may have a type of their own."""
        generation = pgvector.generation_of(statement)
        kind = pgvector.BYTEA if generation is None else self._type_of(generation)
        if kind == pgvector.BYTEA:
            return self._connection.cursor(row_factory=psycopg.rows.tuple_row), tuple
        return pgvector.vector_cursor(self._connection, kind), pgvector.with_vectors

    def _type_of(self, generation: int) -> int:
        """The type of a generation's vectors; of one that has no table, bytes: its statements fail in any case."""
        found = self._made.get(generation) or self._layout.types.get(generation)
        if found is None:
            statement = """select coalesce((select a.atttypid::bigint from pg_attribute a
              where a.attrelid = to_regclass(%s) and a.attname = 'vector'), 0)"""
            table = f"{self._layout.schema}.{_sql.vectors_table(generation)}".replace("%%", "%")
            found = run(self._connection, statement, (table,)).fetchone()[0]
            if not found:
                return pgvector.BYTEA
            self._layout.types[generation] = found
        return found

    def nearest(
        self, generation: int, numbers: tuple[int, int], vector: bytes, depth: int
    ) -> Iterator[list[Any]] | None:
        """The rows nearest to a vector by pgvector's reckoning, page by page; None if it cannot be asked.

        Args:
            generation: Whose vectors.
            numbers: The lowest and the highest number, both inclusive.
            vector: Unit float32, little-endian.
            depth: How many are wanted at least.
        """
        kind = self._layout.vectors
        if kind is None or not self._layout.ranks or self._type_of(generation) != kind.oid:
            return None
        statement = pgvector.nearest_statement(generation, kind)
        return self._pages(statement, (*numbers, vector), depth)

    def _pages(self, statement: str, values: tuple[Any, ...], depth: int) -> Iterator[list[Any]]:
        for limit, offset in pgvector.pages(depth):
            rows = self.execute(statement, (*values, limit, offset)).fetchall()
            if rows:
                yield rows
            if len(rows) < limit:
                return

    def add_scope(self, key: str) -> int:
        """The id of the scope's row; the lock has made it already."""
        scope_id: int = run(self._connection, translate(LOCK_SCOPE[1], self._layout.schema), (key,)).fetchone()[0]
        return scope_id

    def add_revision(self, values: tuple[int, int, int, int, str]) -> int:
        """Append a revision; its entry is known to the database alone, and used there."""
        self.execute(_sql.INSERT_REVISION, values)
        return 0

    def add_revisions(self, rows: Sequence[tuple[int, int, int, int, str]]) -> Sequence[int]:
        """Append revisions, and return their entries: the scope's lock keeps their order."""
        entries = [row[0] for row in self.execute(NEXT_ENTRIES, (len(rows),)).fetchall()]
        self.execute_many(_sql.INSERT_NUMBERED, [(entry, *row) for entry, row in zip(entries, rows, strict=True)])
        return entries

    def make_vectors(self, generation: int, dims: int) -> None:
        """Make the tables of a generation's vectors: in pgvector's type, if it takes so many dimensions."""
        kind = self._layout.vectors if dims <= pgvector.MOST_DIMS else None
        self._made[generation] = pgvector.BYTEA if kind is None else kind.oid
        for statement in _sql.create_vectors(generation):
            text = statement if kind is None else statement.replace("vector blob", f"vector {kind.name}")
            run(self._connection, translate(text, self._layout.schema))

    def drop_vectors(self, table: str) -> None:
        """Drop a table of vectors: its file goes."""
        self.execute(f"drop table {table}")

    def hold_generations(self, *, exclusively: bool = False) -> None:
        """Keep others from beginning or switching generations, and writers out too if that is asked for.

        Who keeps writers out gives up soon when a long reader, such as a doctor or a backup, keeps a table from being
        dropped: writers go on, and it is tried again.
        """
        if exclusively:
            run(self._connection, f"set local lock_timeout to '{_LONGEST_SWITCH}'")
        self.execute(LOCK_GENERATIONS[exclusively])

    def hold_scopes(self, scope_ids: Sequence[int]) -> None:
        """Keep the writers of some scopes out; always in the same order, so that nobody waits in a circle."""
        self.execute(LOCK_SCOPES, (_sql.id_list(scope_ids),)).fetchall()

    def lock(self, key: str) -> None:
        """Make the scope's row if it is missing, and hold it until the end of the transaction."""
        self.hold_generations()
        for statement in LOCK_SCOPE:
            self._connection.execute(translate(statement, self._layout.schema), (key,))


def run(connection: Any, statement: str, values: Sequence[Any] = ()) -> Any:
    """Run a statement; its rows are tuples, also on a connection of the host's that makes something else of them."""
    return connection.cursor(row_factory=psycopg.rows.tuple_row).execute(statement, values)


def find_type(connection: Any) -> pgvector.VectorType | None:
    """The database's vector type; None without the extension. It may lie in any schema."""
    found = run(
        connection,
        "select t.oid, quote_ident(n.nspname) from pg_extension e join pg_namespace n on n.oid = e.extnamespace"
        " join pg_type t on t.typnamespace = n.oid and t.typname = 'vector' where e.extname = 'vector'",
    ).fetchone()
    return None if found is None else pgvector.VectorType(found[0], found[1].replace("%", "%%"))


@contextmanager
def transaction(connection: Any, begin: str, *, undo: bool = False) -> Iterator[None]:
    """One pipelined transaction: what begins it travels with the first statement, COMMIT with the last ones.

    The driver's own block would wait for both. In autocommit the driver sends nothing by itself; the host's setting is
    put back.

    Args:
        connection: With no transaction open.
        begin: ``WRITE`` or ``READ``.
        undo: Whether nothing of it is to stand.

    Raises:
        StoreUnavailableError: If the server has rolled back where it was told to commit.
    """
    autocommit = connection.autocommit
    connection.autocommit = True
    try:
        with connection.pipeline():
            connection.execute(begin, prepare=False)
            yield
            end = connection.execute("rollback" if undo else "commit", prepare=False)
        if end.statusmessage != "COMMIT" and not undo:
            raise StoreUnavailableError("the server has rolled the transaction back; try again", retryable=True)
    finally:
        if not connection.closed:
            connection.rollback()  # sends nothing after a commit
            connection.autocommit = autocommit


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
