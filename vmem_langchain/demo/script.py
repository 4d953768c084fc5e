"""The demo's model: it says the lines of a script, and each line reads the messages so far.

Owns the model, its lines, and a middleware that breaks a run off. Does not own the story they serve (``story.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

Line = Callable[[Sequence[BaseMessage]], AIMessage]


class NotAsPromised(Exception):
    """What happened is not what the demo is about to claim."""


class ScriptedModel(BaseChatModel):
    """A chat model that says, after each message of the user, the lines of a script in order.

    Args:
        lines: One function a model call; each gets the messages so far and returns the answer.
        offered: Filled with the names of the tools that the agent offers to the model.

    >>> model = ScriptedModel(lines=[say("Hello."), say("Is there more?")])
    >>> model.invoke([HumanMessage("Hi")]).content
    'Hello.'
    """

    lines: list[Any]
    offered: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        """Note the names of the tools."""
        self.offered[:] = [tool.name for tool in tools]
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        said = sum(isinstance(message, AIMessage) for message in this_turn(messages))
        return ChatResult(generations=[ChatGeneration(message=self.lines[said](messages))])


def this_turn(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The messages from the user's last one on."""
    last = max(place for place, message in enumerate(messages) if isinstance(message, HumanMessage))
    return list(messages[last:])


def calls(messages: Sequence[BaseMessage], tool: str) -> list[dict[str, Any]]:
    """The arguments of the model's calls of a tool so far, oldest first."""
    asked = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return [call["args"] for call in asked if call["name"] == tool]


def answers(messages: Sequence[BaseMessage], tool: str) -> list[Any]:
    """What a tool answered so far, oldest first."""
    return [json.loads(str(m.content)) for m in messages if isinstance(m, ToolMessage) and m.name == tool]


# --- lines ------------------------------------------------------------------------------------------------------


def call(tool: str, **arguments: Any) -> Line:
    """A line that calls a tool. An argument that is a function is read from the messages so far."""

    def line(messages: Sequence[BaseMessage]) -> AIMessage:
        number = sum(isinstance(message, ToolMessage) for message in messages) + 1
        given = {name: value(messages) if callable(value) else value for name, value in arguments.items()}
        return AIMessage("", tool_calls=[{"name": tool, "args": given, "id": f"call_{number}"}])

    return line


def say(template: str, /, **parts: Callable[[Sequence[BaseMessage]], Any]) -> Line:
    """A line that answers the user; ``{name}`` in it is read from the messages so far."""
    return lambda messages: AIMessage(template.format(**{name: read(messages) for name, read in parts.items()}))


def recalled(about: str, name: str, *, recall: int = -1) -> Callable[[Sequence[BaseMessage]], Any]:
    """What reads one field of a record from what ``memory_recall`` answered in this chat.

    Args:
        about: A part of the record's text.
        name: The field.
        recall: Which recall of the chat; -1: the last, 0: the first.

    Raises:
        NotAsPromised: From the reading, if that recall did not find the record.
    """

    def read(messages: Sequence[BaseMessage]) -> Any:
        answer = answers(messages, "memory_recall")[recall]
        found = [item for item in answer if about in item["text"]] if isinstance(answer, list) else []
        if not found:
            raise NotAsPromised(f"memory_recall finds the record about {about!r}")
        return found[0][name]

    return read


class BreakOff(AgentMiddleware[Any, Any]):
    """Ends a run with an error once its first tool has done its work, before the answer is kept."""

    class Broken(Exception):
        """The run broke off."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Let the tool work, and break off if it is the first call."""
        answer = handler(request)
        self.answers.append(json.loads(str(answer.content)))
        if len(self.answers) == 1:
            raise self.Broken
        return answer
