"""One look everywhere: colors, markers and line styles, the same for an algorithm in all figures.

Colors are those of Okabe and Ito, which people with any kind of color vision tell apart, and a few dark ones for
what goes beyond eight. The algorithm sets color and marker, the topology the line style. Each further line of an
algorithm has a shade of its color, and another marker.
"""

from __future__ import annotations

import io
import re
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decentral.store import AXES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GRAY = "#000000", "#8A8A8A"
VERMILLION, BLUE, GREEN, PURPLE = "#D55E00", "#0072B2", "#009E73", "#CC79A7"
ORANGE, SKY = "#E69F00", "#56B4E9"

ABSENT = "-"
"""The value of a column's setting for runs that lack it."""

LARGEST_DRAWN = 1e30
"""Largest value drawn: a diverging run would dwarf everything else."""

WORKERS: dict[str, tuple[str, str, str]] = {
    "worst": ("worst worker", VERMILLION, "v"),
    "mean": ("mean over workers", BLUE, "o"),
    "averaged": ("averaged model", GREEN, "s"),
}
"""Aggregates over the workers of one run: words, color, marker."""


@dataclass(frozen=True)
class Look:
    """Appearance of a line."""

    color: str
    marker: str
    line: Any = "-"
    hollow: bool = False
    """True if markers are filled with white: a variant (with momentum, say) of the algorithm with that color."""

    @property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of `Axes.plot`."""
        fill = "white" if self.hollow else self.color
        return {"color": self.color, "linestyle": self.line, "markerfacecolor": fill}


REFERENCE = Look(GRAY, "", (0, (1, 1)))
"""A line that no run has drawn, such as a bound: a method that is not known, on no topology."""

_ALGORITHMS = {
    "relaysgd": (VERMILLION, "o"),
    "dpsgd": (BLUE, "s"),
    "d2": (GREEN, "^"),
    "gradienttracking": (PURPLE, "D"),
    "sgp": (ORANGE, "v"),
    "allreduce": (BLACK, "X"),
    "qgdpsgd": (SKY, "p"),
    "relaysgdgrad": ("#7A3300", "<"),
    "exactdiffusion": ("#5B8C00", ">"),
    "modelaveraging": ("#555555", "P"),
    "localsgd": ("#8C6D1F", "d"),
    "wagma": ("#A50026", "*"),
    "eagersgd": ("#1B4F72", "h"),
    "adpsgd": ("#6A51A3", "8"),
    "a2cid2": ("#C51B8A", "H"),
    "asyncdiloco": ("#B15928", "o"),
    "momentumtracking": ("#6A3D9A", "^"),
    "dadam": ("#1F78B4", "v"),
    "epidemiclearning": ("#33A02C", "o"),
    "diloco": ("#B15928", "s"),
    "streamingdiloco": ("#B15928", "D"),
    "noloco": ("#A6761D", "X"),
    "gasloc": ("#666699", "p"),
    "sparseloco": ("#E7298A", "P"),
    "demo": ("#B8860B", "^"),
    "dion": ("#4D4D99", "D"),
    "teleportation": ("#02818A", "d"),
    "desloc": ("#8C510A", "v"),
    "sparta": ("#4D9221", "H"),
    "spartadiloco": ("#4D9221", "s"),
    "gtnsgdm": ("#7B3294", "8"),
}
_ALIASES = {
    "relaymean": "relaysgd",
    "relaysum": "relaysgd",
    "relay": "relaysgd",
    "gossip": "dpsgd",
    "gossipaveraging": "dpsgd",
    "dsgd": "dpsgd",
    "dpsgdquasiglobal": "qgdpsgd",
    "quasiglobaldpsgd": "qgdpsgd",
    "dpsgdquasiglobalmomentum": "qgdpsgd",
    "quasiglobalmomentum": "qgdpsgd",
    "stochasticgradientpush": "sgp",
    "gt": "gradienttracking",
    "wagmasgd": "wagma",
    "centralized": "allreduce",
}
_FURTHER = ("#332288", "#882255", "#117733", "#661100", "#44AA99", "#AA4499", "#999933", "#6699CC")
_FURTHER_MARKERS = ("h", "8", "*", "d", "H", ">", "<", "P")
_DASHES = ("-", "--", "-.", ":")
_TOPOLOGIES = {"bt": "--", "binarytree": "--", "dbt": "-.", "doublebinarytrees": "-.", "star": ":"}
_BESIDE_RING = (0, (6, 1.5, 1, 1.5, 1, 1.5))
"""The dashes of chains where there are rings, too."""
_OF_ONE_ALGORITHM = {
    "chain": ("#332288", "s"),
    "bt": ("#117733", "^"),
    "binarytree": ("#117733", "^"),
    "star": ("#AA4499", "D"),
    "ring": ("#6699CC", "v"),
}
"""Color and marker of topologies in plots of one algorithm; otherwise the algorithm determines them."""
_MOST_SHADES = 250
_MARKERS = "osD^v<>pXP*hHd8"
_TOPOLOGY_WORDS = {
    "base_graph": "base graph",
    "bt": "binary tree",
    "dbt": "double binary trees",
    "complete": "fully connected",
    "inner_outer_exponential": "inner-outer exponential",
    "inner_outer_ring": "inner-outer ring",
    "one_peer": "one-peer",
    "one_peer_exponential": "one-peer exponential",
    "social": "social network",
    "spanning_tree": "spanning tree",
    "symmetric_exponential": "symmetric exponential",
}
_SYMBOLS = {"alpha": "\N{GREEK SMALL LETTER ALPHA}", "zeta2": "ζ²", "lr": "learning rate", "drop": "message loss"}
_PHRASES = {
    "num_workers": "{} workers",
    "workers": "{} workers",
    "megabytes": "{} MB",
    "after_steps": "after {} steps",
    "after_rounds": "after {} rounds",
    "steps": "{} steps",
    "slowdown": "{} times slower",
}
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
_VARIANT = re.compile(r"\s*(?:[,+(]|\bwith\b)")
"""What follows the algorithm in a display name: 'RelaySGD + momentum', 'D-PSGD, own model'."""
_ORDERED = ("#440154", "#3B528B", "#21918C", "#5DC863", "#C9B400")
_BEYOND = ("#E07B00", "#A50026")
"""Where a scale of more than five goes on."""


def looks(methods: Sequence[str], topologies: Sequence[str] = (), lines: Sequence[Any] = ()) -> list[Look]:
    """Return a look for each line, given its method and (as long, or empty) its topology and all that it is.

    Each line has its own color and, of up to 15 lines, its own marker. Methods that are not known get further colors,
    by their name. A method that is not known and has no topology, where others have one, is a reference. Where all
    lines are of one algorithm, its topologies have colors of their own; where all are on one topology, lines are solid.
    """
    canonical = [_canonical(method) for method in methods]
    further = _places(sorted({name for name, _ in canonical if name not in _ALGORITHMS}))
    different = {_squeeze(topology) for topology in topologies if topology}
    # a method that is not known, on no topology, where others are on one
    references = [
        name not in _ALGORITHMS and bool(topologies) and not topologies[number]
        for number, (name, _) in enumerate(canonical)
    ]
    runs = {name for (name, _), reference in zip(canonical, references, strict=True) if not reference}
    alone = len(runs) == 1 and len(different) > 1
    found: list[Look] = []
    owners: dict[tuple[Any, ...], str] = {}
    shapes: dict[str, tuple[str, str]] = {}
    usual_markers = [_ALGORITHMS[name][1] for name, _ in canonical if name in _ALGORITHMS]
    spare = sorted(_MARKERS, key=usual_markers.count)  # those of other lines last
    for number, (name, variant) in enumerate(canonical):
        topology = _squeeze(topologies[number]) if topologies else ""
        if references[number]:
            found.append(REFERENCE)
            continue
        color, marker = _ALGORITHMS.get(name) or (_FURTHER[further[name]], _FURTHER_MARKERS[further[name]])
        if alone:
            color, marker = _OF_ONE_ALGORITHM.get(topology, (color, marker))
        usual: Any = _TOPOLOGIES.get(topology, "-") if len(different) > 1 else "-"
        if topology == "chain" and "ring" in different:
            usual = _BESIDE_RING
        owner = f"{methods[number]}|{topology}|{lines[number] if lines else ''}"
        # variants of an algorithm, or ring and chain, differ in their dashes
        free = (dash for dash in (usual, *_DASHES) if owners.get((color, dash, variant), owner) == owner)
        line = next(free, usual)
        owners[color, line, variant] = owner
        if owner not in shapes:
            colors, markers = zip(*shapes.values(), strict=True) if shapes else ((), ())
            shade = next((one for one in _shades(color) if one not in colors), color)
            shapes[owner] = shade, next((one for one in (marker, *spare) if one not in markers), marker)
        found.append(Look(*shapes[owner], line, variant))
    return found


def _shades(color: str) -> Iterator[str]:
    """Yield a color, then darker and lighter ones in turn."""
    yield color
    light = "#B0C4FF" if color == BLACK else "#FFFFFF"  # a light black is blue: gray lines have no name
    for number in range(1, _MOST_SHADES):
        for end in (BLACK, light):
            yield mixed((color, end), 0.75 * ((0.15 + 0.382 * number) % 1))  # 0.4, 0.69, 0.22, 0.51, ...


def ordered_looks(count: int) -> list[Look]:
    """Looks for lines that are told apart by something else than a method, no two of one color: from dark to light;
    more than five go on to red."""
    last, few = max(count - 1, 1), count <= len(_ORDERED)
    scale = _ORDERED if few else (*_ORDERED, *_BEYOND)
    places = [number * (len(scale) - 1) / last for number in range(count)]
    return [
        Look(
            mixed(scale, round(place) if few else place),
            _MARKERS[number % len(_MARKERS)],
            ("-", "--", "-.", ":")[number // len(_ORDERED) % 4],
        )
        for number, place in enumerate(places)
    ]


def mixed(scale: Sequence[str], place: float) -> str:
    """The color at a place of a scale: between two of its colors, their mixture."""
    first = min(int(place), len(scale) - 2)
    one, other = (bytes.fromhex(color[1:]) for color in scale[first : first + 2])
    mixture = bytes(round(low + (place - first) * (high - low)) for low, high in zip(one, other, strict=True))
    return f"#{mixture.hex().upper()}"


def settings(salt: str, small: bool = False) -> AbstractContextManager[None]:
    """Return matplotlib's settings for a figure, those of figures.mplstyle; `small` adds those of print.mplstyle.

    The same figure gives the same bytes with the same `salt`.
    """
    import matplotlib

    known: Any = {"svg.hashsalt": salt}
    for name in ["figures", "print"][: 1 + small]:
        file = Path(__file__).with_name(f"{name}.mplstyle")
        known = {**known, **matplotlib.rc_params_from_file(file, use_default_template=False)}
    return matplotlib.rc_context(known)


def size(key: str) -> float:
    """Return a size in points of the figure that is drawn, by its key in figures.mplstyle."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    return float(FontProperties(size=rcParams[key]).get_size_in_points())  # type: ignore[index]


