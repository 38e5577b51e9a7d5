"""Every algorithm again, with dense matrices and loops over workers and edges: what the program is compared with.

Written from the papers' formulas alone. It shares no line with `decentral` and imports nothing from it; models are
global arrays [n, d] in float64. Slow and plain on purpose.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reference_topology import Array, Piece, hops

# --- local optimizers: classes of the same names as in `decentral.optim` ---------------------------------------------


@dataclass
class SGD:
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    gradient_share: float = 0.0
    m: Any = 0.0

    def update(self, g: Array, lr: float, x: Any = 0.0) -> Array:
        """Return the update at x; without x, weight decay is part of g."""
        g = g + self.weight_decay * x
        self.m = self.momentum * self.m + g
        if self.gradient_share:
            return -lr * (self.gradient_share * g + (1 - self.gradient_share) * self.m)
        return -lr * (g + self.momentum * self.m if self.nesterov else self.m)


@dataclass
class Adam:
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    gradient_share: float = 0.0
    m: Any = 0.0
    v: Any = 0.0
    k: int = 0

    def direction(self, g: Array) -> Array:
        self.k += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        m, v = self.m / (1 - self.beta1**self.k), self.v / (1 - self.beta2**self.k)
        return (self.gradient_share * g + (1 - self.gradient_share) * m) / (np.sqrt(v) + self.epsilon)

    def update(self, g: Array, lr: float, x: Any = 0.0) -> Array:
        return -lr * self.direction(g + self.weight_decay * x)


@dataclass
class AdamW(Adam):
    weight_decay: float = 0.01

    def update(self, g: Array, lr: float, x: Any = 0.0) -> Array:
        return -lr * (self.direction(g) + self.weight_decay * x)


@dataclass
class ADOPT(AdamW):
    beta2: float = 0.9999
    epsilon: float = 1e-6
    weight_decay: float = 0.0

    def direction(self, g: Array) -> Array:
        c, self.k = self.k**0.25, self.k + 1
        if self.k == 1:
            self.v = g**2
            return 0 * g
        z = np.clip(g / np.maximum(np.sqrt(self.v), self.epsilon), -c, c)
        self.m = self.beta1 * self.m + (1 - self.beta1) * z
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        return self.gradient_share * z + (1 - self.gradient_share) * self.m


@dataclass
class Muon(AdamW):
    """Muon of vectors. For matrices, see `test_muon_is_its_formula_for_every_worker`."""

    beta2: float = 0.95
    weight_decay: float = 0.1


def never(round: int, piece: int, source: int, target: int) -> bool:
    return False


@dataclass
class Setting:
    """A problem (A [n, d, d], b [n, d], x0 [d]), a network, and how each worker uses its gradients."""

    A: Array
    b: Array
    x0: Array
    pieces: list[Piece]
    optimizer: Any
    lr: Callable[[int], float]
    lost: Callable[[int, int, int, int], bool] = never

    @property
    def n(self) -> int:
        return len(self.A)

    def start(self) -> Array:
        return np.array([self.x0] * self.n)

    def gradient(self, x: Array, decayed: Array | None = None) -> Array:
        """What the optimizer sees: weight decay, of x or of `decayed`, is part of it."""
        g = [A.T @ (A @ xi - b) for A, b, xi in zip(self.A, self.b, x, strict=True)]
        return np.array(g) + self.optimizer.weight_decay * (x if decayed is None else decayed)

    def update(self, x: Array, t: int) -> Array:
        return self.optimizer.update(self.gradient(x), self.lr(t))

    def matrix(self, piece: int, round: int, lazy: bool = False) -> Array:
        """W of a round, repaired: where rows sum to 1 they still do, elsewhere columns do (the sender keeps the
        rest)."""
        matrices = self.pieces[piece].matrices
        W = matrices[round % len(matrices)]
        W = (W + np.eye(self.n)) / 2 if lazy else W.copy()
        pull = np.allclose(W.sum(axis=1), 1)
        for i in range(self.n):
            for j in range(self.n):
                if i != j and W[i, j] and self.lost(round, piece, j, i):
                    if not pull:
                        W[j, j] += W[i, j]
                    W[i, j] = 0
            if pull and W[i].sum() == 0:
                W[i, i] = 1  # nothing came and it has no weight of its own: it keeps what it has
        return W / W.sum(axis=1, keepdims=True) if pull else W

    def mix(self, x: Array, round: int, lazy: bool = False) -> Array:
        mixed = np.empty_like(x)
        for number, piece in enumerate(self.pieces):
            mixed[:, piece.coordinates] = self.matrix(number, round, lazy) @ x[:, piece.coordinates]
        return mixed


@dataclass
class RelaySum:
    """Messages and counts on every directed edge of every tree, zero at first."""

    s: Setting
    compress: Callable[[Array], Array] | None = None
    messages: dict[tuple[int, int, int], Array] = field(default_factory=dict)
    counts: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def exchange(self, y: Array, t: int) -> None:
        """m_{i->j} = y_i + what the neighbors of i other than j sent before."""
        messages, counts = {}, {}
        for number, piece in enumerate(self.s.pieces):
            for i, j in piece.edges:
                m, c = y[i, piece.coordinates].copy(), 1.0
                for k, to in piece.edges:
                    if to == i and k != j:
                        m += self.messages.get((number, k, i), 0.0)
                        c += self.counts.get((number, k, i), 0.0)
                if self.compress is not None:
                    m = self.compress(m[None])[0]
                kept = 0.0 if self.s.lost(t, number, i, j) else 1.0
                messages[number, i, j], counts[number, i, j] = kept * m, kept * c
        self.messages, self.counts = messages, counts

    def received(self) -> tuple[Array, Array]:
        """For every worker and coordinate: the sum of the last messages, and how many values are in it."""
        total, count = np.zeros((self.s.n, len(self.s.x0))), np.zeros((self.s.n, len(self.s.x0)))
        for (number, _, j), message in self.messages.items():
            total[j, self.s.pieces[number].coordinates] += message
        for (number, _, j), c in self.counts.items():
            count[j, self.s.pieces[number].coordinates] += c
        return total, count


# --- the algorithms: generators of x^1, x^2, ... --------------------------------------------------------------------

Iterates = Iterator[Array]


def run(algorithm: Callable[..., Iterates], setting: Setting, steps: int, **options: Any) -> Array:
    """iterates [steps + 1, n, d]."""
    return np.array([setting.start(), *itertools.islice(algorithm(setting, **options), steps)])


def mean(x: Array) -> Array:
    return np.array([x.mean(axis=0)] * len(x))


Compress = Callable[[Array], Array]
"""C(e) of each row of e [n, d]."""


def nothing(e: Array) -> Array:
    return e


def topk(keep: float) -> Compress:
    """The k entries with the largest magnitude, k = max(1, floor(keep d))."""

    def of_all(e: Array) -> Array:
        sent = np.zeros_like(e)
        for row, out in zip(e, sent, strict=True):
            largest = np.argsort(-np.abs(row), kind="stable")[: max(1, int(keep * len(row)))]
            out[largest] = row[largest]
        return sent

    return of_all


@dataclass
class DCTTopK:
    """The k largest coefficients of every chunk of a row; chunks have the largest divisor of d up to `chunk`."""

    k: int
    chunk: int = 64
    transform: str = "dct"

    def matrix(self, d: int) -> Array:
        """The transform [d, d], orthonormal: a block of cosines for each chunk."""
        h = max(size for size in range(1, self.chunk + 1) if d % size == 0)
        D = np.array([[np.sqrt(2 / h) * np.cos(np.pi * (2 * j + 1) * i / (2 * h)) for j in range(h)] for i in range(h)])
        D[0] = np.sqrt(1 / h)
        return np.kron(np.eye(d // h), D if self.transform == "dct" else np.eye(h))

    def kept(self, e: Array) -> Array:
        """The coefficients [n, d] that are sent, 0 elsewhere."""
        d = e.shape[1]
        h = max(size for size in range(1, self.chunk + 1) if d % size == 0)
        kept = e @ self.matrix(d).T
        for row in kept:
            for start in range(0, d, h):
                row[start + np.argsort(-np.abs(row[start : start + h]))[self.k :]] = 0
        return kept

    def __call__(self, e: Array) -> Array:
        return self.kept(e) @ self.matrix(e.shape[1])


def mean_of_senders(e: Array, compress: Compress) -> Array:
    """The mean of C(e_i), each coefficient divided by the number of rows that have it."""
    chunked = isinstance(compress, DCTTopK)
    q = compress.kept(e) if chunked else compress(e)
    q = q.sum(axis=0) / np.maximum((q != 0).sum(axis=0), 1)
    return np.array([q @ compress.matrix(len(q)) if chunked else q] * len(e))


def sign() -> Compress:
    """The sign of each entry times the mean magnitude."""
    return lambda e: np.abs(e).mean(axis=1, keepdims=True) * np.sign(e)


def bf16() -> Compress:
    """To the nearest number with 8 bits of mantissa."""

    def rounded(e: Array) -> Array:
        fraction, exponent = np.frexp(e)
        return np.ldexp(np.rint(fraction * 256) / 256, exponent)

    return rounded


def artopk(e: Array, b: int, keep: float) -> Array:
    """All rows at the places of the largest entries of row b."""
    places = topk(keep)(e[b : b + 1])[0] != 0
    return np.where(places, e, 0.0)


def allreduce(s: Setting, compress: Compress | None = None, star: float | None = None) -> Iterates:
    x, r = s.start(), np.zeros_like(s.start())
    for t in itertools.count():
        if compress is None and star is None:
            x = x + s.optimizer.update(mean(s.gradient(x)), s.lr(t))
        else:
            decay = s.optimizer.weight_decay * x  # of the model that all have: it is not sent
            e = s.gradient(x) - decay + r
            sent = compress(e) if compress is not None else artopk(e, t % s.n, star or 0.0)
            r = e - sent
            x = x + s.optimizer.update(mean(sent) + decay, s.lr(t))
        yield x


def choco(
    s: Setting,
    compress: Compress = nothing,
    gamma: float = 0.5,
    order: str = "compress_then_combine",
    start: str = "initial",
) -> Iterates:
    x = s.start()
    h = s.start() if start == "initial" else np.zeros_like(x)
    for t in itertools.count():
        u = s.update(x, t)
        if order == "compress_then_combine":
            y = x + u
            h = h + compress(y - h)
            x = y + gamma * (s.mix(h, t) - h)
        else:
            x = x + u + gamma * (s.mix(h, t) - h)
            h = h + compress(x - h)
        yield x


def beer(s: Setting, compress: Compress = nothing, gamma: float = 0.4, start: str = "zero") -> Iterates:
    yield from motef(s, compress, gamma, start, lam=1.0)


def motef(
    s: Setting, compress: Compress = nothing, gamma: float = 0.4, start: str = "zero", lam: float = 0.1
) -> Iterates:
    """In the papers' order: a step ends with what the new gradient makes of M and V."""
    x = s.start()
    H, G = (s.start() if start == "initial" else np.zeros_like(x)), np.zeros_like(x)
    M = V = s.gradient(x)
    for t in itertools.count():
        x = x + gamma * (s.mix(H, t) - H) + s.optimizer.update(V, s.lr(t))
        yield x
        H = H + compress(x - H)
        before, M = M, (1 - lam) * M + lam * s.gradient(x)
        V = V + gamma * (s.mix(G, t) - G) + M - before
        G = G + compress(V - G)


