"""The memory of a chat, for graphs and loops of your own.

Owns the two steps around a turn: what is to be known before it, what is learned after it. Does not own what is read
(``conversation.py``) or how an agent's hooks use it (``middleware.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

from vmem_core import (
    ContextBudget,
    ContextPackage,
    ExtractionPolicy,
    MemorySession,
    WriteResult,
    aresolve_session,
    check_session_source,
    extraction_id,
    is_unparsed,
    required_session,
    resolve_session,
    run_sync,
)
from vmem_langchain.conversation import flat, read
from vmem_langchain.identity import MemoryRequest, SessionResolver, request_of
from vmem_langchain.llm import apart


class ChatMemory:
    """Learns from a conversation and recalls for it.

    ``observe`` reads the user's own words, and results of tools that you name; see ``ExtractionPolicy``. The session
    needs an ``llm`` for it. A message is read once, so give it the whole conversation after each turn, or the turns
    that are new. ``context`` returns references to records, which can be kept in a graph's state; ``render`` makes the
    text of them for a system message; it is never read, also if it stands beside the user's words.

    Args:
        session_or_resolver: A session; or a function that gets a ``MemoryRequest`` at each call and returns one, sync
            or async.
        trusted_tools: Names of tools whose results may become memory. With none, and without ``read_assistant``, the
            session's own ``extraction`` policy holds.
        read_assistant: Whether the assistant's texts are read, except after an untrusted result.
        top_k: How many records a context has at most, 1 to 1,000.
        max_tokens: What its text may take.
        count_tokens: Counts the tokens of a text; None: a quarter of its characters.

    Raises:
        InvalidRequestError: For a wrong argument; from a call also if the resolver returns None. What a resolver, a
            store or a model raises reaches the caller as it is.

    >>> from langchain_core.messages import HumanMessage
    >>> from vmem_core import InMemoryStore, Scope
    >>> def obedient(prompt):
    ...     return '{"facts": [{"text": "Ada likes tea.", "sources": ["s0"]}]}'
    >>> memory = ChatMemory(MemorySession(InMemoryStore(), Scope(user_id="ada"), llm=obedient))
    >>> [record.text for record in memory.observe([HumanMessage("I like tea.", id="m1")]).records]
    ['Ada likes tea.']
    >>> len(memory.context("Which tea?").items)
    1
    """

    def __init__(
        self,
        session_or_resolver: MemorySession | SessionResolver,
        *,
        trusted_tools: Collection[str] = (),
        read_assistant: bool = False,
        top_k: int = 8,
        max_tokens: int = 1000,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        self._source = check_session_source(session_or_resolver, "session_or_resolver")
        self._policy = make_policy(trusted_tools, read_assistant)
        self._budget = ContextBudget(top_k, max_tokens, count_tokens)

    def observe(self, messages: Iterable[Any], config: RunnableConfig | None = None) -> WriteResult:
        """Learn from a conversation. See :meth:`aobserve`."""
        request = _request(config)
        session = required_session(resolve_session(self._source, request))
        return run_sync(apart(self._observe(session, messages, request)))

    async def aobserve(self, messages: Iterable[Any], config: RunnableConfig | None = None) -> WriteResult:
        """Learn from a conversation.

        Done again with the same messages, it is the same operation: its receipt comes back, ``replayed``.

        Args:
            messages: The conversation, or its new turns, in order; whatever LangChain takes for messages. Those
                without an id get a stable one, made of the thread, the text, and how many equal ones came before.
            config: The run's config; None: that of the run we are in.

        Returns:
            The receipt and the records. Its notes say what was not read.
        """
        request = _request(config)
        session = required_session(await aresolve_session(self._source, request))
        return await apart(self._observe(session, messages, request))

    def context(self, query: str, config: RunnableConfig | None = None) -> ContextPackage:
        """What is known for a query. See :meth:`acontext`."""
        session = required_session(resolve_session(self._source, _request(config)))
        return run_sync(apart(self._budget.compile(session, query)))

    async def acontext(self, query: str, config: RunnableConfig | None = None) -> ContextPackage:
        """What is known for a query, as references to revisions.

        Args:
            query: What the turn is about, such as the user's last message.
            config: The run's config; None: that of the run we are in.
        """
        session = required_session(await aresolve_session(self._source, _request(config)))
        return await apart(self._budget.compile(session, query))

    def render(self, package: ContextPackage, config: RunnableConfig | None = None) -> str:
        """The text of a context. See :meth:`arender`."""
        session = required_session(resolve_session(self._source, _request(config)))
        return run_sync(apart(session.render(package)))

    async def arender(self, package: ContextPackage, config: RunnableConfig | None = None) -> str:
        """The text of a context, from the very revisions it names; a record forgotten since reads ``[forgotten]``.

        Args:
            package: From ``context``.
            config: The run's config; None: that of the run we are in.
        """
        session = required_session(await aresolve_session(self._source, _request(config)))
        return await apart(session.render(package))

    async def _observe(self, session: MemorySession, messages: Iterable[Any], request: MemoryRequest) -> WriteResult:
        conversation = flat(read(messages, request.thread_id))
        for attempt in itertools.count(1):
            operation_id = extraction_id(conversation, session.scope, request.thread_id or "", self._policy, attempt)
            result = await session.extract(conversation, policy=self._policy, operation_id=operation_id)
            # A reply that could not be read left the messages unread: the next call is another try, not its replay.
            if not (result.replayed and is_unparsed(result)):
                return result
        raise AssertionError("unreachable: some attempt is new")


def make_policy(trusted_tools: Collection[str], read_assistant: bool) -> ExtractionPolicy | None:
    """What may be read; None: as the session says."""
    policy = ExtractionPolicy(trusted_tools, read_assistant)
    return policy if policy.trusted_tools or policy.read_assistant else None


def _request(config: RunnableConfig | None) -> MemoryRequest:
    return request_of(ensure_config(config))
