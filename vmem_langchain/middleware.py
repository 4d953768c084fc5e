"""Memory for agents made by ``create_agent``: recall before the model, extraction after the turn.

Owns the hooks, what they keep in the graph's state (references and message ids, no text of a record) and that a failure
of memory is no failure of the turn. Does not own what a hook finds in the state (``turn.py``), what is read of it
(``conversation.py``) or how a context is made (``vmem_core``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ModelCallResult,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
)
from langchain_core.messages import SystemMessage

from vmem_core import (
    ContextBudget,
    ContextPackage,
    InvalidRequestError,
    MemorySession,
    aresolve_session,
    check_session_source,
    read_turns,
    resolve_session,
    run_sync,
    store_digest,
    text_digest,
)
from vmem_langchain.chat_memory import make_policy
from vmem_langchain.conversation import Read, batches, flat, text_of, turns
from vmem_langchain.identity import LOG, SessionResolver, is_graph_signal
from vmem_langchain.llm import apart
from vmem_langchain.tools import ToolKind, create_memory_tools
from vmem_langchain.turn import Seen, Turn

Update: TypeAlias = dict[str, Any] | None
Act: TypeAlias = Callable[[MemorySession, Turn], Coroutine[Any, Any, Update]]


class MemoryState(AgentState[Any]):
    """What the middleware keeps in the graph's state: hidden from input and output, and free of record text."""

    vmem_context: NotRequired[Annotated[dict[str, Any] | None, PrivateStateAttr]]
    vmem_extracted: NotRequired[Annotated[str | None, PrivateStateAttr]]


