"""Pages of what can be chosen: from the components, their docstrings and settings, and the files of conf/ alone."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import traffic
import yaml
from docstrings import cell, escaped, fence, markdown, settings_table
from drawings import draw

from decentral.algorithms.features import Feature
from decentral.cli.help import Choice, choice, settings_of, show
from decentral.compression.compressor import AcceptedCompression
from decentral.config.overrides import options
from decentral.config.parsing import folders_of
from decentral.config.schema import GROUPS, NODES, Config
from decentral.topology.facts import told

TITLES = {
    "task": "Tasks",
    "data": "Data sets",
    "model": "Models",
    "partition": "Partitions: who has which data",
    "optim": "Local optimizers",
    "schedule": "Learning-rate schedules",
    "compress": "Compressors",
    "cluster": "Clusters: machines as a model",
    "availability": "Availability: which workers are present",
    "attack": "Attacks",
    "robust": "Robust mixing",
    "privacy": "Private gradients",
    "env": "Environments of reinforcement learning",
    "logger": "Loggers",
    "launcher": "Launchers",
}
"""Group without pages of its own -> title of the page that all its choices share."""

WORKERS = 16
_SIZES = (4, 16, 32, 64)
_TAKES = {
    AcceptedCompression.nothing: "no compressed messages",
    AcceptedCompression.rows: "compressors that give every coordinate a number: bf16, int8, sign",
    AcceptedCompression.payloads: "every compressor that encodes a row by itself: all but powersgd and artopk",
    AcceptedCompression.senders: "compressors that give every coordinate a number, or say which have one",
    AcceptedCompression.means: "every compressor",
}


def known(group: str) -> list[Choice]:
    """All choices of a group."""
    folders = folders_of(None)
    return [choice(group, option, folders) for option in options(group, folders)]


def section(group: str, option: str) -> str | None:
    """Where the site describes `group=option`; None for what is no choice."""
    if group not in GROUPS or option not in options(group, folders_of(None)):
        return None
    if group == "algo":
        return f"methods/{option}.md"
    return f"topologies.md#{option}" if group == "topology" else f"choices/{group}.md#{option}"


def file_of(one: Choice, root: Path) -> str | None:
    """The file of its component, as a path in the repository."""
    return Path(inspect.getfile(one.cls)).resolve().relative_to(root).as_posix() if one.cls else None


def title(method: Choice) -> str:
    """A method's name as it is written: what its module or its summary begins with, whichever is shorter."""
    assert method.cls is not None
    about = inspect.getdoc(sys.modules[method.cls.__module__]) or method.option
    return min((text.splitlines()[0].partition(":")[0].rstrip(".") for text in (about, method.summary)), key=len)


