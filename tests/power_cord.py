"""What a killed process was doing: every kind of write, from one known state, the same to the last byte each time.

Owns the writes, the state before them, all that callers can see of it, and the script whose forked children die at a
step of a write. Does not own what must be true afterwards (``test_power_cord.py``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fake_models import FakeLLM, decisions, delete, fact, facts, update, user
from fakes import ADA, BOB, Clock, FakeEmbedder, Ids, refusal

from vmem_core import Draft, InMemoryStore, Link, MemorySession, Receipt, Store

RECORDS = ("r1", "r2", "r3", "mine", "new1", "new2")
# One step in so many is a step to die at; 1: every step. The store's own four points are always tried.
EVERY = int(os.environ.get("VMEM_KILL_EVERY", "8"))
WORDS = "tea green chess paris lisbon coffee likes"


def session(store: Store, *, embeds: bool = True, llm: Any = None) -> MemorySession:
    """A session of Ada that makes the ids new1, new2, …"""
    return MemorySession(store, ADA, new_id=Ids("new"), embedder=FakeEmbedder() if embeds else None, llm=llm)


async def prepare(store: Store, *, embeds: bool) -> None:
    """The state before: a revised record, a retracted one, an inferred one, and one of somebody else."""
    memory = session(store, embeds=embeds)
    drafts = [Draft("Ada likes tea.", "r1"), Draft("Ada plays chess.", "r2"), Draft("Ada lives in Paris.", "r3")]
    await memory.remember_many(drafts, origin="inferred", operation_id="base1")
    await memory.revise("r1", text="Ada likes green tea.", metadata={"n": 1}, operation_id="base2")
    await memory.retract("r2", operation_id="base3")
    await MemorySession(store, BOB).remember("Bob likes tea.", id="bob1", operation_id="base4")


def remembers_as_a_model_says(memory: MemorySession) -> Awaitable[Any]:
    return memory.remember("Ada lives in Lisbon.", id="mine", operation_id="k")


def extracts(memory: MemorySession) -> Awaitable[Any]:
    said = [user("m1", "I moved to Lisbon, and I take coffee now."), user("m2", "No more chess.")]
    return memory.extract(said, operation_id="k")


def reconciling() -> FakeLLM:
    """A model that finds two facts, rewords one record and takes back another."""
    found = facts(fact("Ada lives in Lisbon.", "s0"), fact("Ada takes coffee.", "s0"))

    def decide(prompt: Any) -> str:
        place = next(line[1] for line in prompt.user.split("\n") if line.endswith("Ada lives in Paris."))
        tea = next((line[1] for line in prompt.user.split("\n") if line.endswith("Ada likes green tea.")), "9")
        return decisions(update(int(place), "Ada lives in Lisbon."), delete(int(tea), fact="n1"))

    return FakeLLM(found, decide)


Write = Callable[[MemorySession], Awaitable[Any]]
WRITES: dict[str, Write] = {
    "remember": lambda memory: memory.remember(
        "Ada drinks coffee.", id="mine", metadata={"n": [1.5]}, links=[Link("about", "r1")], operation_id="k"
    ),
    "the first vector": lambda memory: memory.remember("Ada drinks coffee.", id="mine", operation_id="k"),
    "remember_many": lambda memory: memory.remember_many(
        [Draft("Ada drinks coffee.", "mine"), Draft("chess again"), Draft("tea again")], operation_id="k"
    ),
    "remember an equal text": lambda memory: memory.remember(
        "ada likes green tea. ", supersede="skip_equal", operation_id="k"
    ),
    "revise": lambda memory: memory.revise("r1", text="Ada likes coffee.", expected_revision=2, operation_id="k"),
    "revise and keep the text": lambda memory: memory.revise("r2", importance=0.5, operation_id="k"),
    "retract": lambda memory: memory.retract("r1", operation_id="k"),
    "forget": lambda memory: memory.forget("r1", operation_id="k"),
    "forget_scope": lambda memory: memory.forget_scope(operation_id="k"),
    "remember and reconcile": remembers_as_a_model_says,
    "extract": extracts,
}


async def write(store: Store, name: str) -> Any:
    """One write, by its name."""
    llm = reconciling() if name in ("remember and reconcile", "extract") else None
    return await WRITES[name](session(store, llm=llm))


async def visible(store: Store) -> dict[str, Any]:
    """All that callers can see: receipts, heads, histories, tombstones, both lists of recall, what was known before."""
    memory, blind = session(store), session(store, embeds=False)
    generation = await store.embeddings.active()
    return {
        "scope_revision": await memory.scope_revision(),
        "receipts": [await memory.receipt(name) for name in ("base1", "base2", "k")],
        "history": {record_id: await memory.history(record_id) for record_id in RECORDS},
        "kept": {r: (await refusal(memory.retract(r, expected_revision=99))).code for r in ("r1", "mine")},
        "list": (await memory.list(status=None)).records,
        "count": await memory.count(),
        "words": await blind.recall(WORDS, top_k=20, include_retracted=True),
        "meaning": await memory.recall("Ada likes coffee.", top_k=20) if generation else None,
        "then": await memory.recall("likes tea", at_scope_revision=2, top_k=10),
        "processed": await store.processed(ADA, ["m1", "m2"]),
        "generation": generation,
        "bob": await MemorySession(store, BOB).recall(),
    }


@dataclass(frozen=True)
class Story:
    """A write, what callers see before it and after it, and its receipt."""

    name: str
    before: dict[str, Any]
    after: dict[str, Any]
    receipt: Receipt

    async def begin(self, store: Store) -> None:
        """Bring an empty store into the state before."""
        await prepare(store, embeds=self.name != "the first vector")

    async def check(self, store: Store, *, after: bool) -> None:
        """The store is before or after the write, and the operation asked for again tells which, and ends after it."""
        assert await store.diagnose() == []
        assert await visible(store) == (self.after if after else self.before)
        again = await write(store, self.name)
        assert (again.receipt, again.replayed) == (self.receipt, after)
        assert await visible(store) == self.after


async def story_of(name: str) -> Story:
    """A write, as it goes where nobody is killed."""
    store = InMemoryStore(clock=Clock())
    await prepare(store, embeds=name != "the first vector")
    before = await visible(store)
    answer = await write(store, name)
    after = await visible(store)
    assert after != before
    return Story(name, before, after, answer.receipt)


# --- the process that dies -------------------------------------------------------------------------------------------


Point = int | str  # a step by its number, from 0, or a point of the store's own by its name


def killer(point: Point, told: int) -> Callable[..., None]:
    """Called at each step; at its point it writes down how many came before, and this process dies there and then.

    Args:
        point: Where.
        told: A pipe's end for the number.
    """
    passed = 0

    def step(name: object = None, *_: object) -> None:
        nonlocal passed
        if point in (passed, name):
            os.write(told, str(passed).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        passed += 1

    return step


def kill_in_sqlite(told: int, point: Point, path: str, name: str) -> None:
    """Write to a file until the point. A step is a statement, of either connection."""
    from vmem_core import SqliteStore
    from vmem_core.stores._sqlite_setup import StoreConnection

    async def work() -> None:
        store = SqliteStore(path, clock=Clock())
        await store.scopes()
        step = killer(point, told)
        plain = StoreConnection.execute

        def execute(self: Any, *args: Any) -> Any:
            step()
            return plain(self, *args)

        StoreConnection.execute = execute  # type: ignore[method-assign]
        store._engine._probe = step
        await write(store, name)

    _run(work())


def kill_in_postgres(told: int, point: Point, dsn: str, schema: str, name: str) -> None:
    """Write to a schema until the point. A step is what the driver is about to send or to wait for."""
    import psycopg

    from vmem_core import PostgresStore

    async def work() -> None:
        store = PostgresStore(dsn, schema=schema, clock=Clock())
        await store.scopes()
        step = killer(point, told)
        plain = psycopg.Connection.wait

        def wait(self: Any, *args: Any, **more: Any) -> Any:
            step()
            return plain(self, *args, **more)

        psycopg.Connection.wait = wait  # type: ignore[method-assign]
        store._engine._probe = step
        await write(store, name)

    _run(work())


def _run(coroutine: Any) -> None:
    import asyncio

    asyncio.run(coroutine)


def in_a_child(function: Callable[..., None], *args: Any) -> tuple[int, int]:
    """Fork, run, and end without any farewell.

    Returns:
        How the child ended, -9 if it was killed, and how many steps it had passed by then.
    """
    reading, told = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            function(told, *args)
            code = 0
        except BaseException:  # noqa: BLE001 - shown, and told by the exit code
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(told)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    passed = os.read(reading, 20)
    os.close(reading)
    return code, int(passed or 0)
