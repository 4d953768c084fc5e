"""The sync side: the same verbs, from scripts, threads, running loops and callbacks, and never a deadlock."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes import ADA, FakeEmbedder, open_memory, texts
from processes import run_script

from vmem_core import (
    ForgetEvent,
    InMemoryStore,
    MemorySession,
    RecordNotFoundError,
    SqliteStore,
    UnsupportedError,
    run_sync,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, path: Path) -> Iterator[Any]:
    """A store for plain functions, closed at the end."""
    made = InMemoryStore() if request.param == "memory" else SqliteStore(path)
    yield made
    made.sync.close()


# --- the same verbs ---------------------------------------------------------------------------------------------------


def verbs(target: object) -> dict[str, Any]:
    found = inspect.getmembers(type(target), inspect.iscoroutinefunction)
    return {name: verb for name, verb in found if not name.startswith("_")}


def targets(path: Path) -> dict[str, Any]:
    memory, sqlite = InMemoryStore(), SqliteStore(path)
    return {
        "session": MemorySession(memory, ADA),
        "InMemoryStore": memory,
        "SqliteStore": sqlite,
        "InMemoryStore.embeddings": memory.embeddings,
        "SqliteStore.embeddings": sqlite.embeddings,
    }


def sync_side(name: str, target: Any, everything: dict[str, Any]) -> Any:
    owner, _, attribute = name.partition(".")
    return getattr(everything[owner].sync, attribute) if attribute else target.sync


LEAST = {
    "session": {"remember", "remember_many", "revise", "retract", "forget", "forget_scope", "recall", "get", "history",
                "receipt", "list", "count", "scope_revision"},
    "InMemoryStore": {"close", "scope_revision", "scopes", "scrub"},
    "SqliteStore": {"close", "scope_revision", "scopes", "scrub"},
    "InMemoryStore.embeddings": {"active"},
    "SqliteStore.embeddings": {"active"},
}  # fmt: skip


@pytest.mark.parametrize("name", LEAST)
def test_each_verb_has_a_sync_twin_with_the_same_signature_and_docstring(path: Path, name: str) -> None:
    everything = targets(path)
    target = everything[name]
    twin = sync_side(name, target, everything)
    assert set(verbs(target)) >= LEAST[name]
    for verb in verbs(target):
        original, method = getattr(target, verb), getattr(twin, verb)
        assert not inspect.iscoroutinefunction(method)
        assert inspect.signature(method) == inspect.signature(original)
        assert inspect.getdoc(method) == inspect.getdoc(original)
        assert method.__name__ == verb
        assert verb in dir(twin)


def test_what_is_no_verb_is_the_objects_own(shop: Any) -> None:
    memory = open_memory(shop)
    assert memory.sync.scope == ADA
    assert memory.sync.store.scope_revision(ADA) == 0
    assert shop.sync.known_generation is None
    with pytest.raises(AttributeError, match="no_such_verb"):
        memory.sync.no_such_verb()
    with pytest.raises(AttributeError):
        memory.sync._store  # noqa: B018
    assert "MemorySession" in repr(memory.sync)


def test_a_wrong_argument_is_told_as_by_any_function(shop: Any) -> None:
    with pytest.raises(TypeError, match="no_such_argument"):
        open_memory(shop).sync.remember("Ada likes tea.", no_such_argument=1)


def test_every_verb_works_in_a_script(shop: Any) -> None:
    memory = open_memory(shop, embedder=FakeEmbedder()).sync
    fact = memory.remember("Ada likes tea.", id="r1", operation_id="k").records[0]
    assert memory.revise("r1", text="Ada likes coffee.", expected_revision=1).records[0].revision == 2
    assert texts(memory.recall("coffee")) == ["Ada likes coffee."]
    assert memory.get("r1").created_at == fact.created_at
    assert texts(memory.history("r1")) == ["Ada likes tea.", "Ada likes coffee."]
    assert memory.receipt("k").operation_id == "k"
    assert (memory.count(), memory.scope_revision()) == (1, 2)
    assert ([record.id for record in memory.list().records], memory.list().cursor) == (["r1"], None)
    assert memory.retract("r1").records[0].status == "retracted"
    assert memory.forget("r1").revisions == (1, 2, 3)
    assert memory.forget_scope().record_ids == ()
    assert shop.sync.scope_revision(ADA) == 5
    assert shop.sync.scopes() == [ADA]
    assert shop.sync.embeddings.active().model_id == "fake-a"
    shop.sync.scrub()


def test_errors_reach_the_caller_as_they_are(shop: Any) -> None:
    with pytest.raises(RecordNotFoundError):
        open_memory(shop).sync.revise("unknown", text="x")


# --- from everywhere ------------------------------------------------------------------------------------------------


async def test_sync_verbs_work_inside_a_running_loop_beside_the_async_ones(shop: Any) -> None:
    memory = open_memory(shop)
    waiting = [asyncio.ensure_future(memory.remember(f"async {n}")) for n in range(5)]
    await asyncio.sleep(0)
    for n in range(5):
        memory.sync.remember(f"sync {n}")
    await asyncio.gather(*waiting)
    assert memory.sync.count() == await memory.count() == 10
    assert len(await memory.recall("sync", top_k=20)) == 5


def test_sync_verbs_work_in_many_threads_at_once(shop: Any) -> None:
    memory = open_memory(shop, embedder=FakeEmbedder()).sync
    start = threading.Barrier(8)

    def work(who: int) -> list[int]:
        start.wait()
        return [memory.remember(f"fact {n} of {who}").receipt.scope_revision for n in range(25)]

    with ThreadPoolExecutor(8) as pool:
        revisions = [revision for part in pool.map(work, range(8)) for revision in part]
    assert sorted(revisions) == list(range(1, 201))
    assert memory.count() == 200


def test_a_sync_callback_may_use_the_sync_side_since_it_runs_in_a_thread(shop: Any) -> None:
    heard: list[int] = []

    def listener(event: ForgetEvent) -> None:
        heard.append(memory.count())
        memory.remember(f"forgot {event.record_id}")

    memory = open_memory(shop, on_forget=[listener]).sync
    memory.remember("Ada likes tea.", id="r1")
    assert memory.forget("r1").redaction == "complete"
    assert (heard, memory.count()) == ([0], 1)


def test_an_async_callback_that_uses_the_sync_side_is_refused_instead_of_waiting_for_itself(shop: Any) -> None:
    errors: list[Exception] = []

    async def listener(event: ForgetEvent) -> None:
        for call in (lambda: memory.sync.count(), lambda: run_sync(memory.count())):
            try:
                call()
            except UnsupportedError as error:
                errors.append(error)
        errors.append(await memory.count())  # type: ignore[arg-type]

    memory = open_memory(shop, on_forget=[listener])
    memory.sync.remember("Ada likes tea.", id="r1")
    assert memory.sync.forget("r1").redaction == "complete"
    assert [type(error) for error in errors[:2]] == [UnsupportedError] * 2
    assert all("await count(" in str(error) for error in errors[:2])
    assert errors[2] == 0


async def test_an_async_callback_on_the_hosts_own_loop_may_use_the_sync_side(shop: Any) -> None:
    counts: list[int] = []

    async def listener(event: ForgetEvent) -> None:
        counts.append(memory.sync.count())

    memory = open_memory(shop, on_forget=[listener])
    await memory.remember("Ada likes tea.", id="r1")
    assert (await memory.forget("r1")).redaction == "complete"
    assert counts == [0]


def test_an_embedder_sees_the_callers_context(shop: Any) -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    async def before() -> None:
        seen.append(tenant.get())

    memory = open_memory(shop, embedder=FakeEmbedder(before=before)).sync
    tenant.set("ada")
    memory.remember("Ada likes tea.")
    assert seen == ["ada"]


def test_run_sync_gives_what_a_coroutine_returns_or_raises(shop: Any) -> None:
    async def fail() -> None:
        raise KeyError("x")

    assert run_sync(open_memory(shop).count()) == 0
    with pytest.raises(KeyError):
        run_sync(fail())


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------

CTRL_C = """
store = SqliteStore(PATH)
memory = MemorySession(store, SCOPE).sync
armed, held, opened, queued = (threading.Event() for _ in range(4))

