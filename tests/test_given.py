"""What another code base has drawn is given, and replayed: starts, samples, graphs and events."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import decentral
from configure import configure
from decentral.algorithms.a2cid2 import constants
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.topology.static import Ring

N, D, STEPS = 4, 3, 7
RANDOM = np.random.default_rng(0)
A, B = RANDOM.normal(size=(N, D, D)), RANDOM.normal(size=(N, D))
X0 = RANDOM.normal(size=(N, D))
RUN = ["task=quadratics", "lr=0.05", f"steps={STEPS}", "trace=true", "evaluation.every_epochs=4"]


@pytest.fixture
def problem(tmp_path: Path) -> str:
    np.savez(tmp_path / "problem.npz", A=A, b=B, x0=X0)
    return f"task.problem={tmp_path / 'problem.npz'}"


def gradients(x):
    return np.einsum("nji,nj->ni", A, np.einsum("nij,nj->ni", A, x) - B)


def matrices(T: int) -> np.ndarray:
    """Doubly stochastic, not symmetric, another one in each round; the last one sends nothing."""
    shifts = [np.roll(np.eye(N), 1 + t % (N - 1), axis=1) for t in range(T)]
    return np.stack(
        [*((0.3 + 0.1 * t) * np.eye(N) + (0.7 - 0.1 * t) * P for t, P in enumerate(shifts[:-1])), np.eye(N)]
    )


def gossip(W, x=X0, steps=STEPS, lr=0.05):
    found = [x]
    for t in range(steps):
        found.append(W[t % len(W)] @ (found[-1] - lr * gradients(found[-1])))
    return np.stack(found)


def write_edges(path: Path, W: np.ndarray) -> str:
    lines = ["round,target,weight,source"]
    lines += [f"{t},{i},{W[t, i, j]!r},{j}" for t, i, j in np.argwhere(W) if i != j]
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n")
    return f"topology.path={path}"


@pytest.mark.parametrize("form", ["csv", "edges", "matrices"])
def test_each_round_has_the_graph_that_a_file_gives_it(start, tmp_path, problem, form):
    W = matrices(4)
    t, i, j = np.nonzero(W * (1 - np.eye(N)))
    if form == "csv":
        given = [write_edges(tmp_path / "rounds.csv", W[:3]), "topology.directed=true"]
        W = W[:3]
    elif form == "edges":
        np.savez(tmp_path / "w.npz", edges=np.stack([j, i], 1), weights=W[t, i, j], round=t)
        given, W = [f"topology.path={tmp_path / 'w.npz'}", "topology.directed=true"], W[:3]
    else:
        np.savez(tmp_path / "w.npz", matrices=W)
        given = [f"topology.path={tmp_path / 'w.npz'}"]
    shape = [*RUN, problem, "algo=dpsgd", "topology=file", *given]
    one = start(*shape, directory="one")
    assert np.abs(one.iterates - gossip(W)).max() < 1e-12
    assert np.abs(start(*shape, processes=2, directory="two").iterates - one.iterates).max() < 1e-12


def test_a_worker_begins_where_the_file_says_also_after_a_pause(start, problem):
    shape = [*RUN, problem, "algo=dpsgd", "topology=ring", "checkpoint_every_s=0"]
    whole = start(*shape, directory="whole")
    assert np.array_equal(whole.iterates[0], X0)
    assert start(*shape, directory="broken", interrupt_at=3).status == "interrupted"
    assert np.array_equal(start(*shape, directory="broken").iterates, whole.iterates)
    for algo in ("d2", "gradient_tracking", "extra", "noloco", "sgp", "qg_dpsgd", "local_sgd"):
        assert np.array_equal(start(*RUN, problem, f"algo={algo}", directory=algo).iterates[0], X0)
    with pytest.raises(ConfigError, match="algo=relaysgd, which starts from one shared model: give x0"):
        configure(*RUN, problem, "algo=relaysgd", "topology=chain")


@pytest.mark.parametrize("loss", ["linear", "logistic"])
def test_a_regression_has_the_samples_of_a_file(start, tmp_path, loss):
    a, w = RANDOM.normal(size=(N, 6, D)), RANDOM.normal(size=D)
    b = np.sign(a @ w) if loss == "logistic" else a @ w + 0.1
    np.savez(tmp_path / "s.npz", A=a, b=b, x0=X0)
    shape = ["task=regression", f"task.loss={loss}", f"task.samples={tmp_path / 's.npz'}", "task.l2=0.1", *RUN[1:]]
    found, x = start(*shape, "algo=dpsgd", "topology=complete").iterates, X0
    for t in range(STEPS):
        assert np.abs(found[t] - x).max() < 1e-12
        z = np.einsum("nmd,nd->nm", a, x)
        slope = z - b if loss == "linear" else -b / (1 + np.exp(b * z))
        x = x - 0.05 * (np.einsum("nmd,nm->nd", a, slope) / 6 + 0.1 * x)
        x = np.tile(x.mean(0), (N, 1))
    np.savez(tmp_path / "s.npz", A=np.ones((N, 6, D)), b=np.ones((N, 6)))
    if loss == "linear":
        with pytest.raises(ConfigError, match=r"task\.l2=0 leaves more than one optimum"):
            start(*shape, "algo=dpsgd", "topology=complete", "task.l2=0", directory="flat")
    ids = {run_id(configure(*shape, "algo=dpsgd", "topology=complete", more)) for more in ("seed=0", "task.noise=3")}
    assert len(ids) == 1  # which is not used


def test_files_that_cannot_be_replayed_are_refused(tmp_path, monkeypatch, problem):
    monkeypatch.chdir(tmp_path)
    np.savez("three.npz", matrices=matrices(2)[:, :3])
    np.savez("four.npz", matrices=matrices(2))
    np.savez("round.npz", edges=np.array([[0, 1], [1, 0]]), round=np.array([0.5, 1]))
    Path("twice.csv").write_text("source,target,round\n0,1,0\n1,2,0\n1,0,0\n")
    Path("late.csv").write_text("source,target,round\n0,1,20000\n")
    Path("half.csv").write_text("source,target,round\n0,1,1.5\n")
    np.savez("labels.npz", A=np.ones((2, 3, 4)), b=np.full((2, 3), 0.5))
    np.savez("shape.npz", A=np.ones((2, 3, 4)), b=np.ones((2, 4)))
    for settings, sentence in {
        "topology=file topology.path=three.npz": "must be finite numbers of shape [T, n, n] or [n, n], not [2, 3, 4]",
        "topology=file topology.path=four.npz num_workers=5": "has matrices for 4 workers, not for num_workers=5",
        "topology=file topology.path=round.npz": "'round' of topology.path=round.npz must be 2 integers from 0",
        "topology=file topology.path=twice.csv": "repeats the edge 1,0 of line 2",
        "topology=file topology.path=late.csv": "has 20001 rounds: use at most 10000",
        "topology=file topology.path=half.csv": "has '1.5' instead of a round",
        "task=regression task.samples=labels.npz task.loss=logistic": "has labels b other than -1 and 1",
        "task=regression task.samples=shape.npz": "holds A [2, 3, 4], b [2, 4], x0 [4]: give an .npz file",
        "task=regression task.samples=none.npz": "task.samples=none.npz is not a file",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            configure(
                "task=quadratics",
                "algo=dpsgd",
                "topology=complete",
                "num_workers=4" if "=file" in settings and "num" not in settings else "seed=0",
                *settings.split(),
            )


def test_a_trace_of_the_state_has_all_of_its_fields(start, problem, tmp_path):
    """Gradient tracking by hand: x and c of every step; RelaySGD has messages of edges, and momentum a buffer."""
    np.savez(tmp_path / "problem.npz", A=A, b=B, x0=X0[0])
    shape = [*RUN, problem, "algo=gradient_tracking", "topology=ring", "optim=momentum", "trace=state"]
    whole = np.load(start(*shape, directory="whole").directory / "trace.npz")
    assert set(whole) == {"iterates", "state.xc", "state.opt.0"}
    x, c = whole["state.xc"][:, :, 0], whole["state.xc"][:, :, 1]
    m = whole["state.opt.0"]
    W = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4
    W = np.where(np.eye(N), 1 / 3, np.where(W > 0, 1 / 3, 0))
    assert np.array_equal(x, whole["iterates"])
    for t in range(STEPS):
        assert np.abs(m[t + 1] - (0.9 * m[t] + gradients(x[t]))).max() < 1e-12
        u = -0.05 * m[t + 1]
        assert np.abs(x[t + 1] - W @ (x[t] + u + c[t])).max() < 1e-12
        assert np.abs(c[t + 1] - (W @ (c[t] + u) - u)).max() < 1e-12
    two = np.load(start(*shape, processes=2, directory="two").directory / "trace.npz")
    assert set(two) == set(whole) and all(np.abs(two[name] - whole[name]).max() < 1e-12 for name in two)
    shape = [*RUN, problem, "algo=relaysgd", "topology=chain", "trace=state", "checkpoint_every_s=0"]
    whole = np.load(start(*shape, directory="relay").directory / "trace.npz")
    assert start(*shape, directory="broken", interrupt_at=3).status == "interrupted"
    broken = np.load(start(*shape, directory="broken").directory / "trace.npz")
    two = np.load(start(*shape, processes=2, directory="relay two").directory / "trace.npz")
    assert {"state.m", "state.c", "state.x0"} < set(whole) and whole["state.m"].shape == (STEPS + 1, 6, D)
    assert all(
        np.array_equal(whole[name], broken[name]) and np.allclose(whole[name], two[name], atol=1e-12) for name in whole
    )


@pytest.mark.parametrize("algo", ["adpsgd", "a2cid2", "wagma"])
def test_workers_that_go_on_by_themselves_in_simulated_time_leave_a_trace(start, algo):
    shape = [
        "task=quadratics",
        "num_workers=4",
        "topology=ring",
        f"algo={algo}",
        "cluster=even",
        "steps=9",
        "trace=state",
    ]
    shape += ["cluster.compute.distribution=lognormal", "cluster.compute.sigma=0.5", "checkpoint_every_s=0"]
    found = start(*shape, directory="whole")
    whole = np.load(found.directory / "trace.npz")
    assert whole["iterates"].shape[:2] == (10, 4) and np.array_equal(whole["iterates"], whole["state.x"])
    assert whole["simulated_s"][0] == 0 and (np.diff(whole["simulated_s"]) > 0).all()
    assert whole["simulated_s"][-1] == pytest.approx(found.facts["simulated_s"])
    assert start(*shape, directory="broken", interrupt_at=4).status == "interrupted"
    broken = np.load(start(*shape, directory="broken").directory / "trace.npz")
    assert all(np.array_equal(whole[name], broken[name]) for name in whole)


SETTINGS = {
    "dpsgd": ("exponential", {}, {"mode": "awc"}),
    "relaysgd": ("chain", {}, {}),
    "gradient_tracking": ("one_peer_exponential", {}, {}),
    "sgp": ("exponential", {"drop_probability": 0.2}, {}),
    "choco": ("ring", {"compress": "topk"}, {"gamma": 0.3}),
    "local_sgd": ("ring", {}, {"period_steps": 3}),
}


@pytest.mark.parametrize("algo", SETTINGS)
def test_iterates_with_an_oracle_of_ones_own_are_those_of_a_run(start, tmp_path, algo):
    topology, more, settings = SETTINGS[algo]
    np.savez(tmp_path / "problem.npz", A=A, b=B, x0=X0[0])
    words = [f"algo.{key}={value}" for key, value in settings.items()]
    words += [
        f"network.{key}={value}" if key == "drop_probability" else f"{key}={value}" for key, value in more.items()
    ]
    words += [
        "optim=sgd",
        "optim.momentum=0.9",
        f"topology={topology}",
        f"algo={algo}",
        f"task.problem={tmp_path / 'problem.npz'}",
    ]
    found = decentral.iterates(
        algo, topology, lambda x, t: gradients(x), X0[0], STEPS, lr=0.05, num_workers=N,
        algo_settings=settings, optim_settings={"momentum": 0.9}, **more,
    )  # fmt: skip
    assert np.abs(found - start(*RUN, *words).iterates).max() < 1e-12


def test_iterates_on_given_matrices_from_given_starts_with_a_rate_of_each_step():
    W, seen = matrices(3), []

    def oracle(x, t):
        seen.append(t)
        g = torch.tensor(gradients(x))
        x[:] = 0  # a copy
        return g

    found = decentral.iterates("dpsgd", W, oracle, X0, STEPS, lr=lambda t: 0.05)
    assert np.abs(found - gossip(W)).max() < 1e-12 and seen == list(range(STEPS))
    dotted = decentral.iterates("dpsgd", W, oracle, X0, STEPS, lr=lambda t: 0.05, optim="torch.optim:SGD")
    assert np.array_equal(dotted, found)
    every = decentral.iterates("dpsgd", W[0], lambda x, t: 0 * x, X0, 4, every=2)
    assert np.array_equal(every[1], X0) and np.abs(every[2] - W[0] @ X0).max() < 1e-12
    for arguments, settings, sentence in (
        (("relaysgd", "chain", oracle, X0, 3), {}, "algo='relaysgd' starts from one shared model"),
        (("relaysgd", "ring", oracle, X0[0], 3), {"num_workers": N}, "algo='relaysgd' "),
        (("adpsgd", "ring", oracle, X0, 3), {}, "is asynchronous, without common steps"),
        (("dpsgd", "ring", oracle, X0[0], 3), {}, "does not set the number of workers"),
        (("dpsgd", "ring", lambda x, t: x[0], X0, 3), {}, r"returned shape \[3\]: return gradients of shape \[4, 3\]"),
        (("dpsgd", "ring", oracle, X0 * np.nan, 3), {}, "x0 of shape .* is invalid: give finite numbers"),
        (("allreduce", "ring", oracle, X0[0], 3), {"num_workers": N, "drop_probability": 0.1}, "drop_probability=0.1"),
        (("extra", "ring", oracle, X0, 3), {"every": 2}, "every=2"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            decentral.iterates(*arguments, **settings)


def test_noloco_has_the_pairs_of_a_file(start, tmp_path, problem):
    pairs = [[(0, 1), (2, 3)], [(0, 3), (1, 2)]]
    lines = [f"{t},{i},{j}" for t, each in enumerate(pairs) for i, j in each]
    (tmp_path / "pairs.csv").write_text("\n".join(["round,source,target", *lines]) + "\n")
    shape = [*RUN, problem, "algo=noloco", "algo.period_steps=2", f"algo.pairs={tmp_path / 'pairs.csv'}"]
    found = start(*shape).iterates
    x, phi, d = X0, X0, 0 * X0
    for t in range(STEPS):
        x = x - 0.05 * gradients(x)
        if t % 2:
            Q = np.eye(N) / 2
            for i, j in pairs[t // 2 % 2]:
                Q[i, j] = Q[j, i] = 1 / 2
            d = 0.5 * d + 0.7 * Q @ (x - phi) + 0.7 * (Q @ phi - phi)
            x = phi = phi + d
        assert np.abs(found[t + 1] - x).max() < 1e-12
    (tmp_path / "pairs.csv").write_text("round,source,target\n0,1,9\n")
    with pytest.raises(ConfigError, match=r"of algo.pairs=.* has the edge 1,9"):
        configure(*shape)
    for lines, says in (
        ("0,1,0.5\n2,2,0.9", "rows or columns do not sum to 1, .*: leave the weights out of the file"),
        ("0,1\n1,0", r"repeats the edge 1,0 of line 1: list each edge once"),
    ):
        (tmp_path / "pairs.csv").write_text(lines)
        with pytest.raises(ConfigError, match=says) as refused:
            configure(*shape)
        assert "topology" not in str(refused.value)
    with pytest.raises(ConfigError, match=r"algo.pairs=nowhere.csv is not a file"):
        configure(*shape[:-1], "algo.pairs=nowhere.csv")


@pytest.mark.parametrize("algo", ["sparta", "sparta_diloco"])
def test_sparta_has_the_masks_of_a_file(start, tmp_path, problem, algo):
    masks = RANDOM.random((3, D)) < 0.5
    np.savez(tmp_path / "masks.npz", masks=masks)
    shape = [*RUN, problem, f"algo={algo}", f"algo.masks={tmp_path / 'masks.npz'}"]
    if algo == "sparta_diloco":
        np.savez(tmp_path / "common.npz", A=A, b=B, x0=X0[0])
        shape += [f"task.problem={tmp_path / 'common.npz'}", "algo.period_steps=3"]
    found = start(*shape).iterates
    x, v = (X0 if algo == "sparta" else np.tile(X0[0], (N, 1))), 0 * X0
    phi = x
    for t in range(STEPS):
        x = x - 0.05 * gradients(x)
        x = np.where(masks[t % 3], x.mean(0), x)
        if algo == "sparta_diloco" and t % 3 == 2:
            v = 0.9 * v + phi - x.mean(0)
            x = phi = phi - 0.7 * (phi - x.mean(0) + 0.9 * v)
        assert np.abs(found[t + 1] - x).max() < 1e-12
    two = start(*shape, processes=2, directory="two").iterates
    assert np.abs(two - found).max() < 1e-12
    before = run_id(configure(*shape))
    np.savez(tmp_path / "masks.npz", masks=np.ones((2, D + 1)))
    assert run_id(configure(*shape)) != before
    with pytest.raises(ConfigError, match=rf"has masks for {D + 1} parameters, but the models have {D}: give masks"):
        start(*shape, "seed=1", directory="wide")
    for draws in (np.ones(D), np.full((2, D), 0.5), np.ones((0, D)), np.array([["a"]])):
        np.savez(tmp_path / "masks.npz", masks=draws)
        with pytest.raises(ConfigError, match=r"masks.npz holds .*: give an .npz file with masks \[T, P\]"):
            configure(*shape)
    np.savez(tmp_path / "masks.npz", coins=np.ones(3))
    with pytest.raises(ConfigError, match=r"masks.npz cannot be read: give an .npz file with masks \[T, P\]"):
        configure(*shape)


EVENTS = [
    *((0.0, "begin", 0), (0.1, "begin", 1), (0.3, "average", 0, 1), (0.7, "begin", 2), (0.9, "update", 1)),
    *((1.0, "update", 0), (1.2, "average", 2, 3), (1.2, "begin", 0), (1.5, "average", 0, 3), (1.9, "update", 2)),
    *((2.5, "update", 0), (3.0, "average", 2, 1)),
]


def write_events(path: Path, events=EVENTS) -> str:
    lines = [",".join(map(str, [*event, ""][:4])) for event in events]
    path.write_text("\n".join(["time,what,worker,partner", *lines]) + "\n")
    return f"algo.events={path}"


@pytest.mark.parametrize("algo", ["adpsgd", "a2cid2", "a2cid2 with its own constants"])
def test_asynchronous_methods_replay_the_events_of_a_file(start, tmp_path, problem, algo):
    algo, *own = algo.split(" ", 1)
    shape = [word for word in [*RUN, problem, f"algo={algo}", "topology=ring"] if not word.startswith("steps")]
    shape += [write_events(tmp_path / "events.csv"), "checkpoint_every_s=0"]
    shape += ["algo.eta=0.3", "algo.alpha_t=0.7"] if own else []
    found = start(*shape, directory="whole").iterates
    assert len(found) == len(EVENTS) + 1
    x, xt, tau, g = X0.copy(), X0.copy(), np.zeros(N), {}
    eta, alpha = (0.0, 0.5) if algo == "adpsgd" else (0.3, 0.7) if own else constants(Ring().schedule(N), 1)

    def mix(i, s):
        a = (1 + np.exp(-2 * eta * (s - tau[i]))) / 2
        x[i], xt[i], tau[i] = a * x[i] + (1 - a) * xt[i], (1 - a) * x[i] + a * xt[i], s

    for step, (time, what, i, *j) in enumerate(EVENTS):
        for worker in (i, *j):
            mix(worker, time)
        if what == "begin":
            g[i] = gradients(x)[i].copy()
        elif what == "update":
            x[i], xt[i] = x[i] - 0.05 * g[i], xt[i] - 0.05 * g[i]
        else:
            m = x[i] - x[j[0]]
            x[i], x[j[0]] = x[i] - m / 2, x[j[0]] + m / 2
            xt[i], xt[j[0]] = xt[i] - alpha * m, xt[j[0]] + alpha * m
        assert np.abs(found[step + 1] - x).max() < 1e-12, (step, what)
    assert start(*shape, directory="broken", interrupt_at=6).status == "interrupted"
    assert np.array_equal(start(*shape, directory="broken").iterates, found)


@pytest.mark.parametrize("rule", ["delayed_nesterov", "quorum"])
def test_a_server_replays_the_arrivals_of_a_file(start, tmp_path, rule):
    """Deliver after any number of gradients; a worker computes from the model it began with."""
    np.savez(tmp_path / "problem.npz", A=A, b=B, x0=X0[0])
    text = "b0b1u0o0b2u1b1b0u2u1d1u0d0t1b3u3d3t0b3o2u3o3b2b1u1o1u2o2"
    whats = {"b": "begin", "u": "update", "o": "outer", "d": "deliver", "t": "take"}
    given = [(whats[kind], int(i)) for kind, i in zip(text[::2], text[1::2], strict=True)]
    write_events(tmp_path / "events.csv", [(time, *each) for time, each in enumerate(given)])
    shape = [word for word in RUN if not word.startswith("steps")]
    shape += [f"task.problem={tmp_path / 'problem.npz'}", "algo=async_diloco", "checkpoint_every_s=0"]
    shape += [f"algo.events={tmp_path / 'events.csv'}", "algo.arrivals=2", "algo.activation=0.3", "trace=state"]
    shape += [f"algo.rule={rule}"]
    whole = start(*shape, directory="whole")
    trace = np.load(whole.directory / "trace.npz")
    x, phi, theta, m, ds = np.tile(X0[0], (N, 1)), np.tile(X0[0], (N, 1)), X0[0], np.zeros(D), []
    taken, waiting = [0] * N, []
    for step, (what, i) in enumerate(given):
        if what == "update":
            x[i] -= 0.05 * gradients(x)[i]
            taken[i] += 1
        if what in ("outer", "deliver"):
            waiting.append((x[i].copy(), taken[i]))
        if what in ("outer", "deliver") and rule != "quorum":
            ds.append(phi[i] - x[i])
            m = 0.9 * m + (ds[-1] + ds[-2]) / 2 if len(ds) % 2 == 0 else m
            theta = theta - 0.7 * (ds[-1] / 2 + (0.7 if len(ds) % 2 == 0 else 0.3) * 0.9 * m)
        if what in ("outer", "take"):
            if rule == "quorum":
                d = theta - np.average([one for one, _ in waiting], axis=0, weights=[h for _, h in waiting])
                m, waiting = 0.9 * m + d, []
                theta = theta - 0.7 * (d + 0.9 * m)
            x[i] = phi[i] = theta
            taken[i] = 0
        assert np.abs(trace["iterates"][step + 1] - x).max() < 1e-12, (step, what)
        assert np.abs(trace["state.theta"][step + 1] - theta).max() < 1e-12
    assert whole.facts["bytes_sent"] == 8 * D * sum(
        {"outer": 2, "deliver": 1, "take": 1}.get(what, 0) * (i > 0) for what, i in given
    )
    assert start(*shape, directory="broken", interrupt_at=6).status == "interrupted"
    assert np.array_equal(start(*shape, directory="broken").iterates, trace["iterates"])
    for events, says in (
        ([(0, "begin", 0), (1, "outer", 0)], "worker 0 must first apply its gradient"),
        ([(0, "average", 0, 1)], "use begin, update, or outer, deliver, take"),
    ):
        write_events(tmp_path / "events.csv", events)
        with pytest.raises(ConfigError, match=says):
            configure(*shape)


def test_events_that_cannot_be_are_refused(tmp_path, problem):
    path = tmp_path / "events.csv"
    shape = [*RUN[:2], problem, "algo=adpsgd", "topology=ring", f"algo.events={path}"]
    for events, more, sentence in (
        (
            [(0, "begin", 0), (1, "begin", 0)],
            [],
            "line 3 .* worker 0 must begin exactly one gradient before each update",
        ),
        ([(0, "update", 0)], [], "worker 0 must begin exactly one gradient"),
        ([(1, "begin", 0), (0.5, "update", 0)], [], "has '0.5' instead of a time not before the previous one"),
        ([(0, "average", 1, 1)], [], "is not an event"),
        ([(0, "meet", 1, 2)], [], "is not an event"),
        ([(0, "begin", 4)], [], "has '4' instead of the number of a worker"),
        ([], [], "has no events"),
        (EVENTS, ["steps=99"], "steps=99 exceeds the 12 events"),
        (EVENTS, ["cluster=even"], "leave cluster= and processes= out"),
        (EVENTS, ["processes=2"], "leave cluster= and processes= out"),
        (EVENTS, ["task=images", "num_workers=4"], "use a task without epochs"),
    ):
        write_events(path, events)
        with pytest.raises(ConfigError, match=sentence):
            configure(*(word for word in shape if not (more and "task=images" in more and "task." in word)), *more)
