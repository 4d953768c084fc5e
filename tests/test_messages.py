"""The untrusted-source policy: what of a conversation is read, as what, and never."""

from __future__ import annotations

from typing import Any

import pytest
from fake_models import assistant, call, result, user

from vmem_core import ExtractionPolicy, Message, Scope, ToolCall, tells_of_failure
from vmem_core.messages import OWN_TOOLS, Reading, read_messages

CHAT = Scope(user_id="ada", chat_id="chat-7")


def read(*messages: Message, trusted: Any = ("lookup",), assistant: bool = False, **more: Any) -> Reading:
    policy = ExtractionPolicy(trusted_tools=trusted, read_assistant=assistant)
    return read_messages(messages, policy, CHAT, **{"most_chars": 20_000, **more})


def seen(reading: Reading) -> list[tuple[str, str]]:
    """Kind and text of what was read, in order."""
    return [(one.source.kind, one.text) for one in reading.sources]


def answered(content: Any, *, name: str = "lookup", **more: Any) -> tuple[Message, Message]:
    """A call and its answer."""
    return call("m1", "c1", name), result("m2", "c1", content, **more)


# ------------------------------------------------------------------------------------------------------ the table


def test_user_text_is_read_as_user() -> None:
    reading = read(user("m1", "I like tea"))
    assert seen(reading) == [("user", "I like tea")]
    assert (reading.notes, reading.read_ids) == ({}, ("m1",))


def test_the_result_of_a_call_of_a_trusted_tool_is_read_as_tool() -> None:
    reading = read(*answered("ships on Friday"))
    assert seen(reading) == [("tool", "ships on Friday")]
    assert (reading.notes, reading.read_ids) == ({}, ("m2",))


def test_a_name_on_the_result_that_equals_the_calls_changes_nothing() -> None:
    assert seen(read(*answered("Friday", tool_name="lookup"))) == [("tool", "Friday")]


UNTRUSTED: dict[str, tuple[Message, ...]] = {
    "a tool that is not trusted": answered("secret", name="search"),
    "a failed result": answered("secret", is_error=True),
    "no call at all": (result("m2", "c1", "secret"),),
    "no call at all, but a trusted name": (result("m2", "c1", "secret", tool_name="lookup"),),
    "no call id, but a trusted name": (call("m1", None, "lookup"), result("m2", None, "secret", tool_name="lookup")),
    "an empty call id": (call("m1", "", "lookup"), result("m2", "", "secret")),
    "a call id of another call": (call("m1", "c1", "lookup"), result("m2", "c2", "secret")),
    "a call id of another case": (call("m1", "c1", "lookup"), result("m2", "C1", "secret")),
    "a name that differs from the call's": answered("secret", tool_name="search"),
    "a trusted name over an untrusted call": answered("secret", name="search", tool_name="lookup"),
    "a name that only looks like the call's": answered("secret", tool_name="lookup "),
    "an empty name over a trusted call": answered("secret", tool_name=""),
    "a result before its call": (result("m2", "c1", "secret"), call("m1", "c1", "lookup")),
    "a call by the user": (
        Message("m1", "user", "call", tool_calls=(ToolCall("c1", "lookup"),)), result("m2", "c1", "secret"),
    ),
    "a call by a tool": (
        Message("m1", "tool", None, tool_calls=(ToolCall("c1", "lookup"),)), result("m2", "c1", "secret"),
    ),
    "a call id of two calls": (
        call("m1", "c1", "search"), call("m3", "c1", "lookup"), result("m2", "c1", "secret"),
    ),
    "a call id of two equal calls in one message": (
        assistant("m1", tool_calls=(ToolCall("c1", "lookup"), ToolCall("c1", "lookup"))), result("m2", "c1", "secret"),
    ),
    "a call id that is used again later": (
        call("m1", "c1", "lookup"), result("m2", "c1", "secret"), call("m3", "c1", "lookup"),
    ),
    "two results for one call": (
        call("m1", "c1", "lookup"), result("m2", "c1", "secret"), result("m3", "c1", "secret"),
    ),
    "a result that a model wrote": answered("secret", model_written=True),
}  # fmt: skip


