"""Certificates of a method: its facts, a table over learning rates, and their figure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize_scalar

from decentral.algorithms.features import Feature
from decentral.availability.availability import AlwaysPresent
from decentral.compression.dense import NoCompression
from decentral.config.composition import compose
from decentral.config.parsing import build
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.measurements.values import Value
from decentral.plugins.certificates.quadratics import STABLE, Piece, hardest, noise_ratio
from decentral.plugins.certificates.trace import TOLERANCE, Method, NotLinear, Tracer
from decentral.plugins.certificates.worst_case import traced, worst_case
from decentral.registry.typed import typed
from decentral.report.make import make
from decentral.script.training import made_of, taken_out
from decentral.settings import Settings, setting
from decentral.store.files import at_home, make_folder, write_json, write_text
from decentral.study.collect import write_values
from decentral.topology.static import Complete

if TYPE_CHECKING:
    from pandas import DataFrame

_RATES = 24
_EACH = 4
"""A terminal shows each fourth of them."""


@dataclass
class Terms(Settings, where="certify"):
    """The functions and learning rates that a certificate is about.

    mu      strong convexity of every worker's function
    L       smoothness of every worker's function
    lr      learning rates; none: 24 below the largest stable one, and the fastest
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


class Certifier:
    """Certifies one method on one graph, at any learning rate.

    Raises NotLinear, with the reason, for a method that has no certificate.
    """

    def __init__(self, method: Method, lr: float) -> None:
        self.method, self.tracer = method, Tracer(method, lr)
        self.states, moved = self.tracer.begun(lr, self.tracer.phases(lr))
        pieces = self.at(lr)
        errors = np.max([piece.errors() for piece in pieces], axis=0).tolist()
        counts, settles = zip(*(piece.counts() for piece in pieces), strict=True)
        counted = np.concatenate(counts)
        self.count = _same(counted[:, -method.period * method.n :])
        """The effective rate factor c: the total weight of each gradient after the warm-up in the models."""
        self.facts = {
            "mean": errors[0],
            "common": max(errors[1], moved),
            "heterogeneous": errors[2],
            "counted": _same(counted),
            "lowest": float(counted.min()),
            "highest": float(counted.max()),
            "settles": all(settles),
        }
        """What holds for all functions, for the worst piece of the model: see `facts_text` and `Piece.errors`."""

    def at(self, lr: float) -> list[Piece]:
        """Return the pieces at this learning rate."""
        phases = self.tracer.phases(lr)
        each = ([(A, B, C[piece], M[piece]) for A, B, C, M in phases] for piece in range(self.tracer.d))
        return [Piece.of(piece, self.states, lr) for piece in each]

    def row(self, lr: float, terms: Terms) -> dict[str, float]:
        """Return the certificate at this learning rate: see the columns of `certify`."""
        pieces = self.at(lr)
        worst, rate = hardest(pieces, terms.mu, terms.L)
        row = {"lr": lr, "rate": rate, "bias": math.nan, "noise_worker": math.nan, "noise_mean": math.nan}
        if rate < STABLE:
            n, is_exact = self.method.n, self.facts["heterogeneous"] <= TOLERANCE
            ends = np.full(n, terms.mu), np.full(n, terms.L)
            if self.facts["common"] <= TOLERANCE:
                tried = *ends, np.where(np.arange(n) % 2, terms.L, terms.mu), worst
                row["bias"] = 0.0 if is_exact else max(piece.worst_bias(h) for piece in pieces for h in tried)
            noises = [noise_ratio(piece, h, self.count) for piece in pieces for h in ends]
            row["noise_worker"], row["noise_mean"] = map(max, zip(*noises, strict=True))
        if terms.steps is not None:
            row |= worst_case(self.method, lr, terms.steps, terms.mu, terms.L, 1.0, terms.zeta2)
        return row

    def largest_stable(self, terms: Terms) -> float:
        """Return the largest learning rate up to which the rate is below 1 for all curvatures in {mu, L}^n found, to a
        relative precision of 1e-5; 0 if there is none."""
        tried = [np.full(self.method.n, terms.L)]
        unstable = lambda lr: any(piece.rate(h) >= STABLE for piece in self.at(lr) for h in tried)  # noqa: E731
        rates = np.geomspace(1e-6, 1e3, 2_072_328) / terms.L  # neighbors differ by 1e-5
        for lr in 2.0 ** np.arange(10) / terms.L:  # also at 1 / L, where some methods are marginally stable
            rates = rates[rates < lr] if unstable(lr) else rates
        while rates.size and unstable(rates[-1]):
            rates = rates[: bisect_left(rates, True, key=unstable)]
            tried += [hardest(self.at(lr), terms.mu, terms.L)[0] for lr in rates[-1:]]
        return float(rates[-1]) if rates.size else 0.0


def _same(counts: np.ndarray) -> float:
    """Return the common value; not a number if there is none."""
    return float(counts.mean()) if np.ptp(counts) <= 1e-7 * np.abs(counts).max() else math.nan


