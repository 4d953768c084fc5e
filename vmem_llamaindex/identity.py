"""Which call: the operation id of a tool call, made of what survives a crash and nothing else.

Owns how a tool learns its call's id, what is kept in a workflow's context so that a restored run is known for the one
it was, and the key of an operation id. Does not own what a tool does (``vmem_core``) or whose memory it is
(``binding.py``).

A workflow hands no tool its call's id. The agents of ``agents.py`` say it by public means; with any other agent it is
read from the step that the runtime says it is in, which newer or older versions may not say.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.memory.types import BaseMemory
from workflows import Context
from workflows.errors import WorkflowRuntimeError

from vmem_core import InvalidRequestError, Scope, derived_id, text_digest

try:  # not public: without it only the agents of agents.py know the ids of calls
    from workflows.runtime.types.results import StepWorkerStateContextVar as _RUNTIME_STEP
except ImportError:  # pragma: no cover - no version that is supported today
    _RUNTIME_STEP = None  # type: ignore[assignment]

try:
    from workflows.runtime.types.results import WaitingForEvent as _WAITING
except ImportError:  # pragma: no cover - likewise
    _WAITING = None  # type: ignore[assignment,misc]

EXECUTION_KEY = "vmem_execution_id"
TURN_KEY = "vmem_turn_id"
# The agents' own keys and tool:
_SCRATCHPAD, _RAN, _MEMORY, _ASKED = "scratchpad", "current_tool_calls", "memory", "user_msg_str"
_HANDOFF = "handoff"
_APART, _NUMBER = re.compile(r"[\W_]+"), re.compile(r"[A-Za-z]{0,12}[0-9]{1,4}")  # in an id that is counted


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool, as far as is known where the tool runs.

    Args:
        call_id: The model's id of the call; may be empty.
        tool: The name of the tool that the model called: another one's if a host's tool calls ours.
        given: The arguments that the model gave.
        context: Of the workflow's step that we are in; None outside of one.
        execution_id: Given by the host for a call outside of a workflow.
        turn_id: Likewise.
    """

    call_id: str
    tool: str
    given: Mapping[str, Any] = field(default_factory=dict)
    context: Context[Any] | None = None
    execution_id: str | None = None
    turn_id: str | None = None


# One lock a context's state, for as long as it lives. Only the loop that runs the workflow takes it.
_MAKING: weakref.WeakKeyDictionary[Any, asyncio.Lock] = weakref.WeakKeyDictionary()

_ENTERED: ContextVar[ToolCall | None] = ContextVar("vmem_tool_call", default=None)


# --- which call we are in -----------------------------------------------------------------------------------------


def step_context() -> Context[Any] | None:
    """The context of the workflow's step that we are in; None outside of one."""
    try:
        return Context.get_step_context()
    except WorkflowRuntimeError:  # how workflows say that there is none
        return None


def step_event() -> Any:
    """The event that the step we are in was called with; None outside of one, or if the runtime does not tell."""
    runtime: Any = _RUNTIME_STEP
    return None if runtime is None else getattr(runtime.get(None), "event", None)


def is_inside_tool() -> bool:
    """Whether what runs here began inside the call of a tool, and is not the step of that call: a model asked for it.

    A run inherits the context variables of the place where it begins.
    """
    entered = _ENTERED.get()
    return entered is not None and entered.context is not step_context()


def is_inside_scope() -> bool:
    """Whether it is the host that said so, with ``tool_call_scope``."""
    entered = _ENTERED.get()
    return is_inside_tool() and entered is not None and entered.execution_id is not None


def current_call() -> ToolCall | None:
    """The tool call that we are in: the one that was entered, else the one that the runtime knows of; else None.

    What was entered counts only for the step that entered it: a tool may run an agent of its own, whose calls are not
    this one.
    """
    context, entered = step_context(), _ENTERED.get()
    if entered is not None and entered.context is context:
        return entered
    return _runtime_call(context)


