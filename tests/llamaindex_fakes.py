"""Models that follow a script, agents of each kind around them, and a chat memory that survives in a context.

A script is a list of steps; a step is a list of calls, or a function that makes one of the answers so far. Its place is
read from the conversation itself, not counted: a resumed or replayed run gets the replies that belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.agent.workflow.workflow_events import ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.llms import LLMMetadata
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import BaseMemory
from pydantic import Field

from vmem_llamaindex import VersionedAgentWorkflow, VersionedFunctionAgent, VersionedReActAgent


@dataclass(frozen=True)
class Call:
    """A call that the scripted model makes."""

    tool: str
    args: dict[str, Any]
    call_id: str = "call_1"


Step = Sequence[Call] | Callable[[list[Any]], Sequence[Call]]


def remembering(text: str, call_id: str = "call_1") -> list[Call]:
    return [Call("memory_remember", {"text": text}, call_id)]


def recalling(query: str, call_id: str = "call_1") -> list[Call]:
    return [Call("memory_recall", {"query": query}, call_id)]


def revising_what_was_found(text: str, call_id: str = "call_2") -> Callable[[list[Any]], list[Call]]:
    """A step that revises the first record that the last answer names, with the revision that it names."""

    def step(answers: list[Any]) -> list[Call]:
        found = answers[-1][0]
        change = {"id": found["id"], "expected_revision": found["revision"], "text": text}
        return [Call("memory_revise", change, call_id)]

    return step


# --- models -------------------------------------------------------------------------------------------------------


class ScriptedLLM(MockFunctionCallingLLM):
    """Makes the calls of the step whose place is the number of its replies in the conversation; then says done."""

    script: Any = ()
    seen: list[Any] = Field(default_factory=list)

    def __init__(self, script: Sequence[Step], **more: Any) -> None:
        super().__init__(is_chat_model=True, **more)
        self.script = list(script)
        self.response_generator = self.reply

    def reply(self, messages: Sequence[ChatMessage], **given: Any) -> ChatMessage:
        self.seen.append([*messages])
        place = sum(message.role == "assistant" for message in messages)
        if place >= len(self.script):
            return self.say_done()
        step = self.script[place]
        return self.make_calls(step(self.answers(messages)) if callable(step) else step)

    def say_done(self) -> ChatMessage:
        return ChatMessage(role="assistant", content="done")

    def make_calls(self, calls: Sequence[Call]) -> ChatMessage:
        blocks = [ToolCallBlock(tool_call_id=one.call_id, tool_name=one.tool, tool_kwargs=one.args) for one in calls]
        return ChatMessage(role="assistant", blocks=blocks)

    def answers(self, messages: Sequence[ChatMessage]) -> list[Any]:
        return [json.loads(message.content or "") for message in messages if message.role == "tool"]


class ScriptedReActLLM(ScriptedLLM):
    """The same in the words of ReAct: a thought, an action and its input; an observation comes as a user's message."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=False, is_chat_model=True)

    def say_done(self) -> ChatMessage:
        return ChatMessage(role="assistant", content="Thought: I can answer.\nAnswer: done")

    def make_calls(self, calls: Sequence[Call]) -> ChatMessage:
        [one] = calls
        action = f"Thought: I use a tool.\nAction: {one.tool}\nAction Input: {json.dumps(one.args)}"
        return ChatMessage(role="assistant", content=action)

    def answers(self, messages: Sequence[ChatMessage]) -> list[Any]:
        mark = "Observation: "
        said = [str(message.content) for message in messages if message.role == "user"]
        return [json.loads(text.removeprefix(mark)) for text in said if text.startswith(mark)]


# --- agents -------------------------------------------------------------------------------------------------------

AGENTS: dict[str, Callable[..., Any]] = {
    "FunctionAgent": lambda steps, tools, **more: VersionedFunctionAgent(llm=ScriptedLLM(steps), tools=tools, **more),
    "ReActAgent": lambda steps, tools, **more: VersionedReActAgent(llm=ScriptedReActLLM(steps), tools=tools, **more),
    "AgentWorkflow": lambda steps, tools, **more: VersionedAgentWorkflow(
        agents=[FunctionAgent(llm=ScriptedLLM(steps), tools=tools, **more)]
    ),
}
UPSTREAM: dict[str, Callable[..., Any]] = {
    "FunctionAgent": lambda steps, tools, **more: FunctionAgent(llm=ScriptedLLM(steps), tools=tools, **more),
    "ReActAgent": lambda steps, tools, **more: ReActAgent(llm=ScriptedReActLLM(steps), tools=tools, **more),
    "AgentWorkflow": lambda steps, tools, **more: AgentWorkflow(
        agents=[FunctionAgent(llm=ScriptedLLM(steps), tools=tools, **more)]
    ),
}


def outputs(result: Any) -> list[Any]:
    """The outputs of the tools of a finished run."""
    return [call.tool_output for call in result.tool_calls if isinstance(call, ToolCallResult)]


def answers(result: Any) -> list[Any]:
    """What the tools of a finished run answered, as data."""
    return [json.loads(output.content) for output in outputs(result)]


class KeptMemory(BaseMemory):
    """A chat memory that is saved with its context, which upstream's are not. No more than agents need."""

    messages: list[ChatMessage] = Field(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "KeptMemory"

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> KeptMemory:
        return cls()

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        return {"said": [[message.role.value, message.content] for message in self.messages]}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> KeptMemory:
        said = [ChatMessage(role=role, blocks=[TextBlock(text=text or "")]) for role, text in data["said"]]
        return cls(messages=said)

    def get(self, input: Any = None, **kwargs: Any) -> list[ChatMessage]:
        # Whole turns of plain text: providers refuse calls without their results, and so does a script.
        return [message for message in self.messages if message.role in ("user", "assistant") and message.content]

    def get_all(self) -> list[ChatMessage]:
        return self.messages

    def put(self, message: ChatMessage) -> None:
        self.messages.append(message)

    def set(self, messages: list[ChatMessage]) -> None:
        self.messages = list(messages)

    def reset(self) -> None:
        self.messages = []
