"""LangChain's own standard tests, for each of the four tools and for the retriever."""

from __future__ import annotations

from typing import Any

from fakes import ADA
from langchain_core.tools import BaseTool
from langchain_tests.integration_tests import RetrieversIntegrationTests, ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from vmem_core import InMemoryStore, MemorySession
from vmem_langchain import MemoryRetriever, create_memory_tools


def one_record() -> MemorySession:
    session = MemorySession(InMemoryStore(), ADA)
    session.sync.remember("Ada likes green tea.", id="r1", origin="inferred")
    return session


class Remember:
    tool_invoke_params_example: dict[str, Any] = {"text": "Ada lives in Paris.", "kind": "semantic", "importance": 0.5}  # noqa: RUF012

    @property
    def tool_constructor(self) -> BaseTool:
        return create_memory_tools(one_record(), include=("remember",))[0]


class Recall:
    tool_invoke_params_example: dict[str, Any] = {"query": "What does Ada like?"}  # noqa: RUF012

    @property
    def tool_constructor(self) -> BaseTool:
        return create_memory_tools(one_record(), include=("recall",))[0]


class Revise:
    tool_invoke_params_example: dict[str, Any] = {"id": "r1", "expected_revision": 1, "text": "Ada likes coffee."}  # noqa: RUF012

    @property
    def tool_constructor(self) -> BaseTool:
        return create_memory_tools(one_record(), include=("revise",))[0]


class Retract:
    tool_invoke_params_example: dict[str, Any] = {"id": "r1", "expected_revision": 1}  # noqa: RUF012

    @property
    def tool_constructor(self) -> BaseTool:
        return create_memory_tools(one_record(), include=("retract",))[0]


class TestRememberUnit(Remember, ToolsUnitTests): ...


class TestRememberIntegration(Remember, ToolsIntegrationTests): ...


class TestRecallUnit(Recall, ToolsUnitTests): ...


class TestRecallIntegration(Recall, ToolsIntegrationTests): ...


class TestReviseUnit(Revise, ToolsUnitTests): ...


class TestReviseIntegration(Revise, ToolsIntegrationTests): ...


class TestRetractUnit(Retract, ToolsUnitTests): ...


class TestRetractIntegration(Retract, ToolsIntegrationTests): ...


class TestRetriever(RetrieversIntegrationTests):
    retriever_constructor = MemoryRetriever  # type: ignore[assignment]
    retriever_query_example = "tea"  # type: ignore[assignment]

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        session = MemorySession(InMemoryStore(), ADA)
        for kind in ("green", "black", "white", "mint"):
            session.sync.remember(f"Ada drinks {kind} tea.")
        return {"session": session}
