"""LlamaIndex's messages as the core reads them.

Owns the mark that a stored message carries (its id, and what ran if it is a tool's result), the way from a message to
a ``vmem_core.Message``, and which messages begin and end a turn. Pure. Does not own what is trusted or read together:
the core decides that, the first by the call that a result answers.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock

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
    text_digest,
    without_rendered,
)

MARK: Final = "vmem"  # where a stored message carries its mark; taken off before anybody else sees the message
HANDOFF: Final = "handoff"  # LlamaIndex's own tool: its result is a model's words
OUR_TOOL: Final = "vmem_tool"  # in the input that an answer of our own tools keeps: also after a context was restored
_ASSISTANT: Final = frozenset({MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL})
_TOOL: Final = frozenset({MessageRole.TOOL, MessageRole.FUNCTION})
# What a model is shown above the text of a node that our retriever found.
_NODE: Final = re.compile(r"^record_id: .+\nrevision: \d+\norigin: (?:asserted|inferred)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mark:
    """What is kept with a message in the chat store.

    Args:
        id: Of the message, for life.
        scope: Whose conversation it is: the beginning of the digest of a scope.
        past: It came with a chat history that the host set, or was there before us: never read.
        tool: Of a tool's result: the tool that ran, as the framework itself tells; None: not known.
        ok: Of a tool's result: that it did not fail, as the framework itself tells.
        literal: Of a tool's result: that it is data, which the framework shows as Python writes it.
        opens: Of a message in the user's role: that it begins a turn, whatever it looks like.
        written: Of a message in the user's role: that a model or a tool wrote it. It is no source.
    """

    id: str
    scope: str
    past: bool = False
    tool: str | None = None
    ok: bool = False
    literal: bool = False
    opens: bool = False
    written: bool = False

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; what is not set is left out."""
        return {name: value for name, value in asdict(self).items() if value}

    @classmethod
    def of(cls, message: ChatMessage, place: int) -> Mark:
        """The mark of a stored message; one that nobody marked is of the past.

        Args:
            message: As it is stored.
            place: Of the message in its conversation.
        """
        given = message.additional_kwargs.get(MARK)
        if not isinstance(given, Mapping) or not isinstance(given.get("id"), str):
            return cls(f"vmem-past-1:{place}", "", past=True)
        return cls(
            given["id"],
            str(given.get("scope") or ""),
            past=given.get("past") is True,
            tool=given.get("tool"),
            ok=given.get("ok") is True,
            literal=given.get("literal") is True,
            opens=given.get("opens") is True,
            written=given.get("written") is True,
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """A message as it is stored, with its mark."""

    message: ChatMessage
    mark: Mark

    @property
    def id(self) -> str:
        """Of the message."""
        return self.mark.id

    @property
    def begins_turn(self) -> bool:
        """Whether the user speaks, or a model that asks an agent in the user's place."""
        if self.message.role != MessageRole.USER:
            return False
        return self.mark.opens or not (self.mark.written or is_observed(self.message))

    @property
    def ends_turn(self) -> bool:
        """Whether the assistant has answered. A result at the end, or a call of a tool, is no answer yet."""
        return ends_turn(self.message)


def kept(stored: Sequence[ChatMessage]) -> list[Kept]:
    """Stored messages with their marks, in order."""
    return [Kept(plain(one), Mark.of(one, place)) for place, one in enumerate(stored)]


def marked(message: ChatMessage, mark: Mark) -> ChatMessage:
    """A copy of a message, with a mark."""
    kwargs = {name: value for name, value in message.additional_kwargs.items() if name != MARK}
    return message.model_copy(update={"additional_kwargs": {**kwargs, MARK: mark.to_json()}})


def plain(message: ChatMessage) -> ChatMessage:
    """The message as a model may see it: without our mark. The same object if it has none."""
    if MARK not in message.additional_kwargs:
        return message
    kwargs = {name: value for name, value in message.additional_kwargs.items() if name != MARK}
    return message.model_copy(update={"additional_kwargs": kwargs})


def said(message: ChatMessage) -> str:
    """What a message says, as a chat store keeps it: equal for messages that say the same."""
    return json.dumps(plain(message).model_dump(mode="json"), sort_keys=True)


def digest_of(message: ChatMessage, salt: str) -> str:
    """A digest of what a message says, that tells nothing about it to who has no message to compare."""
    return text_digest(json.dumps([salt, said(message)]))


# --- what a message says ------------------------------------------------------------------------------------------


def text_of(message: ChatMessage) -> str:
    """The texts of a message, in order."""
    return mend_string("\n".join(block.text for block in message.blocks if isinstance(block, TextBlock)))


def ends_turn(message: ChatMessage) -> bool:
    """Whether a message is the assistant's answer."""
    return message.role in _ASSISTANT and not tool_calls(message)


def is_observed(message: ChatMessage) -> bool:
    """Whether a message begins as what a text-only loop feeds back in the user's role."""
    return looks_observed(text_of(message))


def is_tool_result(message: ChatMessage) -> bool:
    """Whether a tool speaks."""
    return message.role in _TOOL


def tool_calls(message: ChatMessage) -> tuple[ToolCall, ...]:
    """The calls that an assistant makes: its blocks, or what older integrations keep beside them. No arguments."""
    found = [(block.tool_call_id, block.tool_name) for block in message.blocks if isinstance(block, ToolCallBlock)]
    if not found:
        given = message.additional_kwargs.get("tool_calls")
        found = [_older_call(one) for one in given] if isinstance(given, list | tuple) else []
    return tuple(ToolCall(call_id, name) for call_id, name in found if mend_string(name).strip())


def _older_call(call: Any) -> tuple[str | None, str]:
    call_id, name = field_of(call, "id"), field_of(field_of(call, "function"), "name") or field_of(call, "name")
    return call_id if isinstance(call_id, str) else None, name if isinstance(name, str) else ""


def field_of(value: Any, name: str) -> Any:
    """A field of an object, or of the mapping that it became when a context was saved."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


# --- as the core reads it -----------------------------------------------------------------------------------------


def as_read(turn: Iterable[Kept]) -> list[Message]:
    """Messages as ``extract`` takes them."""
    return [_as_read(one) for one in turn]


def _as_read(one: Kept) -> Message:
    message, mark = one.message, one.mark
    content = [_block(block) for block in message.blocks]
    if message.role == MessageRole.USER:
        said = [{**block, "text": without_rendered(block["text"])} if "text" in block else block for block in content]
        return Message(mark.id, "user", said, model_written=mark.past or mark.written)
    if message.role in _ASSISTANT:
        # A model's words are no source: in the ReAct manner they hold what untrusted tools returned, word for word.
        return Message(mark.id, "assistant", content, tool_calls=tool_calls(message), model_written=True)
    if message.role in _TOOL:
        call_id = message.additional_kwargs.get("tool_call_id")
        return Message(
            mark.id,
            "tool",
            _as_json(text_of(message)) if mark.literal else content,
            tool_call_id=call_id if isinstance(call_id, str) else None,
            tool_name=mark.tool,
            is_error=mark.past or mark.tool is None or not mark.ok,
            model_written=mark.tool == HANDOFF or is_our_answer(text_of(message)),
        )
    return Message(mark.id, "system", content)


def _as_json(text: str) -> str:
    """A dict or list as Python writes it, as compact JSON; what JSON cannot hold stays as it is."""
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _block(block: Any) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": str(getattr(block, "block_type", "unknown"))}


# --- answers of our own tools -------------------------------------------------------------------------------------


def is_our_answer(text: str, raw: Any = None) -> bool:
    """Whether a result is an answer of our own tools, or holds one: memory does not feed on itself.

    Args:
        text: What the model was shown.
        raw: What the tool returned.
    """
    if is_memory_answer(read_json(text)) or holds_memory([text, raw]):
        return True
    return _NODE.search(text) is not None or without_rendered(text) != text


# --- turns --------------------------------------------------------------------------------------------------------


def turns(conversation: Iterable[Kept]) -> list[list[Kept]]:
    """A conversation in turns."""
    return split_turns(conversation, lambda one: one.begins_turn)


def as_past(
    messages: Sequence[ChatMessage], before: Sequence[Kept], fresh: Sequence[Mark], *, written: bool
) -> list[ChatMessage]:
    """A chat history that a host sets, marked: what was known keeps its mark, the rest is the past.

    A question at its end that nobody has answered is new.

    Args:
        messages: The history.
        before: The conversation until now.
        fresh: A mark of the past for each message.
        written: Whether a model asks that question.
    """
    known: dict[str, list[Kept]] = {}
    for one in reversed(before):
        known.setdefault(said(one.message), []).append(one)
    made = []
    for message, mark in zip(messages, fresh, strict=True):
        same = known.get(said(message))
        made.append(Kept(message, same.pop().mark if same else mark))
    asked = turns(made)[-1][0] if made else None
    if asked is not None and asked.begins_turn and asked.mark.past and not made[-1].ends_turn:
        made = [
            Kept(one.message, replace(one.mark, past=False, written=written)) if one is asked else one for one in made
        ]
    return [marked(one.message, one.mark) for one in made]


def batches(found: Iterable[Sequence[Kept]]) -> Iterator[list[Kept]]:
    """Turns put together, so that many short ones are read by few calls of a model."""
    return batch_turns(found, _call_ids, lambda one: is_observed(one.message))


def _call_ids(one: Kept) -> set[str]:
    return {call.id for call in tool_calls(one.message) if call.id}
