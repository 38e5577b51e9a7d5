"""Benchmarks of several processes, of data and of GPUs: what they count is right, and every row is there. Times are not
looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from configure import configure
from decentral.benchmarks.baselines.exchanges import PointToPoint, messages
from decentral.benchmarks.baselines.narrow_vgg import NarrowVGG
from decentral.benchmarks.baselines.thesis_relay import ThesisRelay
from decentral.benchmarks.cases import averaging, communication, data, distributed, gpu
from decentral.benchmarks.harness.benchmark import Effort
from decentral.benchmarks.harness.device_times import row_bytes
from decentral.data.description import ImageData
from decentral.jobs.timing.group import Together, Turns, Work, in_group
from decentral.jobs.timing.times import Times
from decentral.jobs.timing.verbs import Step, Verb
from decentral.network.world import World
from decentral.store.failures import RunFailed
from table import in_rounds

QUICK = Effort(rounds=1, quick=True)


@dataclass(frozen=True)
class Counting:
    """Sends rank + 1 bytes in one message, as it says, and writes down when it is called."""

    file: Path
    name_of_work: str

    def __call__(self, world: World) -> Work:
        return CountingWork(self, world)


class CountingWork(Work):
    def __init__(self, setup: Counting, world: World) -> None:
        self.setup, self.world, self.calls = setup, world, 0

    def __call__(self) -> None:
        self.calls += 1
        self.note(self.setup.name_of_work)

    def sent(self) -> tuple[int, int]:
        return self.calls * (self.world.rank + 1), self.calls

    def close(self) -> None:
        self.note(f"close {self.setup.name_of_work}")

    def note(self, what: str) -> None:
        if self.world.leader:
            with open(self.setup.file, "a") as file:
                file.write(f"{what}\n")


@dataclass(frozen=True)
class Broken:
    def __call__(self, world: World) -> Work:
        raise ValueError("no such work")


def test_works_take_turns_and_what_all_processes_do_is_added_up(tmp_path: Path) -> None:
    setups = {name: Counting(tmp_path / "calls", name) for name in "ab"}
    found, again = in_group(2, [Turns(setups, rounds=3, repeats=2, warm_up=1), Turns(setups, rounds=1, warm_up=0)])
    calls = (tmp_path / "calls").read_text().split("\n")[:-1]
    rounds = "a a b b b b a a a a b b"
    assert calls == ["a", "b", *rounds.split(), "close a", "close b", "a", "b", "close a", "close b"]
    assert found.sent == again.sent == {"a": (3, 2), "b": (3, 2)}  # of one call: 1 + 2 bytes
    for times in (found.wall, found.cpu):
        assert {name: len(seconds) for name, seconds in times.seconds.items()} == {"a": 3, "b": 3}
        assert min(times.least("a"), times.least("b")) > 0


def test_a_work_that_fails_is_named() -> None:
    with pytest.raises(RunFailed, match="no such work"):
        in_group(2, [Turns({"broken": Broken()}, rounds=1)])


class TestLeast:
    @pytest.mark.parametrize(
        ("topology", "bytes_per_number", "num_messages"),
        [("ring", 16, 16), ("one_peer_exponential", 8, 8), ("exponential", 24, 24), ("chain", 14, 14), ("dbt", 14, 28)],
    )
    def test_what_eight_workers_must_send_is_a_row_for_each_edge(
        self, topology: str, bytes_per_number: int, num_messages: int
    ) -> None:
        config = configure("task=quadratics", "algo=allreduce", f"topology={topology}", "num_workers=8")
        assert communication.least(config, 100) == (4 * 100 * bytes_per_number, num_messages)

    def test_nobody_sends_to_itself(self) -> None:
        schedule = configure("task=quadratics", "algo=dpsgd", "topology=ring", "num_workers=4").topology.schedule(4)
        found = list(messages(schedule, 10, 0))
        assert len(found) == 8 and all(message.src != message.dst and message.width == 10 for message in found)


def test_an_exchange_sends_the_bytes_of_its_edges_and_no_message_more() -> None:
    (row,) = communication.exchange_rows(communication.EXCHANGES[8:9], 3, [1001], QUICK)
    assert row["exchange"] == "relay, dbt in contiguous halves"
    assert (row["bytes"], row["messages"]) == (1, 1)
    assert {f"{carrier}_{kind}" for carrier in ("torch", "shared_memory") for kind in ("cpu", "wall")} < set(row)


@pytest.mark.slow
def test_the_steps_are_held_against_all_reduce_and_the_thesis_way() -> None:
    rows, targets = communication.relay_rows(2, ((10, 10), (3,)), QUICK)
    assert [row["step"] for row in rows] == [
        "the bytes of relaying on dbt alone (gloo)",
        "one copy of a row in each process",
        "one all_reduce (gloo), no SGD",
        "allreduce (gloo)",
        "relaysgd, dbt (gloo)",
        "relaysgd, dbt (shared memory)",
        "relaysgd, dbt, the thesis' way (gloo)",
        "relaysgd, dbt, the thesis' way (gloo), freed memory is kept",
    ]
    assert [target.at_least for target in targets] == [0.83, 1.3, 2.8]


@pytest.mark.parametrize(("allreduce_s", "says"), [(0.8, "would reach 0.67"), (1.0, "")])
def test_a_floor_is_what_bytes_and_the_least_passes_take_where_that_is_too_much(allreduce_s, says) -> None:
    config = configure("task=quadratics", "algo=relaysgd", "topology=dbt", "num_workers=8")
    seconds = {communication.BYTES: [0.3], communication.COPY: [0.2], communication.ALLREDUCE: [allreduce_s]}
    found = Together(Times(seconds), Times(seconds), {})
    floor = communication.floor_of_a_step(found, config, communication.ALLREDUCE, 0.83)  # 0.3 s + 9 passes of 0.1 s
    assert (says in floor) and bool(floor) == bool(says)


def test_averages_are_held_against_all_reduce() -> None:
    found = averaging.Averaging().measure(QUICK)
    (table,) = found.tables
    labels = [row["exchange"] for row in table.rows]
    averages = ["ring, one neighbour", "ring, both neighbours", "one-peer exponential", "inner-outer exponential"]
    assert [label for label in labels if not any(part in label for part in ("all-reduce", "bytes", "copy"))] == averages
    assert len(labels) == 3 + 2 * len(averages) and all(row["wall_ms"] > 0 for row in table.rows)
    judged = [f"{label}, 0.01 MB ({clock})" for label in averages[:3] for clock in ("wall", "CPU")]
    assert [(one.measure, one.at_least) for one in found.targets] == [(f"all-reduce / {one}", 1.0) for one in judged]


@pytest.mark.parametrize(("raw_s", "says"), [(0.22, "would reach 0.80"), (0.17, "")])
def test_the_floor_of_an_average_is_what_its_bytes_and_three_passes_take(raw_s: float, says: str) -> None:
    seconds = {
        averaging.ALLREDUCE: [0.2],
        "ring, one neighbour": [0.3],
        "ring, one neighbour, its bytes alone": [raw_s],
        averaging.COPY: [0.02],
    }
    found = Together(Times(seconds), Times(seconds), {})
    for clock in ("wall", "CPU"):
        floor = averaging.floor_of_an_average(found, "ring, one neighbour", clock)
        assert (says in floor) and bool(floor) == bool(says)


@dataclass(frozen=True)
class Averages:
    """The thesis' step of two workers whose models are 0 and 1 and whose gradients are 1: both get the mean."""

    relay: ThesisRelay

    def __call__(self, world: World) -> Work:
        return AveragesWork(self.relay(world), world.rank)


