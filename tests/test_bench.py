"""What `make bench` measures: it counts right, every row is there, and the page shows it. Times are not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import bench.__main__ as command
from bench import data, exchanges, gpu, memory, processes, steps
from bench.baselines import NarrowVGG
from bench.harness import BENCHMARKS, RESULTS, SCRIPTS, Benchmark, Effort, Findings, Steps, Table, Target, save
from bench.page import load_all, number, write_page
from bench.traffic import CASES, Meter, count
from configure import configure
from decentral.data.description import ImageData
from decentral.measurements.timing import Times, Together, Turns, Work, in_group, in_turn
from decentral.network.world import World
from decentral.registry import components
from decentral.store.failures import RunFailed
from table import in_rounds

QUICK = Effort(rounds=1, quick=True)


def handmade(found: float = 1.25) -> Findings:
    table = Table("Times", {"what": "what", "ratio": "a / b"}, [{"what": "x", "ratio": (1.0, 0.5, 2.0), "hidden": 7}])
    met = Target("b / a", 0.8, at_least=0.5)
    return Findings([table], [Target("a / b", found, at_most=1.1, floor="the row x shows why"), met], ["a note"])


# -- the command, what it stores, and the page -------------------------------------------------------------------------


def test_what_is_measured_is_stored_and_what_fails_or_is_missing_is_told(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(BENCHMARKS, "rl", Benchmark("a / b", lambda effort: handmade(), lambda: "no such machine"))
    monkeypatch.setattr(command.subprocess, "run", lambda arguments, **given: subprocess.CompletedProcess(arguments, 1))
    assert command.main(["rl", "start", "--quick", "--output", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "not run: no such machine" in out and "of importing torch ... failed" in out
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")] == [Path("quick/README.md")]
    with pytest.raises(SystemExit, match="2"):
        command.main(["simulatd"])
    assert "there is no benchmark simulatd" in capsys.readouterr().err


def test_the_page_has_targets_tables_notes_and_provenance(tmp_path) -> None:
    record = json.loads(save("start", handmade(), QUICK, 61.0, tmp_path).read_text())
    assert [target["met"] for target in record["targets"]] == [False, True]
    assert not {"directory", "host", "command_line"} & set(record["provenance"])
    page = write_page(load_all(tmp_path), tmp_path).read_text()
    assert "| a / b | at most 1.10 | 1.25 | not met (floor) |\n| b / a | at least 0.5 | 0.8 | met |" in page
    assert "- The floor of a / b: the row x shows why" in page and "\n- a note" in page
    assert "| x | 1.00 (0.5 to 2.00) |" in page and "hidden" not in page
    assert "1 rounds in 1 min 1 s, quick: sizes too small to mean anything" in page
    assert "![" not in page and not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    "value, cell", [(None, "-"), (9750922, "9,750,922"), (0.01234, "0.0123"), (1.456, "1.46"), (1234.5, "1,234")]
)
def test_cells_have_three_digits(value: object, cell: str) -> None:
    assert number(value) == cell


def test_the_page_that_is_committed_is_made_again(tmp_path) -> None:
    assert write_page(load_all(RESULTS), tmp_path).read_text() == (RESULTS / "README.md").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in RESULTS.glob("*.[!j]*")}
    assert {one["name"]: one["title"] for one in load_all(RESULTS)} == {
        name: one.title for name, one in BENCHMARKS.items() if name != "gpu"
    }


@pytest.mark.slow
def test_the_command_measures_in_a_process_of_its_own(tmp_path) -> None:
    given = [sys.executable, "-m", "bench", "quadratics", "--quick", "--output", str(tmp_path)]
    subprocess.run(given, check=True, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, stdout=subprocess.DEVNULL)
    (found,) = load_all(tmp_path / "quick")
    assert found["provenance"]["quick"] is True
    assert [row["algorithm"] for row in found["tables"][0]["rows"]] == [
        "dpsgd, ring",
        "relaysgd, bt",
        "relaysgd, chain",
    ]


@pytest.mark.parametrize(
    "name, tables, targets",
    [
        ("averaging", 1, 6),
        ("collectives", 1, 2),
        ("compression", 2, 5),
        ("data", 2, 1),
        ("distributed", 1, 2),
        ("laptop", 1, 3),
        ("outer", 1, 1),
        ("scale", 5, 0),
        ("simulated", 2, 3),
        ("start", 1, 1),
        ("timeline", 1, 1),
        ("translation", 1, 2),
        ("virtual", 1, 3),
        ("ways", 1, 2),
        ("whole_run", 1, 4),
    ],
)
@pytest.mark.slow
def test_a_benchmark_finds_tables_and_targets(name: str, tables: int, targets: int, tmp_path) -> None:
    threads = torch.get_num_threads()
    try:
        found = BENCHMARKS[name].measure(QUICK)
    finally:
        torch.set_num_threads(threads)
    assert (len(found.tables), len(found.targets)) == (tables, targets)
    for table in found.tables:
        assert table.rows and all(set(table.columns) <= set(row) for row in table.rows)
    save(name, found, QUICK, 1.0, tmp_path)
    page = write_page(load_all(tmp_path), tmp_path).read_text()
    assert all(table.title in page for table in found.tables)
    assert (tmp_path / "cost.png").exists() == (name in ("simulated", "scale"))


# -- times, alone and between processes --------------------------------------------------------------------------------


def test_works_are_called_in_turn_and_a_ratio_is_taken_within_each_round() -> None:
    calls: list[str] = []
    in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert "".join(calls) == "ab" + "ab" + "ba"
    clock = iter([0, 2, 2, 3, 10, 14, 20, 28])
    times = in_turn({"a": int, "b": int}, rounds=2, clock=lambda: float(next(clock)))
    assert times.seconds == {"a": [2, 8], "b": [1, 4]}
    assert times.ratio("a", "b") == (2, 2, 2)


class Counting(Work):
    """Sends rank + 1 bytes in one message, as it says, and writes down when it is called."""

    def __init__(self, file: Path, name: str, world: World) -> None:
        self.file, self.name, self.world, self.calls = file, name, world, 0

    def __call__(self) -> None:
        self.calls += 1
        self.note(self.name)

    def sent(self) -> tuple[int, int]:
        return self.calls * (self.world.rank + 1), self.calls

    def close(self) -> None:
        self.note(f"close {self.name}")

    def note(self, what: str) -> None:
        if self.world.leader:
            with open(self.file, "a") as file:
                file.write(f"{what}\n")


def broken(world: World) -> Work:
    raise ValueError("no such work")


def test_works_take_turns_and_what_all_processes_do_is_added_up(tmp_path) -> None:
    setups = {name: partial(Counting, tmp_path / "calls", name) for name in "ab"}
    found, again = in_group(2, [Turns(setups, rounds=3, repeats=2, warm_up=1), Turns(setups, rounds=1, warm_up=0)])
    calls = (tmp_path / "calls").read_text().split("\n")[:-1]
    rounds = "a a b b b b a a a a b b"
    assert calls == ["a", "b", *rounds.split(), "close a", "close b", "a", "b", "close a", "close b"]
    assert found.sent == again.sent == {"a": (3, 2), "b": (3, 2)}  # of one call: 1 + 2 bytes
    for times in (found.wall, found.cpu):
        assert {name: len(seconds) for name, seconds in times.seconds.items()} == {"a": 3, "b": 3}
        assert min(times.least("a"), times.least("b")) > 0
    with pytest.raises(RunFailed, match="no such work"):
        in_group(2, [Turns({"broken": broken}, rounds=1)])


# -- exchanges ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "bytes_per_number", "num_messages"),
    [("ring", 16, 16), ("one_peer_exponential", 8, 8), ("exponential", 24, 24), ("chain", 14, 14), ("dbt", 14, 28)],
)
def test_what_eight_workers_must_send_is_a_row_for_each_edge(topology, bytes_per_number, num_messages) -> None:
    config = configure("task=quadratics", "algo=allreduce", f"topology={topology}", "num_workers=8")
    assert exchanges.least(config, 100) == (4 * 100 * bytes_per_number, num_messages)
    assert all(message.src != message.dst for message in exchanges.messages(config.rounds(), 10, 0))


def test_an_exchange_sends_the_bytes_of_its_edges_and_no_message_more() -> None:
    (row,) = exchanges.exchange_rows(exchanges.EXCHANGES[8:9], 3, [1001], QUICK)
    assert row["exchange"] == "relay, dbt in contiguous halves"
    assert (row["bytes"], row["messages"]) == (1, 1)


@pytest.mark.slow
def test_the_steps_are_held_against_all_reduce_and_the_thesis_way() -> None:
    rows, targets = exchanges.relay_rows(2, ((10, 10), (3,)), QUICK)
    assert len(rows) == 8 and all(row["wall_ms"] > 0 for row in rows)
    assert [target.at_least for target in targets] == [0.83, 1.3, 2.8]


@pytest.mark.parametrize(("other_s", "says"), [(0.8, "would reach 0.67"), (1.0, "")])
def test_a_floor_is_what_bytes_and_the_least_passes_take_where_that_is_too_much(other_s, says) -> None:
    config = configure("task=quadratics", "algo=relaysgd", "topology=dbt", "num_workers=8")
    seconds = {label: [other_s] for label in (exchanges.STEP_ALLREDUCE, *exchanges.RELAYS)}
    seconds |= {exchanges.BYTES: [0.3], exchanges.COPY: [0.2]}  # 0.3 s and 9 passes of 0.1 s
    first, *_ = exchanges.relay_targets(Together(Times(seconds), Times(seconds), {}), config)
    assert (says in first.floor) and bool(first.floor) == bool(says)


class Averages(Work):
    """The thesis' step of two workers whose models are 0 and 1 and whose gradients are 1: both get the mean."""

    def __init__(self, config, world: World) -> None:
        self.rank, self.relay = world.rank, exchanges.ThesisRelay(config, ((3, 2), (3,)), False, world)

    def __call__(self) -> None:
        for parameter in self.relay.parameters:
            parameter.fill_(self.rank)
        self.relay()
        for parameter in self.relay.parameters:
            torch.testing.assert_close(parameter.data, torch.full(parameter.shape, 0.5 - 0.25))


