"""What it takes until something happens: start a command, refuse, bring processes up, see that all is done."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.jobs.timing.times import in_turn

_MOST_ROUNDS = 5  # some of the commands take seconds
_RUN = ("-m", "decentral")
_COLUMNS = {
    "command": "command",
    "wall_s": "wall (s, least)",
    "to_python": "/ python -c pass",
    "to_torch": "/ python -c 'import torch'",
}
_REFUSED = "a refused configuration"


@dataclass
class Start(Benchmark):
    """Each command is started anew in every round; wall time."""

    name: str = "start"
    title: ClassVar[str] = "the wall time of commands that do little / of Python, and of importing torch"

    def measure(self, effort: Effort) -> Findings:
        """All commands take turns with the two baselines."""
        workers = 2 if effort.quick else 16
        with tempfile.TemporaryDirectory() as folder:
            study = ("-m", "decentral.cli.study", "relaysum_fig2", "scale=smoke", f"results_dir={folder}/study")
            up = (*_RUN, "task=quadratics", "steps=1", f"num_workers={workers}", f"processes={workers}")
            commands = {
                "python": Command(("-c", "pass")),
                "torch": Command(("-c", "import torch")),
                "decentral-run --help": Command((*_RUN, "--help")),
                _REFUSED: Command((*_RUN, "topology=rnig"), status=2),
                "the second run of a finished study (smoke)": Command(study),
                f"{workers} workers in {workers} processes: up, one step, down": Command(up, fresh=Path(folder)),
            }
            times = in_turn(commands, min(effort.rounds, _MOST_ROUNDS), clock=time.perf_counter)
        rows = [
            {
                "command": label,
                "wall_s": times.least(label),
                "to_python": times.ratio(label, "python"),
                "to_torch": times.ratio(label, "torch"),
            }
            for label in list(commands)[2:]
        ]
        target = Target(f"{_REFUSED} / import torch (wall)", times.ratio(_REFUSED, "torch").median, at_most=0.5)
        note = f"python -c pass: {times.least('python'):.3f} s, import torch: {times.least('torch'):.2f} s (least)."
        return Findings([Table("Starting", _COLUMNS, rows)], [target], [note])


@dataclass(frozen=True)
class Command:
    """A Python command; calling it runs it. `fresh` is where it gets a new results_dir each time."""

    arguments: Sequence[str]
    status: int = 0
    fresh: Path | None = None

    def __call__(self) -> None:
        """Run it. Raises RuntimeError if its exit status is another one than `status`."""
        command = [sys.executable, *self.arguments]
        if self.fresh is not None:
            command.append(f"results_dir={tempfile.mkdtemp(dir=self.fresh)}")
        ended = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True)
        if ended.returncode != self.status:
            told = " ".join(ended.stderr.split())[-300:]
            raise RuntimeError(f"{' '.join(command[1:])} ended with status {ended.returncode}: {told}")
