"""Asynchronous DiLoCo."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.algorithms.asynchronous import AsynchronousAlgorithm, Gradient, Local, Team
from decentral.algorithms.diloco import outer_step
from decentral.algorithms.features import Feature
from decentral.cluster.server import Outer
from decentral.errors import ConfigError
from decentral.network.asynchronous.protocol import Parent, Server
from decentral.settings import setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from decentral.algorithms.algorithm import Buffers, Rows, Shared
    from decentral.cluster.operations import Operation
    from decentral.network.network import Network


class Rule(Enum):
    """The server's step for an arrival."""

    delayed_nesterov = "delayed_nesterov"
    buffered = "buffered"
    weighted = "weighted"
    heloco = "heloco"
    quorum = "quorum"


_EPS = 1e-8


class StaleWeight(Enum):
    """The weight of an arrival by its staleness."""

    uniform = "uniform"
    polynomial = "polynomial"


def _delayed_step(s: Any, r: int, d: Tensor, e: float, b: float, N: int, c: float) -> None:
    """Take delayed Nesterov's step of server r along d [P]."""
    s.Delta[r].add_(d)
    s.version[r].add_(1)
    if s.version[r] % N == 0:
        s.m[r].mul_(b).add_(s.Delta[r], alpha=1 / N)
        s.Delta[r].zero_()
        c += 1 - c * N
    s.theta[r].sub_(s.m[r], alpha=e * c * b).sub_(d, alpha=e / N)


