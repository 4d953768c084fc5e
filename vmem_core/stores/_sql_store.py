"""What both SQL stores are to a caller: opened on first use, closed, opened anew after a fork, and their reads.

Owns the life of the engine that holds connections, and the reads that are one function in one snapshot. Does not own
connections or transactions (``_sqlite.py``, ``_postgres.py``). Imports no driver.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vmem_core import generations, sync
from vmem_core.clock import Clock
from vmem_core.errors import StoreUnavailableError
from vmem_core.generations import Pending
from vmem_core.imports import Import
from vmem_core.operations import Operation
from vmem_core.plan import Kept, Outcome, Survey
from vmem_core.records import Record, Scope, check_scope
from vmem_core.results import Finding, Findings, Generation, Receipt
from vmem_core.store import Found, Listing, Progress, Search
from vmem_core.stores import _forks
from vmem_core.stores._calls import awaited
from vmem_core.stores._upkeep import Upkeep

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class SqlGenerations:
    """The generations of a SQL store's vectors."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def active(self) -> Generation | None:
        """The active generation, or None if no vector was ever stored."""
        engine = self._store._opened()
        found: Generation | None = await engine.read(lambda database, _: engine.see_generation(database))
        return found

    async def prepared(self) -> Generation | None:
        """The pending generation, or None if none is being prepared."""
        from vmem_core.stores import _generations

        kept: list[Generation] = await self._store._read(lambda database, _: _generations.kept(database))
        return generations.prepared(kept)

    async def begin(self, model_id: str, dims: int) -> Generation:
        """The generation to fill for a model; a pending one of another model is given up."""
        from vmem_core.stores import _generations

        generations.check_model(model_id, dims)
        return await self._transact(lambda database: _generations.begin(database, model_id, dims))

    async def pending(self, number: int, limit: int, *, after: str | None = None) -> list[Pending]:
        """The next records whose current revision a generation lacks."""
        from vmem_core.stores import _generations

        generations.check_page(number, limit, after)
        found: list[Pending] = await self._store._read(
            lambda database, _: _generations.pending(database, number, limit, after)
        )
        return found

    async def missing(self, number: int) -> int:
        """How many records' current revisions a generation lacks."""
        from vmem_core.stores import _generations

        generations.check_number(number)
        found: int = await self._store._read(lambda database, _: _generations.missing(database, number))
        return found

    async def put(self, number: int, vectors: Sequence[tuple[str, int, Any]]) -> int:
        """Store vectors of current revisions, and return how many that were."""
        from vmem_core.stores import _generations

        generations.check_number(number)
        filling = generations.check_vectors(vectors)
        # Not lasting by itself: the switch is, with all that was put before. A lost batch would be made again.
        return await self._transact(lambda database: _generations.put(database, number, filling), lasting=False)

    async def activate(self, number: int) -> bool:
        """Switch to a generation that lacks nothing."""
        from vmem_core.stores import _generations

        generations.check_number(number)
        switched = await self._transact(lambda database: _generations.activate(database, number))
        await self.active()
        return switched

    async def _transact(self, function: Callable[[Any], T], *, lasting: bool = True) -> T:
        future: Future[T] = self._store._opened().transact(function, lasting=lasting)
        return await awaited(future)


class SqlStore(Upkeep):
    """The verbs of both SQL stores.

    Args:
        clock: Stamps commits, and expiry is judged by it.
    """

    def __init__(self, clock: Clock) -> None:
        # Before any thread of ours runs: see sync.facade().
        import asyncio  # noqa: F401

        self._clock = clock
        self._probe: Callable[[str], None] = _no_probe
        self._lock = threading.Lock()
        self._engine: Any = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._closed = False
        _forks.watch_store(self)

    def _make_engine(self) -> Any:
        """What holds the connections; imports the driver."""
        raise NotImplementedError

    async def _finish(self, engine: Any) -> None:
        """Run what is queued and let go of the connections."""
        raise NotImplementedError

    @property
    def embeddings(self) -> SqlGenerations:
        """The generations of its vectors."""
        return SqlGenerations(self)

    @property
    def sync(self) -> sync.Facade:
        """The same verbs for threads, scripts and notebooks."""
        return sync.facade(self)

    @property
    def known_generation(self) -> Generation | None:
        """The active generation as last seen, without reading the store."""
        return self._engine.generation if self._engine is not None else None

    async def __aenter__(self) -> Self:
        await self._read(lambda connection, _: None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _opened(self) -> Any:
        """The engine of this process: made on first use, and anew in a forked child."""
        engine = self._engine
        if engine is not None:
            return engine
        with _forks.MAKING, self._lock:
            if self._closed:
                raise StoreUnavailableError("the store is closed; make a new one", retryable=False)
            if self._engine is None:
                self._engine = self._make_engine()
                self._finalizer = weakref.finalize(self, type(self._engine).stop, self._engine)
            return self._engine

    def leave_parent(self) -> None:
        """In a forked child: the parent's threads are not here, and one of them may have held the lock."""
        _OF_PARENTS.append(self._engine)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock = threading.Lock()
        self._engine = None

    async def _read(self, function: Callable[[Any, Any], Any]) -> Any:
        return await self._opened().read(function)

    async def _change(self, scope: Scope, function: Callable[[Any], Any]) -> Any:
        return await awaited(self._opened().change([scope], function))

    async def _pruned(self) -> None:
        await awaited(self._opened().scrub_soon())

    async def close(self) -> None:
        """Finish what is queued and let go of files and connections; calling it again does nothing."""
        with self._lock:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            await self._finish(engine)
            if self._finalizer is not None:
                self._finalizer.detach()

    async def run(self, operation: Operation) -> Outcome:
        """Decide an operation and apply its plan, in one transaction."""
        outcome: Outcome = await self._opened().run(operation)
        return outcome

    async def replay(self, operation: Operation) -> Outcome | None:
        """What ``run`` would answer if the operation was committed before; None if it was not."""
        from vmem_core.stores import _transaction

        clock = self._clock
        found: Outcome | None = await self._read(
            lambda connection, _: _transaction.replay(connection, operation, clock)
        )
        return found

    async def run_imports(self, operations: Sequence[Import], *, dry_run: bool = False) -> list[str | None]:
        """Settle and apply a batch of imports, in one transaction."""
        reasons: list[str | None] = await awaited(self._opened().run_imports(operations, dry_run))
        return reasons

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

    async def diagnose(self, *, progress: Progress | None = None) -> list[Finding]:
        """What does not agree in the store, from one snapshot; an empty list if all is well. Changes nothing.

        Every row is read, in blocks: memory stays flat, and other readers and writers go on meanwhile.

        Args:
            progress: Called now and then, on another thread, with how many records were looked at and how many
                there are.

        Raises:
            StoreUnavailableError: If the store cannot be read.
            SchemaVersionError: If a newer library wrote it.
        """
        return Findings(await awaited(self._opened().diagnose(progress)))

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

        check_scope(scope)
        state = await self._read(lambda connection, _: _transaction.load_state(connection, scope))
        revision: int = state.revision
        return revision

    async def scopes(self) -> Sequence[Scope]:
        """Every scope that was ever written to, in the order of their keys."""
        from vmem_core.stores import _transaction

        found: Sequence[Scope] = await self._read(lambda connection, _: _transaction.scopes(connection))
        return found


# Engines inherited through a fork. To close them here would end what the parent still uses.
_OF_PARENTS: list[object] = []


def _no_probe(step: str) -> None:
    """Tests put another in its place."""
