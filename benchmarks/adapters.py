"""What an adapter adds to a call: the tools and the retrievers of both frameworks beside the bare session.

Owns the calls that are compared and the table. One run times the session, both adapters, and both frameworks with a
tool and a retriever that do nothing, turn by turn in short blocks, so that a busy machine is busy for all; read what is
added, not the milliseconds. A tool is called as the framework's agents call it, within a run that is known, so that an
operation id is made. The store is in memory: what is timed is the code around it. Does not own how fast the session is
(``speed.py``).

    python benchmarks/adapters.py [--records 2000] [--calls 300] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from langchain_core.tools import StructuredTool
from langgraph.prebuilt import ToolRuntime
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step

import vmem_langchain
import vmem_llamaindex
from vmem_core import Draft, InMemoryStore, MemorySession, Scope, Source, text_digest
from vmem_llamaindex.identity import ToolCall, begin_turn, entered

SCOPE: Final = Scope(user_id="ada")
TOP_K: Final = 5
BLOCK: Final = 25  # calls of one system before the next one's turn
VOCABULARY: Final = 20_000
CALLS: Final = ("tool: remember", "tool: recall", "retrieve")
ADAPTERS: Final = ("langchain", "llamaindex")

Timed = Callable[[str, str], Awaitable[Any]]  # a text and the id of the call that it comes with
ToolCaller = Callable[[str, dict[str, Any], str], Awaitable[Any]]  # a tool's name, arguments and the call's id


def made_texts(count: int, words: int, seed: int) -> list[str]:
    """Made texts: words are drawn log-uniformly, so that some are in most texts and most are rare, as in prose."""
    drawn = random.Random(seed)
    return [" ".join(f"w{int(VOCABULARY ** drawn.random()) - 1:x}" for _ in range(words)) for _ in range(count)]


def filled(records: int) -> MemorySession:
    """A session whose scope holds so many records."""
    session = MemorySession(InMemoryStore(), SCOPE)
    texts = [f"Note {n}: {text}" for n, text in enumerate(made_texts(records, 14, seed=7))]
    for start in range(0, records, 10_000):
        session.sync.remember_many([Draft(text) for text in texts[start : start + 10_000]])
    return session


# --- the three systems ------------------------------------------------------------------------------------------------


def bare(session: MemorySession) -> dict[str, Timed]:
    """The session alone, asked for what the tools ask it for."""

    async def remember(text: str, call_id: str) -> Any:
        source = Source("assistant", text_digest(text), tool_call_id=call_id, tool_name="memory_remember")
        return await session.remember(
            text, origin="inferred", sources=[source], supersede="skip_equal", operation_id=f"op-{call_id}"
        )

    async def recall(query: str, call_id: str) -> Any:
        return await session.recall(query, top_k=TOP_K)

    return dict(zip(CALLS, (remember, recall, recall), strict=True))


def langchain(session: MemorySession) -> dict[str, Timed]:
    """LangChain's tools, called as a tool node calls them, and its retriever."""
    tools = {tool.name: tool for tool in vmem_langchain.create_memory_tools(session, top_k=TOP_K)}
    retriever = vmem_langchain.MemoryRetriever(session, k=TOP_K)
    return _timed(_langchain_call(tools), lambda query, call_id: retriever.ainvoke(query))


