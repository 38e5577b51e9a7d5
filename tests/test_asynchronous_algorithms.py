"""Methods in which nobody waits for all: each against its formula, computed once more in numpy."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from decentral.algorithms.a2cid2 import A2CiD2, constants
from decentral.algorithms.adpsgd import ADPSGD
from decentral.algorithms.async_diloco import AsyncDiLoCo, Rule, StaleWeight
from decentral.algorithms.async_push_sum import AsyncPushSum
from decentral.algorithms.eager_sgd import EagerSGD, Partial
from decentral.algorithms.wagma import WAGMA, Order, StaleRule
from decentral.compression.dense import NoCompression
from decentral.compression.rows import RowLayout
from decentral.network.local import LocalNetwork
from decentral.network.processes import ProcessNetwork, join
from decentral.network.settings import Carrier, NetworkSettings
from decentral.network.transports.shared_memory import Segments
from decentral.network.windows.window import SmallWeight
from decentral.network.world import World
from decentral.optim.optimizer import LocalRule
from decentral.optim.sgd import SGD
from decentral.registry import components
from decentral.report.summary import summary
from decentral.store import RunStore
from decentral.store.checkpoints import load_part
from decentral.topology.delivery import Losses
from decentral.topology.rounds import Rounds
from decentral.topology.topology import Weights
from handmade_cluster import RATE, Costs, Virtual, pulls
from table import a_third

# -- Methods in which nobody waits for all: each against its formula, computed once more in numpy ----------------------

COSTS = Costs(mean=0.07, hop=0.02, message=0.4, pair=0.25, copy=0.01)


def rounds(topology: str, n: int, **fields: Any) -> Rounds:
    schedule: Rounds = components("topology")[topology](**fields).schedule(n)
    return schedule


def uneven(n: int, steps: int = 64, seed: int = 0) -> np.ndarray:
    return 0.05 + np.random.default_rng(seed).exponential(size=(steps, n)) ** 2


def gradient(n: int, dimension: int):
    """As the virtual cluster's, in numpy."""
    found = pulls(n, dimension)
    return lambda x, i, t: found(torch.from_numpy(x), i, t).numpy()


class Expected(NamedTuple):
    """Models after the last step, when the last worker is there, and (age -> how often)."""

    x: np.ndarray
    ends: float
    ages: Counter[int]


def algorithm_2(method: WAGMA, n: int, S: int, times: np.ndarray, costs: Costs, steps: int) -> Expected:
    """Version after version, from when each worker arrives in it: recurrences, no events."""
    k, bits, g, dimension = S.bit_length() - 1, n.bit_length() - 1, gradient(n, 3), 3
    x, ready, engine, ages = np.zeros((n, dimension)), np.zeros(n), np.zeros(n), Counter[int]()
    sent: list[list[tuple[float, int, np.ndarray]]] = [[(-math.inf, -1, np.zeros(dimension))] for _ in range(n)]
    for t in range(steps):
        arrival = ready + times[t % len(times)]
        u = np.stack([-RATE * g(x[i], i, t) for i in range(n)])
        adapt_first = method.order is Order.adapt_then_combine
        x = x + u if adapt_first else x
        for i in range(n):
            sent[i].append((arrival[i], t, x[i].copy()))
        if (t + 1) % method.tau == 0 or t + 1 == steps:
            x = np.broadcast_to(x.mean(0), x.shape).copy()
            ready = np.full(n, arrival.max() + costs.mean)
            if method.refresh_send_buffer:
                for i in range(n):
                    sent[i][-1] = (*sent[i][-1][:2], x[i].copy())
        elif method.groups:
            mask = sum(1 << ((t * k if method.dynamic else 0) + r) % bits for r in range(k))
            first = int(arrival.argmin())
            told = [arrival[first] + costs.hop * (first ^ j).bit_count() for j in range(n)]
            starts = np.maximum(np.minimum(arrival, told), engine)
            old, ready = x.copy(), arrival.copy()
            for i in range(n):
                members = [j for j in range(n) if not (i ^ j) & ~mask]
                begins = max((arrival if not method.wait_avoiding else starts)[members])
                taken = []
                for j in members:
                    until = begins if not method.wait_avoiding else starts[j]
                    taken.append(max((one for one in sent[j] if one[0] <= until), key=lambda one: one[1]))
                version = taken[members.index(i)][1]
                ages[t - version] += 1
                total = sum(row for _, _, row in taken)
                fresh = version == t and method.stale_rule is StaleRule.paper
                x[i] = total / S if fresh else (total + old[i]) / (S + 1)
                engine[i] = begins + costs.mean
                ready[i] = max(arrival[i], engine[i]) + costs.copy
        else:
            ready = arrival
        x = x if adapt_first else x + u
    return Expected(x, float(ready.max()), ages)


