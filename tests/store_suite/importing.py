"""Import: what becomes of legacy records, what is skipped and why, and that it can be run again without harm."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from fakes import ADA, BOB, START, Clock, FakeEmbedder, everything, ids, open_memory, refusal, texts

from vmem_core import (
    Change,
    ImportResult,
    InvalidRequestError,
    LegacyRecord,
    MemorySession,
    Receipt,
    Record,
    Scope,
    Source,
    Store,
    import_legacy,
    text_digest,
)

OLD = START - timedelta(days=400)


def legacy(record_id: Any = "m-1", text: Any = "Ada prefers tea.", scope: Any = ADA, **more: Any) -> LegacyRecord:
    return LegacyRecord(record_id, text, scope, **more)


async def test_a_legacy_record_becomes_revision_one_under_its_own_operation(store: Store, ada: MemorySession) -> None:
    old = legacy(kind="episodic", importance=0.5, metadata={"topic": "drinks"}, created_at=OLD, updated_at=OLD)
    result = await import_legacy([old], store)
    assert result == ImportResult(1, 1, 0, {})
    times = {"created_at": OLD.isoformat(), "updated_at": OLD.isoformat()}
    assert await ada.history("m-1") == [
        Record(
            id="m-1", revision=1, scope=ADA, text="Ada prefers tea.", kind="episodic", origin="inferred",
            status="active", sources=(Source("host", text_digest("Ada prefers tea.")),), links=(), importance=0.5,
            metadata={"topic": "drinks", "legacy_import": times}, created_at=START, recorded_at=START, expires_at=None,
            operation_id="import:m-1", scope_revision=1,
        )
    ]  # fmt: skip
    assert await ada.receipt("import:m-1") == Receipt(
        "import:m-1", "import", ADA, 1, START, (Change("m-1", 1, "create"),)
    )
    assert ids(await ada.recall("what does she prefer?", metadata={"topic": "drinks"})) == ["m-1"]


async def test_each_record_has_a_receipt_and_a_revision_of_its_own_in_the_order_of_the_source(
    store: Store, ada: MemorySession
) -> None:
    result = await import_legacy([legacy(f"m-{n}", f"fact {n}") for n in range(7)], store, batch_size=3)
    assert (result.imported, await ada.scope_revision()) == (7, 7)
    assert ids((await ada.list()).records) == [f"m-{n}" for n in reversed(range(7))]
    for n in range(7):
        record = await ada.get(f"m-{n}")
        receipt = await ada.receipt(f"import:m-{n}")
        assert record is not None
        assert receipt is not None
        assert record.scope_revision == receipt.scope_revision == n + 1
    assert ids(await ada.recall("fact 3", at_scope_revision=4))[0] == "m-3"


async def test_records_keep_their_own_scopes_and_those_without_one_get_the_one_asked_for(
    store: Store, ada: MemorySession, bob: MemorySession
) -> None:
    chat = Scope(user_id="ada", chat_id="c1")
    source = [
        legacy("a"), legacy("b", scope=BOB), legacy("c", scope={"user_id": "ada", "chat_id": "c1"}),
        legacy("d", scope=None), legacy("e", scope={}), legacy("f", scope={"user_id": None, "agent_id": ""}),
    ]  # fmt: skip
    assert await import_legacy(source, store, dry_run=True) == ImportResult(6, 3, 3, {"no_scope": 3})
    result = await import_legacy(source, store, scope=ADA)
    assert result == ImportResult(6, 5, 1, {"other_scope": 1})
    assert ids((await ada.list()).records) == ["f", "e", "d", "a"]
    assert ids((await open_memory(store, chat).list()).records) == ["c"]
    assert await bob.count() == 0


async def test_an_import_that_is_run_again_writes_nothing_and_counts_replays_as_skipped(
    store: Store, ada: MemorySession
) -> None:
    source = [legacy(f"m-{n}", created_at=OLD, metadata={"b": 1, "a": [n]}) for n in range(5)]
    await import_legacy(source, store, batch_size=2)
    before = await everything(ada, "m-1")
    assert await import_legacy(source, store) == ImportResult(5, 0, 5, {"already_imported": 5})
    assert await everything(ada, "m-1") == before
    seen_since = [legacy(f"m-{n}", created_at=OLD, metadata={"a": [n], "b": 1}, last_accessed_at=OLD) for n in range(5)]
    assert (await import_legacy(seen_since, store)).reasons == {"already_imported": 5}
    assert (await import_legacy(source, store, operation_prefix="again")).reasons == {"taken": 5}


async def test_a_record_that_changed_since_is_skipped_with_a_warning_that_holds_no_text(
    store: Store, ada: MemorySession, caplog: pytest.LogCaptureFixture
) -> None:
    await import_legacy([legacy("m-1"), legacy("m-2"), legacy("m-3")], store)
    changed = [legacy("m-1", "Ada prefers espresso."), legacy("m-2", metadata={"espresso": 1}), legacy("m-3")]
    with caplog.at_level(logging.WARNING, logger="vmem_core"):
        result = await import_legacy(changed, store)
    assert result == ImportResult(3, 0, 3, {"already_imported": 1, "changed": 2})
    assert [record.getMessage() for record in caplog.records if record.name == "vmem_core"] == [
        "import: 2 records have changed in the source since they were imported and were skipped; revise them in this "
        "store instead"
    ]
    assert texts((await ada.list()).records) == ["Ada prefers tea."] * 3


async def test_what_is_expired_or_invalid_by_the_clock_of_the_store_is_skipped(
    store: Store, ada: MemorySession, clock: Clock
) -> None:
    later, now = START + timedelta(days=1), START
    source = [
        legacy("gone", expires_at=now), legacy("wrong", invalid_at=now), legacy("both", expires_at=OLD, invalid_at=OLD),
        legacy("soon", expires_at=later), legacy("soon wrong", invalid_at=later), legacy("valid later", valid_at=later),
    ]  # fmt: skip
    result = await import_legacy(source, store)
    assert result == ImportResult(6, 3, 3, {"expired": 2, "invalidated": 1})
    record = await ada.get("soon")
    assert record is not None
    assert record.expires_at == later
    clock.step(days=1)
    assert await ada.get("soon") is None
    assert (await import_legacy(source, store)).reasons == {"already_imported": 3, "expired": 2, "invalidated": 1}


async def test_an_id_that_is_taken_or_forgotten_is_skipped_and_fails_no_other(
    store: Store, ada: MemorySession, bob: MemorySession
) -> None:
    await ada.remember("held by Ada", id="held")
    await ada.remember("forgotten by Ada", id="gone")
    await ada.forget("gone")
    await bob.remember("held by Bob", id="foreign")
    await bob.remember("forgotten by Bob", id="foreign gone")
    await bob.forget("foreign gone")
    source = [legacy(name) for name in ("held", "gone", "foreign", "new", "foreign gone")]
    assert await import_legacy(source, store) == ImportResult(5, 1, 4, {"forgotten": 1, "taken": 3})
    assert ids((await ada.list()).records) == ["new", "held"]
    assert await ada.receipt("import:held") is None


async def test_an_imported_record_that_was_forgotten_never_comes_back(store: Store, ada: MemorySession) -> None:
    await import_legacy([legacy("m-1")], store)
    await ada.forget("m-1")
    assert (await import_legacy([legacy("m-1")], store)).reasons == {"already_imported": 1}
    assert (await import_legacy([legacy("m-1", "other")], store)).reasons == {"already_imported": 1}
    assert (await import_legacy([legacy("m-1")], store, operation_prefix="new")).reasons == {"forgotten": 1}
    assert await ada.history("m-1") == []


@pytest.mark.parametrize("batch_size", [1, 3, 500])
async def test_of_records_with_one_id_the_first_is_imported_and_a_dry_run_says_so_too(
    store: Store, ada: MemorySession, batch_size: int
) -> None:
    source = [
        legacy("a", "one"), legacy("b"), legacy("a", "one"), legacy("a", "two"), legacy("a", scope=BOB),
        legacy("a", "two", expires_at=OLD), legacy("a", "one", invalid_at=OLD), legacy("a", scope=BOB, expires_at=OLD),
    ]  # fmt: skip
    expected = ImportResult(8, 2, 6, {"already_imported": 1, "changed": 3, "taken": 2})
    assert await import_legacy(source, store, batch_size=batch_size, dry_run=True) == expected
    assert await ada.scope_revision() == 0
    assert list(await store.scopes()) == []
    assert await import_legacy(source, store, batch_size=batch_size) == expected
    assert texts(await ada.history("a")) == ["one"]
    assert list(await store.scopes()) == [ADA]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (legacy(None), "no_id"), (legacy(" "), "no_id"), (legacy("a\x00b"), "invalid_id"),
        (legacy("\ud800"), "invalid_id"), (legacy("x" * 506), "invalid_id"), (legacy(True), "invalid_id"),
        (legacy(["a"]), "invalid_id"), (legacy(text=None), "blank"), (legacy(text=" \u200b\n"), "blank"),
        (legacy(text={"a": 1}), "unreadable"), (legacy(text="x" * 100_001), "too_long"),
        (legacy(scope=None), "no_scope"), (legacy(scope="ada"), "invalid_scope"),
        (legacy(scope={"user_id": "\x00"}), "invalid_scope"), (legacy(scope={"user_id": "x" * 513}), "invalid_scope"),
        (legacy(scope={"user_id": " ", "chat_id": "c"}), "invalid_scope"),
        (legacy(scope={"user_id": 1.5}), "invalid_scope"), (legacy(metadata="{}"), "invalid_metadata"),
        (legacy(metadata={"n": float("nan")}), "invalid_metadata"), (legacy(metadata={1: 2}), "invalid_metadata"),
        (legacy(metadata={"a": "x" * 70_000}), "invalid_metadata"), (legacy(expires_at="soon"), "unreadable_time"),
        (legacy(invalid_at=float("nan")), "unreadable_time"), (legacy(expires_at=True), "unreadable_time"),
        (legacy(fault="unreadable"), "unreadable"),
    ],
)  # fmt: skip
async def test_a_record_that_cannot_be_kept_is_skipped_for_a_reason_of_its_own(
    store: Store, ada: MemorySession, record: LegacyRecord, reason: str
) -> None:
    result = await import_legacy([legacy("good"), record, legacy("better")], store)
    assert result == ImportResult(3, 2, 1, {reason: 1})
    assert ids((await ada.list()).records) == ["better", "good"]


async def test_what_can_be_kept_of_an_odd_record_is_kept(store: Store, ada: MemorySession) -> None:
    odd = legacy(
        7, "tea\x00 and \ud83d", {"user_id": "ada"}, kind="preference", importance=7, created_at="some day",
        updated_at=START + timedelta(days=999), metadata={"k\x00": ["v\ud800"], "legacy_import": {"from": "elsewhere"}},
    )  # fmt: skip
    assert (await import_legacy([odd], store)).imported == 1
    record = await ada.get("7")
    assert record is not None
    assert (record.text, record.kind, record.importance) == ("tea\ufffd and \ufffd", "semantic", None)
    assert record.metadata == {
        "k\ufffd": ["v\ufffd"],
        "legacy_import": {
            "created_at": "some day", "updated_at": (START + timedelta(days=999)).isoformat(), "kind": "preference",
            "importance": 7, "legacy_import": {"from": "elsewhere"},
        },
    }  # fmt: skip
    assert (await import_legacy([odd], store)).reasons == {"already_imported": 1}


async def failing(many: int, error: Exception) -> AsyncIterator[LegacyRecord]:
    for n in range(many):
        yield legacy(f"m-{n}")
    raise error


async def test_a_source_that_fails_half_way_leaves_what_was_read_and_says_how_far_it_came(
    store: Store, ada: MemorySession
) -> None:
    failure = OSError("the disk is gone")
    with pytest.raises(OSError, match="the disk is gone") as raised:
        await import_legacy(failing(5, failure), store, batch_size=2)
    assert raised.value is failure
    assert raised.value.__notes__ == [
        "import: the source failed after record 5; 5 of them are imported, 0 skipped; what is imported stays, run the "
        "import again to go on"
    ]
    assert await ada.count() == 5
    result = await import_legacy([legacy(f"m-{n}") for n in range(8)], store)
    assert result == ImportResult(8, 3, 5, {"already_imported": 5})


async def test_progress_is_told_after_each_batch_with_the_total_where_the_source_knows_it(store: Store) -> None:
    told: list[tuple[int, int | None]] = []
    source = [legacy(f"m-{n}") for n in range(5)]
    await import_legacy(source, store, batch_size=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 5), (4, 5), (5, 5)]
    told.clear()
    await import_legacy(iter(source), store, batch_size=5, progress=lambda done, total: told.append((done, total)))
    assert told == [(5, None), (5, None)]


async def test_an_import_leaves_embedding_to_whoever_reembeds(store: Store, embedder: FakeEmbedder) -> None:
    seeing = open_memory(store, embedder=embedder)
    await seeing.remember("Ada drinks coffee")
    await import_legacy([legacy("m-1", "Ada drinks tea")], store)
    assert len(embedder.calls) == 1
    found = await seeing.recall("tea")
    assert [(hit.record.id, hit.vector_rank) for hit in found if hit.record.id == "m-1"] == [("m-1", None)]


async def test_an_imported_record_lives_on_like_any_other(store: Store, ada: MemorySession) -> None:
    await import_legacy([legacy("m-1", created_at=OLD), legacy("m-2")], store)
    revised = (await ada.revise("m-1", text="Ada prefers coffee.", expected_revision=1)).records[0]
    assert (revised.revision, revised.origin, revised.scope_revision) == (2, "asserted", 3)
    assert revised.metadata == {"legacy_import": {"created_at": OLD.isoformat()}}
    assert (await import_legacy([legacy("m-1", created_at=OLD)], store)).reasons == {"already_imported": 1}
    await ada.retract("m-2")
    assert ids(await ada.recall("tea coffee")) == ["m-1"]
    assert (await ada.forget("m-1")).revisions == (1, 2)


async def test_origin_and_prefix_are_the_callers_to_choose(store: Store, ada: MemorySession) -> None:
    await import_legacy([legacy("m-1")], store, origin="asserted", operation_prefix="mem0")
    record = await ada.get("m-1")
    assert record is not None
    assert (record.origin, record.operation_id) == ("asserted", "mem0:m-1")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"scope": {"user_id": "ada"}}, "scope"), ({"operation_prefix": " "}, "operation_prefix"),
        ({"operation_prefix": "x" * 513}, "operation_prefix"), ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 10_001}, "batch_size"), ({"origin": "guessed"}, "origin"), ({"dry_run": 1}, "dry_run"),
        ({"progress": "bar"}, "progress"), ({"limits": None}, "limits"),
    ],
)  # fmt: skip
async def test_a_wrong_argument_of_an_import_is_refused(store: Store, arguments: dict[str, Any], path: str) -> None:
    error = await refusal(import_legacy([legacy()], store, **arguments))
    assert isinstance(error, InvalidRequestError)
    assert error.path == path
    assert list(await store.scopes()) == []


@pytest.mark.parametrize("source", [None, 7, object()])
async def test_a_source_that_is_no_iterable_is_refused(store: Store, source: Any) -> None:
    error = await refusal(import_legacy(source, store))
    assert isinstance(error, InvalidRequestError)
    assert error.path == "source"
