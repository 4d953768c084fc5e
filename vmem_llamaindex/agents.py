"""LlamaIndex's agents, which tell the memory tools their call by public means.

Owns the two steps that are told of more than tools are: a turn that begins, and a call of a tool. Does not own what is
made of it (``identity.py``).
"""

# No postponed annotations: workflows read the annotations of steps as they stand.

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.agent.workflow.workflow_events import (
    AgentInput,
    AgentWorkflowStartEvent,
    ToolCall,
    ToolCallResult,
)
from llama_index.core.workflow import Context, step

from vmem_llamaindex.identity import ToolCall as MemoryCall
from vmem_llamaindex.identity import begin_turn, entered


class KnowsItsCalls:
    """What an agent needs so that the memory tools know their calls; for an agent class of your own, named first.

    A context that it runs with has an execution id from the first step on. So a run that is restored from a snapshot
    after a crash applies each call of a memory tool once.

    >>> class MyAgent(KnowsItsCalls, FunctionAgent):
    ...     pass
    """

    @step
    async def init_run(self, ctx: Context, ev: AgentWorkflowStartEvent) -> AgentInput:
        """Begin a turn."""
        await begin_turn(ctx)
        begun: AgentInput = await super().init_run(ctx, ev)  # type: ignore[misc]
        return begun

    @step
    async def call_tool(self, ctx: Context, ev: ToolCall) -> ToolCallResult:
        """Call a tool that knows which call it is."""
        with entered(MemoryCall(ev.tool_id, ev.tool_name, ev.tool_kwargs, ctx)):
            called: ToolCallResult = await super().call_tool(ctx, ev)  # type: ignore[misc]
            return called


class VersionedFunctionAgent(KnowsItsCalls, FunctionAgent):
    """A ``FunctionAgent`` whose memory tools know their calls: one that is repeated after a crash applies once."""


class VersionedReActAgent(KnowsItsCalls, ReActAgent):
    """A ``ReActAgent`` whose memory tools know their calls: one that is repeated after a crash applies once."""


class VersionedAgentWorkflow(KnowsItsCalls, AgentWorkflow):
    """An ``AgentWorkflow`` whose memory tools know their calls: one that is repeated after a crash applies once.

    Its member agents may be of any class: it is the workflow that calls their tools.
    """
