"""What conversations are made of, and what of it may be read.

Owns messages, tool calls and the untrusted-source policy: which text of which message an extraction reads, under
which source kind. Pure: unread text never leaves this file. Does not own the prompt (``extract.py``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from vmem_core.errors import InvalidRequestError
from vmem_core.records import Scope, Source, SourceKind
from vmem_core.text import is_blank, mend_string, read_json, text_digest
from vmem_core.values import check_choice, check_type, check_values

Role = Literal["user", "assistant", "tool", "system", "developer"]
ROLES: tuple[Role, ...] = ("user", "assistant", "tool", "system", "developer")
OWN_TOOLS = frozenset({"memory_remember", "memory_recall", "memory_revise", "memory_retract"})
# A loop in the ReAct manner writes what a tool returned into a text of its own, after this word. Steps may be numbered.
_LABEL = r"^[ \t]*\W{0,4}(?:%s)\b(?:\W{0,2}\d+)?\W{0,4}:"
_FAILED = re.compile(r"\bisError=True\b")  # how Python shows a failed result of the Model Context Protocol
_DEEPEST_RESULT = 32  # results inside of results
_OBSERVATION = re.compile(_LABEL % "observations?", re.IGNORECASE | re.MULTILINE)
_ACTION = re.compile(_LABEL % "thought|action|code", re.IGNORECASE | re.MULTILINE)


def _mend(value: object, path: str, *, needed: bool = False) -> str | None:
    """A string of a message, mended; None stays None."""
    if value is None and not needed:
        return None
    if not isinstance(value, str):
        raise InvalidRequestError(f"must be a string, not {type(value).__name__}", path=path)
    mended = mend_string(value)
    if needed and is_blank(mended):
        raise InvalidRequestError("must not be blank", path=path)
    return mended


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's call of a tool: its id, the tool's name, the arguments (a JSON object, never read as memory).

    >>> ToolCall("call-1", "lookup_order", {"id": 1042}).name
    'lookup_order'
    """

    id: str | None
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", _mend(self.id, "tool_call.id"))
        object.__setattr__(self, "name", _mend(self.name, "tool_call.name", needed=True))
        if not isinstance(self.args, Mapping):
            raise InvalidRequestError("must be a dict", path="tool_call.args")

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Args:
        id: Stable and unique in its conversation: a growing transcript that is sent again is read once by it.
        role: ``user``, ``assistant``, ``tool``, ``system`` or ``developer``.
        content: A text; or blocks (texts, or dicts such as ``{"type": "text", "text": …}``), of which texts are
            read in order; of a tool any JSON value; None for an assistant that only calls tools.
        tool_calls: The calls that an assistant makes.
        tool_call_id: The call that a tool answers.
        tool_name: The name on a tool's answer. Trust comes from the name on the call, never from this one.
        is_error: Whether the tool failed.
        run_id: The run it belongs to.
        model_written: A text in another role that a model wrote (a summary, a sub-agent's task): never read.

    Raises:
        InvalidRequestError: For a blank id, an unknown role or calls that are none.

    >>> Message("m1", "user", "When does my order ship?").role
    'user'
    """

    id: str
    role: Role
    content: Any
    tool_calls: tuple[ToolCall, ...] = field(default=(), kw_only=True)
    tool_call_id: str | None = field(default=None, kw_only=True)
    tool_name: str | None = field(default=None, kw_only=True)
    is_error: bool = field(default=False, kw_only=True)
    run_id: str | None = field(default=None, kw_only=True)
    model_written: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", _mend(self.id, "message.id", needed=True))
        for name in ("is_error", "model_written"):
            check_type(getattr(self, name), bool, f"message.{name}")
        check_choice(self.role, ROLES, "message.role")
        object.__setattr__(self, "tool_calls", check_values(self.tool_calls, ToolCall, "message.tool_calls"))
        for name in ("tool_call_id", "tool_name", "run_id"):
            object.__setattr__(self, name, _mend(getattr(self, name), f"message.{name}"))

    __hash__ = None  # type: ignore[assignment]


def tells_of_failure(result: object) -> bool:
    """Whether what a tool returned says by itself that the tool failed, where its framework takes it for a success.

    So does an object or mapping with ``is_error`` or ``isError`` (as of the Model Context Protocol), or with the status
    ``"error"``, or a text of such a mapping, or one that is kept in another as its ``raw_output`` or ``artifact``.

    Args:
        result: What the tool returned, or the text that a model was shown of it.

    >>> tells_of_failure({"isError": True, "content": []}), tells_of_failure("no error")
    (True, False)
    """
    left = [result]
    for _ in range(_DEEPEST_RESULT):
        if not left:
            return False
        one = left.pop()
        if isinstance(one, str):
            if _FAILED.search(one):
                return True
            one = read_json(one)
        if isinstance(one, BaseException):
            return True
        told = one if isinstance(one, Mapping) else getattr(one, "__dict__", None)
        if isinstance(told, Mapping):
            if told.get("is_error") is True or told.get("isError") is True or told.get("status") == "error":
                return True
            left.extend(told[name] for name in ("raw_output", "artifact") if told.get(name) is not None)
    return False


def check_messages(messages: object) -> tuple[Message, ...]:
    """A list or tuple of messages with unique ids.

    Raises:
        InvalidRequestError: For anything else; the message names the index.
    """
    checked = check_values(messages, Message, "messages")
    seen: set[str] = set()
    for index, message in enumerate(checked):
        if message.id in seen:
            raise InvalidRequestError("is the id of an earlier message too", path=f"messages[{index}].id")
        seen.add(message.id)
    return checked


@dataclass(frozen=True, slots=True)
class ExtractionPolicy:
    """What an extraction may read besides the user's own words.

    Args:
        trusted_tools: Names of tools whose results may become memory. Trust is by the name on the matching call.
        read_assistant: Whether the assistant's texts are read, except after an untrusted result.

    >>> ExtractionPolicy(trusted_tools={"lookup_order"}).read_assistant
    False
    """

    trusted_tools: Collection[str] = frozenset()
    read_assistant: bool = False

    def __post_init__(self) -> None:
        given = self.trusted_tools
        names = None if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
        if names is None or not all(isinstance(name, str) for name in names):
            raise InvalidRequestError("must be a set of tool names", path="trusted_tools")
        object.__setattr__(self, "trusted_tools", frozenset(names) - OWN_TOOLS)
        check_type(self.read_assistant, bool, "read_assistant")


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text that may be read, with the source that a record made from it cites."""

    text: str
    source: Source


@dataclass(frozen=True, slots=True)
class Reading:
    """What an extraction reads.

    Args:
        sources: The texts, in order.
        notes: How often each note code applied.
        read_ids: Ids of the messages that were read.
    """

    sources: tuple[SourceText, ...]
    notes: Mapping[str, int]
    read_ids: tuple[str, ...]


def read_messages(
    messages: Sequence[Message],
    policy: ExtractionPolicy,
    scope: Scope,
    *,
    most_chars: int,
    processed: Collection[str] = (),
) -> Reading:
    """Apply the policy to a conversation, in order.

    Args:
        messages: The conversation.
        policy: What is trusted.
        scope: Whose memory it is; its chat id goes into the sources.
        most_chars: How many characters are read of one message.
        processed: Ids of messages that were read before.
    """
    reader = _Reader(messages, policy, scope, most_chars)
    for message in messages:
        reader.take(message, message.id in processed)
    return Reading(tuple(reader.sources), dict(reader.notes), tuple(reader.read_ids))


class _Reader:
    """The policy at work: what was trusted so far decides what may be read next."""

    def __init__(self, messages: Sequence[Message], policy: ExtractionPolicy, scope: Scope, most_chars: int) -> None:
        self.policy, self.scope, self.most_chars = policy, scope, most_chars
        self.sources: list[SourceText] = []
        self.notes: Counter[str] = Counter()
        self.read_ids: list[str] = []
        self._called: dict[str, str] = {}  # call id: tool name, of the calls seen so far
        self._tainted = False  # an untrusted result came since the last user message
        self._awaits_observation = False  # the assistant asked for a tool in its text, and no user spoke since
        calls = Counter(call.id for message in messages for call in message.tool_calls)
        answers = Counter(message.tool_call_id for message in messages if message.role == "tool")
        self._ambiguous = {key for counts in (calls, answers) for key, count in counts.items() if count > 1}

    def take(self, message: Message, processed: bool) -> None:
        """Read a message, or only note what it means for those after it."""
        kind = self._readable_as(message)
        if kind is None:
            return
        if processed:
            self.notes["already_processed"] += 1
            return
        text = self._text(message)
        if is_blank(text):
            return
        self.read_ids.append(message.id)
        self.sources.append(SourceText(text, self._source(message, kind, text)))

    def _readable_as(self, message: Message) -> SourceKind | None:
        if message.role == "user":
            return self._user(message)
        if message.role == "assistant":
            return self._assistant(message)
        if message.role == "tool":
            return self._tool(message)
        return None

    def _user(self, message: Message) -> SourceKind | None:
        # In a ReAct loop the observation comes back in the user's role: it is a tool's text, not the user's.
        text = _join_text(message.content)
        observed = self._awaits_observation and _OBSERVATION.match(text.lstrip()) is not None
        if message.model_written or observed:
            self.notes["untrusted"] += 1
            self._tainted = self._tainted or observed
            return None
        self._tainted = self._awaits_observation = False
        return "user"

    def _assistant(self, message: Message) -> SourceKind | None:
        for call in message.tool_calls:
            if call.id and not is_blank(call.id):
                self._called[call.id] = call.name
        text = _join_text(message.content)
        self._awaits_observation = self._awaits_observation or _ACTION.search(text) is not None
        self._tainted = self._tainted or _OBSERVATION.search(text) is not None
        if not self.policy.read_assistant or is_blank(text):
            return None
        if self._tainted or message.model_written:
            self.notes["untrusted"] += 1
            return None
        return "assistant"

    def _tool(self, message: Message) -> SourceKind | None:
        call_id = message.tool_call_id
        name = self._called.get(call_id) if call_id and call_id not in self._ambiguous else None
        trusted = (
            name is not None
            and name in self.policy.trusted_tools
            and message.tool_name in (None, name)
            and not message.is_error
            and not message.model_written
        )
        if trusted:
            return "tool"
        self._tainted = True
        self.notes["untrusted"] += 1
        return None

    def _text(self, message: Message) -> str:
        text, skipped = _read_content(message)
        if skipped:
            self.notes["block_skipped"] += skipped
        if len(text) > self.most_chars:
            self.notes["truncated"] += 1
            text = text[: self.most_chars]
        return text

    def _source(self, message: Message, kind: SourceKind, text: str) -> Source:
        call_id = message.tool_call_id if kind == "tool" else None
        return Source(
            kind,
            text_digest(text),
            message_id=message.id,
            chat_id=self.scope.chat_id,
            run_id=None if is_blank(message.run_id or "") else message.run_id,
            tool_call_id=call_id,
            tool_name=self._called[call_id] if call_id else None,
        )


def _join_text(content: Any) -> str:
    return "\n".join(_texts(content)[0])


def _texts(content: Any) -> tuple[list[str], int]:
    """The texts of a content, in order, mended; and how many blocks were passed over."""
    if content is None:
        return [], 0
    blocks: Iterable[Any] = content if isinstance(content, list | tuple) else [content]
    texts, skipped = [], 0
    for block in blocks:
        text = _block_text(block)
        if text is None:
            skipped += 1
        else:
            texts.append(mend_string(text))
    return texts, skipped


def _block_text(block: Any) -> str | None:
    if isinstance(block, str):
        return block
    if isinstance(block, Mapping) and block.get("type", "text") == "text" and isinstance(block.get("text"), str):
        return cast(str, block["text"])
    return None


def _read_content(message: Message) -> tuple[str, int]:
    """What is read of a message's content: of a tool's result that is no text, its compact JSON."""
    content = message.content
    if message.role == "tool" and not _is_text_like(content):
        try:
            return mend_string(json.dumps(content, ensure_ascii=False, separators=(",", ":"))), 0
        except (TypeError, ValueError, RecursionError):
            return "", 1
    texts, skipped = _texts(content)
    return "\n".join(texts), skipped


def _is_text_like(content: Any) -> bool:
    """Whether a content is a text, or a list of blocks as models exchange them."""
    if content is None or isinstance(content, str | bytes):
        return True
    if not isinstance(content, list | tuple):
        return False
    return all(isinstance(b, str) or (isinstance(b, Mapping) and isinstance(b.get("type"), str)) for b in content)