def width(text: str, key: str) -> float:
    """Return the inches of a text's longest line, at a size by its key in figures.mplstyle."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size(key))
    return max(text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")) / 72


def fitted(text: str, inches: float, key: str) -> str:
    """Return the text broken into lines of at most this width, see `width`."""
    lines, most = text, 1 + int(len(text) * inches / max(inches, width(text, key)))
    while most > 1 and width(lines, key) > inches:
        most -= 1
        lines = textwrap.fill(text.replace(" = ", "\xa0=\xa0"), most, break_on_hyphens=False).replace("\xa0", " ")
    return lines


def plain(figure: Figure) -> Figure:
    """The figure with its texts as they are written: in names that people have chosen, $ begins no formula."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    axes = [axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    numbers = [axis for axis in axes if not isinstance(axis.get_major_formatter(), FixedFormatter)]
    kept = {text for axis in numbers for text in axis.findobj(Text)} - {axis.label for axis in axes}
    for text in set(figure.findobj(Text)) - kept:
        text.set_parse_math(False)  # type: ignore[attr-defined]
    return figure


def png(figure: Figure, dpi: float, quick: bool = False) -> bytes:
    """Return the figure as a PNG of at most 96 colors, a quarter of the size. Areas of one color keep theirs.

    With `quick` that takes a seventh of the time, and the colors of edges are rounded more.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    smaller, canvas = io.BytesIO(), FigureCanvasAgg(figure)
    figure.set_dpi(dpi)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    method = Image.Quantize.FASTOCTREE if quick else Image.Quantize.MEDIANCUT
    few = picture.quantize(96, method, dither=Image.Dither.NONE)
    few.save(smaller, format="png", optimize=not quick, dpi=(dpi, dpi))
    return smaller.getvalue()


def tidy(panel: Axes, labels: float = 8) -> None:
    """A light grid, no frame above and to the right."""
    panel.grid(alpha=0.25, lw=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=labels)


def pretty(label: str, value: str) -> str:
    """A label's value as the head of a panel or in a legend: '16 workers', 'lr = 0.1', 'double binary trees'."""
    if value == ABSENT:
        return f"without {heading(label)}"
    if value in ("True", "False"):
        return f"{heading(label)}: {'yes' if value == 'True' else 'no'}"
    try:
        float(value)
    except ValueError:
        return _TOPOLOGY_WORDS.get(value, value) if label == "topology" else value
    return _PHRASES.get(label, heading(label) + " = {}").format(value)


