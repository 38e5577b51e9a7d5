"""The coefficients of a method: its `step` on one-hot gradients and states, and a run that they have to predict.

Notation, for one coordinate of the model: state s_t [S] (the rows of `State`), gradients g_t [n], and

    s_{t+1} = A_t s_t + B_t g_t,    p_t = C_t s_t,    x_t = M_t s_t

with the points p_t [n], where gradients are taken, and the models x_t [n]. A topology that cuts the model into d pieces
has such a system for each piece; s_t then has the rows of all pieces. The matrices repeat with the period of the
method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as trees

from decentral.algorithms.algorithm import Algorithm
from decentral.algorithms.asynchronous import in_rounds
from decentral.algorithms.features import Feature
from decentral.compression.dense import NoCompression
from decentral.compression.rows import RowLayout
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.optim.optimizer import Optimizer
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds
from decentral.training.stepper import Stepper

TOLERANCE = 1e-9
_MAX_PERIOD = 512
_SCALES = torch.tensor([1e-3, 1e3], dtype=torch.float64).repeat_interleave(1024)
"""The scales of a coordinate's gradients in the run that the coefficients predict."""
_SETTLES = 1e-12


class NotLinear(ConfigError):
    """A method that has no certificate, with the reason and what is certified instead."""


@dataclass(frozen=True)
class Method:
    """An algorithm with its local optimizer on the rounds of a topology.

    Raises NotLinear if the algorithm is asynchronous or trains nothing, or the rounds repeat too late.
    """

    algorithm: Algorithm
    optimizer: Optimizer
    rounds: Rounds

    def __post_init__(self) -> None:
        self.refuse(not in_rounds(type(self.algorithm)), "is asynchronous: use a synchronous method")
        self.refuse(Feature.training not in self.algorithm.supports, "estimates a mean: use a method that trains")
        self.refuse(
            self.period > _MAX_PERIOD,
            f"repeats after {self.period} steps only, as random graphs do: use a topology with at most {_MAX_PERIOD} "
            "rounds",
        )

    def refuse(self, applies: bool, reason: str) -> None:
        """Raise NotLinear with this reason if it applies."""
        if applies:
            raise NotLinear(f"algo={self.algorithm.name} has no certificate, because it {reason}.")

    @property
    def n(self) -> int:
        """Return the number of workers."""
        return self.rounds.num_workers

    @property
    def period(self) -> int:
        """Return the number of steps after which the method repeats."""
        return math.lcm(self.rounds.period, self.rounds.every, self.algorithm.attends_steps)

    def begin(self, x: Tensor, lr: float, layout: RowLayout | None = None) -> Stepper:
        """Return the method before step 0, with models x [n, P] and this learning rate."""
        layout = layout or RowLayout.flat(x.shape[1])
        compressor = NoCompression().bound(layout, 0, 1.0)
        algorithm = self.algorithm.bind(self.optimizer.rule(lambda t: lr, layout), compressor)
        return Stepper(algorithm, LocalNetwork(self.rounds, Losses(0.0, 0)), lambda x, workers=None: x, x)

    def advance(self, stepper: Stepper, g: Tensor, h: Tensor | None = None) -> Tensor:
        """Take a step with the gradients g + h p [n, P] at the points p [n, P], which are returned; None is h = 0."""
        points, taken = torch.empty_like(g), torch.zeros(self.n, dtype=torch.bool)

        def oracle(x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
            rows = list(range(self.n) if workers is None else workers)
            self.refuse(bool(taken[rows].any()), "takes several gradients in a step")
            points[rows], taken[rows] = x, True
            return g[rows].clone() if h is None else g[rows] + h[rows] * x

        stepper.oracle = oracle
        stepper.step()
        self.refuse(not taken.all(), f"takes no gradient of some workers in step {stepper.t - 1}")
        return points

    def pieces(self, rows: Tensor) -> list[Tensor]:
        """Return views [..., width] of each of the d pieces of rows [..., d * width]."""
        return [rows[..., columns] for columns in self.rounds.slices(rows.shape[-1])]

    def read(self, rows: Tensor) -> np.ndarray:
        """Return rows [n, d * width] of each piece: [d, n, width]."""
        return np.stack([piece.numpy() for piece in self.pieces(rows)])

    def repeated(self, columns: Tensor) -> Tensor:
        """Return rows [n, d * width] with these columns [n, width] in each piece, in float64."""
        rows = torch.empty(len(columns), self.rounds.num_pieces * columns.shape[1], dtype=torch.float64)
        for piece in self.pieces(rows):
            piece.copy_(columns)
        return rows


Phase = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""The matrices A [S, S], B [S, n], C and M of one step, for one coordinate; C and M are [d, n, S], or of a single piece
[n, S]."""


class Tracer:
    """Traces a method at any learning rate; the warm-up is common to all.

    Raises NotLinear, with the reason, for a method whose steps are not the same fixed linear combination for every
    coordinate.
    """

    def __init__(self, method: Method, lr: float) -> None:
        self.method, self.d = method, method.rounds.num_pieces
        self.spans = self._spans(lr)
        self.warm_up = method.period * math.ceil(4 * method.n / method.period)
        self.templates = self._settled(lr)

    def _spans(self, lr: float) -> dict[int, int]:
        """Return the numbers of the parts of a state that are rows of the models, found by their width at two widths,
        with the number of pieces that they span: d, or 1 for rows on the edges of pieces. All other parts are shared by
        the coordinates."""
        starts = [self.method.repeated(torch.zeros(self.method.n, width)) for width in (101, 211)]
        states = [trees.tree_leaves(self.method.begin(x, lr).state) for x in starts]
        widths = [(np.shape(narrow)[-1:], np.shape(wide)[-1:]) for narrow, wide in zip(*states, strict=True)]
        spans = {i: narrow[0] // 101 for i, (narrow, wide) in enumerate(widths) if narrow != wide}
        is_whole = all(span in (1, self.d) and widths[i][1] == (211 * span,) for i, span in spans.items())
        self.method.refuse(not is_whole, "treats coordinates differently: it keeps parts of rows")
        return spans

    def _settled(self, lr: float) -> list[Any]:
        """Return the states of a period after the warm-up, which grows until they repeat."""
        p, last = self.method.period, 64 * self.warm_up
        zeros = self.method.repeated(torch.zeros(self.method.n, 1))
        stepper, states = self.method.begin(zeros.clone(), lr), list[Any]()
        while len(states) < self.warm_up + 2 * p or not _is_same(states[-2 * p], states[-p]):
            self.method.refuse(len(states) > last, f"has weights that still change after {last} steps")
            for _ in range(p):
                states.append(trees.tree_map_only(Tensor, Tensor.clone, stepper.state))
                self.method.advance(stepper, zeros)
                self.method.refuse(not torch.equal(stepper.models, zeros), "moves models without gradients")
        self.warm_up = len(states) - 2 * p
        return states[-2 * p : -p]

    def _views(self, state: Any) -> list[Tensor]:
        """Return views [..., width] of all rows of a state, those of each piece."""
        leaves = trees.tree_leaves(state)
        cut = [self.method.pieces(leaves[i]) if span > 1 else [leaves[i]] for i, span in self.spans.items()]
        return [view for views in cut for view in views]

    def rows(self, state: Any) -> np.ndarray:
        """Return the state of every coordinate: [S, width]."""
        return np.concatenate([view.reshape(-1, view.shape[-1]).numpy() for view in self._views(state)])

    def phases(self, lr: float) -> list[Phase]:
        """Return the matrices of the steps warm_up, ... of one period, by steps from one-hot states with one-hot
        gradients."""
        n, phases = self.method.n, []
        for t, template in enumerate(self.templates):
            S = len(self.rows(template))
            g = self.method.repeated(torch.cat([torch.zeros(n, S), torch.eye(n)], dim=1))
            stepper = self.method.begin(torch.zeros_like(g), lr)
            leaves, spec = trees.tree_flatten(trees.tree_map_only(Tensor, Tensor.clone, template))
            for i, span in self.spans.items():
                leaves[i] = leaves[i].new_zeros(*leaves[i].shape[:-1], span * (S + n))
            stepper.state, stepper.t = trees.tree_unflatten(leaves, spec), self.warm_up + t
            views = self._views(stepper.state)
            values = torch.eye(S, S + n).split([view[..., 0].numel() for view in views])
            for view, value in zip(views, values, strict=True):
                view.copy_(value.reshape(view.shape))
            x = self.method.read(stepper.models.clone())
            p = self.method.read(self.method.advance(stepper, g))
            after = self.rows(stepper.state)
            self.method.refuse(np.abs(p[..., S:]).max() > _SETTLES, "takes gradients at points that depend on them")
            phases.append((after[:, :S].copy(), after[:, S:].copy(), p[..., :S], x[..., :S]))
        return phases

    def begun(self, lr: float, phases: list[Phase]) -> tuple[np.ndarray, float]:
        """Return the state [S, 1 + (warm_up + period) * n] after the warm-up and a period, as coefficients (see
        `one_hot`), and how far a common start x = 1 has moved until then, without gradients.

        A run with random gradients tests that these coefficients and the phases predict all points and models.
        """
        n, p, generator = self.method.n, self.method.period, torch.Generator().manual_seed(0)
        x, half = self.method.repeated(torch.zeros(n, len(_SCALES))), len(_SCALES) * self.d // 32
        runs = [self.method.begin(x.clone(), lr, RowLayout(("first", "second"), ((16, half),) * 2)) for _ in range(2)]
        known, moved = np.zeros(1), 0.0
        for stepper, points, models in one_hot(self.method, self.warm_up + p, lr):
            final, moved = stepper.state, max(moved, *(np.abs(x[..., 0] - 1).max() for x in (points, models)))
            g = torch.randn(n, 1, generator=generator, dtype=torch.float64)
            before, known = points[..., : len(known)] @ known, np.append(known, g)
            self._predicts(runs, g, before, models[..., : len(known)] @ known, "is not linear in its gradients")
        state = self.rows(final)
        s = state @ known
        for t in range(max(64, 4 * p)):
            g = torch.randn(n, 1, generator=generator, dtype=torch.float64)
            A, B, C, _ = phases[t % p]
            before, s = C @ s, A @ s + B @ g[:, 0].numpy()
            self._predicts(
                runs, g, before, phases[(t + 1) % p][3] @ s, f"does not repeat after {p} step{'s' * (p > 1)}"
            )
        return state, float(moved)

    def _predicts(self, runs: list[Stepper], g: Tensor, points: np.ndarray, models: np.ndarray, otherwise: str) -> None:
        """Take a step with these gradients [n, 1], scaled, in two equal runs, and test the points and models [d, n]."""
        actual = [(self.method.advance(run, self.method.repeated(g * _SCALES)), run.models) for run in runs]
        for first, second, expected in zip(*actual, (points, models), strict=True):
            x, again = (self.method.read(rows) / _SCALES.numpy() for rows in (first, second))
            self._same(again, x, "is random")
            x = x.reshape(self.d, self.method.n, 2, -1)
            self._same(x[..., :1, :], x, "is not linear in its gradients")
            self._same(x[..., :1], x, "treats coordinates differently")
            self._same(expected, x[..., 0, 0], otherwise)

    def _same(self, expected: np.ndarray, actual: np.ndarray, otherwise: str) -> None:
        is_same = np.abs(expected - actual).max() <= TOLERANCE * max(np.abs(expected).max(), np.abs(actual).max())
        rule: Any = self.method.optimizer
        instead = "" if rule.name == "sgd" and rule.clip_norm is None else ": use optim=sgd without clip_norm"
        self.method.refuse(not is_same, f"{otherwise} with optim={rule.name}{instead}")


def _is_same(*states: Any) -> bool:
    """Return whether the tensors of two states are the same, except for rounding."""
    parts = ([leaf for leaf in trees.tree_leaves(state) if isinstance(leaf, Tensor)] for state in states)
    first, second = (torch.cat([leaf.double().ravel() for leaf in part]) for part in parts)
    return first.shape == second.shape and torch.allclose(first, second, rtol=_SETTLES, atol=_SETTLES)


def one_hot(method: Method, steps: int, lr: float) -> Iterator[tuple[Stepper, np.ndarray, np.ndarray]]:
    """Run from a common start; yield the stepper, and the points and models [d, n, 1 + n * steps] of each step, for
    each piece: as coefficients of x^0 and of the gradients g_0^0, ..., g_{n-1}^0, g_0^1, ..."""
    n = method.n
    x = torch.eye(1, 1 + n * steps).expand(n, -1)
    stepper = method.begin(method.repeated(x), lr)
    for t in range(steps):
        g = torch.zeros_like(x)
        g[:, 1 + t * n : 1 + (t + 1) * n] = torch.eye(n)
        points = method.advance(stepper, method.repeated(g))
        yield stepper, method.read(points), method.read(stepper.models)


def coefficients(method: Method, steps: int, lr: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the points p_i^t [d, steps, n, D] and final models x_i^K [d, n, D], D = 1 + n * steps; see `one_hot`."""
    run = [(points, models) for _, points, models in one_hot(method, steps, lr)]
    return np.stack([points for points, _ in run], axis=1), run[-1][1]


def run(method: Method, lr: float, h: Tensor, g: Tensor, x0: Tensor) -> Iterator[Tensor]:
    """Run the method itself on many problems f_i(x) = h_i / 2 x^2 + g_i x, one for each column of h and g [n, columns],
    from x^0 [columns], without end: yield the models [n, columns] after each step."""
    stepper = method.begin(x0.expand(method.n, -1).clone(), lr)
    while True:
        method.advance(stepper, g, h)
        yield stepper.models.clone()