def probe(step):
    if step == ARGS[0] and armed.is_set() and not held.is_set():
        held.set()
        opened.wait()

store._probe = probe
memory.count()  # opens the file for reading too
armed.set()
other = threading.Thread(target=memory.remember, args=["held"])
if ARGS[1] == "queued":
    other.start()
    held.wait()

def interrupt():
    "Ctrl-C, at the moment the call waits in the queue, or is in the middle of its transaction."
    queued.wait() if ARGS[1] == "queued" else held.wait()
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name != "wait":
        pass  # until the main thread waits for its answer
    os.kill(os.getpid(), signal.SIGINT)

engine = store._opened()
run = engine.run

def note(operation):
    future = run(operation)
    queued.set()
    return future

engine.run = note
threading.Thread(target=interrupt).start()
try:
    memory.remember("Ada likes tea.", operation_id="k")
    say("not interrupted")
except KeyboardInterrupt:
    memory.scope_revision()  # after it on the library's loop: the call is cancelled now
    opened.set()
    if ARGS[1] == "queued":
        other.join()
    say([memory.remember("Ada likes tea.", operation_id="k").replayed, memory.count()])
"""


@pytest.mark.parametrize(
    ("step", "where", "expected"),
    [
        ("loaded", "queued", "[false, 2]"),
        ("loaded", "running", "[true, 1]"),
        ("before commit", "running", "[true, 1]"),
        ("after commit", "running", "[true, 1]"),
    ],
)
def test_ctrl_c_leaves_a_write_whole_or_undone_and_its_operation_id_tells(
    path: Path, step: str, where: str, expected: str
) -> None:
    assert run_script(CTRL_C, path, step, where) == [expected]
