"""Revise and retract: the next revision, what stays, what a model may do, and whose records can be written."""

from __future__ import annotations

from datetime import timedelta

import pytest
from fakes import ADA, BOB, START, Clock, FakeEmbedder, Ids, ids, open_memory, refusal, refusals, texts

from vmem_core import (
    AssertedRecordError,
    Change,
    InvalidRequestError,
    Link,
    MemorySession,
    Note,
    Record,
    RecordConflictError,
    RecordNotFoundError,
    RevisionConflictError,
    Source,
    Store,
    text_digest,
)

TEA = Source("user", text_digest("I like tea"), message_id="m1", chat_id="c1")
SEARCHED = Source("tool", text_digest("{}"), tool_call_id="t1", tool_name="search", run_id="run1")


# --------------------------------------------------------------------------------------------------------- revise


async def test_revise_writes_the_next_revision_and_keeps_what_is_not_given(ada: MemorySession, clock: Clock) -> None:
    first = (
        await ada.remember(
            "Ada lives in London", kind="episodic", origin="inferred", sources=[TEA], links=[Link("about", "x")],
            importance=0.5, metadata={"a": 1}, ttl=timedelta(days=1),
        )
    ).records[0]  # fmt: skip
    clock.step(minutes=1)
    result = await ada.revise(first.id, importance=0.9, operation_id="op2")
    second = result.records[0]
    assert second == Record.from_json(
        first.to_json()
        | {"revision": 2, "importance": 0.9, "operation_id": "op2", "scope_revision": 2}
        | {"recorded_at": (START + timedelta(minutes=1)).isoformat()}
    )
    assert result.receipt.changes == (Change(first.id, 2, "revise"),)
    assert await ada.history(first.id) == [first, second]
    assert await ada.get(first.id) == second
    assert await ada.count() == 1


async def test_none_clears_a_field(ada: MemorySession) -> None:
    first = (
        await ada.remember(
            "tea", kind="working", sources=[TEA], links=[Link("about", "x")], importance=0.5, metadata={"a": 1},
            ttl=timedelta(days=1),
        )
    ).records[0]  # fmt: skip
    result = await ada.revise(
        first.id, kind=None, sources=None, links=None, importance=None, metadata=None, ttl=None
    )  # fmt: skip
    cleared = result.records[0]
    assert (cleared.kind, cleared.links, cleared.importance, cleared.metadata) == ("semantic", (), None, {})
    assert cleared.expires_at is None
    assert cleared.sources == (Source("host", text_digest("tea")),)
    assert await ada.get(first.id) == cleared


@pytest.mark.parametrize("name", ["text", "origin"])
async def test_what_cannot_be_cleared_is_refused(ada: MemorySession, name: str) -> None:
    record = (await ada.remember("tea")).records[0]
    error = await refusal(ada.revise(record.id, **{name: None}))  # type: ignore[arg-type]
    assert isinstance(error, InvalidRequestError)
    assert error.path == name
    assert await ada.history(record.id) == [record]


async def test_with_nothing_given_revise_brings_a_retracted_record_back(ada: MemorySession) -> None:
    record = (await ada.remember("tea", origin="inferred", sources=[TEA])).records[0]
    await ada.retract(record.id)
    back = (await ada.revise(record.id, operation_id="back")).records[0]
    assert (back.revision, back.status, back.text) == (3, "active", "tea")
    assert (back.origin, back.sources) == ("inferred", (TEA,))
    assert ids(await ada.recall("tea")) == [record.id]


