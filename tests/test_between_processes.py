"""Asynchronous methods between real processes: what they compute, what they count, and how they stop and go on."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor

from configure import configure
from decentral.config.identity import run_id
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.network.windows.window import SmallWeight
from decentral.network.world import World
from decentral.store import RunStore
from decentral.store.checkpoints import load_part
from decentral.training.assemble import assemble
from decentral.training.between_processes import ThreadedStepper
from decentral.training.operations import append, go_on_after, load
from replay import GroupsReplay, OuterReplay, PairsReplay, PushesReplay
from table import a_third

SMALL = (
    "task=quadratics", "task.dimension=5", "task.noise=0.5", "task.zeta2=1", "task.initial_distance=3", "lr=0.05",
    "optim=sgd", "device=cpu", "progress=false", "network.timeout_s=30",
)  # fmt: skip
PACE = (
    "cluster=even", "cluster.stragglers.mode=independent", "cluster.stragglers.probability=0.3",
    "cluster.stragglers.delay_s=0.01",
)  # fmt: skip
METHODS = ["wagma", "eager_sgd", "adpsgd", "a2cid2", "async_diloco"]
A_HALF = ["wagma", "adpsgd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("eager_sgd", "a2cid2"))]
A_HALF.append(pytest.param("async_diloco", marks=pytest.mark.slow))
USUAL = {
    "adpsgd": ("topology=ring",),
    "async_diloco": ("algo.period_steps=3", "algo.outer_momentum=0.3"),
    "a2cid2": ("topology=ring",),
    "async_push_sum": ("topology=one_peer_exponential",),
}
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def config_of(algo: str, *overrides: str, n: int = 4, steps: int = 20, processes: int = 4) -> Config:
    places = (f"num_workers={n}", f"steps={steps}", f"processes={processes}")
    return configure(*SMALL, f"algo={algo}", *USUAL.get(algo, ()), *places, *overrides)


class Found(NamedTuple):
    """After all steps: the models of all workers, and what this process knows."""

    x: Tensor
    ages: dict[int, int]
    sent: tuple[int, int]
    operations: list[dict[str, Any]]


def carried_out(world: World, config: Config, *pauses: int) -> Found:
    """All steps, without a store, with pauses after some of them."""
    r = assemble(prepare(config), world)
    assert config.steps is not None
    with torch.no_grad():
        for t in range(config.steps):
            if t in (0, *pauses):
                r.stepper.flush()
                r.stepper.may_go_on_to(min(step for step in (*pauses, config.steps) if step > t))
            r.stepper.step()
        r.stepper.flush()
        x, sent = r.net.gather(r.stepper.models), (r.net.traffic.bytes_sent, r.net.traffic.messages_sent)
        recorded = r.oracle.recorded
        operations = [] if recorded is None else recorded.found
        ages = r.stepper.lateness().ages if isinstance(r.stepper, ThreadedStepper) else {}
    r.close()
    return Found(x, ages, sent, operations)


def alone(config: Config) -> Found:
    return carried_out(World(0, 1, torch.device("cpu")), config)


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", A_HALF)
def test_a_run_between_processes_learns(start, algo):
    settings = (f"algo={algo}", *USUAL.get(algo, ()), "num_workers=4", "processes=2", *PACE)
    result = start(
        "data=digits", "model=mlp", "alpha=10", "epochs=3", "evaluation.every_epochs=1", "network.timeout_s=30",
        "lr=0.2", "checkpoint_every_s=0", "execution=batched", *settings, processes=2,
    )  # fmt: skip
    assert result.status == "done"
    losses = [row["value"] for row in result.rows if (row["metric"], row["worker"]) == ("loss", "averaged")]
    assert len(losses) >= 3 and losses[-1] < 0.98 * losses[0]
    assert result.facts["messages_sent"] > 0 and result.facts["times_s"]["waiting"] > 0
    assert not RunStore.view(result.directory).newest_checkpoint()


@pytest.mark.parametrize(("transport", "processes"), [("shared_memory", 2), ("torch", 2)])
def test_waiting_groups_agree_with_the_virtual_cluster(worlds, transport, processes):
    settings = ("algo.wait_avoiding=false", "algo.tau=5", f"network.transport={transport}")
    config = config_of("wagma", *settings, n=8, processes=processes)
    expected = alone(config_of("wagma", *settings, n=8, processes=1))
    found = worlds(processes).call(carried_out, config)
    for each in found:
        torch.testing.assert_close(each.x, expected.x, **TIGHT)
        assert each.sent == expected.sent and set(each.ages) == {0}


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "rule", [("algo.rule=buffered", "algo.grace_s=20"), ("algo.rule=quorum", "algo.quorum=4")], ids=["window", "quorum"]
)
def test_a_server_that_waits_for_all_gives_what_the_virtual_cluster_gives(worlds, processes, rule):
    settings = (*rule, "algo.period_steps=5", "algo.dynamic_steps=true")
    config = config_of("async_diloco", *settings, n=4, processes=processes)
    expected = alone(config_of("async_diloco", *settings, n=4, processes=1))
    pauses = (7, 8, 13) if "algo.quorum=4" in rule else (10,)  # a pause closes a window, but not before the quorum
    for each in worlds(processes).call(carried_out, config, *pauses):
        torch.testing.assert_close(each.x, expected.x, **TIGHT)
        assert each.sent == expected.sent == (6 * 4 * 5 * 8, 6 * 4) and each.ages == {age: 4 for age in range(4)}


# -- what is recorded --------------------------------------------------------------------------------------------------

REPLAYS = [
    ("wagma", GroupsReplay, ("algo.tau=5", "algo.recv_depth=1", "optim.momentum=0.9")),
    (
        "wagma",
        GroupsReplay,
        ("network.transport=torch", "algo.tau=7", "algo.order=combine_then_adapt", "algo.stale_rule=always_plus_one"),
    ),
    ("eager_sgd", GroupsReplay, ("algo.period_steps=6",)),
    ("eager_sgd", GroupsReplay, ("algo.collective=majority", "optim.momentum=0.9")),
    ("adpsgd", PairsReplay, ("network.transport=torch",)),
    ("adpsgd", PairsReplay, ()),
    ("async_push_sum", PushesReplay, ()),
    ("async_diloco", OuterReplay, ("algo.rule=quorum", "algo.quorum=3", "algo.period_steps=3", "algo.grace_s=0.01")),
    ("async_diloco", OuterReplay, ("algo.period_steps=3", "algo.activation=0.1", "optim.momentum=0.9")),
]


@pytest.mark.parametrize(("processes", "n"), [pytest.param(4, 4, marks=pytest.mark.slow), (2, 4)])
@pytest.mark.parametrize(("algo", "replay", "settings"), REPLAYS)
def test_recorded_operations_give_the_iterates(worlds, algo, replay, settings, processes, n):
    worlds(processes).call(do_not_mind)
    config = config_of(algo, *settings, *PACE, "record_operations=true", n=n, steps=30, processes=processes)
    found = worlds(processes).call(carried_out, config, 11)
    operations = [one for each in found for one in each.operations]
    again = replay(config, operations)
    torch.testing.assert_close(found[0].x, again.run(), **TIGHT)
    for one in operations:
        assert one.get("end_s", 1.0) >= one.get("begin_s", 0.0) >= 0.0
    gradients = [one for one in operations if one["what"] == "gradient"]
    assert max(one["end_s"] - one["begin_s"] for one in gradients) >= 0.01, "delays are part of a gradient"
    if replay is PairsReplay:
        torch.testing.assert_close(found[0].x.mean(0), again.start + again.moved / n, **TIGHT)
        assert len(gradients) == 30 * n


def last_mixed(world: World, config: Config) -> list[float]:
    """After all steps: when the local workers last mixed their two models."""
    r = assemble(prepare(config), world)
    assert config.steps is not None and isinstance(r.stepper, ThreadedStepper)
    with torch.no_grad():
        for _ in range(config.steps):
            r.stepper.may_go_on_to(config.steps)
            r.stepper.step()
        r.stepper.flush()
    tau: list[float] = r.stepper.state.tau.tolist()
    r.close()
    return tau


def test_a2cid2_measures_time_in_gradients_whatever_they_take(worlds):
    """Those of this quadratic take microseconds: in seconds, the two models would hardly mix."""
    found = worlds(2).call(last_mixed, config_of("a2cid2", steps=20, processes=2))
    assert 18 <= max(tau for each in found for tau in each) <= 20


def do_not_mind(world: World) -> None:
    """Small weights are no errors in this process from now on: pace depends on what else the machine does."""
    import warnings

    warnings.simplefilter("ignore", SmallWeight)


def test_operations_are_written_into_the_directory_of_the_run(start):
    result = start(
        *SMALL, "algo=wagma", "num_workers=4", "steps=6", "record_operations=true", "processes=2", processes=2
    )
    kinds = {(one["worker"], one["what"]) for one in load(result.directory)}
    assert kinds >= {(i, what) for i in range(4) for what in ("gradient", "join", "exchange", "mean")}


@pytest.mark.parametrize(("fault", "settings", "processes"), [
    ("crash_at", ("algo=wagma", "algo.wait_avoiding=false", "algo.tau=4"), 2),
    ("crash_at", ("algo=async_push_sum",), 2),
    ("crash_at", ("algo=adpsgd", "topology=ring"), 2),
    ("interrupt_at", ("algo=dpsgd", "topology=ring"), 2),
])  # fmt: skip
def test_operations_are_part_of_the_checkpoint(start, fault, settings, processes):
    """Also those from before a SIGKILL."""
    settings = (
        *SMALL, *settings, "num_workers=4", "steps=20", "record_operations=true", f"processes={processes}",
        "evaluation.every_epochs=5", "checkpoint_every_s=0",
    )  # fmt: skip

    def done(directory: str) -> Counter[str]:
        """How often each kind was done; workers that run freely take different shares of the gradients."""
        operations = load(start(*settings, processes=processes, directory=directory).directory)
        once = [one for one in operations if one["what"] in ("gradient", "exchange", "push", "mean")]
        numbers = sorted((one["worker"], one["what"], one["number"]) for one in once)
        assert len(set(numbers)) == len(numbers), "none twice"
        for worker, what, number in numbers:
            assert number == 0 or what in ("exchange", "mean") or (worker, what, number - 1) in numbers, "none left out"
        return Counter(one["what"] for one in operations if one in once or one["what"] in ("update", "read"))

    stopped = start(*settings, processes=processes, directory="stopped", **{fault: 13}).directory
    assert load(stopped)
    with open(stopped / "operations.jsonl", "a") as file:
        file.write('{"worker": 0, "what": "gradient", "num')  # of after the checkpoint, and cut short
    assert done("stopped") == done("whole")


def test_operations_that_are_lost_are_not_passed_over(tmp_path):
    assert append([b"1\n", b"2\n"], tmp_path) == 4
    go_on_after(2, tmp_path)
    assert load(tmp_path) == [1]
    with pytest.raises(ConfigError, match="has lost lines from before the run's checkpoint"):
        go_on_after(4, tmp_path)


# -- stopping and going on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["crash_at", pytest.param("interrupt_at", marks=pytest.mark.slow)])
def test_a_stopped_run_resumes_to_the_same_models(start, fault):
    """Groups that wait compute the same in any order of events; losses have all digits."""
    settings = (
        *SMALL, "algo=wagma", "algo.wait_avoiding=false", "algo.tau=4", "num_workers=8", "steps=30", "processes=2",
        "evaluation.every_epochs=10", "checkpoint_every_s=0", "optim.momentum=0.9",
    )  # fmt: skip
    whole = start(*settings, processes=2, directory="whole")
    assert start(*settings, processes=2, **{fault: 13}).status in ("crashed", "interrupted")
    on = start(*settings, processes=2)
    assert on.status == "done" and on.rows[-1]["step"] == 30
    assert [row["metric"] for row in on.rows] == [row["metric"] for row in whole.rows]
    assert [row["value"] for row in on.rows] == pytest.approx([row["value"] for row in whole.rows], rel=1e-11)
    assert on.facts["bytes_sent"] == whole.facts["bytes_sent"]


def test_workers_that_wait_for_the_quorum_at_a_checkpoint_deliver_again(start):
    """Fast workers wait for the slow one when the fifth step ends, amid its local steps."""
    settings = (
        *SMALL, "algo=async_diloco", "algo.rule=quorum", "algo.quorum=4", "algo.period_steps=3", "num_workers=4",
        "steps=24", "processes=2", "evaluation.every_epochs=5", "checkpoint_every_s=0", "optim.momentum=0.9",
        "cluster=even", "cluster.stragglers.mode=fixed", "cluster.stragglers.workers=[0]",
        "cluster.stragglers.delay_s=0.05",
    )  # fmt: skip
    whole, crashed = start(*settings, processes=2, directory="whole"), start(*settings, processes=2, crash_at=5)
    checkpoint = RunStore.view(crashed.directory).newest_checkpoint()
    assert crashed.status == "crashed" and checkpoint is not None and checkpoint.step == 5
    h = torch.cat([load_part(checkpoint, part)["rows"]["h"] for part in checkpoint.parts])
    assert h.sum() == 8 and h.max() == 3
    on = start(*settings, processes=2)
    final = [[row["value"] for row in run.rows if row["step"] == 24 and row["split"] != "train"] for run in (whole, on)]
    assert on.status == "done" and final[1] == pytest.approx(final[0], rel=1e-11)
    assert on.facts["bytes_sent"] == whole.facts["bytes_sent"] == 8 * 3 * 2 * 8 * 5


@pytest.mark.parametrize("algo", A_HALF)
def test_every_method_resumes(start, algo):
    settings = (
        *SMALL, f"algo={algo}", *USUAL.get(algo, ()), *PACE, "num_workers=4", "steps=20", "processes=2",
        "evaluation.every_epochs=5", "checkpoint_every_s=0",
    )  # fmt: skip
    crashed = start(*settings, processes=2, crash_at=13)
    assert crashed.status == "crashed"
    checkpoint = RunStore.view(crashed.directory).newest_checkpoint()
    assert checkpoint is not None and checkpoint.step == 10
    result = start(*settings, processes=2)
    assert result.status == "done"
    losses = [row["value"] for row in result.rows if (row["metric"], row["worker"]) == ("suboptimality", "averaged")]
    assert losses[-1] < losses[0]


def failing(world: World, config: Config, rank: int) -> str:
    """On one process a gradient fails, in a thread: what the run loop hears."""
    r = assemble(prepare(config), world)
    sabotage = mock.patch.object(r.oracle, "problem", None) if world.rank == rank else mock.patch("os.fsync")
    with sabotage, torch.no_grad():
        try:
            r.stepper.may_go_on_to(5)
            for _ in range(5):
                r.stepper.step()
            r.stepper.flush()
            return "nothing"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            r.stepper.close()


@pytest.mark.parametrize(("algo",), a_third((name,) for name in METHODS))
def test_an_error_in_a_thread_is_raised_in_all_processes(pair, algo):
    own, other = pair.call(failing, config_of(algo, n=4, processes=2), 0)
    assert own.startswith("AttributeError: 'NoneType' object has no attribute")
    assert other.startswith("ConnectionError: connection closed by process 0")


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "overrides", "says"),
    [
        (
            "wagma",
            ("trace=true",),
            "trace=true needs a single process with asynchronous methods such as algo=wagma",
        ),
        ("wagma", ("algo.group_size=3",), "3"),
        ("adpsgd", ("topology=ring", "num_workers=5"), "has a cycle of odd length"),
        ("async_diloco", ("algo.regions=2",), "algo.regions=2 needs a single process with asynchronous methods"),
        ("async_diloco", ("algo.global_every=2",), "algo.global_every=2 needs a single process with asynchronous"),
        ("async_diloco", ("algo.regions=5",), "algo.regions=5 exceeds num_workers=4: use at most 4."),
        ("async_diloco", ("algo.quorum=3", "algo.regions=2"), "exceeds num_workers=4 in 2 regions: use at most 2."),
        ("wagma", ("record_operations=true", "processes=1"), "use several processes, such as processes=4"),
    ],
)
def test_impossible_asynchronous_runs_are_refused(algo, overrides, says):
    from decentral.config.checks import resolve

    with pytest.raises(ConfigError) as refused:
        resolve(config_of(algo, *overrides))
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_under_torchrun_an_asynchronous_run_is_another_than_its_simulation(monkeypatch) -> None:
    """It depends on the pace of so many processes; a method in rounds is the same run anywhere."""
    in_rounds, by_pace = (
        configure(f"algo={name}", "topology=hypercube", "cluster=even") for name in ("dpsgd", "adpsgd")
    )
    alone = run_id(in_rounds), run_id(by_pace)
    ids = {alone}
    for size in ("2", "4"):
        for key, value in {"RANK": "0", "WORLD_SIZE": size, "MASTER_ADDR": "here", "MASTER_PORT": "2950"}.items():
            monkeypatch.setenv(key, value)
        ids.add((run_id(in_rounds), run_id(by_pace)))
    assert len(ids) == 3 and {one for one, _ in ids} == {alone[0]}