def _runtime_call(context: Context[Any] | None) -> ToolCall | None:
    if context is None:
        return None
    event = step_event()
    call_id, tool = getattr(event, "tool_id", None), getattr(event, "tool_name", None)
    if not isinstance(call_id, str) or not isinstance(tool, str):
        return None
    return ToolCall(call_id, tool, getattr(event, "tool_kwargs", {}), context)


@contextmanager
def entered(call: ToolCall) -> Iterator[None]:
    """Say which call we are in."""
    token = _ENTERED.set(call)
    try:
        yield
    finally:
        _ENTERED.reset(token)


@contextmanager
def tool_call_scope(*, tool_call_id: str, execution_id: str, turn_id: str = "") -> Iterator[None]:
    """Say which call the memory tools are called for, where no agent does: in a loop of your own.

    With the same ids a call that runs again, in this process or in another, applies once.

    It is for one call of a tool. An agent that runs inside of it is asked by a model, as one inside of any tool is:
    what it is told is not the user's word, and a chat memory does not read it and logs that. Do not put it around an
    agent's whole run.

    Args:
        tool_call_id: The model's id of the call. If it may be empty or repeated, give a turn that tells calls apart.
        execution_id: Of the run, such as the id of your job. The same when the run is resumed.
        turn_id: Of the model's reply within the run.

    Raises:
        InvalidRequestError: For an id that is no string, or a blank ``execution_id``.

    >>> from vmem_core import InMemoryStore, MemorySession
    >>> from vmem_llamaindex import create_memory_tools
    >>> session = MemorySession(InMemoryStore(), Scope(user_id="ada"), new_id=lambda: "r1")
    >>> remember = create_memory_tools(session, include=["remember"])[0]
    >>> for attempt in range(2):
    ...     with tool_call_scope(tool_call_id="call_1", execution_id="job-7"):
    ...         print(remember(text="Ada likes green tea.").content)
    {"id":"r1","revision":1,"origin":"inferred","status":"active","replayed":false}
    {"id":"r1","revision":1,"origin":"inferred","status":"active","replayed":true}
    """
    for path, value in (("tool_call_id", tool_call_id), ("turn_id", turn_id)):
        _check_id(value, path, may_be_blank=True)
    _check_id(execution_id, "execution_id")
    with entered(ToolCall(tool_call_id, "", {}, step_context(), execution_id, turn_id)):
        yield


def _check_id(value: object, path: str, *, may_be_blank: bool = False) -> None:
    if not isinstance(value, str) or not (may_be_blank or value.strip()):
        raise InvalidRequestError("must be a string, not blank unless it is the id of a call or a turn", path=path)


def is_workflow_signal(error: BaseException) -> bool:
    """Whether an exception is how a workflow pauses a step: no failure, never to be caught."""
    return _WAITING is not None and isinstance(error, _WAITING)


# --- what a context keeps -----------------------------------------------------------------------------------------


async def prepare_context(context: Context[Any], *, execution_id: str | None = None) -> Context[Any]:
    """Give a context its execution id, by which a run that is restored after a crash is known for the one it was.

    The agents of this package and its chat memory do it themselves. Any other agent's context needs it before the run:
    what a tool adds while it runs is missing from a snapshot that was taken before.

    Args:
        context: Of the workflow, before it runs.
        execution_id: Of the run, such as the id of your job; None: one is made unless the context has one.

    Returns:
        The same context.

    Raises:
        InvalidRequestError: If the id is blank, or the context's state has no room for it (a typed state without a
            field ``vmem_execution_id``).
    """
    if execution_id is not None:
        _check_id(execution_id, "execution_id")
    if await context_execution_id(context, execution_id) is None:
        raise InvalidRequestError(f"its state is of a type without a field {EXECUTION_KEY}; add one", path="context")
    return context


