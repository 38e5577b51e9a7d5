"""communication.every=H: RelaySGD that relays every H steps, LED and ProxSkip: their formulas, and what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from decentral.randomness import uniform
from reference_runs import LOCALS, Case, assert_agree, compression, program, setting
from table import a_third
from test_resume import same_results

H, STEPS = 3, 20
EVERY = {"every": H, "global_every": None, "workers_per_machine": 1}
RELAYS = [
    Case("relaysgd", "chain", 5, {"fill": "initial"}),
    Case("relaysgd", "dbt", 6, {"overlap": True, "correct_lr": True}),
    Case("relaysgd", "bt", 6, {"fill": "count"}, compress={"name": "bf16"}),
    Case("relaysgd", "dbt", 5, {"fill": "previous"}, {"split": "interleaved"}),
]
LED = {False: [Case("d2", "ring", 5), Case("d2", "dbt", 4)], True: [Case("exact_diffusion", "star", 5)]}
SMALL = ("task=quadratics", "task.dimension=6", "task.initial_distance=1", "num_workers=5", "trace=true",
         "evaluation.every_epochs=1000")  # fmt: skip


@pytest.mark.parametrize("local", ["momentum", "warm_up"])
@pytest.mark.parametrize("case", RELAYS, ids=str)
def test_relaysgd_relays_every_so_many_steps(tmp_path: Path, case: Case, local: str) -> None:
    found = program(tmp_path, case, LOCALS[local], STEPS, communication=EVERY)
    options: dict[str, Any] = {**case.options, **compression(case), "every": H}
    assert_agree(found, reference.run(reference.relaysgd, setting(case, LOCALS[local]), STEPS, **options))


@pytest.mark.parametrize("local", ["nesterov", "decay"])
@pytest.mark.parametrize(("lazy", "case"), [(lazy, case) for lazy, cases in LED.items() for case in cases])
def test_d2_and_exact_diffusion_are_led(tmp_path: Path, lazy: bool, case: Case, local: str) -> None:
    found = program(tmp_path, case, LOCALS[local], STEPS, communication=EVERY)
    assert_agree(found, reference.run(reference.led, setting(case, LOCALS[local]), STEPS, every=H, lazy=lazy))


COINS = np.array([0, 1, 1, 0, 0, 0, 1])


@pytest.mark.parametrize("local", ["nesterov", "decay"])
@pytest.mark.parametrize(("lazy", "case"), [(lazy, case) for lazy, cases in LED.items() for case in cases])
def test_other_dual_steps_and_a_shared_coin(tmp_path: Path, lazy: bool, case: Case, local: str) -> None:
    def found(communication: dict[str, Any], **options: Any) -> Any:
        return program(tmp_path, replace(case, options=options), LOCALS[local], STEPS, communication=communication)

    def wanted(method: Any, **options: Any) -> Any:
        return reference.run(method, setting(case, LOCALS[local]), STEPS, lazy=lazy, **options)

    once = EVERY | {"every": 1}
    assert_agree(found(EVERY, dual_step=0.1), wanted(reference.led, every=H, dual_step=0.1))
    assert_agree(found(once, dual_step=0.5), wanted(reference.led, every=1, dual_step=0.5))
    drawn = {p: [uniform(5, "coin", t) < p for t in range(STEPS)] for p in (0.4, 1)}
    assert 8 < sum(drawn[0.4]) < 24
    for p, coins in drawn.items():
        x = found(once, probability=p, seed=5)
        assert_agree(x, wanted(reference.proxskip, coins=coins.__getitem__, beta=p))
    assert_agree(x, found(once))  # p = 1
    np.savez(tmp_path / "coins.npz", coins=COINS)
    x = found(once, probability=0.4, coins=str(tmp_path / "coins.npz"))
    assert_agree(x, wanted(reference.proxskip, coins=lambda t: COINS[t % 7], beta=0.4))
    np.savez(tmp_path / "coins.npz", coins=np.arange(H) == H - 1)
    x = found(once, probability=1 / H, coins=str(tmp_path / "coins.npz"))
    assert_agree(x, found(EVERY))  # the coin falls in every H-th step: LED


@pytest.mark.parametrize("local", ["adam", "decay"])
@pytest.mark.parametrize("case", [Case("gradient_tracking", topology, 5) for topology in ("ring", "dbt")], ids=str)
def test_gradient_tracking_of_the_mean_is_kgt(tmp_path: Path, case: Case, local: str) -> None:
    found = program(tmp_path, replace(case, options={"tracked": "mean"}), LOCALS[local], STEPS, communication=EVERY)
    assert_agree(found, reference.run(reference.kgt, setting(case, LOCALS[local]), STEPS, every=H))
    whole = program(tmp_path, replace(case, options={"tracked": "mean"}), LOCALS[local], STEPS)
    assert_agree(whole, reference.run(reference.gradient_tracking, setting(case, LOCALS[local]), STEPS))


def test_a_pair_that_relays_is_local_sgd_and_sends_once_in_so_many_steps(start) -> None:
    settings = (*SMALL, "num_workers=2", "topology=chain", "steps=12", "lr=0.1")
    relayed = start("algo=relaysgd", "communication.every=4", *settings, directory="relayed")
    local = start("algo=local_sgd", "algo.period_steps=4", *settings, directory="local")
    np.testing.assert_allclose(relayed.iterates, local.iterates, rtol=0, atol=1e-12)
    assert relayed.rows[-1]["bytes_sent"] == 2 * 3 * 6 * 8


@pytest.mark.parametrize("algo", [
        "d2 topology.weights=constant topology.edge_weight=0.3", "push_diging",
        "gradient_tracking algo.tracked=mean", "exact_diffusion algo.probability=0.3",
    ])  # fmt: skip
def test_local_steps_are_exact_with_different_functions(start, algo: str) -> None:
    settings = ("topology=ring", "communication.every=4", "lr=0.1", "steps=1200")
    found = start(*f"algo={algo}".split(), *SMALL[:-2], *settings, "evaluation.every_epochs=1200")
    assert found.last("distance_to_optimum", "worst") < 1e-8
    assert found.last("consensus_distance", "mean") < 1e-12


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_a_timeline_knows_when_nothing_is_sent(start, overlap: str) -> None:
    settings = (*SMALL[:-2], "algo=relaysgd", "topology=chain", f"algo.overlap={overlap}", "cluster=even", "steps=13",
                "cluster.links.latency_s=1", "evaluation.every_epochs=13")  # fmt: skip
    seconds = {}
    for every in (1, 4):
        trained = start(*settings, f"communication.every={every}", directory=f"trained {every}")
        timed = start(*settings, f"communication.every={every}", "simulate=timeline", directory=f"timed {every}")
        seconds[every] = trained.facts["simulated_s"]
        assert timed.facts["simulated_s"] == pytest.approx(seconds[every], rel=1e-12)
    assert seconds[1] - seconds[4] > 8 or overlap == "true"


LONG = (
    "algo=relaysgd topology=dbt network.drop_probability=0.1",
    "algo=relaysgd topology=bt steps_per_worker=[1,3,2,3,3]",
    "algo=exact_diffusion topology=ring optim=adam",
    "algo=exact_diffusion topology=ring algo.probability=0.5",
    "algo=gradient_tracking algo.tracked=mean topology=ring optim=torch.optim:RAdam",
)


@pytest.mark.parametrize(("method",), a_third((words,) for words in LONG))
def test_processes_and_a_break_make_no_difference(start, method: str) -> None:
    settings = [*SMALL, *method.split(), "communication.every=3", "steps=14", "task.noise=0.1", "lr=0.05"]
    whole = start(*settings, directory="whole")
    two = start(*settings, processes=2, directory="two")
    np.testing.assert_allclose(two.iterates, whole.iterates, rtol=0, atol=1e-12)
    often = [*settings, "checkpoint_every_s=0", "evaluation.every_epochs=2"]
    assert start(*often, directory="broken", interrupt_at=7).status == "interrupted"
    same_results(start(*often, directory="straight"), start(*often, directory="broken"))


@pytest.mark.parametrize("algo", ["dpsgd topology=ring", "epidemic_learning topology=epidemic"])
def test_a_final_merge_averages_all_models(start, algo: str) -> None:
    words = [*SMALL, *f"algo={algo} steps=12 lr=0.05 communication.every=3".split()]
    merged = start(*words, "communication.global_every=4", directory="merged")
    apart = start(*words, directory="apart")
    np.testing.assert_array_equal(merged.iterates[:-1], apart.iterates[:-1])
    assert merged.last("consensus_distance", "mean") < 1e-28 < apart.last("consensus_distance", "mean")
    if algo.startswith("dpsgd"):  # epidemic learning moves the mean
        np.testing.assert_allclose(merged.iterates[-1][0], apart.iterates[-1].mean(0), rtol=0, atol=1e-14)