class MemoryMiddleware(AgentMiddleware[MemoryState, Any, Any]):
    """Gives an agent long-term memory: what is known comes into the system message, what is new is learned afterwards.

    Recall happens once a user's question, before the model is called. The graph's state gets references only; the text
    is read when the model is called, so a resumed step sees what the first one saw, and a record forgotten meanwhile
    reads ``[forgotten]``. Extraction happens once a turn, when it has ended. A turn that failed or was left interrupted
    is read when the next one begins. It needs a session with an ``llm``. Both work with ``invoke`` and ``ainvoke``.

    Use a checkpointer and a ``thread_id``. List the middleware before one that summarizes or trims messages, and after
    one that redacts them.

    Args:
        session_or_resolver: A session; or, for one agent and many users, a function that gets a ``MemoryRequest`` at
            each step and returns a session (sync or async). If it returns None or raises, the run goes on without
            memory.
        trusted_tools: Names of tools whose results may become memory. With none, and without ``read_assistant``, the
            session's own ``extraction`` policy holds.
        read_assistant: Whether the assistant's texts are read, except after an untrusted result.
        recall: Whether records are recalled.
        extract: Whether turns are read.
        tools: Whether the agent gets the memory tools; or which of them, such as ``["recall"]``.
        prefix: Of the tools' names.
        top_k: How many records are recalled at most, 1 to 1,000.
        max_tokens: What their text may take.
        count_tokens: Counts the tokens of a text; None: a quarter of its characters.
        nested: Whether turns are read when the agent runs inside another graph. There the user's messages are mostly
            tasks that a model wrote. Set it for an agent that is a node of your own graph and talks to the user.
        on_error: ``"log"``: a failure of memory is logged by ``vmem_langchain``, by the error's class alone, and the
            turn goes on. ``"raise"``: it ends the run.

    Raises:
        InvalidRequestError: For a wrong argument.
    """

    state_schema = MemoryState

    def __init__(
        self,
        session_or_resolver: MemorySession | SessionResolver,
        *,
        trusted_tools: Collection[str] = (),
        read_assistant: bool = False,
        recall: bool = True,
        extract: bool = True,
        tools: bool | Sequence[ToolKind] = True,
        prefix: str = "memory",
        top_k: int = 8,
        max_tokens: int = 1000,
        count_tokens: Callable[[str], int] | None = None,
        nested: bool = False,
        on_error: Literal["log", "raise"] = "log",
    ) -> None:
        super().__init__()
        if on_error not in ("log", "raise"):
            raise InvalidRequestError('must be "log" or "raise"', path="on_error")
        self._source = check_session_source(session_or_resolver, "session_or_resolver")
        self._policy = make_policy(trusted_tools, read_assistant)
        self._budget = ContextBudget(top_k, max_tokens, count_tokens)
        self._recalls, self._extracts, self._nested, self._raises = recall, extract, nested, on_error == "raise"
        self._seen, self._told = Seen(), False
        self.tools = _make_tools(session_or_resolver, tools, prefix)

    # --- hooks ------------------------------------------------------------------------------------------------

    def before_agent(self, state: MemoryState, runtime: Any) -> Update:
        """Read turns that failed or were left before."""
        return self._run(self._catch_up, state) if self._extracts else None

    async def abefore_agent(self, state: MemoryState, runtime: Any) -> Update:
        """Read turns that failed or were left before."""
        return await self._arun(self._catch_up, state) if self._extracts else None

    def before_model(self, state: MemoryState, runtime: Any) -> Update:
        """Recall for the user's question, unless that was done."""
        return self._run(self._prepare, state)

    async def abefore_model(self, state: MemoryState, runtime: Any) -> Update:
        """Recall for the user's question, unless that was done."""
        return await self._arun(self._prepare, state)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelCallResult[Any]:
        """Call the model with what was recalled."""
        context = self._run(self._render, request.state) if self._has_context(request) else None
        return handler(_with_context(request, context))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelCallResult[Any]:
        """Call the model with what was recalled."""
        context = await self._arun(self._render, request.state) if self._has_context(request) else None
        return await handler(_with_context(request, context))

    def after_agent(self, state: MemoryState, runtime: Any) -> Update:
        """Read the turn that has ended."""
        return self._run(self._finish, state) if self._extracts else None

    async def aafter_agent(self, state: MemoryState, runtime: Any) -> Update:
        """Read the turn that has ended."""
        return await self._arun(self._finish, state) if self._extracts else None

    # --- with a session, and without failing the turn ---------------------------------------------------------

    def _run(self, act: Act, state: Any) -> Update:
        turn = Turn(state)
        try:
            session = resolve_session(self._source, turn.request)
            return None if session is None else run_sync(apart(act(session, turn)))
        except Exception as error:  # noqa: BLE001 - whatever a host's store, model or function raises
            self._failed(error, act)
            return None

    async def _arun(self, act: Act, state: Any) -> Update:
        turn = Turn(state)
        try:
            session = await aresolve_session(self._source, turn.request)
            return None if session is None else await apart(act(session, turn))
        except Exception as error:  # noqa: BLE001 - whatever a host's store, model or function raises
            self._failed(error, act)
            return None

    def _failed(self, error: Exception, act: Callable[..., Any]) -> None:
        """Log an error by its class alone: its message may quote what was to be remembered."""
        if self._raises or is_graph_signal(error):
            raise error
        if isinstance(error, InvalidRequestError) and error.path == "infer":
            if not self._told:
                LOG.warning("memory middleware: the session has no llm, so no turn is read; or set extract=False")
            self._told = True
            return
        name = act.__name__.strip("_")
        LOG.warning("memory middleware: %s failed with %s", name, type(error).__name__)

    # --- recall -----------------------------------------------------------------------------------------------

    async def _prepare(self, session: MemorySession, turn: Turn) -> Update:
        """Note which question the turn is about, and recall for it."""
        question, context = turn.question, turn.context
        if self._reads(turn):
            key = turn.key or (question.id if question is not None else None)
            self._seen.keep(_whose(session, key), turn.undone, turn.is_summarized)
        if question is None:  # it was summarized away: what was recalled for it still holds
            return None
        text = text_of(question.messages[-1].content)
        about = {"message_id": question.id, "question": text_digest(text)}
        same = {name: context.get(name) for name in about} == about
        if same and (context.get("package") is not None or not self._recalls):
            return None
        package = await self._recall(session, text) if self._recalls else None
        return None if same and package is None else {"vmem_context": {**about, "package": package}}

    async def _recall(self, session: MemorySession, text: str) -> dict[str, Any] | None:
        try:
            return (await self._budget.compile(session, text)).to_json()
        except Exception as error:  # noqa: BLE001 - the note of the question is kept all the same
            self._failed(error, self._recall)
            return None

    def _has_context(self, request: ModelRequest[Any]) -> bool:
        return self._recalls and bool(Turn(request.state).context.get("package"))

    async def _render(self, session: MemorySession, turn: Turn) -> Update:
        return {"text": await session.render(ContextPackage.from_json(turn.context["package"]))}

    # --- extraction -------------------------------------------------------------------------------------------

    async def _catch_up(self, session: MemorySession, turn: Turn) -> Update:
        """Read what was left of earlier turns; the last one has only begun."""
        return await self._extract(session, turn, turns(self._restored(session, turn))[:-1])

    async def _finish(self, session: MemorySession, turn: Turn) -> Update:
        update = await self._extract(session, turn, turns(self._restored(session, turn)))
        if update is not None:
            self._seen.drop(_whose(session, turn.key))
        return update

    def _restored(self, session: MemorySession, turn: Turn) -> list[Read]:
        """What is to be read: with what was summarized since it was last seen, if a summary stands for it."""
        lost = self._seen.lost(_whose(session, turn.key), turn.present) if turn.is_summarized else []
        return [*lost, *turn.undone]

    def _reads(self, turn: Turn) -> bool:
        return self._extracts and (self._nested or not turn.is_nested)

    async def _extract(self, session: MemorySession, turn: Turn, found: list[list[Read]]) -> Update:
        if not self._reads(turn):
            return None
        done: str | None = None
        for batch in batches(found):
            try:
                finished = await self._read(session, turn, batch)
            except Exception as error:  # noqa: BLE001 - what was read before it is kept in mind
                self._failed(error, self._read)
                break
            if not finished:
                break
            done = batch[-1].id
        return None if done is None else {"vmem_extracted": done}

    async def _read(self, session: MemorySession, turn: Turn, batch: list[Read]) -> bool:
        """Read turns in one operation.

        Returns:
            False if the model's reply could not be read: the next hook asks once more.
        """
        conversation = turn.thread_id or ""
        _, is_done = await read_turns(session, flat(batch), conversation=conversation, policy=self._policy)
        return is_done


def _whose(session: MemorySession, key: str | None) -> str | None:
    """A conversation, told from that of the same name of another user or another tenant: one middleware serves many."""
    return None if key is None else text_digest(f"{session.scope.key}\n{store_digest(session.store)}\n{key}")


def _make_tools(source: Any, tools: object, prefix: str) -> list[Any]:
    if isinstance(tools, bool):
        return create_memory_tools(source, prefix=prefix) if tools else []
    if not isinstance(tools, list | tuple | set | frozenset):
        raise InvalidRequestError("must be True, False or a list of names", path="tools")
    return create_memory_tools(source, include=tools, prefix=prefix) if tools else []


def _with_context(request: ModelRequest[Any], context: Update) -> ModelRequest[Any]:
    """The request with a context as a last block of its system message: what comes before stays as it can be cached."""
    if context is None or not context["text"]:
        return request
    given = request.system_message
    if given is None:
        return request.override(system_message=SystemMessage(context["text"]))
    blocks = given.content if isinstance(given.content, list) else [{"type": "text", "text": given.content}]
    block = {"type": "text", "text": f"\n\n{context['text']}"}
    return request.override(system_message=given.model_copy(update={"content": [*blocks, block]}))