def table_of(certifier: Certifier, terms: Terms, say: Callable[[str], None] = lambda text: None) -> DataFrame:
    """Return a frame with the certificate at each learning rate asked for; or at 24 below the largest stable one, and
    at the fastest. `frame.attrs` has the facts and the largest stable learning rate; `say` receives progress."""
    from pandas import DataFrame

    if terms.steps is not None:
        traced(certifier.method, terms.first, terms.steps)
    say(f"searching for the largest stable learning rate of algo={certifier.method.algorithm.name}")
    largest = certifier.largest_stable(terms)
    certifier.method.refuse(not terms.lr and not largest, "is stable at no learning rate")
    rates, rows = terms.lr or np.geomspace(largest / 100, largest, _RATES + 1)[:-1].tolist(), list[dict[str, float]]()
    for number, lr in enumerate(rates):
        if not number % _EACH:
            say(f"learning rate {number + 1} of {len(rates)}")
        rows.append(certifier.row(lr, terms))
    if not terms.lr:
        say("searching for the fastest learning rate")
        fastest = min(range(_RATES), key=lambda i: rows[i]["rate"])
        ends = rates[max(0, fastest - 1)], [*rates, largest][fastest + 1]
        best = minimize_scalar(
            lambda lr: hardest(certifier.at(lr), terms.mu, terms.L)[1], bounds=ends, method="bounded"
        )
        rows.append(certifier.row(float(best.x), terms))
    table = DataFrame(rows).dropna(axis="columns", how="all").sort_values("lr", ignore_index=True)
    table.attrs |= {"facts": certifier.facts, "largest_stable": largest}
    return table


def method_of(config: Config) -> Method:
    """Return the method of a configuration. Raises NotLinear for settings that make it random or not linear."""
    refused = {
        f"network.drop_probability={config.network.drop_probability:g}": config.network.drop_probability > 0,
        f"availability={config.availability.name}": not isinstance(config.availability, AlwaysPresent),
        f"robust={config.robust.name}": config.robust.name != "none",
        f"attack={config.attack.name}": config.attack.name != "none",
        f"schedule={config.schedule.name}": config.schedule.name != "constant",
        f"compress={config.compress.name} is not linear: certify algo={config.algo.name} compress=none": (
            not isinstance(config.compress, NoCompression)
        ),
        "lr_per_worker": config.lr_per_worker is not None,
        "steps_per_worker": config.steps_per_worker is not None,
    }
    for words in (words for words, is_given in refused.items() if is_given):
        raise NotLinear(f"{words if ':' in words else f'{words} has no certificate: leave it out'}.")
    rounds, uses_topology = config.rounds(), Feature.topology in config.algo.supports
    return Method(config.algo, config.optim, rounds if uses_topology else Complete().schedule(rounds.num_workers))


# -- what users see ----------------------------------------------------------------------------------------------------


def facts_text(facts: Mapping[str, float]) -> str:
    """Return the facts in words."""
    moved, counted, common = facts["mean"], f"yes, with weight {facts['counted']:.6g}", facts["common"]
    if not facts["settles"]:
        counted = "does not settle: a mode without gradients never decays"
    elif math.isnan(facts["counted"]):
        counted = f"no, with weights from {facts['lowest']:.4g} to {facts['highest']:.4g}"
    answers = {
        "the mean of the models moves by the mean of the updates": (
            "exactly"
            if moved <= TOLERANCE
            else f"no, off by up to {moved:.3g} of a gradient (as with momentum and other memory)"
        ),
        "all gradients have the same total weight": counted,
        "a common optimum is a fixed point": "yes" if common <= TOLERANCE else f"no, moves by {common:.3g}",
        "the optimum of heterogeneous workers is a fixed point": "yes" if facts["heterogeneous"] <= TOLERANCE else "no",
    }
    return "\n".join(f"{name:<58}{words}" for name, words in answers.items())


def text(terms: Terms, table: DataFrame) -> str:
    """Return the table, of many learning rates some, with sentences that answer how it ends, how fast and how bad."""
    title = f"mu = {terms.mu:g}, L = {terms.L:g}, zeta^2 = {terms.zeta2:g}, K = {terms.steps}"
    shown, largest = table if terms.lr else table[::_EACH], table.attrs["largest_stable"]
    sentences = [
        title.removesuffix(", K = None"),
        shown.to_string(index=False, float_format=lambda value: f"{value:.5g}", na_rep="-"),
        f"Largest stable learning rate: {f'{largest:.4g}' if largest else 'none'}.",
    ]
    stable = table[table.rate < STABLE]
    if len(stable):
        sentences.append(
            f"Smallest rate: {stable.rate.min():.5f} per step, at lr={stable.lr[stable.rate.idxmin()]:.4g}."
        )
    if "bias" in table:
        nearest = stable.loc[stable.bias.idxmin()]
        away = f"{nearest.bias:.3g} zeta away from the optimum at lr={nearest.lr:.4g}, elsewhere further"
        end = away if stable.bias.max() else "at the optimum, also with heterogeneity"
        sentences.append(f"On quadratics, the workers end {end}.")
    if "upper" in table:
        best = table.loc[table.upper.idxmin()]
        sentences.append(
            f"After {terms.steps} steps, lr={best.lr:.4g} has the smallest bound on the worst error: {best.upper:.4g}."
        )
    return "\n".join(sentences)


