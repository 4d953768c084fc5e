"""LangChain's messages as the core reads them.

Owns the way from a message to a ``vmem_core.Message`` with an id of its own, what of it a model or a provider's own
tool wrote, and which messages begin a turn. Does not own what is trusted or read together: the core decides that, the
first by the call a result answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)

from vmem_core import (
    Message,
    ToolCall,
    batch_turns,
    holds_memory,
    is_memory_answer,
    looks_observed,
    mend_string,
    read_json,
    split_turns,
    tells_of_failure,
    text_digest,
    without_rendered,
)

# Blocks that are the conversation itself. Any other kind may hold what a provider's own tool (a web search, a file
# search, a remote server) found, and the text beside it repeats that.
_OWN_BLOCKS: Final = frozenset(
    {
        "text", "output_text", "thinking", "redacted_thinking", "reasoning", "reasoning_content", "refusal",
        "tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call", "input_json_delta",
        "image", "image_url", "audio", "video", "file",
    }
)  # fmt: skip
_FOUND_BY_PROVIDER: Final = ("citations", "annotations", "search_results", "grounding_metadata", "tool_outputs")


@dataclass(frozen=True, slots=True)
class Read:
    """A message as the core reads it.

    Args:
        messages: One; two if a provider's own tool spoke in it: first what it found, which is never read.
        original: LangChain's message.
    """

    messages: tuple[Message, ...]
    original: BaseMessage

    @property
    def id(self) -> str:
        """The id that it was given, or that was made for it."""
        return self.messages[-1].id

    @property
    def begins_turn(self) -> bool:
        """Whether the user speaks."""
        said = self.messages[-1]
        return said.role == "user" and not said.model_written and not looks_observed(text_of(said.content))


def read(messages: Iterable[Any], thread_id: str | None) -> list[Read]:
    """A conversation, in order, each message with an id of its own.

    A message without an id gets one made of the thread, its role and content, and how many equal ones came before it:
    the same one each time the conversation is read, also when its beginning was cut off.

    Args:
        messages: LangChain's messages, or what LangChain takes for them.
        thread_id: The conversation.
    """
    ids = _Ids(thread_id)
    given = [one for one in convert_to_messages(list(messages)) if not isinstance(one, RemoveMessage)]
    return [_read(one, ids.next(one)) for one in given]


def _read(message: BaseMessage, message_id: str) -> Read:
    said = _message(message, message_id)
    if isinstance(message, AIMessage) and _provider_found(message):
        # An answer to no call: untrusted, and so is what the assistant says after it.
        return Read((Message(f"{message_id}#found", "tool", None), said), message)
    return Read((said,), message)


def _message(message: BaseMessage, message_id: str) -> Message:
    written = bool(message.additional_kwargs.get("lc_source"))  # a summary, a notice, another's answer for a tool
    match message:
        case HumanMessage() | ChatMessage(role="user" | "human"):
            return Message(message_id, "user", _without_context(message.content), model_written=written)
        case AIMessage():
            named = [call for call in message.tool_calls if mend_string(call["name"]).strip()]
            calls = tuple(ToolCall(call["id"], call["name"], call["args"]) for call in named)
            return Message(message_id, "assistant", message.content, tool_calls=calls, model_written=written)
        case ToolMessage():
            return Message(
                message_id,
                "tool",
                message.content,
                tool_call_id=message.tool_call_id,
                tool_name=message.name,
                is_error=_is_failed(message),
                model_written=written or is_our_answer(message),
            )
        case SystemMessage():
            return Message(message_id, "system", message.content)
        case ChatMessage(role="assistant" | "ai"):
            return Message(message_id, "assistant", message.content, model_written=written)
        case ChatMessage(role="system" | "developer"):
            return Message(message_id, "system", message.content)
        case FunctionMessage():
            return Message(message_id, "tool", message.content, tool_name=message.name)
    return Message(message_id, "tool", None)  # nobody we know: not read, nor what repeats it


def _without_context(content: Any) -> Any:
    """A content without what memory told, where a host put it beside the user's words."""
    if isinstance(content, str):
        return without_rendered(content)
    if not isinstance(content, list):
        return content
    return [
        {**block, "text": without_rendered(block["text"])}
        if isinstance(block, dict) and isinstance(block.get("text"), str)
        else _without_context(block)
        for block in content
    ]


def text_of(content: Any) -> str:
    """The texts of a content, in order."""
    blocks = content if isinstance(content, list) else [content]
    return mend_string("\n".join(text for block in blocks if (text := _text_of_block(block)) is not None))


def _text_of_block(block: Any) -> str | None:
    if isinstance(block, str):
        return block
    text = block.get("text") if isinstance(block, Mapping) and block.get("type", "text") == "text" else None
    return text if isinstance(text, str) else None


# --- what others wrote --------------------------------------------------------------------------------------------


def _provider_found(message: AIMessage) -> bool:
    """Whether a tool that the provider runs itself may have spoken in an assistant's message."""
    for place in (message.additional_kwargs, message.response_metadata):
        if any(place.get(name) for name in _FOUND_BY_PROVIDER):
            return True
    blocks = message.content if isinstance(message.content, list) else []
    return any(isinstance(block, Mapping) and _is_found(block) for block in blocks)


def _is_found(block: Mapping[str, Any]) -> bool:
    return block.get("type", "text") not in _OWN_BLOCKS or any(block.get(name) for name in _FOUND_BY_PROVIDER)


def _is_failed(message: ToolMessage) -> bool:
    if message.status == "error" or tells_of_failure(message.artifact):
        return True
    blocks = message.content if isinstance(message.content, list) else []
    return tells_of_failure(text_of(message.content)) or any(tells_of_failure(block) for block in blocks)


def is_our_answer(message: ToolMessage) -> bool:
    """Whether a result is an answer of our own tools, or holds one: memory does not feed on itself."""
    text = text_of(message.content)
    if is_memory_answer(read_json(text)) or holds_memory([text, message.content, message.artifact]):
        return True
    return without_rendered(text) != text


# --- ids ----------------------------------------------------------------------------------------------------------


class _Ids:
    """Gives each message of a conversation an id of its own."""

    def __init__(self, thread_id: str | None) -> None:
        self._thread_id = thread_id or ""
        self._taken: set[str] = set()
        self._equal: dict[str, int] = {}

    def next(self, message: BaseMessage) -> str:
        given = mend_string(message.id or "").strip()
        made = given if given and given not in self._taken else self._make(message)
        self._taken.add(made)
        return made

    def _make(self, message: BaseMessage) -> str:
        content = [message.type, message.content, getattr(message, "tool_call_id", None)]
        said = json.dumps([self._thread_id, content], default=str, sort_keys=True)
        count = self._equal[said] = self._equal.get(said, 0) + 1
        return f"vmem-msg-1:{text_digest(json.dumps([said, count])).removeprefix('sha256:')}"


# --- turns --------------------------------------------------------------------------------------------------------


def turns(conversation: Iterable[Read]) -> list[list[Read]]:
    """A conversation in turns."""
    return split_turns(conversation, lambda one: one.begins_turn)


def batches(found: Iterable[Sequence[Read]]) -> Iterator[list[Read]]:
    """Turns put together, so that many short ones are read by few calls of a model."""
    # A message that looks like an observation never begins a turn here.
    return batch_turns(found, _call_ids, lambda one: False)


def _call_ids(one: Read) -> set[str]:
    return {call.id for message in one.messages for call in message.tool_calls if call.id}


def flat(conversation: Iterable[Read]) -> list[Message]:
    """The messages of a conversation, as ``extract`` takes them."""
    return [message for one in conversation for message in one.messages]