async def context_execution_id(context: Context[Any], given: str | None = None) -> str | None:
    """The execution id that a context keeps; a new one, or the one given, is kept if there is none.

    Calls that ask at the same moment get the same one. None: the context's state has no room for it.
    """
    found = await kept(context, EXECUTION_KEY)
    if found is not None and given in (None, found):
        return str(found)
    async with _MAKING.setdefault(context.store, asyncio.Lock()):
        found = await kept(context, EXECUTION_KEY)
        if found is not None and given in (None, found):
            return str(found)
        made = given or uuid.uuid4().hex
        return made if await _keep(context, EXECUTION_KEY, made) else None


async def begin_turn(context: Context[Any], turn_id: str | None = None) -> str | None:
    """Keep in a context that a turn begins: a new user message is about to be answered.

    Args:
        context: Of the step that takes the message in.
        turn_id: Of the turn; None: a new one is made.

    Returns:
        The turn's id; None if the context's state has no room for it.
    """
    if await context_execution_id(context) is None:
        return None
    made = turn_id or uuid.uuid4().hex
    return made if await _keep(context, TURN_KEY, made) else None


async def kept(context: Context[Any], key: str) -> Any:
    """What a context keeps under a key; None if nothing."""
    return await context.store.get(key, default=None)


async def _keep(context: Context[Any], key: str, value: Any) -> bool:
    """Keep a value in a context; False: its state is of a host's type, which has no such field.

    One value is set, the state is not edited: editing copies all that is in it, the host's chat memory too, which the
    host would go on to hold while the run writes to its copy.
    """
    try:
        await context.store.set(key, value)
    except ValueError:  # how a typed state says that it has no such field
        return False
    return True


# --- operation ids ------------------------------------------------------------------------------------------------


async def operation_id(
    call: ToolCall | None, *, tool: str, arguments: Mapping[str, Any], scope: Scope, may_keep: bool = True
) -> str | None:
    """The operation id of a tool call: the same when the call is repeated after a crash, else another one.

    It is made of the scope, the execution, the turn, the model's reply in it, the call's id and the tool. The arguments
    count only if the id may be that of another call: it is empty, the tool's name, there twice in a reply, or counted.
    Any other call that is repeated with other arguments must be refused, not applied as a second one. A counted id
    (``call_0``) comes again when a restored run asks the model anew. What the host itself says (``tool_call_scope``)
    is taken as it is. Ids of runs, invocations and
    work items are new after a crash, or depend on which call came first; and a restored run may make a call twice.

    Args:
        call: The call; None: not known, so that nothing tells two calls apart from one call made twice.
        tool: The tool's name.
        arguments: Of the call, as JSON values.
        scope: Of the session.
        may_keep: Whether the context may be given an execution id if it has none.

    Returns:
        The id; None: each call is a new operation.
    """
    if call is None:
        return None
    execution = call.execution_id or await _execution(call.context, may_keep)
    if execution is None:
        return None
    turn, reply, is_weak = call.turn_id, 0, call.tool not in ("", tool) or call.call_id in ("", tool)
    if call.execution_id is None and call.context is not None:
        turn, replies = await _turn_and_replies(call.context)
        reply = _reply_with(call, replies)
        is_weak = is_weak or _is_counted(call.call_id, tool)
        is_weak = is_weak or (reply > 0 and sum(one.call_id == call.call_id for one in replies[reply - 1]) > 1)
    key = [scope.key, execution, turn, reply, call.call_id, tool]
    if is_weak:
        key.append(text_digest(json.dumps(arguments, sort_keys=True)))
    return derived_id("vmem-op-1", *key)


def _is_counted(call_id: str, tool: str) -> bool:
    """Whether an id is made of words and short numbers alone: of the call's place, and of nothing that is random.

    It is told by the id itself: what else a run has seen may be more when a call is made late than it was before.
    """
    parts = [part for part in _APART.split(call_id.replace(tool, " ")) if part]
    numbers = [part for part in parts if _NUMBER.fullmatch(part)]
    return bool(numbers) and all(part.isalpha() or part in numbers for part in parts)


async def _execution(context: Context[Any] | None, may_keep: bool) -> str | None:
    if context is None:
        return None
    found = await (context_execution_id(context) if may_keep else kept(context, EXECUTION_KEY))
    return None if found is None else str(found)