@pytest.mark.slow
def test_the_thesis_way_of_relaying_averages_two_models() -> None:
    config = configure("task=quadratics", "algo=relaysgd", "topology=dbt", "num_workers=2", "lr=0.25")
    in_group(2, [Turns({"relay": partial(Averages, config)}, rounds=2)])


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [("model=mlp",), ("model=cnn",)])
def test_the_plain_loop_and_every_way_find_the_same_gradients(settings: tuple[str, ...]) -> None:
    run = Steps("algo=dpsgd", "topology=ring", "num_workers=4", "batch_size=8", *settings).run
    works = steps.gradients_by_way(run, run.stepper.models)
    assert set(works) == {"plain loop", "auto", "loop", "batched"}
    loss, g = works["plain loop"]()
    for work in works.values():
        found_loss, found_g = work()
        assert torch.allclose(found_loss, loss, atol=1e-6) and torch.allclose(found_g, g, atol=1e-6)
    run.close()


def test_a_way_that_refuses_the_model_is_left_out() -> None:
    settings = (*steps.VGG11[:-1], "num_workers=2", "batch_size=2")
    row = steps.ways_row(steps.Model("vgg11 with dropout", settings, 1), QUICK)
    assert (row["batched_ms"], row["choice"]) == (None, "loop")


