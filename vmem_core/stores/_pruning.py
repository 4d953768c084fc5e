"""The statements of retention on a SQL store: past revisions and receipts that the owner does not keep any longer.

Owns what one page of a prune does, inside a transaction. Does not own what may go (``vmem_core/retention.py``) or the
verbs (``_upkeep.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from vmem_core.clock import Clock
from vmem_core.records import Scope
from vmem_core.retention import PastRevision, is_prunable
from vmem_core.stores import _sql, _transaction
from vmem_core.stores._database import Database

_PAGE: Final = 2_000
Place = tuple[int, int]  # number, revision
BEGINNING: Final[Place] = (0, 0)


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
