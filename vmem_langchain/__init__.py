"""Versioned memory for LangChain and LangGraph: tools for agents, a retriever, and LangChain's embedding models.

The tools and the retriever need ``langchain-core`` alone. Inside a LangGraph agent they also know the run: a call that
is repeated after a crash applies once, and one agent serves many users.
"""

from vmem_langchain.identity import MemoryRequest
from vmem_langchain.models import LangChainEmbedder
from vmem_langchain.retriever import MemoryRetriever
from vmem_langchain.tools import create_memory_tools

__all__ = [
    "LangChainEmbedder",
    "MemoryRequest",
    "MemoryRetriever",
    "create_memory_tools",
]