def model_averaging(s: Setting) -> Iterates:
    yield from local_sgd(s, period_steps=1)


def local_sgd(s: Setting, period_steps: int = 4) -> Iterates:
    x = s.start()
    for t in itertools.count():
        x = x + s.update(x, t)
        if (t + 1) % period_steps == 0:
            x = mean(x)
        yield x


def dpsgd(s: Setting, mode: str = "atc", compress: Compress | None = None) -> Iterates:
    x = s.start()
    for t in itertools.count():
        if compress is not None:
            y = x + s.update(x, t)
            x = y + s.mix(compress(y), t) - compress(y)
        elif mode == "atc":
            x = s.mix(x + s.update(x, t), t)
        else:  # BlueFog's optimizer steps from what has been averaged, with the gradient at x
            y = s.mix(x, t)
            x = y + s.optimizer.update(s.gradient(x, decayed=y), s.lr(t))
        yield x


def d2(s: Setting, lazy: bool = False) -> Iterates:
    """In the form x^{t+1} = W (2 x^t - x^{t-1} + u^t - u^{t-1}); the first step is W (x^0 + u^0)."""
    x = s.start()
    x_before, u_before = x, np.zeros_like(x)
    for t in itertools.count():
        u = s.update(x, t)
        x, x_before = s.mix(2 * x - x_before + u - u_before, t, lazy), x
        u_before = u
        yield x


