"""Records of the Deuz SDK's legacy memory in PostgreSQL: the table ``deuz_memory``.

Owns the reading of the table, in one snapshot. Vectors (``embedding``, ``embedding_json``) are not read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from vmem_core.errors import StoreUnavailableError, UnsupportedError
from vmem_core.legacy.deuz import COLUMNS, OWN_TABLE, TABLE, not_there, record_of_row
from vmem_core.legacy.records import LegacyRecord
from vmem_core.logs import log
from vmem_core.text import check_text

_ROWS: Final = 1_000


async def from_deuz_postgres(dsn: str, *, schema: str = "public") -> AsyncIterator[LegacyRecord]:
    """Legacy records from the table ``deuz_memory`` of a PostgreSQL database, in the order they were made.

    Args:
        dsn: A connection string.
        schema: The schema of the table.

    Raises:
        InvalidRequestError: If there is no such table.
        StoreUnavailableError: If the database cannot be reached or gives up.
        UnsupportedError: Without the extra ``postgres``.
    """
    import asyncio

    check_text(dsn, "dsn")
    table = await asyncio.to_thread(_opened, dsn, check_text(schema, "schema"))
    try:
        while rows := await asyncio.to_thread(table.next_rows):
            for row in rows:
                yield row
    finally:
        await asyncio.to_thread(table.close)


def _opened(dsn: str, schema: str) -> _Table:
    try:
        import psycopg
    except ImportError:
        raise UnsupportedError(
            'from_deuz_postgres needs the extra "postgres": pip install "versioned-memory[postgres]"'
        ) from None
    try:
        return _Table(psycopg.connect(dsn), schema)
    except psycopg.Error as error:
        raise _refuse(error) from None


class _Table:
    """The table, read through a cursor of the server in one transaction."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._cursor: Any = None
        try:
            self._open(schema)
        except BaseException:
            connection.close()
            raise

    def _open(self, schema: str) -> None:
        from psycopg import sql

        rows = self._connection.execute(
            "select table_name, column_name from information_schema.columns where table_schema = %s and table_name in "
            "(%s, %s)",
            (schema, TABLE, OWN_TABLE),
        ).fetchall()
        found = {column for table, column in rows if table == TABLE}
        if not {"id", "text"} <= found:
            raise not_there("the schema", any(table == OWN_TABLE for table, _ in rows), "schema")
        self._columns = [name for name in COLUMNS if name in found]
        order = [name for name in ("created_at", "id") if name in found]
        statement = sql.SQL("select {} from {} order by {}").format(
            # Numbers of metadata come back as they went in: jsonb as text, and Python's own reader.
            sql.SQL(", ").join(
                sql.SQL("{}::text" if c == "metadata" else "{}").format(sql.Identifier(c)) for c in self._columns
            ),
            sql.Identifier(schema, TABLE),
            sql.SQL(", ").join(map(sql.Identifier, order)),
        )
        self._cursor = self._connection.cursor("vmem_import")
        self._cursor.execute(statement)

    def next_rows(self) -> list[LegacyRecord]:
        """The next records; none at the end."""
        import psycopg

        try:
            rows = self._cursor.fetchmany(_ROWS)
        except psycopg.Error as error:
            raise _refuse(error) from None
        return [record_of_row(dict(zip(self._columns, row, strict=True))) for row in rows]

    def close(self) -> None:
        """Let go of the connection."""
        import psycopg

        try:
            self._cursor.close()
        except psycopg.Error:
            log().debug("the connection to the legacy database was lost before its cursor was closed")
        self._connection.close()


def _refuse(error: Exception) -> StoreUnavailableError:
    # The driver's own words may quote a password or a value.
    return StoreUnavailableError(
        f"the legacy database cannot be read ({type(error).__name__}); check its address and rights", retryable=True
    )
