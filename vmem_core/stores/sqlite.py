"""The SQLite store: one file, no server, many threads, loops and processes.

Owns the store as callers see it: when the file is opened, closed, and opened anew after a fork. Does not own
connections and transactions (``_sqlite.py``) or any rule (``operations.py``). Imports no driver until first use.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vmem_core import sync
from vmem_core.clock import Clock, check_clock
from vmem_core.errors import InvalidRequestError, StoreUnavailableError
from vmem_core.operations import Operation
from vmem_core.plan import Kept, Outcome, Survey
from vmem_core.records import Record, Scope
from vmem_core.results import Generation, Receipt
from vmem_core.store import Found, Listing, Search, check_language
from vmem_core.values import check_integer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from vmem_core.stores._sqlite import Engine

T = TypeVar("T")


class _Generations:
    """The generations of a SQLite store's vectors."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def active(self) -> Generation | None:
        """The active generation, or None if no vector was ever stored."""
        engine = self._store._opened()
        return await _awaited(engine.read(lambda connection, _: engine.see_generation(connection)))


class SqliteStore:
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
        self._clock = check_clock(clock)
        self._language = check_language(language)
        self._busy_timeout = _check_timeout(busy_timeout)
        self._cache_bytes = check_integer(index_cache_bytes, "index_cache_bytes", least=0)
        self._probe: Callable[[str], None] = _no_probe
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[..., SqliteStore] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"SqliteStore({self._path!r})"

    @property
    def embeddings(self) -> _Generations:
        """The generations of its vectors."""
        return _Generations(self)

    @property
    def sync(self) -> sync.Facade:
        """The same verbs for threads, scripts and notebooks."""
        return sync.facade(self)

    @property
    def known_generation(self) -> Generation | None:
        """The active generation as last seen, without reading the file."""
        return self._engine.generation if self._engine is not None else None

    async def __aenter__(self) -> Self:
        await self._read(lambda connection, _: None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> Engine:
        """The engine of this process: made on first use, and anew in a forked child."""
        engine = self._engine
        if engine is not None:
            if engine.pid == os.getpid():
                return engine
            self._leave_parent()
        with self._lock:
            if self._closed:
                raise StoreUnavailableError("the store is closed; make a new one for the same file", retryable=False)
            if self._engine is None:
                from vmem_core.stores._sqlite import Engine

                self._engine = Engine(
                    self._path, self._clock, self._language, self._busy_timeout, self._cache_bytes, self._probe
                )
                self._finalizer = weakref.finalize(self, Engine.stop, self._engine)
            return self._engine

    def _leave_parent(self) -> None:
        """In a forked child: the parent's threads are not here, and its lock may be held."""
        _OF_PARENTS.append(self._engine)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock = threading.Lock()
        self._engine = None

    async def _read(self, function: Callable[[Any, Any], Any]) -> Any:
        return await _awaited(self._opened().read(function))

    async def close(self) -> None:
        """Finish what is queued and close the file; calling it again does nothing."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None and engine.pid == os.getpid():
            for connection in engine.connections:
                await _awaited(connection.finish())
            if self._finalizer is not None:
                self._finalizer.detach()

    async def run(self, operation: Operation) -> Outcome:
        """Decide an operation and apply its plan, in one transaction."""
        return await _awaited(self._opened().run(operation))

    async def replay(self, operation: Operation) -> Outcome | None:
        """What ``run`` would answer if the operation was committed before; None if it was not."""
        from vmem_core.stores import _transaction

        clock = self._clock
        found: Outcome | None = await self._read(
            lambda connection, _: _transaction.replay(connection, operation, clock)
        )
        return found

    async def search(self, scope: Scope, search: Search) -> list[Found]:
        """The best hits, in order."""
        found: list[Found] = await self._read(lambda connection, reader: reader.search(connection, scope, search))
        return found

    async def survey(self, scope: Scope, searches: Sequence[Search], equal_texts: Sequence[int]) -> Survey:
        """The scope's revision, the best records of each search, and active records by text key, from one read."""
        found: Survey = await self._read(
            lambda connection, reader: reader.survey(connection, scope, searches, equal_texts)
        )
        return found

    async def processed(self, scope: Scope, message_ids: Sequence[str]) -> frozenset[str]:
        """Those of the messages that an extraction of this scope has read."""
        from vmem_core.stores import _transaction

        found: frozenset[str] = await self._read(
            lambda connection, _: _transaction.processed(
                connection, _transaction.load_state(connection, scope), message_ids
            )
        )
        return found

    async def get(self, scope: Scope, record_id: str) -> Record | None:
        """The current revision, unless expired, forgotten, foreign or unknown."""
        from vmem_core.stores import _transaction

        clock = self._clock
        found: Record | None = await self._read(
            lambda connection, _: _transaction.get(connection, scope, record_id, clock)
        )
        return found

    async def history(self, scope: Scope, record_id: str) -> list[Record]:
        """All kept revisions, oldest first."""
        from vmem_core.stores import _transaction

        found: list[Record] = await self._read(lambda connection, _: _transaction.history(connection, scope, record_id))
        return found

    async def revisions(self, scope: Scope, wanted: Sequence[tuple[str, int]]) -> Sequence[Kept]:
        """What is left of each wanted (record id, revision), in order, from one read."""
        from vmem_core.stores import _transaction

        found: Sequence[Kept] = await self._read(
            lambda connection, _: _transaction.revisions(connection, scope, wanted)
        )
        return found

    async def list(self, scope: Scope, listing: Listing) -> tuple[Sequence[Record], int | None]:
        """A page, newest creation first, and the number to go on before."""
        page: tuple[Sequence[Record], int | None] = await self._read(
            lambda connection, reader: reader.list(connection, scope, listing)
        )
        return page

    async def count(self, scope: Scope) -> int:
        """How many records are active and unexpired."""
        found: int = await self._read(lambda connection, reader: reader.count(connection, scope))
        return found

    async def receipt(self, scope: Scope, operation_id: str) -> Receipt | None:
        """The receipt of an operation."""
        from vmem_core.stores import _transaction

        state = await self._read(lambda connection, _: _transaction.load_state(connection, scope, operation_id))
        return state.stored.receipt if state.stored is not None else None

    async def scope_revision(self, scope: Scope) -> int:
        """How many operations were committed in the scope."""
        from vmem_core.stores import _transaction

        state = await self._read(lambda connection, _: _transaction.load_state(connection, scope))
        revision: int = state.revision
        return revision

    async def scopes(self) -> Sequence[Scope]:
        """Every scope that was ever written to, in the order of their keys."""
        from vmem_core.stores import _transaction

        found: Sequence[Scope] = await self._read(lambda connection, _: _transaction.scopes(connection))
        return found

    async def scrub(self) -> None:
        """Leave no byte of forgotten text in any file of the store: VACUUM, then cut the log.

        Needs free disk space of about the file's size, and memory for the copy.

        Raises:
            StoreUnavailableError: If a reader in another process holds the log for longer than the busy timeout.
        """
        engine = self._opened()
        await _awaited(engine.write(engine.scrub))


# Engines inherited through a fork. To close them here would end the parent's locks on the file.
_OF_PARENTS: list[object] = []


def _awaited(future: Future[T]) -> Awaitable[T]:
    """A future of a connection's thread, for whatever loop runs here."""
    import asyncio

    return asyncio.wrap_future(future)


def _no_probe(step: str) -> None:
    """Tests put another in its place."""


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
    return os.path.abspath(text)
