"""Certificates of a method: its facts, a table over learning rates, and their figure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from decentral.availability.availability import AlwaysPresent
from decentral.compression.dense import NoCompression
from decentral.config.parsing import build
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.optim.optimizer import Optimizer
from decentral.plugins.certificates.quadratics import STABLE, Piece, curvatures, noise_ratio
from decentral.plugins.certificates.trace import TOLERANCE, Method, NotLinear, Tracer
from decentral.plugins.certificates.worst_case import Bound, worst_case
from decentral.registry.typed import typed
from decentral.report import style
from decentral.script.components import algorithm_from, check_setup, chosen
from decentral.settings import Settings, setting
from decentral.store.files import encode, write_bytes, write_text
from decentral.topology.communication import Communication
from decentral.topology.topology import Topology

if TYPE_CHECKING:
    from pandas import DataFrame

_ROUNDING = 1e-9
_RATES = 24
_FINEST = 1e-4
"""Relative precision of the largest stable learning rate."""


@dataclass
class Terms(Settings, where="certify"):
    """The functions and learning rates that a certificate is about.

    mu      strong convexity of every worker's function
    L       smoothness of every worker's function
    lr      learning rates; none: 24 around 1 / L, up to the largest stable one
    steps   K of the worst case over all functions, ||x^0 - x*||^2 <= 1; null: none
    zeta2   heterogeneity zeta^2 of the worst case
    """

    mu: float = setting(0.1, above=0)
    L: float = setting(1.0, above=0)
    lr: list[float] = setting([], above=0)
    steps: int | None = setting(None, at_least=1, at_most=60)
    zeta2: float = setting(1.0, at_least=0)

    def __post_init__(self) -> None:
        if self.mu >= self.L:
            raise ConfigError(f"certify.mu={self.mu:g} is not below certify.L={self.L:g}: use a smaller mu.")

    @property
    def first(self) -> float:
        """Return the learning rate at which the method is tested."""
        return self.lr[0] if self.lr else 0.1 / self.L


class Row(NamedTuple):
    """The certificate at one learning rate."""

    lr: float
    rate: float
    """rho, the largest over curvatures in {mu, L}^n found: distances contract by rho per step."""
    bias: float
    """Largest root mean square distance of the workers from the optimum, per unit of heterogeneity zeta, over four
    curvatures: all mu, all L, alternating, and those of `rate`."""
    noise_worker: float
    """Variance of a worker's model by gradient noise, divided by all-reduce's at the same effective rate."""
    noise_mean: float
    """The same for the mean of the models."""
    lower: float = math.nan
    upper: float = math.nan
    """Bounds on the worst error E_K after K steps."""
    tau_R: float = math.nan
    tau_z: float = math.nan
    """E_K <= tau_R ||x^0 - x*||^2 + tau_z zeta^2 for all mu-strongly convex, L-smooth functions."""


class Facts(NamedTuple):
    """What holds for all functions, of the worst piece of the model."""

    mean: float
    common: float
    heterogeneous: float
    counted: float
    lowest: float
    highest: float
    settles: bool

    def __str__(self) -> str:
        holds = lambda error: error <= TOLERANCE  # noqa: E731
        times = f"yes, {self.counted:.6g} times"
        if not self.settles:
            times = "does not settle: a mode without gradients never decays"
        elif math.isnan(self.counted):
            times = f"no, {self.lowest:.4g} to {self.highest:.4g} times"
        moved = "exactly" if holds(self.mean) else f"no, off by up to {self.mean:.3g} of a gradient"
        lines = [
            ("the mean of the models moves by the mean of the updates", moved),
            ("every gradient finally counts the same", times),
            ("a common optimum is a fixed point", "yes" if holds(self.common) else f"no, moves by {self.common:.3g}"),
            ("the optimum of heterogeneous workers is a fixed point", "yes" if holds(self.heterogeneous) else "no"),
        ]
        return "\n".join(f"{name:<58}{words}" for name, words in lines)


class Certifier:
    """Certifies one method on one graph, at any learning rate.

    Raises NotLinear, with the reason, for a method that has no certificate.
    """

    def __init__(self, method: Method, lr: float) -> None:
        self.method, self.tracer = method, Tracer(method, lr)
        phases = self.tracer.tested(lr)
        self.start, impulses, moved = self.tracer.begun(lr)
        each = zip(phases, self.start, impulses, strict=True)
        self.pieces = [Piece.of(matrices, start, lr, effects) for matrices, start, effects in each]
        steady = [piece.count for piece in self.pieces]
        counts = np.concatenate([piece.counts.ravel() for piece in self.pieces])
        self.count = steady[0] if np.ptp(steady) <= TOLERANCE else math.nan
        self.facts = Facts(
            max(piece.mean_error for piece in self.pieces),
            max(moved, *(piece.common_error for piece in self.pieces)),
            max(piece.heterogeneous_error for piece in self.pieces),
            self.count if np.ptp(counts) <= 1e-7 * np.abs(counts).max() else math.nan,
            float(counts.min()),
            float(counts.max()),
            all(piece.settles for piece in self.pieces),
        )

    def at(self, lr: float) -> list[Piece]:
        """Return the pieces at this learning rate."""
        return [Piece.of(phases, s, lr) for phases, s in zip(self.tracer.phases(lr), self.start, strict=True)]

    def hardest(self, lr: float, terms: Terms) -> tuple[list[Piece], np.ndarray, float]:
        """Return the pieces, the curvatures in {mu, L}^n with the largest rate found, and that rate."""
        pieces = self.at(lr)
        worst = curvatures(pieces, terms.mu, terms.L)
        return pieces, worst, max(piece.rate(worst) for piece in pieces)

    def row(self, lr: float, terms: Terms, say: Callable[[str], None] = lambda text: None) -> Row:
        """Return the certificate at this learning rate."""
        pieces, worst, rate = self.hardest(lr, terms)
        say(f"lr={lr:.4g}: rate {rate:.5f}")
        n, bias, noise = self.method.n, math.nan, (math.nan, math.nan)
        if rate < STABLE:
            ends = [np.full(n, terms.mu), np.full(n, terms.L)]
            uneven = np.where(np.arange(n) % 2, terms.L, terms.mu)
            if self.facts.common <= TOLERANCE:
                bias = max(piece.worst_bias(h) for piece in pieces for h in (*ends, uneven, worst))
            noises = [noise_ratio(piece, h, self.count) for piece in pieces for h in ends]
            noise = max(worker for worker, _ in noises), max(mean for _, mean in noises)
        row = Row(lr, rate, bias, *noise)
        if terms.steps is None:
            return row
        bound = worst_case(self.method, lr, terms.steps, terms.mu, terms.L, 1.0, terms.zeta2)
        say(f"lr={lr:.4g}: error after {terms.steps} steps at most {_bracket(bound)}")
        return row._replace(lower=bound.lower, upper=bound.upper, tau_R=bound.tau_R, tau_z=bound.tau_z)

    def largest_stable(self, terms: Terms) -> float:
        """Return the largest learning rate up to which the rate is below 1 for all curvatures in {mu, L}^n found."""
        stable = lambda lr, h: all(piece.rate(h) < STABLE for piece in self.at(lr))  # noqa: E731
        low, high = 0.0, 1.0 / terms.L
        hardest = [np.full(self.method.n, terms.L), np.where(np.arange(self.method.n) % 2, terms.L, terms.mu)]
        while all(stable(high, h) for h in hardest) and high < 1e3 / terms.L:
            low, high = high, 2 * high
        while True:
            while high - low > _FINEST * high:
                middle = (low + high) / 2
                low, high = (middle, high) if all(stable(middle, h) for h in hardest) else (low, middle)
            worst = curvatures(self.at(low), terms.mu, terms.L)
            if low == 0 or stable(low, worst):
                return low
            hardest.append(worst)
            low, high = 0.0, low


def _bracket(bound: Bound) -> str:
    if math.isnan(bound.upper):
        return f"(no certificate: rounding left no bound), at least {bound.lower:.5g} in the worst case"
    return f"{bound.upper:.5g}, and at least {bound.lower:.5g} in the worst case"


def rows(certifier: Certifier, terms: Terms, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Return the certificate at each learning rate asked for; or at 24 up to the largest stable one, and at the
    fastest. `say` receives progress."""
    if terms.lr:
        return [certifier.row(lr, terms, say) for lr in terms.lr]
    say("searching for the largest stable learning rate")
    largest = certifier.largest_stable(terms)
    if not largest:
        raise NotLinear(f"algo={certifier.method.algorithm.name} is stable at no learning rate.")
    certified = [certifier.row(float(lr), terms, say) for lr in np.geomspace(largest / 100, largest, _RATES)]
    fastest = min(range(_RATES), key=lambda i: certified[i].rate)
    ends = certified[max(0, fastest - 1)].lr, certified[min(fastest + 1, _RATES - 1)].lr
    say("searching for the fastest learning rate")
    best = minimize_scalar(lambda lr: certifier.hardest(lr, terms)[2], bounds=ends, method="bounded").x
    return [*certified, certifier.row(float(best), terms, say)]


