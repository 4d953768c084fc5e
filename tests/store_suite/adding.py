"""Remember: what a new record is, ids, many at once, and equal texts that are met instead of added."""

from __future__ import annotations

from datetime import timedelta

import pytest
from fakes import ADA, BOB, START, Clock, everything, ids, open_memory, refusal, refusals, texts

from vmem_core import (
    Change,
    Draft,
    InvalidRequestError,
    Link,
    MemorySession,
    Note,
    Receipt,
    Record,
    RecordConflictError,
    Source,
    Store,
    text_digest,
)

TEA = Source("user", text_digest("I like tea"), message_id="m1", chat_id="c1")
SEARCHED = Source("tool", text_digest("{}"), tool_call_id="t1", tool_name="search", run_id="run1")


# ------------------------------------------------------------------------------------------------------- remember


async def test_remember_writes_revision_one_with_defaults(ada: MemorySession) -> None:
    result = await ada.remember("Ada likes tea", operation_id="op1")
    record = Record(
        id="r1", revision=1, scope=ADA, text="Ada likes tea", kind="semantic", origin="asserted", status="active",
        sources=(Source("host", text_digest("Ada likes tea")),), links=(), importance=None, metadata={},
        created_at=START, recorded_at=START, expires_at=None, operation_id="op1", scope_revision=1,
    )  # fmt: skip
    assert result.records == (record,)
    assert (result.replayed, result.present, result.conflict_retries) == (False, (), 0)
    assert result.receipt == Receipt("op1", "remember", ADA, 1, START, (Change("r1", 1, "create"),))
    assert await ada.get("r1") == record
    assert await ada.history("r1") == [record]


async def test_remember_writes_every_field_that_is_given(ada: MemorySession) -> None:
    links = (Link("about", "not-looked-up"), Link("supersedes", "r0"))
    result = await ada.remember(
        "Tea at 4", id="own", kind="episodic", origin="inferred", sources=[TEA, SEARCHED], links=list(links),
        importance=1, metadata={"b": [1, 2.5, None, {"c": "ü"}], "a": True}, ttl=timedelta(hours=1),
    )  # fmt: skip
    record = await ada.get("own")
    assert record is not None
    assert record == result.records[0]
    assert (record.kind, record.origin, record.importance) == ("episodic", "inferred", 1.0)
    assert (record.sources, record.links) == ((TEA, SEARCHED), links)
    assert record.metadata == {"b": [1, 2.5, None, {"c": "ü"}], "a": True}
    assert list(record.metadata) == ["b", "a"]
    assert record.expires_at == START + timedelta(hours=1)


async def test_collections_in_values_are_tuples_and_verbs_return_lists(ada: MemorySession) -> None:
    result = await ada.remember("tea", sources=[TEA], links=[Link("about", "x")])
    record = await ada.get(result.records[0].id)
    assert record is not None
    for value in (result.records, result.receipt.changes, result.receipt.notes, record.sources, record.links):
        assert type(value) is tuple
    assert isinstance(await ada.recall("tea"), list)
    assert isinstance(await ada.history(record.id), list)
    assert type((await ada.list()).records) is tuple


async def test_empty_sources_give_the_host_source(ada: MemorySession) -> None:
    result = await ada.remember("tea", sources=[])
    assert result.records[0].sources == (Source("host", text_digest("tea")),)


async def test_metadata_is_copied_in_and_out(ada: MemorySession) -> None:
    given = {"tags": ["tea"], "deep": {"n": 1}}
    written = (await ada.remember("tea", metadata=given)).records[0]
    given["tags"].append("changed by the caller")  # type: ignore[attr-defined]
    written.metadata["deep"]["n"] = 2
    for reader in (ada.get, lambda record_id: _first(ada.history(record_id)), lambda _: _hit(ada)):
        record = await reader(written.id)
        assert record.metadata == {"tags": ["tea"], "deep": {"n": 1}}
        record.metadata["tags"].append("changed by a reader")
        record.metadata["deep"]["n"] = 3
    assert (await ada.list()).records[0].metadata == {"tags": ["tea"], "deep": {"n": 1}}


async def _first(history):
    return (await history)[0]


