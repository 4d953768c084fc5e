"""Versioned memory for LangChain and LangGraph: chat memory, a middleware and tools for agents, a retriever, models.

Tools, retriever, chat memory and models need ``langchain-core`` alone; the middleware needs ``langchain``. Inside a
LangGraph agent they also know the run: what is repeated after a crash applies once, and one agent serves many users.
"""

from typing import TYPE_CHECKING, Any

from vmem_langchain.chat_memory import ChatMemory
from vmem_langchain.checkpoints import CheckpointCopy, RedactionReport, aredact_thread, redact_thread
from vmem_langchain.identity import MemoryRequest
from vmem_langchain.llm import LangChainLLM
from vmem_langchain.models import LangChainEmbedder
from vmem_langchain.retriever import MemoryRetriever
from vmem_langchain.tools import create_memory_tools

if TYPE_CHECKING:
    from vmem_langchain.middleware import MemoryMiddleware

__all__ = [
    "ChatMemory",
    "CheckpointCopy",
    "LangChainEmbedder",
    "LangChainLLM",
    "MemoryMiddleware",
    "MemoryRequest",
    "MemoryRetriever",
    "RedactionReport",
    "aredact_thread",
    "create_memory_tools",
    "redact_thread",
]


def __getattr__(name: str) -> Any:
    if name == "MemoryMiddleware":  # loads langchain.agents, which the other names do without
        from vmem_langchain.middleware import MemoryMiddleware

        return MemoryMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
