"""The run of a workflow that a chat memory is used in, as far as it can be seen from inside a step.

Owns what is read from the step's context: which tools ran and whether they failed, which message the turn began with,
which ``memory=`` the run was started with, and whether the agent would drop a system message. Does not own what follows
from it (``memory.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from llama_index.core.base.llms.types import ChatMessage
from workflows import Context
from workflows.errors import WorkflowRuntimeError

from vmem_core import tells_of_failure
from vmem_llamaindex.conversation import OUR_TOOL, Mark, digest_of, field_of, is_our_answer, is_tool_result
from vmem_llamaindex.identity import begin_turn, step_event
from vmem_llamaindex.memory_history import on_library_loop
from vmem_llamaindex.memory_speaker import begins_run, step_workflow

_RESULTS: Final = "current_tool_calls"  # where the agents keep the results of a run until it has ended
_PUT: Final = "vmem_put"  # where we keep the ids of messages that are about to be stored
_TURN: Final = "vmem_turn"  # where we keep the id of the message that the turn began with, before it is stored


def step_context() -> Context[Any] | None:
    """The context of the step that we are in; None outside of one, and for sync code, whose loop is another one."""
    if on_library_loop():
        return None
    try:
        return Context.get_step_context()
    except WorkflowRuntimeError:
        return None


def memory_of_start() -> Any:
    """The ``memory=`` that an agent's run was started with, if we are in the step that begins it; else None."""
    return step_event().get("memory", None) if begins_run() else None


def drops_system_message() -> bool:
    """Whether the agent that runs would not show its model a system message of ours.

    A ``ReActAgent`` takes the first system message for its own and drops it.
    """
    module = sys.modules.get("llama_index.core.agent.workflow.react_agent")
    if module is None or step_context() is None:
        return False
    workflow = step_workflow()  # if it is not known, we choose the place that every agent shows
    members = getattr(workflow, "agents", None)
    agents = [workflow, *(members.values() if isinstance(members, dict) else ())]
    return workflow is None or any(isinstance(agent, module.ReActAgent) for agent in agents)


async def mark_results(messages: Sequence[ChatMessage], marks: Sequence[Mark]) -> list[Mark]:
    """The marks of messages that an agent puts together, with what the framework tells of the tools that ran.

    The user's own message comes alone, when a run begins. One in the user's role among others is of the agent: what
    code printed that it executed, for one. Its words are never the user's.

    A result whose call id is not exactly one of the run's, such as where a provider uses the tool's name as the id, is
    not known: nothing is read of it.
    """
    context = step_context()
    if context is None or not any(is_tool_result(message) for message in messages):
        return list(marks)
    ran = await context.store.get(_RESULTS, default=[])
    return [
        _mark_result(message, mark, ran) if is_tool_result(message) else mark
        for message, mark in zip(messages, marks, strict=True)
    ]


def _mark_result(message: ChatMessage, mark: Mark, ran: Sequence[Any]) -> Mark:
    call_id = message.additional_kwargs.get("tool_call_id")
    found = [one for one in ran if call_id and one.tool_id == call_id]
    if len(found) != 1:
        return mark
    output = found[0].tool_output
    failed = output.is_error or tells_of_failure(output.raw_output) or tells_of_failure(output.content)
    ok = not (failed or _is_ours(output) or is_our_answer("", output.raw_output))
    literal = isinstance(output.raw_output, dict | list) and output.content == str(output.raw_output)
    return replace(mark, tool=found[0].tool_name, ok=ok, literal=literal)


def _is_ours(output: Any) -> bool:
    """Whether an answer is of one of our tools, or of a host's tool that hands one on."""
    given = (field_of(one, "raw_input") for one in (output, output.raw_output))
    return any(isinstance(one, dict) and OUR_TOOL in one for one in given)


# --- what a resumed run does once more ----------------------------------------------------------------------------


async def turn_of_run(message: ChatMessage) -> str | None:
    """The id of this very message, if a run that is resumed puts it once more."""
    noted = await _noted(_TURN)
    if not isinstance(noted, dict) or noted.get("digest") != digest_of(message, str(noted.get("id"))):
        return None
    return str(noted["id"])


async def note_turn(message: ChatMessage, message_id: str) -> None:
    """Keep the id of a message with the run, before it is stored: a run that is resumed puts it once more."""
    context = step_context()
    if context is not None:
        await _note(_TURN, {"id": message_id, "digest": digest_of(message, message_id)})
        await begin_turn(context, message_id)  # so that tools know their calls by it, in any agent


async def note_history() -> None:
    """Begin a turn where a run is given a chat history: its question may stand in it."""
    context = step_context()
    if context is not None and begins_run():
        await begin_turn(context)


async def put_of_run() -> list[str] | None:
    """The ids of the messages that the run stored last."""
    noted = await _noted(_PUT)
    return [str(one) for one in noted] if isinstance(noted, list) else None


async def note_put(message_ids: Sequence[str]) -> None:
    """Keep the ids of messages with the run, before they are stored: a run that is resumed puts them once more."""
    await _note(_PUT, list(message_ids))


async def _noted(key: str) -> Any:
    context = step_context()
    return None if context is None else await context.store.get(key, default=None)


async def _note(key: str, value: Any) -> None:
    context = step_context()
    if context is not None:
        with suppress(ValueError):  # the state of a host's own type has no such field
            await context.store.set(key, value)
