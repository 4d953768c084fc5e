"""How well recall finds the turns of long conversations that answer a question, on LoCoMo.

Owns reading the file, the measures and the table. The data (snap-research/LoCoMo, ``data/locomo10.json``, CC BY-NC 4.0)
is not part of this repository. Each conversation is a scope, each turn a record ``[date] Speaker: text``, all in one
SQLite file; each question is a recall, judged by the turns that the data names as its evidence. Does not own speed
(``speed.py``).

    python benchmarks/locomo.py --data FILE [--embedder local|none] [--json]
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vmem_core import Draft, LocalEmbedder, MemorySession, Scope, SqliteStore

CATEGORIES: Final = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
DEPTH: Final = 10  # how far down a hit counts
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D:?(\d+):(\d+)")


@dataclass(frozen=True)
class Question:
    """A question, its category, and the ids of the turns that answer it."""

    text: str
    category: int
    answers: frozenset[str]


@dataclass(frozen=True)
class Conversation:
    """A conversation: its name, its turns as drafts in order, and the questions about it."""

    name: str
    drafts: Sequence[Draft]
    questions: Sequence[Question]


@dataclass(frozen=True)
class Answer:
    """What a recall made of a question: the ids it found, best first, and how long it took."""

    question: Question
    found: Sequence[str]
    ms: float


def turn_ids(evidence: Iterable[str]) -> Iterator[str]:
    """The turns that an evidence list names, in one spelling.

    The file has slips: two turns in one string, ``D:11:26`` for ``D11:26``, leading zeros, a lone ``D``.

    >>> list(turn_ids(["D8:6; D9:17", "D:11:26", "D30:05", "D"]))
    ['D8:6', 'D9:17', 'D11:26', 'D30:5']
    """
    for given in evidence:
        for session, turn in _TURN.findall(given):
            yield f"D{int(session)}:{int(turn)}"


def read(data: Sequence[Mapping[str, Any]]) -> list[Conversation]:
    """The conversations of the file, with the questions that can be judged.

    Left out: category 5, which asks for what was never said, and questions whose evidence names no turn there is.
    """
    conversations = []
    for sample in data:
        drafts = list(_drafts(sample["sample_id"], sample["conversation"]))
        known = {draft.id for draft in drafts}
        questions = []
        for asked in sample["qa"]:
            answers = {f"{sample['sample_id']}/{turn}" for turn in turn_ids(asked.get("evidence", ()))} & known
            if asked["category"] in CATEGORIES and answers:
                questions.append(Question(asked["question"], asked["category"], frozenset(answers)))
        conversations.append(Conversation(sample["sample_id"], drafts, questions))
    return conversations


def _drafts(name: str, conversation: Mapping[str, Any]) -> Iterator[Draft]:
    sessions = sorted(int(match[1]) for key in conversation if (match := _SESSION.fullmatch(key)))
    for session in sessions:
        date = conversation.get(f"session_{session}_date_time", "no date")
        for turn in conversation[f"session_{session}"]:
            (turn_id,) = turn_ids([turn["dia_id"]])
            caption = f" [image: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            text = f"[{date}] {turn['speaker']}: {turn['text']}{caption}"
            yield Draft(text, f"{name}/{turn_id}", kind="episodic")


def ask(
    store: SqliteStore, conversations: Iterable[Conversation], embedder: Any, fusion: str = "rrf"
) -> Iterator[Answer]:
    """Recall for every question, each in the scope of its own conversation."""
    for conversation in conversations:
        session = MemorySession(store, Scope(chat_id=conversation.name), embedder=embedder, fusion=fusion)
        recall = session.sync.recall
        recall(conversation.name, top_k=DEPTH)  # the scope's index is made now, not in the time of the first question
        for question in conversation.questions:
            begin = time.perf_counter()
            hits = recall(question.text, top_k=DEPTH)
            yield Answer(question, [hit.record.id for hit in hits], (time.perf_counter() - begin) * 1e3)


def measures(answers: Sequence[Answer]) -> dict[str, float]:
    """The means over questions: R@k, the share of the answering turns among the first k; MRR, within the first 10."""
    means = {f"R@{k}": statistics.fmean(_recall_at(k, answer) for answer in answers) for k in (1, 5, 10)}
    return {"questions": len(answers), **means, "MRR": statistics.fmean(map(_reciprocal_rank, answers))}


def _recall_at(k: int, answer: Answer) -> float:
    wanted = answer.question.answers
    return len(wanted.intersection(answer.found[:k])) / len(wanted)


def _reciprocal_rank(answer: Answer) -> float:
    ranks = (rank for rank, found in enumerate(answer.found, 1) if found in answer.question.answers)
    return 1 / next(ranks, float("inf"))


def measure(conversations: Sequence[Conversation], embedder: Any, folder: Path, fusion: str = "rrf") -> dict[str, Any]:
    """Ingest into one file, ask everything: plain data.

    Args:
        conversations: From :func:`read`, with at least one question.
        embedder: As for a session, or None.
        folder: Where the file is made.
        fusion: How the lists by meaning and by words become one: ``rrf`` or ``scores``.
    """
    store = SqliteStore(folder / "locomo.db")
    begin = time.perf_counter()
    for conversation in conversations:
        session = MemorySession(store, Scope(chat_id=conversation.name), embedder=embedder)
        session.sync.remember_many(conversation.drafts)
    seconds = time.perf_counter() - begin
    answers = list(ask(store, conversations, embedder, fusion))
    store.sync.close()
    groups = {name: [a for a in answers if a.question.category == code] for code, name in CATEGORIES.items()}
    return {
        "conversations": len(conversations),
        "turns": sum(len(conversation.drafts) for conversation in conversations),
        "ingest_seconds": seconds,
        "ms_a_query": statistics.median(answer.ms for answer in answers),
        "by_category": {name: measures(group) for name, group in {**groups, "all": answers}.items() if group},
    }


def lines(measured: Mapping[str, Any]) -> Iterator[str]:
    """The table."""
    yield "{conversations} conversations, {turns:,} turns, ingested in {ingest_seconds:.1f} s".format_map(measured)
    yield f"{'':<14}{'questions':>10}{'R@1':>8}{'R@5':>8}{'R@10':>8}{'MRR':>8}"
    for name, row in measured["by_category"].items():
        shares = "".join(f"{row[column]:>8.3f}" for column in ("R@1", "R@5", "R@10", "MRR"))
        yield f"{name:<14}{row['questions']:>10,}{shares}"
    yield f"{measured['ms_a_query']:.2f} ms a query (median, the embedding of the query included)"


def make_embedder(name: str) -> Any:
    """An embedder for a session: ``local``, ``none``, or what ``MODULE:NAME`` makes when it is called."""
    if name in ("local", "none"):
        return LocalEmbedder() if name == "local" else None
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)()


def main(arguments: Sequence[str] | None = None) -> None:
    """Ingest, ask and print."""
    parser = argparse.ArgumentParser(description="Recall on LoCoMo.")
    parser.add_argument("--data", required=True, type=Path, help="a copy of LoCoMo's locomo10.json, or part of it")
    parser.add_argument("--embedder", default="local", help="local, none, or MODULE:NAME of a callable that makes one")
    parser.add_argument("--fusion", choices=("rrf", "scores"), default="rrf")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(arguments)
    conversations = read(json.loads(given.data.read_text(encoding="utf-8")))
    if not any(conversation.questions for conversation in conversations):
        parser.error("the file has no question that can be judged")
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(conversations, make_embedder(given.embedder), Path(folder), given.fusion)
    print(json.dumps(measured) if given.json else "\n".join(lines(measured)))


if __name__ == "__main__":
    main()
