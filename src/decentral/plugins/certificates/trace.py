"""The coefficients of a method: its `step` on one-hot gradients and states, and the tests that they are all there is.

Notation, for one coordinate of the model: state s_t [S] (the rows of `State`), gradients g_t [n], and

    s_{t+1} = A_t s_t + B_t g_t,    p_t = C_t s_t,    x_t = M_t s_t

with the points p_t [n], where gradients are taken, and the models x_t [n]. A topology that cuts the model into d pieces
has such a system for each piece. The matrices repeat with the period of the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from decentral.topology.static import Complete
from decentral.training.stepper import Stepper

TOLERANCE = 1e-9
_MAX_PERIOD = 512
_COLUMNS = 2048
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
        name = self.algorithm.name
        if Feature.topology not in self.algorithm.supports:
            object.__setattr__(self, "rounds", Complete().schedule(self.n))
        if not in_rounds(type(self.algorithm)):
            raise NotLinear(f"algo={name} is asynchronous and has no certificate: use a synchronous method.")
        if Feature.training not in self.algorithm.supports:
            raise NotLinear(f"algo={name} estimates a mean and has no certificate: use a method that trains.")
        if self.period > _MAX_PERIOD:
            raise NotLinear(
                f"algo={name} on this topology repeats after {self.period} steps only, as random graphs do, and has no "
                f"certificate: use a topology with at most {_MAX_PERIOD} rounds."
            )

    @property
    def n(self) -> int:
        """Return the number of workers."""
        return self.rounds.num_workers

    @property
    def period(self) -> int:
        """Return the number of steps after which the method repeats."""
        return math.lcm(self.rounds.period, self.rounds.every, self.algorithm.attends_steps)

    def begin(self, x: Tensor, lr: float, layout: RowLayout | None = None) -> Stepper:
        """Return the method before step 0, with models x [n, P], this learning rate, and a `Recorder` as oracle."""
        layout = layout or RowLayout.flat(x.shape[1])
        compressor = NoCompression().bound(layout, 0, 1.0)
        algorithm = self.algorithm.bind(self.optimizer.rule(lambda t: lr, layout), compressor)
        net = LocalNetwork(self.rounds, Losses(0.0, 0))
        return Stepper(algorithm, net, Recorder(self.algorithm.name), x)

    def columns(self, width: int) -> list[np.ndarray]:
        """Return, for each of the d pieces, the `width` columns that belong to it in rows of length d * width."""
        total = np.arange(self.rounds.num_pieces * width)
        return [total[piece] for piece in self.rounds.slices(len(total))]


class Recorder:
    """An oracle that returns given gradients [n, P] and records the points at which they were taken."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gradients = torch.zeros(0)
        self.points = torch.zeros(0)

    def expect(self, gradients: Tensor) -> None:
        """Set the gradients [n, P] of the next step."""
        self.gradients, self.points = gradients, torch.full_like(gradients, math.nan)
        self._taken = torch.zeros(len(gradients), dtype=torch.bool)

    def __call__(self, x: Tensor, workers: Sequence[int] | None = None) -> Tensor:
        """Return the gradients of all workers or of `workers`, each once per step."""
        rows = list(range(len(self.gradients)) if workers is None else workers)
        if self._taken[rows].any():
            raise NotLinear(f"algo={self.name} takes several gradients in a step and has no certificate.")
        self._taken[rows] = True
        self.points[rows] = x
        return self.gradients[rows].clone()


def advance(stepper: Stepper, gradients: Tensor) -> Tensor:
    """Take a step with these gradients [n, P] and return the points [n, P] where they were taken."""
    recorder = stepper.oracle
    assert isinstance(recorder, Recorder)
    recorder.expect(gradients)
    stepper.step()
    if not recorder._taken.all():
        raise NotLinear(f"algo={recorder.name} takes no gradient of some workers in step {stepper.t - 1}.")
    return recorder.points


# -- one step as matrices ----------------------------------------------------------------------------------------------


class Phase(NamedTuple):
    """The matrices of one step, for one coordinate."""

    A: np.ndarray  # [S, S]
    B: np.ndarray  # [S, n]
    C: np.ndarray  # [n, S]
    M: np.ndarray  # [n, S]


