"""The memory tools for LlamaIndex's agents: remember, recall, revise, retract. There is none to forget.

Owns how LlamaIndex calls a tool and reads its answer. Does not own what a tool does and answers or its schema
(``vmem_core``), or which call it is (``identity.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Any, Literal, TypeAlias, get_type_hints

from llama_index.core.tools import FunctionTool, ToolMetadata, ToolOutput
from llama_index.core.tools.tool_spec.base import BaseToolSpec
from pydantic import ValidationError

from vmem_core import (
    InvalidRequestError,
    MemorySession,
    ModelTool,
    ToolAnswer,
    aresolve_session,
    check_count,
    check_session_source,
    model_tools,
    resolve_session,
    run_sync,
)
from vmem_llamaindex.binding import LOG, MemoryRequest, SessionResolver
from vmem_llamaindex.conversation import OUR_TOOL
from vmem_llamaindex.identity import ToolCall, current_call, is_workflow_signal, operation_id, step_context

ToolKind: TypeAlias = Literal["remember", "recall", "revise", "retract"]

_NO_SESSION = ToolAnswer.refusal("no_session")


class MemoryTool(FunctionTool):
    """One of the memory tools, for sync and async agents. Made by :func:`create_memory_tools`."""

    def __init__(
        self, tool: ModelTool, source: Any, top_k: int, told: set[str], described: ToolMetadata | None = None
    ) -> None:
        async def aanswer(*args: Any, **arguments: Any) -> Any:
            return (await self._aanswer(args, arguments))[1].content

        def answer(*args: Any, **arguments: Any) -> Any:
            checked, refused = self._check(args, arguments)
            return (refused or self._answer(checked)).content

        for function in (answer, aanswer):  # an agent that writes code is shown a function as it is called
            function.__name__, function.__doc__ = tool.name, tool.description
            vars(function)["__signature__"] = _signature(tool)
        name, text = (described.name, described.description) if described else (tool.name, tool.description)
        direct = described is not None and described.return_direct
        metadata = ToolMetadata(text, name or tool.name, fn_schema=tool.arguments, return_direct=direct)
        super().__init__(fn=answer, async_fn=aanswer, metadata=metadata)
        self._tool, self._source, self._top_k, self._told = tool, source, top_k, told

    def described(self, metadata: ToolMetadata) -> MemoryTool:
        """The same tool under another name, description or ``return_direct``; the schema of its arguments stays."""
        renamed = replace(self._tool, name=metadata.name or self._tool.name)
        return MemoryTool(renamed, self._source, self._top_k, self._told, metadata)

    # ``self`` by position only: a model may name an argument so.
    def __call__(self, /, *args: Any, **kwargs: Any) -> ToolOutput:
        return self.call(*args, **kwargs)

    def call(self, /, *args: Any, **kwargs: Any) -> ToolOutput:
        """Call the tool from sync code, also while a loop runs."""
        arguments, refused = self._check(args, kwargs)
        return self._output(arguments, refused or self._answer(arguments))

    async def acall(self, /, *args: Any, **kwargs: Any) -> ToolOutput:
        """Call the tool; what agents do."""
        return self._output(*await self._aanswer(args, kwargs))

    async def _aanswer(self, args: Sequence[Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], ToolAnswer]:
        arguments, refused = self._check(args, given)
        if refused is not None:
            return arguments, refused
        try:
            session = await aresolve_session(self._source, MemoryRequest(step_context()))
        except Exception as error:  # noqa: BLE001 - whatever a host's function raises: there is no session
            self._fail_closed(error)
            session = None
        return arguments, _NO_SESSION if session is None else await self._execute(session, arguments, may_keep=True)

    def _answer(self, arguments: dict[str, Any]) -> ToolAnswer:
        try:
            session = resolve_session(self._source, MemoryRequest(step_context()))
        except Exception as error:  # noqa: BLE001 - whatever a host's function raises: there is no session
            self._fail_closed(error)
            session = None
        if session is None:
            return _NO_SESSION
        # On the library's own loop, which must not wait for the lock of a context's state: it is another loop's.
        return run_sync(self._execute(session, arguments, may_keep=False))

    def _check(self, args: Sequence[Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], ToolAnswer | None]:
        """The arguments, or the refusal of those that do not fit: LlamaIndex itself checks none."""
        schema = self._tool.arguments
        by_name = {**dict(zip(schema.model_fields, args, strict=False)), **given}
        try:
            return schema.model_validate(by_name).model_dump(exclude_none=True), None
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            return {}, ToolAnswer.invalid_request(str((faults[0]["loc"] or ("arguments",))[0]))

    async def _execute(self, session: MemorySession, arguments: dict[str, Any], *, may_keep: bool) -> ToolAnswer:
        call = current_call()
        try:
            return await self._tool.answer(
                session,
                arguments,
                call_id=call.call_id if call is not None else None,
                operation_id=await self._operation_id(call, session, arguments, may_keep),
                top_k=self._top_k,
            )
        except Exception as error:
            if is_workflow_signal(error):
                raise
            self._failed(error, "memory")
            return ToolAnswer.refusal("unavailable")

    async def _operation_id(
        self, call: ToolCall | None, session: MemorySession, arguments: dict[str, Any], may_keep: bool
    ) -> str | None:
        if self._tool.kind == "recall":
            return None
        found = await operation_id(
            call, tool=self._tool.name, arguments=arguments, scope=session.scope, may_keep=may_keep
        )
        if found is None and not self._told:
            self._told.add("no operation id")
            LOG.warning(
                "%s: nothing tells which call this is, so a call that is repeated after a crash applies twice; use the "
                "agents of vmem_llamaindex, or tool_call_scope (this is said once)",
                self._tool.name,
            )
        return found

    def _fail_closed(self, error: Exception) -> None:
        """A resolver that fails finds no session: never another user's."""
        if is_workflow_signal(error):
            raise error
        self._failed(error, "the resolver")

    def _failed(self, error: Exception, what: str) -> None:
        """Log a failure by its class alone: a message may quote what was to be remembered."""
        LOG.warning("%s: %s failed with %s", self._tool.name, what, type(error).__name__)

    def _output(self, arguments: dict[str, Any], answer: ToolAnswer) -> ToolOutput:
        # JSON values alone: anything else here would keep the whole context from being saved.
        return ToolOutput(
            tool_name=self._metadata.get_name(),
            content=answer.text,
            raw_input={"kwargs": arguments, OUR_TOOL: self._tool.kind},
            raw_output=answer.artifact,
            is_error=answer.failed,
        )


