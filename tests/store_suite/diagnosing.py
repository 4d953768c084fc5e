"""The doctor on sound stores: whatever was done to a store, all that it keeps agrees, and looking changes nothing."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from fake_models import FakeLLM, add, decisions, delete, facts, noop, update, user
from fakes import ADA, BOB, Clock, FakeEmbedder, Ids, everything, open_memory, word_vector

from vmem_core import (
    Draft,
    InMemoryStore,
    MemorySession,
    Prompt,
    Scope,
    Store,
    VmemError,
    export_jsonl,
    import_jsonl,
)

_WORDS = ("tea", "coffee", "green", "milk", "咖啡", "zero", "café", "the")


async def test_a_new_store_has_nothing_to_find(store: Store) -> None:
    assert await store.diagnose() == []


async def test_after_a_long_history_of_every_verb_all_agrees(store: Store, clock: Clock) -> None:
    await live(store, clock, steps=150)
    assert await store.diagnose() == []


async def test_after_an_import_of_a_whole_history_all_agrees(store: Store, clock: Clock) -> None:
    source = InMemoryStore(clock=clock)
    await live(source, clock, steps=60)
    for scope in (ADA, BOB):
        assert (await import_jsonl(store, export_jsonl(source, scope))).imported > 0
    assert await store.diagnose() == []
    await live(store, clock, steps=20, seed=8)
    assert await store.diagnose() == []


async def test_looking_changes_nothing_that_callers_see(store: Store, clock: Clock) -> None:
    await live(store, clock, steps=30)
    memory = open_memory(store)
    before = await everything(memory, "r1", "r2", "r3")
    assert await store.diagnose() == []
    assert await everything(memory, "r1", "r2", "r3") == before


async def test_progress_counts_every_record_once(store: Store) -> None:
    for scope in (ADA, BOB):
        await open_memory(store, scope).remember_many([Draft(f"tea {n}") for n in range(300)])
    seen: list[tuple[int, int]] = []
    assert await store.diagnose(progress=lambda done, total: seen.append((done, total))) == []
    assert seen[-1] == (600, 600)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {600}


# ------------------------------------------------------------------------------------------------------- histories


async def live(store: Store, clock: Clock, *, steps: int, seed: int = 7) -> None:
    """A made history of two scopes, the same for the same seed: every verb, refusals and replays among them."""
    draw, new_id = random.Random(seed), Ids()
    life = _Life(draw, clock, new_id)
    for step in range(steps):
        scope = draw.choice((ADA, ADA, BOB))
        model = draw.choice(("fake-a", "fake-a", "fake-b"))
        embedder = draw.choice((None, FakeEmbedder(model, vectors={"zero": [0.0] * 8})))
        memory = open_memory(store, scope, embedder=embedder, new_id=new_id, llm=life.model)
        try:
            await life.step(memory, scope, f"op{draw.randrange(step + 1)}" if draw.random() < 0.3 else None)
        except VmemError:
            life.refused += 1
    assert life.refused > 0
    assert steps < 100 or life.done == set(life.verbs())


class _Life:
    """What may happen next.

    Args:
        draw: Where chance comes from.
        clock: Moved on, and sometimes back.
        new_id: Counts the ids of records.
    """

    def __init__(self, draw: random.Random, clock: Clock, new_id: Ids) -> None:
        self.draw, self.clock, self.new_id = draw, clock, new_id
        self.refused, self.messages, self.done = 0, 0, set[str]()
        self.model = FakeLLM(lambda prompt: facts(self.text(), self.text()), self._decide)

    def _decide(self, prompt: Prompt) -> str:
        return decisions(self.draw.choice((add(), update(0, self.text()), delete(0), noop(0), add(self.text()))))

    def text(self) -> str:
        return " ".join(self.draw.choices(_WORDS, k=self.draw.randint(1, 3)))

    def verbs(self) -> dict[str, int]:
        """Each verb, and how often it comes."""
        return {
            "remember": 8, "remember_many": 3, "extract": 4, "revise": 8, "retract": 4, "forget": 3, "forget_scope": 1,
            "embed": 2, "prune": 1,
        }  # fmt: skip

    async def step(self, memory: MemorySession, scope: Scope, operation_id: str | None) -> None:
        """Do one thing."""
        self.clock.step(seconds=self.draw.choice((-1, 0, 0, 1, 5)))
        verbs = self.verbs()
        (verb,) = self.draw.choices(list(verbs), weights=list(verbs.values()))
        call: Callable[..., Awaitable[Any]] = getattr(self, f"_{verb}")
        await call(memory, operation_id=operation_id)
        self.done.add(verb)

    def _any_id(self) -> str:
        return f"r{self.draw.randint(1, max(1, self.new_id.made))}"

    async def _remember(self, memory: MemorySession, **more: Any) -> None:
        supersede = self.draw.choice(("add", "skip_equal", "reconcile"))
        ttl = self.draw.choice((None, None, timedelta(seconds=3)))
        metadata = self.draw.choice((None, {"a": 1}, {"a": 1.0, "b": [None]}))
        await memory.remember(self.text(), supersede=supersede, ttl=ttl, metadata=metadata, **more)

    async def _remember_many(self, memory: MemorySession, **more: Any) -> None:
        drafts = [Draft(self.text(), kind=self.draw.choice(("semantic", "working"))) for _ in range(3)]
        await memory.remember_many(drafts, origin=self.draw.choice(("asserted", "inferred")), **more)

    async def _extract(self, memory: MemorySession, **more: Any) -> None:
        self.messages += self.draw.randint(0, 1)
        await memory.extract([user(f"m{self.messages}", self.text())], **more)

    async def _revise(self, memory: MemorySession, **more: Any) -> None:
        given = self.draw.choice(
            ({}, {"text": self.text()}, {"kind": "episodic"}, {"ttl": None}, {"origin": "inferred"})
        )
        await memory.revise(self._any_id(), **given, **more)

    async def _retract(self, memory: MemorySession, **more: Any) -> None:
        await memory.retract(self._any_id(), **more)

    async def _forget(self, memory: MemorySession, **more: Any) -> None:
        await memory.forget(self._any_id(), **more)

    async def _embed(self, memory: MemorySession, **more: Any) -> None:
        """A part of another model's vectors, some of them marks; the last part switches to it."""
        kept = memory.store.embeddings
        generation = await kept.begin(self.draw.choice(("fake-a", "fake-b")), 8)
        lacking = await kept.pending(generation.number, self.draw.choice((2, 2, 1000)))
        vectors = (word_vector(text, 8) if self.draw.random() < 0.8 else None for *_, text in lacking)
        await kept.put(generation.number, [(*one[:2], made) for one, made in zip(lacking, vectors, strict=True)])
        await kept.activate(generation.number)

    async def _prune(self, memory: MemorySession, **more: Any) -> None:
        await memory.store.prune_history(self.clock.now - timedelta(seconds=self.draw.randint(0, 9)))
        if self.draw.random() < 0.5:
            await memory.store.prune_operations(self.clock.now - timedelta(seconds=self.draw.randint(5, 50)))

    async def _forget_scope(self, memory: MemorySession, **more: Any) -> None:
        await memory.forget_scope(**more)
