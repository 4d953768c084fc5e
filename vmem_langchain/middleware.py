"""Memory for agents made by ``create_agent``: recall before the model, extraction after the turn.

Owns the hooks, what they keep in the graph's state (references and message ids, no text of a record) and that a failure
of memory is no failure of the turn. Does not own what is read (``conversation.py``) or recalled (``chat_memory.py``).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias

from langchain.agents.middleware.types import (
    AgentMiddleware,
    AgentState,
    ModelCallResult,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
)
from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables.config import ensure_config

from vmem_core import (
    ContextPackage,
    InvalidRequestError,
    MemorySession,
    OperationConflictError,
    WriteResult,
    run_sync,
    text_digest,
)
from vmem_langchain.chat_memory import Recaller, make_policy
from vmem_langchain.conversation import Read, batches, extraction_id, flat, read, text_of, turns
from vmem_langchain.identity import (
    LOG,
    MemoryRequest,
    SessionResolver,
    aresolve,
    check_source,
    is_graph_signal,
    request_of,
    resolve,
)
from vmem_langchain.llm import apart
from vmem_langchain.tools import ToolKind, create_memory_tools

_ATTEMPTS: Final = 2  # how many hooks ask again when the model's reply could not be read
_NAMESPACE_SEPARATOR: Final = "|"  # LangGraph's, between the graphs that a run is inside of
_MOST_CONVERSATIONS: Final = 256

Update: TypeAlias = dict[str, Any] | None
Act: TypeAlias = Callable[[MemorySession, "_Turn"], Coroutine[Any, Any, Update]]


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
        self._source = check_source(session_or_resolver, "session_or_resolver")
        self._policy = make_policy(trusted_tools, read_assistant)
        self._recaller = Recaller(top_k, max_tokens, count_tokens)
        self._recalls, self._extracts, self._nested, self._raises = recall, extract, nested, on_error == "raise"
        self._seen, self._told = _Seen(), False
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
        turn = _Turn(state)
        try:
            session = resolve(self._source, turn.request)
            return None if session is None else run_sync(apart(act(session, turn)))
        except Exception as error:  # noqa: BLE001 - whatever a host's store, model or function raises
            self._failed(error, act)
            return None

    async def _arun(self, act: Act, state: Any) -> Update:
        turn = _Turn(state)
        try:
            session = await aresolve(self._source, turn.request)
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

    async def _prepare(self, session: MemorySession, turn: _Turn) -> Update:
        """Note which question the turn is about, and recall for it."""
        question, context = turn.question, turn.context
        if self._reads(turn):
            self._seen.keep(
                turn.key or (question.id if question is not None else None), turn.undone, turn.is_summarized
            )
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
            return (await self._recaller.compile(session, text)).to_json()
        except Exception as error:  # noqa: BLE001 - the note of the question is kept all the same
            self._failed(error, self._recall)
            return None

    def _has_context(self, request: ModelRequest[Any]) -> bool:
        return self._recalls and bool(_Turn(request.state).context.get("package"))

    async def _render(self, session: MemorySession, turn: _Turn) -> Update:
        return {"text": await session.render(ContextPackage.from_json(turn.context["package"]))}

    # --- extraction -------------------------------------------------------------------------------------------

    async def _catch_up(self, session: MemorySession, turn: _Turn) -> Update:
        """Read what was left of earlier turns; the last one has only begun."""
        return await self._extract(session, turn, turns(self._restored(turn))[:-1])

    async def _finish(self, session: MemorySession, turn: _Turn) -> Update:
        update = await self._extract(session, turn, turns(self._restored(turn)))
        if update is not None:
            self._seen.drop(turn.key)
        return update

    def _restored(self, turn: _Turn) -> list[Read]:
        """What is to be read: with what was summarized since it was last seen, if a summary stands for it."""
        lost = self._seen.lost(turn.key, turn.conversation) if turn.is_summarized else []
        return [*lost, *turn.undone]

    def _reads(self, turn: _Turn) -> bool:
        return self._extracts and (self._nested or not turn.is_nested)

    async def _extract(self, session: MemorySession, turn: _Turn, found: list[list[Read]]) -> Update:
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

    async def _read(self, session: MemorySession, turn: _Turn, batch: list[Read]) -> bool:
        """Read turns in one operation.

        Returns:
            False if the model's reply could not be read: the next hook asks once more.
        """
        messages = flat(batch)
        for attempt in range(1, _ATTEMPTS + 1):
            operation_id = extraction_id(messages, session.scope, turn.thread_id, self._policy, attempt)
            try:
                written = await session.extract(messages, policy=self._policy, operation_id=operation_id)
            except OperationConflictError:  # it was read, and a message was edited since
                return True
            if not _is_unparsed(written):
                return True
            if not written.replayed:
                return attempt == _ATTEMPTS
        return True


def _make_tools(source: Any, tools: object, prefix: str) -> list[Any]:
    if isinstance(tools, bool):
        return create_memory_tools(source, prefix=prefix) if tools else []
    if not isinstance(tools, list | tuple | set | frozenset):
        raise InvalidRequestError("must be True, False or a list of names", path="tools")
    return create_memory_tools(source, include=tools, prefix=prefix) if tools else []


def _is_unparsed(written: WriteResult) -> bool:
    return any(note.code == "unparsed" for note in written.receipt.notes)


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


# --- the turn -----------------------------------------------------------------------------------------------------


class _Turn:
    """A turn as a hook finds it in the graph's state."""

    def __init__(self, state: Any) -> None:
        config = ensure_config()
        self.request: MemoryRequest = request_of(config)
        self.thread_id = self.request.thread_id
        self.is_nested = _NAMESPACE_SEPARATOR in str((config.get("configurable") or {}).get("checkpoint_ns") or "")
        self._messages = state.get("messages") or ()
        found = state.get("vmem_context")
        self.context: dict[str, Any] = found if isinstance(found, dict) else {}
        self._extracted = state.get("vmem_extracted")

    @cached_property
    def conversation(self) -> list[Read]:
        """The messages."""
        return read(self._messages, self.thread_id)

    @property
    def key(self) -> str | None:
        """The conversation, or without a thread the question that this run is about."""
        return self.thread_id or self.context.get("message_id")

    @property
    def question(self) -> Read | None:
        """The user's last message."""
        return next((one for one in reversed(self.conversation) if one.begins_turn), None)

    @property
    def is_summarized(self) -> bool:
        """Whether a summary stands in the place of messages."""
        return any(_is_summary(one.original) for one in self.conversation)

    @property
    def undone(self) -> list[Read]:
        """The turns that were not read, or not all of them.

        A turn that was read in part comes whole: what it began with decides what of the rest is trusted.
        """
        ids = [one.id for one in self.conversation]
        start = ids.index(self._extracted) + 1 if self._extracted in ids else 0
        place, left = 0, []
        for one in turns(self.conversation):
            place += len(one)
            if place > start:
                left.extend(one)
        return left


def _is_summary(message: BaseMessage) -> bool:
    return message.type == "human" and bool(message.additional_kwargs.get("lc_source"))


class _Seen:
    """Messages of turns that were not read yet, as they were last seen: a long turn can be summarized before it ends.

    In this process alone, and for the conversations that came last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, list[Read]] = OrderedDict()

    def keep(self, key: str | None, messages: list[Read], is_summarized: bool) -> None:
        """Keep what is there and, with a summary in the place of messages, what was there before."""
        if key is None:
            return
        with self._lock:
            ids = {one.id for one in messages}
            lost = [one for one in self._kept.get(key, ()) if one.id not in ids] if is_summarized else []
            self._kept[key] = [*lost, *messages]
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_CONVERSATIONS:
                self._kept.popitem(last=False)

    def lost(self, key: str | None, conversation: Sequence[Read]) -> list[Read]:
        """What was seen and is not in the conversation any more."""
        ids = {one.id for one in conversation}
        with self._lock:
            return [one for one in self._kept.get(key or "", ()) if one.id not in ids]

    def drop(self, key: str | None) -> None:
        """Forget a conversation: it was read."""
        with self._lock:
            self._kept.pop(key or "", None)