class AveragesWork(Work):
    def __init__(self, work: Work, rank: int) -> None:
        self.work, self.rank = work, rank

    def __call__(self) -> None:
        for parameter in self.work.parameters:  # type: ignore[attr-defined]
            parameter.fill_(self.rank)
        self.work()
        for parameter in self.work.parameters:  # type: ignore[attr-defined]
            torch.testing.assert_close(parameter.data, torch.full(parameter.shape, 0.5 - 0.25))


@pytest.mark.slow
def test_the_thesis_way_of_relaying_averages_two_models() -> None:
    config = configure("task=quadratics", "algo=relaysgd", "topology=dbt", "num_workers=2", "lr=0.25")
    in_group(2, [Turns({"relay": Averages(ThesisRelay(config, ((3, 2), (3,))))}, rounds=2)])


@pytest.mark.slow
def test_distributed_has_a_row_for_each_method_next_to_the_passes_and_ddp() -> None:
    rows = distributed.case_rows(distributed.QUICK, 2, QUICK)
    assert [row["step"] for row in rows] == ["passes alone", "DistributedDataParallel", "dpsgd, ring", "allreduce"]
    assert {row["parameters"] for row in rows} == {903_010}
    targets = distributed.targets_of(distributed.QUICK, 2, rows)
    assert [target.measure.partition(",")[0] for target in targets] == [
        "D-PSGD ring step / passes alone",
        "DistributedDataParallel's step / D-PSGD's",
    ]


