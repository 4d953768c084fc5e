"""Random operations on two stores must look the same: results, errors, receipts, hits with their scores.

One is in memory, the other a SQLite file or a PostgreSQL schema. That is open twice and the calls go to both handles in
turn, so that each follows what the other writes.

Hypothesis draws the operations and shrinks what goes wrong to the shortest story. Next to both stores runs a small
model of what must be true of any store, so that a fault in what they share is seen as well.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from fakes import ADA, BOB, START, Clock, FakeEmbedder, Ids, Listener
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from postgres_server import fresh_schema, server_uri

from vmem_core import (
    UNSET,
    Draft,
    InMemoryStore,
    Link,
    MemorySession,
    PostgresStore,
    Record,
    Source,
    SqliteStore,
    VmemError,
    text_digest,
)

SCOPES = {"ada": ADA, "bob": BOB}
EMBEDDERS = ("blind", "blind", "a", "a", "b")  # b is another model of equal size

TEXTS = st.sampled_from(["tea", "Tea ", "green tea with milk", "coffee", "我喜欢喝咖啡", "zero", "the", "caf\u00e9"])
QUERIES = st.sampled_from(["tea", "milk coffee", "咖啡", "cafe", "zero", "the", " ", "unheard of"])
TARGETS = st.integers(0, 19)  # most are places among the records written so far
FOREIGN = st.sampled_from([False] * 7 + [True])
OPERATION_IDS = st.sampled_from([None, None, None, None, None, None, "op1", "op2"])
KINDS = st.sampled_from(["semantic", "semantic", "working", "episodic"])
ORIGINS = st.sampled_from(["asserted", "inferred"])
METADATA = st.sampled_from([None, {}, {"a": 1}, {"a": 1.0, "b": [1]}, {"a": True}, {"b": {"c": None}}])
TTLS = st.one_of(st.none(), st.none(), st.integers(1, 3).map(lambda n: timedelta(seconds=n)))
SOURCES = st.sampled_from(
    [None, (), (Source("user", text_digest("1")),), (Source("tool", text_digest("2"), tool_name="t"),)]
)
LINKS = st.sampled_from([(), (Link("about", "r1"),)])
IMPORTANCES = st.sampled_from([None, 0.5, 1])
REVISIONS = st.sampled_from([None, None, None, None, 1, 2, 3])
SESSIONS = st.tuples(st.sampled_from(sorted(SCOPES)), st.sampled_from(EMBEDDERS))
DRAFTS = st.builds(
    Draft,
    TEXTS,
    id=st.sampled_from([None, None, None, "own", "other", "third"]),
    kind=KINDS,
    metadata=METADATA,
    ttl=TTLS,
)


def given(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An argument of ``revise``: as often as not left out."""
    return st.one_of(st.just(UNSET), strategy)


class Side:
    """One of the two kinds of store, with its own ids, embedders and listeners, equal to the other side's.

    Args:
        stores: Handles of one and the same store; calls go to them in turn.
    """

    def __init__(self, *stores: Any) -> None:
        self.stores, self.turn, self.new_id = stores, 0, Ids()
        self.embedders = {name: FakeEmbedder(f"model-{name}", 4, {"zero": [0.0] * 4}) for name in ("a", "b")}
        self.listener = Listener()

    @property
    def store(self) -> Any:
        self.turn += 1
        return self.stores[self.turn % len(self.stores)]

    def session(self, scope: str, embedder: str) -> MemorySession:
        made = {"new_id": self.new_id, "embedder": self.embedders.get(embedder), "on_forget": self.listener}
        return MemorySession(self.store, SCOPES[scope], **made)

    def seen(self) -> list[Any]:
        """Everything that host callables were asked so far."""
        return [self.new_id.made, self.listener.log, *(one.calls for one in self.embedders.values())]


