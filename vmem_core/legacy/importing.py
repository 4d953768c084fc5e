"""Import from another memory system: read, judge, commit batch by batch.

Owns the loop: the next batch is read and judged while the one before it is committed. Does not own how a source is
read (the readers of this folder), what is skipped before (``records.py``) and inside the transaction
(``vmem_core/imports.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sized
from typing import Any, Final

from vmem_core import tracing
from vmem_core.arguments import check_store
from vmem_core.errors import InvalidRequestError
from vmem_core.ids import new_salts
from vmem_core.imports import Import
from vmem_core.legacy.items import from_items
from vmem_core.legacy.records import LegacyRecord, judge
from vmem_core.legacy.rehearsal import Rehearsal
from vmem_core.limits import Limits
from vmem_core.logs import log
from vmem_core.records import ORIGINS, Origin, Scope, check_scope
from vmem_core.results import ImportResult
from vmem_core.store import Store
from vmem_core.text import check_text
from vmem_core.values import check_choice, check_integer, check_type
from vmem_core.waiting import until_done

MOST_AT_ONCE: Final = 10_000
Source = AsyncIterable[LegacyRecord] | Iterable[Any]
Progress = Callable[[int, int | None], object]


async def import_legacy(
    source: Source,
    store: Store,
    *,
    scope: Scope | None = None,
    operation_prefix: str = "import",
    batch_size: int = 500,
    origin: Origin = "inferred",
    dry_run: bool = False,
    progress: Progress | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> ImportResult:
    """Take over the records of another memory system.

    Each record keeps its id and its own scope and becomes revision 1, under an operation of its own: run again, and
    nothing is imported twice. Its times there are kept under ``metadata.legacy_import``; vectors are not carried over
    (``reembed`` makes new ones). Stop whoever writes to the other system first.

    Args:
        source: One of the readers, such as ``from_mem0(items)``; or any iterable of ``LegacyRecord`` or of mappings
            with its fields, async or not.
        store: Where the records go.
        scope: Only records whose scope has all its fields, and the scope of those that have none. None: all that
            have a scope.
        operation_prefix: Operation ids are ``<operation_prefix>:<legacy id>``.
        batch_size: How many operations are committed in one transaction, 1 to 10,000.
        origin: Of all records.
        dry_run: Count only; nothing is written.
        progress: Called after each batch with the number of records read so far and how many there are in all, None
            if the source does not say.
        limits: The largest values that are taken.

    Returns:
        How many records were read, imported and skipped, and for which reasons: ``already_imported, changed, expired,
        invalidated, blank, no_id, no_scope, other_scope, taken, forgotten, too_long, invalid_id, invalid_scope,
        invalid_metadata, unreadable, unreadable_time, refused``.

    Raises:
        InvalidRequestError: For a wrong argument.
        Exception: Whatever the source raises, as it is, with a note of how far the import came. What was read before
            is committed; run the import again to go on.

    >>> from vmem_core import InMemoryStore, run_sync
    >>> old = [{"id": "m-1", "text": "Ada prefers tea.", "scope": {"user_id": "ada"}}]
    >>> store = InMemoryStore()
    >>> [run_sync(import_legacy(old, store)).imported for _ in range(2)]
    [1, 0]
    """
    check_store(store, "run_imports")
    if progress is not None and not callable(progress):
        raise InvalidRequestError("must be a callable of two numbers", path="progress")
    if not isinstance(source, AsyncIterable | Iterable):
        raise InvalidRequestError("must be an iterable of legacy records, such as from_mem0(items)", path="source")
    check_type(limits, Limits, "limits")
    run = _Run(
        store,
        None if scope is None else check_scope(scope),
        _check_prefix(operation_prefix, limits),
        check_integer(batch_size, "batch_size", least=1, most=MOST_AT_ONCE),
        check_choice(origin, ORIGINS, "origin"),  # type: ignore[arg-type]
        check_type(dry_run, bool, "dry_run"),
        limits,
    )
    if scope is not None:
        limits.check_scope(scope)
    total = len(source) if isinstance(source, Sized) else None
    with tracing.span("import") as span:
        result = await run.over(_records(source), lambda done: None if progress is None else progress(done, total))
        span.record(records=result.imported)
    return result


def _check_prefix(prefix: object, limits: Limits) -> str:
    checked = check_text(prefix, "operation_prefix")
    limits.check_id(checked, "operation_prefix")
    return checked


def _records(source: Source) -> AsyncIterator[LegacyRecord]:
    if hasattr(source, "__aiter__"):
        return source.__aiter__()
    return from_items(source)


class _Run:
    """One import, from its first record to its result."""

    def __init__(
        self,
        store: Store,
        scope: Scope | None,
        prefix: str,
        batch_size: int,
        origin: Origin,
        dry_run: bool,
        limits: Limits,
    ) -> None:
        self._store, self._scope, self._prefix, self._batch_size = store, scope, prefix, batch_size
        self._origin, self._limits = origin, limits
        self._rehearsal = Rehearsal() if dry_run else None
        self._salts = new_salts()
        self._scanned = self._imported = 0
        self._reasons: Counter[str] = Counter()

    async def over(self, records: AsyncIterator[LegacyRecord], tell: Callable[[int], object]) -> ImportResult:
        """Import all that a source gives."""
        import asyncio

        commit: asyncio.Task[None] | None = None
        failure: Exception | None = None
        ended = False
        try:
            while not ended:
                batch, ended, failure = await self._read(records)
                if commit is not None:
                    await until_done(commit)
                    commit.result()
                    tell(self._done)
                commit = asyncio.ensure_future(self._commit(batch)) if batch else None
            if commit is not None:
                await until_done(commit)
                commit.result()
        except BaseException:
            # Whoever cancels an import finds nothing of it at work any more.
            if commit is not None:
                await until_done(commit)
            raise
        tell(self._done)
        if failure is not None:
            if self._scanned:
                failure.add_note(self._how_far())
            raise failure
        self._warn()
        return self.result()

    @property
    def _done(self) -> int:
        return self._imported + self._reasons.total()

    def result(self) -> ImportResult:
        """What was done so far."""
        return ImportResult(self._scanned, self._imported, self._reasons.total(), dict(self._reasons))

    async def _read(self, records: AsyncIterator[LegacyRecord]) -> tuple[list[Import], bool, Exception | None]:
        """The operations of the next records, whether the source has ended, and what it raised."""
        batch: list[Import] = []
        try:
            async for record in records:
                self._scanned += 1
                judged = judge(record, self._scope, self._prefix, self._origin, self._limits, next(self._salts))
                if isinstance(judged, str):
                    self._reasons[judged] += 1
                else:
                    batch.append(judged)
                if len(batch) >= self._batch_size:
                    return batch, False, None
        except Exception as error:  # noqa: BLE001 - raised again, once what was read before it is committed
            return batch, True, error
        return batch, True, None

    async def _commit(self, batch: list[Import]) -> None:
        for reason in await self._settled(batch):
            if reason is None:
                self._imported += 1
            else:
                self._reasons[reason] += 1

    async def _settled(self, batch: list[Import]) -> list[str | None]:
        is_rehearsal = self._rehearsal is not None
        try:
            reasons = await self._store.run_imports(batch, dry_run=is_rehearsal)
        except InvalidRequestError:
            if len(batch) == 1:
                return ["refused"]
            # One that the database cannot hold fails no other: find it.
            return [reason for one in batch for reason in await self._settled([one])]
        return reasons if self._rehearsal is None else self._rehearsal.adjust(batch, reasons)

    def _how_far(self) -> str:
        verb = "would be imported" if self._rehearsal is not None else "are imported"
        return (
            f"import: the source failed after record {self._scanned}; {self._imported} of them {verb}, "
            f"{self._reasons.total()} skipped; what is imported stays, run the import again to go on"
        )

    def _warn(self) -> None:
        if changed := self._reasons["changed"]:
            log().warning(
                "import: %d records have changed in the source since they were imported and were skipped; revise them "
                "in this store instead",
                changed,
            )