SETTINGS = {
    "paper": WAGMA(tau=4, recv_depth=4),
    "blocking": WAGMA(tau=4, wait_avoiding=False),
    "fixed groups": WAGMA(tau=4, recv_depth=4, dynamic=False),
    "combine first": WAGMA(tau=4, recv_depth=4, order=Order.combine_then_adapt),
    "always plus one": WAGMA(tau=4, recv_depth=4, stale_rule=StaleRule.always_plus_one),
    "refreshed": WAGMA(tau=5, recv_depth=5, refresh_send_buffer=True),
    "no groups": WAGMA(tau=3, groups=False),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_wagma_is_algorithm_2(setting):
    for n, S in [(8, 4), (8, 8), (4, 1)]:
        method = SETTINGS[setting]
        method = WAGMA(**{**vars(method), "group_size": str(S)})
        run = Virtual(method, rounds("ring", n), uneven(n), COSTS, 30)
        expected = algorithm_2(method, n, S, uneven(n), COSTS, 30)
        np.testing.assert_allclose(run.run(), expected.x, rtol=0, atol=1e-12)
        assert run.timeline.now == pytest.approx(expected.ends, rel=1e-12)
        assert run.timeline.ages == dict(expected.ages)
        assert max(run.timeline.ages, default=0) <= method.tau - 1
        assert setting != "blocking" or set(run.timeline.ages) == {0}


@pytest.mark.parametrize("collective", Partial)
def test_eager_sgd_loses_no_gradient(collective):
    """What workers have applied, and what still lies in their buffers, is what they have taken: of 1 by each draw."""
    n, steps = 8, 40
    method = EagerSGD(collective=collective, period_steps=8)
    run = Virtual(method, rounds("ring", n), uneven(n), COSTS, steps, gradient=lambda x, i, t: torch.eye(n)[i].double(),
                  dimension=n)  # fmt: skip
    applied = run.run() * -n / RATE
    left = run.state.send.numpy()
    assert left.any(), "nobody was late"
    np.testing.assert_allclose(applied, np.broadcast_to(steps - left.sum(0), (n, n)), rtol=0, atol=1e-12)
    assert np.array_equal(left, np.diag(np.diag(left)))
    assert sum(run.timeline.ages.values()) == n * steps and len(run.timeline.ages) > 1


def test_adpsgd_on_a_pair_by_hand():
    """Worker 0 asks after its gradient; a gradient that is under way is that of the model before."""
    times, g = np.array([[1.0, 1.5]]), gradient(2, 3)
    run = Virtual(ADPSGD(), rounds("chain", 2), times, Costs(pair=0.25), 2)
    a = -RATE * g(np.zeros(3), 0, 0)  # at 1
    b0 = -RATE * g(np.zeros(3), 1, 0)  # at 1.5, after the averaging at 1.25
    first = a / 2
    at_1 = first + b0
    a_2 = first - RATE * g(a, 0, 1)  # at 2: the gradient began at 1, before the averaging
    mean = (at_1 + a_2) / 2  # at 2.25
    b_2 = mean - RATE * g(at_1, 1, 1)  # at 3
    np.testing.assert_allclose(run.run(), [mean, b_2], rtol=0, atol=1e-14)
    assert run.timeline.now == 3.0


def test_the_constants_of_a2cid2_are_the_papers():
    eta, alpha_t = constants(rounds("ring", 16), 1)
    assert (eta, alpha_t) == (pytest.approx(0.142474, abs=1e-6), pytest.approx(1.871689, abs=1e-6))
    twice = constants(rounds("ring", 16), 2)
    assert twice.eta == pytest.approx(2 * eta) and twice.alpha_t == pytest.approx(alpha_t)
    pair = constants(rounds("chain", 2), 1)
    assert pair.alpha_t == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("mix_before_gradient", [True, False])
def test_a2cid2_takes_gradients_at_the_mixed_model_or_at_the_model_as_it_is(mix_before_gradient):
    n, dimension = 6, 3
    run = Virtual(A2CiD2(mix_before_gradient=mix_before_gradient), rounds("ring", n), uneven(n), COSTS, 20)
    found, grad = run.run(), gradient(n, dimension)
    eta, alpha_t = constants(rounds("ring", n), 1)
    eta /= float(uneven(n).mean())
    x, xt, tau = np.zeros((n, dimension)), np.zeros((n, dimension)), np.zeros(n)
    g, draws = np.zeros((n, dimension)), [0] * n

    def mix(i: int, now: float) -> None:
        a = (1 + np.exp(-2 * eta * (now - tau[i]))) / 2
        x[i], xt[i], tau[i] = a * x[i] + (1 - a) * xt[i], (1 - a) * x[i] + a * xt[i], now

    for now, event, arguments in run.seen:
        i = arguments[0]
        if event == "begin_gradient":
            if mix_before_gradient:
                mix(i, now)
            g[i] = grad(x[i], i, draws[i])
            draws[i] += 1
        elif event == "local" and arguments[1].__name__ == "update":
            mix(i, now)
            x[i], xt[i] = x[i] - RATE * g[i], xt[i] - RATE * g[i]
        elif event == "call":
            i, j = arguments[-3:-1]
            mix(i, now)
            mix(j, now)
            m = x[i] - x[j]
            x[i], x[j], xt[i], xt[j] = x[i] - m / 2, x[j] + m / 2, xt[i] - alpha_t * m, xt[j] + alpha_t * m
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("topology", ["one_peer_exponential", "star"])
def test_async_push_sum_keeps_the_sums_of_models_and_weights(topology):
    n, steps = 6, 30
    shape = rounds(topology, n, **({"weights": Weights.uniform} if topology == "star" else {}))
    run = Virtual(AsyncPushSum(), shape, uneven(n), COSTS, steps, together=False)  # computed when they are applied
    checked, until = 0, 0.0
    with torch.no_grad():
        while run.timeline.run(until_s=until):
            until += 0.37
            s, shares = run.state, list(run.rows.underway.values())
            p = float(s.p.sum()) + sum(float(each) for _, each in shares)
            x = (s.x * s.p).sum(0) + sum(each for each, _ in shares)
            updates = -RATE * sum(run.oracle.taken, torch.zeros(3, dtype=torch.float64))
            assert p == pytest.approx(n, rel=1e-12)
            np.testing.assert_allclose(x.numpy(), updates.numpy(), rtol=0, atol=1e-12)
            checked += bool(shares)
    assert checked > 20 and len(run.oracle.taken) == n * steps
    assert float(run.state.p.min()) > 0


# -- A server that takes an outer step for each arrival ----------------------------------------------------------------

N_8 = {"activation": 0.1, "outer_momentum": 0.6, "period_steps": 3}
SERVERS = {
    "delayed": AsyncDiLoCo(**N_8),
    "N = 3": AsyncDiLoCo(**N_8 | {"arrivals": 3, "activation": 0.25}, dynamic_steps=True),
    "buffered": AsyncDiLoCo(rule=Rule.buffered, arrivals=4, period_steps=2),
    "window": AsyncDiLoCo(rule=Rule.buffered, period_steps=2, grace_s=0.5),
    "weighted": AsyncDiLoCo(rule=Rule.weighted, period_steps=4, dynamic_steps=True, grace_s=0.3),
    "quorum": AsyncDiLoCo(rule=Rule.quorum, quorum=3, period_steps=4, dynamic_steps=True),
    "quorum, window": AsyncDiLoCo(rule=Rule.quorum, quorum=2, period_steps=3, dynamic_steps=True, grace_s=0.4),
    "quorum, weighted": AsyncDiLoCo(rule=Rule.weighted, quorum=2, period_steps=2, grace_s=0.2),
    "polynomial": AsyncDiLoCo(rule=Rule.weighted, period_steps=1, stale_weight=StaleWeight.polynomial),
}


class Arrival(NamedTuple):
    time: float
    worker: int
    seen: int  # the version that it began at
    taken: int  # the version that it takes


def arrivals(H: list[int], times: np.ndarray, grace: float, quorum: int) -> Iterator[Arrival]:
    """Arrivals without end: a heap of pending ends."""
    n, version, drawn = len(H), 0, [0] * len(H)

    def ends(i: int, now: float) -> float:
        for _ in range(H[i]):
            now, drawn[i] = now + times[drawn[i] % len(times), i], drawn[i] + 1
        return now

    running = [(ends(i, 0.0), i, 0) for i in range(n)]
    heapify(running)
    while True:
        window = [heappop(running) for _ in range(quorum)]
        closes = window[-1][0] + grace
        while grace and running and running[0][0] <= closes:
            window.append(heappop(running))
        version += len(window)
        yield from (Arrival(*one, version) for one in window)
        for _, i, _ in window:
            heappush(running, (ends(i, window[-1][0]), i, version))


def on_a_server(method: AsyncDiLoCo, n: int, H: list[int], events: list[Arrival]) -> np.ndarray:
    """The server's model after these events."""
    g, draws, e, b = gradient(n, 3), [0] * n, method.outer_lr, method.outer_momentum
    N, c = method.arrivals or n, method.activation
    thetas, m, ds = [np.zeros(3)], np.zeros(3), []
    window: list[tuple[int, np.ndarray]] = []
    for k, (_, i, seen, taken) in enumerate(events):
        x = thetas[seen]
        for _ in range(H[i]):
            x, draws[i] = x - RATE * g(x, i, draws[i]), draws[i] + 1
        d, ends = thetas[seen] - x, (k + 1) % N == 0
        ds.append(d)
        if method.rule is Rule.weighted:
            d = d / n**0.5 * ((1 + k - seen) ** -0.5 if method.stale_weight is StaleWeight.polynomial else 1)
            m = b * m + d
            step = d + b * m
        elif method.rule is Rule.buffered:
            m = b * m + np.mean(ds[-N:], 0) if ends else m
            step = np.mean(ds[-N:], 0) + b * m if ends else 0
        elif method.rule is Rule.quorum:
            window.append((H[i], x))
            step = np.zeros(3)
            if taken == k + 1:
                D = thetas[-1] - np.average([x for _, x in window], axis=0, weights=[h for h, _ in window])
                m = b * m + D
                step, window = D + b * m, []
        else:
            m = b * m + np.mean(ds[-N:], 0) if ends else m
            step = d / N + ((1 - c * N + c) if ends else c) * b * m
        thetas.append(thetas[-1] - e * step)
    return thetas[-1]


@pytest.mark.parametrize("setting", SERVERS)
def test_a_server_takes_the_step_of_its_rule_for_each_arrival(setting):
    method = SERVERS[setting]
    for n, equal in ((5, False), (4, True), (method.quorum, False)):
        times = np.ones((1, n)) if equal else uneven(n) * np.linspace(1, 3, n)
        v = 1 / times.mean(0)
        H = [max(1, int(method.period_steps * one / v.max() + 1e-9)) if method.dynamic_steps else method.period_steps
             for one in v]  # fmt: skip
        run = Virtual(method, rounds("ring", n) if n > 2 else rounds("chain", n), times, Costs(), 80)
        with torch.no_grad():
            run.timeline.run(gradients=40 * n)  # later, some have no gradients left to deliver
        seen = [(at, arguments[-1]) for at, what, arguments in run.seen if what == "call"
                and arguments[0].__name__ == "deliver"]  # fmt: skip
        expected = list(islice(arrivals(H, times, method.grace_s, method.quorum), len(seen)))
        assert len(seen) >= 10 * n // max(H) and [(one.time, one.worker) for one in expected] == seen
        np.testing.assert_allclose(run.state.theta[0].numpy(), on_a_server(method, n, H, expected), rtol=0, atol=1e-12)
        assert run.timeline.ages == Counter(k - one.seen for k, one in enumerate(expected))


class Region:
    """A region's server, and what is between it and the global server."""

    def __init__(self) -> None:
        self.theta, self.ref = np.zeros(3), np.zeros(3)
        self.m, self.Delta, self.version, self.merged = np.zeros(3), np.zeros(3), 0, 0

    def step(self, d: np.ndarray, e: float, b: float, N: int, c: float) -> None:
        self.Delta, self.version = self.Delta + d, self.version + 1
        ends = self.version % N == 0
        if ends:
            self.m, self.Delta = b * self.m + self.Delta / N, np.zeros(3)
        self.theta = self.theta - e * (d / N + ((1 - c * N + c) if ends else c) * b * self.m)


def in_regions(method: AsyncDiLoCo, n: int, times: np.ndarray, hop: float, until: int) -> tuple[list[Region], int]:
    """The regions, and the global server last, after so many gradients, and the rows sent: a heap of all events.

    A message between machines takes `hop`; ports are never busy.
    """
    R, K, H, g, draws = method.regions, method.global_every, method.period_steps, gradient(n, 3), [0] * n
    assert K is not None
    servers = [Region() for _ in range(R + 1)]
    home = [min(i for i in range(n) if i * R // n == r) for r in range(R)]
    x, start, begun, sent = np.zeros((n, 3)), np.zeros((n, 3)), 0, 0
    events: list[tuple[float, int, str, int, Any]] = []
    numbers = iter(range(10**6))

    def at(time: float, what: str, who: int, row: Any = None) -> None:
        heappush(events, (time, next(numbers), what, who, row))

    def begins(i: int, now: float) -> None:
        """H gradients, as far as there are so many left."""
        at(now + times[draws[i] % len(times), i], "gradient", i)

    for i in range(n):
        begins(i, 0.0)
        begun += 1
    while events:
        now, _, what, who, row = heappop(events)
        if what == "gradient":
            x[who] -= RATE * g(x[who], who, draws[who])
            draws[who] += 1
            if draws[who] % H:
                if begun < until:
                    begins(who, now)
                    begun += 1
            else:
                at(now + hop * (who not in home), "arrival", who)
        elif what == "arrival":
            r = who * R // n
            server, sent = servers[r], sent + 2 * (who not in home)
            server.step(start[who] - x[who], method.outer_lr, method.outer_momentum, method.arrivals or n // R,
                        method.activation)  # fmt: skip
            at(now + hop * (who not in home), "taken", who, server.theta)
            if server.version == server.merged + K:
                if r:
                    at(now + hop, "asked", r, server.ref - server.theta)
                else:
                    ask(servers, method, server.ref - server.theta)
                    merge(server, servers[-1].theta, method.global_share)
        elif what == "taken":
            x[who] = start[who] = row
            if begun < until:
                begins(who, now)
                begun += 1
        elif what == "asked":
            ask(servers, method, row)
            at(now + hop, "answered", who, servers[-1].theta)
            sent += 2
        else:
            merge(servers[who], row, method.global_share)
    return servers, sent


def ask(servers: list[Region], method: AsyncDiLoCo, d: np.ndarray) -> None:
    servers[-1].step(d, method.global_lr, method.global_momentum, method.global_arrivals, method.global_activation)


def merge(server: Region, theta: np.ndarray, a: float) -> None:
    server.theta = server.ref = (1 - a) * server.theta + a * theta
    server.merged = server.version


def heloco(d: np.ndarray, m: np.ndarray) -> np.ndarray:
    """The correction of one parameter's change, with the default constants."""
    a, b = np.linalg.norm(d), np.linalg.norm(m)
    if a < 1e-8 or b < 1e-8 or (cos := d @ m / (a * b)) >= 0.2:
        return d
    conf = a / (a + 3 * b + 1e-8)
    if cos < 0:
        return d - min(-0.5 * cos * conf, 0.5) * cos * a * m / b
    part = min((1 - cos) * conf, 1)
    t = (1 - part) * d / a + part * m / b
    return a * t / np.linalg.norm(t)


@pytest.mark.parametrize("c_ok", [0.2, -1.0])
def test_heloco_corrects_each_parameter_that_opposes_the_momentum(c_ok):
    layout, n, draw = RowLayout(("a", "b"), ((2, 3), (4,))), 4, np.random.default_rng(5)
    method = AsyncDiLoCo(rule=Rule.heloco, c_ok=c_ok)
    method = method.bind(LocalRule(SGD(), lambda t: RATE), NoCompression().bound(layout, 0))
    state = method.init(torch.zeros(n, 10, dtype=torch.float64), LocalNetwork(rounds("ring", n), CERTAIN))
    theta, m, cases = np.zeros(10), np.zeros(10), Counter[int]()
    for k in range(60):
        d = draw.normal(size=10)
        method.arrive(0, n, state, torch.from_numpy(d.copy()), k, 1)
        for part in (slice(0, 6), slice(6, 10)):
            cases[int(d[part] @ m[part] > 0)] += not np.array_equal(heloco(d[part], m[part]), d[part])
            d[part] = heloco(d[part], m[part]) if c_ok > 0 else d[part]
        m = 0.9 * m + 0.1 * d / 2
        theta = theta - 0.7 * (d / 2 + 0.9 * m)
        np.testing.assert_allclose(state.theta[0].numpy(), theta, rtol=0, atol=1e-12)
    assert min(cases[0], cases[1]) > 5


HALOS = {"global_every": 2, "period_steps": 2, "outer_lr": 0.8, "outer_momentum": 0.6}


@pytest.mark.parametrize("hop", [0.0, 0.9])
@pytest.mark.parametrize(
    "more", [{}, {"arrivals": 1, "global_arrivals": 1, "global_share": 0.6}, {"regions": 1}], ids=str
)
def test_regions_exchange_models_with_a_global_server(hop, more):
    n, steps = 6, 40
    method = AsyncDiLoCo(**{"regions": 3, "activation": 0.2, "global_activation": 0.3, **HALOS, **more})
    times = uneven(n) * np.linspace(1, 3, n)
    run = Virtual(method, rounds("ring", n), times, Costs(message=hop, hop=hop), steps)  # no time in ports
    run.run()
    expected, sent = in_regions(method, n, times, hop, n * steps)
    assert run.state.version.tolist() == [one.version for one in expected] and min(run.state.version) > 5
    for r, one in enumerate(expected):
        np.testing.assert_allclose(run.state.theta[r].numpy(), one.theta, rtol=0, atol=1e-12)
    assert run.timeline.sent_by_now() == (8 * 3 * sent, sent)


SERVER = [*("task=quadratics", "task.dimension=5", "task.noise=0.1", "lr=0.05", "steps=12", "trace=true"),
          *("algo.period_steps=3", "checkpoint_every_s=0", "optim=momentum")]  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        ["num_workers=1", "task.zeta2=0", "algo.activation=0.4", "algo.arrivals=1"],
        ["num_workers=5", "task.zeta2=1", "algo.rule=buffered", "algo.grace_s=1"],
        ["num_workers=5", "task.zeta2=1", "algo.rule=quorum", "algo.quorum=5"],
        ["num_workers=1", "task.zeta2=0", "algo.rule=quorum"],
    ],
    ids=["one worker", "all together", "quorum of all", "quorum of one"],
)
def test_the_limits_of_a_server_are_diloco(start, settings):
    ours = start(*SERVER, "algo=async_diloco", *settings, directory="ours")
    theirs = start(*SERVER, "algo=diloco", *settings[:2], directory="theirs")
    np.testing.assert_allclose(ours.iterates, theirs.iterates, rtol=0, atol=1e-13)
    assert ours.facts["bytes_sent"] == theirs.facts["bytes_sent"]


# -- Asynchronous push-sum: nobody waits, and nothing is lost, whoever straggles ---------------------------------------

CERTAIN = Losses(0.0, seed=0)
CARRIERS = [Carrier.shared_memory, Carrier.torch]
N, P = 5, 7  # P is odd, so that the two halves of a model differ
SMALL = ["algo=async_push_sum", "task=quadratics", "task.dimension=5", "num_workers=5", "lr=0.05"]


def schedule(name: str, n: int = N) -> Rounds:
    settings = {} if name == "one_peer_exponential" else {"weights": Weights.uniform}
    return components("topology")[name](**settings).schedule(n)


def start_values(n: int = N) -> Tensor:
    return torch.arange(n * P, dtype=torch.float64).view(n, P).sin() + 1


def opened(
    world: World, name: str, carrier: Carrier, losses: Losses = CERTAIN
) -> tuple[ProcessNetwork, Tensor, Tensor]:
    """A network, and x and p of its local workers."""
    settings = NetworkSettings(transport=carrier, timeout_s=20)
    net = join(schedule(name), losses, world.device, world.rank, world.size, settings)
    rows = start_values()[net.workers.start : net.workers.stop].clone()
    return net, rows, torch.ones(len(rows), net.rounds.num_pieces, dtype=torch.float64)


def in_step(world: World, name: str, carrier: Carrier, rounds: int) -> list:
    """Push and drain, so that all are in step."""
    net, x, p = opened(world, name, carrier)
    for round in range(rounds):
        x, p = net.push(x, p, round)
        x, p = net.drain(x, p)
        assert net.flushed
    found = [
        net.gather(x),
        net.gather(p),
        net.traffic.bytes_sent,
        net.traffic.messages_sent,
        net.wire_bytes,
        net.wire_messages,
    ]
    net.close()
    return found


SHARED, SOCKETS = CARRIERS


@pytest.mark.parametrize(
    ("name", "carrier", "processes"),
    a_third([("star", SHARED, 2), ("dbt", SHARED, 5), ("one_peer_exponential", SOCKETS, 5), ("dbt", SOCKETS, 2)]),
)
def test_pushing_in_step_is_multiplying_with_the_matrix(worlds, name, carrier, processes):
    plan, rounds = schedule(name), 4
    net, x = LocalNetwork(plan, CERTAIN), start_values()
    p = torch.ones(N, plan.num_pieces, dtype=torch.float64)
    wanted, weights, sent = start_values(), p.clone(), 0
    for round in range(rounds):
        x, p = net.push(x, p, round)
        for h, (W, piece) in enumerate(zip(plan.matrices(round), plan.slices(P), strict=True)):
            wanted[:, piece] = torch.tensor(W) @ wanted[:, piece]
            weights[:, h] = torch.tensor(W) @ weights[:, h]
            sent += (np.count_nonzero(W) - N) * 8 * (len(range(P)[piece]) + 1)
    assert net.traffic.bytes_sent == sent
    found = worlds(processes).call(in_step, name, carrier, rounds)
    for rows, numbers, bytes_sent, messages_sent, *_ in [
        (x, p, net.traffic.bytes_sent, net.traffic.messages_sent),
        *found,
    ]:
        torch.testing.assert_close(rows, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(numbers, weights, rtol=1e-12, atol=1e-12)
        assert (bytes_sent, messages_sent) == (net.traffic.bytes_sent, net.traffic.messages_sent)
    if processes == N:
        assert sum(wire_bytes for *_, wire_bytes, _ in found) == net.traffic.bytes_sent
        assert sum(wire_messages for *_, wire_messages in found) == net.traffic.messages_sent


def out_of_step(world: World, name: str, carrier: Carrier, p_lost: float) -> list:
    """Everybody pushes as fast as it can; the process of worker 1 sleeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallWeight)
        net, x, p = opened(world, name, carrier, Losses(p_lost, seed=3))
        finished = Segments([(1,)] * world.size, torch.int64).tensors
        slow = 1 in net.workers
        at_least, round = 12 if slow else 40, 0
        while round < at_least or any(int(flag) == 0 for flag in finished):
            if slow:
                time.sleep(0.005)
            x, p = net.push(x, p, round)
            round += 1
            if round == at_least:
                finished[world.rank].fill_(1)
        assert not net.flushed
        x, p = net.drain(x, p)
        drained = [net.gather(x), net.gather(p), round]
        for round in range(80):  # in step, so that all agree
            x, p = net.drain(*net.push(x, p, round))
        estimates = net.gather(net.scale(x.clone(), 1 / p))
        net.close()
    return [*drained, estimates]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "p_lost", "carrier", "processes"),
    [
        ("star", 0.0, SOCKETS, 2),
        pytest.param("dbt", 0.0, SHARED, 4, marks=pytest.mark.slow),
        pytest.param("one_peer_exponential", 0.3, SOCKETS, 4, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_lost_out_of_step(worlds, name, p_lost, carrier, processes):
    found = worlds(processes).call(out_of_step, name, carrier, p_lost)
    total = start_values().sum(0)
    for x, p, _, estimates in found:
        np.testing.assert_allclose(p.sum(0), N, rtol=1e-12)
        torch.testing.assert_close(x.sum(0), total, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(estimates, (total / N).expand(N, P), rtol=1e-6, atol=1e-6)


def do_not_mind(world: World) -> None:
    """From now on small weights are no errors in this process: pace depends on what else the machine does."""
    warnings.simplefilter("ignore", SmallWeight)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_run_with_a_straggler_descends_and_keeps_all_weights(start, worlds, carrier):
    """Every evaluation drains, which raises LostMass if something is lost."""
    overrides = [
        *SMALL, "topology=exponential", "task.initial_distance=10", "steps=60", "evaluation.every_epochs=20",
        "checkpoint_every_s=0", f"network.transport={carrier.name}",
    ]  # fmt: skip
    slow = ("mode=fixed", "workers=[1]", "count=null", "delay_s=0.001")
    straggler = ["processes=2", "cluster=two_delayed", *(f"cluster.stragglers.{setting}" for setting in slow)]
    worlds(2).call(do_not_mind)
    result = start(*overrides, *straggler, processes=2)
    assert sorted({row["step"] for row in result.rows}) == [0, 20, 40, 60]
    losses = [row["value"] for row in result.rows if (row["metric"], row["worker"]) == ("suboptimality", "averaged")]
    assert losses[-1] < 0.5 * losses[0]  # a single worker's depends on when the machine let it run last
    alone = start(*overrides, directory="alone")
    assert "2 processes" in summary(result.directory) and "depends on their pace" in summary(result.directory)
    assert "results are the same up to rounding" in summary(alone.directory)
    for fact in ("bytes_sent", "messages_sent"):
        assert result.facts[fact] == alone.facts[fact]


def test_a_checkpoint_holds_all_shares_and_a_run_goes_on_from_it(start, worlds):
    for processes in (2, 3):
        worlds(processes).call(do_not_mind)
    overrides = [*SMALL, "topology=exponential", "steps=30", "evaluation.every_epochs=10", "checkpoint_every_s=0"]
    crashed = start(*overrides, processes=3, crash_at=23)
    assert crashed.status == "crashed"
    store = RunStore.view(crashed.directory)
    checkpoint = store.newest_checkpoint()
    assert checkpoint is not None and checkpoint.step == 20
    parts = [load_part(checkpoint, name) for name in checkpoint.parts]
    assert sum(float(part["rows"]["p"].sum()) for part in parts) == pytest.approx(5, rel=1e-12)
    assert start(*overrides, processes=2).status == "done"
