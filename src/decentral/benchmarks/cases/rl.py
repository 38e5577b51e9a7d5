"""What a step of reinforcement learning costs: environments, passes of the policies, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.benchmarks.harness.cpu_steps import Steps
from decentral.jobs.timing.times import in_turn

if TYPE_CHECKING:
    from decentral.tasks.problems.policies import PolicyOptimisation

_COLUMNS = {
    "run": "run",
    "num_workers": "n",
    "frames": "frames of a rollout of all",
    "step_ms": "rollout and its steps (ms CPU)",
    "frames_per_s": "frames per second of CPU",
    "work": "(environments + passes) / steps",
    "own": "steps / gradients",
}


class Case(NamedTuple):
    """A run, and how many frames a second of a core it should have at least."""

    name: str
    settings: tuple[str, ...]
    frames_per_s: float | None = None


_CASES = (
    Case("policy_mlp, gridworld", (), 20_000),
    Case("policy_cnn, gridworld", ("model=policy_cnn",)),
    Case("policy_lstm, gridworld", ("model=policy_lstm",)),
    Case("policy_mlp, CartPole-v1", ("env=CartPole-v1",)),
)


@dataclass
class ReinforcementLearning(Benchmark):
    """D-PSGD on a ring, 16 workers, by PPO; all steps of a rollout together, on one core."""

    name: str = "rl"
    title: ClassVar[str] = "a step of reinforcement learning / environments and passes of policies alone"

    def refusal(self) -> str | None:
        """One of them is gymnasium's."""
        from importlib.util import find_spec

        return None if find_spec("gymnasium") else "gymnasium is not installed: pip install 'decentral[rl]'"

    def measure(self, effort: Effort) -> Findings:
        """Every case; the first only in a quick run."""
        rows = [measured(case, effort) for case in (_CASES[:1] if effort.quick else _CASES)]
        first = rows[0]
        targets = [
            Target(f"{first['run']}: frames per second of a core", first["frames_per_s"], at_least=20_000),
            Target(f"{first['run']}: share of environments and passes in a step", first["work"][0], at_least=0.5),
            Target(f"{first['run']}: a step / its gradients and rollouts", first["own"][0], at_most=1.1),
        ]
        note = (
            "Environments and passes are those of a rollout: what is seen, a forward pass, a step of all environments, "
            "and the forward and backward passes of the gradients. What is between them and gradients is PPO's own: "
            "actions drawn, advantages, batches."
        )
        return Findings([Table("Steps of reinforcement learning", _COLUMNS, rows)], targets, [note])


def measured(case: Case, effort: Effort) -> dict[str, Any]:
    """The steps of a rollout, the gradients in them, and environments and passes alone, in turn."""
    steps = Steps("task=rl", "algo=dpsgd", "topology=ring", *case.settings)
    run = steps.run
    problem: PolicyOptimisation = run.problem  # type: ignore[assignment]
    R, n = problem.R, run.net.n

    def rollout() -> None:
        for _ in range(R):
            steps()

    for _ in range(2):
        rollout()
    works: dict[str, Callable[[], None]] = {
        "steps": rollout,
        "gradients": gradients(steps, problem),
        "work": work(steps, problem),
    }
    times = in_turn(works, effort.rounds, 1 if effort.quick else 4)
    frames = run.config.task.frames * n
    row = {
        "run": case.name,
        "num_workers": n,
        "frames": frames,
        "step_ms": 1e3 * times.median("steps"),
        "frames_per_s": frames / times.median("steps"),
        "work": times.ratio("work", "steps"),
        "own": times.ratio("steps", "gradients"),
    }
    run.close()
    return row


def gradients(steps: Steps, problem: PolicyOptimisation) -> Callable[[], None]:
    """The gradients of a rollout at models that stay, with the rollout itself."""
    import torch

    x, oracle = steps.run.stepper.models.clone(), steps.run.oracle

    def compute() -> None:
        with torch.no_grad():
            for _ in range(problem.R):
                oracle(x)

    return compute


def work(steps: Steps, problem: PolicyOptimisation) -> Callable[[], None]:
    """What is seen, the policies' answers and the environments' steps of a rollout, and the passes of its gradients."""
    import numpy as np
    import torch

    x, rollouts, places = steps.run.stepper.models.clone(), problem.rollouts, range(len(problem.workers))
    s = rollouts.s
    shape = len(places), s.num_envs
    random = np.random.default_rng(0)
    actions = (
        random.standard_normal((*shape, s.num_actions)) if s.continuous else random.integers(s.num_actions, size=shape)
    )
    chances = random.random((*shape, rollouts.running.num_chances))
    inputs, targets = rollouts.batch(places, steps.run.oracle.draws)

    def compute() -> None:
        with torch.no_grad():
            acting = problem._acting(x, places)
            for _ in range(s.num_steps):
                acting(rollouts.observe(places), rollouts.memory, rollouts.begins)
                rollouts.running.step(places, actions, chances)
            for _ in range(problem.R):
                problem.passes(x, inputs, targets, places, lambda j: None)

    return compute
