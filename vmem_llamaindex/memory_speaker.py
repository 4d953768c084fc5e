"""Who speaks in the user's role: the user, or a model and its tools.

Owns what tells them apart: the step that stores a message, what it is stored with, and the call of a tool that it is
stored in. Does not own what follows from it (``conversation.py``) or the marks that keep it (``memory.py``).

Frameworks put into the user's role what no user said: the output of code that an agent ran, the observation of a
text-only loop, the task that a model gives to another agent. Memory must not take such words for the user's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from llama_index.core.base.llms.types import ChatMessage, MessageRole

from vmem_llamaindex.binding import LOG
from vmem_llamaindex.conversation import Kept, is_observed, text_of
from vmem_llamaindex.identity import is_inside_scope, is_inside_tool, step_context, step_event

_AGENTS: Final = "llama_index.core.agent.workflow"
_EVENTS: Final = f"{_AGENTS}.workflow_events"
_KINDS: Final = ("BaseWorkflowAgent", "AgentWorkflow")
_ASKS: Final = re.compile(r"^\W*action\b", re.IGNORECASE | re.MULTILINE)
_ANSWERS: Final = re.compile(r"^\W*(?:final\s+)?answer\W*:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Speaker:
    """What is known of a message in the user's role.

    Args:
        opens: It begins a turn, whatever it looks like.
        written: A model or a tool wrote it: it is no source.
    """

    opens: bool = False
    written: bool = False


def begins_run() -> bool:
    """Whether we are in the step that begins an agent's run, and takes in what the user says."""
    return _is("AgentWorkflowStartEvent")


def in_tool_step() -> bool:
    """Whether we are in the step that calls a tool."""
    return _is("ToolCall") and not _is("ToolCallResult")


def _is(name: str) -> bool:
    kind = getattr(sys.modules.get(_EVENTS), name, None)
    return kind is not None and isinstance(step_event(), kind)


def _in_agents_own_step() -> bool:
    """Whether an agent of the framework stores what it has collected: the user spoke before."""
    return any(_is(name) for name in ("AgentInput", "AgentSetup", "AgentOutput", "ToolCallResult"))


def step_workflow() -> Any:
    """The workflow of the step that we are in; None outside of one, or if the runtime does not tell."""
    # No public way leads from a step to its workflow.
    return getattr(getattr(step_context(), "_face", None), "_workflow", None)


def _in_agent() -> bool:
    """Whether an agent of the framework runs here. A host's own workflow may store what users said, several at once."""
    workflow = step_workflow()
    if workflow is None:
        return step_context() is not None
    modules = [sys.modules.get(f"{_AGENTS}.{name}") for name in ("base_agent", "multi_agent_workflow")]
    kinds = [getattr(module, name, None) for module, name in zip(modules, _KINDS, strict=True)]
    return any(kind is not None and isinstance(workflow, kind) for kind in kinds)


def speakers(messages: Sequence[ChatMessage], stored: Sequence[Kept], *, made_in_tool: bool) -> list[Speaker]:
    """Who speaks in each message, as far as it is in the user's role.

    Args:
        messages: About to be stored, together.
        stored: What stands before them.
        made_in_tool: Whether the memory was made inside of a tool.
    """
    inside = asked_by_model(made_in_tool)
    if len(messages) == 1:
        return [_alone(messages[0], stored, inside) if messages[0].role == MessageRole.USER else Speaker()]
    collected = _in_agents_own_step()
    in_agent = collected or _in_agent()
    found, others_spoke = [], False
    for one in messages:
        others_spoke = others_spoke or one.role not in (MessageRole.USER, MessageRole.SYSTEM)
        written = inside or collected or (in_agent and others_spoke)
        found.append(Speaker(written=written and one.role == MessageRole.USER))
    return found


def asked_by_model(made_in_tool: bool) -> bool:
    """Whether it is a model that asks in the user's place: inside of a tool.

    Args:
        made_in_tool: Whether the memory was made there.
    """
    return made_in_tool or is_inside_tool() or in_tool_step()


def _alone(message: ChatMessage, stored: Sequence[Kept], inside: bool) -> Speaker:
    if is_inside_scope():
        LOG.warning(
            "versioned memory: this message came inside of tool_call_scope, where a model asks in the user's place, so "
            "it is not read; put tool_call_scope around calls of tools alone, not around an agent's run"
        )
    if begins_run():
        return Speaker(opens=True, written=inside)
    if _in_agents_own_step():
        return Speaker(written=True)
    observed = is_observed(message) and bool(stored) and _awaits_observation(stored[-1])
    return Speaker(opens=not observed, written=inside)


def _awaits_observation(one: Any) -> bool:
    """Whether an assistant asked for a tool in its text, and has not answered since."""
    text = text_of(one.message)
    asked = max((found.start() for found in _ASKS.finditer(text)), default=-1)
    answered = max((found.start() for found in _ANSWERS.finditer(text)), default=-1)
    return asked > answered
