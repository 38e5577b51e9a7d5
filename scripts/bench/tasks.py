"""What a step costs where batches are not images: texts, sentences of unequal lengths, rollouts of policies."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from bench.harness import Effort, Findings, Steps, Table, Target, benchmark, passes
from decentral.measurements.timing import Times, in_turn
from decentral.tasks.problems.policies import PolicyOptimisation
from decentral.tasks.problems.translation import Translating
from decentral.training.assemble import Run

_SGD = ("algo=dpsgd", "topology=ring", "optim=sgd", "lr=0.1")
_NOTE = "The passes are those of plain torch modules, one after the other, whose gradients are dropped."


def _columns(workers: int) -> dict[str, str]:
    return {
        "run": f"run, {workers} workers",
        "num_parameters": "P",
        "passes_ms": "passes alone (ms CPU)",
        "step_ms": "step (ms CPU)",
        "ratio": "step / passes",
    }


def _row(name: str, steps: Steps, times: Times) -> dict[str, Any]:
    return {
        "run": name,
        "num_parameters": steps.num_parameters,
        "passes_ms": 1e3 * times.median("passes"),
        "step_ms": 1e3 * times.median("step"),
        "ratio": times.ratio("step", "passes"),
    }


@benchmark("a step of 16 workers on texts / its forward and backward passes alone")
def texts(effort: Effort) -> Findings:
    """D-PSGD on a ring with plain SGD on the bundled texts, and the passes of its first batch, in turn."""
    cases = (("text", "fasttext", 20), ("text", "text_transformer", 2), ("language", "char_transformer", 2))
    rows = []
    for task, model, repeats in effort.of((*cases, ("language", "char_lstm", 1))):
        steps = Steps(*_SGD, "num_workers=16", f"task={task}", f"model={model}")
        times = in_turn({"step": steps, "passes": passes(steps.run)}, effort.rounds, effort.repeats(repeats))
        rows.append(_row(f"{task}, {model}", steps, times))
    targets = [Target(f"{rows[0]['run']}: a step / its passes", rows[0]["step_ms"] / rows[0]["passes_ms"], 1.10)]
    return Findings([Table("Steps on texts, one thread", _columns(16), rows)], targets, [_NOTE])


@benchmark("a step of 8 workers on sentences / its forward and backward passes alone")
def translation(effort: Effort) -> Findings:
    """D-PSGD on a ring with plain SGD on the bundled sentences, and the passes of the same batches, in turn."""
    small = ("data.num_train=500", "model.dim=16", "model.hidden=16", "batch_size=4") if effort.quick else ()
    steps, repeats = Steps(*_SGD, "task=translation", "num_workers=8", *small), effort.repeats(4)
    alone = passes_of_sentences(steps.run, 1 + effort.rounds * repeats)
    times = in_turn({"step": steps, "passes": alone}, effort.rounds, repeats)
    row = _row("reversal, transformer_small", steps, times)
    row["padded"] = steps.run.problem.facts["padded_share_of_tokens"]
    targets = [
        Target("translation: a step / its passes", row["step_ms"] / row["passes_ms"], 1.15),
        Target("translation: share of tokens that fills up batches", row["padded"], 0.15),
    ]
    columns = _columns(8) | {"padded": "share of tokens that fills up"}
    return Findings([Table("Steps on sentences of unequal lengths, one thread", columns, [row])], targets, [_NOTE])


def passes_of_sentences(run: Run, steps: int) -> Callable[[], None]:
    """The forward and backward passes of the run's model on the batches of its first steps, a step at each call."""
    assert isinstance(run.problem, Translating)
    minimised, data, order = run.problem.loss, run.problem.data, run.problem.order
    batches = iter([[data.batch(data.train, numbers) for numbers in order(draw)] for draw in range(steps)])
    template = run.config.model.build(run.config.data.inspect())
    models = [deepcopy(template) for _ in run.problem.workers]

    def compute() -> None:
        with torch.enable_grad():
            for model, (sentences, target) in zip(models, next(batches), strict=True):
                torch.autograd.grad(minimised(model(sentences), target), list(model.parameters()))

    return compute