async def _turn_and_replies(context: Context[Any]) -> tuple[str, list[list[ToolCall]]]:
    """The turn that a context is in, and the model's replies in it that made calls, whichever agent's they are.

    Agents collect the messages of a turn, and put them into the chat memory when they hand over: there the rest is.
    With an agent and a chat memory that keep no turn, it is what the user said, after all that was said before.
    """
    turn, collected = await kept(context, TURN_KEY), _replies(await kept(context, _SCRATCHPAD) or ())
    handed = any(getattr(one, "tool_name", None) == _HANDOFF for one in await kept(context, _RAN) or ())
    if turn is not None and not handed:
        return str(turn), collected
    asked = await kept(context, _ASKED)
    memory = await kept(context, _MEMORY)
    before, since = _split(await memory.aget_all() if isinstance(memory, BaseMemory) else (), asked)
    if turn is None:
        told = [one.content for one in before if one.role in ("user", "system")]
        turn = text_digest(json.dumps([asked, told, _name_of(memory)])) if isinstance(asked, str) else ""
    stored = _replies(since)
    is_stored = bool(collected) and stored[-len(collected) :] == collected  # put there and not yet taken away
    return str(turn), stored if is_stored else stored + collected


_NAMES: dict[int, str] = {}  # of chat memories that are in this process


def _name_of(memory: Any) -> str:
    """A name for a chat memory of the framework's own: these are never saved, so each run of a context has a new one.

    Any other may come back with a context in another process, and must not be told from the one that it was.
    """
    if not type(memory).__module__.startswith("llama_index."):
        return ""
    if id(memory) not in _NAMES:
        weakref.finalize(memory, _NAMES.pop, id(memory), None).atexit = False
    return _NAMES.setdefault(id(memory), uuid.uuid4().hex)


def _split(messages: Sequence[Any], asked: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Messages up to what the user said last, and those since then: what an agent says in the user's role is not it."""
    spoken = [place for place, one in enumerate(messages, 1) if one.role == "user"]
    same = [place for place in spoken if messages[place - 1].content == asked]
    place = max(same or spoken, default=0)
    return messages[:place], messages[place:]


# --- replies of the model -----------------------------------------------------------------------------------------


def _replies(scratchpad: Sequence[Any]) -> list[list[ToolCall]]:
    """The calls of each reply of the turn that made any, from where function agents collect a turn's messages.

    A ReAct agent collects none there, and makes an id of its own for every call.
    """
    return [calls for calls in map(_calls_in, scratchpad) if calls]


def _calls_in(message: Any) -> list[ToolCall]:
    """The calls in a message of the model: in its blocks, or where older integrations keep them."""
    blocks = [one for one in getattr(message, "blocks", ()) if hasattr(one, "tool_kwargs")]
    if blocks:
        return [ToolCall(one.tool_call_id or "", one.tool_name, _parsed(one.tool_kwargs)) for one in blocks]
    older = (getattr(message, "additional_kwargs", None) or {}).get("tool_calls") or ()
    ids = [one.get("id") if isinstance(one, Mapping) else getattr(one, "id", None) for one in older]
    return [ToolCall(one if isinstance(one, str) else "", "") for one in ids]


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:  # cut off: no call was made of it, or one with arguments of the framework's guess
        return {}


def _reply_with(call: ToolCall, replies: list[list[ToolCall]]) -> int:
    """Which reply made a call, from 1; 0: unknown. The last one with the same call, else the last one with its id."""
    same = [n for n, calls in enumerate(replies, 1) if any(_is_same(one, call) for one in calls)]
    with_id = [n for n, calls in enumerate(replies, 1) if any(one.call_id == call.call_id for one in calls)]
    return max(same or with_id, default=0)


def _is_same(one: ToolCall, other: ToolCall) -> bool:
    return (one.call_id, one.tool, one.given) == (other.call_id, other.tool, other.given)