def test_every_algorithm_that_trains_is_timed_on_the_smallest_model() -> None:
    case = processes.CASES[0]
    timed = {processes.configured(case, one, 8).algo.name for methods in case.sets for one in methods.values()}
    recent = {"dadam", "diloco", "epidemic_learning", "gasloc", "momentum_tracking", "noloco", "sparseloco"}
    recent |= {"streaming_diloco", "teleportation"}  # not timed yet
    assert timed == {name for name, cls in in_rounds().items() if not cls.needs_samples} - recent


def test_the_narrow_model_has_its_size_and_takes_larger_images() -> None:
    assert processes.num_parameters(processes.configured(processes.QUICK, ("algo=dpsgd",), 2)) == 903_010
    logits = NarrowVGG(width=4).build(ImageData(shape=(3, 64, 64), num_classes=10))(torch.zeros(2, 3, 64, 64))
    assert logits.shape == (2, 10)


def test_the_made_up_files_are_photographs_in_size_and_shape(tmp_path) -> None:
    from PIL import Image

    data.make_jpegs(tmp_path, 3, (60, 40))
    files = sorted(tmp_path.glob("*/*.jpg"))
    assert [file.relative_to(tmp_path).as_posix() for file in files] == ["class0/0.jpg", "class0/2.jpg", "class1/1.jpg"]
    pixels = np.asarray(Image.open(files[0]), dtype=float)
    assert pixels.shape == (40, 60, 3)
    assert pixels.std() > 2 * np.abs(np.diff(pixels, axis=1)).mean()  # neighbors are alike