def kgt(s: Setting, every: int) -> Iterates:
    """K-GT with z, the mean of the steps, and its tracked difference from the mean of all."""
    F = x = s.start()
    c = np.zeros_like(x)
    for t in itertools.count():
        F = F + s.update(F, t) + c
        if (t + 1) % every == 0:
            z = (F - x) / every
            F = x = s.mix(F, t)
            c = c + s.mix(z, t) - z
        yield F


def led(s: Setting, every: int, lazy: bool, dual_step: float | None = None) -> Iterates:
    """Local exact diffusion: `every` steps with a part of the dual y, then x = W F and y <- y + F - x."""
    F = s.start()
    y = np.zeros_like(F)
    for t in itertools.count():
        F = F + s.update(F, t) - y * (1 / every if dual_step is None else dual_step)
        if (t + 1) % every == 0:
            x = s.mix(F, t, lazy)
            y, F = y + F - x, x
        yield F


def proxskip(s: Setting, coins: Callable[[int], bool], beta: float, lazy: bool) -> Iterates:
    """Scaffnew on a graph: y is the whole correction of a step."""
    x = s.start()
    y = np.zeros_like(x)
    for t in itertools.count():
        z = x + s.update(x, t) - y
        x = s.mix(z, t, lazy) if coins(t) else z
        y = y + beta * (z - x)
        yield x


