"""Who calls: what a resolver is told of a run, and the operation id of a tool call.

Owns what is read from LangChain's config and LangGraph's runtime, and the key of an operation id. Does not own what a
tool does or how a resolver is called (``vmem_core``). Imports LangGraph nowhere: what it hands over is looked
at only once somebody else has loaded it.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig

from vmem_core import MemorySession, Scope, derived_id, text_digest

LOG = logging.getLogger("vmem_langchain")
LOG.addHandler(logging.NullHandler())  # silent until the host gives it a handler


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """What a resolver may look at to choose the session of a run. The model can write none of it.

    Args:
        config: The run's config; ``config["configurable"]`` holds what the host passed there.
        context: The run's ``context=``; None if the host passed none, which also happens when it resumes a run and
            forgets it.
        thread_id: The conversation, if there is one.

    >>> MemoryRequest({"configurable": {"user_id": "ada"}}).config["configurable"]["user_id"]
    'ada'
    """

    config: RunnableConfig
    context: Any = None
    thread_id: str | None = None


SessionResolver: TypeAlias = Callable[[MemoryRequest], MemorySession | Awaitable[MemorySession | None] | None]


# --- what a resolver is told ------------------------------------------------------------------------------------


def request_of(config: RunnableConfig, runtime: Any = None) -> MemoryRequest:
    """What a resolver is told of a run.

    Args:
        config: The run's config.
        runtime: LangGraph's ``ToolRuntime`` of a tool call; None: the graph that we are in is asked, if there is one.
    """
    context = runtime.context if runtime is not None else _graph_context()
    return MemoryRequest(config, context, _thread_id(config, runtime))


def _graph_context() -> Any:
    """The ``context=`` of the graph run that we are in; None outside of one."""
    module = sys.modules.get("langgraph.runtime")
    if module is None:
        return None
    try:
        return getattr(module.get_runtime(), "context", None)
    except (RuntimeError, KeyError):  # how LangGraph says that there is no run, or a run that is no graph's
        return None


def _thread_id(config: RunnableConfig, runtime: Any) -> str | None:
    info = getattr(runtime, "execution_info", None)
    found = getattr(info, "thread_id", None) or (config.get("configurable") or {}).get("thread_id")
    return None if found is None or found == "" else str(found)


# --- LangGraph's values -------------------------------------------------------------------------------------------


def is_runtime(value: object) -> bool:
    """Whether a value is LangGraph's own ``ToolRuntime``, and not something that a model made up."""
    module = sys.modules.get("langgraph.prebuilt.tool_node") or sys.modules.get("langgraph.prebuilt")
    return module is not None and isinstance(value, module.ToolRuntime)


def is_graph_signal(error: BaseException) -> bool:
    """Whether an exception is how LangGraph interrupts a run or moves it elsewhere: no failure, never to be caught."""
    module = sys.modules.get("langgraph.errors")
    return module is not None and isinstance(error, module.GraphBubbleUp)


# --- operation ids ------------------------------------------------------------------------------------------------


def operation_id(runtime: Any, *, call_id: str, tool: str, arguments: Mapping[str, Any], scope: Scope) -> str | None:
    """The operation id of a tool call: the same when the call is repeated after a crash, else another one.

    It is made of what survives a crash and nothing else: the scope, the thread, the model's message, the call's id and
    the tool. The arguments count only if the id alone does not tell the calls of that message apart, for a repeated
    call with other arguments must be refused, not applied as a second one. Ids of tasks, checkpoints, steps and runs
    are new after a crash or a replay; a task's id stands in only where there is no thread (hence nothing to resume) or
    where the message has no id.

    Args:
        runtime: LangGraph's ``ToolRuntime``; None outside a graph, where nothing tells two calls apart from one
            call made twice.
        call_id: Of the tool call; may be empty.
        tool: The tool's name.
        arguments: Of the call, as JSON values.
        scope: Of the session.

    Returns:
        The id; None: each call is a new operation.
    """
    if runtime is None:
        return None
    task = getattr(getattr(runtime, "execution_info", None), "task_id", None)
    message = _message_of(runtime.state, call_id, tool)
    execution = _thread_id(runtime.config, runtime) or task
    step = (message.id if message is not None else None) or task
    if execution is None or step is None:
        return None
    key = [scope.key, execution, step, call_id, tool]
    if message is None or not call_id or len(_calls(message, call_id)) > 1:
        key.append(text_digest(json.dumps(arguments, sort_keys=True)))
    return derived_id("vmem-op-1", *key)


def _message_of(state: object, call_id: str, tool: str) -> AIMessage | None:
    """The model's newest message with this call. Not by its arguments: a person may have edited them since."""
    with_id = [message for message in _model_messages(state) if _calls(message, call_id)]
    named = [message for message in with_id if any(call["name"] == tool for call in _calls(message, call_id))]
    found = named or with_id
    return found[-1] if found else None


def _calls(message: AIMessage, call_id: str) -> list[Any]:
    return [call for call in message.tool_calls if (call["id"] or "") == call_id]


def _model_messages(state: object) -> Iterator[AIMessage]:
    """The model's messages in a graph's state: a list, or a dict or object that holds lists under any name."""
    if isinstance(state, list | tuple):
        lists: list[Any] = [state]
    else:
        fields = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
        lists = [value for value in fields.values() if isinstance(value, list | tuple)]
    return (message for messages in lists for message in messages if isinstance(message, AIMessage))
