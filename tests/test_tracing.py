"""Spans: one for each operation of a session, with names and counts and never a text; nothing without OpenTelemetry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_models import FakeLLM, Gate, add, decisions, fact, facts, obey, user
from fakes import FakeEmbedder, Listener, open_memory, refusal
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from vmem_core import Draft, InMemoryStore, MemorySession, Prompt, RevisionConflictError, Store

SECRET = "zq7SECRETxk9"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """A provider of spans for this test alone."""
    made = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer", made.get_tracer)
    return made


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    """Where ended spans are kept."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def told(exporter: InMemorySpanExporter) -> list[tuple[str, dict[str, Any]]]:
    """Name and attributes of each span, in the order they ended; then they are dropped."""
    found = [(span.name, _short(span)) for span in exporter.get_finished_spans()]
    exporter.clear()
    return found


def _short(span: ReadableSpan) -> dict[str, Any]:
    assert span.attributes is not None
    assert all(name.startswith("vmem.memory.") for name in span.attributes)
    return {name.removeprefix("vmem.memory."): value for name, value in span.attributes.items()}


def of(operation: str, records: int, retries: int = 0, **more: Any) -> list[tuple[str, dict[str, Any]]]:
    """The one span of an operation."""
    expected = {"operation": operation, "record_count": records, "conflict_retries": retries, **more}
    return [(f"vmem.memory.{operation}", expected)]


async def test_every_operation_is_a_span_with_counts(store: Store, spans: InMemorySpanExporter) -> None:
    memory = open_memory(store)
    first = (await memory.remember("one")).records[0]
    assert told(spans) == of("remember", 1)
    await memory.remember_many([Draft("two"), Draft("three")])
    assert told(spans) == of("remember_many", 2)
    await memory.extract([user("m1", "four"), user("m2", "five")], infer=False)
    assert told(spans) == of("extract", 2)
    await memory.revise(first.id, text="one!")
    assert told(spans) == of("revise", 1)
    await memory.recall()
    assert told(spans) == of("recall", 5)
    await memory.retract(first.id)
    assert told(spans) == of("retract", 1)
    await memory.retract(first.id)
    assert told(spans) == of("retract", 0)
    await memory.forget(first.id)
    assert told(spans) == of("forget", 1)
    await memory.forget("never had")
    assert told(spans) == of("forget", 0)
    await memory.forget_scope()
    assert told(spans) == of("forget_scope", 4)


async def test_the_embedding_generation_is_told_once_there_is_one(store: Store, spans: InMemorySpanExporter) -> None:
    memory = open_memory(store, embedder=FakeEmbedder())
    await memory.recall("tea")
    assert told(spans) == of("recall", 0)
    await memory.remember("Ada likes tea")
    assert told(spans) == of("remember", 1, embedding_generation=1)
    await memory.recall("tea")
    assert told(spans) == of("recall", 1, embedding_generation=1)


async def test_conflict_retries_are_told(store: Store, spans: InMemorySpanExporter) -> None:
    await open_memory(store).remember("Ada likes tea")
    gate = Gate()
    task = asyncio.create_task(open_memory(store, llm=FakeLLM(decisions=obey, before=gate)).remember("Ada likes milk"))
    await gate.arrived.wait()
    await open_memory(store).remember("Ada likes coffee")
    gate.opened.set()
    await task
    assert told(spans)[-1:] == of("remember", 1, 1)


async def test_a_replay_is_a_span_too(store: Store, spans: InMemorySpanExporter) -> None:
    memory = open_memory(store, llm=FakeLLM([facts("a", "b")]))
    for _ in range(2):
        await memory.extract([user("m1", "hi")], operation_id="op")
        assert told(spans) == of("extract", 2)


