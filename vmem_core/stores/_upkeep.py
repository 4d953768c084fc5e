"""Retention on a SQL store: past revisions and receipts that the owner does not keep any longer.

Owns the verbs that prune and their statements' order: scope by scope, page by page, each page a transaction of its own
that holds the scope, so that a record which somebody revises meanwhile is judged as it is then. Does not own what may
go (``vmem_core/retention.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from vmem_core import tracing
from vmem_core.clock import Clock
from vmem_core.logs import log
from vmem_core.records import Scope, check_scope
from vmem_core.retention import PastRevision, check_cutoff, is_prunable, warning
from vmem_core.stores import _sql, _transaction
from vmem_core.stores._database import Database

_PAGE: Final = 2_000
_BEGINNING: Final = (0, 0)
Place = tuple[int, int]  # number, revision


@dataclass(slots=True)
class Pruned:
    """What a page did: how many revisions, and where the next page begins; None: there is none."""

    count: int
    next: Place | None


def prune_page(connection: Database, scope: Scope, cutoff: int, clock: Clock, after: Place, *, dry_run: bool) -> Pruned:
    """Prune the next revisions of a scope.

    Args:
        connection: In a transaction that holds the scope.
        scope: Whose memory it is.
        cutoff: Microseconds since 1970, exclusive.
        clock: The store's clock, by which records expire.
        after: Where the page before ended.
        dry_run: Whether they are only counted.
    """
    state = _transaction.load_state(connection, scope)
    now = _transaction.time_of(state, clock)
    rows = connection.execute(_sql.PAST_REVISIONS, (*state.numbers, *after, cutoff, _PAGE)).fetchall()
    gone = [row for row in rows if is_prunable(_past(row), cutoff, now)]
    if not dry_run and gone:
        connection.execute_many(_sql.OVERWRITE_REVISION, [(row[0],) for row in gone])
        _delete_vectors(connection, gone)
    more = (rows[-1][1], rows[-1][2]) if len(rows) == _PAGE else None
    return Pruned(len(gone), more)


def _past(row: Sequence[Any]) -> PastRevision:
    _, _, revision, recorded_at, current, state, expires_at = row
    return PastRevision(revision, recorded_at, current, state == _sql.ACTIVE, expires_at)


def _delete_vectors(connection: Database, gone: Sequence[Sequence[Any]]) -> None:
    """Delete vectors that no kept revision has: stamps never go back, so that what goes is a record's beginning."""
    last = {row[1]: row[2] for row in gone}
    generations = connection.execute("select generation from vmem_generations where state <> 'retired'").fetchall()
    for (generation,) in generations:
        connection.execute_many(_sql.prune_vectors(generation), list(last.items()))


def prune_receipts(connection: Database, scope: Scope, cutoff: int, *, dry_run: bool) -> int:
    """Delete the receipts of a scope that were committed before the cutoff; returns how many there are."""
    numbers = _transaction.load_state(connection, scope).numbers
    count: int = connection.execute(_sql.COUNT_OLD_RECEIPTS, (*numbers, cutoff)).fetchone()[0]
    if count and not dry_run:
        for statement in (_sql.DELETE_OLD_MENTIONS, _sql.DELETE_OLD_RECEIPTS):
            connection.execute(statement, (*numbers, cutoff))
    return count


class Upkeep:
    """The verbs of retention, on both SQL stores."""

    _clock: Clock

    async def _change(self, scope: Scope, function: Callable[[Database], Any]) -> Any:
        """Run a function in a transaction that holds a scope."""
        raise NotImplementedError

    async def _pruned(self) -> None:
        """Let what was overwritten leave the files too, as far as that can be done now."""
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
        cutoff, count = check_cutoff(older_than), 0
        with tracing.span("prune_history") as span:
            for one in await self._those(scope):
                place: Place | None = _BEGINNING
                while place is not None:
                    prune = partial(prune_page, cutoff=cutoff, clock=self._clock, after=place, dry_run=dry_run)
                    page: Pruned = await self._change(one, partial(prune, scope=one))
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
        cutoff, count = check_cutoff(older_than), 0
        with tracing.span("prune_operations") as span:
            for scope in await self.scopes():
                count += await self._change(scope, partial(prune_receipts, scope=scope, cutoff=cutoff, dry_run=dry_run))
            span.record(records=count)
        if count and not dry_run:
            log().warning("%s", warning(count, older_than))
        return count

    async def _those(self, scope: Scope | None) -> Sequence[Scope]:
        asked = None if scope is None else check_scope(scope)
        return [one for one in await self.scopes() if asked in (None, one)]
