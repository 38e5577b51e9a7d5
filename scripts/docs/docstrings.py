"""A docstring, which is plain text, as Markdown: formulas stay as they are, settings become a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decentral.cli.help import Setting

_SPAN = re.compile(r"`[^`]+`")
_SETTING = re.compile(r"\w+  +\S")
_LABEL = re.compile(r"(Raises|Returns|Yields|Args|Departures):$")


def escaped(text: str) -> str:
    """Text in which only `code` is markup."""

    def plain(part: str) -> str:
        return re.sub(r"([\\*_\[\]#~|])", r"\\\1", part).replace("<", "&lt;").replace(">", "&gt;")

    ends = [0, *(end for span in _SPAN.finditer(text) for end in span.span()), len(text)]
    parts = [text[start:end] for start, end in pairwise(ends)]
    return "".join(part if number % 2 else plain(part) for number, part in enumerate(parts))


def cell(text: str) -> str:
    """The same in a table, where a bar would end the cell in `code`, too."""
    return escaped(" ".join(text.split())).replace("|", "\\|").replace("\\\\|", "\\|")


def blocks(doc: str) -> Iterator[tuple[str, list[str]]]:
    """(kind, lines) of the blocks of a docstring: `formula` (indented), `settings`, `list`, `label` or `text`."""
    kind, lines = "", list[str]()
    for line in [*doc.splitlines(), ""]:
        new = _kind(line, kind)
        if new != kind and lines:
            yield kind, _trimmed(lines)
            lines = []
        kind = new
        if line.strip() or kind == "formula":
            lines.append(line)
    if lines and any(map(str.strip, lines)):
        yield kind, _trimmed(lines)


def _kind(line: str, before: str) -> str:
    """What a line belongs to, after a line that belongs to `before`."""
    if not line.strip():
        return before if before == "formula" else ""
    if line.startswith(" "):
        return before if before in ("settings", "list", "text", "label") else "formula"
    if _LABEL.match(line):
        return "label"
    if _SETTING.match(line):
        return "settings"
    return "list" if line.startswith("- ") else "text"


def _trimmed(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def markdown(doc: str, without_settings: bool = False) -> str:
    """The whole docstring; without the descriptions of settings where a table has them."""
    parts = []
    for kind, lines in blocks(doc):
        if kind == "formula":
            parts.append(fence("\n".join(lines)))
        elif kind == "settings":
            if not without_settings:
                parts.append(_table(lines))
        elif kind == "list":
            parts.append("\n".join(f"- {escaped(' '.join(item.split()))}" for item in _items(lines)))
        elif kind == "label":
            parts.append(f"**{lines[0][:-1]}**: " + escaped(" ".join(" ".join(lines[1:]).split())))
        else:
            text = escaped(" ".join(line.strip() for line in lines))
            parts.append(re.sub(r"^(\d+)\.", r"\1\\.", text))
    return "\n\n".join(parts)


def fence(text: str, language: str = "text") -> str:
    """A block of code, its common indentation removed."""
    lines = text.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    marks = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`{3,}", text)), 3)
    return "\n".join([f"{marks}{language}", *(line[margin:].rstrip() for line in lines), marks])


def _items(lines: list[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        if line.startswith("- "):
            found.append(line[2:])
        else:
            found[-1] += " " + line
    return found


def _table(lines: list[str]) -> str:
    """`name   what it is` as a table."""
    rows: list[tuple[str, str]] = []
    for line in lines:
        if _SETTING.match(line):
            name, text = line.split(maxsplit=1)
            rows.append((name, text))
        else:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} {line}"
    return "\n".join(["| | |", "|---|---|", *(f"| `{name}` | {cell(text)} |" for name, text in rows)])


def settings_table(prefix: str, settings: Sequence[Setting]) -> str:
    """Settings as the command line takes them, with their usual values."""
    rows = ["| setting | usually | what it does |", "|---|---|---|"]
    for setting in settings:
        values = f"{setting.values[0].upper()}{setting.values[1:]}." if setting.values else ""
        about = "<br>".join(filter(None, [cell(setting.about), values]))
        rows.append(f"| `{prefix}.{setting.name}` | `{setting.value or ' '}` | {about} |")
    return "\n".join(rows)