def method_of(config: Config) -> Method:
    """Return the method of a configuration. Raises NotLinear for settings that make it random or not linear."""
    name = config.algo.name
    if not isinstance(config.compress, NoCompression):
        raise NotLinear(
            f"compress={config.compress.name} is not linear and has no certificate: certify algo={name} compress=none."
        )
    refused = {
        f"network.drop_probability={config.network.drop_probability:g}": config.network.drop_probability > 0,
        f"availability={config.availability.name}": not isinstance(config.availability, AlwaysPresent),
        f"robust={config.robust.name}": config.robust.name != "none",
        f"attack={config.attack.name}": config.attack.name != "none",
        f"schedule={config.schedule.name}": config.schedule.name != "constant",
        "lr_per_worker": config.lr_per_worker is not None,
        "steps_per_worker": config.steps_per_worker is not None,
    }
    for setting_, is_given in refused.items():
        if is_given:
            raise NotLinear(f"{setting_} has no certificate: leave it out.")
    return Method(config.algo, config.optim, config.rounds())


# -- what users see ----------------------------------------------------------------------------------------------------


def frame(certified: Sequence[Row]) -> DataFrame:
    """Return the certificates as a frame with a row for each learning rate."""
    from pandas import DataFrame

    return DataFrame(certified).dropna(axis="columns", how="all").sort_values("lr", ignore_index=True)


