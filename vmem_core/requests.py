"""When two requests are the same: the verb and its arguments, with defaults filled in, as one canonical text.

Owns the canonical form. The order of keys is ignored, empty metadata equals none, the order of sources, links and
drafts counts; settings of the session do not. The text is only ever hashed with a salt, never stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from vmem_core.messages import Message
from vmem_core.records import Draft, Link, Source
from vmem_core.text import json_encoder, text_digest

_MICROSECOND = timedelta(microseconds=1)
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in (Source, Link)}

_HOST = dict.fromkeys(_FIELDS[Source]) | {"kind": "host"}


def canonical(verb: str, arguments: Mapping[str, Any]) -> str:
    """A request as one text, equal for equal requests.

    >>> canonical("retract", {"id": "r1", "expected_revision": None})
    '["retract",{"expected_revision":null,"id":"r1"}]'
    """
    return _encode([verb, arguments])


def _plain(value: Any) -> Any:
    if isinstance(value, Source | Link):
        return {name: getattr(value, name) for name in _FIELDS[type(value)]}
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    raise TypeError(f"no canonical form of {type(value).__name__}")


_encode = json_encoder(sort_keys=True, default=_plain)


def _sources(sources: Sequence[Source] | None, text: str) -> Sequence[Any]:
    """Given sources, or the digest that the host's default source would have."""
    return sources or [{**_HOST, "digest": text_digest(text)}]


def _draft(draft: Draft) -> list[Any]:
    return [
        draft.text,
        draft.id,
        draft.kind,
        _sources(draft.sources, draft.text),
        draft.links,
        draft.importance,
        draft.metadata,
        draft.ttl,
    ]


def remember(verb: str, drafts: Sequence[Draft], origin: str, extra: Mapping[str, Any]) -> str:
    """The canonical form of ``remember`` and ``remember_many``."""
    return canonical(verb, {"drafts": [_draft(draft) for draft in drafts], "origin": origin, **extra})


def revise(record_id: str, given: Mapping[str, Any], expected_revision: int | None, by_model: bool) -> str:
    """The canonical form of ``revise``: only what was given, cleared values as what they clear to."""
    arguments = dict(given)
    if "sources" in arguments and not arguments["sources"] and "text" in arguments:
        arguments["sources"] = _sources(None, arguments["text"])
    return on_record("revise", record_id, expected_revision=expected_revision, by_model=by_model, given=arguments)


def extract(messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    """The canonical form of ``extract``: the messages as they were given, in their order."""
    return canonical("extract", {"messages": [_message(message) for message in messages], **arguments})


def _message(message: Message) -> list[Any]:
    """A message; what of its content JSON cannot hold counts by its type."""
    calls = [[call.id, call.name, _any_json(dict(call.args))] for call in message.tool_calls]
    return [
        message.id,
        message.role,
        _any_json(message.content),
        calls,
        message.tool_call_id,
        message.tool_name,
        message.is_error,
        message.run_id,
        message.model_written,
    ]


def _any_json(value: Any) -> str:
    for in_order in (True, False):  # keys of unlike types have no order
        try:
            return json.dumps(value, sort_keys=in_order, default=_digest_of_other)
        except (TypeError, ValueError, RecursionError):
            continue
    return f"<{type(value).__name__}>"


def _digest_of_other(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        import hashlib

        return "sha256:" + hashlib.sha256(value).hexdigest()
    return f"<{type(value).__name__}>"


def on_record(verb: str, record_id: str, **arguments: Any) -> str:
    """The canonical form of an operation on a record."""
    return canonical(verb, {"id": record_id, **arguments})