async def test_with_nothing_given_revise_of_an_active_record_is_refused(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    error = await refusal(ada.revise(record.id, operation_id="op"))
    assert isinstance(error, InvalidRequestError)
    assert await ada.receipt("op") is None
    assert await ada.scope_revision() == 1


async def test_a_revise_with_something_given_brings_a_retracted_record_back_too(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    await ada.retract(record.id)
    assert (await ada.revise(record.id, importance=0.1)).records[0].status == "active"


async def test_a_given_value_that_is_the_old_one_writes_a_revision_all_the_same(ada: MemorySession) -> None:
    record = (await ada.remember("tea", importance=0.5)).records[0]
    assert (await ada.revise(record.id, importance=0.5)).records[0].revision == 2
    assert (await ada.revise(record.id, text="tea")).records[0].revision == 3


async def test_a_new_text_of_the_host_has_one_host_source_and_is_asserted(ada: MemorySession) -> None:
    record = (await ada.remember("tea", origin="inferred", sources=[TEA, SEARCHED])).records[0]
    revised = (await ada.revise(record.id, text="coffee")).records[0]
    assert (revised.origin, revised.sources) == ("asserted", (Source("host", text_digest("coffee")),))


async def test_a_new_text_keeps_the_origin_and_sources_that_come_with_it(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    revised = (await ada.revise(record.id, text="coffee", origin="inferred", sources=[SEARCHED])).records[0]
    assert (revised.origin, revised.sources) == ("inferred", (SEARCHED,))


@pytest.mark.parametrize(
    "given",
    [{"kind": "working"}, {"importance": 0.1}, {"metadata": {}}, {"ttl": None}, {"links": ()}],
    ids=lambda given: next(iter(given)),
)
async def test_origin_and_sources_stay_unless_text_sources_or_origin_is_given(ada: MemorySession, given) -> None:
    record = (await ada.remember("tea", origin="inferred", sources=[TEA])).records[0]
    revised = (await ada.revise(record.id, **given)).records[0]
    assert (revised.origin, revised.sources) == ("inferred", (TEA,))


async def test_sources_alone_change_the_sources_and_origin_alone_the_origin(ada: MemorySession) -> None:
    record = (await ada.remember("tea", origin="inferred", sources=[TEA])).records[0]
    cited = (await ada.revise(record.id, sources=[SEARCHED])).records[0]
    assert (cited.origin, cited.sources) == ("inferred", (SEARCHED,))
    confirmed = (await ada.revise(record.id, origin="asserted")).records[0]
    assert (confirmed.origin, confirmed.sources) == ("asserted", (SEARCHED,))


async def test_a_stale_expected_revision_is_told_at_once(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    await ada.revise(record.id, text="coffee", expected_revision=1)
    for error in await refusals(
        ada.revise(record.id, text="milk", expected_revision=1, operation_id="op"),
        ada.retract(record.id, expected_revision=1, operation_id="op"),
    ):
        assert isinstance(error, RevisionConflictError)
        assert (error.expected_revision, error.actual_revision, error.attempts) == (1, 2, 1)
        assert error.code == "revision_conflict"
    error = await refusal(ada.revise(record.id, text="milk", expected_revision=3))
    assert isinstance(error, RevisionConflictError)
    assert await ada.receipt("op") is None
    assert texts(await ada.history(record.id)) == ["tea", "coffee"]


async def test_without_an_expected_revision_writes_apply_in_series(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    for text in ("coffee", "milk", "water"):
        await ada.revise(record.id, text=text)
    assert texts(await ada.history(record.id)) == ["tea", "coffee", "milk", "water"]
    assert [r.revision for r in await ada.history(record.id)] == [1, 2, 3, 4]


# -------------------------------------------------------------------------------------------------- models' writes


async def test_a_model_may_not_touch_what_the_host_asserted(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    for error in await refusals(
        ada.revise(record.id, text="coffee", by_model=True, operation_id="op"),
        ada.retract(record.id, by_model=True, operation_id="op"),
    ):
        assert isinstance(error, AssertedRecordError)
        assert (error.code, error.record_id) == ("asserted_record", record.id)
    assert await ada.history(record.id) == [record]
    assert await ada.receipt("op") is None


async def test_a_models_revise_stays_inferred_and_adds_its_source(ada: MemorySession) -> None:
    record = (await ada.remember("tea", origin="inferred", sources=[TEA])).records[0]
    revised = (await ada.revise(record.id, text="coffee", sources=[SEARCHED], by_model=True)).records[0]
    assert (revised.origin, revised.sources) == ("inferred", (TEA, SEARCHED))
    again = (await ada.revise(record.id, text="milk", sources=[SEARCHED], by_model=True)).records[0]
    assert (again.origin, again.sources) == ("inferred", (TEA, SEARCHED))
    gone = (await ada.retract(record.id, by_model=True)).records[0]
    assert (gone.status, gone.origin) == ("retracted", "inferred")


async def test_a_models_sources_are_kept_to_the_newest_fifty(ada: MemorySession) -> None:
    old = [Source("assistant", text_digest("x"), tool_call_id=f"c{n}") for n in range(50)]
    record = (await ada.remember("tea", origin="inferred", sources=old)).records[0]
    new = Source("assistant", text_digest("x"), tool_call_id="new")
    revised = (await ada.revise(record.id, text="milk", sources=[new], by_model=True)).records[0]
    assert revised.sources == (*old[1:], new)


async def test_a_replay_by_a_model_comes_before_the_check_of_origin(ada: MemorySession) -> None:
    record = (await ada.remember("tea", origin="inferred")).records[0]
    first = await ada.revise(record.id, text="coffee", sources=[SEARCHED], by_model=True, operation_id="op")
    await ada.revise(record.id, origin="asserted")
    again = await ada.revise(record.id, text="coffee", sources=[SEARCHED], by_model=True, operation_id="op")
    assert (again.replayed, again.receipt, again.records) == (True, first.receipt, first.records)


# -------------------------------------------------------------------------------------------------------- retract


async def test_retract_writes_the_next_revision_with_the_same_content(ada: MemorySession, clock: Clock) -> None:
    first = (await ada.remember("tea", kind="working", sources=[TEA], metadata={"a": 1}, importance=0.2)).records[0]
    clock.step(seconds=5)
    result = await ada.retract(first.id, expected_revision=1, operation_id="op")
    gone = result.records[0]
    changed = {"revision": 2, "status": "retracted", "operation_id": "op", "scope_revision": 2}
    assert gone == Record.from_json(first.to_json() | changed | {"recorded_at": clock.now.isoformat()})
    assert result.receipt.changes == (Change(first.id, 2, "retract"),)
    assert await ada.history(first.id) == [first, gone]


async def test_retracting_twice_writes_a_receipt_only(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    gone = (await ada.retract(record.id)).records[0]
    again = await ada.retract(record.id, operation_id="again")
    assert (again.records, again.present, again.receipt.changes) == ((), (gone,), ())
    assert again.receipt.notes == (Note("noop", 1),)
    assert again.receipt.scope_revision == 3
    assert await ada.receipt("again") == again.receipt
    assert await ada.history(record.id) == [record, gone]


# --------------------------------------------------------------------------------------------- who may be written


async def test_foreign_and_unknown_ids_are_not_found_in_the_same_words(ada: MemorySession, bob: MemorySession) -> None:
    await ada.remember("secret of Ada", id="adas")
    await ada.remember("forgotten by Ada", id="gone")
    await ada.forget("gone")
    messages = set()
    for record_id in ("adas", "gone", "unknown"):
        for error in await refusals(
            bob.revise(record_id, text="x"), bob.retract(record_id), bob.revise(record_id, kind=None)
        ):
            assert isinstance(error, RecordNotFoundError)
            assert isinstance(error, LookupError)
            assert (error.code, error.record_id) == ("record_not_found", record_id)
            messages.add(str(error).replace(record_id, "ID"))
    assert len(messages) == 1
    assert await bob.scope_revision() == 0
    assert texts(await ada.history("adas")) == ["secret of Ada"]


async def test_a_forgotten_id_is_a_conflict_in_its_own_scope(ada: MemorySession) -> None:
    await ada.remember("tea", id="gone")
    await ada.forget("gone")
    for error in await refusals(
        ada.revise("gone", text="x"), ada.revise("gone"), ada.retract("gone"), ada.remember("x", id="gone")
    ):
        assert isinstance(error, RecordConflictError)
        assert error.record_id == "gone"
    assert await ada.scope_revision() == 2


async def test_a_host_callables_own_exception_reaches_the_caller_with_nothing_written(
    store: Store, embedder: FakeEmbedder, clock: Clock
) -> None:
    class HostError(Exception):
        pass

    async def fail() -> None:
        raise HostError("mine")

    embedder.before = fail
    memory = open_memory(store, embedder=embedder)
    with pytest.raises(HostError, match="mine"):
        await memory.remember("tea", operation_id="op")
    embedder.before = None

    clock.failure = HostError("no time")
    for call in (lambda: memory.remember("tea", operation_id="op"), memory.count, memory.list):
        with pytest.raises(HostError, match="no time"):
            await call()
    clock.failure = None

    def no_id() -> str:
        raise HostError("no id")

    with pytest.raises(HostError, match="no id"):
        await open_memory(store, new_id=no_id).remember("tea")
    assert await memory.scope_revision() == 0
    assert await memory.receipt("op") is None


async def test_every_operation_raises_the_scopes_revision_by_one(store: Store, ada: MemorySession, new_id: Ids) -> None:
    assert await ada.scope_revision() == 0
    record = (await ada.remember("tea")).records[0]
    results = [
        await ada.revise(record.id, text="coffee"),
        await ada.retract(record.id),
        await ada.retract(record.id),
        await ada.remember_many([]),
        await ada.forget(record.id),
        await ada.forget(record.id),
        await ada.forget("never held"),
        await ada.forget_scope(),
    ]
    assert [result.receipt.scope_revision for result in results] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert await ada.scope_revision() == 9
    assert await store.scope_revision(ADA) == 9  # type: ignore[attr-defined]
    assert await store.scope_revision(BOB) == 0  # type: ignore[attr-defined]
