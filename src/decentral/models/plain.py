"""A torch class of a module of one's own: model=mymodule:MyNet."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.data.description import DataDescription, LabelledData
from decentral.errors import ConfigError
from decentral.models.model import Model
from decentral.registry import blame
from decentral.registry.signature import Plain, component_from, taken

if TYPE_CHECKING:
    from torch import Tensor, nn

GIVEN = ("num_classes", "in_channels", "in_features", "input_shape")
"""Parameters that the data decide: how many classes, the first number of the shape, all of it, the shape."""


class PlainModel(Plain, Model):
    """A class of torch modules, or a function that returns one; its parameters are the settings."""

    takes: ClassVar[type[DataDescription]] = LabelledData

    def build(self, data: LabelledData) -> nn.Module:
        """A copy of what the class makes, tried out on an example of zeros. Raises ConfigError if that fails.

        Its numbers are as exact as they were made. It is in train mode, but for parts of it that were not.
        """
        import torch

        from decentral.gradients.passes.worker_models import copied

        given = (data.num_classes, data.shape[0] if data.shape else 1, prod(data.shape), data.shape)
        known = self.settings()
        with blame.named():
            module = self.target()(**known, **taken(self.target(), dict(zip(GIVEN, given, strict=True))))
        if not isinstance(module, torch.nn.Module):
            raise ConfigError(f"model={self.name} has to be a torch.nn.Module, or return one, not {_type(module)}.")
        if not any(True for _ in module.parameters()):
            raise ConfigError(f"model={self.name} has no parameters to train.")
        if any(parameter._post_accumulate_grad_hooks for parameter in module.parameters()):
            raise ConfigError(
                f"model={self.name} has a hook for gradients that are added up (register_post_accumulate_grad_hook), "
                "but they are not added up here: use register_hook."
            )
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        if frozen:
            raise ConfigError(
                f"model={self.name}: {frozen[0]} has requires_grad=False, but all parameters are trained: make it a "
                "buffer (register_buffer)."
            )
        self._try(copied(module).float().cpu().eval(), data, module)
        found = copied(module).cpu()
        return found if found.training else found.train()

    def _try(self, module: nn.Module, data: LabelledData, original: nn.Module) -> None:
        """With a copy of the module, which is changed."""
        import torch

        shape = " x ".join(map(str, data.shape))
        try:
            with torch.no_grad():
                logits = module(torch.zeros(1, *data.shape))
        except Exception as error:
            where = blame.place(error)
            place = f" ({where})" if where else ""
            raise ConfigError(
                f"model={self.name} cannot take {data.kind} of {shape}{place}: {blame.sentence(error)}."
            ) from error
        found = list(logits.shape) if isinstance(logits, torch.Tensor) else _type(logits)
        if found != [1, data.num_classes]:
            raise ConfigError(
                f"model={self.name} has to give a number for each of the {data.num_classes} classes, "
                f"[1, {data.num_classes}] for one example, but it gives {found}: let it take num_classes as a "
                "parameter, which is then the number of classes of the data."
            )
        with torch.enable_grad():
            leaves = _leaves(module(torch.zeros(1, *data.shape)))
        if leaves & set(original.parameters()):
            raise ConfigError(
                f"model={self.name} computes with parameters of the module that was given, also in a copy of it, but "
                "every worker trains a copy: let hooks and a replaced forward use the module that they are called with."
            )


@cache
def plain(name: str) -> type:
    """The model for `module:Name`. Raises ConfigError if there is no such thing."""
    return component_from("models", name, PlainModel, GIVEN)


def _leaves(output: Tensor) -> set[Tensor]:
    """The tensors that autograd would give a gradient of it."""
    found, seen, waiting = set[Any](), set[Any](), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
            found |= {node.variable} if hasattr(node, "variable") else set()
    return found


def _type(value: Any) -> str:
    return f"a {type(value).__name__}"