class StoreMachine(RuleBasedStateMachine):
    """The same calls on both stores, and a model of them."""

    scrubs_at_once = True

    @initialize(
        drafts=st.lists(DRAFTS, min_size=2, max_size=5),
        other=st.lists(DRAFTS, max_size=2),
        cache=st.sampled_from([0, 2**20]),
    )
    def open(self, drafts, other, cache) -> None:
        self.clock, self.runner, self.place = Clock(), asyncio.Runner(), ExitStack()
        handles = self.handles(clock=self.clock, index_cache_bytes=cache)
        self.sides = [Side(InMemoryStore(clock=self.clock)), Side(*handles)]
        self.calls: list[tuple[tuple[str, str], str, tuple[Any, ...], dict[str, Any]]] = []
        self.cursors: list[tuple[tuple[str, str], dict[str, Any]]] = []
        self.operations, self.alike = 0, True
        self.written: dict[str, tuple[str, list[Record]]] = {}
        self.forgotten: set[str] = set()
        self.committed = dict.fromkeys(SCOPES, 0)
        self.last_stamp = dict.fromkeys(SCOPES, START - timedelta(days=1))
        self.write(("ada", "a"), "remember_many", drafts, operation_id="op1")
        self.write(("bob", "blind"), "remember_many", other, operation_id="op1")

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            if self.alike:  # else the story has ended already, and its own error is the one to show
                self.audit()
                assert self.both(lambda side: side.store.diagnose()) == []
            for store in [store for side in self.sides for store in side.stores]:
                self.runner.run(store.close())
            self.runner.close()
            self.place.close()

    def handles(self, **options: Any) -> list[Any]:
        """Two stores on one place that is empty; ``self.place`` takes what must be done with it at the end."""
        file = Path(self.place.enter_context(tempfile.TemporaryDirectory())) / "memory.db"
        return [SqliteStore(file, **options) for _ in range(2)]

    # --- the same on both sides -----------------------------------------------------------------------------------

    def both(self, call: Callable[[Side], Any]) -> Any:
        """The answer of both sides, which must be one and the same; an error as its type, words and fields."""
        self.alike = False
        answers = [self.runner.run(self.settled(call(side))) for side in self.sides]
        assert answers[0] == answers[1]
        assert self.sides[0].seen() == self.sides[1].seen()
        self.alike = True
        return answers[0]

    async def settled(self, awaitable: Any) -> Any:
        try:
            answer = await awaitable
            # Whether the bytes are gone at once is the one thing in which stores may differ.
            differs = not self.scrubs_at_once and hasattr(answer, "scrubbed")
            return replace(answer, scrubbed=True) if differs else answer
        except VmemError as error:
            return type(error), str(error), {name: getattr(error, name) for name in error.fields}

    def read(self, who: tuple[str, str], verb: str, *args: Any, **kwargs: Any) -> Any:
        return self.both(lambda side: getattr(side.session(*who), verb)(*args, **kwargs))

    def write(self, who: tuple[str, str], verb: str, *args: Any, operation_id: str | None, **kwargs: Any) -> None:
        if operation_id is None:
            self.operations += 1
            operation_id = f"made{self.operations}"
        call = (who, verb, args, {"operation_id": operation_id, **kwargs})
        self.calls.append(call)
        self.run(call)

    def run(self, call: tuple[tuple[str, str], str, tuple[Any, ...], dict[str, Any]]) -> None:
        who, verb, args, kwargs = call
        answer = self.both(lambda side: getattr(side.session(*who), verb)(*args, **kwargs))
        if isinstance(answer, tuple) or answer.replayed:
            return
        self.learn(who[0], answer)

    def learn(self, scope: str, answer: Any) -> None:
        """Keep in the model what a new operation says it did."""
        receipt = answer.receipt
        self.committed[scope] += 1
        assert receipt.scope_revision == self.committed[scope]
        assert receipt.committed_at == max(self.clock.now, self.last_stamp[scope])
        self.last_stamp[scope] = receipt.committed_at
        for record in getattr(answer, "records", ()):
            owner, revisions = self.written.setdefault(record.id, (scope, []))
            assert (owner, record.revision) == (scope, len(revisions) + 1)
            assert record.recorded_at == receipt.committed_at
            revisions.append(record)
        for change in receipt.changes:
            if change.action == "forget":
                assert len(self.written[change.record_id][1]) == change.revision
                self.forgotten.add(change.record_id)

    # --- writes -----------------------------------------------------------------------------------------------------

    @rule(
        who=SESSIONS, text=TEXTS, id=st.sampled_from([None, None, None, "own", "other"]), kind=KINDS, origin=ORIGINS,
        sources=SOURCES, links=LINKS, importance=IMPORTANCES, metadata=METADATA, ttl=TTLS,
        supersede=st.sampled_from([None, "add", "skip_equal", "skip_equal"]), operation_id=OPERATION_IDS,
    )  # fmt: skip
    def remember(self, who, text, **arguments) -> None:
        self.write(who, "remember", text, **arguments)

    @rule(who=SESSIONS, drafts=st.lists(DRAFTS, max_size=4), origin=ORIGINS, operation_id=OPERATION_IDS)
    def remember_many(self, who, drafts, **arguments) -> None:
        self.write(who, "remember_many", drafts, **arguments)

    def aimed(self, aim: int, foreign: bool, embedder: str) -> tuple[tuple[str, str], str]:
        """A session and a record id: most often a record of that session's scope."""
        known = list(self.written)
        record_id = known[aim % len(known)] if known and aim < 18 else ("own", "unknown")[aim % 2]
        scope = self.written[record_id][0] if record_id in self.written else "ada"
        return ("bob" if (scope == "ada") == foreign else "ada", embedder), record_id

    @rule(
        aim=TARGETS, foreign=FOREIGN, embedder=st.sampled_from(EMBEDDERS), text=given(TEXTS), kind=given(KINDS),
        importance=given(IMPORTANCES), metadata=given(METADATA), ttl=given(TTLS), links=given(LINKS),
        sources=given(SOURCES), origin=given(ORIGINS), expected_revision=REVISIONS,
        by_model=st.sampled_from([False, False, False, True]), operation_id=OPERATION_IDS,
    )  # fmt: skip
    def revise(self, aim, foreign, embedder, **arguments) -> None:
        who, record_id = self.aimed(aim, foreign, embedder)
        self.write(who, "revise", record_id, **arguments)

    @rule(
        aim=TARGETS, foreign=FOREIGN, expected_revision=REVISIONS,
        by_model=st.sampled_from([False, False, False, True]),
        operation_id=OPERATION_IDS,
    )  # fmt: skip
    def retract(self, aim, foreign, **arguments) -> None:
        who, record_id = self.aimed(aim, foreign, "blind")
        self.write(who, "retract", record_id, **arguments)

    @rule(aim=TARGETS, foreign=FOREIGN, operation_id=OPERATION_IDS, sure=st.integers(0, 2))
    def forget(self, aim, foreign, operation_id, sure) -> None:
        if sure == 0:  # seldom, or no story would grow
            who, record_id = self.aimed(aim, foreign, "blind")
            self.write(who, "forget", record_id, operation_id=operation_id)

    @rule(who=SESSIONS, operation_id=OPERATION_IDS, sure=st.integers(0, 5))
    def forget_scope(self, who, operation_id, sure) -> None:
        if sure == 0:
            self.write(who, "forget_scope", operation_id=operation_id)

    @precondition(lambda self: self.calls)
    @rule(place=st.integers(0, 1000))
    def send_again(self, place) -> None:
        self.run(self.calls[place % len(self.calls)])

    @rule(seconds=st.integers(-2, 3), microseconds=st.sampled_from([0, 0, 1]))
    def move_the_clock(self, seconds, microseconds) -> None:
        self.clock.step(seconds=seconds, microseconds=microseconds)

    # --- reads ------------------------------------------------------------------------------------------------------

    @rule(
        who=SESSIONS, text=st.one_of(st.none(), QUERIES), kind=st.one_of(st.none(), KINDS), metadata=METADATA,
        top_k=st.integers(1, 5), include_retracted=st.booleans(), include_expired=st.booleans(),
        at_scope_revision=st.one_of(st.none(), st.none(), st.integers(0, 12)),
    )  # fmt: skip
    def recall(self, who, text, **arguments) -> None:
        self.read(who, "recall", text, **arguments)

    @rule(
        who=SESSIONS, text=st.one_of(st.none(), QUERIES), seconds=st.integers(-1, 8), microseconds=st.integers(0, 1),
        include_retracted=st.booleans(), include_expired=st.booleans(),
    )  # fmt: skip
    def recall_as_of(self, who, text, seconds, microseconds, **arguments) -> None:
        at = START + timedelta(seconds=seconds, microseconds=microseconds)
        self.read(who, "recall", text, recorded_as_of=at, **arguments)

    @rule(who=SESSIONS, text=QUERIES, include_retracted=st.booleans())
    def an_index_that_followed_equals_one_built_anew(self, who, text, include_retracted) -> None:
        same = {"include_retracted": include_retracted, "include_expired": True, "top_k": 50}
        now = self.read(who, "recall", text, **same)
        assert self.read(who, "recall", text, at_scope_revision=self.committed[who[0]], **same) == now

    @rule(
        who=SESSIONS, kind=st.one_of(st.none(), KINDS), origin=st.one_of(st.none(), ORIGINS),
        status=st.sampled_from(["active", "retracted", None]), limit=st.integers(1, 3),
    )  # fmt: skip
    def list_a_page(self, who, **arguments) -> None:
        page = self.read(who, "list", **arguments)
        if page.cursor is not None:
            self.cursors.append((who, {**arguments, "cursor": page.cursor}))

    @precondition(lambda self: self.cursors)
    @rule(place=st.integers(0, 1000), wrong=st.sampled_from(["", "", "", "bob", "kind"]))
    def list_on(self, place, wrong) -> None:
        who, arguments = self.cursors[place % len(self.cursors)]
        if wrong == "bob":
            who = ("bob", "blind")
        if wrong == "kind":
            arguments = {**arguments, "kind": "procedural"}
        self.read(who, "list", **arguments)

    @rule(who=SESSIONS, operation_id=st.sampled_from(["op1", "op2", "made1"]))
    def receipt(self, who, operation_id) -> None:
        self.read(who, "receipt", operation_id)

    @rule(aim=TARGETS, foreign=FOREIGN)
    def look_up(self, aim, foreign) -> None:
        who, record_id = self.aimed(aim, foreign, "blind")
        self.read(who, "get", record_id)
        self.read(who, "history", record_id)

    # --- what must be true of any store -----------------------------------------------------------------------------

    @rule()
    def audit(self) -> None:
        """Compare all that both stores say with the model."""
        for scope in SCOPES:
            who = (scope, "blind")
            assert self.read(who, "scope_revision") == self.committed[scope]
            now = max(self.clock.now, self.last_stamp[scope])
            held = [r for r in self.current(scope) if r.expires_at is None or r.expires_at > now]
            assert self.read(who, "count") == sum(record.status == "active" for record in held)
            listed = self.read(who, "list", status=None, limit=1000)
            assert sorted(record.id for record in listed.records) == sorted(record.id for record in held)
            recent = self.read(who, "recall", top_k=1000, include_retracted=True)
            assert [hit.record for hit in recent] == self.newest_first(held)
            for record_id, (owner, revisions) in self.written.items():
                gone = owner != scope or record_id in self.forgotten
                assert self.read(who, "history", record_id) == ([] if gone else revisions)
        assert self.both(lambda side: side.store.scopes()) == [SCOPES[s] for s in sorted(SCOPES) if self.committed[s]]

    def current(self, scope: str) -> list[Record]:
        return [
            revisions[-1]
            for record_id, (owner, revisions) in self.written.items()
            if owner == scope and record_id not in self.forgotten
        ]

    def newest_first(self, records: list[Record]) -> list[Record]:
        """By scope revision; within one operation the later in the order of its records."""
        places = list(self.written)
        return sorted(records, key=lambda record: (record.scope_revision, places.index(record.id)), reverse=True)


class PostgresMachine(StoreMachine):
    """The same with PostgreSQL, on fewer stories: each statement is a trip to the server."""

    scrubs_at_once = False

    def handles(self, **options: Any) -> list[Any]:
        schema = self.place.enter_context(fresh_schema())
        return [PostgresStore(server_uri(), schema=schema, **options) for _ in range(2)]


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
StoreMachine.TestCase.settings = SETTINGS
# A story that goes wrong is shown as it is: to make it short would take minutes here.
PostgresMachine.TestCase.settings = settings(SETTINGS, max_examples=8, phases=(Phase.explicit, Phase.generate))
TestStores = StoreMachine.TestCase
TestPostgres = PostgresMachine.TestCase
