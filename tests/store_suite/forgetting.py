"""Retract, revise, forget: what is gone, what a tombstone keeps, which receipts are redacted, what listeners hear."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from fakes import ADA, FakeEmbedder, Ids, Listener, everything, ids, in_order, open_memory, refusal, texts

from vmem_core import (
    Change,
    Draft,
    ForgetEvent,
    InvalidRequestError,
    Link,
    MemorySession,
    OperationConflictError,
    RecordConflictError,
    Scope,
    Store,
)


async def assert_gone(memory: MemorySession, record_id: str) -> None:
    """The record is in no answer, whatever is asked for."""
    until = await memory.scope_revision()
    assert await memory.get(record_id) is None
    assert await memory.history(record_id) == []
    assert record_id not in ids((await memory.list(status=None, limit=1000)).records)
    for text in (None, "tea", "coffee"):
        for n in range(until + 1):
            hits = await memory.recall(
                text, top_k=1000, at_scope_revision=n, include_retracted=True, include_expired=True
            )  # fmt: skip
            assert record_id not in ids(hits)
        hits = await memory.recall(text, top_k=1000, include_retracted=True, include_expired=True)
        assert record_id not in ids(hits)


async def test_a_retracted_record_leaves_recall_and_stays_in_history(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    await ada.retract(record.id)
    assert await ada.recall("tea") == []
    assert await ada.recall() == []
    assert ids(await ada.recall("tea", include_retracted=True)) == [record.id]
    assert texts(await ada.history(record.id)) == ["tea", "tea"]
    assert ids(await ada.recall("tea", at_scope_revision=1)) == [record.id]
    assert await ada.recall("tea", at_scope_revision=2) == []
    gone = await ada.get(record.id)
    assert gone is not None
    assert gone.status == "retracted"


async def test_forget_deletes_every_revision_and_says_which(ada: MemorySession, scrubs_at_once: bool) -> None:
    await ada.remember("tea", id="a", operation_id="1")
    await ada.remember("coffee", id="b")
    await ada.revise("a", text="coffee")
    await ada.retract("a")
    result = await ada.forget("a", operation_id="op")
    assert (result.revisions, result.already_forgotten, result.replayed) == ((1, 2, 3), False, False)
    assert result.redaction == "none"
    assert result.scrubbed is scrubs_at_once
    assert result.receipt.kind == "forget"
    assert result.receipt.changes == (Change("a", 3, "forget"),)
    assert result.receipt.scope_revision == 5
    await assert_gone(ada, "a")
    assert texts(await ada.recall("coffee")) == ["coffee"]
    assert await ada.count() == 1


async def test_forget_after_retract_and_retract_after_forget_are_defined(ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    await ada.retract("a")
    assert (await ada.forget("a")).revisions == (1, 2)
    assert isinstance(await refusal(ada.retract("a")), RecordConflictError)
    await assert_gone(ada, "a")


async def test_a_forgotten_id_can_never_return(store: Store, ada: MemorySession, bob: MemorySession) -> None:
    await ada.remember("tea", id="a", operation_id="op")
    await ada.forget("a")
    for memory in (ada, bob, open_memory(store)):
        assert isinstance(await refusal(memory.remember("tea", id="a")), RecordConflictError)
        assert isinstance(await refusal(memory.remember_many([Draft("tea", "a")])), RecordConflictError)
    assert isinstance(await refusal(ada.revise("a")), RecordConflictError)
    assert (await ada.remember("tea", id="a", operation_id="op")).records == ()
    await assert_gone(ada, "a")


async def test_repeating_a_forget_deletes_nothing_more(ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    first = await ada.forget("a", operation_id="op")
    again = await ada.forget("a", operation_id="op")
    assert (again.replayed, again.receipt) == (True, first.receipt)
    assert (again.already_forgotten, again.revisions) == (True, ())
    other = await ada.forget("a", operation_id="op2")
    assert (other.replayed, other.already_forgotten, other.revisions) == (False, True, ())
    assert other.receipt.changes == ()
    assert other.receipt.scope_revision == 3


async def test_forgetting_an_id_the_scope_never_had_leaves_no_tombstone(ada: MemorySession, bob: MemorySession) -> None:
    result = await ada.forget("never", operation_id="op")
    assert (result.already_forgotten, result.revisions, result.redaction) == (False, (), "none")
    assert result.receipt.changes == ()
    assert result.receipt.scope_revision == await ada.scope_revision() == 1
    assert (await ada.forget("never")).already_forgotten is False
    assert (await bob.remember("tea", id="never")).records[0].id == "never"


async def test_forgetting_a_foreign_id_looks_like_an_unknown_one_and_touches_nothing(
    store: Store, ada: MemorySession, bob: MemorySession
) -> None:
    await bob.remember("tea", id="bobs")
    await bob.remember("gone", id="gone")
    await bob.forget("gone")
    before = await everything(bob, "bobs", "gone")
    listener = Listener()
    memory = open_memory(store, on_forget=listener)
    answers = [await memory.forget(record_id) for record_id in ("bobs", "gone", "unknown")]
    for answer in answers:
        assert (answer.revisions, answer.already_forgotten, answer.redaction) == ((), False, "none")
        assert answer.receipt.changes == ()
    assert listener.events == []
    assert await everything(bob, "bobs", "gone") == before
    assert texts(await bob.recall("tea")) == ["tea"]


async def test_a_replayed_forget_leaves_a_record_that_was_written_since_alone(store: Store, ada: MemorySession) -> None:
    listener = Listener()
    memory = open_memory(store, on_forget=listener)
    await memory.forget("a", operation_id="op")
    record = (await memory.remember("tea", id="a")).records[0]
    again = await memory.forget("a", operation_id="op")
    assert (again.replayed, again.already_forgotten, again.revisions, again.redaction) == (True, False, (), "none")
    assert listener.events == []
    assert await memory.get("a") == record


# ------------------------------------------------------------------------------------------------------ redaction


async def test_forget_redacts_the_receipts_that_wrote_the_record_and_no_other(ada: MemorySession) -> None:
    await ada.remember_many([Draft("a", "a"), Draft("b", "b")], operation_id="many")
    await ada.revise("a", text="a2", operation_id="revise a")
    await ada.revise("b", text="b2", operation_id="revise b")
    await ada.retract("a", operation_id="retract a")
    before = {name: await ada.receipt(name) for name in ("many", "revise a", "revise b", "retract a")}
    await ada.forget("a", operation_id="forget a")
    after = {name: await ada.receipt(name) for name in before}
    assert [name for name in before if after[name].redacted] == ["many", "revise a", "retract a"]  # type: ignore[union-attr]
    for name, receipt in before.items():
        assert dataclasses.replace(after[name], redacted=False) == receipt  # type: ignore[type-var]
    kept = await ada.receipt("forget a")
    assert kept is not None
    assert kept.redacted is False


async def test_a_redacted_receipt_replays_for_any_write_and_brings_nothing_back(ada: MemorySession) -> None:
    first = await ada.remember("tea", id="a", operation_id="op")
    await ada.forget("a")
    redacted = dataclasses.replace(first.receipt, redacted=True)
    before = await everything(ada, "a", "b")
    for again in await in_order(
        ada.remember("tea", id="a", operation_id="op"),
        ada.remember("anything else", id="b", kind="working", operation_id="op"),
        ada.remember("tea", supersede="skip_equal", operation_id="op"),
        ada.remember_many([Draft("x")], operation_id="op"),
        ada.revise("a", text="x", operation_id="op"),
        ada.retract("b", operation_id="op"),
    ):
        assert (again.replayed, again.receipt, again.records, again.present) == (True, redacted, (), ())
    assert await everything(ada, "a", "b") == before


async def test_a_redacted_receipt_never_passes_for_a_forget_that_was_not_done(ada: MemorySession) -> None:
    await ada.remember("tea", id="a", operation_id="op")
    await ada.forget("a")
    await ada.remember("coffee", id="b")
    assert isinstance(await refusal(ada.forget("b", operation_id="op")), OperationConflictError)
    assert isinstance(await refusal(ada.forget_scope(operation_id="op")), OperationConflictError)
    assert await ada.get("b") is not None


async def test_a_receipt_that_only_met_the_record_is_redacted_as_well(ada: MemorySession) -> None:
    await ada.remember("tea", id="a", operation_id="1")
    await ada.remember("Tea", supersede="skip_equal", operation_id="met")
    await ada.retract("a", operation_id="2")
    await ada.retract("a", operation_id="noop")
    await ada.forget("a")
    for name in ("met", "noop"):
        receipt = await ada.receipt(name)
        assert receipt is not None
        assert receipt.redacted is True
    again = await ada.remember("Tea", supersede="skip_equal", operation_id="met")
    assert (again.replayed, again.records, again.present) == (True, (), ())
    assert (await ada.remember("anything", operation_id="met")).replayed is True
    assert await ada.count() == 0


async def test_a_source_digest_that_another_record_shares_stays(ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    kept = (await ada.remember("tea", id="b", links=[Link("about", "a")])).records[0]
    await ada.forget("a")
    assert await ada.get("b") == kept


# ------------------------------------------------------------------------------------------------------ listeners


async def test_listeners_hear_each_forget_in_order(store: Store) -> None:
    log: list[tuple[str, ForgetEvent]] = []
    second = Listener("second", log)

    async def third(event: ForgetEvent) -> None:
        log.append(("third", event))

    memory = open_memory(store, on_forget=[Listener("first", log), second, third])
    await memory.remember("tea", id="a")
    await memory.revise("a", text="coffee")
    result = await memory.forget("a", operation_id="op")
    event = ForgetEvent(ADA, "a", (1, 2), "op", False)
    assert log == [("first", event), ("second", event), ("third", event)]
    assert result.redaction == "complete"
    log.clear()
    again = await memory.forget("a", operation_id="op")
    assert log == [(name, ForgetEvent(ADA, "a", (), "op", True)) for name in ("first", "second", "third")]
    assert (again.redaction, again.replayed) == ("complete", True)


async def test_a_listener_that_raises_stops_no_other_and_can_be_called_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[tuple[str, ForgetEvent]] = []
    failing = Listener("failing", log, RuntimeError("could not redact SENTINEL-7f3a"))
    healthy = Listener("healthy", log)
    memory = open_memory(store, on_forget=(failing, healthy))
    await memory.remember("SENTINEL-7f3a", id="a")
    with caplog.at_level(logging.DEBUG):
        result = await memory.forget("a")
    assert (result.redaction, result.revisions) == ("failed", (1,))
    assert [name for name, _ in log] == ["failing", "healthy"]
    errors = [record for record in caplog.records if record.name.startswith("vmem_core")]
    assert [record.levelname for record in errors] == ["ERROR"]
    assert "RuntimeError" in errors[0].getMessage()
    assert "SENTINEL" not in caplog.text
    await assert_gone(memory, "a")
    failing.failure = None
    again = await memory.forget("a")
    assert (again.redaction, again.already_forgotten) == ("complete", True)
    assert [name for name, _ in log] == ["failing", "healthy"] * 2


async def test_without_a_listener_or_a_record_the_redaction_is_none(store: Store, ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    assert (await ada.forget("a")).redaction == "none"
    listener = Listener()
    memory = open_memory(store, on_forget=listener)
    assert (await memory.forget("unknown")).redaction == "none"
    assert listener.events == []
    assert (await memory.forget("a")).redaction == "complete"
    assert listener.events[0].already_forgotten is True


async def test_a_listener_is_called_after_the_commit(store: Store) -> None:
    seen: list[object] = []

    async def look(event: ForgetEvent) -> None:
        seen.append(await open_memory(store).get(event.record_id))
        seen.append(await open_memory(store).scope_revision())

    memory = open_memory(store, on_forget=look)
    await memory.remember("tea", id="a")
    await memory.forget("a")
    assert seen == [None, 2]


# --------------------------------------------------------------------------------------------------- forget_scope


async def test_forget_scope_forgets_every_record_in_one_operation(
    store: Store, ada: MemorySession, bob: MemorySession
) -> None:
    await bob.remember("tea", id="bobs")
    untouched = await everything(bob, "bobs")
    listener = Listener()
    memory = open_memory(store, on_forget=listener)
    await memory.remember_many([Draft("tea", "a"), Draft("coffee", "b"), Draft("milk", "c")], operation_id="many")
    await memory.revise("a", text="water", operation_id="revise a")
    await memory.retract("b")
    result = await memory.forget_scope(operation_id="all")
    assert (result.record_ids, result.redaction, result.replayed) == (("a", "b", "c"), "complete", False)
    assert result.receipt.kind == "forget_scope"
    assert result.receipt.changes == (Change("a", 2, "forget"), Change("b", 2, "forget"), Change("c", 1, "forget"))
    assert result.receipt.scope_revision == 4
    assert [(e.record_id, e.revisions, e.already_forgotten) for e in listener.events] == [
        ("a", (1, 2), False), ("b", (1, 2), False), ("c", (1,), False)
    ]  # fmt: skip
    for record_id in ("a", "b", "c"):
        await assert_gone(memory, record_id)
        assert isinstance(await refusal(memory.remember("x", id=record_id)), RecordConflictError)
    for name in ("many", "revise a"):
        receipt = await memory.receipt(name)
        assert receipt is not None
        assert receipt.redacted is True
    assert await everything(bob, "bobs") == untouched


async def test_forget_scope_redacts_receipts_that_only_met_a_record(ada: MemorySession) -> None:
    await ada.remember("tea", operation_id="1")
    await ada.remember("Tea", supersede="skip_equal", operation_id="met")
    await ada.forget_scope()
    receipts = [await ada.receipt(name) for name in ("1", "met")]
    assert [receipt.redacted for receipt in receipts if receipt is not None] == [True, True]
    assert (await ada.remember("anything", operation_id="met")).present == ()
    assert await ada.count() == 0


async def test_forget_scope_again_deletes_nothing_and_calls_listeners_again(store: Store, new_id: Ids) -> None:
    listener = Listener(failure=RuntimeError())
    memory = open_memory(store, on_forget=listener, new_id=new_id)
    await memory.remember_many([Draft("tea"), Draft("coffee")])
    first = await memory.forget_scope(operation_id="all")
    assert first.redaction == "failed"
    listener.failure = None
    listener.log.clear()
    late = (await memory.remember("milk")).records[0]
    again = await memory.forget_scope(operation_id="all")
    assert (again.replayed, again.receipt, again.record_ids) == (True, first.receipt, first.record_ids)
    assert [(e.record_id, e.already_forgotten) for e in listener.events] == [("r1", True), ("r2", True)]
    assert again.redaction == "complete"
    assert await memory.get(late.id) == late
    listener.log.clear()
    await memory.remember("water", id="own")
    await memory.forget("own")
    listener.log.clear()
    await memory.forget_scope(operation_id="all")
    assert [event.record_id for event in listener.events] == ["r1", "r2"]
    listener.log.clear()
    new = await memory.forget_scope()
    assert (new.record_ids, new.receipt.changes) == (("r3",), (Change("r3", 1, "forget"),))
    assert [(e.record_id, e.revisions) for e in listener.events] == [
        ("r1", ()), ("r2", ()), ("r3", (1,)), ("own", ())
    ]  # fmt: skip


async def test_forget_scope_of_an_empty_scope_writes_a_receipt_only(ada: MemorySession, bob: MemorySession) -> None:
    await bob.remember("tea")
    result = await ada.forget_scope()
    assert (result.record_ids, result.redaction, result.receipt.scope_revision) == ((), "none", 1)
    assert await bob.count() == 1


async def test_after_forget_scope_the_scope_can_be_used_again(ada: MemorySession) -> None:
    await ada.remember("tea", operation_id="1")
    await ada.forget_scope()
    record = (await ada.remember("tea", operation_id="2")).records[0]
    assert (record.revision, record.scope_revision) == (1, 3)
    assert texts(await ada.recall("tea")) == ["tea"]
    assert texts(await ada.recall("tea", at_scope_revision=1)) == []


async def test_a_scope_must_be_given_to_forget_one(store: Store) -> None:
    for scope in (None, {}, {"user_id": "ada"}, "ada"):
        with pytest.raises(InvalidRequestError) as caught:
            MemorySession(store, scope)  # type: ignore[arg-type]
        assert caught.value.path == "scope"
    with pytest.raises(InvalidRequestError):
        Scope()


async def test_a_forgotten_record_is_found_by_neither_list(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    await seeing.remember("tea with milk", id="a")
    await seeing.remember("tea alone", id="b")
    hits = await seeing.recall("tea")
    assert {hit.match for hit in hits} == {"hybrid"}
    await seeing.forget("a")
    assert [(hit.record.id, hit.vector_rank, hit.lexical_rank) for hit in await seeing.recall("tea")] == [("b", 1, 1)]
    await assert_gone(seeing, "a")
