"""What an owner does with a SQL store now and then: prune it, take a scope out of it, put one in.

Owns the verbs. A prune goes scope by scope, page by page, each page a transaction of its own that holds the scope, so
that a record which somebody revises meanwhile is judged as it is then. Does not own the statements (``_pruning.py``,
``_dump.py``) or what may go (``vmem_core/retention.py``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from vmem_core import tracing
from vmem_core.clock import Clock
from vmem_core.logs import log
from vmem_core.portable import Header, Part
from vmem_core.records import Scope, check_scope
from vmem_core.retention import check_cutoff, warning
from vmem_core.stores._database import Database


class Upkeep:
    """The verbs of retention, on both SQL stores."""

    _clock: Clock

    async def _change(self, scope: Scope, function: Callable[[Database], Any]) -> Any:
        """Run a function in a transaction that holds a scope."""
        raise NotImplementedError

    async def _pruned(self) -> None:
        """Let what was overwritten leave the files too, as far as that can be done now."""
        raise NotImplementedError

    def _opened(self) -> Any:
        """The engine of this process."""
        raise NotImplementedError

    async def scopes(self) -> Sequence[Scope]:
        """Every scope that was ever written to."""
        raise NotImplementedError

    async def prune_history(self, older_than: datetime, scope: Scope | None = None, *, dry_run: bool = False) -> int:
        """Delete past revisions of records that are retracted or expired; their current revisions and receipts stay.

        Args:
            older_than: Only revisions recorded before this instant, exclusive.
            scope: Only of this scope; None: of all.
            dry_run: Whether they are only counted.

        Returns:
            How many revisions were deleted.

        Raises:
            InvalidRequestError: For a naive or wrong instant.
        """
        from vmem_core.stores import _pruning

        cutoff, count = check_cutoff(older_than), 0
        with tracing.span("prune_history") as span:
            for one in await self._those(scope):
                place: _pruning.Place | None = _pruning.BEGINNING
                while place is not None:
                    prune = partial(_pruning.prune_page, cutoff=cutoff, clock=self._clock, after=place, dry_run=dry_run)
                    page: _pruning.Pruned = await self._change(one, partial(prune, scope=one))
                    count, place = count + page.count, page.next
            if count and not dry_run:
                await self._pruned()
            span.record(records=count)
        return count

    async def prune_operations(self, older_than: datetime, *, dry_run: bool = False) -> int:
        """Delete receipts. Their operation ids apply again, which the log warns of; what they wrote stays.

        Args:
            older_than: Only receipts committed before this instant, exclusive.
            dry_run: Whether they are only counted.

        Returns:
            How many receipts were deleted.

        Raises:
            InvalidRequestError: For a naive or wrong instant.
        """
        from vmem_core.stores import _pruning

        cutoff, count = check_cutoff(older_than), 0
        with tracing.span("prune_operations") as span:
            for scope in await self.scopes():
                count += await self._change(
                    scope, partial(_pruning.prune_receipts, scope=scope, cutoff=cutoff, dry_run=dry_run)
                )
            span.record(records=count)
        if count and not dry_run:
            log().warning("%s", warning(count, older_than))
        return count

    async def _those(self, scope: Scope | None) -> Sequence[Scope]:
        asked = None if scope is None else check_scope(scope)
        return [one for one in await self.scopes() if asked in (None, one)]

    async def dump(self, scope: Scope) -> AsyncGenerator[Any, None]:
        """A scope's whole history from one snapshot: its header, then its parts in order, in blocks."""
        from vmem_core.stores import _dump
        from vmem_core.stores._steps import steps

        check_scope(scope)
        engine = self._opened()
        async with steps(engine.snapshot_apart(), engine.meaning) as (database, run):
            parts = _dump.read_scope(database, scope)
            while (block := await run(next, parts, None)) is not None:
                yield block

    async def restore(self, header: Header, blocks: AsyncIterator[Sequence[Part]]) -> None:
        """Write a dumped scope in one transaction, which ends once ``blocks`` has ended; its error undoes all."""
        from vmem_core.stores import _dump
        from vmem_core.stores._steps import steps

        engine = self._opened()
        async with steps(engine.transaction_apart(header.scope), engine.meaning) as (database, run):
            restoring = await run(_dump.Restore, database, header, engine.language)
            async for block in blocks:
                await run(restoring.write, block)
            await run(restoring.finish)
