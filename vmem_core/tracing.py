"""Spans: one for each session operation, if OpenTelemetry is installed; nothing without it.

Owns the names of spans and attributes. Spans carry counts and names, never memory text, not even an exception's
message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Span:
    """What an operation tells its span."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def record(self, *, records: int, retries: int = 0, generation: int | None = None) -> None:
        """How many records it met, how often it was planned again, and the embedding generation, if any."""
        if self._span is not None:
            self._span.set_attribute("vmem.memory.record_count", records)
            self._span.set_attribute("vmem.memory.conflict_retries", retries)
            if generation is not None:
                self._span.set_attribute("vmem.memory.embedding_generation", generation)


_SILENT = Span()


@contextmanager
def span(operation: str) -> Iterator[Span]:
    """A span ``vmem.memory.<operation>`` around a block. Its error is the class name alone."""
    # A host that traces has imported the API; to import it here would cost every other host the time.
    if "opentelemetry.trace" not in sys.modules:
        yield _SILENT
        return
    from opentelemetry import trace

    name = f"vmem.memory.{operation}"
    tracer = trace.get_tracer("vmem_core")
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as current:
        current.set_attribute("vmem.memory.operation", operation)
        try:
            yield Span(current)
        except BaseException as error:
            current.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise
