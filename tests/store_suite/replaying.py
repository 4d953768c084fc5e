"""Operation ids: what is the same request, what a replay answers, and what a receipt holds."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest
from fakes import ADA, START, Clock, FakeEmbedder, everything, open_memory, refusal, refusals, texts

from vmem_core import Change, Draft, Link, MemorySession, OperationConflictError, Receipt, Source, Store, text_digest

HOST = Source("host", text_digest("tea"))
ONE, TWO = Source("user", text_digest("1")), Source("user", text_digest("2"))
TO_ONE, TO_TWO = Link("about", "1"), Link("about", "2")
FULL: dict[str, Any] = {
    "text": "tea", "id": "own", "kind": "working", "origin": "inferred", "sources": [ONE, TWO],
    "links": [TO_ONE, TO_TWO], "importance": 0.5, "metadata": {"a": 1, "b": [1, 2]}, "ttl": timedelta(hours=1),
    "supersede": "add",
}  # fmt: skip


async def test_the_same_request_is_answered_with_the_stored_receipt(ada: MemorySession, clock: Clock) -> None:
    first = await ada.remember(**FULL, operation_id="op")
    clock.step(days=1)
    before = await everything(ada, "own")
    again = await ada.remember(**FULL, operation_id="op")
    assert again == dataclasses.replace(first, replayed=True)
    assert await everything(ada, "own") == before


SAME = [
    ({"text": "tea"}, {"text": "tea", "kind": "semantic", "origin": "asserted", "sources": None, "links": (),
                       "importance": None, "metadata": None, "ttl": None, "supersede": None, "id": None}),
    ({"text": "tea"}, {"text": "tea", "supersede": "add"}),
    ({"text": "tea", "metadata": {}}, {"text": "tea", "metadata": None}),
    ({"text": "tea", "sources": []}, {"text": "tea", "sources": [HOST]}),
    ({"text": "tea", "links": []}, {"text": "tea", "links": ()}),
    ({"text": "tea", "importance": 1}, {"text": "tea", "importance": 1.0}),
    ({"text": "tea", "metadata": {"a": {"x": 1, "y": 2}, "b": 1}},
     {"text": "tea", "metadata": {"b": 1, "a": {"y": 2, "x": 1}}}),
    ({"text": "tea", "ttl": timedelta(minutes=60)}, {"text": "tea", "ttl": timedelta(hours=1)}),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), SAME, ids=range(len(SAME)))
async def test_requests_that_mean_the_same_are_the_same(ada: MemorySession, first, second) -> None:
    written = await ada.remember(**first, operation_id="op")
    again = await ada.remember(**second, operation_id="op")
    assert (again.replayed, again.receipt, again.records) == (True, written.receipt, written.records)


OTHER = [
    {"text": "Tea"}, {"text": "tea "}, {"id": "other"}, {"id": None}, {"kind": "semantic"}, {"origin": "asserted"},
    {"sources": [TWO, ONE]}, {"sources": [ONE]}, {"sources": [ONE, ONE, TWO]}, {"sources": None},
    {"links": [TO_TWO, TO_ONE]}, {"links": [TO_ONE]}, {"links": ()}, {"importance": 0.25}, {"importance": None},
    {"metadata": {"a": 1, "b": [2, 1]}}, {"metadata": {"a": 1}}, {"metadata": {"a": True, "b": [1, 2]}},
    {"metadata": {"a": "1", "b": [1, 2]}}, {"metadata": None}, {"ttl": timedelta(hours=1, microseconds=1)},
    {"ttl": None}, {"supersede": "skip_equal"},
]  # fmt: skip


@pytest.mark.parametrize("changed", OTHER, ids=[f"{n} {next(iter(c))}" for n, c in enumerate(OTHER)])
async def test_another_request_under_the_same_id_is_refused(ada: MemorySession, changed: dict[str, Any]) -> None:
    first = await ada.remember(**FULL, operation_id="op")
    before = await everything(ada, "own", "other")
    error = await refusal(ada.remember(**{**FULL, **changed}, operation_id="op"))
    assert isinstance(error, OperationConflictError)
    assert (error.code, error.operation_id) == ("operation_conflict", "op")
    assert "op" in str(error)
    assert await everything(ada, "own", "other") == before
    assert (await ada.remember(**FULL, operation_id="op")).receipt == first.receipt


async def test_a_text_in_another_normal_form_is_another_request(ada: MemorySession) -> None:
    await ada.remember("caf\u00e9", operation_id="op")
    assert isinstance(await refusal(ada.remember("cafe\u0301", operation_id="op")), OperationConflictError)


async def test_the_verb_is_a_part_of_the_request(ada: MemorySession) -> None:
    await ada.remember("tea", operation_id="op")
    for error in await refusals(
        ada.remember_many([Draft("tea")], operation_id="op"),
        ada.revise("r1", text="tea", operation_id="op"),
        ada.retract("r1", operation_id="op"),
        ada.forget("r1", operation_id="op"),
        ada.forget_scope(operation_id="op"),
    ):
        assert isinstance(error, OperationConflictError)
    await ada.retract("r1", operation_id="gone")
    assert isinstance(await refusal(ada.forget("r1", operation_id="gone")), OperationConflictError)
    assert await ada.scope_revision() == 2
    assert (await ada.history("r1"))[0].text == "tea"


async def test_the_order_of_drafts_counts(ada: MemorySession) -> None:
    first = await ada.remember_many([Draft("a"), Draft("b")], operation_id="op")
    again = await ada.remember_many([Draft("a"), Draft("b", metadata={})], origin="asserted", operation_id="op")
    assert (again.replayed, again.receipt, again.records) == (True, first.receipt, first.records)
    for drafts in ([Draft("b"), Draft("a")], [Draft("a")], [Draft("a"), Draft("b"), Draft("b")], []):
        assert isinstance(await refusal(ada.remember_many(drafts, operation_id="op")), OperationConflictError)
    assert isinstance(
        await refusal(ada.remember_many([Draft("a"), Draft("b")], origin="inferred", operation_id="op")),
        OperationConflictError,
    )


async def test_a_revise_is_the_same_request_only_with_the_same_arguments_given(ada: MemorySession) -> None:
    record = (await ada.remember("tea", metadata={"a": 1})).records[0]
    given: dict[str, Any] = {"text": "coffee", "metadata": {"a": 1, "b": 2}, "kind": None, "expected_revision": 1}
    first = await ada.revise(record.id, **given, operation_id="op")
    same = [given, {**given, "metadata": {"b": 2, "a": 1}}, {**given, "kind": "semantic"}]
    for arguments in same:
        again = await ada.revise(record.id, **arguments, operation_id="op")
        assert (again.replayed, again.receipt, again.records) == (True, first.receipt, first.records)
    without_kind = {name: value for name, value in given.items() if name != "kind"}
    other = [
        {**given, "text": "milk"}, {**given, "expected_revision": None}, {**given, "expected_revision": 2},
        without_kind, {**given, "ttl": None}, {**given, "metadata": None}, {**given, "origin": "inferred"},
    ]  # fmt: skip
    for arguments in other:
        error = await refusal(ada.revise(record.id, **arguments, operation_id="op"))
        assert isinstance(error, OperationConflictError)
    assert isinstance(await refusal(ada.revise("other", **given, operation_id="op")), OperationConflictError)
    assert await ada.scope_revision() == 2


async def test_who_asks_is_a_part_of_the_request(ada: MemorySession) -> None:
    record = (await ada.remember("tea", origin="inferred")).records[0]
    await ada.revise(record.id, text="coffee", by_model=True, operation_id="op")
    assert isinstance(await refusal(ada.revise(record.id, text="coffee", operation_id="op")), OperationConflictError)
    await ada.retract(record.id, by_model=True, operation_id="op2")
    assert isinstance(await refusal(ada.retract(record.id, operation_id="op2")), OperationConflictError)


async def test_a_replay_comes_before_the_check_of_the_revision(ada: MemorySession) -> None:
    record = (await ada.remember("tea")).records[0]
    first = await ada.revise(record.id, text="coffee", expected_revision=1, operation_id="op")
    await ada.revise(record.id, text="milk")
    again = await ada.revise(record.id, text="coffee", expected_revision=1, operation_id="op")
    assert (again.replayed, again.receipt, texts(again.records)) == (True, first.receipt, ["coffee"])
    gone = await ada.retract(record.id, expected_revision=3, operation_id="gone")
    await ada.revise(record.id)
    again = await ada.retract(record.id, expected_revision=3, operation_id="gone")
    assert (again.replayed, again.records) == (True, gone.records)
    assert texts(await ada.history(record.id)) == ["tea", "coffee", "milk", "milk", "milk"]


async def test_an_operation_id_is_unique_within_its_scope_only(ada: MemorySession, bob: MemorySession) -> None:
    first = await ada.remember("secret of Ada", operation_id="op")
    other = await bob.remember("of Bob", operation_id="op")
    assert (other.replayed, other.receipt.scope, other.receipt.scope_revision) == (False, bob.scope, 1)
    assert await ada.receipt("op") == first.receipt
    assert await bob.receipt("op") == other.receipt
    assert await bob.receipt("op2") is None


async def test_without_an_id_a_retry_is_a_new_operation(ada: MemorySession) -> None:
    first, second = await ada.remember("tea"), await ada.remember("tea")
    assert first.receipt.operation_id != second.receipt.operation_id
    assert (second.replayed, await ada.count(), await ada.scope_revision()) == (False, 2, 2)


async def test_settings_of_the_session_do_not_count(store: Store, embedder: FakeEmbedder) -> None:
    first = await open_memory(store).remember("tea", operation_id="op")
    other = open_memory(store, embedder=embedder, on_forget=[lambda event: None], new_id=lambda: "other")
    again = await other.remember("tea", operation_id="op")
    assert (again.replayed, again.receipt, again.records) == (True, first.receipt, first.records)


async def test_a_replay_makes_no_embedding_call(seeing: MemorySession, embedder: FakeEmbedder) -> None:
    await seeing.remember("tea", operation_id="one")
    await seeing.remember_many([Draft("a"), Draft("b"), Draft("a")], operation_id="many")
    await seeing.revise("r1", text="coffee", operation_id="rev")
    assert embedder.calls == [("document", ("tea",)), ("document", ("a", "b")), ("document", ("coffee",))]
    await seeing.remember("tea", operation_id="one")
    await seeing.remember_many([Draft("a"), Draft("b"), Draft("a")], operation_id="many")
    await seeing.revise("r1", text="coffee", operation_id="rev")
    assert isinstance(await refusal(seeing.remember("milk", operation_id="one")), OperationConflictError)
    assert len(embedder.calls) == 3


async def test_a_replay_answers_the_revisions_that_are_still_present(ada: MemorySession) -> None:
    many = await ada.remember_many([Draft("a", "a"), Draft("b", "b"), Draft("c", "c")], operation_id="op")
    await ada.revise("a", text="a2")
    await ada.retract("b")
    assert (await ada.remember_many([Draft("a", "a"), Draft("b", "b"), Draft("c", "c")], operation_id="op")) == (
        dataclasses.replace(many, replayed=True)
    )
    await ada.forget("b")
    again = await ada.remember_many([Draft("a", "a"), Draft("b", "b"), Draft("c", "c")], operation_id="op")
    assert texts(again.records) == ["a", "c"]
    assert again.receipt == dataclasses.replace(many.receipt, redacted=True)
    assert [c.record_id for c in again.receipt.changes] == ["a", "b", "c"]


async def test_an_expired_record_is_still_present_for_a_replay(ada: MemorySession, clock: Clock) -> None:
    first = await ada.remember("tea", ttl=timedelta(seconds=1), operation_id="op")
    clock.step(days=1)
    assert (await ada.remember("tea", ttl=timedelta(seconds=1), operation_id="op")).records == first.records
    assert await ada.get(first.records[0].id) is None


async def test_forgets_replay_too(ada: MemorySession) -> None:
    await ada.remember("tea", id="a")
    first = await ada.forget("a", operation_id="op")
    again = await ada.forget("a", operation_id="op")
    assert (again.replayed, again.receipt) == (True, first.receipt)
    assert isinstance(await refusal(ada.forget("b", operation_id="op")), OperationConflictError)
    whole = await ada.forget_scope(operation_id="all")
    repeated = await ada.forget_scope(operation_id="all")
    assert (repeated.replayed, repeated.receipt) == (True, whole.receipt)
    assert await ada.scope_revision() == 3


async def test_a_refused_request_leaves_no_receipt_and_its_id_stays_free(ada: MemorySession) -> None:
    await refusal(ada.remember("", operation_id="op"))
    await refusal(ada.revise("unknown", text="x", operation_id="op"))
    await refusal(ada.retract("unknown", operation_id="op"))
    await refusal(ada.remember("tea", metadata={"a": float("nan")}, operation_id="op"))
    assert await ada.receipt("op") is None
    assert await ada.scope_revision() == 0
    result = await ada.remember("tea", operation_id="op")
    assert (result.replayed, result.receipt.scope_revision) == (False, 1)


async def test_a_receipt_holds_no_text(ada: MemorySession) -> None:
    secret = "SENTINEL-7f3a"
    given: dict[str, Any] = {
        "kind": "working", "importance": 0.5, "metadata": {secret: secret},
        "sources": [Source("user", text_digest(secret), uri=f"x:{secret}")],
        "links": [Link(secret, secret)],
    }  # fmt: skip
    results = [
        await ada.remember(secret, id="a", operation_id="1", **given),
        await ada.remember(secret, supersede="skip_equal", operation_id="2"),
        await ada.revise("a", text=f"{secret}!", operation_id="3", **given),
        await ada.retract("a", operation_id="4"),
        await ada.forget("a", operation_id="5"),
        await ada.forget_scope(operation_id="6"),
    ]
    for result in results:
        kept = await ada.receipt(result.receipt.operation_id)
        assert kept is not None
        for receipt in (result.receipt, kept):
            shown = json.dumps(receipt.to_json()) + repr(receipt) + receipt._repr_html_()
            assert secret not in shown
            assert text_digest(secret)[7:] not in shown


async def test_a_receipt_reads_the_same_as_it_was_given(ada: MemorySession, clock: Clock) -> None:
    await ada.remember("tea", id="a", operation_id="1")
    clock.step(microseconds=1)
    revised = await ada.revise("a", text="coffee", operation_id="2")
    assert revised.receipt == Receipt(
        "2", "revise", ADA, 2, START + timedelta(microseconds=1), (Change("a", 2, "revise"),)
    )  # fmt: skip
    assert await ada.receipt("2") == revised.receipt
    assert await ada.receipt("3") is None


async def test_operation_ids_of_any_characters_are_told_apart(ada: MemorySession) -> None:
    names = ["k", "K", "k ", "\u00e9", "e\u0301", "k%", "k_", "'; --", '"', "🙂", "a\u2028b", "a" * 512]
    for name in names:
        await ada.remember(f"by {name[:9]}", operation_id=name)
    assert await ada.count() == len(names)
    for place, name in enumerate(names, 1):
        receipt = await ada.receipt(name)
        assert receipt is not None
        assert (receipt.operation_id, receipt.scope_revision) == (name, place)
