"""What tests of chat memory, middleware and redaction share: a model that keeps what it was sent, and short words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fake_models import FakeLLM, obey, source_lines, task_of
from langchain.agents import create_agent
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_fakes import DONE, Reply, ScriptedModel

from vmem_core import MemorySession, Scope, Store
from vmem_langchain import MemoryMiddleware

ADA, BOB = Scope(user_id="ada"), Scope(user_id="bob")
DOWN = RuntimeError("the model is down; it was asked about Ada's secret")


class Witness(ScriptedModel):
    """A scripted model that keeps what it was sent."""

    sent: list[list[BaseMessage]] = []  # noqa: RUF012 - pydantic copies it for each model

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.sent.append(messages)
        return super()._generate(messages, *args, **kwargs)

    @property
    def systems(self) -> list[str]:
        """The system text of each call."""
        return ["".join(str(m.text) for m in messages if m.type == "system") for messages in self.sent]


def obedient() -> FakeLLM:
    """A memory model that makes a fact of all it reads: what it was shown, memory will hold."""
    return FakeLLM(facts=obey, decisions=obey)


def session_of(store: Store, scope: Scope = ADA, llm: Any = None, **more: Any) -> MemorySession:
    return MemorySession(store, scope, llm=llm, **more)


def agent_with(
    session: Any, *script: Reply, tools: Sequence[Any] = (), before: Sequence[Any] = (), after: Sequence[Any] = (),
    memory: dict[str, Any] | None = None, **more: Any,
) -> tuple[Any, Witness]:  # fmt: skip
    """An agent with the middleware, and its model. It says that it is done after the script, as often as needed.

    Args:
        session: A session or a resolver.
        script: The model's replies.
        tools: Tools of the host.
        before: Middleware that comes before.
        after: Middleware that comes after.
        memory: Arguments of the middleware.
        more: Arguments of ``create_agent``.
    """
    model = Witness(script=[*script, *[DONE] * 20])
    given = {"tools": False, **(memory or {})}
    middleware = [*before, MemoryMiddleware(session, **given), *after]
    return create_agent(model, tools=list(tools), middleware=middleware, **more), model


def read_texts(llm: FakeLLM) -> list[list[str]]:
    """What each extraction read."""
    return [[text for _, text in source_lines(prompt)] for prompt in llm.prompts if task_of(prompt) == "extract"]


def stored(session: MemorySession) -> list[str]:
    """All active texts, sorted."""
    return sorted(record.text for record in session.sync.list(limit=1000).records)