def _signature(tool: ModelTool) -> Signature:
    hints = get_type_hints(tool.arguments)  # without what checks the values
    return Signature(
        [
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if field.is_required() else field.default,
                annotation=hints[name],
            )
            for name, field in tool.arguments.model_fields.items()
        ]
    )


def create_memory_tools(
    session_or_resolver: MemorySession | SessionResolver,
    *,
    include: Collection[ToolKind] = ("remember", "recall", "revise", "retract"),
    prefix: str = "memory",
    top_k: int = 5,
) -> list[FunctionTool]:
    """Memory tools for an agent: ``memory_remember``, ``memory_recall``, ``memory_revise``, ``memory_retract``.

    What the model writes is inferred and cites the call. It can neither change nor retract what the host asserted, and
    cannot forget. Scope, origin, sources and operation id are not the model's to give. Refusals are answers with
    ``is_error``, such as ``{"error":"revision_conflict","actual_revision":3}``; the tools raise none of them. A tool's
    ``raw_output`` is for the host: the receipt of a write, or ids, revisions and scores of a recall, never text.

    In a ``VersionedFunctionAgent``, ``VersionedReActAgent`` or ``VersionedAgentWorkflow`` a call that runs again after
    a crash applies once. In LlamaIndex's own agents too, if the context was prepared: see ``prepare_context``.
    Elsewhere each call is a new operation, unless ``tool_call_scope`` says which call it is.

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
    >>> print(remember(text="Ada likes green tea."))
    {"id":"r1","revision":1,"origin":"inferred","status":"active","replayed":false}
    >>> print(recall(query="tea"))
    [{"id":"r1","revision":1,"text":"Ada likes green tea.","kind":"semantic","origin":"inferred",...}]
    """
    return [*_make_tools(session_or_resolver, "session_or_resolver", top_k=top_k, include=include, prefix=prefix)]