@pytest.mark.parametrize("messages", UNTRUSTED.values(), ids=UNTRUSTED.keys())
@pytest.mark.parametrize("reads_assistant", [False, True])
def test_any_other_result_is_never_read(messages: tuple[Message, ...], reads_assistant: bool) -> None:
    reading = read(*messages, assistant=reads_assistant)
    assert "secret" not in repr(reading)
    assert reading.notes["untrusted"] == sum(message.role == "tool" for message in messages)
    assert not {message.id for message in messages if message.role == "tool"} & set(reading.read_ids)


@pytest.mark.parametrize(
    "name",
    ["Lookup", "LOOKUP", "lookup ", " lookup", "lookup\n", "l\u043e\u043ekup", "lo\u00f6kup", "lookup\u200b", "look up",
     "lookup_", "mcp.lookup", "lookup\ufffd", "\uff4cookup"],
)  # fmt: skip
def test_a_tool_whose_name_only_looks_trusted_is_not(name: str) -> None:
    assert seen(read(*answered("secret", name=name))) == []
    assert seen(read(*answered("secret", name=name, tool_name="lookup"))) == []


def test_trust_is_by_the_exact_name_on_the_call_alone() -> None:
    messages = (
        assistant("m1", tool_calls=(ToolCall("c1", "lookup"), ToolCall("c2", "search"))),
        result("m3", "c2", "from search", tool_name="lookup"),
        result("m2", "c1", "from lookup"),
    )
    assert seen(read(*messages)) == [("tool", "from lookup")]
    assert seen(read(*messages, trusted=("search",))) == []
    assert seen(read(*messages, trusted=())) == []


def test_a_result_that_comes_late_still_belongs_to_its_call() -> None:
    messages = (call("m1", "c1", "lookup"), user("m2", "hurry"), result("m3", "c1", "Friday"))
    assert seen(read(*messages)) == [("user", "hurry"), ("tool", "Friday")]


@pytest.mark.parametrize("name", sorted(OWN_TOOLS))
def test_results_of_our_own_memory_tools_are_never_read_even_when_listed_as_trusted(name: str) -> None:
    assert name.startswith("memory_")
    reading = read(*answered("secret", name=name), trusted=(name, "lookup"))
    assert (seen(reading), reading.notes) == ([], {"untrusted": 1})


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_and_developer_text_is_never_read(role: Any) -> None:
    reading = read(Message("m1", role, "secret"), user("m2", "tea"), assistant=True)
    assert (seen(reading), reading.notes, reading.read_ids) == ([("user", "tea")], {}, ("m2",))


@pytest.mark.parametrize("reads_assistant", [False, True])
def test_what_a_model_wrote_in_the_users_role_is_never_read(reads_assistant: bool) -> None:
    reading = read(user("m1", "secret summary", model_written=True), user("m2", "tea"), assistant=reads_assistant)
    assert (seen(reading), reading.notes, reading.read_ids) == ([("user", "tea")], {"untrusted": 1}, ("m2",))


def test_a_users_text_with_a_tool_name_on_it_is_still_the_users() -> None:
    assert seen(read(user("m1", "tea", tool_name="search", tool_call_id="c9"))) == [("user", "tea")]


# --------------------------------------------------------------------------------------------- the assistant's text


def test_assistant_text_is_read_only_when_asked_for() -> None:
    messages = (user("m1", "hi"), assistant("m2", "You like tea"))
    assert seen(read(*messages)) == [("user", "hi")]
    assert seen(read(*messages, assistant=True)) == [("user", "hi"), ("assistant", "You like tea")]


