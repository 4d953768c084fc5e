"""The documentation site: what it must cover, what its written parts say, and where its links lead.

The site is built by ``zensical build --strict -f docs/zensical.toml`` (extra ``docs``); these tests do without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "site" not in path.relative_to(DOCS).parts)
PACKAGES = {"vmem_core": "core", "vmem_langchain": "langchain", "vmem_llamaindex": "llamaindex"}

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def generator(name: str) -> types.ModuleType:
    """A module of docs/generator, which is no package: the site's programs are no part of what is installed."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "generator" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def named(item: object) -> Iterator[str]:
    """The pages that a navigation names, at any depth."""
    if isinstance(item, str):
        yield item
    else:
        for part in item.values() if isinstance(item, dict) else item:  # type: ignore[attr-defined]
            yield from named(part)


def prose(path: Path) -> str:
    return _FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """What a heading is called in a link: as GitHub and Python-Markdown both make it, for headings such as ours."""
    found = (re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower() for heading in headings(path))
    return {re.sub(r"\s", "-", heading) for heading in found}


def headings(path: Path) -> list[str]:
    return _HEADING.findall(prose(path))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_in_the_api_pages_once(package: str) -> None:
    page = (DOCS / "api" / f"{PACKAGES[package]}.md").read_text(encoding="utf-8")
    shown = re.findall(rf"^::: {package}\.(\w+)$", page, re.MULTILINE)
    exported = importlib.import_module(package).__all__
    assert sorted(shown) == sorted(exported), f"each name has its ::: line in docs/api/{PACKAGES[package]}.md"


@pytest.mark.parametrize("page", ["errors.md", "command_line.md"])
def test_what_is_written_from_the_code_says_what_the_code_says(page: str) -> None:
    fresh = generator("pages").pages()[DOCS / page]
    stale = (DOCS / page).read_text(encoding="utf-8")
    assert stale == fresh, "run: python docs/generator/pages.py"


def test_each_code_of_an_error_has_its_entry_with_a_cause_and_what_to_do() -> None:
    errors = importlib.import_module("vmem_core.errors")
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.VmemError)]
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    entries = {entry[0]: entry[1] for entry in re.findall(r"^### `(\w+)`\n(.*?)(?=^###? |\Z)", page, re.M | re.S)}
    assert set(entries) == {one.code for one in classes} | {"model_not_allowed", "price_unknown"}
    for code, entry in entries.items():
        assert re.search(r"\*\*Cause\.\*\* \S.*\n\n\*\*What to do\.\*\* \S", entry), code


def test_each_command_and_option_of_vmem_is_on_the_page() -> None:
    commands = importlib.import_module("vmem_core.cli.moving")  # all are there once it is loaded
    page = (DOCS / "command_line.md").read_text(encoding="utf-8")
    entries = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    assert [entry.split("\n")[0] for entry in entries] == [
        f"`vmem {one.name}`" for one in commands.app.registered_commands
    ]
    assert all("`--store` `PATH" in entry for entry in entries)
    assert "`--yes`, `-y`" in page


def test_every_page_is_in_the_navigation_once_and_has_one_title() -> None:
    site = tomllib.loads((DOCS / "zensical.toml").read_text(encoding="utf-8"))["project"]
    pages = sorted(page.relative_to(DOCS).as_posix() for page in PAGES)
    assert sorted(named(site["nav"])) == pages, "a page stands in nav of docs/zensical.toml, or there is no such page"
    assert not [page.name for page in PAGES if len(re.findall(r"^# ", prose(page), re.MULTILINE)) != 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_of_a_page_lead_to_pages_of_the_site_and_to_headings_that_exist(page: Path) -> None:
    lost = []
    for link in _LINK.findall(_CODE.sub("", prose(page))):
        target, _, anchor = link.partition("#")
        found = (page.parent / target).resolve() if target else page
        if not found.is_file() or not found.is_relative_to(DOCS) or (anchor and anchor not in anchors(found)):
            lost.append(link)
    assert not lost


def test_links_of_the_readme_lead_to_headings_that_exist() -> None:
    links = [link.partition("#") for link in _LINK.findall(prose(ROOT / "README.md"))]
    lost = [
        f"{target}#{anchor}"
        for target, _, anchor in links
        if anchor and anchor not in anchors(ROOT / target if target else ROOT / "README.md")
    ]
    assert not lost
    assert links


def test_a_lost_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `thing`, twice\n\n[a](#one-thing-twice) [b](gone.md)\n", encoding="utf-8")
    assert anchors(page) == {"one-thing-twice"}
    assert _LINK.findall(prose(page)) == ["#one-thing-twice", "gone.md"]


def test_examples_in_docstrings_become_code_and_references_become_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", types.SimpleNamespace(Extension=object))  # comes with the extra docs
    docstring = "A verb. See :meth:`~vmem_core.Store.run`.\n\n>>> 1 + 1\n2\n\nMore."
    assert generator("docstrings").to_markdown(docstring) == (
        "A verb. See `vmem_core.Store.run`.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    )


def test_no_figure_of_the_measurements_is_made_up() -> None:
    homes = [ROOT / "benchmarks" / "README.md", DOCS / "scaling.md", *sorted((DOCS / "decisions").glob("*.md"))]
    measured = {line for home in homes for line in home.read_text(encoding="utf-8").splitlines()}
    page = (DOCS / "measurements.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and re.search(r"\d\.\d", line)]
    assert len(rows) > 10
    assert not [row for row in rows if row not in measured]
    commands = set(re.findall(r"python (benchmarks/\w+\.py)", page))
    assert commands
    assert not [command for command in commands if not (ROOT / command).is_file()]
