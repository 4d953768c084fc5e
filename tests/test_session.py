"""The session: its arguments, listeners, the sync verbs, and that nothing it logs, traces or raises holds a text."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fakes import ADA, BOB, Clock, FakeEmbedder, Listener, RawEmbedder, in_order, open_memory, refusals, texts

from vmem_core import (
    Draft,
    Embeddings,
    ForgetEvent,
    InMemoryStore,
    InvalidRequestError,
    MemorySession,
    Store,
    UnsupportedError,
    VmemError,
    export_jsonl,
    import_jsonl,
    import_legacy,
    run_sync,
    text_digest,
)
from vmem_core.logs import log

SECRET = "SENTINEL-7f3a"


# ------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"scope": None}, "scope"), ({"scope": {"user_id": "ada"}}, "scope"), ({"scope": "ada"}, "scope"),
        ({"store": None}, "store"), ({"store": "memory.db"}, "store"), ({"store": object()}, "store"),
        ({"embedder": 5}, "embedder"), ({"embedder": "model"}, "embedder"), ({"on_forget": 5}, "on_forget"),
        ({"on_forget": [None]}, "on_forget"), ({"on_forget": "listener"}, "on_forget"),
        ({"on_forget": None}, "on_forget"),
        ({"limits": {"text_chars": 5}}, "limits"), ({"new_id": "r1"}, "new_id"),
        ({"max_conflict_retries": 0}, "max_conflict_retries"), ({"max_conflict_retries": True}, "max_conflict_retries"),
    ],
    ids=range(16),
)  # fmt: skip
def test_wrong_arguments_of_a_session_are_named(arguments: dict[str, Any], path: str) -> None:
    given: dict[str, Any] = {"store": InMemoryStore(), "scope": ADA, **arguments}
    with pytest.raises(InvalidRequestError) as caught:
        MemorySession(given.pop("store"), given.pop("scope"), **given)
    assert caught.value.path == path


@pytest.mark.parametrize("use", [
    lambda store: MemorySession(store, ADA),
    lambda store: run_sync(anext(export_jsonl(store, ADA))),
    lambda store: run_sync(import_jsonl(store, [])),
    lambda store: run_sync(import_legacy([], store)),
], ids=["session", "export", "import", "legacy"])  # fmt: skip
def test_the_sync_side_of_a_store_is_refused_where_a_store_is_wanted(use: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidRequestError, match=r"not its \.sync$") as caught:
        use(InMemoryStore().sync)
    assert caught.value.path == "store"


def test_a_session_shows_whose_and_where_and_nothing_else() -> None:
    store = InMemoryStore()
    memory = MemorySession(store, ADA, embedder=FakeEmbedder())
    assert memory.scope == ADA
    assert memory.store is store
    assert "ada" in repr(memory)
    assert repr(store) in repr(memory)


def test_one_listener_may_stand_alone_or_in_a_list_or_tuple() -> None:
    for listeners in (Listener(), [Listener()], (Listener(), Listener()), [], ()):
        memory = MemorySession(InMemoryStore(), ADA, on_forget=listeners).sync
        memory.remember("tea", id="a")
        heard = [listeners] if isinstance(listeners, Listener) else list(listeners)
        assert memory.forget("a").redaction == ("complete" if heard else "none")
        assert [len(one.events) for one in heard] == [1] * len(heard)


async def test_made_ids_are_uuids_that_sort_by_time(store: Store) -> None:
    memory = open_memory(store)
    results = [await memory.remember("tea") for _ in range(20)]
    made = [result.records[0].id for result in results]
    assert len({*made, *(result.receipt.operation_id for result in results)}) == 40
    assert {uuid.UUID(one).version for one in made} == {7}
    assert [one[:13] for one in made] == sorted(one[:13] for one in made)


async def test_a_session_keeps_no_state_between_calls(store: Store) -> None:
    first, second = open_memory(store), open_memory(store)
    record = (await first.remember("tea")).records[0]
    await second.revise(record.id, text="coffee")
    assert texts(await first.recall("coffee")) == ["coffee"]
    assert await first.scope_revision() == await second.scope_revision() == 2


# -------------------------------------------------------------------------------------------------------- sync verbs


def test_the_sync_verbs_are_the_async_ones_with_the_same_signature() -> None:
    memory = MemorySession(InMemoryStore(), ADA)
    verbs = [
        name
        for name, verb in inspect.getmembers(MemorySession, inspect.iscoroutinefunction)
        if not name.startswith("_")
    ]
    assert {"remember", "remember_many", "revise", "retract", "forget", "forget_scope", "recall", "get", "history",
            "receipt", "list", "count", "scope_revision"} <= set(verbs)  # fmt: skip
    for name in verbs:
        asynchronous, synchronous = getattr(MemorySession, name), getattr(memory.sync, name)
        assert not inspect.iscoroutinefunction(synchronous)
        assert list(inspect.signature(synchronous).parameters) == list(inspect.signature(asynchronous).parameters)[1:]
        assert synchronous.__doc__ == asynchronous.__doc__


def test_sync_and_async_give_equal_answers() -> None:
    memory = MemorySession(InMemoryStore(clock=Clock()), ADA, embedder=FakeEmbedder()).sync
    record = memory.remember("tea", id="a", operation_id="op").records[0]
    assert memory.remember("tea", id="a", operation_id="op").replayed is True
    assert memory.get("a") == record
    assert texts(memory.recall("tea")) == ["tea"]
    with pytest.raises(InvalidRequestError):
        memory.remember("")
    assert memory.remember_many([Draft("b")]).receipt.scope_revision == memory.scope_revision() == 2


async def test_sync_verbs_work_inside_a_running_loop(store: Store) -> None:
    memory = open_memory(store, embedder=FakeEmbedder(), on_forget=Listener()).sync
    record = memory.remember("tea").records[0]
    assert texts(memory.recall("tea")) == ["tea"]
    assert memory.forget(record.id).redaction == "complete"
    assert store.sync.scope_revision(ADA) == 2  # type: ignore[attr-defined]


async def test_sync_verbs_work_from_many_threads_at_once(store: Store) -> None:
    memory = open_memory(store).sync
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(5):
                memory.remember(f"text {number} {n}", operation_id=f"op {number} {n}")
                memory.recall("text")
        except BaseException as error:  # noqa: BLE001 - handed to the test below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert errors == []
    assert memory.count() == 40


async def test_one_store_serves_several_event_loops(store: Store) -> None:
    memory = open_memory(store, embedder=FakeEmbedder())
    await memory.remember("tea")
    counts = [await asyncio.to_thread(asyncio.run, _remember_and_count(memory)) for _ in range(3)]
    assert counts == [2, 3, 4]
    assert await memory.count() == 4


async def _remember_and_count(memory: MemorySession) -> int:
    await memory.remember("coffee")
    return await memory.count()


async def test_a_sync_verb_in_an_async_callback_says_what_to_do_instead_of_waiting_for_ever(store: Store) -> None:
    def inside(memory: MemorySession):
        async def embed(asked: Sequence[str], *, purpose: str) -> Embeddings:
            memory.sync.count()
            return Embeddings([[1.0]] * len(asked), "m")

        return embed

    memory = open_memory(store, embedder=inside(open_memory(store)))
    with pytest.raises(UnsupportedError, match="await count"):
        memory.sync.remember("tea")
    assert await memory.scope_revision() == 0


async def test_a_sync_callback_may_use_the_sync_verbs(store: Store) -> None:
    def embed(asked: Sequence[str], *, purpose: str) -> Embeddings:
        assert open_memory(store, BOB).sync.count() == 0
        return Embeddings([[1.0]] * len(asked), "m")

    heard: list[int] = []
    memory = open_memory(store, embedder=embed, on_forget=lambda event: heard.append(open_memory(store).sync.count()))
    memory.sync.remember("tea", id="a")
    assert memory.sync.forget("a").redaction == "complete"
    await memory.remember("tea", id="b")
    assert (await memory.forget("b")).redaction == "complete"
    assert heard == [0, 0]


def test_the_facade_has_the_public_attributes_and_no_others() -> None:
    memory = MemorySession(InMemoryStore(), ADA)
    assert memory.sync.scope == ADA
    for name in ("rememeber", "_write", "_store"):
        with pytest.raises(AttributeError, match=name):
            getattr(memory.sync, name)


# -------------------------------------------------------------------------------------------- nothing holds a text


def secret_calls(memory: MemorySession) -> list[Any]:
    """Calls that are refused, each with a text in its arguments."""
    return [
        memory.remember(f"{SECRET}\x00"), memory.remember(SECRET, id="held"), memory.remember(SECRET * 10_000),
        memory.remember(SECRET, kind=SECRET), memory.remember(SECRET, metadata={"a": {SECRET}}),  # type: ignore[arg-type]
        memory.remember(SECRET, origin=SECRET), memory.remember(SECRET, supersede=SECRET),  # type: ignore[arg-type]
        memory.remember(SECRET, sources=[SECRET]), memory.remember(SECRET, links=[SECRET]),  # type: ignore[list-item]
        memory.remember(SECRET, ttl=SECRET), memory.remember(SECRET, importance=SECRET),  # type: ignore[arg-type]
        memory.remember(SECRET, operation_id="used"), memory.remember_many([Draft(SECRET, "held")]),
        memory.remember_many([SECRET]), memory.revise("unknown", text=SECRET),
        memory.revise("held", text=SECRET, expected_revision=9),  # type: ignore[list-item]
        memory.revise("held", text=f"{SECRET}\ud83d"), memory.revise("held", text=SECRET, operation_id="used"),
        memory.revise("held", text=SECRET, by_model=True), memory.recall(f"{SECRET}\x00"),
        memory.recall(SECRET, kind=SECRET),  # type: ignore[arg-type]
        memory.recall(SECRET, top_k=0), memory.recall(SECRET, metadata={"a": [SECRET, object()]}),
        memory.list(cursor=SECRET), memory.list(kind=SECRET), memory.remember("x", metadata={"a": float("nan")}),  # type: ignore[arg-type]
    ]  # fmt: skip


async def test_no_error_and_no_log_holds_a_text(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    memory = open_memory(store, on_forget=Listener(failure=RuntimeError(SECRET)))
    await memory.remember(SECRET, id="held", operation_id="used", metadata={"a": SECRET})
    await memory.recall(SECRET)
    for error in await refusals(*secret_calls(memory)):
        assert error.code == error.code.lower()
        assert SECRET not in str(error) + repr(error) + repr(error.__dict__)
        assert SECRET not in str(error.__cause__)
    await memory.revise("held", text=f"{SECRET}!")
    await memory.forget("held")
    assert SECRET not in caplog.text
    assert not any(SECRET in repr(record.__dict__) for record in caplog.records)
    assert text_digest(SECRET) not in caplog.text


async def test_embedders_faults_are_told_without_the_text(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for answer in ([], [["a"]], [[1.0], [2.0]], None):
        for error in await refusals(open_memory(store, embedder=RawEmbedder(answer)).remember(SECRET)):
            assert SECRET not in str(error)
    assert SECRET not in caplog.text


def test_the_librarys_logger_is_silent_by_default() -> None:
    logger = log()
    assert logger is logging.getLogger("vmem_core")
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    assert logger.level == logging.NOTSET
    assert logger.propagate is True


async def test_spans_hold_counts_and_names_and_no_text(store: Store) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    processors = pytest.importorskip("opentelemetry.sdk.trace.export")
    exporter = export.InMemorySpanExporter()
    if not isinstance(trace.get_tracer_provider(), sdk.TracerProvider):
        trace.set_tracer_provider(sdk.TracerProvider())
    trace.get_tracer_provider().add_span_processor(processors.SimpleSpanProcessor(exporter))
    memory = open_memory(store, embedder=FakeEmbedder())
    await in_order(
        memory.remember(SECRET, id="a"), memory.remember_many([Draft(f"{SECRET}!"), Draft("b")]), memory.recall(SECRET),
        memory.revise("a", text=f"{SECRET}?"), memory.retract("a"), memory.forget("a"), memory.forget_scope(),
    )  # fmt: skip
    await refusals(memory.retract("unknown"), memory.remember(SECRET, id="a"))
    spans = [span for span in exporter.get_finished_spans() if span.name.startswith("vmem.memory.")]
    verbs = [
        "remember",
        "remember_many",
        "recall",
        "revise",
        "retract",
        "forget",
        "forget_scope",
        "retract",
        "remember",
    ]
    assert [span.name for span in spans] == [f"vmem.memory.{verb}" for verb in verbs]
    assert [span.attributes["vmem.memory.operation"] for span in spans] == verbs
    counts = [span.attributes.get("vmem.memory.record_count") for span in spans]
    assert counts == [1, 2, 3, 1, 1, 1, 2, None, None]
    assert [span.attributes["vmem.memory.conflict_retries"] for span in spans[:7]] == [0] * 7
    assert [span.attributes["vmem.memory.embedding_generation"] for span in spans[:4]] == [1] * 4
    assert [span.status.description for span in spans[7:]] == ["RecordNotFoundError", "RecordConflictError"]
    assert SECRET not in "".join(span.to_json() for span in spans)


# ------------------------------------------------------------------------------------------------------------ errors


def test_every_error_has_a_code_its_fields_and_survives_pickling() -> None:
    import pickle

    import vmem_core

    errors = {
        vmem_core.InvalidRequestError("must not be blank", path="text"): ("invalid_request", {"path": "text"}),
        vmem_core.OperationConflictError("op"): ("operation_conflict", {"operation_id": "op"}),
        vmem_core.RevisionConflictError(1, 2, 3): (
            "revision_conflict", {"expected_revision": 1, "actual_revision": 2, "attempts": 3}),
        vmem_core.RecordConflictError("r"): ("record_conflict", {"record_id": "r"}),
        vmem_core.RecordNotFoundError("r"): ("record_not_found", {"record_id": "r"}),
        vmem_core.AssertedRecordError("r"): ("asserted_record", {"record_id": "r"}),
        vmem_core.EmbeddingMismatchError("a", 1, "b", 2): (
            "embedding_mismatch", {"active_model": "a", "active_dims": 1, "model": "b", "dims": 2}),
        vmem_core.BudgetExceededError("x", code="price_unknown"): ("price_unknown", {"code": "price_unknown"}),
        vmem_core.SchemaVersionError(2, 1): ("schema_version", {"found": 2, "supported": 1}),
        vmem_core.StoreUnavailableError("x", retryable=True): ("store_unavailable", {"retryable": True}),
        vmem_core.UnsupportedError("x"): ("unsupported", {}),
    }  # fmt: skip
    assert {type(error) for error in errors} == set(VmemError.__subclasses__())
    for error, (code, fields) in errors.items():
        again = pickle.loads(pickle.dumps(error))
        for one in (error, again):
            assert (one.code, {name: getattr(one, name) for name in one.fields}) == (code, fields)
            assert str(one) == str(error)
            assert isinstance(one, VmemError)
    assert issubclass(vmem_core.InvalidRequestError, ValueError)
    assert issubclass(vmem_core.RecordNotFoundError, LookupError)


async def test_plain_callbacks_that_use_sync_never_wait_for_each_other(store: Store) -> None:
    """Each holds a thread while it needs another one: in a pool with an end all would stand still."""
    memory = open_memory(store, embedder=FakeEmbedder())
    await memory.remember("tea")
    meeting = threading.Barrier(40)

    def listener(event: ForgetEvent) -> None:
        meeting.wait(timeout=60)
        assert memory.sync.count() == 1

    forgetting = open_memory(store, on_forget=listener)
    for number in range(40):
        await forgetting.remember(f"coffee {number}", id=f"c{number}")
    await asyncio.gather(*(forgetting.forget(f"c{number}") for number in range(40)))