def exact_diffusion(s: Setting) -> Iterates:
    yield from d2(s, lazy=True)


def extra(s: Setting) -> Iterates:
    """In the form x^{t+1} = (I + W) x^t - (I + W)/2 x^{t-1} + u^t - u^{t-1}; the first step is W x^0 + u^0."""
    x = s.start()
    mixed_before, u_before = x, np.zeros_like(x)
    for t in itertools.count():
        u, mixed = s.update(x, t), s.mix(x, t, lazy=True)
        x = 2 * mixed - mixed_before + u - u_before
        mixed_before, u_before = mixed, u
        yield x


def gradient_tracking(s: Setting, mode: str = "atc") -> Iterates:
    yield from with_corrections(s) if mode == "atc" else diging(s)


def with_corrections(s: Setting) -> Iterates:
    x = s.start()
    c = np.zeros_like(x)
    for t in itertools.count():
        u = s.update(x, t)
        x, c = s.mix(x + u + c, t), s.mix(c + u, t) - u
        yield x


def diging(s: Setting) -> Iterates:
    """q is the tracked update: x+ = W x + q, q+ = W q + u(x+) - u(x), q^0 = u^0."""
    x = s.start()
    q = u = s.update(x, 0)
    for t in itertools.count():
        x = s.mix(x, t) + q
        yield x
        u, u_before = s.update(x, t + 1), u
        q = s.mix(q, t) + u - u_before


def async_push_sum(s: Setting) -> Iterates:
    """Workers in step: all leave their shares, then all take what lies there. A share that is lost stays at home."""
    x, p = s.start(), np.ones_like(s.start())
    for t in itertools.count():
        x = x + s.update(x / p, t)
        shares, weights = np.zeros_like(x), np.zeros_like(p)
        for number, piece in enumerate(s.pieces):
            c, W = piece.coordinates, piece.matrices[t % len(piece.matrices)]
            for i, j in itertools.product(range(s.n), repeat=2):
                to = j if i != j and W[i, j] and s.lost(t, number, j, i) else i
                shares[to, c] += W[i, j] * x[j, c]
                weights[to, c] += W[i, j] * p[j, c]
        x, p = shares, weights
        yield x / p


def push_diging(s: Setting, mode: str = "atc") -> Iterates:
    """Yields z = x / w; q is the tracked update, and mixed with the matrix of the step before its own."""
    x, w = s.start(), np.ones_like(s.start())
    q = u = s.update(x, 0)
    for t in itertools.count():
        x, w = s.mix(x + q, t), s.mix(w, t)
        yield x / w
        u, u_before = s.update(x / w, t + 1), u
        q = s.mix(q + u - u_before, t) if mode == "atc" else s.mix(q, t) + u - u_before


def sgp(s: Setting, rounds: int = 1, authors_rounds: bool = False) -> Iterates:
    """Yields z = x / w. The weights w are coordinates like those of x, so that pieces need no case of their own."""
    x, w = s.start(), np.ones_like(s.start())
    for t in itertools.count():
        x = x + s.update(x / w, t)
        for r in range(rounds):
            round = t * (rounds + r) if authors_rounds else t * rounds + r
            x, w = s.mix(x, round), s.mix(w, round)
        yield x / w


def dmsgd(s: Setting, form: str = "yu", beta: float = 0.9) -> Iterates:
    x = s.start()
    m = np.zeros_like(x)
    for t in itertools.count():
        d, lr = -s.optimizer.update(s.gradient(x), 1.0), s.lr(t)
        if form == "yu":
            m = beta * m + d
            x, m = s.mix(x - lr * m, t), s.mix(m, t)
        else:
            x, m = s.mix(x - lr * m, t), s.mix(beta * m + d, t)
        yield x


def decentlam(s: Setting, beta: float = 0.9) -> Iterates:
    x = s.start()
    m = np.zeros_like(x)
    for t in itertools.count():
        mixed, lr = s.mix(x + s.update(x, t), t), s.lr(t)
        if lr == 0:
            x = mixed
        else:
            m = beta * m + (x - mixed) / lr
            x = x - lr * m
        yield x


def qg_dpsgd(s: Setting, beta: float = 0.9, nesterov: bool = True, a: float | None = None) -> Iterates:
    x = s.start()
    m = np.zeros_like(x)
    if a is None:
        a = 1 - beta
    for t in itertools.count():
        g, lr = s.gradient(x), s.lr(t)
        b = beta * m + g
        new = s.mix(x + s.optimizer.update(g + beta * b if nesterov else b, lr), t)
        if lr != 0:
            m = (1 - a) * m + a * (x - new) / lr
        x = new
        yield x