@dataclass
class AsyncDiLoCo(AsynchronousAlgorithm):
    """Asynchronous DiLoCo: a server takes an outer step for each worker that finishes its local steps.

        x_i <- x_i + u_i                                 H = `period_steps` times, without waiting for anyone; then
        d = phi_i - x_i,  theta, m <- rule(theta, m, d)  for arrival k = 0, 1, ... at the server
        x_i, phi_i <- theta

    with e = `outer_lr`, b = `outer_momentum`, N = `arrivals`, c = `activation`, and `rule`:

        delayed_nesterov   Delta <- Delta + d, and, when k + 1 is a multiple of N,
                           m <- b m + Delta / N,  theta <- theta - e ((1 - c N + c) b m + d / N),  Delta <- 0;
                           otherwise theta <- theta - e (c b m + d / N)
        buffered           Delta <- Delta + d / N, and, when k + 1 is a multiple of N,
                           m <- b m + Delta,  theta <- theta - e (Delta + b m),  Delta <- 0
        weighted           d <- w d,  m <- b m + d,  theta <- theta - e (d + b m),  w = 1 / sqrt(n); with
                           stale_weight=polynomial w = 1 / sqrt(n (1 + s)) for a change of s versions ago
        heloco             d <- turned(d, m) / sqrt(n),  m <- b m + (1 - b) d,  theta <- theta - e (d + b m), where for
                           each parameter, with cos the cosine between its d and m, r = |d| / (|d| + kappa |m|):
                           cos >= c_ok: d; cos < 0: d - min(-k_s cos r, beta_max) cos |d| m / |m|; otherwise
                           |d| v / |v|, v = (1 - l) d / |d| + l m / |m|, l = min(k_d (1 - cos) r, 1)
        quorum             at the end of a window, for the workers i that have arrived since the last one, each after
                           h_i gradients, d = sum_i h_i (theta - x_i) / sum_i h_i,  m <- b m + d,
                           theta <- theta - e (d + b m)

    HALoS: each of the `regions` has a server. With `global_every` = K, a region sends D = ref - theta to a global
    server, K arrivals after its last answer. The global server takes a delayed Nesterov step along D with the `global_`
    settings and answers this region: theta, ref <- (1 - a) theta + a theta_global, a = `global_share`. Workers do not
    wait for it. Changes between sending and the answer remain in theta by the share 1 - a, but are never sent.

    Liu et al., 2024 (arXiv:2401.09135): events and the next two rules from the authors' code, delayed Nesterov from
    that of HALoS (Kim et al., ICML 2025, arXiv:2506.04531), as the regions; heloco: Al Asif et al., arXiv:2606.00271,
    from others' code; quorum: Decoupled DiLoCo (Douillard et al., arXiv:2604.21428) from summaries, with one fragment.
    The papers' texts were not checked. Decoupled DiLoCo weighs by tokens_i^2 / h_i, which is h_i for batches of one
    size. The staleness s of an arrival is the number of arrivals since its worker took theta. Fast workers take more
    gradients; simultaneous arrivals are in worker order. Local optimizer buffers stay with their workers and are never
    reset. The server is beside worker 0: any other worker sends a row per arrival and gets one back. Evaluations test
    the workers' models, also amid their local steps; theta is in the state (`trace=state`). One worker with N = 1 is
    `diloco`; so are equally fast workers with rule=buffered, N = n and grace_s > 0, and workers of any speed with
    rule=quorum, quorum=n and equal H. Departure: H defaults to 50. Topology: not used.

    rule            delayed_nesterov, buffered, weighted, heloco or quorum
    arrivals        N, the arrivals between two changes of the momentum; null: n
    activation      c, from 0 to 1 / N: the share of the momentum that every arrival uses
    stale_weight    polynomial: old changes count less (rule=weighted)
    quorum          arrivals that open a window, at whose end the server answers all workers that have arrived since
                    the last one; the others go on
    grace_s         length of the window in seconds; it ends at its last arrival in simulated time; between processes
                    once all workers have arrived or pause for an evaluation or a checkpoint, or after these seconds
    regions         number of servers, each beside the first of n / regions consecutive workers, which are then the n
                    of their server; several ones, or a global one, need simulated time
    global_every    K, the arrivals at a region before it sends to the global server, which is beside worker 0: a row
                    up and one down, which take time by the links of the servers' workers; null: there is none
    global_share, global_lr, global_momentum, global_arrivals, global_activation    a above, and e, b, N and c of the
                    global server
    dynamic_steps   worker i takes max(1, floor(H v_i / max_j v_j)) steps instead of H, v_i its mean steps per second
                    in `cluster=` (DyLU)
    c_ok, k_s, k_d, beta_max, kappa    constants of rule=heloco, as above
    events          CSV file of events, one per step, which replaces the clock: the header time,what,worker,partner
                    and lines below it. begin: the worker begins a gradient; update: it applies the gradient; outer: it
                    delivers to the server and takes theta, after any number of gradients; deliver, take: only one of
                    both, as in a window; quorum and grace_s do not matter here, and rule=quorum takes its step when a
                    worker takes theta
    """

    name: str = "async_diloco"
    rule: Rule = Rule.delayed_nesterov
    period_steps: int = setting(50, at_least=1)
    outer_lr: float = setting(0.7, at_least=0)
    outer_momentum: float = setting(0.9, at_least=0, below=1)
    arrivals: int | None = setting(None, at_least=1)
    activation: float = setting(0.0, at_least=0, at_most=1)
    stale_weight: StaleWeight = StaleWeight.uniform
    quorum: int = setting(1, at_least=1)
    grace_s: float = setting(0.0, at_least=0, hint="seconds")
    dynamic_steps: bool = False
    regions: int = setting(1, at_least=1)
    global_every: int | None = setting(None, at_least=1)
    global_share: float = setting(0.25, at_least=0, at_most=1)
    global_lr: float = setting(0.3, at_least=0)
    global_momentum: float = setting(0.5, at_least=0, below=1)
    global_arrivals: int = setting(2, at_least=1)
    global_activation: float = setting(0.0, at_least=0, at_most=1)
    c_ok: float = setting(0.2, at_least=-1, at_most=1)
    k_s: float = setting(0.5, at_least=0)
    k_d: float = setting(1.0, at_least=0)
    beta_max: float = setting(0.5, at_least=0)
    kappa: float = setting(3.0, at_least=0)
    events: str | None = setting(None, content=True)
    supports = AsynchronousAlgorithm.supports - {Feature.topology}
    free_running: ClassVar[bool] = True
    meets: ClassVar[tuple[str, ...]] = ("outer", "deliver", "take")

    class State(NamedTuple):
        """Models, what each worker took from its server, the servers' rows in process 0, and the local optimizer."""

        x: Rows  # [k, P]
        phi: Rows  # [k, P]
        seen: Rows  # [k]: the version of phi_i
        h: Rows  # [k]: the number of gradients since
        version: Shared  # [S]: the number of arrivals at each server, the global one last
        theta: Shared  # [S, P], and so are the next two
        m: Shared
        Delta: Shared
        weight: Shared  # [S]: sum of the h_i in Delta (rule=quorum)
        ref: Shared  # [S, P]: what theta was after the last answer of the global server
        opt: Buffers

    def check(self, num_workers: int, optim: Any) -> None:
        """Raise ConfigError if c > 1 / N, if a quorum or a region lacks workers, or if a file replaces the clock that
        the global server needs."""
        fewest, most = num_workers // self.regions, math.ceil(num_workers / self.regions)
        for key, number, limit in (("regions", self.regions, num_workers), ("quorum", self.quorum, fewest)):
            if number > limit:
                of = "" if self.regions == 1 or key == "regions" else f" in {self.regions} regions"
                raise ConfigError(f"algo.{key}={number} exceeds num_workers={num_workers}{of}: use at most {limit}.")
        for prefix, c, N in (
            ("", self.activation, self.arrivals or most),
            ("global_", self.global_activation, self.global_arrivals),
        ):
            if c * N > 1:
                raise ConfigError(
                    f"algo.{prefix}activation={c:g} exceeds 1 / algo.{prefix}arrivals = 1 / {N}: use at most {1 / N:g}."
                )
        if self.events is not None and self.in_regions:
            raise ConfigError(
                f"algo.events={self.events} cannot be used with {self.in_regions}: leave one of them out."
            )

    @property
    def in_regions(self) -> str:
        """Return the setting that asks for several servers; '' for none."""
        above = f"algo.global_every={self.global_every}" if self.global_every else ""
        return f"algo.regions={self.regions}" if self.regions > 1 else above

    def init(self, x: Tensor, net: Network) -> State:
        """Return the models x [k, P] and servers at x_0, which no worker has reached."""
        theta = x[:1].repeat(self.regions + (self.global_every is not None), 1)
        zero, weight = theta.new_zeros(theta.shape), theta.new_zeros(len(theta))
        servers = weight.long(), theta, zero, zero.clone(), weight, theta.clone()
        seen = x.new_zeros(len(x)).long()
        return self.State(x, x.clone(), seen, seen.clone(), *servers, self.local.init(x))

    def place(self, team: Team) -> Server:
        """Return the server of the first region."""
        return self.servers(team)[0]

    def servers(self, team: Team) -> list[Server]:
        """Return the servers of the regions."""
        return team.meeting_place(lambda: self.made(team))

    def made(self, team: Team) -> list[Server]:
        """Return new servers."""
        H, n, R = self.period_steps, team.num_workers, self.regions
        steps = [H] * n
        if self.dynamic_steps:
            fastest = min(team.each_s)
            steps = [max(1, math.floor(round(H * fastest / seconds, 12))) for seconds in team.each_s]
        servers = []
        for r in range(R):
            members = [i for i in range(n) if i * R // n == r]
            parent = None
            if self.global_every is not None:
                up = partial(self.send, r), self.step_globally, self.answer, partial(self.merge, r)
                parent = Parent(self.global_every, *up)
            arrive, now = partial(self.arrive, r, len(members)), partial(self.now, r)
            rows = self.change, arrive, self.take, self.seen, self.work, now
            servers.append(Server(*rows, steps, self.grace_s, self.quorum, members, parent))
        return servers

    def program(self, i: int, team: Team) -> Iterator[Operation]:
        """Yield H_i gradients and an exchange with the server, forever."""
        server = self.servers(team)[i * self.regions // team.num_workers]
        gradient, update, outer = Gradient(), Local(self.update), Outer(server)
        while True:
            for _ in range(server.steps[i]):
                yield gradient
                yield update
            yield outer

    def update(self, s: State, i: int, g: Tensor, t: int) -> None:
        """Take and count a local step."""
        super().update(s, i, g, t)
        s.h[i].add_(1)

    def change(self, s: State, i: int) -> Tensor:
        """Return d = phi_i - x_i, or x_i for rule=quorum."""
        return s.x[i] if self.rule is Rule.quorum else s.phi[i] - s.x[i]

    def take(self, s: State, i: int, theta: Tensor, version: int) -> None:
        """Compute x_i, phi_i <- theta."""
        s.x[i].copy_(theta)
        s.phi[i].copy_(theta)
        s.seen[i].fill_(version)
        s.h[i].zero_()

    def seen(self, s: State, i: int) -> int:
        """Return the version that worker i took last."""
        return int(s.seen[i])

    def work(self, s: State, i: int) -> int:
        """Return h_i."""
        return int(s.h[i])

    def now(self, r: int, s: State) -> tuple[Tensor, int]:
        """Return theta [P] of server r, after the step along the changes collected by rule=quorum, and its version."""
        if s.weight[r]:
            outer_step(s.theta[r], s.m[r], s.Delta[r].div_(s.weight[r]), self.outer_lr, self.outer_momentum)
            s.Delta[r].zero_()
            s.weight[r].zero_()
        return s.theta[r], int(s.version[r])

    def send(self, r: int, s: State) -> tuple[Tensor]:
        """Return the change of region r since the global server's last answer."""
        return (s.ref[r] - s.theta[r],)

    def step_globally(self, s: State, d: Tensor) -> None:
        """Take the global server's step along a region's change d [P]."""
        e, b, N, c = self.global_lr, self.global_momentum, self.global_arrivals, self.global_activation
        _delayed_step(s, self.regions, d, e, b, N, c)

    def answer(self, s: State) -> tuple[Tensor]:
        """Return a copy of the global model."""
        return (s.theta[self.regions].clone(),)

    def merge(self, r: int, s: State, theta: Tensor) -> None:
        """Move the model of region r towards the global one, theta [P]."""
        s.ref[r].copy_(s.theta[r].lerp_(theta, self.global_share))

    def arrive(self, r: int, n: int, s: State, d: Tensor, seen: int, h: int) -> None:
        """Take the step of server r, which has n workers, along d [P]: the change of the model of version `seen` in h
        gradients."""
        theta, m, Delta, k = s.theta[r], s.m[r], s.Delta[r], int(s.version[r])
        e, b, N = self.outer_lr, self.outer_momentum, self.arrivals or n
        if self.rule is Rule.delayed_nesterov:
            _delayed_step(s, r, d, e, b, N, self.activation)
            return
        s.version[r].add_(1)
        if self.rule is Rule.quorum:
            Delta.add_(theta - d, alpha=h)
            s.weight[r].add_(h)
            return
        if self.rule is Rule.weighted:
            stale = 1 + k - seen if self.stale_weight is StaleWeight.polynomial else 1
            outer_step(theta, m, d / math.sqrt(n * stale), e, b)
        elif self.rule is Rule.heloco:
            d = self.turned(d, m).div_(math.sqrt(n))
            m.mul_(b).add_(d, alpha=1 - b)
            theta.sub_(d.add_(m, alpha=b), alpha=e)
        else:
            Delta.add_(d, alpha=1 / N)
            if (k + 1) % N == 0:
                outer_step(theta, m, Delta, e, b)
                Delta.zero_()

    def turned(self, d: Tensor, m: Tensor) -> Tensor:
        """Return HeLoCo's correction of d [P], by parameter: less opposed to m, or turned towards it."""
        d = d.clone()
        for part in self.compressor.layout.slices:
            x, y = d[part], m[part]
            size, length = float(x.norm()), float(y.norm())
            cos = float(x @ y) / max(size * length, _EPS**2)
            if cos >= self.c_ok or min(size, length) < _EPS:
                continue
            trust = size / (size + self.kappa * length + _EPS)
            if cos < 0:
                x.sub_(y, alpha=min(-self.k_s * cos * trust, self.beta_max) * cos * size / length)
                continue
            share = min(self.k_d * (1 - cos) * trust, 1)
            x.mul_((1 - share) / size).add_(y, alpha=share / length)
            x.mul_(size / max(float(x.norm()), _EPS))
        return d
