"""The documentation as a site: `python scripts/docs/build.py [FOLDER]` writes FOLDER/site/ (build/docs/site/).

Pages are README, CHANGELOG, CONTRIBUTING, docs/, the results of the papers, and what is generated from the components.
They are gathered in FOLDER/pages/ as plain Markdown, all links resolved, and mkdocs makes HTML of them. A new file
in docs/, a new method or a new paper's results needs no entry anywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import choices
import library
import study_keys
import yaml
from docstrings import fence
from links import SHOWN, BrokenLink, Links, as_python_markdown

import decentral
from decentral.config.parsing import folders_of
from decentral.plugins.benchmark.command import STUDY
from decentral.report.html import page as report_page
from decentral.report.results import read
from decentral.study import SCALES

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "build" / "docs"
PAGES = BUILT / "pages"
FRONT = ("index.md", "choosing.md")
"""Of docs/, what stands before all else."""


def main() -> None:
    """Gather, then build strictly."""
    shutil.rmtree(PAGES, ignore_errors=True)
    try:
        nav = gather()
    except BrokenLink as broken:
        sys.exit(str(broken))
    configuration = {
        "INHERIT": str(Path(__file__).with_name("mkdocs.yml")),
        "site_name": f"decentral {decentral.__version__}",
        "docs_dir": str(PAGES),
        "site_dir": str(BUILT / "site"),
        "nav": nav,
    }
    (BUILT / "mkdocs.yml").write_text(yaml.safe_dump(configuration, sort_keys=False))
    done = subprocess.run(  # no --quiet: warnings that are not shown would not be counted
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(BUILT / "mkdocs.yml")],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},  # the theme's notice about another program
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit("\n".join(line for line in done.stderr.splitlines() if not line.startswith("INFO")))
    print(f"{len(list(PAGES.rglob('*.md')))} pages: {BUILT / 'site' / 'index.html'}")
    print(f"With its search: {Path(sys.executable).name} -m http.server --directory {BUILT / 'site'}")


def gather() -> list[Any]:
    """All pages into FOLDER/pages; returns the navigation."""
    pages = written_pages()
    methods = choices.Methods(ROOT, advice(), measured())
    homes = {
        place: choices.section(group, one.option)
        for group in ("algo", "topology")
        for one in choices.known(group)
        for place in (f"conf/{group}/{one.option}.yaml", choices.file_of(one, ROOT))
    }
    homes["scripts/docs/study_keys.py"] = "study_keys.md"
    links = Links(ROOT, pages | {place: home for place, home in homes.items() if place and home}, choices.section)
    for source, target in pages.items():
        put(target, links.rewritten((ROOT / source).read_text(), source, target))
    put("topologies.md", choices.topologies(PAGES / "topologies"), links)
    put("settings.md", choices.settings(), links)
    put("library.md", library.page(), links)
    put("study_keys.md", study_keys.page())
    for group in choices.TITLES:
        put(f"choices/{group}.md", choices.group(group), links)
    listed = []
    for target, title, text in methods.pages():
        put(target, text, links)
        listed.append({title: target} if not target.endswith("index.md") else target)
    sources = [file for one in methods.all if (file := choices.file_of(one, ROOT))]
    bring(links.wanted | set(sources), links)
    shutil.copy(Path(__file__).with_name("extra.css"), PAGES / "extra.css")
    boards = leaderboards(ROOT / "results" / "benchmark" / STUDY)
    return navigation(
        [*pages.items(), *boards], [listed[0], *sorted(listed[1:], key=lambda entry: next(iter(entry)).lower())]
    )


def written_pages() -> dict[str, str]:
    """Page of the repository -> its place on the site."""
    pages = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    pages |= {f"docs/{file.name}": file.name for file in sorted((ROOT / "docs").glob("*.md"))}
    for file in sorted((ROOT / "results").glob("**/README.md")):
        place = file.relative_to(ROOT)
        if len(place.parts) <= 3:
            pages[place.as_posix()] = place.with_name("index.md").as_posix()
    return pages


def put(target: str, text: str, links: Links | None = None) -> None:
    """Write a page; a generated one with its links to choices."""
    file = PAGES / target
    file.parent.mkdir(parents=True, exist_ok=True)
    if links is not None:
        text = links.choices_linked(text, target)
    file.write_text(as_python_markdown(text))


def bring(wanted: set[str], links: Links) -> None:
    """What pages link to: figures and tables as they are, code and folders as pages of their own."""
    for name in sorted(wanted):
        there, target = ROOT / name, links.as_it_is(name)
        front = "---\nsearch: {exclude: true}\n---\n"
        if there.is_dir():
            inside = sorted(entry.name + "/" * entry.is_dir() for entry in there.iterdir() if entry.name[0] not in "._")
            put(target, f"{front}# {name}/\n\n" + "\n".join(f"- `{entry}`" for entry in inside))
        elif there.suffix in SHOWN:
            put(target, f"{front}# {name}\n\n" + fence(there.read_text(), SHOWN[there.suffix]))
        else:
            (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(there, PAGES / name)


def leaderboards(folder: Path) -> list[tuple[str, str]]:
    """The pages of the benchmark's published results, one file each, and one that links to them: its place, where there
    are some."""
    lines = []
    for scale in SCALES:
        if (folder / scale / "study.json").exists():
            results = read(folder / scale)
            (PAGES / f"leaderboard_{scale}.html").write_text(report_page(results))
            lines.append(f"- [scale={scale}](leaderboard_{scale}.html): {results.facts.get('title')}")
    if not lines:
        return []
    put(
        "leaderboard.md",
        "# Leaderboard\n\nRanks, profiles and curves of [decentral-benchmark](benchmark.md).\n\n" + "\n".join(lines),
    )
    return [("results/", "leaderboard.md")]


def advice() -> dict[str, str]:
    """Method -> when to use it, from the table of docs/choosing.md."""
    text = (ROOT / "docs" / "choosing.md").read_text()
    return dict(re.findall(r"^\| `algo=(\w+)` \| (.*?) \|$", text, re.M))


def measured() -> dict[str, list[str]]:
    """Method -> studies in which it is, whose results are stored, as links."""
    found = defaultdict(list)
    for page in sorted((ROOT / "results").glob("*/README.md")):
        for study, title in re.findall(r'^<a id="(\w+)"></a>\n\n## (.+)$', page.read_text(), re.M):
            files = [file for folder in folders_of(None) if (file := folder / "study" / f"{study}.yaml").is_file()]
            if not any((page.parent / study).glob("*/table.csv")) or not files:
                continue
            place = f"../{page.parent.relative_to(ROOT).as_posix()}/index.md#{study}"
            for name in sorted(set(re.findall(r"\balgo[=:] *(\w+)", files[0].read_text()))):
                found[name].append(f"[{title}]({place})")
    return dict(found)


def navigation(pages: list[tuple[str, str]], methods: list[Any]) -> list[Any]:
    """What stands where. Guides and results are whatever lies in docs/ and results/."""
    guides = [target for source, target in pages if source.startswith("docs/") and target not in FRONT]
    results = [target for source, target in pages if source.startswith("results/")]
    return [
        {"Start": ["index.md", {"Overview": "overview.md"}, {"Choosing a method": "choosing.md"}]},
        {"Methods": methods},
        {"Topologies": "topologies.md"},
        {"Guides": guides},
        {"Results": results},
        {
            "Reference": [
                {"All settings": "settings.md"},
                {"As a library": "library.md"},
                {"Keys of studies": "study_keys.md"},
                *({title: f"choices/{group}.md"} for group, title in choices.TITLES.items()),
            ]
        },
        {"Project": [{"Contributing": "contributing.md"}, {"Changes": "changelog.md"}]},
    ]


if __name__ == "__main__":
    main()
