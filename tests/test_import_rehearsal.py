"""A dry run of an import: its counts are those of the import, wherever the batches begin."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations

import pytest
from fakes import ADA, BOB, START, Clock, open_memory

from vmem_core import InMemoryStore, LegacyRecord, import_legacy

PAST = START - timedelta(days=1)
SOURCE = (
    LegacyRecord("a", "one", ADA), LegacyRecord("a", "one", ADA), LegacyRecord("a", "one", ADA, expires_at=PAST),
    LegacyRecord("a", "one", BOB), LegacyRecord("a", "two", BOB, invalid_at=PAST), LegacyRecord("held", "one", BOB),
)  # fmt: skip


async def a_store(clock: Clock) -> InMemoryStore:
    """One in which an id is held, and operations of other records have names that an import would give."""
    store = InMemoryStore(clock=clock)
    ada, bob = open_memory(store, ADA), open_memory(store, BOB)
    await ada.remember("held", id="held")
    await bob.remember("another", id="another", operation_id="met:a")
    await bob.remember("forgotten", id="gone", operation_id="redacted:a")
    await bob.forget("gone")
    return store


@pytest.mark.parametrize("prefix", ["free", "met", "redacted"])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
async def test_whichever_records_share_an_id_and_in_whatever_order_a_dry_run_counts_as_the_import_does(
    clock: Clock, batch_size: int, prefix: str
) -> None:
    untouched, told = await a_store(clock), set()
    for source in permutations(SOURCE, 4):
        dry = await import_legacy(source, untouched, batch_size=batch_size, operation_prefix=prefix, dry_run=True)
        store = await a_store(clock)
        assert dry == await import_legacy(source, store, batch_size=batch_size, operation_prefix=prefix), source
        told |= dry.reasons.keys()
    assert told >= {"changed", "already_imported", "taken", "expired"}
