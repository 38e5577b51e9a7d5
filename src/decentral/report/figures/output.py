"""How figures are stored: to be looked at by themselves, or for the column of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from decentral.errors import ConfigError, suggest

WIDTHS = {"column": 3.25, "page": 6.75}
"""Inches of a column, and of a page, of a paper with two columns."""
FORMATS = ("png", "svg", "pdf")
KEYS = ("figures.title", "figures.width", "figures.format")
_LEAST, _MOST = 2.0, 20.0


@dataclass(frozen=True)
class Output:
    """What `figures.title`, `figures.width` and `figures.format` of decentral-report say.

    title      whether a figure has a title, and a line on where it belongs: in a paper, the caption says that
    width      inches; None: as many as its panels want, on a screen
    formats    of the files, see FORMATS
    """

    title: bool = True
    width: float | None = None
    formats: tuple[str, ...] = ("png", "svg")

    @property
    def small(self) -> bool:
        """Whether letters, lines and markers have the size that they have in print."""
        return self.width is not None


SCREEN = Output()
"""What is drawn if nothing else is said."""


def output(settings: Mapping[str, str]) -> Output:
    """What the settings of a command line say, those of KEYS. Raises ConfigError naming the key and what would work.

    >>> output({"figures.width": "column", "figures.format": "[pdf]"})
    Output(title=True, width=3.25, formats=('pdf',))
    """
    found = SCREEN
    if (title := settings.get("figures.title")) is not None:
        if title not in ("true", "false"):
            raise ConfigError(f"figures.title={title} is neither true nor false.")
        found = replace(found, title=title == "true")
    if (width := settings.get("figures.width")) is not None:
        found = replace(found, width=_width(width))
    if (formats := settings.get("figures.format")) is not None:
        found = replace(found, formats=_formats(formats))
    return found


def _width(text: str) -> float | None:
    if text == "screen":
        return None
    try:
        inches = WIDTHS[text] if text in WIDTHS else float(text)
    except ValueError:
        inches = 0.0
    if not _LEAST <= inches <= _MOST:
        named = " or ".join(f"{name} ({number:g} inches)" for name, number in WIDTHS.items())
        raise ConfigError(
            f"figures.width={text} is no width: it should be screen, {named}, or inches from {_LEAST:g} to {_MOST:g}."
        )
    return inches


def _formats(text: str) -> tuple[str, ...]:
    if text.startswith("[") != text.endswith("]"):
        raise ConfigError(f"figures.format={text} has one bracket only: it should be a list such as [png,svg,pdf].")
    names = [name.strip().strip("'\"") for name in text.removeprefix("[").removesuffix("]").split(",")]
    names = [name for name in names if name]
    if not names:
        raise ConfigError(f"figures.format={text} names no format: it should be a list such as [png,svg,pdf].")
    for name in names:
        if name not in FORMATS:
            raise ConfigError(f"figures.format={text} has '{name}', which is no format.{suggest(name, FORMATS)}")
    return tuple(name for name in FORMATS if name in names)
