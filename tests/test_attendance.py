"""Workers that leave and come back: what rests, what is kept, what is exact (`availability=`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Result, Start
from decentral.algorithms.features import Feature
from decentral.config.composition import compose
from decentral.errors import ConfigError
from decentral.optim.adam import Adam
from decentral.registry import components
from decentral.topology.present import Absent, PresentRule, Weights, restricted
from table import LOSSY, run_of

PROBLEM = (
    "task=quadratics",
    "task.dimension=4",
    "task.zeta2=10",
    "task.initial_distance=10",
    "task.noise=0",
    "schedule=constant",
    "save=none",
)
COMING_AND_GOING = ("availability=persistent", "availability.probability=0.1", "availability.residence_steps=5")


def iterates(start: Start, *words: str, processes: int = 1, directory: str = "run") -> np.ndarray:
    """[steps + 1, n, P]."""
    found = start(*PROBLEM, *words, "trace=true", processes=processes, directory=directory)
    with np.load(found.directory / "trace.npz") as trace:
        return trace["iterates"]


def attendance(folder: Path, steps: int, n: int) -> np.ndarray:
    """[steps, n], bool, from the file that a run writes."""
    found = np.zeros((steps, n), dtype=bool)
    for line in (folder / "availability.csv").read_text().splitlines()[1:]:
        worker, begins, ends = line.split(",")
        found[int(begins) : int(ends) if ends else steps, int(worker)] = True
    return found


@pytest.mark.parametrize("topology", ["ring", "symmetric_exponential", "grid", "base_graph"])
def test_a_restricted_symmetric_matrix_keeps_the_mean(topology: str) -> None:
    rounds = compose([f"topology={topology}", "num_workers=12", "algo=dpsgd"]).rounds()
    random = np.random.default_rng(0)
    for weights, round in itertools.product((Weights.auto, Weights.metropolis, Weights.keep), range(rounds.period)):
        present = random.random(12) < 0.6
        W = restricted(rounds.mixing(round)[0], present, weights).dense()
        np.testing.assert_allclose(W, W.T, atol=1e-15)
        np.testing.assert_allclose(W.sum(1), 1, atol=1e-12)
        np.testing.assert_array_equal(W[~present], np.eye(12)[~present])
        assert (W >= 0).all()
    auto, usual = (
        [restricted(rounds.mixing(round)[0], np.arange(12) % 3 > 0, w).dense() for round in range(rounds.period)]
        for w in (Weights.auto, Weights.metropolis)
    )
    assert np.array_equal(auto, usual) == (topology != "base_graph")


def test_restricted_directed_graphs_keep_weights_positive() -> None:
    rounds = compose(["topology=exponential", "num_workers=8", "algo=sgp"]).rounds()
    random, w = np.random.default_rng(1), np.ones(8)
    for _ in range(500):
        present = random.random(8) < 0.6
        W = restricted(rounds.mixing(0)[0], present, Weights.auto).dense()
        np.testing.assert_allclose(W.sum(0), 1, atol=1e-12)
        np.testing.assert_allclose(restricted(rounds.mixing(0)[0], present, Weights.keep).row_sums(), 1, atol=1e-12)
        w = W @ w
    assert w.sum() == pytest.approx(8) and w.min() > 0.05


def test_a_rerouted_topology_is_that_of_the_workers_that_are_present() -> None:
    config = compose(["topology=ring", "num_workers=7", "algo=dpsgd"])
    rule = PresentRule(Absent.rerouted, Weights.auto, lambda m: config.communication.schedule(config.topology, m))
    present = np.array([True, False, True, True, False, True, False])
    (W,) = rule.mixing(config.rounds(), present, 0)
    assert [(j, round(weight, 12)) for j, weight in W.row(0)] == [
        (0, round(1 / 3, 12)),
        (2, round(1 / 3, 12)),
        (5, round(1 / 3, 12)),
    ]
    assert W.row(1) == [(1, 1.0)]


METHODS = sorted(name for name, cls in components("algorithms").items() if Feature.absence in cls.supports)
TOPOLOGY = {
    name: cls.usual.get("topology", "dbt" if "relay" in name else "ring")
    for name, cls in components("algorithms").items()
}
OF_COMPRESSED = {name: ["compress=topk", "compress.keep=0.5"] for name in ("choco", "beer", "motef")}
PERIODIC = ["diloco", "sparta_diloco", "gasloc", "noloco", "local_sgd"]
OF_METHODS = OF_COMPRESSED | {name: ["algo.period_steps=3"] for name in PERIODIC}
GOING = [*PROBLEM, "num_workers=6", "steps=15", "lr=0.01", "trace=true", *COMING_AND_GOING]


@pytest.mark.parametrize(("place", "name"), list(enumerate(METHODS)))
def test_models_of_absent_workers_rest(recorded: Callable[..., Result], place: int, name: str) -> None:
    words = [f"algo={name}", f"topology={TOPOLOGY[name]}", *GOING, *OF_METHODS.get(name, [])]
    alone = recorded(*words)
    x, present = alone.iterates, attendance(alone.directory, 15, 6)
    assert np.isfinite(x).all() and not present.all()
    period = int(next((word.split("=")[1] for word in words if "period_steps" in word), "1"))
    for t in range(15):
        first = t - t % period
        away = ~present[first : first + period].all(axis=0)
        np.testing.assert_array_equal(x[t + 1][away], x[t][away])


@pytest.mark.parametrize(
    "name", [name if i % 8 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(METHODS)]
)
def test_absences_are_the_same_in_several_processes(recorded: Callable[..., Result], start: Start, name: str) -> None:
    words = [f"algo={name}", f"topology={TOPOLOGY[name]}", *GOING, *OF_METHODS.get(name, [])]
    several = start(*words, processes=2)
    np.testing.assert_allclose(several.iterates, recorded(*words).iterates, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", METHODS[::5])
def test_with_all_workers_present_nothing_is_different(
    recorded: Callable[..., Result], start: Start, name: str
) -> None:
    words = [word for word in run_of(name) if word != LOSSY]
    words += [*OF_COMPRESSED.get(name, []), *(["algo.fill=previous"] if name == "relaysgd" else [])]
    usual = recorded(*words)
    n = usual.iterates.shape[1]
    never = ["availability=independent", "availability.probability=0.5", f"availability.least={n}"]
    found = start(*words, *never)
    np.testing.assert_array_equal(found.iterates, usual.iterates)
    assert found.facts["bytes_sent"] == usual.facts["bytes_sent"]


EXACT = ["gradient_tracking", "exact_diffusion", "extra"]


@pytest.mark.parametrize(
    "name", ["dpsgd", EXACT[0], *(pytest.param(name, marks=pytest.mark.slow) for name in EXACT[1:])]
)
def test_methods_that_keep_a_sum_are_exact_with_absences(start: Start, name: str) -> None:
    """D-PSGD, which keeps none, is not."""
    words = [f"algo={name}", f"topology={TOPOLOGY[name]}", "num_workers=8", "lr=0.1", *COMING_AND_GOING]
    words += ["steps=300" if name == "dpsgd" else "steps=800"]
    run = start(*PROBLEM, *words, "evaluation.every_epochs=1500")
    if name == "dpsgd":
        assert run.last("distance_to_optimum", "mean") > 1e-2 < run.last("distance_to_optimum", "present mean")
    else:
        assert run.last("distance_to_optimum", "worst") < 1e-8


def reference(A: np.ndarray, b: np.ndarray, present: np.ndarray, method: str, lr: float, average: bool) -> np.ndarray:
    """[steps + 1, n, d]: on a ring of those present, metropolis weights, in plain numpy."""
    n, d = b.shape
    x, c, v, phi = np.zeros((n, d)), np.zeros((n, d)), np.zeros((n, d)), np.zeros((n, d))
    found, last = [x.copy()], np.full(n, -1)

    def ring(there: np.ndarray) -> np.ndarray:
        W, who, m = np.eye(n), np.flatnonzero(there), int(there.sum())
        for place, i in enumerate(who):
            others = {int(who[(place - 1) % m]), int(who[(place + 1) % m])} - {int(i)}
            for j in others:
                W[i, j] = 1 / (1 + len(others))
            W[i, i] = 1 - len(others) / (1 + len(others))
        return W

    def attends(t: int) -> np.ndarray:
        return present[t - t % 3 : t - t % 3 + 3].all(0) if method == "diloco" else present[t]

    for t in range(len(present)):
        there, W = attends(t), ring(attends(t))
        if t and method == "diloco" and there.any():
            newest = int(np.where(there, last, -2).argmax())
            for i in np.flatnonzero(there & (last < last[newest])):
                phi[i], v[i], x[i] = phi[newest], v[newest], phi[newest]
        elif t and average:
            before, old = attends(t - 1), x.copy()
            for i in np.flatnonzero(there & ~before):
                donors = [j for j in range(n) if j != i and W[i, j] and before[j]]
                donors = donors or np.flatnonzero(there & before)[:1].tolist()
                if donors:
                    x[i] = old[donors].mean(0)
        last[there] = t
        u = np.zeros((n, d))
        for i in np.flatnonzero(there):
            u[i] = -lr * A[i].T @ (A[i] @ x[i] - b[i])
        if method in ("dpsgd", "choco"):
            x = np.where(there[:, None], W @ (x + u), x)
        elif method == "gradient_tracking":
            mixed = W @ (c + u) - u
            x = np.where(there[:, None], W @ (x + u + c), x)
            c = np.where(there[:, None], mixed, c)
        elif method == "exact_diffusion":
            V = (W + np.eye(n)) / 2
            y = x + u
            new = V @ (y + c)
            x, c = np.where(there[:, None], new, x), np.where(there[:, None], new - y, c)
        elif method == "diloco":
            x = x + u
            if (t + 1) % 3 == 0 and there.any():
                D = (phi - x)[there].mean(0)
                v[there] = 0.9 * v[there] + D
                phi[there] -= 0.7 * (D + 0.9 * v[there])
                x[there] = phi[there]
        found.append(x.copy())
    return np.array(found)


@pytest.mark.parametrize(
    ("method", "average"),
    [
        *(("dpsgd", True), ("dpsgd", False), ("choco", True), ("gradient_tracking", True)),
        *(("exact_diffusion", False), ("diloco", True)),
    ],
)
def test_iterates_are_those_of_the_formulas(start: Start, tmp_path: Path, method: str, average: bool) -> None:
    random = np.random.default_rng(3)
    A, b = random.normal(size=(7, 3, 3)), random.normal(size=(7, 3)) * 5
    np.savez(tmp_path / "problem.npz", A=A, b=b)
    words = [f"task.problem={tmp_path / 'problem.npz'}", f"algo={method}", "topology=ring", "num_workers=7"]
    words += ["steps=30", "lr=0.02", "availability=independent", "availability.probability=0.4"]
    words += ["algo.period_steps=3"] if method == "diloco" else []
    words += ["algo.gamma=1"] if method == "choco" else []  # without compression it is D-PSGD
    words += [f"availability.on_return={'average' if average else 'stale'}"]
    found = start("task=quadratics", "save=none", "trace=true", *words)
    present = attendance(found.directory, 30, 7)
    np.testing.assert_allclose(found.iterates, reference(A, b, present, method, 0.02, average), rtol=1e-11, atol=1e-11)
    apart = np.square(found.iterates[-1] - found.iterates[-1].mean(0)).sum(1).mean()  # absent workers count, too
    assert not present[-1].all() and found.last("consensus_distance", "mean") == pytest.approx(apart, rel=1e-9)


@pytest.mark.parametrize("name", ["gradient_tracking", "diloco", "relaysgd"])
def test_a_run_resumes_inside_an_absence_and_a_trace_replays_it(start: Start, name: str) -> None:
    words = [f"algo={name}", f"topology={TOPOLOGY[name]}", "num_workers=6", "steps=24", "lr=0.01", "trace=true"]
    words += [*COMING_AND_GOING, *OF_METHODS.get(name, []), "checkpoint_every_s=0"]
    whole = start(*PROBLEM, *words, directory="whole")
    assert start(*PROBLEM, *words, directory="parts", crash_at=13).status == "crashed"
    parts = start(*PROBLEM, *words, directory="parts")
    np.testing.assert_array_equal(parts.iterates, whole.iterates)
    assert parts.facts["availability"] == whole.facts["availability"]
    file = whole.directory / "availability.csv"
    replayed = ["availability=trace", f"availability.path={file}"]
    again = start(*PROBLEM, *(word for word in words if "availability" not in word), *replayed, directory="again")
    np.testing.assert_array_equal(again.iterates, whole.iterates)


def test_relaysgd_counts_the_present_workers(start: Start, tmp_path: Path) -> None:
    """Leaf 5 of a binary tree of 8 leaves at step 10 and is back at 20."""
    file = tmp_path / "absences.csv"
    lines = [f"{i},0," for i in range(8) if i != 5]
    file.write_text("\n".join(["worker,from_step,to_step", *lines, "5,0,10", "5,20,"]))
    words = ["algo=relaysgd", "algo.fill=previous", "topology=bt", "num_workers=8", "steps=30", "trace=state"]
    found = start(*PROBLEM, *words, "availability=trace", f"availability.path={file}", "lr=0.01")
    with np.load(found.directory / "trace.npz") as trace:
        counts = trace["state.c"]
    edges = compose(["algo=relaysgd", "topology=bt", "num_workers=8"]).rounds().edges()

    def heard(t: int) -> list[int]:
        return [1 + int(counts[t + 1][edges.dst == i].sum()) for i in range(8) if i != 5]

    assert heard(9) == [8] * 7
    assert heard(10) == [8, 8, 7, 8, 8, 8, 8]
    assert heard(11) == [8, 7, 7, 8, 7, 8, 8]
    assert heard(12) == [7, 7, 7, 7, 7, 8, 8]
    assert heard(13) == [7] * 7


@pytest.mark.parametrize("name", ["gradient_tracking", "momentum_tracking", "d2", "push_diging"])
def test_corrections_add_up_to_zero_in_every_round(start: Start, name: str) -> None:
    words = [f"algo={name}", f"topology={TOPOLOGY[name]}", "num_workers=6", "steps=25", "lr=0.01", "trace=state"]
    for rule in ("keep", "handover", "restart") if name == "d2" else ("handover",):
        found = start(*PROBLEM, *words, *COMING_AND_GOING, f"availability.on_leave={rule}", directory=rule)
        with np.load(found.directory / "trace.npz") as trace:
            c = trace["state.xc"][:, :, 1] if "state.xc" in trace else trace["state.c"]
            w = trace["state.w"] if "state.w" in trace else np.ones((26, 6, 1))
        assert np.abs(c).max() > 1e-2
        np.testing.assert_allclose(c.sum(1), 0, atol=1e-11)
        np.testing.assert_allclose(w.sum(1), 6, atol=1e-12)


def test_a_topology_that_does_not_exist_for_those_present_is_refused_before_the_first_step(start: Start) -> None:
    words = ["algo=dpsgd", "topology=hypercube", "num_workers=8", "steps=20", *COMING_AND_GOING]
    with pytest.raises(ConfigError, match="absent=induced"):
        start(*PROBLEM, *words)
    start(*PROBLEM, *words, "availability.absent=induced")


@pytest.mark.parametrize("optim", ["optim=adam", "optim=adopt", "algo=dadam"])
def test_bias_correction_counts_a_late_workers_own_steps(
    start: Start, optim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of a worker that was absent until step 4 are those of a run that begins there, with the same draws."""
    words = [
        "algo=dpsgd",
        "topology=ring",
        "communication.every=20",
        "num_workers=3",
        "lr=0.1",
        "task.noise=0.1",
        optim,
    ]
    late = ["availability=fixed", "availability.absences=[[1,0,4]]", "availability.on_return=stale", "steps=10"]
    alone = iterates(start, *words, "steps=6", directory="alone")
    found = iterates(start, *words, *late, directory="late")
    np.testing.assert_allclose(found[4:, 1], alone[:, 1], rtol=1e-12)
    np.testing.assert_array_equal(found[:7, 0], alone[:, 0])
    if optim == "optim=adam":
        several = iterates(start, *words, *late, processes=3, directory="several")
        np.testing.assert_allclose(several, found, rtol=1e-12)
    monkeypatch.setattr(Adam, "counts_rows", False)  # as an optimizer of one's own, which asks for a number
    np.testing.assert_allclose(iterates(start, *words, *late, directory="groups"), found, rtol=1e-12)


