"""`decentral-bench`: the time of a step against the time of the n forward/backward passes in it.

Both are measured in turn within one process, round after round, so that a slow machine is slow for both; what is
reported is their ratio. Written to results/bench/ with provenance.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES = (
    ("algo=dpsgd", "topology=ring"),
    ("algo=relaysgd", "topology=dbt"),
    ("algo=gradient_tracking", "topology=ring"),
    ("algo=sgp", "topology=one_peer_exponential"),
)


def main() -> None:
    """Entry point of `decentral-bench`."""
    parser = argparse.ArgumentParser(prog="decentral-bench", description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help="key=value for every case, for example model=mlp num_workers=64")
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    parser.add_argument("--steps", type=int, default=10, help="steps per round (default 10)")
    parser.add_argument("--output", type=Path, default=Path("results/bench"), help="folder (default results/bench)")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    found = [measure([*case, *options.settings], options.rounds, options.steps) for case in CASES]
    options.output.mkdir(parents=True, exist_ok=True)
    table = markdown(found)
    (options.output / "step_overhead.md").write_text(table)
    record = {"rows": found, "provenance": provenance()}
    (options.output / "step_overhead.json").write_text(json.dumps(record, indent=1) + "\n")
    print(table)
    print(f"Results: {options.output}/step_overhead.md and .json")


def measure(settings: list[str], rounds: int, steps: int) -> dict[str, Any]:
    """Seconds of CPU per step and per n passes, in turn; medians and the spread of the ratio."""
    from decentral.composition import compose

    config = compose([*settings, "processes=1", "device=cpu"])
    config.task.prepare(config)
    import torch

    from decentral.run import assemble
    from decentral.world import World

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with torch.no_grad():
        r = assemble(config, World(0, 1, torch.device("cpu")))
        state, t = r.state, 0

        def step() -> None:
            nonlocal state, t
            state = r.algorithm.step(state, r.oracle.at(t), r.net, t)
            t += 1

        passes = bare_passes(r.problem, r.algorithm.models(state))
        for warm_up in (step, passes) * 3:
            warm_up()
        times = [(clock(step, steps), clock(passes, steps)) for _ in range(rounds)]
    ratios = [full / bare for full, bare in times]
    return {
        "settings": settings,
        "num_workers": r.net.n,
        "parameters": r.algorithm.models(state).shape[1],
        "step_cpu_s": statistics.median(full for full, _ in times),
        "passes_cpu_s": statistics.median(bare for _, bare in times),
        "ratio_median": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def bare_passes(problem: Any, x: Any) -> Callable[[], None]:
    """n forward and backward passes on one batch that is there already, gradients accumulating where they are: nothing
    else."""
    import torch
    import torch.nn.functional as F

    images, labels = problem.next_batch(0)
    problem.models.bind(x)

    def passes() -> None:
        with torch.enable_grad():
            for i, module in enumerate(problem.models.modules):
                F.cross_entropy(module(images[i]), labels[i]).backward()

    return passes


def clock(work: Callable[[], None], repeats: int) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - began) / repeats


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of results."""
    lines = [
        "| settings | workers | parameters | n passes (ms CPU) | step (ms CPU) | step / passes | spread |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {' '.join(row['settings'])} | {row['num_workers']} | {row['parameters']:,} | "
            f"{1e3 * row['passes_cpu_s']:.1f} "
            f"| {1e3 * row['step_cpu_s']:.1f} | {row['ratio_median']:.2f} | {row['ratio_min']:.2f} to "
            f"{row['ratio_max']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def provenance() -> dict[str, Any]:
    """What was measured on what."""
    from decentral.provenance import collect

    return {
        key: value for key, value in collect(["cpu"], 1).items() if key not in ("directory", "host", "command_line")
    }


if __name__ == "__main__":
    main()