def text(terms: Terms, certified: Sequence[Row]) -> str:
    """Return the certificates as a table, with sentences that answer how it ends, how fast and how bad."""
    table = frame(certified)
    title = f"mu = {terms.mu:g}, L = {terms.L:g}, zeta^2 = {terms.zeta2:g}"
    title += "" if terms.steps is None else f", K = {terms.steps}"
    sentences = [title, table.to_string(index=False, float_format=lambda value: f"{value:.5g}", na_rep="-")]
    stable = table[table.rate < STABLE]
    if not terms.lr:
        sentences.append(f"Largest stable learning rate: {table.lr.max():.4g}.")
    if len(stable) > 1:
        fastest = stable.lr[stable.rate.idxmin()]
        sentences.append(f"Smallest rate: {stable.rate.min():.5f} per step, at lr={fastest:.4g}.")
    if len(stable) and "bias" in stable and stable.bias.notna().any():
        nearest = stable.loc[stable.bias.idxmin()]
        ends = f"up to {nearest.bias:.3g} zeta from the optimum at lr={nearest.lr:.4g}"
        ends += ", and more at the other rates" if len(stable) > 1 else ""
        ends = "at the optimum, also with heterogeneity" if stable.bias.max() <= TOLERANCE else ends
        sentences.append(f"On quadratics, the workers end {ends}.")
    if terms.steps is not None and "upper" in table:
        best = table.loc[table.upper.idxmin()]
        sentences.append(
            f"After {terms.steps} steps, the worst error is {best.upper:.4g} at best, at lr={best.lr:.4g}."
        )
    if len(stable) < len(table):
        sentences.append("No bias and noise (-) where the rate shows that the method is unstable.")
    return "\n".join(sentences)


