"""What the memory tools answer, and by what an answer is known again in a conversation.

Owns the form of an answer, of a record in it and of the labels of a retrieved one, and the test whether a value has it.
Pure. Does not own what a tool does (``tools.py``) or where a framework keeps an answer (the adapters).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vmem_core.records import ORIGINS, Record
from vmem_core.results import Hit, WriteResult
from vmem_core.text import mend_string

_MOST_OF_A_NAME: Final = 64
_RECORD: Final = frozenset({"id", "revision", "origin", "status"})
_FOUND: Final = _RECORD | {"text", "kind", "source_kinds"}
_WRITTEN: Final = _RECORD | {"replayed"}
_LABELS: Final = frozenset({"revision", "origin", "source_kinds", "match"})
_PARTS: Final = (
    "metadata", "node", "source_nodes", "content", "text", "structuredContent", "structured_content", "artifact",
    "raw_output",
)  # fmt: skip
# A label of a record as JSON or as Python writes it, also where that stands in a string once more.
_SHOWN: Final = tuple(
    re.compile(rf"""["']{label}\\*["']\s*:\s*\\*{value}""")
    for label, value in (
        ("revision", r"\d"),
        ("origin", r"""["'](?:asserted|inferred)\b"""),
        ("source_kinds", r"""[\[("']"""),
    )
)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool answers.

    Args:
        content: What the model reads, as JSON values.
        artifact: What the host may want besides, as JSON values: the receipt of a write, or ids, revisions and scores
            of a recall. It holds no text of a record.
        failed: Whether it is a refusal or a failure.

    >>> ToolAnswer.refusal("invalid_request", detail="text").text
    '{"error":"invalid_request","detail":"text"}'
    """

    content: Any
    artifact: Any
    failed: bool = False

    @classmethod
    def refusal(cls, error: str, **more: Any) -> ToolAnswer:
        """The answer that something was refused or failed, and by which code."""
        content = {"error": error, **more}
        return cls(content, content, failed=True)

    @classmethod
    def invalid_request(cls, path: str) -> ToolAnswer:
        """The answer to a value that cannot be taken. A path may be a name that a model made up."""
        return cls.refusal("invalid_request", detail=mend_string(path)[:_MOST_OF_A_NAME])

    @property
    def text(self) -> str:
        """The content as compact JSON, as the model reads it."""
        return json.dumps(self.content, ensure_ascii=False, separators=(",", ":"))


# --- written ------------------------------------------------------------------------------------------------------


def shown(record: Record) -> dict[str, Any]:
    """A record as a recall answers it."""
    return {
        "id": record.id,
        "revision": record.revision,
        "text": record.text,
        "kind": record.kind,
        "origin": record.origin,
        "source_kinds": list(record.source_kinds),
        "status": record.status,
    }


def referred(hit: Hit) -> dict[str, Any]:
    """A hit without its text, for the host."""
    return {"id": hit.record.id, "revision": hit.record.revision, "score": hit.score, "match": hit.match}


def written(result: WriteResult) -> ToolAnswer:
    """The answer to a write."""
    record = next(iter((*result.records, *result.present)), None)
    if record is None:  # a replay, and the record was forgotten since
        return ToolAnswer.refusal("not_found")
    content = {
        "id": record.id,
        "revision": record.revision,
        "origin": record.origin,
        "status": record.status,
        "replayed": result.replayed,
    }
    if any(note.code == "already_stored" for note in result.receipt.notes):
        content["already_stored"] = True
    return ToolAnswer(content, result.receipt.to_json())


# --- known again --------------------------------------------------------------------------------------------------


def is_memory_answer(answer: object) -> bool:
    """Whether a value is an answer of the memory tools, whatever they are called: memory does not feed on itself.

    Args:
        answer: What a tool returned, as JSON values; its text is read by ``read_json``.

    >>> is_memory_answer({"id": "r1", "revision": 1, "origin": "inferred", "status": "active", "replayed": False})
    True
    """
    if isinstance(answer, list):
        return bool(answer) and all(is_memory_record(one) for one in answer)
    return isinstance(answer, dict) and answer.keys() - {"already_stored"} == _WRITTEN


def is_memory_record(value: object) -> bool:
    """Whether a value is a record as ``memory_recall`` answers it.

    >>> is_memory_record({"id": "r1", "text": "tea"})
    False
    """
    return isinstance(value, dict) and value.keys() >= _FOUND and value["origin"] in ORIGINS


def holds_memory(value: object) -> bool:
    """Whether a value holds a record as the memory tools answer it, or as a retriever labels it, at any depth.

    So a host's own tool may hand on what it was told of memory: as it is, inside of data, or as the text of that.

    Args:
        value: What a tool returned, or the text that a model was shown.

    >>> record = {"id": "r1", "revision": 1, "text": "tea", "kind": "semantic", "origin": "asserted",
    ...           "source_kinds": ["user"], "status": "active"}
    >>> holds_memory({"known": [record]}), holds_memory(str([record])), holds_memory({"known": []})
    (True, True, False)
    """
    left, seen = [value], set[int]()
    while left:
        one = left.pop()
        if isinstance(one, str):
            if all(label.search(one) for label in _SHOWN):
                return True
        elif id(one) not in seen:
            seen.add(id(one))
            if is_memory_answer(one) or is_memory_record(one) or has_memory_labels(one):
                return True
            left.extend(_inside(one))
    return False


def _inside(value: object) -> Iterable[object]:
    """What a value is made of; of an object of a framework, where it keeps what was found. No property is called."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    kept = getattr(value, "__dict__", None)
    return [kept[name] for name in _PARTS if kept.get(name) is not None] if isinstance(kept, dict) else ()


def has_memory_labels(metadata: object) -> bool:
    """Whether the metadata of a document or node is that of a record which a retriever of this library found.

    >>> has_memory_labels({"revision": 1, "origin": "asserted", "source_kinds": "user", "match": "lexical"})
    True
    """
    return isinstance(metadata, Mapping) and metadata.keys() >= _LABELS
