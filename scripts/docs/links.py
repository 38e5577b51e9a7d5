"""Links of a page that lies in the repository become links of the site; a link to nothing is an error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]*)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^(`{3,}|~{3,})")
_CHOICE = re.compile(r"(?<!\[)`((\w+)=(\w+))`(?!\])")
SHOWN = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash", ".cff": "yaml", ".json": "json", "": "text"}
"""Ending of a file that has a page of its own, with its text -> language."""


class BrokenLink(Exception):
    """A page links to what is not there."""


class Links:
    """Where everything in the repository is found on the site."""

    def __init__(self, root: Path, pages: dict[str, str], sections: Callable[[str, str], str | None]) -> None:
        """`pages`: path in the repository -> path on the site. `sections`: a choice's group and name -> its place."""
        self.root = root
        self.pages = pages
        self.sections = sections
        self.wanted: set[str] = set()
        """Files of the repository to which pages link, and which are not pages themselves."""

    def rewritten(self, text: str, source: str, target: str) -> str:
        """The page `source` of the repository as it has to be at `target` on the site."""
        lines = []
        for line, is_code in prose(text):
            lines.append(line if is_code else _LINK.sub(lambda found: self._moved(found, source, target), line))
        return self.choices_linked("\n".join(lines), target)

    def choices_linked(self, text: str, target: str) -> str:
        """With a link wherever a page says `algo=relaysgd` or another choice."""
        lines = []
        for line, is_code in prose(text):
            if not is_code and not line.startswith("#"):
                line = _CHOICE.sub(lambda found: self._choice(found, target), line)
            lines.append(line)
        return "\n".join(lines)

    def _moved(self, found: re.Match[str], source: str, target: str) -> str:
        name = os.path.normpath(PurePosixPath(source).parent / found[1])
        there = self.root / name
        if not there.exists():
            raise BrokenLink(f"{source} links to {found[0]}, which does not exist")
        if there.is_dir():
            readme = f"{name}/README.md"
            name = readme if readme in self.pages else name
        if name not in self.pages:
            self.wanted.add(name)
        return relative(self.place(name), target) + (found[2] or "")

    def place(self, name: str) -> str:
        """Where the site has a file or folder of the repository."""
        return self.pages.get(name) or self.as_it_is(name)

    def as_it_is(self, name: str) -> str:
        """Where the site shows a file or folder itself."""
        there = self.root / name
        return f"source/{name}.md" if there.is_dir() or there.suffix in SHOWN else name

    def _choice(self, found: re.Match[str], target: str) -> str:
        place = self.sections(found[2], found[3])
        if place is None or place.partition("#")[0] == target:
            return found[0]
        return f"[{found[0]}]({relative(place, target)})"


def relative(place: str, target: str) -> str:
    """From one page of the site to another."""
    path, mark, section = place.partition("#")
    return os.path.relpath(path, PurePosixPath(target).parent) + mark + section


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """(line, whether it is code) of a Markdown text."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        is_code = bool(fence or found or line.startswith("    "))
        if fence and line.startswith(fence) and not line.strip("`~ \n"):
            fence = ""
        elif found and not fence:
            fence = found[1]
        yield line, is_code


def as_python_markdown(text: str) -> str:
    """GitHub's Markdown as Python-Markdown has it: a list begins after an empty line, Markdown goes on in HTML."""
    lines: list[str] = []
    was_item = False
    for line, is_code in prose(text):
        is_item = not is_code and bool(re.match(r"(-|1\.) ", line))
        if is_item and not was_item and lines and lines[-1].strip():
            lines.append("")
        was_item = is_item or (was_item and line.startswith(" "))
        if not is_code:
            line = re.sub(r"^<details>", '<details markdown="1">', line)
        lines.append(line)
    return "\n".join(lines) + "\n"
