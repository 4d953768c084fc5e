"""What enters: wrong strings, sizes and values are refused by name before anything is written, on every path."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from fakes import START, everything, open_memory, refusal, refusals

from vmem_core import Draft, InvalidRequestError, Limits, Link, MemorySession, Source, Store, text_digest

DIGEST = text_digest("x")
SECRET = "SENTINEL-7f3a"
BAD_STRINGS = {"nul": f"{SECRET}\x00", "high surrogate": f"{SECRET} \ud83d", "low surrogate": f"\udc00{SECRET}"}


def entrances(memory: MemorySession, bad: str) -> list[tuple[str, Any]]:
    """Every way that a string can enter, with the path that a refusal names."""
    return [
        ("text", lambda: memory.remember(bad, operation_id="op")),
        ("id", lambda: memory.remember("tea", id=bad, operation_id="op")),
        ("operation_id", lambda: memory.remember("tea", operation_id=bad)),
        ("metadata.a", lambda: memory.remember("tea", metadata={"a": bad}, operation_id="op")),
        ("metadata.a[0].b", lambda: memory.remember("tea", metadata={"a": [{"b": bad}]}, operation_id="op")),
        ("metadata.<key>", lambda: memory.remember("tea", metadata={bad: 1}, operation_id="op")),
        ("metadata.a.<key>", lambda: memory.remember("tea", metadata={"a": {bad: 1}}, operation_id="op")),
        ("source.message_id", lambda: memory.remember("tea", sources=[Source("user", DIGEST, message_id=bad)])),
        ("source.chat_id", lambda: memory.remember("tea", sources=[Source("user", DIGEST, chat_id=bad)])),
        ("source.run_id", lambda: memory.remember("tea", sources=[Source("user", DIGEST, run_id=bad)])),
        ("source.tool_call_id", lambda: memory.remember("tea", sources=[Source("tool", DIGEST, tool_call_id=bad)])),
        ("source.tool_name", lambda: memory.remember("tea", sources=[Source("tool", DIGEST, tool_name=bad)])),
        ("source.uri", lambda: memory.remember("tea", sources=[Source("external", DIGEST, uri=bad)])),
        ("source.digest", lambda: memory.remember("tea", sources=[Source("user", bad)])),
        ("link.relation", lambda: memory.remember("tea", links=[Link(bad, "r")])),
        ("link.record_id", lambda: memory.remember("tea", links=[Link("about", bad)])),
        ("text", lambda: memory.remember_many([Draft("a"), Draft(bad)], operation_id="op")),
        ("text", lambda: memory.revise("held", text=bad, operation_id="op")),
        ("metadata.a", lambda: memory.revise("held", metadata={"a": bad}, operation_id="op")),
        ("record_id", lambda: memory.revise(bad, text="x")),
        ("operation_id", lambda: memory.revise("held", text="x", operation_id=bad)),
        ("record_id", lambda: memory.retract(bad)),
        ("operation_id", lambda: memory.retract("held", operation_id=bad)),
        ("record_id", lambda: memory.forget(bad)),
        ("operation_id", lambda: memory.forget("held", operation_id=bad)),
        ("operation_id", lambda: memory.forget_scope(operation_id=bad)),
        ("text", lambda: memory.recall(bad)),
        ("metadata.a", lambda: memory.recall("tea", metadata={"a": bad})),
        ("metadata.<key>", lambda: memory.recall("tea", metadata={bad: 1})),
        ("record_id", lambda: memory.get(bad)),
        ("record_id", lambda: memory.history(bad)),
        ("operation_id", lambda: memory.receipt(bad)),
        ("cursor", lambda: memory.list(cursor=bad)),
    ]


async def _called(call: Any) -> Any:
    """Values are built inside, so that their refusals come out like those of the verbs."""
    return await call()


@pytest.mark.parametrize("bad", BAD_STRINGS.values(), ids=BAD_STRINGS.keys())
async def test_strings_that_no_store_can_hold_are_refused_everywhere(
    ada: MemorySession, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await ada.remember("tea", id="held")
    before = await everything(ada, "held")
    for path, call in entrances(ada, bad):
        error = await refusal(_called(call))
        assert isinstance(error, InvalidRequestError)
        assert isinstance(error, ValueError)
        assert (error.code, error.path) == ("invalid_request", path)
        assert str(error).startswith(f"{path}: ")
        assert "SENTINEL" not in str(error) + repr(error)
    assert await everything(ada, "held") == before
    assert await ada.receipt("op") is None
    assert "SENTINEL" not in caplog.text


BLANK = ["", " ", "\n\t ", "\u200b", "\u200d\u200d", "\u3000", "\ufeff", "\u2060", "\x01", "\u3164", "\u2800"]


@pytest.mark.parametrize("blank", BLANK, ids=range(len(BLANK)))
async def test_blank_texts_and_ids_are_refused(ada: MemorySession, blank: str) -> None:
    await ada.remember("tea", id="held")
    for path, call in entrances(ada, blank):
        if path.startswith("metadata") or call.__code__ in _blank_is_fine(ada):
            continue
        error = await refusal(_called(call))
        assert isinstance(error, InvalidRequestError)
        assert error.path == path
    assert await ada.scope_revision() == 1


def _blank_is_fine(memory: MemorySession) -> set[Any]:
    """Where a blank string has a meaning: metadata may hold one, and a blank query finds nothing."""
    calls = entrances(memory, "")
    return {call.__code__ for path, call in calls if "recall" in call.__code__.co_names}


async def test_blank_strings_in_metadata_are_kept(ada: MemorySession) -> None:
    metadata = {"": "", " ": [" ", ""], "a": "\u200b"}
    record = (await ada.remember("tea", metadata=metadata)).records[0]
    kept = await ada.get(record.id)
    assert kept is not None
    assert kept.metadata == metadata


# ---------------------------------------------------------------------------------------------------------- limits


async def test_each_limit_is_taken_to_the_last_character_and_no_further(ada: MemorySession) -> None:
    fits: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("text", {"text": "a" * 100_000}, {"text": "a" * 100_001}),
        ("id", {"text": "t", "id": "i" * 512}, {"text": "t", "id": "i" * 513}),
        ("operation_id", {"text": "t", "operation_id": "o" * 512}, {"text": "t", "operation_id": "o" * 513}),
        ("metadata", {"text": "t", "metadata": {"a": "x" * (65_536 - 8)}}, {"text": "t",
        "metadata": {"a": "x" * (65_536 - 7)}}),
        ("sources[0].uri", {"text": "t", "sources": [Source("user", DIGEST, uri="u" * 512)]},
         {"text": "t", "sources": [Source("user", DIGEST, uri="u" * 513)]}),
        ("links[1].record_id", {"text": "t", "links": [Link("about", "r")] * 2},
         {"text": "t", "links": [Link("about", "r"), Link("about", "r" * 513)]}),
        ("links[0].relation", {"text": "t", "links": [Link("r" * 512, "r")]}, {"text": "t",
        "links": [Link("r" * 513, "r")]}),
    ]  # fmt: skip
    for path, fitting, too_much in fits:
        record = (await ada.remember(**fitting)).records[0]
        assert await ada.get(record.id) == record
        before = await ada.scope_revision()
        error = await refusal(ada.remember(**too_much))
        assert isinstance(error, InvalidRequestError)
        assert error.path == path
        assert await ada.scope_revision() == before


async def test_metadata_is_measured_in_bytes_and_levels(ada: MemorySession) -> None:
    deep: Any = 1
    for _ in range(31):
        deep = [deep]
    await ada.remember("tea", metadata={"a": deep})
    for metadata in ({"a": [deep]}, {"a": "\u00e9" * 32_768}, {str(n): n for n in range(10_000)}):
        for error in await refusals(ada.remember("tea", metadata=metadata), ada.revise("r1", metadata=metadata)):
            assert isinstance(error, InvalidRequestError)
            assert error.path.startswith("metadata")
            assert len(str(error)) < 500
    assert await ada.scope_revision() == 1


async def test_limits_can_be_changed_for_a_session(store: Store) -> None:
    memory = open_memory(store, limits=Limits(text_chars=3, id_chars=4, metadata_bytes=10, metadata_depth=2))
    await memory.remember("tea", id="abcd", metadata={"a": [1]})
    for path, error in zip(
        ("text", "id", "metadata", "metadata.a[0]", "drafts[1].text", "text", "record_id", "operation_id"),
        await refusals(
            memory.remember("teas"), memory.remember("tea", id="abcde"),
            memory.remember("tea", metadata={"a": "12345"}),
            memory.remember("tea", metadata={"a": [[]]}), memory.remember_many([Draft("a"), Draft("long")]),
            memory.revise("abcd", text="long"), memory.get("abcde"), memory.forget("abcd", operation_id="12345"),
        ),
        strict=True,
    ):  # fmt: skip
        assert isinstance(error, InvalidRequestError)
        assert error.path == path
    roomy = open_memory(store, limits=Limits(text_chars=200_000, metadata_bytes=2_000_000, metadata_depth=200))
    deep: Any = 1
    for _ in range(198):
        deep = {"a": deep}
    record = (await roomy.remember("t" * 200_000, metadata={"a": deep, "large": "x" * 1_000_000})).records[0]
    assert await roomy.get(record.id) == record
    assert await open_memory(store).get(record.id) == record


# ----------------------------------------------------------------------------------------------------- wrong values

REMEMBER: list[tuple[dict[str, Any], str]] = [
    ({"text": None}, "text"), ({"text": 5}, "text"), ({"text": b"tea"}, "text"), ({"text": ["tea"]}, "text"),
    ({"id": 5}, "id"), ({"kind": "fact"}, "kind"), ({"kind": None}, "kind"), ({"kind": "Semantic"}, "kind"),
    ({"origin": "host"}, "origin"), ({"origin": None}, "origin"), ({"importance": 1.01}, "importance"),
    ({"importance": -0.01}, "importance"), ({"importance": float("nan")}, "importance"),
    ({"importance": "1"}, "importance"),
    ({"importance": True}, "importance"), ({"ttl": timedelta(0)}, "ttl"), ({"ttl": timedelta(seconds=-1)}, "ttl"),
    ({"ttl": 60}, "ttl"), ({"ttl": timedelta.max}, "ttl"), ({"ttl": START}, "ttl"),
    ({"sources": [DIGEST]}, "sources[0]"),
    ({"sources": Source("user", DIGEST)}, "sources"), ({"sources": 5}, "sources"), ({"links": ["r1"]}, "links[0]"),
    ({"links": None}, "links"), ({"links": 5}, "links"), ({"links": Link("about", "r")}, "links"),
    ({"metadata": []}, "metadata"), ({"metadata": "{}"}, "metadata"), ({"metadata": {"a": float("inf")}}, "metadata.a"),
    ({"metadata": {"a": [1, {"b": float("nan")}]}}, "metadata.a[1].b"), ({"metadata": {1: 2}}, "metadata"),
    ({"metadata": {"a": {None: 2}}}, "metadata.a"), ({"metadata": {"a": 2**63}}, "metadata.a"),
    ({"metadata": {"a": -(2**63) - 1}}, "metadata.a"), ({"metadata": {"a": (1, 2)}}, "metadata.a"),
    ({"metadata": {"a": {1, 2}}}, "metadata.a"), ({"metadata": {"a": b"x"}}, "metadata.a"),
    ({"metadata": {"a": START}}, "metadata.a"), ({"metadata": {"a": 1j}}, "metadata.a"),
    ({"metadata": {"a": object()}}, "metadata.a"),
    ({"supersede": "replace"}, "supersede"), ({"supersede": True}, "supersede"), ({"operation_id": 7}, "operation_id"),
]  # fmt: skip


@pytest.mark.parametrize("case", REMEMBER, ids=[f"{n} {path}" for n, (_, path) in enumerate(REMEMBER)])
async def test_wrong_arguments_of_remember_are_named(ada: MemorySession, case: tuple[dict[str, Any], str]) -> None:
    arguments, path = case
    error = await refusal(ada.remember(**{"text": "tea", **arguments}))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path
    assert await ada.scope_revision() == 0


async def test_metadata_that_holds_itself_is_refused(ada: MemorySession) -> None:
    loop: dict[str, Any] = {}
    loop["a"] = loop
    error = await refusal(ada.remember("tea", metadata=loop))
    assert isinstance(error, InvalidRequestError)
    assert error.path.startswith("metadata")
    assert len(str(error)) < 500


REVISE: list[tuple[dict[str, Any], str]] = [
    ({"text": 5}, "text"), ({"kind": "fact"}, "kind"), ({"importance": 2}, "importance"),
    ({"metadata": []}, "metadata"),
    ({"ttl": timedelta(0)}, "ttl"), ({"ttl": timedelta.max}, "ttl"), ({"links": ["x"]}, "links[0]"),
    ({"links": 5}, "links"),
    ({"sources": ["x"]}, "sources[0]"), ({"origin": "x"}, "origin"), ({"expected_revision": 0}, "expected_revision"),
    ({"expected_revision": -1}, "expected_revision"), ({"expected_revision": True}, "expected_revision"),
    ({"expected_revision": "1"}, "expected_revision"), ({"expected_revision": 1.0}, "expected_revision"),
    ({"record_id": None}, "record_id"), ({"record_id": 5}, "record_id"), ({"operation_id": ""}, "operation_id"),
]  # fmt: skip


@pytest.mark.parametrize("case", REVISE, ids=[f"{n} {path}" for n, (_, path) in enumerate(REVISE)])
async def test_wrong_arguments_of_revise_are_named(ada: MemorySession, case: tuple[dict[str, Any], str]) -> None:
    arguments, path = case
    record = (await ada.remember("tea", id="held")).records[0]
    given = {"kind": "working", **arguments}
    error = await refusal(ada.revise(given.pop("record_id", "held"), **given))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path
    assert await ada.history("held") == [record]


async def test_an_expected_revision_beyond_any_integer_column_is_stale(ada: MemorySession) -> None:
    await ada.remember("tea", id="held")
    for error in await refusals(
        ada.revise("held", text="x", expected_revision=2**63), ada.retract("held", expected_revision=2**100)
    ):
        assert error.code == "revision_conflict"


@pytest.mark.parametrize(
    "drafts", [None, "tea", ["tea"], [None], Draft("tea"), [Draft("a"), {"text": "b"}], 5], ids=range(7)
)
async def test_remember_many_takes_drafts_only(ada: MemorySession, drafts: Any) -> None:
    error = await refusal(ada.remember_many(drafts))
    assert isinstance(error, InvalidRequestError)
    assert error.path.startswith("drafts")
    assert await ada.scope_revision() == 0


async def test_remember_many_names_the_draft_at_fault(ada: MemorySession) -> None:
    for path, error in zip(
        (
            "drafts[1].text",
            "drafts[2].metadata",
            "drafts[0].id",
            "drafts[0].sources[0].chat_id",
            "drafts[1].links[0].relation",
        ),
        await refusals(
            ada.remember_many([Draft("a"), Draft("b" * 100_001)]),
            ada.remember_many([Draft("a"), Draft("b"), Draft("c", metadata={"a": "x" * 70_000})]),
            ada.remember_many([Draft("a", "i" * 513)]),
            ada.remember_many([Draft("a", sources=(Source("user", DIGEST, chat_id="c" * 513),))]),
            ada.remember_many([Draft("a"), Draft("b", links=(Link("r" * 513, "x"),))]),
        ),
        strict=True,
    ):
        assert isinstance(error, InvalidRequestError)
        assert error.path == path
    assert await ada.scope_revision() == 0


async def test_a_made_id_passes_the_gate_too(store: Store) -> None:
    for made in ("", "\x00", 5, None, "i" * 513):
        error = await refusal(open_memory(store, new_id=lambda made=made: made).remember("tea"))
        assert isinstance(error, InvalidRequestError)
        assert error.path == "new_id()"


async def test_an_expiry_beyond_the_calendar_is_refused_with_nothing_written(ada: MemorySession) -> None:
    for ttl in (timedelta.max, timedelta(days=3_000_000)):
        error = await refusal(ada.remember("tea", ttl=ttl, operation_id="op"))
        assert isinstance(error, InvalidRequestError)
        assert error.path == "ttl"
    assert await ada.scope_revision() == 0
    far = (await ada.remember("tea", ttl=timedelta(days=365 * 7000))).records[0]
    assert await ada.get(far.id) == far
