"""Reinforcement learning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.cluster.cluster import VirtualCluster
from decentral.errors import ConfigError
from decentral.settings import setting
from decentral.tasks.task import Problem, Task, TaskConfig

if TYPE_CHECKING:
    import torch

    from decentral.environments.environment import EnvironmentDescription

_MULTIPLICATIONS_PER_S = 2e10
_FRAME_S = 5e-6  # of an environment and what is around it
_START_S = 1.0  # until a process has started and found the others


@dataclass
class RL(Task):
    """Reinforcement learning by PPO: every worker acts in its own scenes with its own model.

    A worker has `num_envs` environments, which continue across rollouts. A rollout is `rollout_steps` steps in each of
    them, num_envs * rollout_steps frames in total. It is used in `passes` passes, each in a new order, in batches of
    `batch_size` frames, for

        R = passes * num_envs * rollout_steps / batch_size    gradients.

    A draw is one such batch. Draw d of a worker is batch d mod R of its rollout floor(d / R). Draws 0, R, 2 R, ...
    first collect that rollout, with the model of the gradient. The others use the same frames at the current model,
    which PPO's ratio corrects for. So each worker collects by its own draw count, with its own model. This holds
    whether workers step together, run asynchronously, or communicate after every gradient. An epoch is R steps: a
    rollout per worker.

    Advantages, loss and initial values are those of CleanRL's PPO: `problems/ppo.py`. As there, a truncated episode
    counts as terminated, and advantages are normalized in each batch. With `model=policy_lstm` a batch has whole pieces
    of episodes: batch_size / rollout_steps environments.

    `partition` assigns scenes to workers, so partition.alpha controls their heterogeneity. Models are tested in unseen
    scenes, with an episode in each; `evaluation.examples` sets their number during the run. Test actions are sampled as
    in training, with common random numbers for all models (or, with `greedy`, are the likeliest).

    num_envs              environments per worker E
    rollout_steps         steps per rollout T
    passes                passes over a rollout
    gamma                 discount factor
    gae_lambda            lambda of generalized advantage estimation
    clip                  clipping range of the ratio, and of the change of the value
    clip_value            whether to clip the change of the value
    value_weight          c_v of the loss
    entropy_weight        c_e of the loss
    greedy                see above
    normalise             divide rewards by each worker's running estimate of the standard deviation of the discounted
                          return, and standardize observations by means and standard deviations of an initial random
                          policy, shared by all workers; both are clipped at 10. null: only for continuous actions
    """

    name: str = "rl"
    num_envs: int = setting(8, at_least=1)
    rollout_steps: int = setting(32, at_least=1)
    passes: int = setting(2, at_least=1)
    gamma: float = setting(0.97, at_least=0, at_most=1)
    gae_lambda: float = setting(0.95, at_least=0, at_most=1)
    clip: float = setting(0.2, above=0, at_most=1)
    clip_value: bool = True
    value_weight: float = setting(0.5, at_least=0)
    entropy_weight: float = setting(0.01, at_least=0)
    greedy: bool = False
    normalise: bool | None = None
    uses: ClassVar[tuple[str, ...]] = ("env", "partition", "model")
    usual: ClassVar[Mapping[str, str]] = {
        "algo": "dpsgd",
        "env": "gridworld",
        "model": "policy_mlp",
        "optim": "adam",
        "optim.clip_norm": "0.5",
        "lr": "0.01",
        "batch_size": "128",
        "epochs": "400",
    }
    eval_every_epochs: ClassVar[float | None] = 50.0
    has_samples: ClassVar[bool] = False

    @property
    def frames(self) -> int:
        """Return the number of frames of a worker's rollout."""
        return self.num_envs * self.rollout_steps

    def draws_per_rollout(self, batch_size: int) -> int:
        """Return R, the gradients of a rollout."""
        return self.passes * self.frames // batch_size

    def describe(self, config: TaskConfig) -> EnvironmentDescription:
        """Return the description of the environment."""
        description: EnvironmentDescription = config.env.inspect()
        return description

    def check(self, config: TaskConfig) -> None:
        """Check that the environment exists, that the model takes its observations, and that rollouts divide into
        batches."""
        info = config.env.inspect()
        config.model.check(info)
        config.partition.check(info.num_train, config.num_workers)
        if self.frames % config.batch_size:
            fitting = [size for size in range(1, self.frames + 1) if self.frames % size == 0]
            near = min(fitting, key=lambda size: abs(size - config.batch_size))
            raise ConfigError(
                f"batch_size={config.batch_size} does not divide the {self.frames} frames of a rollout "
                f"(task.num_envs={self.num_envs} times task.rollout_steps={self.rollout_steps}): use a divisor, such "
                f"as batch_size={near}."
            )
        if getattr(config.model, "remembers", False) and config.batch_size % self.rollout_steps:
            raise ConfigError(
                f"batch_size={config.batch_size} splits episode segments, on which model={config.model.name} learns: "
                f"use a multiple of task.rollout_steps={self.rollout_steps}."
            )
        compute: Any = getattr(config.cluster, "compute", None) if isinstance(config.cluster, VirtualCluster) else None
        every, R = getattr(compute, "rollout_every", None), self.draws_per_rollout(config.batch_size)
        if every is not None and every != R:
            raise ConfigError(
                f"cluster.compute.rollout_every={every} is inconsistent: with task.passes={self.passes} and "
                f"batch_size={config.batch_size} a rollout is collected before every {R}. gradient; use "
                f"cluster.compute.rollout_every={R}."
            )

    def num_examples(self, config: TaskConfig) -> tuple[int, int]:
        """Return the frames of an epoch (of all workers), and the number of test scenes."""
        return self.frames * config.num_workers, config.env.inspect().num_test

    def useful_processes(self, config: TaskConfig) -> float:
        """Return the most processes of which each still saves more time than its start takes; see `task=images`.

        A frame takes an environment's step, a forward pass, and `passes` forward and backward passes.
        """
        info, n = config.env.inspect(), config.num_workers
        R = self.draws_per_rollout(config.batch_size)
        rollouts = (config.steps or config.epochs * R) / R
        frame_s = _FRAME_S + (1 + 3 * self.passes) * config.model.multiplications(info) / _MULTIPLICATIONS_PER_S
        W = rollouts * n * self.frames * frame_s
        return (1 + math.sqrt(1 + 4 * W / _START_S)) // 2 if math.isfinite(W) else math.inf

    def num_parameters(self, config: TaskConfig) -> int:
        """Return the number of parameters of the policy."""
        import torch

        with torch.random.fork_rng(devices=[]):
            return sum(p.numel() for p in config.model.build(config.env.inspect()).parameters())

    def open(self, config: TaskConfig, workers: range, device: torch.device) -> Problem:
        """Open the local workers' policies and environments."""
        from decentral.plugins.rl.policies import PolicyOptimization

        return PolicyOptimization(self, config, workers, device)