async def test_a_span_ends_with_its_operation_also_by_an_error_whose_class_alone_is_told(
    store: Store, spans: InMemorySpanExporter
) -> None:
    host = open_memory(store)
    await host.remember(f"Ada {SECRET}", id="old")

    async def interfere(prompt: Prompt) -> None:
        await host.remember(f"other {SECRET}", supersede="add")

    spans.clear()
    conflicting = open_memory(store, llm=FakeLLM(decisions=obey, before=interfere), max_conflict_retries=1)
    assert isinstance(await refusal(conflicting.remember(f"Ada is {SECRET}")), RevisionConflictError)
    with pytest.raises(RuntimeError):
        await open_memory(store, llm=FakeLLM(RuntimeError(SECRET))).extract([user("m1", SECRET)])
    found = [span for span in spans.get_finished_spans() if not span.status.is_ok]
    assert [(span.name, span.status.description) for span in found] == [
        ("vmem.memory.remember", "RevisionConflictError"), ("vmem.memory.extract", "RuntimeError"),
    ]  # fmt: skip
    assert all(span.events == () for span in found)
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_no_span_holds_a_text(store: Store, spans: InMemorySpanExporter) -> None:
    llm = FakeLLM(facts(fact(f"fact {SECRET}", "s0")), decisions(add(f"words {SECRET}")))
    memory = open_memory(store, llm=llm, embedder=FakeEmbedder(), on_forget=[Listener(failure=ValueError(SECRET))])
    record = (await memory.remember(f"text {SECRET}", id="old", metadata={SECRET: SECRET})).records[0]
    await memory.extract([user(SECRET, f"said {SECRET}")], instructions=SECRET, operation_id=SECRET)
    await memory.revise(record.id, text=f"revised {SECRET}")
    await memory.recall(f"query {SECRET}", metadata={SECRET: SECRET})
    await memory.retract(record.id)
    assert (await memory.forget(record.id)).redaction == "failed"
    found = spans.get_finished_spans()
    assert len(found) == 6
    assert SECRET not in "".join(span.to_json() for span in found)


VERBS: dict[str, Callable[[Any], Any]] = {
    "remember": lambda memory: memory.remember("tea"),
    "extract": lambda memory: memory.extract([user("m1", "tea")], infer=False),
    "recall": lambda memory: memory.recall("tea"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("sync", [False, True])
async def test_a_span_is_a_child_of_the_callers(
    store: Store, provider: TracerProvider, spans: InMemorySpanExporter, verb: str, sync: bool
) -> None:
    memory = open_memory(store)
    with provider.get_tracer("host").start_as_current_span("the host's") as outer:
        answer: Awaitable[Any] | Any = VERBS[verb](memory.sync if sync else memory)
        if not sync:
            await answer
        assert trace.get_current_span() is outer
    (inner,) = (span for span in spans.get_finished_spans() if span.name.startswith("vmem"))
    assert inner.parent is not None
    assert inner.parent.span_id == outer.get_span_context().span_id


async def test_what_a_model_does_is_inside_the_span_of_the_operation(
    provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    def llm(prompt: Prompt) -> str:  # a plain function, which runs in a thread
        with provider.get_tracer("host").start_as_current_span("the model's"):
            return facts()

    await open_memory(InMemoryStore(), llm=llm).extract([user("m1", "hi")])
    inner, outer = spans.get_finished_spans()
    assert (inner.name, outer.name) == ("the model's", "vmem.memory.extract")
    assert inner.parent is not None
    assert outer.context is not None
    assert inner.parent.span_id == outer.context.span_id


# --------------------------------------------------------------------------------------------- without OpenTelemetry

USE = """
import sys
{before}
from vmem_core import InMemoryStore, MemorySession, Message, Scope
memory = MemorySession(InMemoryStore(), Scope(user_id="ada")).sync
memory.extract([Message("m1", "user", "tea")], infer=False)
record = memory.recall("tea")[0].record
memory.revise(record.id, text="coffee")
memory.forget(record.id)
print(sorted(name for name, module in sys.modules.items() if module and name.partition(".")[0] == "opentelemetry"))
"""


@pytest.mark.parametrize("before", ["", "sys.modules['opentelemetry'] = None"], ids=["not imported", "not installed"])
def test_without_a_host_that_traces_nothing_of_opentelemetry_is_imported(before: str) -> None:
    used = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE.format(before=before)], capture_output=True, text=True, check=True
    )
    assert used.stdout.strip() == "[]"


def test_with_the_api_alone_operations_work() -> None:
    """The API without an SDK gives spans that keep nothing."""
    memory = MemorySession(InMemoryStore(), open_memory(InMemoryStore()).scope).sync
    assert not trace.get_current_span().is_recording()
    assert memory.remember("tea").records[0].text == "tea"
