"""The readers of other systems' memories: what each makes of what its system keeps, and of what is broken."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, START, Clock, ids, refusal
from langgraph.store.memory import InMemoryStore as LangGraphStore

from vmem_core import (
    ImportResult,
    InMemoryStore,
    InvalidRequestError,
    LegacyRecord,
    MemorySession,
    Scope,
    from_items,
    from_jsonl,
    from_langgraph_store,
    from_mem0,
    import_legacy,
)
from vmem_core.legacy.records import read_time


async def all_of(source: AsyncIterator[LegacyRecord]) -> list[LegacyRecord]:
    return [record async for record in source]


@pytest.fixture
def memory(clock: Clock) -> InMemoryStore:
    return InMemoryStore(clock=clock)


# ---------------------------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    "value",
    [
        1_772_359_200, 1_772_359_200.0, 1_772_359_200_000, 1_772_359_200_000_000, 1_772_359_200_000_000_000,
        "1772359200", "1772359200.0", "1772359200000", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00+01:00",
        "2026-03-01 10:00:00", START, START.replace(tzinfo=None), START.astimezone(),
    ],
    ids=range(14),
)  # fmt: skip
def test_a_time_is_read_in_whatever_form_it_stands(value: Any) -> None:
    assert read_time(value) == datetime(2026, 3, 1, 10, tzinfo=UTC)


def test_dates_and_times_before_1970_are_read() -> None:
    assert read_time("2026-03-01") == read_time("20260301") == datetime(2026, 3, 1, tzinfo=UTC)
    assert read_time(START.date()) == datetime(2026, 3, 1, tzinfo=UTC)
    assert read_time(-86_400) == read_time("-86400") == datetime(1969, 12, 31, tzinfo=UTC)
    assert read_time(None) is None


@pytest.mark.parametrize(
    "value",
    ["", "soon", "2026-13-01", "٣", True, float("nan"), float("inf"), 10**30, -(10**30), [], {}, "1.2.3"],
    ids=str,
)
def test_what_is_no_time_is_said_so(value: Any) -> None:
    with pytest.raises(ValueError, match="time that can be read"):
        read_time(value)


# ---------------------------------------------------------------------------------------------------------- items


async def test_a_mapping_may_name_its_fields_in_snake_or_camel_case_and_its_scope_in_or_beside_it() -> None:
    camel = {"id": "1", "text": "t", "userId": "ada", "createdAt": 5, "mood": "good", "metadata": {"a": 1}}
    snake = {"id": "1", "text": "t", "scope": {"userId": "ada"}, "created_at": 5, "metadata": {"mood": "good", "a": 1}}
    expected = LegacyRecord("1", "t", {"user_id": "ada"}, metadata={"mood": "good", "a": 1}, created_at=5)
    assert await all_of(from_items([camel, snake])) == [expected, expected]
    assert (await all_of(from_items([{"key": 1, "body": "t"}], text="body", id="key")))[0].id == 1


async def test_records_without_ids_get_one_made_of_scope_and_text(memory: InMemoryStore) -> None:
    rows = [{"text": "tea", "user_id": "ada"}, {"text": "tea", "user_id": "ada"}, {"text": "tea", "user_id": "bob"}]
    assert (await import_legacy(from_items(rows), memory)).reasons == {"no_id": 3}
    result = await import_legacy(from_items(rows, id=None), memory)
    assert result == ImportResult(3, 2, 1, {"already_imported": 1})
    assert (await import_legacy(from_items(rows, id=None), memory)).imported == 0


async def test_items_that_are_no_records_are_unreadable_and_counted(memory: InMemoryStore) -> None:
    source: list[Any] = [None, "text", 7, ["id"], {}, {"id": "a", "text": "tea", 5: 6}]
    assert (await import_legacy(source, memory, scope=ADA)).reasons == {
        "unreadable": 4,
        "no_id": 1,
        "invalid_metadata": 1,
    }


# ---------------------------------------------------------------------------------------------------------- jsonl


async def test_a_line_that_is_no_object_is_unreadable_and_the_others_are_imported(
    tmp_path: Path, memory: InMemoryStore
) -> None:
    path = tmp_path / "old.jsonl"
    good = '{"id": %d, "said": "fact", "user_id": "ada"}'
    lines = [b"\xef\xbb\xbf" + (good % 1).encode(), b"", b"{", b"\xff\xfe", b"[1]", b"[" * 100_000, (good % 2).encode()]
    path.write_bytes(b"\r\n".join(lines))
    result = await import_legacy(from_jsonl(path, "said"), memory)
    assert result == ImportResult(6, 2, 4, {"unreadable": 4})


async def test_a_file_that_is_not_there_is_the_systems_own_error(tmp_path: Path, memory: InMemoryStore) -> None:
    with pytest.raises(FileNotFoundError):
        await import_legacy(from_jsonl(tmp_path / "missing.jsonl"), memory)


@pytest.mark.parametrize("path", [None, 7, "", b"x"])
async def test_what_is_no_path_is_refused(memory: InMemoryStore, path: Any) -> None:
    assert isinstance(await refusal(import_legacy(from_jsonl(path), memory)), InvalidRequestError)


# ----------------------------------------------------------------------------------------------------------- mem0

# A memory as get_all of mem0 2.2.1 gives it.
MEM0 = {
    "id": "2f1d9a5e-7e0a-4b9e-8d53-0f6f6a3a3b11", "memory": "Likes green tea", "hash": "5d41402abc4b2a76b9719d911017c5",
    "metadata": {"topic": "drinks"}, "created_at": "2026-02-01T08:00:00.123456+00:00", "updated_at": None,
    "user_id": "ada", "role": "user",
}  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        {"results": [MEM0]}, [MEM0], {"memories": [MEM0]}, [{"results": [MEM0]}, {"results": []}],
        {"results": [MEM0], "relations": [{"source": "ada", "target": "tea"}]},
        {"count": 1, "next": None, "previous": None, "results": [MEM0]},
        [{"id": MEM0["id"], "payload": {"data": MEM0["memory"], "user_id": "ada", "role": "user", "topic": "drinks",
                                        "created_at": MEM0["created_at"]}}],
    ],
    ids=["1.1", "1.0", "export", "several", "graph", "platform", "payload"],
)  # fmt: skip
async def test_every_shape_that_mem0_gives_reads_alike(answer: Any, memory: InMemoryStore) -> None:
    assert (await import_legacy(from_mem0(answer), memory)).imported == 1
    record = (await MemorySession(memory, ADA).list()).records[0]
    assert (record.id, record.text) == (MEM0["id"], "Likes green tea")
    assert record.metadata == {
        "role": "user", "topic": "drinks", "legacy_import": {"created_at": "2026-02-01T08:00:00.123456+00:00"},
    }  # fmt: skip


async def test_a_memory_of_mem0_keeps_every_field_of_its_scope_and_lives_to_the_end_of_its_last_day(
    memory: InMemoryStore,
) -> None:
    scope = {"user_id": "ada", "agent_id": "a", "run_id": "r", "actor_id": "x"}
    rows = [
        {**MEM0, **scope, "id": "today", "expiration_date": "2026-03-01"},
        {**MEM0, "id": "yesterday", "expiration_date": "2026-02-28"},
        {**MEM0, "id": "odd", "expiration_date": "never"},
        {"id": "deleted", "memory": "x", "event": "DELETE"},
        {"id": "nobody's", "memory": "x", "app_id": "app"},
    ]
    result = await import_legacy(from_mem0({"results": rows}), memory)
    assert result.reasons == {"expired": 1, "unreadable_time": 1, "invalidated": 1, "no_scope": 1}
    record = await MemorySession(memory, Scope(**scope)).get("today")
    assert record is not None
    assert record.expires_at == START.replace(hour=0) + timedelta(days=1)


async def test_what_mem0_itself_has_written_is_read(memory: InMemoryStore) -> None:
    path = Path(__file__).parent / "data" / "mem0-get-all-2.2.1.json"  # get_all(show_expired=True), as JSON
    expected = ImportResult(6, 5, 1, {"expired": 1})
    assert await import_legacy(from_mem0(path), memory, dry_run=True) == expected
    assert await import_legacy(from_mem0(path), memory) == expected
    assert await import_legacy(from_mem0(path), memory) == ImportResult(6, 0, 6, {"already_imported": 5, "expired": 1})
    ada, trip = MemorySession(memory, ADA), Scope(user_id="ada", agent_id="concierge", run_id="r1")
    (tea,) = await ada.recall("green tea", top_k=1)
    assert tea.record.text == "Ada prefers green tea."
    assert (tea.record.metadata["topic"], tea.record.metadata["n"]) == ("drinks", 1)
    (voucher,) = await ada.recall("voucher")
    assert voucher.record.expires_at == datetime(2100, 1, 2, tzinfo=UTC)
    assert [record.text for record in (await MemorySession(memory, trip).list()).records] == ["Ada lives in Paris."]


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ({"message": "ok"}, "items"), ({"data": {"memories": []}}, "items"), ({"results": {"a": 1}}, "items"),
        ([{"uuid": "1", "content": "x"}], "items[0]"), ({"results": ["text"]}, "items.results[0]"),
        (7, "items"), (None, "items"),
    ],
)  # fmt: skip
async def test_an_answer_of_another_version_of_mem0_is_refused_by_its_place(
    memory: InMemoryStore, answer: Any, path: str
) -> None:
    error = await refusal(import_legacy(from_mem0(answer), memory))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path
    assert list(await memory.scopes()) == []


async def test_one_page_of_several_is_warned_of(memory: InMemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    await import_legacy(from_mem0({"next": "page=2", "results": [MEM0]}), memory)
    assert [record.getMessage() for record in caplog.records] == [
        "mem0: the answer is one page of several; pass all pages, or what is on the others is missing"
    ]


async def test_an_export_of_mem0_is_read_from_its_file(tmp_path: Path, memory: InMemoryStore) -> None:
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"memories": [MEM0]}), encoding="utf-8")
    assert (await import_legacy(from_mem0(path), memory)).imported == 1
    path.write_text('{"memories": [', encoding="utf-8")
    error = await refusal(import_legacy(from_mem0(str(path)), memory))
    assert str(error) == "path: export.json is not JSON in UTF-8"


# ------------------------------------------------------------------------------------------------------ LangGraph


@pytest.fixture
def langgraph() -> LangGraphStore:
    """A store with what langmem's tools and manager put there."""
    store = LangGraphStore()
    store.put(("memories", "ada"), "k1", {"content": "Ada likes tea."})
    store.put(("memories", "ada"), "k2", {"kind": "Memory", "content": {"content": "Ada lives in Paris."}})
    store.put(("memories", "ada"), "k3", {"kind": "Profile", "content": {"name": "Ada", "city": "Zürich"}, "n": 1})
    store.put(("memories", "ada", "work"), "k4", {"content": "below"})
    store.put(("memories", "ada2"), "k5", {"content": "of another user"})
    return store