def byte_unit(value: float) -> tuple[float, str]:
    """Return the size and the name of the unit of a number of bytes: 10^9 and GB."""
    return next((one for one in _BYTES if value >= one[0]), _BYTES[-1])


def amount(value: float, axis: str) -> str:
    """A place on an axis of the metrics with its unit.

    >>> amount(1410, "simulated_s"), amount(18.2e9, "bytes_sent"), amount(1.16, "epoch")
    ('1,410 s', '18.2 GB', '1.16 epochs')
    """
    unit = {"bytes_sent": "bytes", "simulated_s": "s", "wall_s": "s", "tokens": "tokens"}.get(axis, f"{axis}s")
    if axis == "bytes_sent" and value >= 1e3:
        size, unit = byte_unit(value)
        value /= size
    return f"{value:,.0f} {unit}" if value >= 1e3 else f"{value:.3g} {unit}"


def quantity(metric: str) -> str:
    """Return a metric as the label of an axis.

    >>> quantity("simulated_s to test accuracy 90 %"), quantity("test accuracy (%)")
    ('simulated time to test accuracy 90 % (s)', 'test accuracy (%)')
    """
    axis, _, reached = metric.partition(" to ")
    name, paren, unit = AXES.get(axis, axis).partition(" (")
    return f"{name} to {reached}{paren}{unit}" if reached and axis in AXES else metric


def heading(label: str) -> str:
    """A label as the head of a column; a setting of a group, such as optim.clip_norm, as it is named."""
    words = label if "." in label else label.replace("_", " ")
    return "workers" if label == "num_workers" else _SYMBOLS.get(label, words)


def _canonical(method: str) -> tuple[str, bool]:
    """The algorithm in a display name, and whether it is a variant: 'RelaySGD + momentum' is ('relaysgd', True)."""
    whole, first = (_squeeze(text) for text in (method, _VARIANT.split(method)[0]))
    for name, variant in ((whole, False), (first, True)):
        if (known := _ALIASES.get(name, name)) in _ALGORITHMS:
            return known, variant
    return whole, False


def _squeeze(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower().replace("²", "2"))


def _places(names: list[str]) -> dict[str, int]:
    """A place among the further colors for each name, by its hash, the next free one if it is taken."""
    taken: dict[str, int] = {}
    for name in names:
        first = zlib.crc32(name.encode())
        places = [(first + step) % len(_FURTHER) for step in range(len(_FURTHER))]
        taken[name] = next((place for place in places if place not in taken.values()), places[0])
    return taken