def langchain_alone() -> dict[str, Timed]:
    """What LangChain itself takes to call a tool of the same arguments and a retriever that do nothing."""

    async def nothing(**arguments: Any) -> tuple[str, None]:
        return "", None

    class Empty(LangChainRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
            return []

        async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
            return []

    tools = {
        tool.name: StructuredTool(
            name=tool.name,
            description=tool.description,
            args_schema=tool.args_schema,
            coroutine=nothing,
            response_format="content_and_artifact",
        )
        for tool in vmem_langchain.create_memory_tools(MemorySession(InMemoryStore(), SCOPE))
    }
    return _timed(_langchain_call(tools), lambda query, call_id: Empty().ainvoke(query))


def _langchain_call(tools: dict[str, Any]) -> ToolCaller:
    async def call(name: str, args: dict[str, Any], call_id: str) -> Any:
        made = {"name": name, "args": args, "id": call_id, "type": "tool_call"}
        state = {"messages": [AIMessage("", tool_calls=[made], id=f"message-{call_id}")]}
        runtime = ToolRuntime(
            state=state,
            context=None,
            config={"configurable": {"thread_id": "thread"}},
            stream_writer=lambda written: None,
            tool_call_id=call_id,
            store=None,
        )
        return await tools[name].ainvoke({**made, "args": {**args, "runtime": runtime}})

    return call


def llamaindex(session: MemorySession, context: Context[Any]) -> dict[str, Timed]:
    """LlamaIndex's tools, called as an agent's step calls them, and its retriever."""
    made = vmem_llamaindex.create_memory_tools(session, top_k=TOP_K)
    tools = {tool.metadata.get_name(): tool for tool in made}
    retriever = vmem_llamaindex.MemoryRetriever(session, similarity_top_k=TOP_K)
    return _timed(_llamaindex_call(tools, context), lambda query, call_id: retriever.aretrieve(query))


def llamaindex_alone(context: Context[Any]) -> dict[str, Timed]:
    """What LlamaIndex itself takes to call a tool of the same arguments and a retriever that do nothing."""

    async def nothing(**arguments: Any) -> str:
        return ""

    class Empty(LlamaIndexRetriever):
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            return []

        async def _aretrieve(self, query_bundle: Any) -> list[Any]:
            return []

    tools = {
        tool.metadata.get_name(): FunctionTool.from_defaults(async_fn=nothing, tool_metadata=tool.metadata)
        for tool in vmem_llamaindex.create_memory_tools(MemorySession(InMemoryStore(), SCOPE))
    }
    return _timed(_llamaindex_call(tools, context), lambda query, call_id: Empty().aretrieve(query))


def _llamaindex_call(tools: dict[str, Any], context: Context[Any]) -> ToolCaller:
    async def call(name: str, args: dict[str, Any], call_id: str) -> Any:
        block = ToolCallBlock(tool_call_id=call_id, tool_name=name, tool_kwargs=args)
        await context.store.set("scratchpad", [ChatMessage(role="assistant", blocks=[block])])
        with entered(ToolCall(call_id, name, args, context)):
            return await tools[name].acall(**args)

    return call


def _timed(call: ToolCaller, retrieve: Timed) -> dict[str, Timed]:
    def remember(text: str, call_id: str) -> Awaitable[Any]:
        return call("memory_remember", {"text": text}, call_id)

    def recall(query: str, call_id: str) -> Awaitable[Any]:
        return call("memory_recall", {"query": query}, call_id)

    return dict(zip(CALLS, (remember, recall, retrieve), strict=True))


# --- measuring --------------------------------------------------------------------------------------------------------


async def beside_each_other(records: int, calls: int, context: Context[Any]) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each call of each kind, by system."""
    systems = {
        "session": bare(filled(records)),
        "langchain": langchain(filled(records)),
        "langchain_alone": langchain_alone(),
        "llamaindex": llamaindex(filled(records), context),
        "llamaindex_alone": llamaindex_alone(context),
    }
    given = {
        "tool: remember": [f"Fact {n}: {text}" for n, text in enumerate(made_texts(calls, 14, seed=8))],
        "tool: recall": made_texts(calls, 6, seed=9),
        "retrieve": made_texts(calls, 6, seed=10),
    }
    taken: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in systems} for kind in CALLS}
    for kind in CALLS:
        for timed in systems.values():
            await timed[kind](f"Warm up {kind}", f"warm-up-{kind}")
        for start in range(0, calls, BLOCK):
            for name, timed in systems.items():
                texts = enumerate(given[kind][start : start + BLOCK], start)
                taken[kind][name] += [await _milliseconds(timed[kind], text, f"call-{n}") for n, text in texts]
    return taken


async def _milliseconds(call: Timed, text: str, call_id: str) -> float:
    begin = time.perf_counter()
    await call(text, call_id)
    return (time.perf_counter() - begin) * 1e3


def workflow_that_measures(records: int, calls: int) -> Workflow:
    """Everything happens inside a step of a workflow, where LlamaIndex's tools find the context that they need."""

    class Measuring(Workflow):
        async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await begin_turn(ctx)
            return StopEvent(result=await beside_each_other(records, calls, ctx))

        # Workflows read annotations as they stand, and this file postpones its own.
        begin.__annotations__ = {"ctx": Context, "ev": StartEvent, "return": StopEvent}  # noqa: RUF012
        begin = step(begin)

    return Measuring(timeout=None)


async def _run(records: int, calls: int) -> Any:
    return await workflow_that_measures(records, calls).run()


def measure(records: int, calls: int) -> list[dict[str, Any]]:
    """For each kind of call p50 and p95 in ms of every system, and what each adapter adds.

    What is added is its p50 less the framework's own and the session's.

    Args:
        records: In the one scope.
        calls: Of each kind and system.
    """
    rows = []
    for kind, systems in asyncio.run(_run(records, calls)).items():
        spread = {
            name: {"p50": statistics.median(ms), "p95": sorted(ms)[-len(ms) // 20]} for name, ms in systems.items()
        }
        p50 = {name: figures["p50"] for name, figures in spread.items()}
        added = {name: p50[name] - p50[f"{name}_alone"] - p50["session"] for name in ADAPTERS}
        rows.append({"call": kind, "records": records, **spread, "added": added})
    return rows


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table."""
    yield f"{'p50 in ms':<16}{'session':>9}" + "".join(f"{name:>13}{'alone':>8}{'added':>8}" for name in ADAPTERS)
    for row in rows:
        figures = f"{row['call']:<16}{row['session']['p50']:>9.2f}"
        for name in ADAPTERS:
            alone, added = row[f"{name}_alone"]["p50"], row["added"][name]
            figures += f"{row[name]['p50']:>13.2f}{alone:>8.2f}{added:>+8.2f}"
        yield figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the adapters add to a call.")
    parser.add_argument("--records", type=int, default=2_000, help="how many records the scope holds")
    parser.add_argument("--calls", type=int, default=300, help="calls of each kind and system")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if min(given.records, given.calls) < 1:
        parser.error("--records and --calls must be 1 or more")
    rows = measure(given.records, given.calls)
    print(json.dumps(rows) if given.json else "\n".join(lines(rows)))


if __name__ == "__main__":
    main()