async def test_a_namespace_of_langmem_is_imported_into_the_scope_asked_for(
    langgraph: LangGraphStore, memory: InMemoryStore
) -> None:
    source = from_langgraph_store(langgraph, ("memories", "ada"))
    assert (await import_legacy(source, memory)).reasons == {"no_scope": 3}
    source = from_langgraph_store(langgraph, ("memories", "ada"))
    assert await import_legacy(source, memory, scope=ADA) == ImportResult(3, 3, 0, {})
    session = MemorySession(memory, ADA)
    assert {record.id: record.text for record in (await session.list()).records} == {
        "k1": "Ada likes tea.", "k2": "Ada lives in Paris.", "k3": '{"name":"Ada","city":"Zürich"}',
    }  # fmt: skip
    third = await session.get("k3")
    assert third is not None
    noted = third.metadata.pop("legacy_import")
    assert (third.metadata, noted["kind"], set(noted)) == ({"n": 1}, "Profile", {"kind", "created_at", "updated_at"})
    again = await import_legacy(from_langgraph_store(langgraph, ["memories", "ada"]), memory, scope=ADA)
    assert again == ImportResult(3, 0, 3, {"already_imported": 3})


async def test_many_namespaces_are_imported_each_into_the_scope_that_it_is_given(
    langgraph: LangGraphStore, memory: InMemoryStore
) -> None:
    def scope_of(namespace: tuple[str, ...]) -> Scope | None:
        return Scope(user_id=namespace[1]) if len(namespace) == 2 else None

    source = from_langgraph_store(langgraph, ("memories",), scope_of=scope_of)
    assert await import_legacy(source, memory) == ImportResult(5, 4, 1, {"no_scope": 1})
    assert ids((await MemorySession(memory, Scope(user_id="ada2")).list()).records) == ["k5"]


async def test_all_pages_of_a_namespace_are_read(memory: InMemoryStore) -> None:
    store = LangGraphStore()
    for n in range(1_203):
        store.put(("m",), str(n), {"content": f"fact {n}"})
    assert (await import_legacy(from_langgraph_store(store, ("m",)), memory, scope=ADA)).imported == 1_203


@pytest.mark.parametrize("namespace", ["memories", ("",), (1,), None])
async def test_what_is_no_namespace_or_store_is_refused(
    langgraph: LangGraphStore, memory: InMemoryStore, namespace: Any
) -> None:
    error = await refusal(import_legacy(from_langgraph_store(langgraph, namespace), memory))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "namespace"
    assert str(await refusal(import_legacy(from_langgraph_store({}, ("m",)), memory))).startswith("store: ")
