"""The rules of writes, without a store: what an operation reads, and the plan it makes of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fakes import ADA, START

from vmem_core import (
    Change,
    Draft,
    EmbeddingMismatchError,
    Generation,
    InvalidRequestError,
    Note,
    OperationConflictError,
    Record,
    RecordConflictError,
    RecordNotFoundError,
    Source,
    VmemError,
    text_digest,
)
from vmem_core.operations import Forget, ForgetScope, Operation, Remember, RememberMany, Retract, Revise, merge_sources
from vmem_core.plan import Head, Plan, Snapshot, StoredReceipt, StoredRequest, Vectors, Written
from vmem_core.text import text_key

SALT = b"0123456789abcdef"
LATER = START + timedelta(hours=1)
COMMON: dict[str, Any] = {"scope": ADA, "operation_id": "op", "salt": SALT}
VECTOR = b"\x00\x00\x80?" + b"\x00" * 4


def record(record_id: str = "r1", text: str = "tea", **fields: Any) -> Record:
    """A record as a store would hold it."""
    defaults: dict[str, Any] = {
        "revision": 1, "kind": "semantic", "origin": "asserted", "status": "active",
        "sources": (Source("host", text_digest(text)),), "links": (), "importance": None, "metadata": {},
        "created_at": START, "recorded_at": START, "expires_at": None, "operation_id": "first", "scope_revision": 1,
    }  # fmt: skip
    return Record(id=record_id, scope=ADA, text=text, **{**defaults, **fields})


def snapshot(*records: Record, **more: Any) -> Snapshot:
    """What a store knows: some records of the scope, one hour after the start."""
    heads = {r.id: Head(r.id, True, r.revision, r, revisions=(Written(r.revision, r.scope_revision),)) for r in records}
    equals: dict[int, tuple[Record, ...]] = {}
    for one in records:
        equals[text_key(one.text)] = (*equals.get(text_key(one.text), ()), one)
    return replace(Snapshot(7, LATER, heads=heads, equals=equals), **more)


def foreign(record_id: str) -> Mapping[str, Head]:
    """A head of another scope."""
    return {record_id: Head(record_id, owned=False)}


def forgotten(record_id: str) -> Mapping[str, Head]:
    """A tombstone of the scope."""
    return {record_id: Head(record_id, owned=True, forgotten=True)}


def remember(*drafts: Draft, many: bool = False, **more: Any) -> Remember:
    made = tuple(draft.id or f"new{n}" for n, draft in enumerate(drafts, 1))
    return (RememberMany if many else Remember)(**COMMON, drafts=drafts, ids=made, **more)


def revise(given: Mapping[str, Any], **more: Any) -> Revise:
    return Revise(**COMMON, record_id="r1", given=given, **more)


def refused(operation: Operation, known: Snapshot) -> VmemError:
    with pytest.raises(VmemError) as caught:
        operation.decide(known)
    return caught.value


# ---------------------------------------------------------------------------------------------------------- stamps


def test_a_plan_is_stamped_by_the_snapshot_and_no_clock() -> None:
    plan = remember(Draft("tea", ttl=timedelta(hours=1)), Draft("coffee")).decide(snapshot())
    assert (plan.receipt.scope_revision, plan.receipt.committed_at, plan.receipt.operation_id) == (8, LATER, "op")
    for write in plan.writes:
        assert (write.record.created_at, write.record.recorded_at, write.record.scope_revision) == (LATER, LATER, 8)
    assert [write.record.expires_at for write in plan.writes] == [LATER + timedelta(hours=1), None]
    assert plan.receipt.changes == (Change("new1", 1, "create"), Change("new2", 1, "create"))


def test_deciding_twice_gives_the_same_plan() -> None:
    known = snapshot(record())
    for operation in (
        remember(Draft("tea")), remember(Draft("tea"), skip_equal=True), revise({"text": "x"}),
        Retract(**COMMON, record_id="r1"),
        Forget(**COMMON, record_id="r1"), ForgetScope(**COMMON),
    ):  # fmt: skip
        assert operation.decide(known) == operation.decide(known)


def test_a_revise_keeps_when_the_record_was_created() -> None:
    write = revise({"kind": "working"}).decide(snapshot(record())).writes[0]
    assert (write.record.created_at, write.record.recorded_at, write.record.revision) == (START, LATER, 2)
    assert write.text_changed is False


# ------------------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize("heads", [foreign("new1"), forgotten("new1"), snapshot(record("new1")).heads], ids=range(3))
def test_an_id_that_any_scope_holds_or_forgot_is_a_conflict(heads: Mapping[str, Head]) -> None:
    error = refused(remember(Draft("tea")), snapshot(heads=heads))
    assert isinstance(error, RecordConflictError)
    assert str(error) == str(RecordConflictError("new1"))


def test_what_may_be_touched_depends_on_whose_it_is() -> None:
    for operation in (revise({"text": "x"}), Retract(**COMMON, record_id="r1")):
        assert isinstance(refused(operation, snapshot()), RecordNotFoundError)
        assert isinstance(refused(operation, snapshot(heads=foreign("r1"))), RecordNotFoundError)
        assert isinstance(refused(operation, snapshot(heads=forgotten("r1"))), RecordConflictError)
        assert str(refused(operation, snapshot())) == str(refused(operation, snapshot(heads=foreign("r1"))))


def test_operations_read_only_what_they_name() -> None:
    assert remember(Draft("a"), Draft("b", "own"), many=True).reads().record_ids == ("new1", "own")
    assert remember(Draft("a")).reads().equal_texts == ()
    assert remember(Draft("a"), skip_equal=True).reads().equal_texts == (text_key("a"),)
    assert revise({}).reads().record_ids == ("r1",)
    assert Forget(**COMMON, record_id="r1").reads().revisions is True
    assert ForgetScope(**COMMON).reads().whole_scope is True


def test_operations_name_the_texts_they_may_write() -> None:
    assert remember(Draft("a"), Draft("b")).texts() == ["a", "b"]
    assert revise({"text": "c"}).texts() == ["c"]
    assert revise({"kind": "working"}).texts() == []
    assert list(Retract(**COMMON, record_id="r1").texts()) == []


# --------------------------------------------------------------------------------------------------------- replays


def stored(operation: Operation, plan: Plan, **receipt: Any) -> StoredReceipt:
    """What a store kept of an operation."""
    kept = replace(plan.receipt, **receipt)
    request = StoredRequest(b"", b"") if kept.redacted else StoredRequest.of(operation.request(), SALT)
    return StoredReceipt(kept, request)


def test_a_request_is_kept_as_a_salted_digest_only() -> None:
    operation = remember(Draft("SENTINEL-7f3a"))
    request = operation.decide(snapshot()).request
    assert request is not None
    assert (request.salt, len(request.digest)) == (SALT, 32)
    other = replace(operation, salt=b"fedcba9876543210").decide(snapshot()).request
    assert other is not None
    assert other.digest != request.digest
    assert b"SENTINEL" not in request.digest


def test_the_same_request_replays_whatever_the_scope_has_become() -> None:
    operation = revise({"text": "x"}, expected_revision=1)
    first = operation.decide(snapshot(record()))
    for heads in (forgotten("r1"), snapshot(record(revision=9)).heads, {}):
        plan = operation.decide(snapshot(stored=stored(operation, first), heads=heads))
        assert plan.replayed
        assert (plan.receipt, plan.writes, plan.forgets, plan.redacts) == (first.receipt, (), (), ())


def test_the_salt_of_the_retry_does_not_matter() -> None:
    operation = remember(Draft("tea"))
    kept = stored(operation, operation.decide(snapshot()))
    assert replace(operation, salt=b"another salt 16b").decide(snapshot(stored=kept)).replayed


def test_the_ids_and_vectors_made_for_a_retry_do_not_matter() -> None:
    operation = remember(Draft("tea"))
    kept = stored(operation, operation.decide(snapshot()))
    retry = replace(operation, ids=("another",), vectors=Vectors("m", 2, {"tea": VECTOR}))
    assert retry.decide(snapshot(stored=kept)).replayed


def test_another_request_is_refused_before_anything_else() -> None:
    operation = remember(Draft("tea"))
    kept = stored(operation, operation.decide(snapshot()))
    for other in (
        remember(Draft("coffee")),
        revise({}),
        Retract(**COMMON, record_id="r1"),
        Forget(**COMMON, record_id="x"),
    ):
        error = refused(other, snapshot(stored=kept))
        assert isinstance(error, OperationConflictError)
        assert error.operation_id == "op"


def test_a_redacted_receipt_replays_for_any_write_but_no_forget_passes_for_it() -> None:
    operation = remember(Draft("tea"))
    kept = stored(operation, operation.decide(snapshot()), redacted=True)
    for other in (operation, remember(Draft("coffee")), revise({"text": "y"}), Retract(**COMMON, record_id="r1")):
        plan = other.decide(snapshot(stored=kept))
        assert (plan.replayed, plan.receipt, plan.writes) == (True, kept.receipt, ())
    for other in (Forget(**COMMON, record_id="r1"), ForgetScope(**COMMON)):
        assert isinstance(refused(other, snapshot(stored=kept)), OperationConflictError)


# ---------------------------------------------------------------------------------------------------- equal texts


def test_equal_texts_are_met_by_form_and_never_by_hash_alone() -> None:
    known = snapshot(record("a", "Tea"), record("b", "tea"))
    plan = remember(Draft(" TEA "), skip_equal=True).decide(known)
    assert ([one.id for one in plan.present], plan.writes, plan.mentions) == (["a"], (), ("a",))
    assert plan.receipt.notes == (Note("already_stored", 1),)
    collision = snapshot(equals={text_key("tea"): (record("a", "not tea at all"),)})
    plan = remember(Draft("tea"), skip_equal=True).decide(collision)
    assert (plan.present, len(plan.writes)) == ((), 1)


# --------------------------------------------------------------------------------------------------------- vectors


def test_a_vector_goes_with_the_text_it_was_made_for() -> None:
    vectors = Vectors("m", 2, {"a": VECTOR, "b": None})
    plan = remember(Draft("a"), Draft("b"), vectors=vectors).decide(snapshot())
    assert [write.vector for write in plan.writes] == [VECTOR, None]
    assert plan.receipt.notes == (Note("not_embedded", 1),)
    assert plan.starts == ("m", 2)


def test_the_first_vector_that_can_be_used_starts_a_generation() -> None:
    active = Generation(1, "m", 2, "active")
    usable, useless = Vectors("m", 2, {"a": VECTOR}), Vectors("m", 2, {"a": None})
    assert remember(Draft("a"), vectors=usable).decide(snapshot(generation=active)).starts is None
    assert remember(Draft("a"), vectors=useless).decide(snapshot()).starts is None
    assert remember(Draft("a")).decide(snapshot()).starts is None
    assert remember(Draft("a"), vectors=usable).decide(snapshot()).starts == ("m", 2)
    assert revise({"text": "a"}, vectors=usable).decide(snapshot(record())).starts == ("m", 2)


@pytest.mark.parametrize(
    "active", [Generation(3, "n", 2, "active"), Generation(3, "m", 3, "active")], ids=["model", "size"]
)
def test_a_vector_of_another_model_or_size_is_refused(active: Generation) -> None:
    vectors = Vectors("m", 2, {"a": VECTOR})
    for operation in (remember(Draft("a"), vectors=vectors), revise({"text": "a"}, vectors=vectors)):
        error = refused(operation, snapshot(record(), generation=active))
        assert isinstance(error, EmbeddingMismatchError)
        assert (error.active_model, error.active_dims) == (active.model_id, active.dims)
        assert (error.model, error.dims) == ("m", 2)


def test_only_a_changed_text_needs_a_vector() -> None:
    vectors = Vectors("m", 2, {"tea": None, "milk": None})
    known = snapshot(record(), generation=Generation(1, "m", 2, "active"))
    same = revise({"text": "tea"}, vectors=vectors).decide(known)
    assert (same.writes[0].text_changed, same.receipt.notes) == (False, ())
    changed = revise({"text": "milk"}, vectors=vectors).decide(known)
    assert (changed.writes[0].text_changed, changed.receipt.notes) == (True, (Note("not_embedded", 1),))
    assert Retract(**COMMON, record_id="r1").decide(known).writes[0].text_changed is False


# --------------------------------------------------------------------------------------------------------- forgets


def test_a_forget_names_the_receipts_of_every_revision() -> None:
    head = Head("r1", True, 3, record(revision=3), revisions=(Written(1, 2), Written(2, 5), Written(3, 6)))
    plan = Forget(**COMMON, record_id="r1").decide(snapshot(heads={"r1": head}))
    assert (plan.forgets, plan.redacts) == (("r1",), (2, 5, 6))
    assert plan.forgotten[0].revisions == (1, 2, 3)
    assert plan.receipt.changes == (Change("r1", 3, "forget"),)


def test_a_pruned_revision_is_not_deleted_again_but_its_receipt_is_redacted() -> None:
    head = Head("r1", True, 2, record(revision=2), revisions=(Written(1, 2, kept=False), Written(2, 5)))
    plan = Forget(**COMMON, record_id="r1").decide(snapshot(heads={"r1": head}))
    assert (plan.forgotten[0].revisions, plan.redacts) == ((2,), (2, 5))


@pytest.mark.parametrize("heads", [{}, foreign("r1"), forgotten("r1")], ids=["unknown", "foreign", "forgotten"])
def test_a_forget_of_what_is_not_there_deletes_nothing(heads: Mapping[str, Head]) -> None:
    plan = Forget(**COMMON, record_id="r1").decide(snapshot(heads=heads))
    assert (plan.forgets, plan.redacts, plan.receipt.changes, plan.replayed) == ((), (), (), False)
    assert plan.receipt.scope_revision == 8
    assert plan.forgotten[0].revisions == ()
    assert plan.forgotten[0].already == (heads == forgotten("r1"))


def test_forget_scope_takes_what_is_left_and_meets_what_was_forgotten() -> None:
    heads = {**snapshot(record("a"), record("b")).heads, **forgotten("c")}
    plan = ForgetScope(**COMMON).decide(snapshot(heads=heads))
    assert plan.forgets == ("a", "b")
    assert [(one.record_id, one.already) for one in plan.forgotten] == [("a", False), ("b", False), ("c", True)]
    assert [change.record_id for change in plan.receipt.changes] == ["a", "b"]


# --------------------------------------------------------------------------------------------------------- sources


def test_merged_sources_are_one_for_each_kind_digest_message_and_call() -> None:
    one = Source("user", text_digest("1"), message_id="m1")
    again = Source("user", text_digest("1"), message_id="m1", uri="elsewhere")
    others = [
        Source("tool", text_digest("1"), message_id="m1"), Source("user", text_digest("2"), message_id="m1"),
        Source("user", text_digest("1"), message_id="m2"),
        Source("user", text_digest("1"), message_id="m1", tool_call_id="c"),
    ]  # fmt: skip
    assert merge_sources((one,), (again,)) == (one,)
    assert merge_sources((one,), others) == (one, *others)
    assert merge_sources((), ()) == ()
    many = [Source("user", text_digest(str(n))) for n in range(120)]
    assert merge_sources(many[:60], many[60:]) == tuple(many[70:])


def test_an_expiry_beyond_the_calendar_is_refused() -> None:
    for operation in (remember(Draft("tea", ttl=timedelta.max)), revise({"ttl": timedelta.max})):
        error = refused(operation, snapshot(record()))
        assert isinstance(error, InvalidRequestError)
        assert error.path == "ttl"