def test_every_algorithm_that_trains_is_timed_on_the_smallest_model() -> None:
    case = distributed.CASES[0]
    methods = [method for methods in case.sets for method in methods]
    timed = {distributed.configured(case, method, case.sizes[0]).algo.name for method in methods}
    recent = {"dadam", "diloco", "epidemic_learning", "gasloc", "momentum_tracking", "noloco", "sparseloco"}
    recent |= {"streaming_diloco", "teleportation"}  # not timed yet
    assert timed == {name for name, cls in in_rounds().items() if not cls.needs_samples} - recent


def test_the_narrow_model_takes_larger_images() -> None:
    logits = NarrowVGG(width=4).build(ImageData(shape=(3, 64, 64), num_classes=10))(torch.zeros(2, 3, 64, 64))
    assert logits.shape == (2, 10)


@pytest.mark.slow
def test_data_finds_images_per_second_of_loaders_and_models() -> None:
    threads = torch.get_num_threads()
    try:
        found = data.Data().measure(QUICK)
    finally:
        torch.set_num_threads(threads)
    own, loaders = found.tables
    assert [row["model"] for row in own.rows] == ["VGG-11", "ResNet-50"]
    assert all(0 < row["share"] < 1 and row["data_per_s"] > 0 for row in own.rows)
    assert loaders.rows[0]["images_per_s"] > 0
    assert [target.met for target in found.targets] == [True]


def test_the_made_up_files_are_photographs_in_size_and_shape(tmp_path: Path) -> None:
    from PIL import Image

    data.make_jpegs(tmp_path, 3, (60, 40))
    files = sorted(tmp_path.glob("*/*.jpg"))
    assert [file.relative_to(tmp_path).as_posix() for file in files] == ["class0/0.jpg", "class0/2.jpg", "class1/1.jpg"]
    pixels = np.asarray(Image.open(files[0]), dtype=float)
    assert pixels.shape == (40, 60, 3)
    assert pixels.std() > 2 * np.abs(np.diff(pixels, axis=1)).mean()  # neighbours are alike


class TestGpu:
    CASE = gpu.Case("small CNN", "cnn", 2, 2, 8, 10, judged=6.0)

    def test_without_a_gpu_it_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("decentral.host.devices.num_gpus", lambda: 0)
        assert gpu.Gpu().refusal() == "no GPU here"
        monkeypatch.setattr("decentral.host.devices.num_gpus", lambda: 1)
        assert gpu.Gpu().refusal() is None

    @pytest.mark.slow
    def test_it_measures_on_any_device_where_neither_hydra_nor_pandas_is_installed(self) -> None:
        program = (
            "import sys\n"
            "for name in ('hydra', 'omegaconf', 'yaml', 'pandas', 'matplotlib', 'wandb'): sys.modules[name] = None\n"
            "from decentral.benchmarks.cases.gpu import WAYS, Case, Effort, Way, measure_on\n"
            f"ways, case = (WAYS[0], Way('auto', 'bf16')), Case(*{tuple(self.CASE)!r})\n"
            "found = measure_on('cpu', [case], ways, Effort(1, quick=True))\n"
            "print(len(found.tables[0].rows), len(found.tables[1].rows), len(found.targets))"
        )
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment
        )
        assert (done.stdout, done.returncode) == ("2 2 2\n", 0), done.stderr

    def test_gradients_are_those_of_new_images_read_one_after_the_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with torch.no_grad():
            run = gpu.stepping(gpu.configured(self.CASE, gpu.Way("auto", "fp32"), "cpu"), gpu.alone("cpu"))
            read, problem = [], run.run.problem
            monkeypatch.setattr(
                problem, "next_batch", lambda draw: read.append(draw) or type(problem).next_batch(problem, draw)
            )
            work = gpu.gradients(run)
            for _ in range(2):
                run()
                work()
        assert read == [0, 1, 2, 3]

    def test_the_rows_are_the_state_and_the_gradients(self) -> None:
        config = gpu.configured(self.CASE, gpu.Way("auto", "fp32"), "cpu")
        run = gpu.stepping(config, gpu.alone("cpu"))
        num_parameters = distributed.num_parameters(config)
        assert row_bytes(run) == 4 * 2 * num_parameters * 3  # x, momentum, g


def test_raw_messages_and_verbs_can_be_sent_to_other_processes() -> None:
    import pickle

    config = configure("task=quadratics", "algo=allreduce", "topology=ring", "num_workers=4")
    for setup in (PointToPoint(config, 5), Verb(config, 5, "mix"), Step(config, 5), ThesisRelay(config, ((2,),))):
        assert pickle.loads(pickle.dumps(setup)) == setup
