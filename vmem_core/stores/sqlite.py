"""The SQLite store: one file, no server, many threads, loops and processes.

Owns the store as callers see it: when the file is opened, closed, and opened anew after a fork. Does not own
connections and transactions (``_sqlite.py``) or any rule (``operations.py``). Imports no driver until first use.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from vmem_core.clock import Clock, check_clock
from vmem_core.errors import InvalidRequestError
from vmem_core.store import check_language
from vmem_core.stores._calls import awaited
from vmem_core.stores._sql_store import SqlStore
from vmem_core.values import check_integer

if TYPE_CHECKING:
    from vmem_core.stores._sqlite import Engine

T = TypeVar("T")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class SqliteStore(SqlStore):
    """Memory in one SQLite file.

    The file is opened on first use, in write-ahead mode with ``synchronous=FULL``: an acknowledged write survives
    the power cord. Several processes may share it.

    Args:
        path: The file; its folder must exist. ``":memory:"`` is refused: that is ``InMemoryStore``.
        clock: Returns the time as an aware datetime; None: the machine's clock.
        language: Of the search tokens; None: the file's own, English for a new one.
        busy_timeout: How long to wait for another process before ``StoreUnavailableError``.
        index_cache_bytes: How many bytes of search indexes are kept in memory; 256 MB hold about 145,000 records
            with vectors of 384 dimensions.

    Raises:
        InvalidRequestError: For a wrong argument. Faults of the file show on first use.

    >>> import tempfile, os.path
    >>> from vmem_core import Scope
    >>> store = SqliteStore(os.path.join(tempfile.mkdtemp(), "memory.db"))
    >>> store.sync.scope_revision(Scope(user_id="ada"))
    0
    >>> store.sync.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        language: str | None = None,
        busy_timeout: timedelta = timedelta(seconds=30),
        index_cache_bytes: int = 256 * 2**20,
    ) -> None:
        self._path = _check_path(path)
        super().__init__(check_clock(clock))
        self._language = check_language(language)
        self._busy_timeout = _check_timeout(busy_timeout)
        self._cache_bytes = check_integer(index_cache_bytes, "index_cache_bytes", least=0)

    def __repr__(self) -> str:
        return f"SqliteStore({self._path!r})"

    @property
    def place(self) -> str:
        """Where it keeps its records: equal for two stores of one file."""
        return f"sqlite:{os.path.realpath(self._path)}"

    def _make_engine(self) -> Engine:
        from vmem_core.stores._sqlite import Engine

        return Engine(self._path, self._clock, self._language, self._busy_timeout, self._cache_bytes, self._probe)

    async def _finish(self, engine: Engine) -> None:
        for connection in engine.connections:
            await awaited(connection.finish())

    async def scrub(self) -> None:
        """Leave no byte of forgotten text in any file of the store: VACUUM, then cut the log.

        Needs free disk space of about the file's size, and memory for the copy. SQLite's VACUUM renumbers the rows of
        tables that have no ``INTEGER PRIMARY KEY``: if you keep tables of your own in the file, give them one.

        Raises:
            StoreUnavailableError: If a reader in another process holds the log for longer than the busy timeout.
        """
        engine = self._opened()
        await awaited(engine.write(engine.scrub))


def _check_timeout(value: object) -> timedelta:
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise InvalidRequestError("must be a timedelta of zero or more", path="busy_timeout")
    return value


def _check_path(path: object) -> str:
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidRequestError(f"must be a path, not {type(path).__name__}", path="path") from None
    if not isinstance(text, str) or not text or "\x00" in text:
        raise InvalidRequestError("must be a path as a str that is not empty", path="path")
    if text == ":memory:" or text.startswith("file:"):
        raise InvalidRequestError(
            "must be a file; for memory that ends with the process use InMemoryStore", path="path"
        )
    if _ADDRESS.match(text):
        raise InvalidRequestError(
            "must be the path of a file, with no scheme before it; the address of a server, postgresql://…, is for "
            "PostgresStore",
            path="path",
        )
    return os.path.abspath(text)
