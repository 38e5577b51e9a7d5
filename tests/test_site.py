"""The documentation as a site: it builds strictly, and whoever opens its front page finds what they look for."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest

from decentral.config.composition import conf_directory
from decentral.config.overrides import options
from decentral.config.schema import GROUPS
from decentral.registry import components

ROOT = Path(__file__).resolve().parents[1]


def module(name: str) -> ModuleType:
    """One of scripts/docs/."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "scripts" / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize(
    ("doc", "shown"),
    [
        ("x_i of all *workers*, `a_b`.", "x\\_i of all \\*workers\\*, `a_b`."),
        ("BigData\n2023. More", "BigData 2023. More"),
        ("2023. More", "2023\\. More"),
        ("So:\n\n    x_i <- x_i\n      + u\n\n    y\n\nThen", "So:\n\n```text\nx_i <- x_i\n  + u\n\ny\n```\n\nThen"),
        ("tau   steps\n      in all\nkeep  a|b", "| | |\n|---|---|\n| `tau` | steps in all |\n| `keep` | a\\|b |"),
        ("- one\n  more\n- two", "- one more\n- two"),
        ("Raises:\n    ConfigError: x < 0", "**Raises**: ConfigError: x &lt; 0"),
    ],
)
def test_a_docstring_becomes_markdown(doc: str, shown: str) -> None:
    assert module("docstrings").markdown(doc) == shown


def test_links_lead_to_pages_of_the_site_or_to_what_the_repository_has() -> None:
    links = module("links")
    places = links.Links(ROOT, {"README.md": "overview.md", "docs/time.md": "time.md"}, lambda group, name: None)
    text = (
        "[a](../README.md#use) [b](../src/decentral/errors.py) [c](https://example.org) [d](#here)\n\n    [e](none.md)"
    )
    assert places.rewritten(text, "docs/time.md", "guides/time.md") == (
        "[a](../overview.md#use) [b](../source/src/decentral/errors.py.md) [c](https://example.org) [d](#here)\n\n"
        "    [e](none.md)"
    )
    assert places.wanted == {"src/decentral/errors.py"}
    with pytest.raises(links.BrokenLink, match=r"time\.md links to none\.md"):
        places.rewritten("[e](none.md)", "docs/time.md", "time.md")


def test_choices_are_linked_where_a_page_names_them() -> None:
    links = module("links").Links(ROOT, {}, lambda group, name: f"methods/{name}.md" if name == "d2" else None)
    shown = links.choices_linked("`algo=d2` and `algo=other`, [`algo=d2`](x.md)\n# `algo=d2`", "choosing.md")
    assert shown == "[`algo=d2`](methods/d2.md) and `algo=other`, [`algo=d2`](x.md)\n# `algo=d2`"


def test_pages_name_choices_that_there_are() -> None:
    folders = [conf_directory()]
    known = {group: set(options(group, folders)) for group in GROUPS}
    named = {
        (page.name, group, name)
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        if page.name != "own_components.md"
        for group, name in re.findall(r"`(\w+)=([a-z]\w*)`", page.read_text())
        if group in known
    }
    assert len(named) > 50
    assert [found for found in sorted(named) if found[2] not in known[found[1]]] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("docs")
    command = [sys.executable, str(ROOT / "scripts" / "docs" / "build.py"), str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def text_of(page: Path) -> str:
    return unescape(re.sub(r"<[^>]+>", "", page.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("how to run the default", "decentral-run algo=relaysgd topology=dbt alpha=0.01"),
        ("which method suits a slow network with different data", "A slow network and different data"),
        ("what RelaySGD sends", "1.88 models in 3.75 messages a step over topology=dbt"),
        ("how to use a model of my own", "result = decentral.train("),
        ("how far simulated time can be trusted", "with an error of 0.4 % (median; 95th percentile 4.2 %"),
    ],
)
def test_the_front_page_leads_to_the_answer(site: Path, question: str, answer: str) -> None:
    row = re.search(rf"<td>{question}</td>\s*<td>(.*?)</td>", (site / "index.html").read_text())
    assert row is not None
    link = re.search(r'href="([^"]+)"', row[1])
    assert link is not None
    place, _, section = link[1].partition("#")
    page = site / (place or "index.html")
    assert answer in " ".join(text_of(page).split())
    assert not section or f'id="{section}"' in page.read_text()


@pytest.mark.slow
def test_every_method_and_topology_is_there(site: Path) -> None:
    methods = set(options("algo", [conf_directory()]))
    assert {page.stem for page in (site / "methods").glob("*.html")} == methods | {"index"}
    for name in methods:
        doc = components("algorithms")[name].__doc__ or ""
        formula = next(
            line.strip() for line in doc.splitlines() if (line.startswith("        ") and "<-" in line) or "=" in line
        )
        assert " ".join(formula.split()) in " ".join(text_of(site / "methods" / f"{name}.html").split())
    topologies = set(options("topology", [conf_directory()])) - {"file"}
    assert {drawing.stem for drawing in (site / "topologies").glob("*.svg")} == topologies


@pytest.mark.slow
def test_every_page_of_the_repository_is_in_the_navigation(site: Path) -> None:
    shown = (site / "time.html").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem in ("index", "choosing") or f'href="{page.stem}.html"' in shown, page.name


@pytest.mark.slow
def test_figures_are_there_and_nothing_comes_from_elsewhere(site: Path) -> None:
    images = 0
    for page in site.rglob("*.html"):
        html = page.read_text()
        for source in re.findall(r'<(?:img|script)[^>]* src="([^"]+)"', html):
            assert not source.startswith("http"), (page, source)
            assert (page.parent / source).is_file() or (site / source.lstrip("/")).is_file(), (page, source)
            images += 1
    assert images > 100


def test_building_leaves_nothing_that_git_sees() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", "build/docs/site/index.html"], cwd=ROOT)
    assert ignored.returncode == 0