_METRICS = {
    "rate": "1 - rate per step",
    "bias": "distance from the optimum / zeta",
    "noise_worker": "variance of a worker / all-reduce",
    "noise_mean": "variance of the mean / all-reduce",
    "upper": "certified worst error",
}


def draw_certificates(
    tables: Mapping[str, DataFrame], folder: str | Path, *, title: str = "Certificates of linear methods"
) -> Path:
    """Draw certificates over the learning rate, a panel for each number and a line for each method; return the figure.

    >>> tables = {name: decentral.certify(name, num_workers=8) for name in ("dpsgd", "d2")}  # doctest: +SKIP
    >>> decentral.draw_certificates(tables, "certificates")  # doctest: +SKIP

    Args:
        tables: What `certify` returns, by the method's name.
        folder: Where certificates.png goes, the tables (certificates.csv), and what `decentral-report FOLDER` reads.
        title: Title of the figure.
    """
    from pandas import concat

    values = [
        {**Value({}, row[key], words, 0)._asdict(), "method": method, "lr": row["lr"], "rate": row["lr"]}
        for key, words in _METRICS.items()
        for method, table in tables.items()
        for row in table.assign(rate=1 - table.rate).to_dict("records")
        if 0 <= row.get(key, math.nan) < math.inf
    ]
    directory, figure = at_home(folder), {"name": "certificates", "kind": "scaling", "panels": "metric", "x": "lr"}
    make_folder(directory, above=2)
    write_text(directory / "certificates.csv", concat(tables, names=["method"]).droplevel(1).to_csv())
    write_values(directory, ["method", "lr"], values)
    report = {"repeats": "", "figures": [figure | {"lines": ["method"], "logx": True, "logy": True}]}
    write_json(
        directory / "study.json",
        {"study": directory.name, "title": title, "labels": ["method", "lr"], "report": report},
    )
    return make(directory, alone=False).figures[0]


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
    """Return what a method guarantees, with a row for each learning rate.

    Columns:

    - rate: rho, the largest over curvatures in {mu, L}^n found; distances contract by rho per step.
    - bias: the largest root mean square distance of the workers from the optimum, per unit of heterogeneity zeta, over
      four curvatures: all mu, all L, alternating, and those of `rate`.
    - noise_worker, noise_mean: variance of a worker's model, and of the mean of the models, by gradient noise, divided
      by that of all-reduce at the same effective rate.
    - lower, upper: bounds on the worst error E_K after K steps.
    - tau_R, tau_z: E_K <= tau_R ||x^0 - x*||^2 + tau_z zeta^2 for all mu-strongly convex, L-smooth functions.

    `frame.attrs["largest_stable"]` is the largest stable learning rate, and `frame.attrs["facts"]` has what holds for
    all functions: by how much the mean moves otherwise than by the mean of the updates, a common optimum and the
    optimum of heterogeneous workers are no fixed points; and the total weight of gradients.

    >>> import decentral
    >>> table = decentral.certify("dpsgd", "ring", num_workers=8, lr=0.1, steps=3)
    >>> bool(table.lower[0] <= table.upper[0])
    True

    Args:
        algo, topology, optim, every, algo_settings, topology_settings, optim_settings: As for `decentral.iterates`.
        num_workers: Number of workers; None: that of the topology, or the default of `decentral-run`.
        lr: Learning rates; None: 24 below the largest stable one, and the fastest.
        mu, L: Every worker's function is mu-strongly convex and L-smooth.
        steps: K of the worst case over all functions with ||x^0 - x*||^2 <= 1; None: none.
        zeta2: Heterogeneity zeta^2 = 1/n sum_i ||grad f_i(x*)||^2 of the worst case.

    Raises:
        NotLinear: for a method that has no certificate, a ConfigError.
    """
    choices = {
        "algo": {"name": algo, **(algo_settings or {})},
        "topology": {"name": topology, **(topology_settings or {})},
        "optim": {"name": optim, **(optim_settings or {})},
        "communication": {"every": every},
        "num_workers": num_workers,
    }
    objects, words = taken_out({"task": "quadratics", "compress": "none", **choices})
    made, words = made_of(objects, words, None)
    rates = [] if lr is None else np.atleast_1d(lr).tolist()
    terms = build(Terms, {"mu": mu, "L": L, "lr": rates, "steps": steps, "zeta2": zeta2}, "certify")
    return table_of(Certifier(method_of(compose(words, None, made)), terms.first), terms)