@dataclass(frozen=True)
class Shape:
    """The parts of a state that are rows of the models, by their number in the state, with the number of pieces that
    their rows span: d, or 1 for rows on the edges of d pieces. All other parts are shared by the coordinates."""

    method: Method
    spans: dict[int, int]

    @classmethod
    def of(cls, method: Method, lr: float) -> Shape:
        """Find the rows by their width, at two widths. Raises NotLinear for a state that has other parts."""
        d, states = method.rounds.num_pieces, []
        for width in (101, 211):
            stepper = method.begin(torch.zeros(method.n, d * width, dtype=torch.float64), lr)
            states.append([getattr(leaf, "shape", ()) for leaf in trees.tree_leaves(stepper.state)])
        spans = {}
        for i, (narrow, wide) in enumerate(zip(*states, strict=True)):
            spanned = next((k for k in (d, 1) if (narrow[-1:], wide[-1:]) == ((k * 101,), (k * 211,))), 0)
            if spanned:
                spans[i] = spanned
            elif narrow != wide:
                raise NotLinear(
                    f"algo={method.algorithm.name} treats coordinates differently and has no certificate: it keeps "
                    "parts of rows."
                )
        return cls(method, spans)

    def unpack(self, state: Any) -> list[Tensor]:
        """Return, for each piece, the state of every coordinate: [S, width]."""
        return [torch.cat([rows[index] for rows, index in piece]) for piece in self._pieces(state)]

    def pack(self, template: Any, values: Sequence[Tensor]) -> Any:
        """Return the state with these coordinates, one [S, width] per piece; shared parts are the template's."""
        leaves, spec = trees.tree_flatten(template)
        width = values[0].shape[1]
        for i, spanned in self.spans.items():
            leaves[i] = leaves[i].new_zeros(*leaves[i].shape[:-1], spanned * width)
        state = copied(trees.tree_unflatten(leaves, spec))
        for piece, value in zip(self._pieces(state), values, strict=True):
            parts = value.split([len(rows[index]) for rows, index in piece])
            for (rows, index), part in zip(piece, parts, strict=True):
                rows[index] = part
        return state

    def shared(self, state: Any) -> list[Tensor]:
        """Return the shared parts."""
        leaves = enumerate(trees.tree_leaves(state))
        return [leaf for i, leaf in leaves if i not in self.spans and isinstance(leaf, Tensor)]

    def _pieces(self, state: Any) -> list[list[tuple[Tensor, Any]]]:
        """Return, for each piece, all rows [r, width] of the state, and the index of the piece's part in them."""
        leaves, rounds = trees.tree_leaves(state), self.method.rounds
        rows = {i: leaves[i].reshape(-1, leaves[i].shape[-1]) for i in self.spans}
        columns = rounds.slices(max(part.shape[1] for part in rows.values()))
        edges = rounds.edges().piece if rounds.num_pieces > 1 else np.zeros(0)
        return [
            [
                (rows[i], (slice(None), columns[h]) if spanned == len(columns) else np.flatnonzero(edges == h))
                for i, spanned in self.spans.items()
            ]
            for h in range(len(columns))
        ]


def copied(state: Any) -> Any:
    """Return a copy of a state."""
    return trees.tree_map_only(Tensor, Tensor.clone, state)