def relaysgd(
    s: Setting,
    fill: str = "auto",
    overlap: bool = False,
    correct_lr: bool = False,
    initial_count: int = 0,
    compress: Compress | None = None,
    every: int = 1,
) -> Iterates:
    factor = correction(s.pieces, s.n, overlap) if correct_lr else 1.0
    x, relay = s.start(), RelaySum(s, compress)
    relay.counts = {(h, i, j): float(initial_count) for h, piece in enumerate(s.pieces) for i, j in piece.edges}
    for t in itertools.count():
        y = x + s.optimizer.update(s.gradient(x), factor * s.lr(t))
        if (t + 1) % every:
            x = y
            yield x
            continue
        before = relay.received()
        relay.exchange(y, t)
        total, count = before if overlap else relay.received()
        if fill == "count":
            x = (y + total) / (1 + count)
        else:
            usual = s.start() if s.lost is never else x
            reference = {"auto": usual, "initial": s.start(), "previous": x, "own": y}[fill]
            x = (y + total + (s.n - 1 - count) * reference) / s.n
        yield x


def correction(parts: list[Piece], n: int, overlap: bool = False) -> float:
    """One over what remains of a unit update of every worker."""
    delays = []
    for piece in parts:
        tau = hops(piece.edges, n)
        delays += [max(tau[i, j] - (not overlap), 0) for i in range(n) for j in range(n)]
    return 1 + sum(delays) / len(delays)


def relaysgd_grad(s: Setting, receiver_lr: bool = False) -> Iterates:
    x, relay = s.start(), RelaySum(s)
    for t in itertools.count():
        u = s.optimizer.update(s.gradient(x), 1.0 if receiver_lr else s.lr(t))
        relay.exchange(u, t)
        x = x + (s.lr(t) if receiver_lr else 1.0) * (u + relay.received()[0]) / s.n
        yield x


def relay_mean(s: Setting) -> Iterates:
    x, relay = s.start(), RelaySum(s)
    total, count = np.zeros_like(x), np.zeros_like(x)
    for t in itertools.count():
        sample = x - (s.gradient(x) - s.optimizer.weight_decay * x)
        relay.exchange(sample, t)
        sums, counts = relay.received()
        total, count = total + sample + sums, count + 1 + counts
        x = total / count
        yield x


def epidemic_learning(s: Setting) -> Iterates:
    yield from dpsgd(s)


def momentum_tracking(s: Setting, beta: float = 0.9) -> Iterates:
    """With the momentum and its tracked mean apart: v_i = m_i - c_i."""
    x = s.start()
    m = v = np.zeros_like(x)
    for t in itertools.count():
        g = s.optimizer.update(s.gradient(x), -1.0)
        m, before = beta * m + g, m
        v = v + m - before
        x = s.mix(x, t) - s.lr(t) * v
        v = s.mix(v, t)
        yield x


