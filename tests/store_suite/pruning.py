"""Retention: which past revisions and receipts go when the host asks for it, and what stays all the same."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from fakes import ADA, BOB, START, Clock, everything, ids, open_memory, refusal, texts

from vmem_core import InvalidRequestError, MemorySession, Scope, Store

FAR = START + timedelta(days=365)


async def grow(memory: MemorySession, clock: Clock) -> None:
    """Three records of three revisions, an hour apart: one retracted, one that expires after a day, one active."""
    for name in ("over", "expiring", "alive"):
        ttl = timedelta(days=1) if name == "expiring" else None
        await memory.remember(f"{name} one", id=name, ttl=ttl, operation_id=f"{name} 1")
    clock.step(hours=1)
    for name in ("over", "expiring", "alive"):
        await memory.revise(name, text=f"{name} two", operation_id=f"{name} 2")
    clock.step(hours=1)
    await memory.retract("over", operation_id="over 3")
    await memory.revise("expiring", text="expiring three")
    await memory.revise("alive", text="alive three")


async def test_past_revisions_of_what_is_retracted_or_expired_go_and_nothing_else(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    await grow(ada, clock)
    revision = await ada.scope_revision()
    assert await store.prune_history(FAR) == 2
    assert texts(await ada.history("over")) == ["over two"]
    assert len(await ada.history("expiring")) == len(await ada.history("alive")) == 3
    clock.step(days=1)
    assert await store.prune_history(FAR) == 2
    assert texts(await ada.history("expiring")) == ["expiring three"]
    assert len(await ada.history("alive")) == 3
    assert await store.prune_history(FAR) == 0
    assert await ada.scope_revision() == revision


async def test_the_cutoff_is_exclusive(store: Store, ada: MemorySession, clock: Clock) -> None:
    await grow(ada, clock)
    assert await store.prune_history(START) == 0
    assert await store.prune_history(START + timedelta(microseconds=1)) == 1
    assert [record.revision for record in await ada.history("over")] == [2, 3]
    assert await store.prune_history(START + timedelta(hours=1)) == 0
    assert await store.prune_operations(START) == 0
    assert await store.prune_operations(START + timedelta(microseconds=1)) == 3


async def test_a_dry_run_counts_and_deletes_nothing(
    store: Store, ada: MemorySession, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await grow(ada, clock)
    before = await everything(ada, "over", "expiring", "alive")
    assert await store.prune_history(FAR, dry_run=True) == 2
    assert await store.prune_operations(FAR, dry_run=True) == 9
    assert await everything(ada, "over", "expiring", "alive") == before
    assert await ada.receipt("over 1") is not None
    assert not caplog.records


async def test_one_scope_alone_is_pruned_when_it_is_named(
    store: Store, ada: MemorySession, bob: MemorySession, clock: Clock
) -> None:
    for memory, name in ((ada, "a"), (bob, "b")):
        await memory.remember("one", id=name)
        await memory.retract(name)
    clock.step(hours=1)
    assert await store.prune_history(FAR, BOB) == 1
    assert [len(await ada.history("a")), len(await bob.history("b"))] == [2, 1]
    assert await store.prune_history(FAR, scope=Scope(user_id="nobody")) == 0
    assert list(await store.scopes()) == [ADA, BOB]
    assert await store.prune_history(FAR) == 1


async def test_receipts_still_replay_after_the_history_is_pruned(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    await grow(ada, clock)
    await store.prune_history(FAR)
    again = await ada.remember("over one", id="over", operation_id="over 1")
    assert (again.replayed, again.records) == (True, ())
    revised = await ada.revise("over", text="over two", operation_id="over 2")
    assert (revised.replayed, texts(revised.records)) == (True, [])
    assert texts((await ada.retract("over", operation_id="over 3")).records) == ["over two"]


async def test_what_was_known_at_an_earlier_time_is_gone_with_the_revision(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    await grow(ada, clock)
    for at in ({"at_scope_revision": 3}, {"recorded_as_of": START}):
        assert sorted(ids(await ada.recall("one", **at))) == ["alive", "expiring", "over"]  # type: ignore[arg-type]
    await store.prune_history(FAR)
    for at in ({"at_scope_revision": 3}, {"recorded_as_of": START}):
        assert sorted(ids(await ada.recall("one", **at))) == ["alive", "expiring"]  # type: ignore[arg-type]
    await store.prune_operations(FAR)
    assert sorted(ids(await ada.recall("one", at_scope_revision=3))) == ["alive", "expiring"]
    clock.step(days=2)
    assert sorted(ids(await ada.recall("one", at_scope_revision=3))) == ["alive", "expiring"]


async def test_a_vector_of_a_pruned_text_goes_with_it(store: Store, seeing: MemorySession, clock: Clock) -> None:
    await grow(seeing, clock)
    await store.prune_history(FAR)
    found = await seeing.recall("over one", at_scope_revision=3)
    assert "over" not in ids(found)
    assert {hit.record.id for hit in found if hit.vector_rank} == {"expiring", "alive"}
    assert ids(await seeing.recall("alive three", top_k=1)) == ["alive"]


async def test_a_rendered_context_of_a_pruned_revision_says_that_it_is_no_longer_kept(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    await ada.remember("Ada owns a boat", id="boat")
    package = await ada.compile_context("boat")
    await ada.revise("boat", text="Ada owns a ship")
    await ada.retract("boat")
    clock.step(hours=1)
    assert await store.prune_history(FAR) == 2
    assert (await ada.render(package)).splitlines()[1] == ("[id=boat revision=1 origin=asserted] [no longer kept]")


async def test_a_pruned_record_can_return_and_can_be_forgotten(store: Store, ada: MemorySession, clock: Clock) -> None:
    await grow(ada, clock)
    await store.prune_history(FAR)
    revised = (await ada.revise("over")).records[0]
    assert (revised.revision, revised.text, revised.status) == (4, "over two", "active")
    forgotten = await ada.forget("over")
    assert forgotten.revisions == (3, 4)
    for name in ("over 1", "over 2", "over 3"):
        receipt = await ada.receipt(name)
        assert receipt is not None
        assert receipt.redacted


async def test_pruned_receipts_free_their_ids_and_the_log_warns_with_the_count_alone(
    store: Store, ada: MemorySession, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await ada.remember("Ada owns a boat", id="boat", operation_id="op")
    await ada.remember("Ada owns a boat", supersede="skip_equal", operation_id="met")
    clock.step(hours=1)
    await ada.remember("later", operation_id="late")
    with caplog.at_level(logging.WARNING, logger="vmem_core"):
        assert await store.prune_operations(START + timedelta(minutes=1)) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "prune_operations: 2 receipts committed before 2026-03-01T10:01:00+00:00 were deleted; their operation ids are "
        "free again, and a request that is redelivered under one of them will be applied again"
    ]
    assert (await ada.receipt("op"), await ada.receipt("met")) == (None, None)
    assert await ada.receipt("late") is not None
    assert await ada.scope_revision() == 3
    again = await ada.remember("Ada owns a boat", operation_id="op")
    assert (again.replayed, again.receipt.scope_revision) == (False, 4)
    assert await ada.count() == 3


async def test_a_tombstone_survives_every_prune(store: Store, ada: MemorySession, clock: Clock) -> None:
    await ada.remember("secret", id="gone", operation_id="op")
    await ada.forget("gone", operation_id="forget")
    clock.step(hours=1)
    assert await store.prune_history(FAR) == 0
    assert await store.prune_operations(FAR) == 2
    assert (await refusal(ada.remember("again", id="gone"))).code == "record_conflict"
    assert (await ada.forget("gone")).already_forgotten


@pytest.mark.parametrize("older_than", [None, "2026-01-01", 5, START.replace(tzinfo=None), timedelta(days=1)])
async def test_a_cutoff_that_is_no_aware_instant_is_refused(store: Store, older_than: Any) -> None:
    for prune in (store.prune_history, store.prune_operations):
        error = await refusal(prune(older_than))
        assert isinstance(error, InvalidRequestError)
        assert error.path == "older_than"
    error = await refusal(store.prune_history(FAR, scope={"user_id": "ada"}))  # type: ignore[arg-type]
    assert str(error).startswith("scope: ")


async def test_pruning_takes_no_notice_of_what_others_still_write(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    await grow(ada, clock)
    assert store.sync.prune_history(FAR) == 2
    await open_memory(store).revise("over", text="over four")
    assert await store.prune_history(FAR) == 0
    assert texts(await ada.history("over")) == ["over two", "over four"]
