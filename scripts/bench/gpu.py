"""What a GPU does with many models in one process, next to what it does with one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from bench.baselines import PlainTraining, model_and_batch
from bench.harness import Effort, Findings, Table, Target, Times, alone, benchmark, in_turn
from decentral.config.checks import resolve
from decentral.config.parsing import from_dict
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.host.machine import num_gpus
from decentral.network.world import World
from decentral.runtime.process_group import joined, serve_store, stay_on_this_machine
from decentral.training.assemble import Run, assemble


class Case(NamedTuple):
    """n models of one kind, each with its own batch. `judged` steps should take at most so many ms."""

    label: str
    model: str
    num_workers: int
    batch_size: int
    image_size: int
    num_classes: int
    judged: float | None = None


class Way(NamedTuple):
    """How the models are trained."""

    execution: str
    precision: str
    algo: str = "dpsgd"
    topology: str = "ring"


CASES = (
    Case("VGG-11, batch 32", "vgg11", 16, 32, 32, 10, 6.0),
    Case("ResNet-50, batch 32", "resnet50", 8, 32, 224, 1000),
)
WAYS = (
    Way("loop", "fp32"),
    Way("auto", "fp32"),
    Way("auto", "tf32"),
    Way("auto", "bf16"),
    Way("auto", "fp32", "relaysgd", "dbt"),
)


@benchmark(
    "a step of n models on one GPU / a step of one model at the same total batch",
    missing=lambda: "" if num_gpus() else "no GPU here",
)
def gpu(effort: Effort) -> Findings:
    """Wall time with the device waited for at both ends; images are there already. Both models, and what a process
    group costs where it has one process."""
    return measure_on("cuda", effort.of(CASES), WAYS, effort)


def measure_on(device: str, cases: Sequence[Case], ways: Sequence[Way], effort: Effort) -> Findings:
    """The findings for `cuda` or `cpu`."""
    rows, targets = [], []
    for case in cases:
        found = [step_row(case, way, device, effort) for way in ways]
        rows += found
        if case.judged is not None:
            fastest = min(found, key=lambda row: row["step_ms"])
            what = f"{case.num_workers} x {case.label} in {fastest['precision']}"
            faster = found[0]["step_ms"] / fastest["step_ms"]
            targets.append(Target(f"{what}: step (ms)", fastest["step_ms"], at_most=case.judged))
            targets.append(Target(f"loop in {found[0]['precision']} / {what}", faster, at_least=3.0))
    columns = {
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
    heads = {"algorithm": "algorithm", "local_ms": "no group (ms)", "group_ms": "group of one (ms)", "ratio": "ratio"}
    group = [group_row(cases[0], algo, device, effort) for algo in ("dpsgd", "allreduce")]
    note = (
        "One model is a plain PyTorch loop (SGD with momentum) on a batch of n times the size, in the same precision. "
        "What is not compute is a step less the time of its n gradients alone."
    )
    tables = [Table("A step of n models", columns, rows), Table("A process group of one process", heads, group)]
    return Findings(tables, targets, [note])


def step_row(case: Case, way: Way, device: str, effort: Effort) -> dict[str, Any]:
    """Steps, the gradients in them, and those of one model with all the images, in turn."""
    config, world = configured(case, way, device), alone(device)
    with torch.no_grad():
        run = assemble(prepare(config), world)
        peak, rows = peak_bytes(run), row_bytes(run)
        works: dict[str, Callable[[], object]] = {
            "step": run.stepper.step,
            "gradients": partial(gradients, run),
            "one": PlainTraining(*model_and_batch(config, world), config),
        }
        times = on_device(works, world.device, effort)
        run.close()
    step_s, batch = times.least("step"), case.num_workers * case.batch_size
    return {
        "model": case.label,
        "num_workers": case.num_workers,
        "algorithm": f"{way.algo}, {way.topology}",
        "execution": run.problem.facts["execution"],
        "precision": way.precision,
        "step_ms": 1e3 * step_s,
        "images_per_s": batch / step_s,
        "one_images_per_s": batch / times.least("one"),
        "ratio": times.ratio("step", "one"),
        "not_compute": 1 - times.ratio("gradients", "step").median,
        "peak_gib": None if peak is None else peak / 2**30,
        "peak_to_rows": None if peak is None else peak / rows,
        "run_s": step_s * (50_000 * 200 // batch) if case.image_size == 32 else None,
    }


def gradients(run: Run) -> object:
    """The next n gradients, at the models as they are then."""
    return run.oracle(run.stepper.models)


def group_row(case: Case, algo: str, device: str, effort: Effort) -> dict[str, Any]:
    """The same run without a process group, and in one of a single process (nccl on a GPU)."""
    config, world = configured(case, Way("auto", "fp32", algo), device), alone(device)
    with group_of_one(config) as grouped, torch.no_grad():
        runs = {"local": assemble(prepare(config), world), "group": assemble(prepare(config), grouped)}
        times = on_device({name: run.stepper.step for name, run in runs.items()}, world.device, effort)
        for run in runs.values():
            run.close()
    return {
        "algorithm": algo,
        "local_ms": 1e3 * times.least("local"),
        "group_ms": 1e3 * times.least("group"),
        "ratio": times.ratio("group", "local"),
    }


def configured(case: Case, way: Way, device: str) -> Config:
    """The run, made without Hydra, which may not be where the GPU is."""
    groups = {"algo": way.algo, "topology": way.topology, "task": "images", "partition": "iid", "model": case.model}
    groups |= {"schedule": "constant", "logger": "none", "launcher": "local", "env": "gridworld"}
    groups |= {"compress": "none", "cluster": "none"}
    values: dict[str, Any] = {group: {"name": name} for group, name in groups.items()}
    values["optim"] = {"name": "sgd", "momentum": 0.9}
    values["data"] = {"name": "synthetic", "image_size": case.image_size, "num_classes": case.num_classes}
    values |= {"network": {}, "num_workers": case.num_workers, "batch_size": case.batch_size}
    values |= {"device": device, "processes": "1", "lr": 0.001}
    return resolve(from_dict(values | {"execution": way.execution, "precision": way.precision}))


@contextmanager
def group_of_one(config: Config) -> Iterator[World]:
    """This process, in a group of its own."""
    stay_on_this_machine()
    store = serve_store(1, config.network.timeout_s)
    with joined(prepare(config), 0, 1, 0, 0, store) as world:
        yield world


def on_device(works: dict[str, Callable[[], object]], device: torch.device, effort: Effort) -> Times:
    """Seconds of one call of each, measured over some calls between two waits for the device."""
    calls = effort.repeats(20)

    def whole(work: Callable[[], object]) -> None:
        for _ in range(calls):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wholes = {name: partial(whole, work) for name, work in works.items()}
    times = in_turn(wholes, effort.rounds, clock=time.perf_counter)
    return Times({name: [second / calls for second in seconds] for name, seconds in times.seconds.items()})


def peak_bytes(run: Run) -> int | None:
    """The most memory that steps take on the GPU; None elsewhere."""
    device = run.world.device
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(3):
        run.stepper.step()
    return torch.cuda.max_memory_allocated(device)


def row_bytes(run: Run) -> int:
    """What the state takes, and the gradients."""
    tensors = [leaf for leaf in tree_leaves(run.stepper.state) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in [*tensors, run.stepper.models])