def test_an_inherited_local_optimizer_keeps_its_step_count(start: Start, tmp_path: Path) -> None:
    """Workers with the same function."""
    np.savez(tmp_path / "problem.npz", A=np.tile(np.diag([1.0, 2.0]), (3, 1, 1)), b=np.ones((3, 2)))
    words = ["task=quadratics", f"task.problem={tmp_path / 'problem.npz'}", "save=none", "trace=true"]
    words += ["algo=allreduce", "num_workers=3", "steps=12", "lr=0.1", "optim=adam"]
    late = ["availability=fixed", "availability.absences=[[1,0,8]]"]
    found, whole = start(*words, *late, directory="late").iterates, start(*words, directory="all").iterates
    np.testing.assert_allclose(found[9:, 1], whole[9:, 1], rtol=1e-12)


@pytest.mark.parametrize("name", ["noloco", "sparta"])
def test_donors_do_not_depend_on_a_topology_that_is_not_used(start: Start, name: str) -> None:
    words = [f"algo={name}", "num_workers=6", "steps=15", "lr=0.01", *COMING_AND_GOING, *OF_METHODS.get(name, [])]
    found = [iterates(start, *words, f"topology={each}", directory=each) for each in ("ring", "star")]
    np.testing.assert_array_equal(*found)


def test_an_absence_after_the_last_step_is_refused_and_trees_that_stay_are_noted(start: Start) -> None:
    words = ["num_workers=6", "steps=5", "lr=0.01", "availability=fixed"]
    with pytest.raises(ConfigError, match="begins after the last of 5 steps"):
        start(*PROBLEM, "algo=dpsgd", "topology=ring", *words, "availability.absences=[[3,5,9]]")
    found = start(*PROBLEM, "algo=relaysgd", "topology=bt", *words, "availability.absences=[[3,2,9]]")
    assert any("are not rerouted" in note for note in found.facts["notes"])
