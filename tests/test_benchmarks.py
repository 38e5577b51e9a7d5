"""Benchmarks: the command, what is stored, the page, and that each finds what it says (times are not looked at)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from decentral.benchmarks import figures
from decentral.benchmarks.cases import simulated, ways
from decentral.benchmarks.cases.scale import OVER_N, OVER_P
from decentral.benchmarks.harness import memory_model
from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps
from decentral.benchmarks.harness.findings_file import Stored, load, load_all, measured, save
from decentral.benchmarks.page import number, write_page
from decentral.cli import bench as command
from decentral.data.description import ImageData
from decentral.jobs.timing.times import in_turn
from decentral.registry import components

QUICK = Effort(rounds=1, quick=True)
BENCH = [sys.executable, "-m", "decentral.cli.bench"]
FACTS = {
    "git_commit": "0123456789abcdef",
    "git_dirty": True,
    "cpu": "a processor",
    "cores": 2,
    "packages": {"torch": "2.11"},
    "started": "2026-01-02T03:04:05+00:00",
    "wall_s": 61.0,
    "rounds": 7,
    "quick": False,
}


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    """(exit status, stdout, stderr)"""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    return ended.value.code, *capsys.readouterr()


def handmade(name: str = "handmade", found: float = 1.25) -> Stored:
    table = Table("Times", {"what": "what", "ratio": "a / b"}, [{"what": "x", "ratio": (1.0, 0.5, 2.0), "hidden": 7}])
    targets = [
        Target("a / b", found, at_most=1.1, floor="the row x shows why"),
        Target("b / a", 0.8, at_least=0.5),
    ]
    return Stored(name, "a divided by b", Findings([table], targets, ["a note"]), FACTS)


class TestCommand:
    def test_names_and_options_are_known_without_torch_or_hydra(self) -> None:
        program = (
            "import sys; from decentral.cli.bench import main\n"
            "try: main([sys.argv[1]])\n"
            "except SystemExit: print(sorted({'torch', 'hydra', 'pandas', 'matplotlib'} & set(sys.modules)))"
        )
        for option in ("--help", "--list"):
            told = subprocess.run([sys.executable, "-c", program, option], capture_output=True, text=True, check=True)
            assert told.stdout.splitlines()[-1] == "[]"

    def test_the_list_has_every_benchmark_with_what_it_measures(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, _ = bench(capsys, "--list")
        assert status == 0
        for name, cls in components("benchmarks.cases").items():
            assert any(line.split()[0] == name and cls().title in line for line in out.splitlines())

    @pytest.mark.parametrize(
        "arguments, sentence",
        [
            (["simulatd"], "there is no benchmark simulatd. Did you mean 'simulated'?"),
            (["--quik"], "--quik is no option. Did you mean '--quick'?"),
            (["--rounds", "0"], "--rounds 0 makes no sense: it has to be at least 1."),
            (["--rounds", "x"], "argument --rounds: invalid int value: 'x': see decentral-bench --help."),
        ],
    )
    def test_what_cannot_be_is_refused_in_one_sentence(
        self, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert bench(capsys, *arguments) == (2, "", f"decentral-bench: {sentence}\n")

    def test_a_benchmark_that_cannot_run_here_is_listed_with_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        quadratics = components("benchmarks.cases")["quadratics"]
        monkeypatch.setattr(quadratics, "refusal", lambda self: "there is no such machine")
        status, out, _ = bench(capsys, "quadratics", "--quick", "--output", str(tmp_path))
        assert status == 0
        assert "not run: there is no such machine" in out
        assert not list(tmp_path.rglob("*.json"))

    def test_a_failed_benchmark_is_told_and_the_others_are_still_measured(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def measure(name: str, effort: Effort, folder: Path) -> str:
            if name == "quadratics":
                return "the disk is full"
            save(handmade(name), folder)
            return ""

        monkeypatch.setattr(command, "in_own_process", measure)
        status, out, _ = bench(capsys, "quadratics", "start", "--output", str(tmp_path))
        assert status == 1
        assert "failed: the disk is full" in out and (tmp_path / "start.json").exists()
        assert "not met" in out and "Results:" in out

    def test_a_quick_run_leaves_the_results_of_a_full_one_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        save(handmade("start"), tmp_path)
        before = (tmp_path / "start.json").read_bytes()
        monkeypatch.setattr(
            command, "in_own_process", lambda name, effort, folder: save(handmade(name, 9.0), folder) and ""
        )
        bench(capsys, "start", "--quick", "--output", str(tmp_path))
        assert (tmp_path / "start.json").read_bytes() == before
        assert (tmp_path / "quick" / "start.json").exists()

    def test_ctrl_c_keeps_what_is_finished_and_ends_the_rest(self, tmp_path: Path) -> None:
        save(handmade("start"), tmp_path / "quick")
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [*BENCH, "quadratics", "--quick", "--output", str(tmp_path)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        while process.stdout.read(1) != "q":
            time.sleep(0.01)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "interrupted" in out
        assert (tmp_path / "quick" / "README.md").exists() and not (tmp_path / "quick" / "quadratics.json").exists()


class TestStored:
    def test_what_is_saved_comes_back(self, tmp_path: Path) -> None:
        path = save(handmade(), tmp_path)
        found = load(path)
        assert found is not None
        assert found.findings.targets == handmade().findings.targets
        assert found.findings.tables[0].rows == [{"what": "x", "ratio": [1.0, 0.5, 2.0], "hidden": 7}]
        assert found.provenance == FACTS

    def test_the_file_says_whether_targets_are_met(self, tmp_path: Path) -> None:
        record = json.loads(save(handmade(), tmp_path).read_text())
        assert [target["met"] for target in record["targets"]] == [False, True]

    def test_other_files_in_the_folder_are_ignored(self, tmp_path: Path) -> None:
        save(handmade(), tmp_path)
        (tmp_path / "half.json").write_text('{"name": ')
        (tmp_path / "other.json").write_text('{"rows": []}')
        assert [one.name for one in load_all(tmp_path)] == ["handmade"]

    def test_provenance_names_code_and_machine_but_no_folder_or_host(self) -> None:
        benchmark = components("benchmarks.cases")["start"]()
        facts = measured(benchmark, QUICK, 1.0, Findings([])).provenance
        assert facts["quick"] is True and facts["rounds"] == 1 and facts["cpu"]
        assert not {"directory", "host", "command_line"} & set(facts)


class TestPage:
    def test_it_has_targets_tables_notes_and_provenance(self, tmp_path: Path) -> None:
        page = write_page([handmade()], tmp_path).read_text()
        assert "| a / b | at most 1.10 | 1.25 | not met (floor) |" in page
        assert "| b / a | at least 0.5 | 0.8 | met |" in page
        assert "- The floor of a / b: the row x shows why" in page
        assert "| x | 1.00 (0.5 to 2.00) |" in page and "hidden" not in page
        assert "- a note" in page
        assert "commit 0123456789ab with changes, 2 cores of a processor, torch 2.11, 2026-01-02, 7 rounds" in page

    def test_without_scale_there_are_no_pictures(self, tmp_path: Path) -> None:
        assert "![" not in write_page([handmade()], tmp_path).read_text()
        assert [path.name for path in tmp_path.iterdir()] == ["README.md"]

    @pytest.mark.parametrize(
        "value, cell",
        [(None, "-"), (True, "yes"), (9750922, "9,750,922"), (0.01234, "0.0123"), (1.456, "1.46"), (1234.5, "1,234")],
    )
    def test_cells_have_three_digits(self, value: object, cell: str) -> None:
        assert number(value) == cell


class TestTimes:
    def test_works_are_called_in_turn_and_once_before(self) -> None:
        calls: list[str] = []
        in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
        assert "".join(calls) == "ab" + "ab" + "ba"

    def test_a_ratio_is_taken_within_each_round(self) -> None:
        clock = iter([0, 2, 2, 3, 10, 14, 20, 28])
        times = in_turn({"a": int, "b": int}, rounds=2, clock=lambda: float(next(clock)))
        assert times.seconds == {"a": [2, 8], "b": [1, 4]}
        assert times.ratio("a", "b") == (2, 2, 2)


class TestWays:
    @pytest.mark.parametrize("settings", [("model=mlp",), ("model=cnn",)])
    def test_the_plain_loop_and_every_way_find_the_same_gradients(self, settings: tuple[str, ...]) -> None:
        steps = Steps("algo=dpsgd", "topology=ring", "num_workers=4", "batch_size=8", *settings)
        works = ways.ways(steps.run, steps.run.stepper.models)
        assert set(works) == {"plain loop", "auto", "loop", "batched"}
        loss, g = works["plain loop"]()
        for work in works.values():
            found_loss, found_g = work()
            assert torch.allclose(found_loss, loss, atol=1e-6) and torch.allclose(found_g, g, atol=1e-6)
        steps.close()

    def test_a_way_that_refuses_the_model_is_left_out(self) -> None:
        settings = (*simulated.VGG11[:-1], "num_workers=2", "batch_size=2")
        row = ways.compared(ways.Case("vgg11 with dropout", settings, 1), QUICK)
        assert (row["batched_ms"], row["choice"]) == (None, "loop")


class TestSimulated:
    def test_the_table_says_what_auto_chooses(self) -> None:
        model = simulated.Model("a small mlp", ("model=mlp", "num_workers=4"), 1)
        rows = simulated.overhead(model, [("dpsgd", "ring")], QUICK)
        assert simulated.chosen(rows) == "execution=auto: a small mlp: batched"


class TestMemoryModel:
    def test_rows_are_counted_in_the_real_states(self) -> None:
        rows = {one.algorithm: one.rows for one in memory_model.rows_per_worker(16)}
        assert rows["dpsgd"] == 2  # x, g
        assert rows["gradient_tracking"] == 3  # x, c, g
        assert rows["relaysgd"] == pytest.approx(2 + 1 / 16 + 2 * 15 / 16)  # x, g, x0, messages
        assert "relay_mean" not in rows

    def test_momentum_adds_a_row(self) -> None:
        plain, more = memory_model.rows_per_worker(8), memory_model.rows_per_worker(8, momentum=0.9)
        assert all(b.rows == a.rows + 1 for a, b in zip(plain, more, strict=True))

    def test_a_model_needs_its_parameters_and_what_autograd_keeps(self) -> None:
        tiny = memory_model.Architecture("mlp", "mlp", ImageData(shape=(1, 8, 8), num_classes=10))
        found = memory_model.memory_of_model(tiny)
        assert found.parameters == 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10
        assert found.activations == 4 * memory_model.BATCH_SIZE * (64 + 64 + 64)  # the input and two outputs of ReLU

    def test_twice_the_memory_holds_twice_the_workers(self) -> None:
        model = memory_model.ModelMemory(parameters=1000, activations=0)
        assert memory_model.largest_num_workers(2, model, 80_000, 1) == 10
        assert memory_model.largest_num_workers(2, model, 80_000, 8) == 80
        assert memory_model.total_bytes(2, model, 10) == 80_000


class TestCostFigure:
    """cost.png: steps, and a dotted line of the gradients alone."""

    @staticmethod
    def rows(execution: str) -> list[dict[str, Any]]:
        facts = {"algorithm": "dpsgd, ring", "per_worker_ms": 0.8, "passes_ms": 4.0, "parameters": 1482}
        return [{**facts, "num_workers": n, "execution": execution} for n in (4, 16)]

    def drawn(
        self, tables: list[Table], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> tuple[str, list[list[str]]]:
        """The caption, and what the legend of each panel says."""
        found: list[Any] = []
        monkeypatch.setattr(figures, "_save", lambda path, make: found.append(make()))
        (one,) = figures.draw([Stored("scale", "", Findings(tables), {})], tmp_path)
        legends = [axis.get_legend() for axis in found[0].axes if axis.get_visible()]
        return one.caption, [[text.get_text() for text in legend.get_texts()] for legend in legends]

    def test_it_says_that_the_dotted_line_is_another_way_of_execution_and_which(self, monkeypatch, tmp_path) -> None:
        tables = [Table(OVER_N, {}, self.rows("batched"))]
        caption, ((_, dotted),) = self.drawn(tables, monkeypatch, tmp_path)
        assert dotted == "passes alone, one worker after the other"
        assert "another way of execution: a plain module for each worker, one worker after the other" in caption
        assert "`execution=auto`, computes the workers side by side (`batched`). That is why" in caption

    def test_steps_that_are_one_after_the_other_themselves_have_hollow_markers(self, monkeypatch, tmp_path) -> None:
        tables = [Table(OVER_N, {}, self.rows("batched")), Table(OVER_P, {}, self.rows("loop"))]
        caption, (over_n, over_p) = self.drawn(tables, monkeypatch, tmp_path)
        assert "hollow: execution=loop" in over_p and "hollow: execution=loop" not in over_n
        assert (
            "(`batched`), where its marker is filled, and one after the other as well (`loop`) where it is" in caption
        )

    def test_where_all_is_one_after_the_other_there_is_nothing_to_say(self, monkeypatch, tmp_path) -> None:
        caption, _ = self.drawn([Table(OVER_N, {}, self.rows("loop"))], monkeypatch, tmp_path)
        assert "another way" not in caption


@pytest.mark.parametrize(
    "name, tables, targets",
    [
        ("simulated", 2, 3),
        ("ways", 1, 2),
        ("start", 1, 1),
        ("scale", 5, 0),
        ("whole_run", 1, 4),
        ("laptop", 1, 3),
        ("timeline", 1, 1),
        ("compression", 2, 5),
        ("virtual", 1, 3),
        ("translation", 1, 2),
        ("outer", 1, 1),
        ("collectives", 1, 2),
    ],
)
@pytest.mark.slow
def test_a_benchmark_finds_tables_and_targets(name: str, tables: int, targets: int, tmp_path: Path) -> None:
    benchmark: Benchmark = components("benchmarks.cases")[name]()
    assert benchmark.refusal() is None
    found = benchmark.measure(QUICK)
    assert (len(found.tables), len(found.targets)) == (tables, targets)
    for table in found.tables:
        assert table.rows and all(set(table.columns) <= set(row) for row in table.rows)
    one = load(save(measured(benchmark, QUICK, 1.0, found), tmp_path))
    assert one is not None
    page = write_page([one], tmp_path).read_text()
    assert all(table.title in page for table in found.tables)
    assert (tmp_path / "cost.png").exists() == (name in ("simulated", "scale"))
    assert (tmp_path / "memory.png").exists() == (name == "scale")


@pytest.mark.slow
def test_the_command_measures_stores_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = bench(capsys, "quadratics", "--quick", "--output", str(tmp_path))
    assert (status, err) == (0, "")
    assert "RelaySum's Figure 2, smoke scale, from nothing (s wall)" in out and "Results:" in out
    found = load(tmp_path / "quick" / "quadratics.json")
    assert found is not None and found.provenance["quick"] is True
    assert [row["algorithm"] for row in found.findings.tables[0].rows] == [
        "dpsgd, ring",
        "relaysgd, bt",
        "relaysgd, chain",
    ]
