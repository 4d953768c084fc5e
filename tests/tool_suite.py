"""What the memory tools take and what they answer, whichever framework calls them: the tests of each adapter run these.

An adapter's test file imports the tests and brings two fixtures: ``call``, which calls a tool of a session in a call
that has an id, and ``logger``, the name of the adapter's logger.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from fakes import ADA, BOB, Ids, RawEmbedder

from vmem_core import InMemoryStore, MemorySession, Scope, Source, text_digest

TEXT = "Ada likes green tea."


@dataclass(frozen=True)
class Answer:
    """What a framework got from a tool: the text for the model, what the host gets besides, whether it failed.

    A refusal has the same artifact, or none where the framework keeps none with an error.
    """

    content: str
    artifact: Any
    failed: bool

    @property
    def data(self) -> Any:
        return json.loads(self.content)


class Call(Protocol):
    """Calls a tool of a session or a resolver, by its kind; ``more`` says how the tools are made."""

    def __call__(
        self, session: Any, kind: str, args: dict[str, Any], call_id: str = "call_1", **more: Any
    ) -> Answer: ...


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(InMemoryStore(), Scope(user_id="ada", chat_id="chat-7"), new_id=Ids())


# --- answers ------------------------------------------------------------------------------------------------------


def test_remember_answers_the_record_and_cites_the_call(session: MemorySession, call: Call) -> None:
    answer = call(session, "remember", {"text": TEXT, "kind": "episodic", "importance": 0.5})

    assert answer.content == '{"id":"r1","revision":1,"origin":"inferred","status":"active","replayed":false}'
    assert not answer.failed
    record = session.sync.get("r1")
    assert (record.text, record.kind, record.origin, record.importance) == (TEXT, "episodic", "inferred", 0.5)
    assert record.sources == (
        Source("assistant", text_digest(TEXT), chat_id="chat-7", tool_call_id="call_1", tool_name="memory_remember"),
    )


def test_a_text_that_is_stored_already_is_answered_and_not_added(session: MemorySession, call: Call) -> None:
    session.sync.remember(TEXT)
    assert call(session, "remember", {"text": f"  {TEXT.upper()}"}).data == {
        "id": "r1", "revision": 1, "origin": "asserted", "status": "active", "replayed": False, "already_stored": True
    }  # fmt: skip
    assert session.sync.count() == 1


def test_recall_answers_records_as_an_array(session: MemorySession, call: Call) -> None:
    sources = [Source("user", text_digest("a")), Source("tool", text_digest("b")), Source("user", text_digest("c"))]
    session.sync.remember("Ada trinkt gern grünen Tee. お茶", sources=sources, kind="episodic")
    assert call(session, "recall", {"query": "Tee"}).content == (
        '[{"id":"r1","revision":1,"text":"Ada trinkt gern grünen Tee. お茶","kind":"episodic","origin":"asserted",'
        '"source_kinds":["user","tool"],"status":"active"}]'
    )


@pytest.mark.parametrize("query", ["helicopter", "  "])
def test_recall_without_a_match_or_a_query_answers_an_empty_array(
    session: MemorySession, call: Call, query: str
) -> None:
    session.sync.remember(TEXT)
    assert call(session, "recall", {"query": query}).content == "[]"


def test_recall_filters_by_kind_and_answers_no_more_than_top_k(session: MemorySession, call: Call) -> None:
    for kind in ("semantic", "semantic", "procedural"):
        session.sync.remember(f"tea {kind}", kind=kind)
    assert len(call(session, "recall", {"query": "tea"}, top_k=1).data) == 1
    [found] = call(session, "recall", {"query": "tea", "kind": "procedural"}, top_k=1).data
    assert found["kind"] == "procedural"


def test_revise_and_retract_stay_inferred_and_cite_the_call(session: MemorySession, call: Call) -> None:
    call(session, "remember", {"text": TEXT})
    revised = call(session, "revise", {"id": "r1", "expected_revision": 1, "text": "Ada likes coffee."}, "call_2")

    assert revised.data == {"id": "r1", "revision": 2, "origin": "inferred", "status": "active", "replayed": False}
    record = session.sync.get("r1")
    assert [source.tool_call_id for source in record.sources] == ["call_1", "call_2"]
    assert record.sources[1].digest == text_digest("Ada likes coffee.")
    assert record.sources[1].tool_name == "memory_revise"
    retracted = call(session, "retract", {"id": "r1", "expected_revision": 2}, "call_3").data
    assert (retracted["revision"], retracted["status"], retracted["origin"]) == (3, "retracted", "inferred")


def test_revise_without_a_text_keeps_it_and_still_cites_the_call(session: MemorySession, call: Call) -> None:
    session.sync.remember(TEXT, origin="inferred")
    call(session, "revise", {"id": "r1", "expected_revision": 1, "importance": 1, "text": None})
    record = session.sync.get("r1")
    assert (record.revision, record.text, record.importance, record.origin) == (2, TEXT, 1.0, "inferred")
    assert record.sources[-1].tool_call_id == "call_1"


def test_revise_with_nothing_new_brings_a_retracted_record_back(session: MemorySession, call: Call) -> None:
    session.sync.remember(TEXT, origin="inferred")
    session.sync.retract("r1")
    assert call(session, "revise", {"id": "r1", "expected_revision": 2}).data["status"] == "active"


def test_retract_answers_the_record_and_again_the_same_one(session: MemorySession, call: Call) -> None:
    session.sync.remember(TEXT, origin="inferred")
    retracted = {"id": "r1", "revision": 2, "origin": "inferred", "status": "retracted", "replayed": False}
    assert call(session, "retract", {"id": "r1", "expected_revision": 1}, "call_1").data == retracted
    assert call(session, "retract", {"id": "r1", "expected_revision": 2}, "call_2").data == retracted
    assert session.sync.recall(TEXT) == []


def test_what_the_host_gets_besides_refers_to_records_and_holds_no_text(session: MemorySession, call: Call) -> None:
    written = call(session, "remember", {"text": TEXT}).artifact
    found = call(session, "recall", {"query": "tea"}).artifact
    assert written == session.sync.receipt(session.sync.get("r1").operation_id).to_json()
    assert found == [{"id": "r1", "revision": 1, "score": found[0]["score"], "match": "lexical"}]
    assert "tea" not in json.dumps([written, found])


# --- refusals -----------------------------------------------------------------------------------------------------


def assert_refused(answer: Answer, **expected: Any) -> None:
    assert answer.data == expected
    assert answer.failed
    assert answer.artifact in (None, expected)


@pytest.mark.parametrize("kind", ["revise", "retract"])
def test_what_the_host_asserted_is_not_a_models_to_change(session: MemorySession, call: Call, kind: str) -> None:
    session.sync.remember(TEXT)
    args = {"id": "r1", "expected_revision": 1} | ({"text": "No tea."} if kind == "revise" else {})
    assert_refused(call(session, kind, args), error="asserted_record")
    assert session.sync.get("r1").revision == 1


@pytest.mark.parametrize("kind", ["revise", "retract"])
def test_a_stale_revision_is_refused_with_the_current_one(session: MemorySession, call: Call, kind: str) -> None:
    session.sync.remember(TEXT, origin="inferred")
    session.sync.revise("r1", importance=1, origin="inferred")
    args = {"id": "r1", "expected_revision": 1} | ({"text": "No tea."} if kind == "revise" else {})
    assert_refused(call(session, kind, args), error="revision_conflict", actual_revision=2)


@pytest.mark.parametrize("kind", ["revise", "retract"])
def test_unknown_foreign_and_forgotten_records_are_not_found(session: MemorySession, call: Call, kind: str) -> None:
    foreign = MemorySession(session.store, BOB).sync.remember("Bob's.", id="bobs", origin="inferred").records[0]
    session.sync.remember(TEXT, origin="inferred")
    session.sync.forget("r1")
    more = {"text": "New."} if kind == "revise" else {}
    for number, record_id in enumerate(("r9", foreign.id, "r1", "\x00\ud800")):
        args = {"id": record_id, "expected_revision": 1} | more
        assert_refused(call(session, kind, args, f"call_{number}"), error="not_found")


@pytest.mark.parametrize(
    ("kind", "args", "detail"),
    [
        ("remember", {"text": " \u200b"}, "text"),
        ("remember", {"text": "x" * 100_001}, "text"),
        ("remember", {"text": 7}, "text"),
        ("remember", {"text": {"a": [1]}}, "text"),
        ("remember", {}, "text"),
        ("remember", {"text": TEXT, "kind": "fact"}, "kind"),
        ("remember", {"text": TEXT, "importance": 1.5}, "importance"),
        ("remember", {"text": TEXT, "importance": float("nan")}, "importance"),
        ("recall", {"query": None}, "query"),
        ("recall", {"query": "tea", "kind": "all"}, "kind"),
        ("revise", {"id": "r1", "expected_revision": 1}, "revise"),
        ("revise", {"id": "r1", "expected_revision": 1, "text": " "}, "text"),
        ("revise", {"id": "r1", "text": "New."}, "expected_revision"),
        ("revise", {"id": "r1", "expected_revision": 0, "text": "New."}, "expected_revision"),
        ("retract", {"id": " ", "expected_revision": 1}, "id"),
        ("retract", {"id": "x" * 513, "expected_revision": 1}, "id"),
        ("retract", {"id": "r1", "expected_revision": "now"}, "expected_revision"),
    ],
)
def test_values_that_cannot_be_taken_are_refused_by_their_path(
    session: MemorySession, call: Call, kind: str, args: dict[str, Any], detail: str
) -> None:
    session.sync.remember(TEXT, origin="inferred")
    assert_refused(call(session, kind, args), error="invalid_request", detail=detail)
    assert session.sync.scope_revision() == 1


@pytest.mark.parametrize(
    "forged",
    [
        "scope", "user_id", "origin", "sources", "operation_id", "top_k", "tool_call_id", "runtime", "config",
        "run_manager", "ctx", "self", "context", "args", "kwargs", "id", "links", "metadata", "ttl", "x" * 5_000,
        "\x00",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["remember", "recall"])
def test_nothing_hidden_can_be_forged_through_extra_arguments(
    session: MemorySession, call: Call, kind: str, forged: str
) -> None:
    value = {"tool_call_id": "FORGED", "top_k": 1000, "origin": "asserted"}.get(forged, {"user_id": "bob"})
    needed = {"remember": {"text": TEXT}, "recall": {"query": TEXT}}[kind]
    answer = call(session, kind, needed | {forged: value})
    assert_refused(answer, error="invalid_request", detail=forged.replace("\x00", "\ufffd")[:64])
    assert session.sync.scope_revision() == 0


def test_numbers_that_a_model_wrote_as_strings_are_taken(session: MemorySession, call: Call) -> None:
    session.sync.remember(TEXT, origin="inferred")
    answer = call(session, "retract", {"id": "r1", "expected_revision": "1"}).data
    assert (answer["revision"], answer["status"]) == (2, "retracted")


def test_strings_that_no_store_can_hold_are_mended_and_the_fact_is_kept(session: MemorySession, call: Call) -> None:
    call(session, "remember", {"text": "tea \ud83d\ude00 \x00 \udc00"})
    assert session.sync.get("r1").text == "tea \U0001f600 \ufffd \ufffd"
    assert call(session, "recall", {"query": "tea \x00 \udc00"}).data[0]["id"] == "r1"
    assert not call(session, "remember", {"text": "milk"}, "\x00\ud800").failed
    assert session.sync.get("r2").sources[0].tool_call_id == "\ufffd\ufffd"


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["remember", "recall", "revise", "retract"])
def test_a_store_that_is_down_is_unavailable(session: MemorySession, call: Call, kind: str) -> None:
    session.sync.remember(TEXT, origin="inferred")
    session.store.sync.close()
    args = {
        "remember": {"text": TEXT},
        "recall": {"query": "tea"},
        "revise": {"id": "r1", "expected_revision": 1, "text": "No tea."},
        "retract": {"id": "r1", "expected_revision": 1},
    }[kind]
    assert_refused(call(session, kind, args), error="unavailable")


@pytest.mark.parametrize(
    "answer",
    [ValueError("a secret"), [[1.0, 2.0], [3.0, 4.0]], [["a"]], [[1.0, 2.0, 3.0]]],
    ids=["raises", "wrong count", "strings", "another size than the store's"],
)
def test_a_failed_embedder_is_unavailable_and_logged_by_its_class_alone(
    call: Call, logger: str, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = InMemoryStore()
    MemorySession(store, ADA, embedder=RawEmbedder([[1.0, 0.0]])).sync.remember("Something.")
    session = MemorySession(store, ADA, embedder=RawEmbedder(answer))
    with caplog.at_level(logging.DEBUG, logger=logger):
        assert_refused(call(session, "remember", {"text": TEXT}), error="unavailable")
        assert_refused(call(session, "recall", {"query": TEXT}), error="unavailable")
    started = ("memory_remember: memory failed with ", "memory_recall: memory failed with ")
    assert [record.message.rpartition("with ")[0] + "with " for record in caplog.records] == list(started)
    assert "secret" not in caplog.text
    assert "tea" not in caplog.text


def test_an_id_of_the_host_that_is_taken_is_no_models_mistake(call: Call) -> None:
    session = MemorySession(InMemoryStore(), ADA, new_id=lambda: "same")
    session.sync.remember("First.")
    assert_refused(call(session, "remember", {"text": TEXT}), error="unavailable")


__all__ = ["TEXT", "session", *(name for name in dir() if name.startswith("test_"))]
