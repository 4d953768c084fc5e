"""A batch of imports in one transaction of a SQL store: what it must know, and its plans applied together.

Owns the statements of a batch: a few for all of its records. Does not own what is imported and what is skipped
(``vmem_core/imports.py``), or when a transaction begins and ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from vmem_core.clock import Clock
from vmem_core.imports import Holder, Import, ScopeKnown, settle
from vmem_core.plan import Plan, Write
from vmem_core.records import Scope
from vmem_core.stores import _sql, _transaction
from vmem_core.stores._database import Database
from vmem_core.stores._transaction import ScopeState
from vmem_core.values import from_micros, to_micros


def run_batch(
    connection: Database, operations: Sequence[Import], tokens: Mapping[str, bytes], clock: Clock, *, dry_run: bool
) -> list[str | None]:
    """Settle a batch against the store and apply it, but for the commit.

    Args:
        connection: In a transaction that holds the scopes of the batch.
        operations: In the order of their source.
        tokens: The search tokens of every text.
        clock: The store's clock.
        dry_run: Whether nothing is applied.

    Returns:
        For each operation why it was skipped, or None.
    """
    by_scope: defaultdict[Scope, list[Import]] = defaultdict(list)
    for operation in operations:
        by_scope[operation.scope].append(operation)
    states = {scope: _transaction.load_state(connection, scope) for scope in by_scope}
    known = {scope: _known(connection, states[scope], batch, clock) for scope, batch in by_scope.items()}
    plans, reasons = settle(operations, known, _holders(connection, operations, states))
    if not dry_run:
        planned: defaultdict[Scope, list[Plan]] = defaultdict(list)
        for plan in plans:
            planned[plan.receipt.scope].append(plan)
        for scope, of_scope in planned.items():
            _apply(connection, scope, states[scope], of_scope, tokens)
    return reasons


def _known(connection: Database, state: ScopeState, batch: Sequence[Import], clock: Clock) -> ScopeKnown:
    now = from_micros(_transaction.time_of(state, clock))
    if state.scope_id is None:
        return ScopeKnown(0, now, {})
    wanted = _sql.id_list([operation.operation_id for operation in batch])
    rows = connection.execute(_sql.RECEIPTS_BY_OPERATION, (state.scope_id, wanted)).fetchall()
    scope = batch[0].scope
    return ScopeKnown(state.revision, now, {row[0]: _sql.load_receipt(scope, *row) for row in rows})


def _holders(
    connection: Database, operations: Sequence[Import], states: Mapping[Scope, ScopeState]
) -> dict[str, Holder]:
    scopes = {state.scope_id: scope for scope, state in states.items() if state.scope_id is not None}
    wanted = _sql.id_list([operation.record_id for operation in operations])
    rows = connection.execute(_sql.HOLDERS, (wanted,)).fetchall()
    return {record_id: Holder(scopes.get(number >> 32), state == _sql.FORGOTTEN) for record_id, number, state in rows}


def _apply(
    connection: Database, scope: Scope, state: ScopeState, plans: Sequence[Plan], tokens: Mapping[str, bytes]
) -> None:
    """Apply the plans of one scope: new records, their receipts, and the scope's row once."""
    if state.scope_id is None:
        state.scope_id = connection.add_scope(scope.key)
    feed = state.scope_id << 32
    writes: list[tuple[Write, int]] = []
    receipts = []
    for plan in plans:
        receipt, request = plan.receipt, plan.request
        assert request is not None
        changed = feed | receipt.scope_revision
        writes += [(write, changed) for write in plan.writes]
        digest = request.salt + request.digest
        committed = to_micros(receipt.committed_at)
        body = _sql.receipt_body(receipt)
        receipts.append((changed, state.scope_id, receipt.operation_id, committed, digest, body))
    _transaction.create_records(connection, writes, state, tokens, {})
    connection.execute_many(_sql.INSERT_RECEIPT, receipts)
    last = plans[-1].receipt
    row = (last.scope_revision, to_micros(last.committed_at), state.records, state.scope_id)
    connection.execute(_sql.UPDATE_SCOPE, row)
