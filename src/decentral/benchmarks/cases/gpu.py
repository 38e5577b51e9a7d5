"""What a GPU does with many models in one process, next to what it does with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.benchmarks.baselines.training import PlainTraining, model_and_batch
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.device_times import on_device, peak_bytes, row_bytes
from decentral.jobs.timing.group import Stepping

if TYPE_CHECKING:
    from decentral.config.schema import Config
    from decentral.network.world import World

_CIFAR10_IMAGES, _EPOCHS = 50_000, 200
_STEPS = {
    "model": "model",
    "num_workers": "n",
    "algorithm": "algorithm",
    "execution": "execution",
    "precision": "precision",
    "step_ms": "step (ms, least)",
    "images_per_s": "images/s",
    "one_images_per_s": "one model (images/s)",
    "ratio": "step / one model's",
    "not_compute": "share that is not compute",
    "peak_gib": "peak memory (GiB)",
    "peak_to_rows": "peak / rows",
    "run_s": "200 epochs of CIFAR-10 (s, extrapolated)",
}
_GROUP = {"algorithm": "algorithm", "local_ms": "no group (ms)", "group_ms": "group of one (ms)", "ratio": "ratio"}


class Case(NamedTuple):
    """n models of one kind, each with its own batch. `judged` steps should take at most so many ms."""

    label: str
    model: str
    num_workers: int
    batch_size: int
    image_size: int
    num_classes: int
    judged: float | None = None


CASES = (
    Case("VGG-11, batch 32", "vgg11", 16, 32, 32, 10, judged=6.0),
    Case("ResNet-50, batch 32", "resnet50", 8, 32, 224, 1000),
)


class Way(NamedTuple):
    """How the models are trained."""

    execution: str
    precision: str
    algo: str = "dpsgd"
    topology: str = "ring"


_PLAIN = Way("loop", "fp32")
WAYS = (
    _PLAIN,
    Way("auto", "fp32"),
    Way("auto", "tf32"),
    Way("auto", "bf16"),
    Way("auto", "fp32", "relaysgd", "dbt"),
)


@dataclass
class Gpu(Benchmark):
    """Wall time with the device waited for at both ends; images are there already."""

    name: str = "gpu"
    title: ClassVar[str] = "a step of n models on one GPU / a step of one model at the same total batch"

    def refusal(self) -> str | None:
        """There is no GPU."""
        from decentral.host.devices import num_gpus

        return None if num_gpus() else "no GPU here"

    def measure(self, effort: Effort) -> Findings:
        """Both models; what a process group costs where it has one process."""
        return measure_on("cuda", CASES[:1] if effort.quick else CASES, WAYS, effort)


def measure_on(device: str, cases: Sequence[Case], ways: Sequence[Way], effort: Effort) -> Findings:
    """The findings for `cuda` or `cpu`."""
    steps, rows, targets = 1 if effort.quick else 20, [], []
    for case in cases:
        found = [step_row(case, way, device, effort.rounds, steps) for way in ways]
        rows += found
        if case.judged is not None:
            targets += _targets(case, case.judged, found)
    group = [group_row(cases[0], algo, device, effort.rounds, steps) for algo in ("dpsgd", "allreduce")]
    notes = [
        "One model is a plain PyTorch loop (SGD with momentum) on a batch of n times the size, in the same precision. "
        "What is not compute is a step less the time of its n gradients alone."
    ]
    tables = [Table("A step of n models", _STEPS, rows), Table("A process group of one process", _GROUP, group)]
    return Findings(tables, targets, notes)


def _targets(case: Case, judged: float, rows: Sequence[dict[str, Any]]) -> list[Target]:
    fastest, plain = min(rows, key=lambda row: row["step_ms"]), rows[0]
    what = f"{case.num_workers} x {case.label} in {fastest['precision']}"
    return [
        Target(f"{what}: step (ms)", fastest["step_ms"], at_most=judged),
        Target(f"loop in {plain['precision']} / {what}", plain["step_ms"] / fastest["step_ms"], at_least=3.0),
    ]


def step_row(case: Case, way: Way, device: str, rounds: int, steps: int) -> dict[str, Any]:
    """Steps, the gradients in them, and those of one model with all the images, in turn."""
    import torch

    config, world = configured(case, way, device), alone(device)
    with torch.no_grad():
        run = stepping(config, world)
        peak = peak_bytes(run, world.device)
        rows = row_bytes(run)
        module, images, labels = model_and_batch(config, world)
        works: dict[str, Callable[[], object]] = {
            "step": run,
            "gradients": gradients(run),
            "one": PlainTraining(module, images, labels, config),
        }
        times = on_device(works, world.device, rounds, steps)
        run.close()
    step_s, batch = times.least("step"), case.num_workers * case.batch_size
    run_steps = _CIFAR10_IMAGES * _EPOCHS // batch
    return {
        "model": case.label,
        "num_workers": case.num_workers,
        "algorithm": f"{way.algo}, {way.topology}",
        "execution": run.run.problem.facts["execution"],
        "precision": way.precision,
        "step_ms": 1e3 * step_s,
        "images_per_s": batch / step_s,
        "one_images_per_s": batch / times.least("one"),
        "ratio": times.ratio("step", "one"),
        "not_compute": 1 - times.ratio("gradients", "step").median,
        "peak_gib": None if peak is None else peak / 2**30,
        "peak_to_rows": None if peak is None else peak / rows,
        "run_s": step_s * run_steps if case.image_size == 32 else None,
    }


def group_row(case: Case, algo: str, device: str, rounds: int, steps: int) -> dict[str, Any]:
    """The same run without a process group, and in one of a single process (nccl on a GPU)."""
    import torch

    config, world = configured(case, Way("auto", "fp32", algo), device), alone(device)
    with group_of_one(config) as grouped, torch.no_grad():
        local, inside = stepping(config, world), stepping(config, grouped)
        times = on_device({"local": local, "group": inside}, world.device, rounds, steps)
        local.close()
        inside.close()
    return {
        "algorithm": algo,
        "local_ms": 1e3 * times.least("local"),
        "group_ms": 1e3 * times.least("group"),
        "ratio": times.ratio("group", "local"),
    }


def configured(case: Case, way: Way, device: str) -> Config:
    """The run, made without Hydra, which may not be where the GPU is."""
    from decentral.config.checks import resolve
    from decentral.config.files import from_dict

    groups = {"algo": way.algo, "topology": way.topology, "task": "images", "partition": "iid", "model": case.model}
    groups |= {"schedule": "constant", "logger": "none", "launcher": "local"}
    values: dict[str, Any] = {group: {"name": name} for group, name in groups.items()}
    values["optim"] = {"name": "sgd", "momentum": 0.9}
    values["data"] = {"name": "synthetic", "image_size": case.image_size, "num_classes": case.num_classes}
    values |= {"network": {}, "num_workers": case.num_workers, "batch_size": case.batch_size}
    values |= {"device": device, "processes": "1", "lr": 0.001}
    return resolve(from_dict(values | {"execution": way.execution, "precision": way.precision}))


def alone(device: str) -> World:
    """This process, without a group."""
    import torch

    from decentral.network.world import World

    return World(0, 1, torch.device(device, 0) if device == "cuda" else torch.device(device))


@contextmanager
def group_of_one(config: Config) -> Iterator[World]:
    """This process, in a group of its own."""
    from decentral.config.identity import run_id
    from decentral.runtime.process_group import joined, serve_store, stay_on_this_machine

    stay_on_this_machine()
    store = serve_store(1, config.network.timeout_s)
    with joined(config, 0, 1, 0, 0, run_id(config), store) as world:
        yield world


def stepping(config: Config, world: World) -> Stepping:
    """The run, assembled."""
    from decentral.training.assemble import assemble

    return Stepping(assemble(config, world))


def gradients(stepping: Stepping) -> Callable[[], object]:
    """The next n gradients, at the models as they are then."""
    run = stepping.run
    return lambda: run.oracle(run.stepper.models)