async def _hit(memory: MemorySession):
    return (await memory.recall("tea"))[0].record


@pytest.mark.parametrize(
    "text",
    [" leading and trailing \n", "a\r\nb\tc", "\u00e9", "e\u0301", "\ufffd", "{\"text\": \"x\"}",
     "'; drop table vmem_records; --", "a\u2028b\u2029c\x85", "\x01\x1b[31m", "𝒳 🏳️‍🌈", "\ufeffstart",
     "%s %d {}", "a" * 100_000],
    ids=range(13),
)  # fmt: skip
async def test_a_text_is_kept_exactly_as_given(ada: MemorySession, text: str) -> None:
    record = (await ada.remember(text, metadata={"same": text[:1000], text[:200]: 1})).records[0]
    kept = await ada.get(record.id)
    assert kept is not None
    assert kept.text == text
    assert kept.metadata == {"same": text[:1000], text[:200]: 1}
    assert kept.sources[0].digest == text_digest(text)


async def test_numbers_come_back_as_they_went_in(ada: MemorySession) -> None:
    metadata = {
        "int": 1, "float": 1.0, "true": True, "zero": 0, "minus zero": -0.0, "most": 2**63 - 1, "least": -(2**63),
        "tiny": 5e-324, "large": 1.7976931348623157e308, "third": 1 / 3, "beyond 2**53": 2**53 + 1, "none": None,
    }  # fmt: skip
    record = (await ada.remember("numbers", metadata=metadata)).records[0]
    kept = (await ada.history(record.id))[0].metadata
    assert [(key, type(value), repr(value)) for key, value in kept.items()] == [
        (key, type(value), repr(value)) for key, value in metadata.items()
    ]


async def test_ids_are_unique_over_the_whole_store(store: Store, ada: MemorySession, bob: MemorySession) -> None:
    await ada.remember("held by Ada", id="held")
    await ada.remember("forgotten by Ada", id="gone")
    await ada.forget("gone")
    messages = set()
    for memory in (ada, bob, open_memory(store, BOB)):
        for record_id in ("held", "gone"):
            before = await memory.scope_revision()
            for error in await refusals(
                memory.remember("new", id=record_id),
                memory.remember_many([Draft("a"), Draft("b", record_id)]),
            ):
                assert isinstance(error, RecordConflictError)
                assert (error.code, error.record_id) == ("record_conflict", record_id)
                messages.add(str(error).replace(record_id, "ID"))
            assert await memory.scope_revision() == before
    assert len(messages) == 1
    assert await bob.list(status=None) == await open_memory(store, BOB).list()
    assert await bob.count() == 0


async def test_an_id_that_another_case_or_form_holds_is_free(ada: MemorySession) -> None:
    for record_id in ("\u00e9", "e\u0301", "R", "r", "r ", " r", "r%", "r_"):
        await ada.remember(f"of {record_id}", id=record_id)
    assert await ada.count() == 8
    assert texts([await ada.get("e\u0301"), await ada.get("r ")]) == ["of e\u0301", "of r "]  # type: ignore[list-item]


# -------------------------------------------------------------------------------------------------- remember_many


async def test_remember_many_is_one_operation_in_the_order_given(ada: MemorySession) -> None:
    drafts = [Draft("one"), Draft("two", "own", kind="working", sources=(TEA,), metadata={"n": 2}), Draft("three")]
    result = await ada.remember_many(drafts, origin="inferred", operation_id="many")
    assert texts(result.records) == ["one", "two", "three"]
    assert ids(result.records) == ["r1", "own", "r2"]
    assert {(r.scope_revision, r.operation_id, r.origin) for r in result.records} == {(1, "many", "inferred")}
    assert result.receipt.kind == "remember_many"
    assert result.receipt.changes == (Change("r1", 1, "create"), Change("own", 1, "create"), Change("r2", 1, "create"))
    assert await ada.scope_revision() == 1
    assert texts((await ada.list()).records) == ["three", "two", "one"]


async def test_remember_many_of_nothing_still_writes_a_receipt(ada: MemorySession) -> None:
    result = await ada.remember_many([], operation_id="empty")
    assert (result.records, result.receipt.changes, result.receipt.scope_revision) == ((), (), 1)
    assert await ada.receipt("empty") == result.receipt
    assert await ada.scope_revision() == 1