class Tracer:
    """Traces a method at any learning rate; the warm-up is common to all.

    Raises NotLinear, with the reason, for a method whose steps are not the same fixed linear combination for every
    coordinate.
    """

    def __init__(self, method: Method, lr: float) -> None:
        self.method, self.lr = method, lr
        self.shape = Shape.of(method, lr)
        self.warm_up = method.period * math.ceil(4 * method.n / method.period)
        self.templates = self._settled()

    def _settled(self) -> list[Any]:
        """Return the states of two periods after the warm-up, which grows until the shared parts repeat."""
        method, p = self.method, self.method.period
        stepper = method.begin(torch.zeros(method.n, method.rounds.num_pieces, dtype=torch.float64), self.lr)
        zero = torch.zeros(method.n, method.rounds.num_pieces, dtype=torch.float64)
        states: list[Any] = []
        last = 64 * self.warm_up
        shapes = [part.shape for part in self.shape.shared(stepper.state)]
        while len(states) < 2 * p:
            if stepper.t >= self.warm_up:
                states.append(copied(stepper.state))
            advance(stepper, zero.clone())
            if not torch.equal(stepper.models, zero):
                raise NotLinear(f"algo={method.algorithm.name} moves models without gradients: it has no certificate.")
            if [part.shape for part in self.shape.shared(stepper.state)] != shapes:
                raise NotLinear(f"algo={method.algorithm.name} treats coordinates differently: it has no certificate.")
            if len(states) == 2 * p and stepper.t < last and not self._repeats(states):
                states = states[p:]
                self.warm_up += p
        if not self._repeats(states):
            raise NotLinear(f"the weights of algo={method.algorithm.name} do not settle in {last} steps.")
        return states

    def _repeats(self, states: list[Any]) -> bool:
        p = self.method.period
        pairs = zip(
            *([part for s in half for part in self.shape.shared(s)] for half in (states[:p], states[p:])), strict=True
        )
        return all(torch.allclose(one.double(), two.double(), rtol=_SETTLES, atol=_SETTLES) for one, two in pairs)

    def phases(self, lr: float, first: int = 0) -> list[list[Phase]]:
        """Return, for each piece, the matrices of the steps warm_up + first, ... of one period."""
        n = self.method.n
        each: list[list[Phase]] = []
        for t in range(first, first + self.method.period):
            S = [len(part) for part in self.shape.unpack(self.templates[t])]
            width = max(S) + n
            values = [torch.eye(size, width, dtype=torch.float64) for size in S]
            gradients = torch.zeros(n, width * len(S), dtype=torch.float64)
            pieces = self.method.columns(width)
            for size, columns in zip(S, pieces, strict=True):
                gradients[torch.arange(n), torch.from_numpy(columns[size : size + n])] = 1
            points, before, after = self._step(lr, t, values, gradients)
            each.append([])
            for h, (size, columns) in enumerate(zip(S, pieces, strict=True)):
                ends = after[h].numpy()
                if np.abs(points[:, columns[size:]].numpy()).max(initial=0.0) > _SETTLES:
                    raise NotLinear(f"algo={self.method.algorithm.name} takes gradients at points that depend on them.")
                p, x = (part[:, columns[:size]].numpy() for part in (points, before))
                each[-1].append(Phase(ends[:, :size].copy(), ends[:, size : size + n].copy(), p, x))
        return [list(piece) for piece in zip(*each, strict=True)]

    def _step(self, lr: float, t: int, values: list[Tensor], gradients: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Take step warm_up + t from this state: return points, models before it, and the state after it."""
        stepper = self.method.begin(torch.zeros_like(gradients), lr)
        stepper.state, stepper.t = self.shape.pack(self.templates[t], values), self.warm_up + t
        before = stepper.models.clone()
        points = advance(stepper, gradients)
        return points, before, self.shape.unpack(stepper.state)

    def tested(self, lr: float) -> list[list[Phase]]:
        """Return the matrices at this learning rate after all tests of linearity."""
        phases = self.phases(lr)
        self._check_superposition(lr, phases)
        self._check_period(lr, phases)
        self._check_columns(lr, phases)
        return phases

    def begun(self, lr: float) -> tuple[list[np.ndarray], list[np.ndarray], float]:
        """Return, for each piece, the state [S, 1] of a common start x = 1 after the warm-up without gradients; the
        states [S, warm_up * n] then, if worker j's gradient in step t was 1 (column t * n + j); and the farthest that
        the common start moved."""
        moved, state = 0.0, None
        for stepper, points, models in one_hot(self.method, self.warm_up, lr):
            state, moved = stepper.state, max(moved, np.abs(points[..., 0] - 1).max(), np.abs(models[..., 0] - 1).max())
        states = [part.numpy() for part in self.shape.unpack(state)]
        return [s[:, :1] for s in states], [s[:, 1:] for s in states], moved

    # -- tests of linearity -------------------------------------------------------------------------------------------

    def _check_superposition(self, lr: float, found: list[list[Phase]]) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        for scale in (1e-3, 1.0, 1e3):
            for t in range(min(self.method.period, 16)):
                values = [scale * draw(piece[t].A.shape[0], 64) for piece in found]
                gradients = scale * draw(self.method.n, 64 * len(found))
                points, before, after = self._step(lr, t, values, gradients)
                for h, columns in enumerate(self.method.columns(64)):
                    A, B, C, M = found[h][t]
                    s, g = values[h].numpy(), gradients[:, columns].numpy()
                    pairs = (A @ s + B @ g, after[h]), (C @ s, points[:, columns]), (M @ s, before[:, columns])
                    for expected, actual in pairs:
                        self._same(expected, actual.numpy(), "is not linear in its gradients")

    def _check_period(self, lr: float, found: list[list[Phase]]) -> None:
        for one, other in zip(found, self.phases(lr, self.method.period), strict=True):
            for a, b in zip(one, other, strict=True):
                for expected, actual in zip(a, b, strict=True):
                    self._same(expected, actual, f"does not repeat after {self.method.period} steps (is it random?)")

    def _check_columns(self, lr: float, found: list[list[Phase]]) -> None:
        """Run two matrices with equal columns and random gradients: all entries stay equal, and the coefficients
        predict every model."""
        n, p = self.method.n, self.method.period
        generator = torch.Generator().manual_seed(1)
        width = _COLUMNS * len(found)
        layout = RowLayout(("first", "second"), ((16, width // 32),) * 2)
        stepper = self.method.begin(torch.zeros(n, width, dtype=torch.float64), lr, layout)
        states: list[np.ndarray] = []
        for t in range(self.warm_up + max(64, 4 * p)):
            if t == self.warm_up:
                states = [part[:, :1].numpy().copy() for part in self.shape.unpack(stepper.state)]
            g = torch.randn(n, 1, generator=generator, dtype=torch.float64)
            advance(stepper, g.expand(n, width).clone())
            for h, columns in enumerate(self.method.columns(_COLUMNS)):
                x = stepper.models[:, columns].numpy()
                self._same(x[:, :1], x, "treats coordinates differently, or is random")
                if states:
                    A, B, _, _ = found[h][(t - self.warm_up) % p]
                    states[h] = A @ states[h] + B @ g.numpy()
                    M = found[h][(t + 1 - self.warm_up) % p].M
                    self._same(M @ states[h], x[:, :1], "keeps something besides its State, or is random")

    def _same(self, expected: np.ndarray, actual: np.ndarray, otherwise: str) -> None:
        scale = max(float(np.abs(expected).max(initial=0.0)), float(np.abs(actual).max(initial=0.0)))
        if not float(np.abs(expected - actual).max(initial=0.0)) <= TOLERANCE * scale:
            name, rule = self.method.algorithm.name, self.method.optimizer
            used = getattr(rule, "name", "")
            instead = "" if used == "sgd" and rule.clip_norm is None else ": use optim=sgd without clip_norm"
            raise NotLinear(f"algo={name} with optim={used} {otherwise} and has no certificate{instead}.")


def one_hot(method: Method, steps: int, lr: float) -> Iterator[tuple[Stepper, np.ndarray, np.ndarray]]:
    """Run from a common start; yield the stepper, and the points and models [d, n, 1 + n * steps] of each step, for
    each piece: as coefficients of x^0 and of the gradients g_0^0, ..., g_{n-1}^0, g_0^1, ..."""
    n, pieces = method.n, method.columns(1 + method.n * steps)
    x = torch.zeros(n, sum(map(len, pieces)), dtype=torch.float64)
    x[:, [columns[0] for columns in pieces]] = 1
    stepper = method.begin(x, lr)
    split = lambda rows: np.stack([rows[:, columns].numpy() for columns in pieces])  # noqa: E731
    for t in range(steps):
        gradients = torch.zeros_like(x)
        for columns in pieces:
            gradients[torch.arange(n), torch.from_numpy(columns[1 + t * n : 1 + (t + 1) * n])] = 1
        points = advance(stepper, gradients)
        yield stepper, split(points), split(stepper.models)


def coefficients(method: Method, steps: int, lr: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the points p_i^t [d, steps, n, D] and final models x_i^K [d, n, D], D = 1 + n * steps; see `one_hot`."""
    run = [(points, models) for _, points, models in one_hot(method, steps, lr)]
    return np.stack([points for points, _ in run], axis=1), run[-1][1]