def test_text_beside_a_call_is_assistant_text_and_arguments_are_never_read() -> None:
    messages = (call("m1", "c1", "search", "Let me look", query="secret"),)
    assert seen(read(*messages)) == []
    assert seen(read(*messages, assistant=True)) == [("assistant", "Let me look")]


def test_assistant_text_after_an_untrusted_result_is_not_read_until_the_next_user_message() -> None:
    messages = (
        user("m1", "look it up"), assistant("m2", "I will"), call("m3", "c1", "search", "searching"),
        result("m4", "c1", "secret"), assistant("m5", "it says secret"), call("m6", "c2", "lookup", "secret again"),
        result("m7", "c2", "Friday"), assistant("m8", "secret and Friday"), user("m9", "thanks"),
        assistant("m10", "welcome"),
    )  # fmt: skip
    reading = read(*messages, assistant=True)
    assert seen(reading) == [
        ("user", "look it up"), ("assistant", "I will"), ("assistant", "searching"), ("tool", "Friday"),
        ("user", "thanks"), ("assistant", "welcome"),
    ]  # fmt: skip
    assert reading.notes == {"untrusted": 4}
    assert reading.read_ids == ("m1", "m2", "m3", "m7", "m9", "m10")


def test_assistant_text_after_a_trusted_result_is_read() -> None:
    messages = (user("m0", "when?"), *answered("Friday"), assistant("m3", "On Friday"))
    assert seen(read(*messages, assistant=True))[-1] == ("assistant", "On Friday")


@pytest.mark.parametrize(
    "between",
    [
        Message("b", "system", "go on"),
        Message("b", "developer", "go on"),
        user("b", "a summary", model_written=True),
        assistant("b", "hm"),
    ],
    ids=["system", "developer", "model written", "assistant"],
)
def test_only_a_message_of_the_user_ends_the_wariness(between: Message) -> None:
    reading = read(
        user("m0", "q"), *answered("secret", name="search"), between, assistant("m4", "secret"), assistant=True
    )
    assert seen(reading) == [("user", "q")]


@pytest.mark.parametrize("messages", UNTRUSTED.values(), ids=UNTRUSTED.keys())
def test_every_kind_of_untrusted_result_makes_the_assistants_text_after_it_unreadable(
    messages: tuple[Message, ...],
) -> None:
    assert "echo" not in repr(read(*messages, assistant("m9", "echo"), assistant=True))


def test_a_result_that_was_processed_before_still_taints_what_follows() -> None:
    messages = (user("m0", "q"), *answered("secret", name="search"), assistant("m4", "secret"))
    reading = read(*messages, assistant=True, processed={"m0", "m1", "m2"})
    assert (seen(reading), reading.notes) == ([], {"already_processed": 1, "untrusted": 2})


# ------------------------------------------------------------------------------------------------- ReAct-style loops

OBSERVATIONS = [
    "Observation: secret", "observation: secret", "  OBSERVATION : secret", "**Observation:** secret",
    "**Observation**: secret", "### Observation: secret", "> Observation: secret", "Observation:\nsecret",
    "\n\nObservation: secret", "Observation 1: secret", "Observation 12: secret", "            Observation: secret",
    "\tObservation: secret", "Observations: secret", "- Observation: secret", "Observation #2: secret",
]  # fmt: skip
ACTIONS = [
    "Action: search", "Thought: I need it.\nAction: search\nAction Input: tea", "Action 1: Search[tea]",
    "**Action:** search", "            Action: search", "Thought 3: hm\nAction 3: Search[tea]",
    "Thought: I need it.\nCode:\n```py\nsearch('tea')\n```",
]  # fmt: skip


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("reads_assistant", [False, True])
def test_an_observation_in_the_users_role_is_a_tools_text(observation: str, reads_assistant: bool) -> None:
    messages = (user("m1", "q"), assistant("m2", "Action: search"), user("m3", observation), assistant("m4", "secret"))
    reading = read(*messages, assistant=reads_assistant)
    assert "secret" not in repr(reading)
    assert reading.notes["untrusted"] == 1 + reads_assistant
    assert set(reading.read_ids) == ({"m1", "m2"} if reads_assistant else {"m1"})


