"""A chat model that follows a script, and the few words that tests of the LangChain adapter need.

The script's place is read from the conversation itself, not counted: a resumed, replayed or second conversation gets
the replies that belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

Reply = AIMessage | Callable[[list[BaseMessage]], AIMessage]


class ScriptedModel(BaseChatModel):
    """Answers with the reply whose place in the script is the number of replies the conversation holds already."""

    script: Any
    calls: list[int] = []  # noqa: RUF012 - pydantic copies it for each model

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        place = sum(isinstance(message, AIMessage) for message in messages)
        self.calls.append(place)
        reply = self.script[place]
        made = reply(messages) if callable(reply) else reply
        return ChatResult(generations=[ChatGeneration(message=made.model_copy(deep=True))])


def tool_call(tool: str, args: dict[str, Any], call_id: str | None = "call_1") -> ToolCall:
    return ToolCall(name=tool, args=args, id=call_id, type="tool_call")


def calling(*calls: ToolCall, message_id: str | None = None) -> AIMessage:
    """A reply that calls tools."""
    return AIMessage("", tool_calls=list(calls), id=message_id)


def remembering(text: str, call_id: str | None = "call_1", message_id: str | None = None) -> AIMessage:
    """A reply that remembers one text."""
    return calling(tool_call("memory_remember", {"text": text}, call_id), message_id=message_id)


DONE = AIMessage("done")


def agent_of(tools: Sequence[Any], *script: Reply, **more: Any) -> Any:
    """A compiled agent that follows a script and then says that it is done."""
    return create_agent(ScriptedModel(script=[*script, DONE]), tools=list(tools), **more)


def asked(text: str = "hello") -> dict[str, Any]:
    """The input of a run."""
    return {"messages": [HumanMessage(text)]}


def in_thread(thread_id: str, **configurable: Any) -> dict[str, Any]:
    """The config of a run."""
    return {"configurable": {"thread_id": thread_id, **configurable}}


def tool_messages(result: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in result["messages"] if isinstance(message, ToolMessage)]


def answers(result: dict[str, Any]) -> list[Any]:
    """What the tools of a run answered, as data."""
    return [json.loads(str(message.content)) for message in tool_messages(result)]


def read(output: Any) -> Any:
    """What one tool answered, as data: it is text without a call id and a message with one."""
    return json.loads(str(output.content) if isinstance(output, ToolMessage) else output)