def store(certifier: Certifier, terms: Terms, certified: Sequence[Row], folder: Path, setting: dict[str, Any]) -> Path:
    """Write certificate.csv, certificate.json with the `setting`, and, of several learning rates, certificate.png;
    return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "certificate.csv", frame(certified).to_csv(index=False))
    rows_ = [row._asdict() for row in certified]
    stored = setting | {"terms": vars(terms), "facts": certifier.facts._asdict(), "rows": rows_}
    write_text(folder / "certificate.json", json.dumps(encode(stored), indent=2) + "\n")
    if len(certified) > 1:
        write_bytes(folder / "certificate.png", draw(certifier, certified))
    return folder


_PANELS = (
    ("rate per step", {"rate": "largest over curvatures"}, None),
    ("distance from the optimum / zeta", {"bias": "root mean square over workers"}, 0),
    ("variance / that of all-reduce", {"noise_worker": "a worker's model", "noise_mean": "mean of the models"}, 0),
    ("worst error", {"upper": "certified", "lower": "attained"}, None),
)
"""Label, lines by their column, and the lower end of the axis."""


def draw(certifier: Certifier, certified: Sequence[Row]) -> bytes:
    """Return the figure of rate, bias, noise and worst case over the learning rate, as a PNG."""
    from matplotlib.figure import Figure

    table, name = frame(certified), certifier.method.algorithm.name
    panels = [panel for panel in _PANELS if not table.columns.intersection(panel[1]).empty]
    with style.settings(name):
        figure = Figure(figsize=(3.3 * len(panels), 3.2), layout="constrained")
        figure.suptitle(f"{name}, {certifier.method.n} workers", x=0.01, ha="left", fontweight="bold")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (label, lines, bottom) in zip(axes, panels, strict=True):
            for column, color, dashes in zip(lines, (style.BLUE, style.VERMILLION), ("-", "--"), strict=False):
                if column in table:
                    shown = table[column].where(table[column] > _ROUNDING, 0.0)
                    ax.plot(table.lr, shown, dashes, color=color, label=lines[column])
            ax.set(xscale="log", xlabel="learning rate", ylabel=label)
            ax.legend(frameon=False, fontsize="small")
            ax.set_ylim(bottom=bottom)
        return style.png(figure, 150)


@typed()
def certify(
    algo: object,
    topology: object = "ring",
    *,
    num_workers: int | None = None,
    lr: float | Sequence[float] | None = None,
    mu: float = 0.1,
    L: float = 1.0,
    steps: int | None = None,
    zeta2: float = 1.0,
    optim: object = "sgd",
    every: int = 1,
    algo_settings: dict[str, Any] | None = None,
    topology_settings: dict[str, Any] | None = None,
    optim_settings: dict[str, Any] | None = None,
) -> DataFrame:
    """Return what a method guarantees, with a row for each learning rate (columns: see `Row`).

    `frame.attrs["facts"]` has what holds for all functions (see `Facts`).

    >>> import decentral
    >>> table = decentral.certify("dpsgd", "ring", num_workers=8, lr=0.1, steps=3)
    >>> bool(table.lower[0] <= table.upper[0])
    True

    Args:
        algo, topology, optim, every, algo_settings, topology_settings, optim_settings, num_workers: As for
            `decentral.iterates`.
        lr: Learning rates; None: 24 up to the largest stable one, and the fastest.
        mu, L: Every worker's function is mu-strongly convex and L-smooth.
        steps: K of the worst case over all functions with ||x^0 - x*||^2 <= 1; None: none.
        zeta2: Heterogeneity zeta^2 = 1/n sum_i ||grad f_i(x*)||^2 of the worst case.

    Raises:
        NotLinear: for a method that has no certificate, a ConfigError.
    """
    algorithm = algorithm_from(algo, algo_settings)
    graph: Topology = chosen("topology", topology, dict(topology_settings or {}))
    optimizer: Optimizer = chosen("optim", optim, dict(optim_settings or {}))
    n, communication = num_workers or graph.implied_num_workers(), Communication(every=every)
    if n is None:
        raise ConfigError("num_workers=None does not set the number of workers: give n, or a topology that has one.")
    rounds = communication.schedule(graph, n)
    check_setup(algorithm, NoCompression(), rounds, communication, graph, optimizer)
    rates = [] if lr is None else np.atleast_1d(lr).tolist()
    terms = build(Terms, {"mu": mu, "L": L, "lr": rates, "steps": steps, "zeta2": zeta2}, "certify")
    certifier = Certifier(Method(algorithm, optimizer, rounds), terms.first)
    table = frame(rows(certifier, terms))
    table.attrs["facts"] = certifier.facts._asdict()
    return table