class Methods:
    """A page for each method, and one for all."""

    def __init__(self, root: Path, advice: dict[str, str], measured: dict[str, list[str]]) -> None:
        """`advice`: method -> when to use it; `measured`: method -> the studies with stored results that have it."""
        self.root, self.advice, self.measured = root, advice, measured
        self.all = known("algo")
        self.sent = traffic.sent([method.option for method in self.all], WORKERS)

    def pages(self) -> Iterator[tuple[str, str, str]]:
        """(path on the site, title, Markdown)."""
        yield "methods/index.md", "All methods", self.overview()
        for method in self.all:
            yield f"methods/{method.option}.md", title(method), self.page(method)

    def overview(self) -> str:
        """A table of all."""
        rows = [
            f"| [`{m.option}`]({m.option}.md) | {escaped(m.summary)} | {self.sent[m.option].models:.3g} "
            f"| {'no' if m.cls and Feature.synchrony not in m.cls.supports else 'yes'} |"  # type: ignore[attr-defined]
            for m in self.all
        ]
        return "\n".join(
            [
                "# Methods",
                "",
                "[Which one when](../choosing.md). What a worker sends is counted in "
                f"{traffic.STEPS} steps of {WORKERS} workers with each method's usual settings and topology, "
                "in models for each step.",
                "",
                "| `algo=` | in a sentence | models sent per step | in rounds |",
                "|---|---|---|---|",
                *rows,
            ]
        )

    def page(self, method: Choice) -> str:
        """Command, when to use it, formula and source, facts, settings, where it was measured."""
        cls = method.cls
        assert cls is not None
        parts = [f"# {escaped(title(method))}", fence(f"decentral-run {self.command(method)}", "bash")]
        if method.option in self.advice:
            parts += ["## When to use it", self.advice[method.option]]
        parts += ["## Formula and source", markdown(method.doc, without_settings=True)]
        parts += ["## What it sends and needs", self.facts(method)]
        if method.settings:
            parts += ["## Settings", settings_table("algo", method.settings)]
        if method.option in self.measured:
            parts += ["## Where it was measured", "\n".join(f"- {study}" for study in self.measured[method.option])]
        return "\n\n".join(parts)

    def command(self, method: Choice) -> str:
        """What runs it."""
        usual = getattr(method.cls, "usual", {}).get("topology")
        words = [f"algo={method.option}", f"topology={usual}" if usual else ""]
        if method.cls and Feature.training not in method.cls.supports:
            words.append("task=mean_estimation")
        return " ".join(filter(None, words))

    def facts(self, method: Choice) -> str:
        """What can be read off its class, and counted."""
        cls, sent = method.cls, self.sent[method.option]
        assert cls is not None
        algorithm = cls()
        topology = sent.topology if Feature.topology in algorithm.supports else ""
        over = f" over `topology={topology}`" if topology else ""
        parts = "; a message is a part of a model" if sent.models < 0.99 * sent.messages else ""
        needs = ", ".join(sorted(f"`{need.value}`" for need in algorithm.needs)) or "nothing"
        rows = [
            (
                "A worker sends",
                f"{_counted(sent.models, 'model')} in {_counted(sent.messages, 'message')} a step{over}, on average of "
                f"{WORKERS} workers: counted in {traffic.STEPS} steps with its usual settings{parts}",
            ),
            ("Topology", f"{needs} is asked of it" if topology else "none is used"),
            ("Lost messages", "has a rule for them" if Feature.message_loss in algorithm.supports else "are refused"),
            ("`compress=`", _TAKES[algorithm.takes]),
            ("Waiting", "nobody waits for all others" if Feature.synchrony not in algorithm.supports else "in rounds"),
            ("Code", f"[{file_of(method, self.root)}](../source/{file_of(method, self.root)}.md)"),
        ]
        return "\n".join(["| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows)])


def _counted(number: float, what: str) -> str:
    return f"{number:.3g} {what}{'' if f'{number:.3g}' == '1' else 's'}"


def topologies(folder: Path) -> str:
    """All topologies on one page, with drawings in `folder`, beside the page."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, facts = [], []
    for one in known("topology"):
        parts.append(f"## {one.option} {{ #{one.option} }}")
        rounds = {n: found for n in _SIZES if (found := one.rounds(n)) is not None}
        if rounds:
            n = WORKERS if WORKERS in rounds else max(rounds)
            shown = draw(rounds[n], folder / f"{one.option}.svg")
            parts.append(f"![{one.option}: {shown}]({folder.name}/{one.option}.svg)\n\n*{shown}*")
            cells = " | ".join(_short(told(rounds[n])) if n in rounds else "-" for n in _SIZES)
            facts.append(f"| [`{one.option}`](#{one.option}) | {cells} |")
        parts.append(markdown(one.doc, without_settings=True))
        if one.settings:
            parts.append(settings_table("topology", one.settings))
    head = [
        "# Topologies",
        "",
        "Who talks to whom: `topology=NAME`. An arrow or edge is a message in a round; self-loops are left out. Rounds "
        "after which all agree exactly, or else the spectral gap; then how many messages all workers send in a round:",
        "",
        "| `topology=` | " + " | ".join(f"n = {n}" for n in _SIZES) + " |",
        "|---|" + "---|" * len(_SIZES),
        *facts,
        "",
        "Other sizes: `decentral-run --help topology=ring num_workers=22`. [Sources of recent ones](frontier.md).",
    ]
    return "\n\n".join(["\n".join(head), *parts])


def _short(text: str) -> str:
    """The same, shorter."""
    exact, gap, messages = text.split(", ")
    agree = f"gap {gap.split()[-1]}" if "never" in exact else re.sub(r"exact after (\d+).*", r"exact in \1", exact)
    return f"{agree}, {messages.split()[0]}"


def group(name: str) -> str:
    """All choices of a group on one page."""
    parts = [f"# {TITLES[name]}"]
    for one in known(name):
        parts.append(f"## {name}={one.option} {{ #{one.option} }}")
        if one.cls is None:
            assert one.file is not None
            parts += [escaped(one.summary), fence(one.file.read_text().rstrip(), "yaml")]
            continue
        if (named := getattr(one.cls, "name", one.option)) != one.option and section(name, named):
            parts.append(f"{escaped(one.summary)} As [`{name}={named}`](#{named}), with")
            parts.append(fence(yaml.safe_dump(dict(one.values), sort_keys=False).rstrip(), "yaml"))
            continue
        parts.append(markdown(one.doc, without_settings=True))
        if one.settings:
            parts.append(settings_table(name, one.settings))
        for node, settings in one.nodes.items():
            parts.append(settings_table(f"{name}.{node}", settings))
    return "\n\n".join(parts)


def settings() -> str:
    """All settings that are no choice."""
    rows = [
        f"| `{f.name}` | `{show(f.default) or ' '}` | {cell(f.metadata['help'])} |"
        for f in dataclasses.fields(Config)
        if "help" in f.metadata
    ]
    parts = ["# All settings", "\n".join(["| setting | usually | what it does |", "|---|---|---|", *rows])]
    for node, cls in NODES.items():
        parts += [f"## {node}", settings_table(node, settings_of(cls))]
    return "\n\n".join(parts)
