"""The memory tools for LangChain's agents: remember, recall, revise, retract. There is none to forget.

Owns how LangChain calls a tool and reads its answer. Does not own what a tool does and answers (``vmem_core``), its
schema (``arguments.py``), or sessions and operation ids (``identity.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from pydantic import Field

from vmem_core import (
    MemorySession,
    ModelTool,
    Scope,
    ToolAnswer,
    aresolve_session,
    check_count,
    check_session_source,
    mend_string,
    model_tools,
    resolve_session,
    run_sync,
)
from vmem_langchain.arguments import SCHEMAS, refuse_arguments
from vmem_langchain.identity import LOG, SessionResolver, is_graph_signal, is_runtime, operation_id, request_of

ToolKind: TypeAlias = Literal["remember", "recall", "revise", "retract"]

# ``run`` and ``arun`` get the call's id as an argument of their own, where no model can write it; ``_run`` does not.
_CALL_ID: ContextVar[str | None] = ContextVar("vmem_tool_call_id", default=None)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a tool."""

    tool: str
    call_id: str | None  # None: called with plain arguments
    arguments: dict[str, Any]
    config: RunnableConfig
    runtime: Any

    def operation_id(self, scope: Scope) -> str | None:
        return operation_id(
            self.runtime, call_id=self.call_id or "", tool=self.tool, arguments=self.arguments, scope=scope
        )


def _failed(error: Exception, what: str, tool: str) -> None:
    """Log a failure by its class alone: a message may quote what was to be remembered."""
    LOG.warning("%s: %s failed with %s", tool, what, type(error).__name__)


class MemoryTool(BaseTool):
    """One of the memory tools, for sync and async agents. Made by :func:`create_memory_tools`."""

    does: Any = Field(exclude=True, repr=False)
    source: Any = Field(exclude=True, repr=False)
    top_k: int = 5
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_validation_error: bool | str | Callable[[Any], str] | None = refuse_arguments

    def run(self, tool_input: str | dict[str, Any], *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        """Run the tool; called by ``invoke``."""
        call_id = _answerable(tool_input, tool_call_id)
        token = _CALL_ID.set(call_id)
        try:
            return super().run(tool_input, *args, tool_call_id=call_id, **kwargs)
        finally:
            _CALL_ID.reset(token)

    async def arun(
        self, tool_input: str | dict[str, Any], *args: Any, tool_call_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Run the tool; called by ``ainvoke``."""
        call_id = _answerable(tool_input, tool_call_id)
        token = _CALL_ID.set(call_id)
        try:
            return await super().arun(tool_input, *args, tool_call_id=call_id, **kwargs)
        finally:
            _CALL_ID.reset(token)

    def _run(self, *given: Any, config: RunnableConfig, **named: Any) -> tuple[Any, Any]:
        call = self._call(given, named, config)
        try:
            session = resolve_session(self.source, request_of(config, call.runtime))
        except Exception as error:  # noqa: BLE001 - whatever a host's function raises: there is no session
            self._fail_closed(error)
            session = None
        return self._reply(_NO_SESSION if session is None else run_sync(self._execute(session, call)))

    async def _arun(self, *given: Any, config: RunnableConfig, **named: Any) -> tuple[Any, Any]:
        call = self._call(given, named, config)
        try:
            session = await aresolve_session(self.source, request_of(config, call.runtime))
        except Exception as error:  # noqa: BLE001 - whatever a host's function raises: there is no session
            self._fail_closed(error)
            session = None
        return self._reply(_NO_SESSION if session is None else await self._execute(session, call))

    def _call(self, given: tuple[Any, ...], named: dict[str, Any], config: RunnableConfig) -> _Call:
        runtime = named.pop("runtime", None)
        if given:  # a plain string, which LangChain passes on as it is
            named[next(iter(self._made.arguments.model_fields))] = mend_string(given[0])
        arguments = {name: value for name, value in named.items() if value is not None}
        return _Call(self.name, _CALL_ID.get(), arguments, config, runtime)

    @property
    def _made(self) -> ModelTool:
        made: ModelTool = self.does
        return made

    def _fail_closed(self, error: Exception) -> None:
        """A resolver that fails finds no session: never another user's."""
        if is_graph_signal(error):
            raise error
        _failed(error, "the resolver", self.name)

    async def _execute(self, session: MemorySession, call: _Call) -> ToolAnswer:
        try:
            return await self._made.answer(
                session,
                call.arguments,
                call_id=call.call_id,
                operation_id=call.operation_id(session.scope),
                top_k=self.top_k,
            )
        except Exception as error:
            if is_graph_signal(error):
                raise
            _failed(error, "memory", self.name)
            return ToolAnswer.refusal("unavailable")

    def _reply(self, answer: ToolAnswer) -> tuple[Any, Any]:
        content, call_id = answer.text, _CALL_ID.get()
        if not answer.failed or call_id is None:
            return content, answer.artifact
        # Only a message can say that it is an error, and only a call with an id is answered by a message.
        message = ToolMessage(content, artifact=answer.artifact, status="error", name=self.name, tool_call_id=call_id)
        return message, None


_NO_SESSION = ToolAnswer.refusal("no_session")


def _answerable(tool_input: object, call_id: str | None) -> str | None:
    """The id of a call; empty for a call of a graph without one, which must be answered by a message all the same."""
    inside = isinstance(tool_input, dict) and is_runtime(tool_input.get("runtime"))
    return "" if call_id is None and inside else call_id


def create_memory_tools(
    session_or_resolver: MemorySession | SessionResolver,
    *,
    include: Collection[ToolKind] = ("remember", "recall", "revise", "retract"),
    prefix: str = "memory",
    top_k: int = 5,
) -> list[BaseTool]:
    """Memory tools for an agent: ``memory_remember``, ``memory_recall``, ``memory_revise``, ``memory_retract``.

    What the model writes is inferred and cites the call. It can neither change nor retract what the host asserted, and
    cannot forget. Scope, origin, sources and operation id are not the model's to give. Refusals are answers, such as
    ``{"error":"revision_conflict","actual_revision":3}``; the tools do not raise them into the agent.

    Inside a LangGraph agent with a checkpointer a call that runs again after a crash applies once. Outside a graph
    each call is a new operation.

    Args:
        session_or_resolver: A session; or, for one agent and many users, a function that gets a ``MemoryRequest`` at
            each call and returns a session (sync or async). If it returns None or raises, the answer is
            ``{"error":"no_session"}``.
        include: Which tools.
        prefix: Of their names: 1 to 55 letters, digits, ``_`` or ``-``.
        top_k: How many records a recall answers at most, 1 to 1,000.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from vmem_core import InMemoryStore, Scope
    >>> session = MemorySession(InMemoryStore(), Scope(user_id="ada"), new_id=lambda: "r1")
    >>> remember, recall = create_memory_tools(session, include=("remember", "recall"))
    >>> remember.invoke({"text": "Ada likes green tea."})
    '{"id":"r1","revision":1,"origin":"inferred","status":"active","replayed":false}'
    >>> recall.invoke({"query": "tea"})
    '[{"id":"r1","revision":1,"text":"Ada likes green tea.","kind":"semantic","origin":"inferred",...}]'
    """
    source = check_session_source(session_or_resolver, "session_or_resolver")
    chosen = model_tools(include=include, prefix=prefix)
    check_count(top_k, "top_k")
    return [
        MemoryTool(
            name=name,
            description=tool.description,
            args_schema=SCHEMAS[tool.kind],
            does=tool,
            source=source,
            top_k=top_k,
        )
        for name, tool in chosen.items()
    ]
