"""Texts that nobody would wish for, in every display and on the terminal: nothing obeys them, nothing breaks."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import Clock
from pages import shown
from rich.cells import cell_len

from vmem_core import Draft, InMemoryStore, Link, MemorySession, Scope, Source, SqliteStore, cli, text_digest
from vmem_core.display.texts import MOST_MARKS, label, shortened, visible

ADA = Scope(user_id="ada")
FAMILY = "👨\u200d👩\u200d👧\u200d👦"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
TOWER = "".join(letter + "\u0301\u0323\u0327\u0341" * 15 for letter in "chaos")
HOSTILE = {
    "html": "<img src=x onerror=alert(1)> </div></td></table><!-- &amp; \" ' --><b>bold</b>",
    "script": "<script>alert(2)</script></style></script>",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J \x9b31m \x08\x08\x7f",
    "right to left": "שלום עולם 123",
    "turned": "\u202egnp.exe\u202c \u2066x\u2069 \u200f",
    "lines": "one\ntwo\r\nthree\u2028four\u2029five\x0b\x85six",
    "hidden": "tea\U000e0069\U000e0067\U000e006e\U000e006f\U000e0072\U000e0065",
    "hidden in an emoji": "😀" + "".join(chr(0xE0100 + code) for code in b"ignore all"),
    "hidden in a flag": "\U0001f3f4\U000e0069\U000e0067\U000e006e\U000e007f",
    "emoji": FAMILY * 20,
    "marks": TOWER,
    "markup of a terminal": "[bold]x[/bold] [link=http://example.org]y[/link] :smile:",
    "formula": "$5 and $6, \\(x\\)",
    "one long word": "x" * 100_000,
    "100 KB": "green tea " * 10_000,
    "marks without end": "e" + "\u0301" * 99_999,
    "controls without end": "x" + "\x1b" * 50_000,
}
# What no page and no terminal may get: C0 and C1 without line breaks and tabs, turned directions, hidden letters.
OBEYED = {chr(code) for code in [*range(32), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]}
OBEYED = (OBEYED - {"\n", "\t"}) | {chr(code) for code in [*range(0xE0000, 0xE0080), *range(0xE0100, 0xE01F0)]}


def most_marks(text: str) -> int:
    """The highest tower of marks in a text."""
    highest = count = 0
    for char in text:
        count = count + 1 if unicodedata.category(char) in ("Mn", "Me", "Cf") else 0
        highest = max(highest, count)
    return highest


def assert_harmless(text: str) -> None:
    """Nothing in it is obeyed, hides, or stacks."""
    assert not OBEYED & set(text)
    assert most_marks(text) <= MOST_MARKS


# --- the pure part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_is_obeyed_hides_or_stacks(text: str) -> None:
    assert_harmless(visible(text))
    assert_harmless(label(text))
    assert not {"\n", "\t"} & set(label(text))
    head, rest = shortened(text, 100)
    assert_harmless(head)
    assert len(head) <= 100
    assert rest == ("" if visible(text) == head else f"… {len(text):,} characters in all")


@pytest.mark.parametrize(
    "text",
    [
        "Grüße, 咖啡 שלום مرحبا می‌خواهم नमस्ते ที่นี่",
        "👍🏽 1️⃣ 🏳️‍🌈 🇵🇹",
        FAMILY,
        ENGLAND,
        "葛\U000e0100",
        "tab\tand\nline",
        "שָׁלוֹם",
    ],
)
def test_what_people_write_is_shown_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_what_would_be_obeyed_is_spelled_out() -> None:
    assert visible("\x1b[31m\x9b\u202e\u2028") == r"\x1b[31m\x9b\u202e\u2028"
    assert visible("a\U000e0041") == r"a\U000e0041"
    assert visible("e" + "\u0301" * 9 + "!") == "e" + "\u0301" * 8 + "[1 more mark]!"
    assert label("a\n\tb") == r"a\n\tb"


def test_a_text_is_not_cut_within_what_is_drawn_as_one() -> None:
    assert shortened("ab" + FAMILY, 4)[0] == "ab"
    assert shortened("abe\u0301\u0323", 4)[0] == "ab"
    assert shortened("abcdef", 4)[0] == "abcd"


def test_a_repr_is_one_line_and_tells_the_length() -> None:
    memory = MemorySession(InMemoryStore(clock=Clock()), ADA).sync
    for text in HOSTILE.values():
        shown_as = repr(memory.remember(text, supersede="add").records[0])
        assert len(shown_as) < 3_000
        assert "\n" not in shown_as
        assert not OBEYED & set(shown_as)


# --- notebooks ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile_memory() -> Any:
    """Records of which nothing can be believed, each revised once to the text of the next."""
    memory = MemorySession(InMemoryStore(clock=Clock()), ADA).sync
    texts = list(HOSTILE.values())
    for place, (name, text) in enumerate(HOSTILE.items()):
        memory.remember_many(
            [
                Draft(
                    text,
                    id=f"{name}-{text[:200]}",
                    sources=[Source("user", text_digest(text), message_id=text[:200])],
                    links=[Link(text[:200], text[:200])],
                    metadata={text[:200]: {text[:200]: [text[:1_000]]}},
                )
            ],
            operation_id=f"{place}-{text[:200]}",
        )
        memory.revise(f"{name}-{text[:200]}", text=texts[place - 1], links=(), metadata={})
    return memory


def test_no_display_takes_a_text_as_its_own(hostile_memory: Any) -> None:
    # What a display may hold, and that it is closed, is looked at while it is read.
    for place, (name, text) in enumerate(HOSTILE.items()):
        record_id = f"{name}-{text[:200]}"
        history = hostile_memory.history(record_id)
        receipt = hostile_memory.receipt(f"{place}-{text[:200]}")
        for value in (history, history[0], history[1], receipt, history[0].sources[0], history[0].links[0]):
            page = shown(value)
            assert_harmless(page.text)
            assert len(page.text) < 12_000
    for value in (
        hostile_memory.list(), hostile_memory.recall("alert tea"), hostile_memory.recall(top_k=50),
        hostile_memory.compile_context("alert tea"), hostile_memory.forget_scope(),
    ):  # fmt: skip
        assert_harmless(shown(value).text)


def test_each_text_is_in_an_element_with_a_direction_of_its_own(hostile_memory: Any) -> None:
    for record in hostile_memory.list().records:
        page = shown(record)
        (text,) = (one for one in page.all("div", dir="auto") if one.attributes["class"] == "v-text v-big")
        assert text.text == shortened(record.text, 2_000)[0]
        assert page.all("code", dir="auto")[0].text == label(record.id)


def test_no_formula_is_typeset(hostile_memory: Any) -> None:
    assert 'class="vmem tex2jax_ignore mathjax_ignore"' in hostile_memory.list()._repr_html_()


# --- the terminal -------------------------------------------------------------------------------------------------

Run = Callable[..., str]


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def vmem(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs ``vmem`` on a terminal of 90 columns, without colours, or on a pipe."""
    monkeypatch.chdir(tmp_path)
    for name in ("VMEM_STORE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if request.param:
        for name, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1"), ("COLUMNS", "90"), ("TERM", "dumb")):
            monkeypatch.setenv(name, value)

    def run(*args: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["vmem", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == code
        ran = capsys.readouterr()
        return ran.out + ran.err

    run.is_terminal = request.param  # type: ignore[attr-defined]
    return run


def lines_of(out: str) -> list[str]:
    """The lines of an output without the styles that are ours: bold, dim and their end."""
    for style in ("\x1b[1m", "\x1b[2m", "\x1b[0m"):
        out = out.replace(style, "")
    return out.splitlines()


def remember(path: Path, text: str, **more: Any) -> str:
    store = SqliteStore(path)
    made: str = MemorySession(store, ADA).sync.remember(text, **more).records[0].id
    store.sync.close()
    return made


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_command_obeys_a_text_or_breaks_its_layout(vmem: Run, tmp_path: Path, text: str) -> None:
    made = remember(tmp_path / "vmem.db", text)
    for command in (["list"], ["show", made], ["history", made], ["search", "tea red bold x one"]):
        out = "\n".join(lines_of(vmem(*command)))
        assert_harmless(out)
        if vmem.is_terminal:  # type: ignore[attr-defined]
            assert max(cell_len(line) for line in out.split("\n")) <= 90
            assert len(out) < 12_000
        elif command[0] == "list":
            assert len(out.split("\n")) == 3


@pytest.mark.parametrize("command", ["list", "show", "history", "search"])
def test_a_long_text_is_cut_where_somebody_looks_and_its_length_told(vmem: Run, tmp_path: Path, command: str) -> None:
    made = remember(tmp_path / "vmem.db", "green tea " * 10_000)
    out = vmem(command, *({"search": ["green"], "list": []}.get(command, [made])))
    whole = command in ("show", "history") and not vmem.is_terminal  # type: ignore[attr-defined]
    assert ("100,000 characters in all" in " ".join(out.split())) is not whole
    assert (out.count("green") == 10_000) is whole


@pytest.mark.parametrize("command", ["list", "history", "search"])
def test_a_long_word_is_folded_and_loses_nothing(vmem: Run, tmp_path: Path, command: str) -> None:
    address = "https://example.org/" + "".join(f"{n:03}" for n in range(50))
    made = remember(tmp_path / "vmem.db", address, id="r1")
    out = "\n".join(lines_of(vmem(command, *({"search": ["https"], "list": []}.get(command, [made])))))
    # Line by line, without what stands in the columns beside it.
    beside = re.compile(r"\s{2,}\d\s{2,}|\s{3,}asserted")
    folded = "".join(beside.split(line.strip().removeprefix("1   "))[0] for line in out.split("\n"))
    assert address in (folded.replace(" ", "") if vmem.is_terminal else out)  # type: ignore[attr-defined]


def test_a_name_or_id_cannot_forge_a_line(vmem: Run, tmp_path: Path) -> None:
    forged = "rec-1\nrec-2  9  asserted  active\x1b[2J"
    source = Source("tool", text_digest("x"), tool_name=forged, uri=forged)
    remember(
        tmp_path / "vmem.db", "Tea.", id=forged, operation_id=forged, sources=[source], links=[Link(forged, forged)],
        metadata={forged: forged},
    )  # fmt: skip
    for command in (["list"], ["show", forged], ["history", forged], ["search", "tea"]):
        lines = lines_of(vmem(*command))
        assert not [line for line in lines if line.lstrip().startswith("rec-2")]
        assert_harmless("\n".join(lines))
    assert_harmless(vmem("show", forged + "x", code=1))
    assert_harmless(vmem("list", "--store", "no\x1b[2J.db", code=1))


def test_a_number_beside_letters_from_right_to_left_keeps_its_side(vmem: Run, tmp_path: Path) -> None:
    remember(tmp_path / "vmem.db", "שלום", id="rec-1")
    remember(tmp_path / "vmem.db", "Tea.", id="rec-2")
    out = vmem("list")
    assert out.count("\u200e1 ") == (1 if vmem.is_terminal else 0)  # type: ignore[attr-defined]


def test_json_is_exact_and_harmless(vmem: Run, tmp_path: Path) -> None:
    import json

    for text in HOSTILE.values():
        remember(tmp_path / "vmem.db", text, supersede="add")
    out = vmem("list", "--json")
    assert {record["text"] for record in json.loads(out)} == set(HOSTILE.values())
    assert not OBEYED & set(out)