async def test_remember_many_writes_all_or_nothing(ada: MemorySession) -> None:
    await ada.remember("held", id="held")
    before = await everything(ada, "r1", "held")
    error = await refusal(ada.remember_many([Draft("a", "new1"), Draft("b", "held"), Draft("c")], operation_id="op"))
    assert isinstance(error, RecordConflictError)
    assert error.record_id == "held"
    assert await ada.receipt("op") is None
    assert await ada.get("new1") is None
    assert await everything(ada, "r1", "held") == before


async def test_an_id_given_twice_in_one_operation_is_refused(store: Store, ada: MemorySession) -> None:
    error = await refusal(ada.remember_many([Draft("a", "same"), Draft("b"), Draft("c", "same")]))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "drafts[2].id"
    assert await ada.scope_revision() == 0


@pytest.mark.parametrize("drafts", [[Draft("a"), Draft("b")], [Draft("a", "same"), Draft("b")]], ids=["made", "given"])
async def test_a_made_id_that_comes_twice_in_one_operation_is_a_conflict(store: Store, drafts: list[Draft]) -> None:
    memory = open_memory(store, new_id=lambda: "same")
    error = await refusal(memory.remember_many(drafts, operation_id="op"))
    assert isinstance(error, RecordConflictError)
    assert error.record_id == "same"
    assert await memory.scope_revision() == 0
    assert await memory.history("same") == []


async def test_remember_many_takes_ten_thousand_drafts_and_no_more(ada: MemorySession) -> None:
    error = await refusal(ada.remember_many([Draft("one too many")] * 10_001))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "drafts"
    result = await ada.remember_many([Draft(f"fact {n}") for n in range(10_000)])
    assert len(result.records) == 10_000
    assert await ada.count() == 10_000
    assert texts(await ada.recall(top_k=2)) == ["fact 9999", "fact 9998"]


# ----------------------------------------------------------------------------------------------------- skip_equal


async def test_skip_equal_meets_the_active_record_instead_of_writing(ada: MemorySession) -> None:
    first = (await ada.remember(" Tea at 4 ", supersede="skip_equal")).records[0]
    result = await ada.remember("tea AT 4", supersede="skip_equal", operation_id="again")
    assert (result.records, result.present) == ((), (first,))
    assert result.receipt.notes == (Note("already_stored", 1),)
    assert result.receipt.changes == ()
    assert result.receipt.scope_revision == 2
    replayed = await ada.remember("tea AT 4", supersede="skip_equal", operation_id="again")
    assert (replayed.replayed, replayed.records, replayed.present) == (True, (), (first,))
    assert replayed.receipt == result.receipt
    assert await ada.count() == 1


async def test_skip_equal_sees_only_active_unexpired_records_of_its_scope(
    ada: MemorySession, bob: MemorySession, clock: Clock
) -> None:
    await bob.remember("tea")
    retracted = (await ada.remember("tea")).records[0]
    await ada.retract(retracted.id)
    await ada.remember("tea", ttl=timedelta(seconds=1))
    forgotten = (await ada.remember("tea")).records[0]
    await ada.forget(forgotten.id)
    clock.step(seconds=1)
    result = await ada.remember("tea", supersede="skip_equal")
    assert (len(result.records), result.present, result.receipt.notes) == (1, (), ())
    revised = await ada.revise(result.records[0].id, text="coffee")
    assert (await ada.remember("tea", supersede="skip_equal")).records != ()
    assert (await ada.remember("Coffee", supersede="skip_equal")).present == revised.records


async def test_a_plain_add_never_looks_for_equal_texts(ada: MemorySession) -> None:
    for mode in (None, "add", "add"):
        assert len((await ada.remember("tea", supersede=mode)).records) == 1  # type: ignore[arg-type]
    assert await ada.count() == 3


async def test_reconciling_without_a_model_is_refused(ada: MemorySession) -> None:
    error = await refusal(ada.remember("tea", supersede="reconcile", operation_id="op"))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "supersede"
    assert await ada.scope_revision() == 0
    assert await ada.receipt("op") is None