def dadam(
    s: Setting,
    mode: str = "awc",
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    decoupled_decay: float = 0.0,
    accumulate_steps: int = 1,
) -> Iterates:
    x, cycle = s.start(), accumulate_steps
    gradients: list[Array] = []
    for t in itertools.count():
        gradients.append(s.optimizer.update(s.gradient(x), -1.0))
        full = [np.mean(gradients[c * cycle : (c + 1) * cycle], axis=0) for c in range(t // cycle)] + [gradients[-1]]
        k = len(full)
        first = sum((1 - beta1) * beta1 ** (k - 1 - r) * g for r, g in enumerate(full)) / (1 - beta1**k)
        second = sum((1 - beta2) * beta2 ** (k - 1 - r) * g**2 for r, g in enumerate(full)) / (1 - beta2**k)
        d = first / (np.sqrt(second) + epsilon)
        kept = 1 - s.lr(t) * decoupled_decay
        x = kept * s.mix(x, t) - s.lr(t) * d if mode == "awc" else s.mix(kept * x - s.lr(t) * d, t)
        yield x


def diloco(
    s: Setting, period_steps: int = 50, outer_lr: float = 0.7, outer_momentum: float = 0.9, nesterov: bool = True
) -> Iterates:
    """Nesterov as y_t = phi_t - lr D_t, phi+ = y_t + mu (y_t - y_{t-1}), y_{-1} = phi_0; heavy ball by differences."""
    x = s.start()
    phi = before = x
    for t in itertools.count():
        x = x + s.update(x, t)
        if (t + 1) % period_steps == 0:
            y = phi - outer_lr * mean(phi - x)
            if nesterov:
                phi, before = y + outer_momentum * (y - before), y
            else:
                phi, before = y + outer_momentum * (phi - before), phi
            x = phi
        yield x


def desloc(
    s: Setting, period_steps: int = 32, state_factors: Any = (3, 6), state_periods: Any = (), order: str = "after"
) -> Iterates:
    """The momentum and, of Adam, the mean square."""
    x, periods = s.start(), list(state_periods) or [period_steps * factor for factor in state_factors]

    def average(x: Array, t: int) -> Array:
        for name, period in (("m", periods[0]), ("v", periods[-1])):
            if period and t and t % period == 0 and hasattr(s.optimizer, name):
                setattr(s.optimizer, name, mean(getattr(s.optimizer, name)))
        return x if t % period_steps else mean(x)

    for t in itertools.count():
        if order == "after":
            x = average(x + s.update(x, t), t + 1)
        else:
            y = average(x, t)
            g = s.gradient(x, y)
            x = y + s.optimizer.update(g, s.lr(t))
        yield x


def sparta(s: Setting, drawn: Callable[[int], Any], share: float = 0.005, select: str = "random") -> Iterates:
    """`drawn`: the coordinates of a step."""
    x = s.start()
    for t in itertools.count():
        x = x + s.update(x, t)
        M = np.isin(np.arange(len(s.x0)), drawn(t))
        x = np.where(M, mean(x), x)
        yield x


def sparta_diloco(
    s: Setting,
    drawn: Callable[[int], Any],
    period_steps: int = 50,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    **how: Any,
) -> Iterates:
    """With torch's form of Nesterov, a momentum of the mean drifts."""
    x = s.start()
    phi, v = x, np.zeros_like(x)
    for t in itertools.count():
        x = x + s.update(x, t)
        for i in drawn(t):
            x[:, i] = x[:, i].mean()
        if (t + 1) % period_steps == 0:
            D = mean(phi - x)
            v = outer_momentum * v + D
            phi = phi - outer_lr * (D + outer_momentum * v)
            x = phi.copy()
        yield x


def demuon(s: Setting, beta: float = 0.9, exact: bool = False) -> Iterates:
    """Compute DeMuon on rows that are one vector, whose sign is the vector at length 1."""
    yield from gt_nsgdm(s, beta)


def gpa(s: Setting, average: float = 0.9934, gradient_average: float = 0.7) -> Iterates:
    x = z = s.start()
    for t in itertools.count():
        y = gradient_average * x + (1 - gradient_average) * z
        z = z + s.optimizer.update(mean(s.gradient(y, decayed=z)), s.lr(t))
        x = average * x + (1 - average) * z
        yield x


def powergossip(s: Setting, mode: str = "awc", iterations: int = 1) -> Iterates:
    """Compute PowerGossip on single vectors, which are averaged exactly; the first step of awc sends nothing."""
    x = s.start()
    for t in itertools.count():
        u = s.update(x, t)
        y = x + u if mode == "atc" else x
        for _ in range(iterations):
            y = s.mix(y, t)
        x = y if mode == "atc" else y + u
        yield x


def nids(s: Setting) -> Iterates:
    x_before = s.start()
    u_before = s.update(x_before, 0)
    x = x_before + u_before
    for t in itertools.count(1):
        yield x
        u = s.update(x, t)
        z = 2 * x - x_before + u - u_before
        x_before, u_before, x = x, u, (z + s.mix(z, t)) / 2


def lt_admm(s: Setting, period_steps: int = 4, beta: float | None = None, alpha: float = 0.5) -> Iterates:
    x, neighbors = s.start(), [[j for j in range(s.n) if j != i and s.matrix(0, 0)[i, j]] for i in range(s.n)]
    z = {(i, j): x[i] for i in range(s.n) for j in neighbors[i]}
    beta = beta or 1 / (period_steps * (1 + max(map(len, neighbors))))
    for t in itertools.count():
        if t % period_steps == 0:
            c = np.array([beta * sum(x[i] - z[i, j] for j in neighbors[i]) for i in range(s.n)])
        x = x + s.update(x, t) - c
        if (t + 1) % period_steps == 0:
            z = {(i, j): (1 - alpha) * z[i, j] - alpha * (z[j, i] - 2 * x[j]) for i, j in z}
        yield x


def sample_gradients(s: Setting, x: Array) -> Array:
    """Return the gradients of all least-squares rows [n, m, d], scaled so that their mean is the full gradient."""
    return np.array([len(b) * (A @ xi - b)[:, None] * A for A, b, xi in zip(s.A, s.b, x, strict=True)])


class Table:
    """The last gradient of every sample; `drawn(t)` [n, B] are the samples of step t."""

    def __init__(self, s: Setting, drawn: Callable[[int], Any]) -> None:
        self.s, self.drawn = s, drawn

    def fill(self, x: Array) -> None:
        self.values = sample_gradients(self.s, x)

    def estimate(self, x: Array, t: int) -> Array:
        new, chosen = sample_gradients(self.s, x), list(enumerate(self.drawn(t)))
        g = np.array([np.mean([new[i, s] - self.values[i, s] for s in own], axis=0) for i, own in chosen])
        return g + self.values.mean(axis=1)

    def replace(self, x: Array, t: int) -> None:
        new = sample_gradients(self.s, x)
        for i, own in enumerate(self.drawn(t)):
            self.values[i, own] = new[i, own]


def gt_saga(s: Setting, drawn: Callable[[int], Any], batch: int = 1) -> Iterates:
    x, table = s.start(), Table(s, drawn)
    y = G = np.zeros_like(x)
    table.fill(x)
    for t in itertools.count():
        g = table.estimate(x, t) + s.optimizer.weight_decay * x
        table.replace(x, t)
        G, before = s.optimizer.update(g, -1.0), G
        y = s.mix(y + G - before, t)
        x = s.mix(x - s.lr(t) * y, t)
        yield x


def gt_sarah(s: Setting, drawn: Callable[[int], Any], batch: int = 1, inner_steps: int = 10) -> Iterates:
    x = x_before = s.start()
    v = y = d = np.zeros_like(x)
    for t in itertools.count():
        if t % (inner_steps + 1) == 0:
            v = sample_gradients(s, x).mean(axis=1)
        else:
            change = sample_gradients(s, x) - sample_gradients(s, x_before)
            v = v + np.array([change[i, own].mean(axis=0) for i, own in enumerate(drawn(t))])
        d, before = s.optimizer.update(v + s.optimizer.weight_decay * x, -1.0), d
        y = s.mix(y, t) + d - before
        x, x_before = s.mix(x, t) - s.lr(t) * y, x
        yield x


def lt_admm_vr(
    s: Setting, drawn: Callable[[int], Any], period_steps: int = 4, batch: int = 1, refill: bool = True
) -> Iterates:
    table, neighbors = Table(s, drawn), [[j for j in range(s.n) if j != i and s.matrix(0, 0)[i, j]] for i in range(s.n)]
    x = s.start()
    z = {(i, j): x[i] for i in range(s.n) for j in neighbors[i]}
    for t in itertools.count():
        if t % period_steps == 0:
            steps = period_steps * (1 + max(map(len, neighbors)))
            c = np.array([sum(x[i] - z[i, j] for j in neighbors[i]) / steps for i in range(s.n)])
        if t == 0 or (refill and t % period_steps == 0):
            table.fill(x)
        x = x + s.optimizer.update(table.estimate(x, t) + s.optimizer.weight_decay * x, s.lr(t)) - c
        table.replace(x, t)
        if (t + 1) % period_steps == 0:
            z = {(i, j): (z[i, j] - z[j, i] + 2 * x[j]) / 2 for i, j in z}
        yield x


def slowmo(
    s: Setting,
    base: str = "dpsgd",
    period_steps: int = 12,
    outer_lr: float = 1.0,
    outer_momentum: float = 0.5,
    average: bool = True,
    in_lr_units: bool = True,
) -> Iterates:
    """Compute SlowMo over SGP: numerators x, models z; an exact average resets the push-sum weights to 1."""
    z = phi = s.start()
    u, w = np.zeros_like(z), np.ones_like(z)
    for t in itertools.count():
        if base == "local_sgd":
            z = z + s.update(z, t)
        elif base == "dpsgd":
            z = s.mix(z + s.update(z, t), t)
        elif base == "dpsgd_awc":
            y = s.mix(z, t)
            z = y + s.optimizer.update(s.gradient(z, decayed=y), s.lr(t))
        else:
            x, w = s.mix(w * z + s.update(z, t), t), s.mix(w, t)
            z = x / w
        if (t + 1) % period_steps == 0:
            lr = s.lr(t) if in_lr_units else 1.0
            together = mean(w * z) if average else z
            w = np.ones_like(w) if average else w
            u = outer_momentum * u + (phi - together) / lr
            z = phi = phi - outer_lr * lr * u
        yield z


def gt_nsgdm(s: Setting, beta: float = 0.9) -> Iterates:
    x = s.start()
    m = y = np.zeros_like(x)
    for t in itertools.count():
        g = s.optimizer.update(s.gradient(x), -1.0)
        m, before = beta * m + (1 - beta) * g, m
        y = s.mix(y + m - before, t)
        x = s.mix(np.array([xi - s.lr(t) * yi / np.sqrt(yi @ yi) for xi, yi in zip(x, y, strict=True)]), t)
        yield x


def streaming_diloco(
    s: Setting,
    period_steps: int = 50,
    fragments: int = 5,
    delay_steps: int = 0,
    own_share: float = 0.0,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    split: str = "contiguous",
) -> Iterates:
    d, every = len(s.x0), period_steps // fragments
    parts = np.array_split(np.arange(d), fragments)
    if split == "interleaved":
        parts = [np.arange(f, d, fragments) for f in range(fragments)]
    trained = [s.start()]
    x, phi = s.start(), s.start()
    before = phi.copy()
    for t in itertools.count():
        x = x + s.update(x, t)
        trained.append(x.copy())
        if (t + 1) % every == 0 and t + 1 > delay_steps:
            part = parts[((t + 1) // every - 1) % fragments]
            old = trained[t + 1 - delay_steps]
            y = phi[:, part] - outer_lr * mean((phi - old)[:, part])
            phi[:, part] = y + outer_momentum * (y - before[:, part])
            before[:, part] = y
            x[:, part] = (1 - own_share) * phi[:, part] + own_share * x[:, part]
        yield x.copy()


def noloco(
    s: Setting,
    period_steps: int = 50,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.5,
    consensus: float = 0.7,
    group_size: int = 2,
    orders: Callable[[int], Any] = lambda round: (),
) -> Iterates:
    """`orders`: the permutation of the workers in each outer step; every m-th of it is one of m groups."""
    x = s.start()
    phi, d = x, np.zeros_like(x)
    for t in itertools.count():
        x = x + s.update(x, t)
        if (t + 1) % period_steps == 0:
            number, order = max(1, s.n // group_size), list(orders(t // period_steps))
            drift, model = np.empty_like(x), np.empty_like(x)
            for c in range(number):
                group = order[c::number]
                drift[group], model[group] = (x - phi)[group].mean(axis=0), phi[group].mean(axis=0)
            d = outer_momentum * d + outer_lr * drift + consensus * (model - phi)
            x = phi = phi + d
        yield x


def gasloc(s: Setting, period_steps: int = 50, outer_lr: float = 0.7, outer_momentum: float = 0.9) -> Iterates:
    x = s.start()
    phi = before = x
    for t in itertools.count():
        x = x + s.update(x, t)
        if (t + 1) % period_steps == 0:
            y = (1 - outer_lr) * phi + outer_lr * x
            x = phi = s.mix(y, t // period_steps) + outer_momentum * (y - before)
            before = y
        yield x


def sparseloco(
    s: Setting,
    period_steps: int = 30,
    outer_lr: float = 1.0,
    error_decay: float = 0.95,
    mean_of: str = "workers",
    compress: Compress = nothing,
) -> Iterates:
    x = s.start()
    phi, e = x, np.zeros_like(x)
    for t in itertools.count():
        x = x + s.update(x, t)
        if (t + 1) % period_steps == 0:
            e = error_decay * e + phi - x
            sent = compress(e)
            x = phi = phi - outer_lr * (mean(sent) if mean_of == "workers" else mean_of_senders(e, compress))
            e = e - sent
        yield x


def dion(s: Setting) -> Iterates:
    """Of rows without matrices."""
    yield from allreduce(s)


def demo(
    s: Setting,
    decay: float = 0.999,
    subtract: float = 1.0,
    signed: bool = True,
    decoupled_decay: float = 0.0,
    compress: Compress = nothing,
) -> Iterates:
    x = s.start()
    D = np.zeros_like(x)
    for t in itertools.count():
        D = decay * D - s.lr(t) * s.optimizer.update(s.gradient(x), 1.0)
        q = mean_of_senders(D, compress)
        D = D - subtract * compress(D)
        x = (1 - s.lr(t) * decoupled_decay) * x - s.lr(t) * (np.sign(q) if signed else q)
        yield x


def teleportation(
    s: Setting, active: int = 4, graph: str = "ring", orders: Callable[[int], Any] = lambda round: ()
) -> Iterates:
    """On a ring or everybody with everybody. `orders`: the permutation whose first `active` workers are those of a
    step. The optimizer is asked for all, and keeps its momentum for those that are active only."""
    k, x = min(active, s.n), s.start()
    W = np.full((k, k), 1 / k)
    if graph == "ring" and k > 3:
        W = sum(np.roll(np.eye(k), shift, axis=0) for shift in (-1, 0, 1)) / 3
    buffers = {i: copy.deepcopy(s.optimizer) for i in range(s.n)}
    for t in itertools.count():
        S, after = (list(range(s.n)) if k == s.n else list(orders(r))[:k] for r in (t, t + 1))
        g, tokens = s.gradient(x), []
        for i in S:
            if hasattr(buffers[i], "k"):
                buffers[i].k = t  # Adam counts the steps of all
            tokens.append(x[i] + buffers[i].update(g[i], s.lr(t)))
        tokens = list(W @ np.array(tokens))
        x = x.copy()
        for i, token in zip(S, tokens, strict=True):
            x[i] = token
        for i, token in zip(after, tokens, strict=True):
            x[i] = token
        yield x
