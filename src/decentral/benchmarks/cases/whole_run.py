"""What a whole run costs beyond its passes: the data, the exchange, evaluations, checkpoints, the start."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.tasks.evaluation import EvaluationSettings
from decentral.tasks.images import Images

if TYPE_CHECKING:
    from decentral.config.schema import Config

_EPOCHS = 10
_PASSES_TIMED = 10
_COLUMNS = {"part": "part", "seconds": "seconds in ten epochs", "share": "/ passes alone"}


@dataclass
class WholeRun(Benchmark):
    """RelaySGD with 16 `cnn` on data of CIFAR-10's shape and number, in one process with one thread.

    One epoch is trained, with as many evaluations, on as many test examples, as ten epochs have by default, so that
    only the time of the steps is multiplied. The passes alone are those of plain modules on batches that are there
    already, timed before and after.
    """

    name: str = "whole_run"
    title: ClassVar[str] = "a default run of ten epochs on data like CIFAR-10 / its passes alone"

    def measure(self, effort: Effort) -> Findings:
        """The whole run; a quick one has little data."""
        import torch

        from decentral.runtime.launch import launch
        from decentral.store import RunStore

        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            config = one_epoch(f"{folder}/run", effort)
            calls = 1 if effort.quick else _PASSES_TIMED
            step_s = [passes_s(config, calls)]
            began = time.perf_counter()
            launch(config)
            took = time.perf_counter() - began
            facts = RunStore.peek(Path(folder) / "run")
            step_s.append(passes_s(config, calls))
        assert facts is not None
        times: dict[str, float] = facts["times_s"]
        alone = _EPOCHS * facts["step"] * sum(step_s) / len(step_s)
        seconds = {part: _EPOCHS * times[part] for part in ("passes", "exchange", "data")}
        seconds |= {part: times[part] for part in ("evaluation", "checkpoints")}
        seconds |= {"start and end": took - sum(times.values())}
        seconds |= {"all": sum(seconds.values())}
        rows: list[dict[str, Any]] = [{"part": p, "seconds": s, "share": s / alone} for p, s in seconds.items()]
        targets = [
            Target("the whole run / its passes alone", seconds["all"] / alone, 1.20),
            Target("its evaluations / its passes", seconds["evaluation"] / seconds["passes"], 0.10),
        ]
        note = f"The passes alone take {alone:.0f} s. Checkpoints are those of the one epoch that is timed."
        return Findings([Table("Where the time goes (wall)", _COLUMNS, rows)], targets, [note])


def one_epoch(directory: str, effort: Effort) -> Config:
    """An epoch with the evaluations of ten."""
    from decentral.benchmarks.baselines.cifar_like import CifarLike
    from decentral.config.composition import compose

    data = CifarLike(num_train=1024, num_test=64) if effort.quick else CifarLike()
    every = Images.eval_every_epochs
    examples = EvaluationSettings(every).on_the_way(data.num_train, data.num_test, 16, _EPOCHS)
    settings = ["algo=relaysgd", "topology=dbt", "model=cnn", "num_workers=16", "lr=0.01", "epochs=1"]
    evaluation = [f"evaluation.every_epochs={every / _EPOCHS}", f"evaluation.examples={examples or 'all'}"]
    where = ["processes=1", "device=cpu", "progress=false", f"run_dir={directory}"]
    return compose([*settings, *evaluation, *where], made={"data": data})


def passes_s(config: Config, calls: int) -> float:
    """The passes of a step (wall), alone: the mean of so many, after one to warm up."""
    import torch

    from decentral.benchmarks.harness.cpu_steps import passes
    from decentral.network.world import World
    from decentral.training.assemble import assemble

    run = assemble(config, World(0, 1, torch.device("cpu")))
    compute = passes(run)
    run.close()
    compute()
    began = time.perf_counter()
    for _ in range(calls):
        compute()
    return (time.perf_counter() - began) / calls