def _no_gymnasium() -> str:
    return "" if find_spec("gymnasium") else "gymnasium is not installed: pip install 'decentral[rl]'"


@benchmark("a step of reinforcement learning / environments and passes of policies alone", missing=_no_gymnasium)
def rl(effort: Effort) -> Findings:
    """D-PSGD on a ring, 16 workers, by PPO; all steps of a rollout together, on one core."""
    cases = {
        "policy_mlp, gridworld": (),
        "policy_cnn, gridworld": ("model=policy_cnn",),
        "policy_lstm, gridworld": ("model=policy_lstm",),
        "policy_mlp, CartPole-v1": ("env=CartPole-v1",),
    }
    rows = [rl_row(name, cases[name], effort) for name in effort.of([*cases])]
    first = rows[0]
    targets = [
        Target(f"{first['run']}: frames per second of a core", first["frames_per_s"], at_least=20_000),
        Target(f"{first['run']}: share of environments and passes in a step", first["work"].median, at_least=0.5),
        Target(f"{first['run']}: a step / its gradients and rollouts", first["own"].median, at_most=1.1),
    ]
    columns = {
        "run": "run",
        "num_workers": "n",
        "frames": "frames of a rollout of all",
        "step_ms": "rollout and its steps (ms CPU)",
        "frames_per_s": "frames per second of CPU",
        "work": "(environments + passes) / steps",
        "own": "steps / gradients",
    }
    note = (
        "Environments and passes are those of a rollout: what is seen, a forward pass, a step of all environments, "
        "and the forward and backward passes of the gradients. What is between them and gradients is PPO's own: "
        "actions drawn, advantages, batches."
    )
    return Findings([Table("Steps of reinforcement learning", columns, rows)], targets, [note])


def rl_row(name: str, settings: tuple[str, ...], effort: Effort) -> dict[str, Any]:
    """The steps of a rollout, the gradients in them, and environments and passes alone, in turn."""
    steps = Steps("task=rl", "algo=dpsgd", "topology=ring", *settings)
    run, problem = steps.run, steps.run.problem
    assert isinstance(problem, PolicyOptimisation)

    def rollout() -> None:
        for _ in range(problem.R):
            steps()

    for _ in range(2):
        rollout()
    x = run.stepper.models.clone()

    def gradients() -> None:
        with torch.no_grad():
            for _ in range(problem.R):
                run.oracle(x)

    works = {"steps": rollout, "gradients": gradients, "work": rollout_alone(run, problem)}
    times = in_turn(works, effort.rounds, effort.repeats(4))
    frames = run.config.task.frames * run.net.n
    run.close()
    return {
        "run": name,
        "num_workers": run.net.n,
        "frames": frames,
        "step_ms": 1e3 * times.median("steps"),
        "frames_per_s": frames / times.median("steps"),
        "work": times.ratio("work", "steps"),
        "own": times.ratio("steps", "gradients"),
    }


def rollout_alone(run: Run, problem: PolicyOptimisation) -> Callable[[], None]:
    """What is seen, the policies' answers and the environments' steps of a rollout, and the passes of its gradients."""
    x, rollouts, places = run.stepper.models.clone(), problem.rollouts, range(len(problem.workers))
    s = rollouts.s
    shape, random = (len(places), s.num_envs), np.random.default_rng(0)
    actions: np.ndarray = random.integers(s.num_actions, size=shape)
    if s.continuous:
        actions = random.standard_normal((*shape, s.num_actions))
    chances = random.random((*shape, rollouts.running.num_chances))
    inputs, targets = rollouts.batch(places, run.oracle.draws)

    def compute() -> None:
        with torch.no_grad():
            acting = problem._acting(x, places)
            for _ in range(s.num_steps):
                acting(rollouts.observe(places), rollouts.memory, rollouts.begins)
                rollouts.running.step(places, actions, chances)
            for _ in range(problem.R):
                problem.passes(x, inputs, targets, places, lambda j: None)

    return compute
