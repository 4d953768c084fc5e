"""Language models for tests: scripted, countable, able to wait. And short words for messages, replies and prompts.

Owns the fakes of language models and what their tests share. Does not own embedders, clocks or ids (``fakes.py``).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from vmem_core import Message, Prompt, ToolCall, WriteResult

# ------------------------------------------------------------------------------------------------------- messages


def user(message_id: str, content: Any, **more: Any) -> Message:
    return Message(message_id, "user", content, **more)


def assistant(message_id: str, content: Any = None, **more: Any) -> Message:
    return Message(message_id, "assistant", content, **more)


def call(message_id: str, call_id: str | None, name: str, content: Any = None, **args: Any) -> Message:
    """An assistant's message with one tool call."""
    return Message(message_id, "assistant", content, tool_calls=(ToolCall(call_id, name, args),))


def result(message_id: str, call_id: str | None, content: Any, **more: Any) -> Message:
    """A tool's answer."""
    return Message(message_id, "tool", content, tool_call_id=call_id, **more)


# -------------------------------------------------------------------------------------------------------- replies


def fact(text: str, *sources: str, **more: Any) -> dict[str, Any]:
    return {"text": text, "sources": list(sources), **more}


def facts(*found: str | dict[str, Any]) -> str:
    """An extraction's reply; a text alone cites nothing."""
    return json.dumps({"facts": [fact(one) if isinstance(one, str) else one for one in found]})


def add(text: str | None = None, fact: str | None = "n0", **more: Any) -> dict[str, Any]:
    return _entry("ADD", None, fact, text, more)


def update(record: Any, text: str | None = None, fact: str | None = "n0", **more: Any) -> dict[str, Any]:
    return _entry("UPDATE", record, fact, text, more)


def delete(record: Any, fact: str | None = "n0", **more: Any) -> dict[str, Any]:
    return _entry("DELETE", record, fact, None, more)


def noop(record: Any = None, fact: str | None = "n0", **more: Any) -> dict[str, Any]:
    return _entry("NOOP", record, fact, None, more)


def _entry(event: str, record: Any, fact: str | None, text: str | None, more: dict[str, Any]) -> dict[str, Any]:
    given = {"event": event, "id": record, "fact": fact, "text": text}
    return {name: value for name, value in given.items() if value is not None} | more


def decisions(*entries: Any) -> str:
    """A reconciliation's reply."""
    return json.dumps({"memory": list(entries)})


# --------------------------------------------------------------------------------------------------------- models


@dataclass
class FakeLLM:
    """A language model with a script for each of its two tasks.

    Args:
        facts: Answers to prompts of extraction: a list is used up in order, anything else is given each time. An
            exception is raised, a function is called with the prompt.
        decisions: Answers to prompts of reconciliation, likewise.
        before: Awaited in each call, so that a test can act while a model thinks.
    """

    facts: Any = field(default_factory=list)
    decisions: Any = field(default_factory=list)
    before: Callable[[Prompt], Awaitable[None]] | None = None
    prompts: list[Prompt] = field(default_factory=list)

    async def __call__(self, prompt: Prompt) -> Any:
        self.prompts.append(prompt)
        task = task_of(prompt)
        if self.before is not None:
            await self.before(prompt)
        return answer_from(self.facts if task == "extract" else self.decisions, prompt)

    @property
    def tasks(self) -> list[str]:
        """What it was asked for, in order."""
        return [task_of(prompt) for prompt in self.prompts]


def answer_from(script: Any, prompt: Prompt) -> Any:
    """The next answer of a script."""
    if isinstance(script, list):
        assert script, f"asked once more than the script has answers: {task_of(prompt)}"
        script = script.pop(0)
    if isinstance(script, BaseException):
        raise script
    return script(prompt) if callable(script) else script


def obey(prompt: Prompt) -> str:
    """Does whatever it reads: each source is a fact, each fact is added. What it was shown, memory will hold."""
    if task_of(prompt) == "extract":
        return facts(*(fact(text, tag) for tag, text in source_lines(prompt)))
    return decisions(*(add(text, handle) for handle, text in new_lines(prompt)))


class Gate:
    """Holds the first calls of a model until it is opened, and tells when one has arrived.

    Args:
        holds: How many calls are held; later ones pass.
    """

    def __init__(self, holds: int = 1) -> None:
        self.arrived, self.opened = asyncio.Event(), asyncio.Event()
        self._holds = holds

    async def __call__(self, prompt: Prompt) -> None:
        if self._holds > 0:
            self._holds -= 1
            self.arrived.set()
            await self.opened.wait()


# -------------------------------------------------------------------------------------------------------- prompts


def task_of(prompt: Prompt) -> str:
    """``extract`` or ``reconcile``, by how the system part begins."""
    for task in ("extract", "reconcile"):
        if prompt.system.startswith(f"You {task}"):
            return task
    raise AssertionError("a prompt of no known task")


def source_lines(prompt: Prompt) -> list[tuple[str, str]]:
    """Tag and text of each source."""
    head, *lines = prompt.user.split("\n")
    assert head == "SOURCES:"
    return [_parted(r"\[(s\d+)\] (?:user|assistant|tool [^:]*): (.*)", line) for line in lines]


def existing_lines(prompt: Prompt) -> list[tuple[str, str]]:
    """Handle and text of each existing record."""
    lines = prompt.user.split("\n")
    return [_parted(r"\[(\d+)\] (.*)", line) for line in lines[1 : lines.index("NEW:")]]


def new_lines(prompt: Prompt) -> list[tuple[str, str]]:
    """Handle and text of each new fact."""
    lines = prompt.user.split("\n")
    assert lines[0] == "EXISTING:"
    return [_parted(r"\[(n\d+)\] (.*)", line) for line in lines[lines.index("NEW:") + 1 :]]


def _parted(pattern: str, line: str) -> tuple[str, str]:
    match = re.fullmatch(pattern, line)
    assert match is not None, "a line that is none of ours"
    return match[1], match[2]


def notes(written: WriteResult) -> dict[str, int]:
    """The notes of a receipt, by code."""
    return {note.code: note.count for note in written.receipt.notes}


def actions(written: WriteResult) -> list[str]:
    """What a receipt says was done, in order."""
    return [change.action for change in written.receipt.changes]