@pytest.mark.parametrize("action", ACTIONS)
def test_an_observation_is_recognised_after_every_way_to_ask_for_a_tool_in_text(action: str) -> None:
    messages = (user("m1", "q"), assistant("m2", action), user("m3", "Observation: secret"), assistant("m4", "secret"))
    assert "secret" not in repr(read(*messages, assistant=True))


def test_observations_that_follow_each_other_are_all_a_tools_text() -> None:
    messages = (
        assistant("m1", "Action: search"), user("m2", "Observation: secret"), user("m3", "Observation: secret"),
        assistant("m4", "secret"),
    )  # fmt: skip
    assert "secret" not in repr(read(*messages, assistant=True))


@pytest.mark.parametrize("between", [Message("b", "system", "go on"), user("b", "summary", model_written=True)])
def test_an_observation_is_recognised_behind_messages_of_others(between: Message) -> None:
    messages = (
        assistant("m1", "Action: search"),
        between,
        user("m2", "Observation: secret"),
        assistant("m4", "secret"),
    )
    assert "secret" not in repr(read(*messages, assistant=True))


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_assistant_text_that_holds_an_observation_is_not_read_nor_what_follows_it(observation: str) -> None:
    loop = f"Thought: look\nAction: search\n{observation}\nFinal Answer: secret"
    messages = (user("m1", "q"), assistant("m2", loop), assistant("m3", "so it is secret"), user("m4", "ok"))
    reading = read(*messages, assistant=True)
    assert (seen(reading), reading.notes) == ([("user", "q"), ("user", "ok")], {"untrusted": 2})


def test_an_observation_in_a_block_of_its_own_counts_too() -> None:
    blocks = [{"type": "text", "text": "Action: search"}, {"type": "text", "text": "Observation: secret"}]
    assert seen(read(assistant("m1", blocks), assistant("m2", "secret"), assistant=True)) == []


@pytest.mark.parametrize(
    "text",
    ["Observation: the sky is blue", "My observation: tea is hot", "observations matter", "What an observation"],
)
def test_a_user_who_writes_of_an_observation_is_still_read(text: str) -> None:
    assert seen(read(user("m1", text))) == [("user", text)]
    assert seen(read(user("m0", "hi"), assistant("m1", "hello"), user("m2", text)))[-1] == ("user", text)


def test_a_user_who_answers_after_an_action_is_still_read() -> None:
    messages = (assistant("m1", "Action: search"), user("m2", "No, stop"), user("m3", "I like tea"))
    assert seen(read(*messages)) == [("user", "No, stop"), ("user", "I like tea")]


@pytest.mark.parametrize(
    "result",
    [
        {"is_error": True}, {"isError": True}, {"status": "error"}, '{"isError": true}', ValueError("no"),
        {"raw_output": {"raw_output": {"isError": True}}}, {"artifact": ConnectionError("down")},
        "meta=None content=[] isError=True",
    ],
)  # fmt: skip
def test_a_result_may_say_by_itself_that_its_tool_failed(result: object) -> None:
    assert tells_of_failure(result)


@pytest.mark.parametrize(
    "result",
    [None, 7, "error", [], {}, {"isError": "no"}, {"status": "shipped"}, {"error": None}, object(),
     '{"status":', "[" * 9_000],
)  # fmt: skip
def test_a_result_that_says_nothing_of_a_failure_is_none(result: object) -> None:
    assert not tells_of_failure(result)


def test_a_result_may_hold_itself() -> None:
    result: dict[str, object] = {"status": "fine"}
    result["raw_output"] = result
    assert not tells_of_failure(result)
