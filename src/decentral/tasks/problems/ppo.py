"""Proximal policy optimization: advantages, the loss, and how actions are drawn.

Schulman et al. 2017 (arXiv:1707.06347), in the details of CleanRL's `ppo.py` and `ppo_continuous_action.py` (Huang et
al., JMLR 23(274), 2022). Shapes: r workers, E environments each, T steps of a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

COLUMNS = 4
"""What a target begins with: advantage, return, value and log-probability as they were; the action follows."""
_LOG_2PI = math.log(2 * math.pi)


class Policy(NamedTuple):
    """What a policy gives for observations [...]."""

    value: Tensor  # [...]
    log_prob: Callable[[Tensor], Tensor]  # actions [..., columns] -> [...]
    entropy: Tensor  # [...]


def read(outputs: Tensor, continuous: bool) -> Policy:
    """What [..., num_outputs] say: see `models.policy.Policy`."""
    value, action = outputs[..., 0], outputs[..., 1:]
    if not continuous:
        log_p = action.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return Policy(value, lambda a: log_p.gather(-1, a.long())[..., 0], entropy)
    mean, log_std = action.chunk(2, dim=-1)

    def log_prob(a: Tensor) -> Tensor:
        return (-((a - mean) / log_std.exp()).square() / 2 - log_std - _LOG_2PI / 2).sum(-1)

    return Policy(value, log_prob, (log_std + (1 + _LOG_2PI) / 2).sum(-1))


def sample(outputs: Tensor, continuous: bool, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions [..., columns] of the policy and the logarithms of their probabilities [...].

    noise   [..., columns]: uniform in [0, 1), or standard normal; an action a of several is the least with
            P(0) + ... + P(a) > noise
    """
    if continuous:
        mean, log_std = outputs[..., 1:].chunk(2, dim=-1)
        return mean + log_std.exp() * noise, -(noise.square() / 2 + log_std + _LOG_2PI / 2).sum(-1)
    log_p = outputs[..., 1:].log_softmax(-1)
    total = log_p.exp().cumsum_(-1)
    action = (total[..., :-1] <= noise).sum(-1, keepdim=True)
    return action.to(outputs.dtype), log_p.gather(-1, action)[..., 0]


def likeliest(outputs: Tensor, continuous: bool) -> Tensor:
    """The likeliest actions [..., columns]."""
    if continuous:
        return outputs[..., 1:].chunk(2, dim=-1)[0]
    return outputs[..., 1:].argmax(-1, keepdim=True).to(outputs.dtype)


def advantages(
    rewards: Tensor, values: Tensor, ended: Tensor, last_value: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalised advantage estimates [..., T, E] (Schulman et al., ICLR 2016), from the last step to the first:

        delta_t = r_t + gamma (1 - d_t) V_{t+1} - V_t;    A_t = delta_t + gamma lambda (1 - d_t) A_{t+1}

    rewards, values and ended (d_t: whether the episode was over after step t) [..., T, E]; last_value V_T [..., E].
    """
    found = torch.empty_like(values)
    following, ahead = torch.zeros_like(last_value), last_value
    for t in reversed(range(values.shape[-2])):
        goes_on = 1 - ended[..., t, :]
        delta = rewards[..., t, :] + gamma * goes_on * ahead - values[..., t, :]
        following = delta + gamma * gae_lambda * goes_on * following
        found[..., t, :] = following
        ahead = values[..., t, :]
    return found


@dataclass(frozen=True)
class PPOLoss:
    """The loss of outputs [..., num_outputs] for targets [..., COLUMNS + action], as `gradients` ask for it:

        max(-A w, -A clip(w, 1 - c, 1 + c)) + c_v / 2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) - c_e H

    w = exp(log pi(a) - log pi_old(a)), H the entropy of pi; without `clips_value` the second term is c_v / 2 (V - R)^2.
    """

    continuous: bool
    clip: float  # c
    value_weight: float  # c_v
    entropy_weight: float  # c_e
    clips_value: bool

    def __call__(self, outputs: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Its mean, its sum, or it for each of [...] with reduction="none"."""
        advantage, wanted, old_value, old_log_prob, *_ = targets.unbind(-1)
        policy, c = read(outputs, self.continuous), self.clip
        ratio = (policy.log_prob(targets[..., COLUMNS:]) - old_log_prob).exp()
        surrogate = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - c, 1 + c))
        missed = (policy.value - wanted).square()
        if self.clips_value:
            moved = (policy.value - old_value).clamp(-c, c)
            missed = torch.maximum(missed, (old_value + moved - wanted).square())
        loss = surrogate + self.value_weight / 2 * missed - self.entropy_weight * policy.entropy
        return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
