"""The connections of one SQLite file: threads, transactions, group commit, set-up, scrubbing, errors.

Owns two connections, one that writes and one that reads, each on a thread of its own, and when a transaction
begins and ends. Holds no rule; the statements are in ``_transaction.py`` and ``_reader.py``.

A whole transaction is one function on the connection's thread (``docs/decisions/0001-one-trip-per-transaction.md``).
That thread never touches an event loop, so that any loop and any thread may call, and a loop that closes with a
call in flight does no harm.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Final, NamedTuple, TypeVar

from vmem_core import indexing
from vmem_core.clock import Clock
from vmem_core.errors import StoreUnavailableError
from vmem_core.imports import Import
from vmem_core.operations import Operation
from vmem_core.plan import Outcome, Plan
from vmem_core.records import Scope
from vmem_core.results import Finding, Generation
from vmem_core.store import Progress
from vmem_core.stores import _forks, _imports, _sql, _transaction
from vmem_core.stores._calls import Call, settle
from vmem_core.stores._reader import Reader
from vmem_core.stores._settings import setting
from vmem_core.stores._sqlite_connection import Connection
from vmem_core.stores._sqlite_errors import translate
from vmem_core.stores._sqlite_setup import StoreConnection, connect, set_journal, set_up, transaction, truncate_log

T = TypeVar("T")
_LARGEST_GROUP: Final = 64  # operations that share a commit
_LONGEST_LATE: Final = 20_000  # characters whose tokens may be made while the file is locked: a millisecond or two
_LONGEST_WAIT: Final = timedelta(days=24)  # SQLite counts milliseconds in 32 bits; beyond it would not wait at all
_FORGETS: Final = ("forget", "forget_scope")


_Waiting = tuple[Operation, Call[Outcome]]


class _Applied(NamedTuple):
    """An operation that stands once its group is committed."""

    plan: Plan
    outcome: Outcome
    generation: Generation | None


def _told(result: _Applied | BaseException, clean: bool) -> Outcome | BaseException:
    if isinstance(result, BaseException):
        return result
    # Only a forget tells it: to copy every outcome for one flag would cost each write 10 µs.
    told = result.outcome.receipt.kind in ("forget", "forget_scope")
    return replace(result.outcome, scrubbed=clean) if told else result.outcome


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
        self.path, self.clock, self.asked_language = path, clock, language
        self.busy_timeout = min(busy_timeout, _LONGEST_WAIT)
        self.pid = os.getpid()
        self.generation: Generation | None = None
        self._cache_bytes, self._probe = cache_bytes, probe
        self._language: str | None = None
        self._reader: Reader | None = None
        self._pending: deque[_Waiting] = deque()
        self._scrub_owed = True  # whoever had the file before may have died between a forget and its scrub
        self._writer_connection = Connection(self._open_writer)
        self._reader_connection = Connection(self._open_reader)
        self._inspectors: tuple[Connection, ...] = ()
        _forks.watch_engine(self)

    # --- from any thread --------------------------------------------------------------------------------------

    def run(self, operation: Operation) -> Call[Outcome]:
        """Queue an operation; those that wait together share a commit."""
        call: Call[Outcome] = Call()
        self._pending.append((operation, call))
        try:
            self._writer_connection.run(self._drain)
        except StoreUnavailableError:
            if call.claim():
                raise
        return call  # also if an earlier call has taken it along after all

    def run_imports(self, operations: Sequence[Import], dry_run: bool) -> Future[list[str | None]]:
        """Queue a batch of imports: one transaction of its own."""

        def commit(connection: StoreConnection) -> list[str | None]:
            assert self._language is not None
            texts = (text for operation in operations for text in operation.texts())
            tokens = indexing.token_table(texts, self._language)
            with transaction(connection):
                reasons = _imports.run_batch(connection, operations, tokens, self.clock, dry_run=dry_run)
                self._probe("before commit")
            self._probe("after commit")
            return reasons

        return self.write(commit)

    def change(self, scopes: Sequence[Scope], function: Callable[[StoreConnection], T]) -> Future[T]:
        """Queue a function that writes in one transaction; on SQLite it holds every scope."""
        return self.transact(function, lasting=True)

    def scrub_soon(self) -> Future[None]:
        """Cut the log, now or after a later operation: what was overwritten is still in it."""

        def cut(connection: StoreConnection) -> None:
            self._scrub_owed = not truncate_log(connection)

        return self.write(cut)

    @property
    def language(self) -> str:
        """The language of the search tokens, once the file was opened."""
        assert self._language is not None
        return self._language

    def meaning(self, error: BaseException) -> BaseException:
        """Our error for one of the driver's."""
        return translate(error)

    @contextmanager
    def snapshot_apart(self) -> Iterator[StoreConnection]:
        """A connection of its own in one snapshot of the file, for many reads; not from the writer's thread."""
        with self._apart() as connection:
            connection.execute("pragma query_only = on")
            connection.execute("begin")
            yield connection

    @contextmanager
    def transaction_apart(self, scope: Scope) -> Iterator[StoreConnection]:
        """A connection of its own in one transaction, for many writes; on SQLite it holds every scope."""
        with self._apart() as connection, transaction(connection):
            yield connection

    @contextmanager
    def _apart(self) -> Iterator[StoreConnection]:
        self._writer_connection.submit(lambda connection: None).result()  # makes and checks the tables
        connection = connect(self.path, self.busy_timeout)
        try:
            yield connection
        finally:
            connection.close()

    def write(self, function: Callable[[StoreConnection], T]) -> Future[T]:
        """Queue a function on the writing connection, outside any transaction."""
        return self._writer_connection.submit(function)

    def transact(self, function: Callable[[StoreConnection], T], *, lasting: bool) -> Future[T]:
        """Queue a function on the writing connection, in a transaction of its own.

        Args:
            function: What the transaction does.
            lasting: Whether it survives a power cut at once; else it does once a later commit that lasts is done.
        """

        def commit(connection: StoreConnection) -> T:
            if not lasting:
                connection.execute("pragma synchronous = normal")
            try:
                with transaction(connection):
                    result = function(connection)
                    self._probe("before commit")
            finally:
                if not lasting:
                    connection.execute("pragma synchronous = full")
            self._probe("after commit")
            return result

        return self._writer_connection.submit(commit)

    def read(self, function: Callable[[StoreConnection, Reader], T]) -> Call[T]:
        """Queue a function on the reading connection, in one snapshot of the file."""

        def snapshot(connection: StoreConnection) -> T:
            connection.execute("begin")
            try:
                assert self._reader is not None
                return function(connection, self._reader)
            finally:
                connection.execute("rollback")

        return self._reader_connection.call(snapshot)

    def diagnose(self, progress: Progress | None) -> Future[list[Finding]]:
        """Queue a look at the whole file, on a thread of its own, so that other reads need not wait for it."""
        from vmem_core.stores._sqlite_inspection import inspect, inspecting

        with _forks.MAKING:
            if not self._inspectors:
                self._inspectors = (Connection(lambda: inspecting(self.path, self.busy_timeout)),)
        (inspector,) = self._inspectors

        def look(connection: StoreConnection) -> list[Finding]:
            try:
                return inspect(connection, self.asked_language, progress)
            finally:
                inspector.let_go()

        return inspector.submit(look)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The one that looks at the whole file, if any; the one that reads, and the one that writes."""
        return *self._inspectors, self._reader_connection, self._writer_connection

    def hold(self, release: threading.Event) -> None:
        """Close the file once what is queued is done, and keep the threads still until the event."""
        for connection in self.connections:
            # A fork on one of these very threads cannot wait for them.
            if not any(one.is_current for one in self.connections):
                connection.hold(release)

    def stop(self) -> None:
        """Run what is queued, close the connections, end their threads. Not in a forked child, which has none."""
        if self.pid != os.getpid():
            return
        connections = self.connections
        for connection in connections:
            connection.finish()
            # A store may be collected on one of these very threads, which cannot wait for itself or the other.
            if not any(one.is_current for one in connections):
                connection.join()

    # --- on the writer's thread -------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Commit what waits, together; one refused operation fails no other."""
        group = self._waiting(_LARGEST_GROUP)
        if group:
            results = self._commit_group(group)
            settle((call, result) for (_, call), result in zip(group, results, strict=True))

    def _waiting(self, most: int, *, longest: float = inf) -> list[_Waiting]:
        """Take what waits and was not cancelled, in order: so many, and up to the first with a longer text."""
        taken: list[_Waiting] = []
        while self._pending and len(taken) < most and sum(map(len, self._pending[0][0].texts())) <= longest:
            operation, call = self._pending.popleft()
            if call.claim():
                taken.append((operation, call))
        return taken

    def _commit_group(self, group: list[_Waiting], *, alone: bool = False) -> list[Outcome | BaseException]:
        """Commit operations together, and those that join them before the commit: they are added to the group."""
        try:
            connection = self._writer_connection.opened()
            tokens = [self._tokens(operation) for operation, _ in group]
            connection.execute("begin immediate")
        except BaseException as error:  # noqa: BLE001 - handed to every caller
            return [translate(error) for _ in group]
        results: list[_Applied | BaseException] = []
        try:
            for (operation, _), token in zip(tuple(group), tokens, strict=True):
                results.append(self._one(connection, operation, token))
            while not alone and (late := self._waiting(_LARGEST_GROUP - len(group), longest=_LONGEST_LATE)):
                group += late
                for operation, _ in late:
                    results.append(self._one(connection, operation, self._tokens(operation)))
            self._probe("before commit")
            connection.execute("commit")
            self._probe("after commit")
        except BaseException as error:  # noqa: BLE001 - handed to every caller
            if connection.in_transaction:
                connection.execute("rollback")
            if 1 < len(group) > len(results):  # one could not be applied: nobody else is to suffer for it
                return [self._commit_group([one], alone=True)[0] for one in group]
            return [translate(error) for _ in group]
        return self._after_commit(connection, results)

    def _tokens(self, operation: Operation) -> dict[str, bytes]:
        assert self._language is not None
        return indexing.token_table(operation.texts(), self._language)

    def _one(
        self, connection: StoreConnection, operation: Operation, tokens: dict[str, bytes]
    ) -> _Applied | BaseException:
        """One operation inside the group's transaction.

        Returns:
            What it did, or why it was refused: then it has written nothing.

        Raises:
            Exception: What kept a plan from being applied: part of it may be written.
        """
        try:
            loaded = _transaction.load(connection, operation, self.clock)
            self._probe("loaded")
            plan = operation.decide(loaded.snapshot)
        except Exception as error:
            if not connection.in_transaction:
                raise  # SQLite has given up the whole transaction: nobody's work stands
            return translate(error)
        if not plan.replayed:
            _transaction.apply(connection, plan, operation.scope, loaded, tokens)
        self._probe("applied")
        return _Applied(plan, _transaction.outcome(connection, plan), loaded.state.generation)

    def _after_commit(
        self, connection: StoreConnection, results: list[_Applied | BaseException]
    ) -> list[Outcome | BaseException]:
        applied = [result for result in results if isinstance(result, _Applied)]
        for one in applied:
            self.generation = one.generation
        # A forget that finds nothing left to do scrubs too: another process may owe it.
        self._scrub_owed = self._scrub_owed or any(one.plan.receipt.kind in _FORGETS for one in applied)
        if self._scrub_owed:
            self._scrub_owed = not truncate_log(connection)
        clean = not self._scrub_owed
        return [_told(result, clean) for result in results]

    def see_generation(self, connection: StoreConnection) -> Generation | None:
        """The active generation, read from the file and kept as the one last seen."""
        self.generation = _transaction.active_generation(connection)
        return self.generation

    def scrub(self, connection: StoreConnection) -> None:
        """VACUUM and truncate the log; waits for readers up to the busy timeout."""
        with transaction(connection):
            connection.execute(_sql.DROP_HUSKS)
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

    def _open_writer(self) -> StoreConnection:
        connection = connect(self.path, self.busy_timeout)
        try:
            set_up(connection, self.asked_language)  # first: a file that is refused is left as it is
            set_journal(connection, self.busy_timeout)
            self._language = setting(connection, "language")
            self._reader = self._reader or Reader(self.clock, self._language, self._cache_bytes)
            self.see_generation(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_reader(self) -> StoreConnection:
        self._writer_connection.submit(lambda connection: None).result()  # makes and checks the tables
        connection = connect(self.path, self.busy_timeout)
        connection.execute("pragma query_only = on")
        return connection
