"""Receipts, results, hits and pages: a wrong one cannot be built, a right one survives JSON."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from datetime import UTC
from typing import Any

import pytest
from fakes import ADA, START
from hypothesis import given
from hypothesis import strategies as st
from test_records import INSTANTS, NAMES, RECORD, RECORDS, SCOPES

from vmem_core import (
    Change,
    ForgetEvent,
    ForgetResult,
    ForgetScopeResult,
    Generation,
    Hit,
    ImportResult,
    InvalidRequestError,
    Note,
    Page,
    Receipt,
    Record,
    WriteResult,
)
from vmem_core.results import ACTIONS, MATCHES, NOTE_CODES, REDACTIONS, VERBS, History, Hits

RECORD_OF_ADA = Record(**RECORD)
RECEIPT = Receipt("op", "remember", ADA, 1, START, (Change("r1", 1, "create"),), (Note("noop", 1),))

NUMBERS = st.integers(1, 2**63)
CHANGES = st.builds(Change, NAMES, NUMBERS, st.sampled_from(ACTIONS))
NOTES = st.builds(Note, st.sampled_from(NOTE_CODES), NUMBERS)
RECEIPTS = st.builds(
    Receipt, NAMES, st.sampled_from(VERBS), SCOPES, NUMBERS, INSTANTS, st.lists(CHANGES, max_size=3),
    st.lists(NOTES, max_size=2),
    st.booleans(),
)  # fmt: skip
SOME_RECORDS = st.lists(RECORDS, max_size=2)
RANKS = st.none() | st.integers(1, 4000)
RESULTS = st.one_of(
    CHANGES, NOTES, RECEIPTS,
    st.builds(WriteResult, RECEIPTS, st.booleans(), SOME_RECORDS, st.integers(0, 3), SOME_RECORDS),
    st.builds(ForgetResult, RECEIPTS, st.booleans(), st.lists(NUMBERS, max_size=3), st.booleans(),
              st.sampled_from(REDACTIONS), st.booleans()),
    st.builds(ForgetScopeResult, RECEIPTS, st.lists(NAMES, max_size=3), st.sampled_from(REDACTIONS), st.booleans(),
    st.booleans()),
    st.builds(ForgetEvent, SCOPES, NAMES, st.lists(NUMBERS, max_size=3), NAMES, st.booleans()),
    st.builds(Hit, RECORDS, st.floats(0, 1), st.sampled_from(MATCHES), RANKS, RANKS),
    st.builds(Page, SOME_RECORDS, st.none() | NAMES),
    st.builds(Generation, NUMBERS, NAMES, NUMBERS, st.sampled_from(["active", "pending", "retired"])),
)  # fmt: skip


@given(RESULTS)
def test_every_result_survives_json_exactly(value: Any) -> None:
    data = value.to_json()
    for again in (type(value).from_json(data), type(value).from_json(json.dumps(data))):
        assert again == value
        assert repr(dataclasses.asdict(again)) == repr(dataclasses.asdict(value))


@given(RESULTS)
def test_every_result_is_frozen_and_can_be_copied_and_pickled(value: Any) -> None:
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
    assert not hasattr(value, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, None)


RIGHT: dict[type, dict[str, Any]] = {
    Change: {"record_id": "r1", "revision": 1, "action": "create"},
    Note: {"code": "noop", "count": 1},
    Receipt: {"operation_id": "op", "kind": "remember", "scope": ADA, "scope_revision": 1, "committed_at": START,
              "changes": (), "notes": (), "redacted": False},
    WriteResult: {"receipt": RECEIPT, "replayed": False, "records": (), "conflict_retries": 0, "present": ()},
    ForgetResult: {"receipt": RECEIPT, "replayed": False, "revisions": (1,), "already_forgotten": False,
                   "redaction": "none", "scrubbed": True},
    ForgetScopeResult: {"receipt": RECEIPT, "record_ids": ("r1",), "redaction": "none", "replayed": False,
    "scrubbed": True},
    ForgetEvent: {"scope": ADA, "record_id": "r1", "revisions": (1,), "operation_id": "op", "already_forgotten": False},
    Hit: {"record": RECORD_OF_ADA, "score": 0.5, "match": "hybrid", "vector_rank": 1, "lexical_rank": None},
    Page: {"records": (RECORD_OF_ADA,), "cursor": "c"},
    Generation: {"number": 1, "model_id": "m", "dims": 3, "state": "active"},
}  # fmt: skip

NO_ID: list[Any] = ["", None, 5, "a\x00", "\ud800"]
NO_NUMBER: list[Any] = [0, -1, True, "1", 1.0, None]
NO_FLAG: list[Any] = [0, 1, None, "yes"]
NO_WORD: list[Any] = ["", "unknown", None, 5]
NO_RECEIPT: list[Any] = [None, {}, "op"]
NO_RECORDS: list[Any] = [None, [None], "r1", RECORD_OF_ADA, [RECORD]]
NO_NUMBERS: list[Any] = [None, 1, ["1"], [0], [True], [1.0]]
WRONG: dict[type, dict[str, list[Any]]] = {
    Change: {"record_id": NO_ID, "revision": NO_NUMBER, "action": NO_WORD},
    Note: {"code": NO_WORD, "count": NO_NUMBER},
    Receipt: {"operation_id": NO_ID, "kind": NO_WORD, "scope": [None, {}], "scope_revision": NO_NUMBER,
              "committed_at": [None, START.replace(tzinfo=None), "2026"],
              "changes": [None, ["create"], [Note("noop", 1)]],
              "notes": [None, ["noop"], [Change("r1", 1, "create")]], "redacted": NO_FLAG},
    WriteResult: {"receipt": NO_RECEIPT, "replayed": NO_FLAG, "records": NO_RECORDS, "conflict_retries": [-1, True,
    None],
                  "present": NO_RECORDS},
    ForgetResult: {"receipt": NO_RECEIPT, "replayed": NO_FLAG, "revisions": NO_NUMBERS, "already_forgotten": NO_FLAG,
                   "redaction": NO_WORD, "scrubbed": NO_FLAG},
    ForgetScopeResult: {"receipt": NO_RECEIPT, "record_ids": [None, "r1", [5], [""]], "redaction": NO_WORD,
                        "replayed": NO_FLAG, "scrubbed": NO_FLAG},
    ForgetEvent: {"scope": [None, {}], "record_id": NO_ID, "revisions": NO_NUMBERS, "operation_id": NO_ID,
                  "already_forgotten": NO_FLAG},
    Hit: {"record": [None, RECORD, "r1"], "score": [None, "1", float("nan"), float("inf"), True], "match": NO_WORD,
          "vector_rank": [0, -1, True, "1", 1.0], "lexical_rank": [0, -1, True, "1", 1.0]},
    Page: {"records": NO_RECORDS, "cursor": ["", 5, b"x"]},
    Generation: {"number": NO_NUMBER, "model_id": NO_ID, "dims": NO_NUMBER, "state": NO_WORD},
}  # fmt: skip
CASES = [(cls, name, wrong) for cls, fields in WRONG.items() for name, values in fields.items() for wrong in values]


@pytest.mark.parametrize(
    ("cls", "name", "wrong"), CASES, ids=[f"{n} {cls.__name__}.{name}" for n, (cls, name, _) in enumerate(CASES)]
)
def test_a_wrong_result_cannot_be_built(cls: type, name: str, wrong: Any) -> None:
    cls(**RIGHT[cls])
    with pytest.raises(InvalidRequestError) as caught:
        cls(**{**RIGHT[cls], name: wrong})
    assert name in caught.value.path


def test_every_field_of_every_result_is_looked_at() -> None:
    for cls, fields in WRONG.items():
        assert set(fields) == {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def test_the_words_of_results_are_the_promised_ones() -> None:
    assert set(NOTE_CODES) == {
        "duplicate", "already_stored", "noop", "superseded_duplicate", "about_asserted", "delete_of_asserted_dropped",
        "unknown_handle", "invalid_entry", "over_limit", "unparsed", "refused", "nothing_readable", "untrusted",
        "already_processed", "block_skipped", "truncated", "not_embedded",
    }  # fmt: skip
    assert VERBS == ("remember", "remember_many", "extract", "revise", "retract", "forget", "forget_scope", "import")
    assert set(ACTIONS) == {"create", "revise", "retract", "forget"}
    assert set(MATCHES) == {"vector", "lexical", "hybrid", "recent"}
    assert set(REDACTIONS) == {"complete", "failed", "none"}


def test_lists_become_tuples_and_instants_utc() -> None:
    receipt = Receipt("op", "remember", ADA, 1, START, [Change("r1", 1, "create")], [Note("noop", 1)])  # type: ignore[arg-type]
    assert type(receipt.changes) is type(receipt.notes) is tuple
    assert receipt.committed_at.tzinfo is UTC
    assert type(WriteResult(RECEIPT, records=[RECORD_OF_ADA]).records) is tuple  # type: ignore[arg-type]
    assert type(Page([RECORD_OF_ADA]).records) is tuple  # type: ignore[arg-type]


def test_results_show_themselves_escaped() -> None:
    hostile = dataclasses.replace(RECORD_OF_ADA, text="<script>x</script>", id="<i>")
    receipt = dataclasses.replace(RECEIPT, operation_id="<script>y</script>", changes=(Change("<i>", 1, "create"),))
    hit = Hit(hostile, 0.5, "hybrid")
    for value in (
        receipt, WriteResult(receipt, records=(hostile,)), WriteResult(receipt, present=(hostile,)),
        ForgetResult(receipt),
        ForgetScopeResult(receipt), hit, Page((hostile,)), Hits([hit]), History([hostile]),
    ):  # fmt: skip
        shown = value._repr_html_()
        assert "<script>" not in shown
        assert "<i>" not in shown
        assert "&lt;" in shown


def test_empty_lists_show_themselves_too() -> None:
    for value in (Hits(), History(), Page()):
        assert "nothing found" in value._repr_html_()
        assert list(value if isinstance(value, list) else value.records) == []


def test_the_result_of_an_import_adds_up_and_survives_json() -> None:
    result = ImportResult(5, 2, 3, {"expired": 1, "already_imported": 2})
    assert ImportResult.from_json(result.to_json()) == result
    assert list(result.reasons) == ["already_imported", "expired"]
    assert "already_imported" in result._repr_html_()
    for wrong in (
        (1, 0, 0, {}),
        (2, 1, 1, {}),
        (1, 0, 1, {"expired": 2}),
        (1, 0, 1, {"": 1}),
        (1, 0, 1, [("expired", 1)]),
    ):
        with pytest.raises(InvalidRequestError):
            ImportResult(*wrong)  # type: ignore[arg-type]