def _make_tools(source: object, path: str, *, top_k: object, **chosen: Any) -> list[MemoryTool]:
    checked, count, told = check_session_source(source, path), check_count(top_k, "top_k"), set[str]()
    return [MemoryTool(tool, checked, count, told) for tool in model_tools(**chosen).values()]


class MemoryToolSpec(BaseToolSpec):
    """The memory tools as one of LlamaIndex's tool specs.

    Args:
        session: A session, or a function that finds one for each run.
        top_k: How many records a recall answers at most, 1 to 1,000.

    Raises:
        InvalidRequestError: For a wrong argument.

    >>> from vmem_core import InMemoryStore, Scope
    >>> spec = MemoryToolSpec(MemorySession(InMemoryStore(), Scope(user_id="ada")))
    >>> [tool.metadata.name for tool in spec.to_tool_list(["memory_recall", "memory_remember"])]
    ['memory_recall', 'memory_remember']
    """

    spec_functions = ["memory_remember", "memory_recall", "memory_revise", "memory_retract"]  # noqa: RUF012 - its form

    def __init__(self, session: MemorySession | SessionResolver, *, top_k: int = 5) -> None:
        made = _make_tools(session, "session", top_k=top_k)
        self._tools: dict[str, MemoryTool] = {tool.metadata.get_name(): tool for tool in made}

    def to_tool_list(
        self,
        spec_functions: Sequence[str | tuple[str, str]] | None = None,
        func_to_metadata_mapping: Mapping[str, ToolMetadata] | None = None,
    ) -> list[FunctionTool]:
        """The tools, all or those named.

        Args:
            spec_functions: Names among ``spec_functions``; None: all.
            func_to_metadata_mapping: Other names, descriptions or ``return_direct`` by the function's name. The
                schema of the arguments stays.

        Raises:
            InvalidRequestError: For a name that is none of a memory tool.
        """
        return [
            self._described(name if isinstance(name, str) else name[0], func_to_metadata_mapping or {})
            for name in (self.spec_functions if spec_functions is None else spec_functions)
        ]

    def _described(self, name: str, given: Mapping[str, ToolMetadata]) -> FunctionTool:
        if name not in self._tools:
            raise InvalidRequestError(f"must be names among {', '.join(self._tools)}", path="spec_functions")
        tool = self._tools[name]
        return tool.described(given[name]) if name in given else tool

    async def memory_remember(self, text: str, kind: str | None = None, importance: float | None = None) -> Any:
        """Remember a fact; see the tool of that name."""
        return await self._call("memory_remember", text=text, kind=kind, importance=importance)

    async def memory_recall(self, query: str, kind: str | None = None) -> Any:
        """Search memory; see the tool of that name."""
        return await self._call("memory_recall", query=query, kind=kind)

    async def memory_revise(
        self,
        id: str,
        expected_revision: int,
        text: str | None = None,
        kind: str | None = None,
        importance: float | None = None,
    ) -> Any:
        """Correct a record; see the tool of that name."""
        given = {"id": id, "expected_revision": expected_revision, "text": text, "kind": kind, "importance": importance}
        return await self._call("memory_revise", **given)

    async def memory_retract(self, id: str, expected_revision: int) -> Any:
        """Retract a record; see the tool of that name."""
        return await self._call("memory_retract", id=id, expected_revision=expected_revision)

    async def _call(self, name: str, /, **arguments: Any) -> Any:
        return await self._tools[name].async_fn(**arguments)