# -- GPUs --------------------------------------------------------------------------------------------------------------

SMALL = gpu.Case("small CNN", "cnn", 2, 2, 8, 10, judged=6.0)


@pytest.mark.slow
def test_a_gpu_is_measured_where_neither_hydra_nor_pandas_is_installed() -> None:
    program = (
        "import sys\n"
        "for name in ('hydra', 'omegaconf', 'yaml', 'pandas', 'matplotlib', 'wandb'): sys.modules[name] = None\n"
        "from bench.gpu import WAYS, Case, Effort, Way, measure_on\n"
        f"ways, case = (WAYS[0], Way('auto', 'bf16')), Case(*{tuple(SMALL)!r})\n"
        "found = measure_on('cpu', [case], ways, Effort(1, quick=True))\n"
        "print(len(found.tables[0].rows), len(found.tables[1].rows), len(found.targets))"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.returncode) == ("2 2 2\n", 0), done.stderr


def test_the_rows_on_a_gpu_are_the_state_and_the_gradients() -> None:
    config = gpu.configured(SMALL, gpu.Way("auto", "fp32"), "cpu")
    with torch.no_grad():
        run = gpu.assemble(config, gpu.alone())
    assert gpu.row_bytes(run) == 4 * 2 * processes.num_parameters(config) * 3  # x, momentum, g
    run.close()


# -- memory: computed, measured, counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("dpsgd", 2),  # x, g
        ("gradient_tracking", 3),  # x, c, g
        ("relaysgd", 2 + 1 / 16 + 2 * 15 / 16),  # x, g, x0, messages
    ],
)
def test_rows_are_counted_in_the_real_states_and_momentum_adds_one(name: str, rows: float) -> None:
    row = memory.rows_of(name)
    assert row["16"] == pytest.approx(rows)
    assert row["momentum"] == row["1024"] + 1


def test_the_memory_of_a_model_decides_how_many_workers_fit() -> None:
    found = memory.memory_of_model("mlp", ImageData(shape=(1, 8, 8), num_classes=10))
    assert found.parameters == 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
    assert found.activations == 4 * 32 * (64 + 64 + 64)  # the input and two outputs of ReLU
    model = memory.ModelMemory(parameters=1000, activations=0)
    assert model.largest_num_workers(2, 80_000, 1) == 10
    assert model.largest_num_workers(2, 80_000, 8) == 80
    assert model.total_bytes(2, 10) == 80_000


@pytest.mark.slow
@pytest.mark.parametrize("execution", sorted(components("gradients").keys() - {"auto"}))
def test_what_a_step_takes_beyond_the_rows_does_not_grow_with_the_number_of_workers(execution: str) -> None:
    settings = ["algo=dpsgd", "topology=ring", "model=mlp", "model.hidden=[1000,1000]", "batch_size=8"]
    few, many = (memory.peak(*settings, f"num_workers={n}", f"execution={execution}") for n in (4, 32))
    row, more_workers = 4 * many["parameters"], 32 - 4
    growth = (many["peak"] - many["rows"]) - (few["peak"] - few["rows"])
    assert growth < 0.5 * more_workers * row


@pytest.mark.parametrize(
    ("operation", "moved", "allocated"),
    [
        (lambda a, b: a.add_(b), 3, 0),
        (lambda a, b: a.copy_(b), 2, 0),
        (lambda a, b: a.zero_(), 1, 0),
        (lambda a, b: torch.add(a, b, out=a.view(-1)), 3, 0),
        (lambda a, b: a + b, 3, 1),
        (lambda a, b: a[::2].mul_(2), 1, 0),
        (lambda a, b: a.view(2, -1).t(), 0, 0),
    ],
)
def test_the_meter_counts_each_operand_and_each_result_once(operation, moved, allocated) -> None:
    a, b = torch.zeros(8), torch.zeros(8)
    with Meter() as meter:
        operation(a, b)
    assert (meter.moved_bytes, meter.allocated_bytes) == (32 * moved, 32 * allocated)


@pytest.mark.parametrize(("settings", "least"), CASES)
def test_no_method_moves_much_more_than_it_has_to_and_all_allocate_next_to_nothing(settings, least) -> None:
    found = count(settings, least, 1 << 21)
    assert found["allocated"] <= 0.01
    assert found.get("ratio", 1) <= (2.0 if settings == CASES[0][0] else 2.2)
    assert settings != CASES[0][0] or found["least"] == 9.0
