"""What extraction costs besides the models: calls and milliseconds outside them, for a long conversation.

Owns a made conversation, scripted models that keep count of their calls and of the time they take, and the table. A
scope of a SQLite file holds some records; then the conversation is sent once, sent again with nothing new, and, in
another scope, sent whole after each turn, as a chat does. Does not own speed of single writes (``speed.py``).

    python benchmarks/extract.py [--messages 200] [--records 2000] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vmem_core import (
    Draft,
    Embeddings,
    ExtractionPolicy,
    MemorySession,
    Message,
    Prompt,
    Scope,
    SqliteStore,
    ToolCall,
    WriteResult,
)

TRUSTED: Final = "lookup_order"
TURN: Final = 5  # messages: user, call, result, call, result
DIMS: Final = 256
_NEW = re.compile(r"^\[(n\d+)\]", re.MULTILINE)
_SOURCE = re.compile(r"^\[(s\d+)\] \w+[^:]*: (.*)$", re.MULTILINE)


@dataclass
class Models:
    """A language model and an embedder that answer at once, and count their calls and seconds.

    The language model makes a fact of every second source and adds every new fact.
    """

    llm_calls: int = 0
    embedding_calls: int = 0
    seconds: float = field(default=0.0, repr=False)

    async def ask(self, prompt: Prompt) -> str:
        """Answer a prompt of either kind."""
        start = time.perf_counter()
        self.llm_calls += 1
        if prompt.system.startswith("You extract"):
            found = _SOURCE.findall(prompt.user)[::2][:100]
            reply = {"facts": [{"text": f"It was said: {text}", "sources": [tag]} for tag, text in found]}
        else:
            reply = {"memory": [{"event": "ADD", "fact": handle} for handle in _NEW.findall(prompt.user)]}
        answer = json.dumps(reply)
        self.seconds += time.perf_counter() - start
        return answer

    async def embed(self, texts: Sequence[str], *, purpose: str) -> Embeddings:
        """A vector a text, made of its hash."""
        start = time.perf_counter()
        self.embedding_calls += 1
        vectors = [_vector(text) for text in texts]
        self.seconds += time.perf_counter() - start
        return Embeddings(vectors, "made-256")


def _vector(text: str) -> list[float]:
    digest = hashlib.shake_128(text.encode()).digest(DIMS)
    return [byte - 127.5 for byte in digest]


def conversation(messages: int) -> list[Message]:
    """A conversation in turns: the user asks, a trusted tool answers, and so does one that is not trusted."""
    made: list[Message] = []
    for turn in range(-(-messages // TURN)):
        said = f"On day {turn} I ordered item {turn * 7} from shop {turn % 13} and I like it in colour {turn % 5}."
        answer = {"order": turn, "ships": f"day {turn + 2}", "items": [{"id": turn * 7, "count": turn % 3 + 1}] * 3}
        made += [
            Message(f"u{turn}", "user", said),
            Message(f"a{turn}", "assistant", None, tool_calls=(ToolCall(f"c{turn}", TRUSTED, {"id": turn}),)),
            Message(f"t{turn}", "tool", answer, tool_call_id=f"c{turn}"),
            Message(f"b{turn}", "assistant", "I search.", tool_calls=(ToolCall(f"d{turn}", "search"),)),
            Message(f"w{turn}", "tool", f"A page about item {turn * 7}. " * 20, tool_call_id=f"d{turn}"),
        ]
    return made[:messages]


@dataclass
class Bench:
    """Sessions over one file, and a stopwatch that leaves the models out."""

    store: SqliteStore
    records: int

    async def session(self, user_id: str, models: Models) -> MemorySession:
        """A session of a scope that holds some records."""
        memory = MemorySession(
            self.store,
            Scope(user_id=user_id),
            llm=models.ask,
            embedder=models,
            extraction=ExtractionPolicy(trusted_tools={TRUSTED}),
        )
        drafts = [Draft(f"In year {n} the user bought item {n} at shop {n % 17}.") for n in range(self.records)]
        await memory.remember_many(drafts)
        await memory.recall("item")  # the index of the scope is built once, and not by what is measured
        return memory

    async def once(self, memory: MemorySession, models: Models, messages: Sequence[Message]) -> dict[str, Any]:
        """One extraction: its calls, the records it wrote, and its milliseconds outside the models."""
        before = (models.llm_calls, models.embedding_calls, models.seconds)
        start = time.perf_counter()
        written: WriteResult = await memory.extract(messages)
        took = time.perf_counter() - start - (models.seconds - before[2])
        return {
            "llm_calls": models.llm_calls - before[0],
            "embedding_calls": models.embedding_calls - before[1],
            "records": len(written.records),
            "ms": took * 1000,
        }


async def measure(folder: Path, messages: int, records: int) -> dict[str, Any]:
    """All figures of one run."""
    store = SqliteStore(folder / "memory.db")
    bench, made = Bench(store, records), conversation(messages)
    try:
        models = Models()
        whole = await bench.session("whole", models)
        first = await bench.once(whole, models, made)
        again = await bench.once(whole, models, made)
        growing = await bench.session("growing", models)
        turns = [await bench.once(growing, models, made[: end + TURN]) for end in range(0, messages, TURN)]
    finally:
        await store.close()
    return {"messages": messages, "in_scope": records, "first": first, "again": again, "turns": _summed(turns)}


def _summed(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    times = sorted(turn["ms"] for turn in turns)
    return {
        "turns": len(turns),
        **{name: sum(turn[name] for turn in turns) for name in ("llm_calls", "embedding_calls", "records")},
        "ms": statistics.median(times),
        "p95": times[min(len(times) - 1, int(len(times) * 0.95))],
    }


def lines(measured: dict[str, Any]) -> Iterator[str]:
    """The table."""
    yield f"{measured['messages']} messages, {measured['in_scope']:,} records in the scope before"
    yield f"{'':<30}{'model calls':>12}{'embedding calls':>17}{'records':>9}{'ms outside the models':>23}"
    turns = measured["turns"]
    labels = {
        "first": "sent once",
        "again": "sent again, nothing new",
        "turns": f"sent whole after each of {turns['turns']} turns",
    }
    for name, label in labels.items():
        row = measured[name]
        time_taken = f"{row['ms']:.1f}" + (f" a turn, p95 {row['p95']:.1f}" if name == "turns" else "")
        yield f"{label:<30}{row['llm_calls']:>12}{row['embedding_calls']:>17}{row['records']:>9}{time_taken:>23}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Calls and milliseconds outside the models of an extraction.")
    parser.add_argument("--messages", type=int, default=200, help="messages of the conversation")
    parser.add_argument("--records", type=int, default=2_000, help="records that the scope holds before")
    parser.add_argument("--folder", help="where the file is made, and deleted; default: the system's")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    if min(given.messages, given.records) < 1:
        parser.error("--messages and --records must be 1 or more")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measured = asyncio.run(measure(Path(folder), given.messages, given.records))
    print(json.dumps(measured) if given.json else "\n".join(lines(measured)))


if __name__ == "__main__":
    main()
