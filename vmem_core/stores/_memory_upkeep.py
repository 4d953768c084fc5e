"""Retention in the in-memory store.

Owns the verbs that prune, and what they do to rows. Does not own what may go (``vmem_core/retention.py``) or the rows
(``_memory_rows.py``).
"""

from __future__ import annotations

import threading
from datetime import datetime

from vmem_core import tracing
from vmem_core.clock import Clock, read_micros
from vmem_core.logs import log
from vmem_core.records import Scope, check_scope
from vmem_core.retention import PastRevision, check_cutoff, is_old, is_prunable, warning
from vmem_core.stores._memory_rows import RevisionRow, ScopeRow
from vmem_core.values import to_micros


class MemoryUpkeep:
    """The verbs of retention, on the dicts of the in-memory store."""

    _clock: Clock
    _lock: threading.Lock
    _scopes: dict[str, ScopeRow]

    def _check_open(self) -> None:
        raise NotImplementedError

    async def prune_history(self, older_than: datetime, scope: Scope | None = None, *, dry_run: bool = False) -> int:
        """Delete past revisions, recorded before a cutoff, of records that are retracted or expired."""
        cutoff = check_cutoff(older_than)
        wanted = None if scope is None else check_scope(scope).key
        with tracing.span("prune_history") as span, self._lock:
            self._check_open()
            count = 0
            for key, state in self._scopes.items():
                if wanted in (None, key):
                    now = max(read_micros(self._clock), state.last_stamp)
                    count += prune_rows(state, cutoff, now, dry_run=dry_run)
            span.record(records=count)
            return count

    async def prune_operations(self, older_than: datetime, *, dry_run: bool = False) -> int:
        """Delete receipts committed before a cutoff; their operation ids apply again, which the log warns of."""
        cutoff = check_cutoff(older_than)
        with tracing.span("prune_operations") as span, self._lock:
            self._check_open()
            count = sum(prune_receipts(state, cutoff, dry_run=dry_run) for state in self._scopes.values())
            span.record(records=count)
        if count and not dry_run:
            log().warning("%s", warning(count, older_than))
        return count


def prune_rows(scope: ScopeRow, cutoff: int, now: int, *, dry_run: bool) -> int:
    """Prune past revisions of a scope's records; returns how many there are."""
    count = 0
    for row in scope.rows:
        record = row.record
        if record is None:
            continue
        expires = None if record.expires_at is None else to_micros(record.expires_at)
        active, last = record.status == "active", 0
        for number, one in enumerate(row.revisions, 1):
            past = PastRevision(number, one.recorded_at, record.revision, active, expires)
            if one.record is not None and is_prunable(past, cutoff, now):
                count, last = count + 1, number
                if not dry_run:
                    row.revisions[number - 1] = RevisionRow(one.entry, None, one.scope_revision, one.recorded_at)
        if not dry_run:
            row.past_vectors = [vector for vector in row.past_vectors if vector[1] > last]
    return count


def prune_receipts(scope: ScopeRow, cutoff: int, *, dry_run: bool) -> int:
    """Delete old receipts of a scope; returns how many there are."""
    old = [name for name, stored in scope.receipts.items() if is_old(to_micros(stored.receipt.committed_at), cutoff)]
    for name in () if dry_run else old:
        del scope.receipts[name]
        scope.mentions.pop(name, None)
    return len(old)
