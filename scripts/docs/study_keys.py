"""Every key of a study, from the dataclasses that read them: `python scripts/docs/study_keys.py` prints the page."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Collection

from decentral.cli.help import settings_of
from decentral.measurements.measurement import Measurement
from decentral.registry import components
from decentral.report.spec import Published, ReportSpec, Table, Tolerance
from decentral.study.measured import MeasuredStudy

_LONG = 50
SECTIONS = {
    "study.kinds": ("Kinds of studies", "`kind:` at the top chooses one; the keys of all of them come first."),
    "measurements": (
        "Measurements",
        "What else `kind:` can be: rows and columns of a measurement. Its settings stand in the study or in a row.",
    ),
    "study.tuning": ("Rules for learning rates", "`tune: {rule: NAME, ...}` of a comparison."),
    "report.figures": ("Figures", "`report.figures`: a list; `kind:` chooses, `name:` is the name of its file."),
    "report.listings": ("Listings", "`report.listings`: further tables, a list like that of the figures."),
    "report.claims": ("Claims", "`report.claims`: a list; each `says:` a sentence, which `kind:` and its keys check."),
}


def listing() -> str:
    """All keys as Markdown: a heading for each section, a list for each class, those of a class above it once."""
    blocks: list[str] = []
    listed: set[type] = {Measurement}

    def describe(cls: type) -> None:
        for one in (*reversed(cls.__mro__), *parts(cls)):
            if dataclasses.is_dataclass(one) and isinstance(one, type) and one not in listed:
                listed.add(one)
                blocks.append(keys(one, listed))

    for package, (title, about) in SECTIONS.items():
        blocks += [f"## {title}", about]
        if package == "measurements":
            describe(MeasuredStudy)
        for name, cls in sorted(components(package).items()):
            blocks.append(f"### {name}\n\n{first_sentence(cls)}")
            describe(cls)
    blocks += ["## The report", "The keys of `report:`, and of the tables and comparisons in it."]
    for cls in (ReportSpec, Table, Published, Tolerance):
        describe(cls)
    return "\n\n".join(block for block in blocks if block)


def first_sentence(cls: type) -> str:
    """What the class is, as its docstring begins."""
    return " ".join(re.split(r"\n\n", inspect.cleandoc(cls.__doc__ or ""))[0].split())


def keys(cls: type, listed: Collection[type]) -> str:
    """`- key (default): what it is` for each field that no class above has, under the name of the class."""
    above = {f.name for base in cls.__mro__[1:] if base in listed for f in dataclasses.fields(base)}
    lines = []
    for one in settings_of(cls):
        if one.name not in above:
            usual = f" ({one.value})" if one.value and len(one.value) < _LONG else ""
            lines.append(f"- `{one.name}`{usual}{': ' * bool(one.about)}{one.about}")
    below = [base.__name__ for base in cls.__mro__[1:] if base in listed]
    head = f"Keys of `{cls.__name__}`" + (f", beside those of `{below[0]}`" if below else "")
    return f"{head}:\n\n" + "\n".join(lines) if lines else f"{head}." if below else ""


def parts(cls: type) -> list[type]:
    """The dataclasses of which it has lists or one: rows, measures."""
    hints = typing.get_type_hints(cls).values()
    return [one for hint in hints for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one)]  # type: ignore[misc]


def page() -> str:
    """The page of the site."""
    return f"# Keys of studies\n\n[Studies of your own](studies.md) explains them by an example.\n\n{listing()}\n"


if __name__ == "__main__":
    print(page())
