"""The PostgreSQL store: memory that several machines share.

Owns the store as callers see it. Does not own connections and transactions (``_postgres.py``) or any rule
(``operations.py``). Imports no driver until first use.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from vmem_core.clock import Clock, check_clock
from vmem_core.errors import InvalidRequestError, UnsupportedError
from vmem_core.places import name_of
from vmem_core.store import check_language
from vmem_core.stores._calls import awaited
from vmem_core.stores._sql_store import SqlStore
from vmem_core.text import check_text
from vmem_core.values import check_choice, check_integer

if TYPE_CHECKING:
    from vmem_core.stores._postgres import PostgresEngine

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LONGEST_NAME = 63  # bytes of an identifier in PostgreSQL


class PostgresStore(SqlStore):
    """Memory in a PostgreSQL database: tables ``vmem_*`` of one schema.

    Args:
        dsn_or_pool: A connection string: up to 8 connections of the store's own, which prepare no statement, so that a
            pooler in transaction mode may stand between. Or your own ``psycopg_pool.ConnectionPool``, which is used
            as it is set and never closed.
        schema: The schema of the tables, any name; made if it is missing and the role may.
        pgvector: ``"auto"``: the extension is asked for the candidates of a scope that is too large for the index
            cache, where the database has it. ``"require"``: a database without it is refused. ``"off"``: it is not
            asked. The hits are the same in all three.
        clock: Returns the time as an aware datetime; None: the database's clock.
        language: Of the search tokens; None: the store's own, English for a new one.
        index_cache_bytes: How many bytes of search indexes are kept in this process.

    Raises:
        InvalidRequestError: For a wrong argument. Faults of the server show on first use.
        TypeError: For a bare connection or an async pool, naming what to pass instead.
    """

    def __init__(
        self,
        dsn_or_pool: Any,
        *,
        schema: str = "public",
        pgvector: str = "auto",
        clock: Clock | None = None,
        language: str | None = None,
        index_cache_bytes: int = 256 * 2**20,
    ) -> None:
        super().__init__(check_clock(clock))
        self._target = _check_target(dsn_or_pool)
        self._schema = _check_schema(schema)
        self._pgvector = check_choice(pgvector, ("auto", "require", "off"), "pgvector")
        self._own_clock = clock
        self._language = check_language(language)
        self._cache_bytes = check_integer(index_cache_bytes, "index_cache_bytes", least=0)

    def __repr__(self) -> str:
        return f"PostgresStore(schema={self._schema!r})"  # a connection string may hold a password

    @property
    def place(self) -> str:
        """Where it keeps its records: equal for two stores of one schema of a database. It holds no password."""
        try:
            from vmem_core.stores._postgres_errors import database_of
        except ImportError:  # without the driver it can be made, not used
            return f"postgres:{name_of(self)}"
        nameable = self if isinstance(self._target, str) else self._target
        return f"postgres:{database_of(self._target) or name_of(nameable)}:{self._schema}"

    def _make_engine(self) -> PostgresEngine:
        try:
            from vmem_core.stores._postgres import PostgresEngine
        except ImportError:
            raise UnsupportedError(
                'PostgresStore needs the extra "postgres": pip install "versioned-memory[postgres]"'
            ) from None
        return PostgresEngine(
            self._target,
            self._schema,
            self._pgvector,
            self._own_clock,
            self._language,
            self._cache_bytes,
            self._clock,
            self._probe,
        )

    async def _finish(self, engine: PostgresEngine) -> None:
        import asyncio

        await asyncio.to_thread(engine.stop)

    async def exists(self) -> bool:
        """Whether the schema holds our tables already; makes none, where every other verb would."""
        found: bool = await awaited(self._opened().exists())
        return found

    async def scrub(self) -> None:
        """Leave no byte of forgotten text in any table: VACUUM FULL, which locks each table while it is rewritten.

        The write-ahead log, backups and replicas keep what they have for as long as the server is told to.
        """
        await awaited(self._opened().scrub())


def _check_target(target: Any) -> Any:
    if isinstance(target, str):
        return _check_scheme(check_text(target, "dsn_or_pool"))
    name = type(target).__name__
    if name.startswith("Async") or not callable(getattr(target, "connection", None)):
        raise TypeError(
            f"PostgresStore takes a connection string or a psycopg_pool.ConnectionPool, not {name}: a bare connection "
            "serves one thread, and an async pool belongs to one event loop"
        )
    return target


def _check_scheme(dsn: str) -> str:
    scheme = _SCHEME.match(dsn)
    if scheme is not None and scheme[1] not in ("postgresql", "postgres"):
        raise InvalidRequestError(
            f"is an address of another kind, {scheme[1]}://; PostgresStore takes postgresql://USER@HOST/DATABASE, "
            "SqliteStore the path of a file",
            path="dsn_or_pool",
        )
    return dsn


def _check_schema(schema: object) -> str:
    name = check_text(schema, "schema")
    if len(name.encode("utf-8")) > _LONGEST_NAME:
        raise InvalidRequestError("is longer than the 63 bytes of a PostgreSQL name", path="schema")
    return name
