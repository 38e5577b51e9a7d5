"""Checks of a user's modules: a module that cannot be trained as rows is refused before it is run."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from decentral.data.dataset import PADDING, LabelledTokens, NextTokens, TokenData
from decentral.errors import ConfigError
from decentral.gradients.passes.worker_models import copied
from decentral.gradients.precision import cast
from decentral.models.layers.statistics import evaluating
from decentral.registry import blame
from decentral.store.models import packed

if TYPE_CHECKING:
    from decentral.models.plain import Examples, PlainModel


def tried(model: PlainModel, original: Any, data: Examples) -> nn.Module:
    """Return a copy of the created module, as `PlainModel.build` does, after a trial on two examples of zeros."""
    check(original, model.name)
    module = copied(original).cpu()
    if any(cls.__module__.startswith("transformers.") for cls in type(module).__mro__):
        _take_logits(module, data)
    kept = [part for part in module.modules() if module.training and not part.training]
    module.train()
    for part in kept:
        part.training = False
    names = [name for name, _ in module.named_parameters()]
    trial = copied(module)
    cast(trial, torch.float32)
    _try(model, trial, data, original)
    if names != [name for name, _ in trial.named_parameters()] or _uninitialized(module):
        _try(model, module.float(), data, original)  # a forward pass makes its parameters
    if (name := _uninitialized(module)) is not None:
        raise ConfigError(
            f"model={model.name}: {name} is not initialized by a forward pass: use it in forward, or remove it."
        )
    return module


def _take_logits(module: Any, data: Examples) -> None:
    """Let a model of the library transformers take tokens, and return its logits."""
    if isinstance(data, TokenData):
        masked = isinstance(data, LabelledTokens)  # otherwise padding is behind all that count
        module.config.pad_token_id, module.config.use_cache = PADDING if masked else None, False
        module.register_forward_pre_hook(_masked_inputs if masked else _inputs, with_kwargs=True)
    module.register_forward_hook(_logits)


def _inputs(module: nn.Module, inputs: tuple[Tensor], settings: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
    return (), {**settings, "input_ids": inputs[0]}


def _masked_inputs(
    module: nn.Module, inputs: tuple[Tensor], settings: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    return (), {**settings, "input_ids": inputs[0], "attention_mask": (inputs[0] != PADDING).long()}


def _logits(module: nn.Module, inputs: object, outputs: Any) -> Any:
    return getattr(outputs, "logits", outputs)


def _try(model: PlainModel, module: nn.Module, data: Examples, original: nn.Module) -> None:
    is_text = isinstance(data, TokenData)
    inputs = torch.full(data.batch_shape(2), int(is_text), dtype=torch.int64 if is_text else torch.float32)
    classes = data.vocabulary if isinstance(data, NextTokens) else data.num_classes
    expected = [*(inputs.shape if isinstance(data, NextTokens) else [2]), classes]
    shape = " x ".join(map(str, inputs.shape[1:]))
    with evaluating(module):
        try:
            with torch.no_grad():
                logits = module(inputs.clone())
        except Exception as error:
            where = blame.place(error)
            place = f" ({where})" if where else ""
            hint = "; images need a channel, as in x.unsqueeze(1)" if inputs.dim() == 3 and not is_text else ""
            most = getattr(getattr(module, "config", None), "max_position_embeddings", math.inf)
            hint = f"; use data.longest={most} or less" if is_text and most < inputs.shape[1] else hint
            raise ConfigError(
                f"model={model.name} cannot take {data.kind} of {shape}{place}: {blame.sentence(error)}{hint}."
            ) from error
        found = list(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        if not isinstance(found, list) or found[:-1] != expected[:-1] or found[-1] < classes:
            parameter, what = ("num_classes", "classes") if hasattr(data, "num_classes") else ("vocabulary", "tokens")
            way = (
                f"labels start from 0, but the smallest here is {first}"
                if (first := getattr(data, "first_class", 0))
                else f"let it take a parameter {parameter}, which receives the number of {what} of the data"
            )
            raise ConfigError(
                f"model={model.name} must return {expected} for two examples, one number for each of the {classes} "
                f"{what}, but it returns {found}: {way}."
            )
        if found[-1] > classes and not isinstance(data, NextTokens):
            model.add_note(f"model={model.name} has {found[-1]} outputs, but the labels are 0 to {classes - 1}")
        with torch.enable_grad():
            leaves = _leaves(module(inputs.clone()))
    if leaves & set(original.parameters()):
        raise ConfigError(
            f"model={model.name} uses parameters of the original module even in a copy, but every worker trains a "
            "copy: let hooks and a replaced forward use the module that they are called with."
        )


def check(module: Any, name: str) -> None:
    """Raise a ConfigError if copies of the module, one for each worker, cannot be trained as rows."""
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"model={name} is a {type(module).__name__}: give a torch.nn.Module, or a function that returns one."
        )
    for refused in (_refused_part, _refused_tensor, shared_memory):
        if (reason := refused(module)) is not None:
            raise ConfigError(f"model={name}: {reason}.")
    if any(parameter._post_accumulate_grad_hooks for parameter in module.parameters()):
        raise ConfigError(
            f"model={name} has a hook for accumulated gradients (register_post_accumulate_grad_hook), but gradients "
            "are not accumulated here: use register_hook."
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        frozen = ": all of them have requires_grad=False" if any(True for _ in module.parameters()) else ""
        raise ConfigError(f"model={name} has no parameters to train{frozen}.")
    try:
        copied(module)
    except Exception as error:
        raise ConfigError(f"model={name} cannot be copied, once for each worker: {blame.sentence(error)}.") from error


def _refused_part(module: nn.Module) -> str | None:
    for name, part in module.named_modules():
        where, kind = f"its part {name}" if name else "it", type(part).__name__
        if hasattr(part, "_orig_mod") or isinstance(part, torch.jit.ScriptModule):
            how = "torch.compile" if hasattr(part, "_orig_mod") else "torch.jit"
            return f"{where} is a {kind}, which cannot be copied for each worker: give the module before {how}"
        if isinstance(part, nn.DataParallel | nn.parallel.DistributedDataParallel):
            return f"{where} is a {kind}, which cannot be copied for each worker: give the module inside it (.module)"
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            try:
                packed(part.get_extra_state())
            except TypeError as error:
                return (
                    f"get_extra_state of {kind} cannot be stored ({error}): let it return tensors, "
                    "numbers, strings, and lists, tuples and dicts of these"
                )
    return None


def _refused_tensor(module: nn.Module) -> str | None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            return f"its {name} is on the device meta, without values: create the module on the CPU"
    for name, parameter in module.named_parameters():
        strided = parameter.layout == torch.strided
        if parameter.requires_grad and type(parameter) is not nn.Parameter and not is_lazy(parameter):
            cls = type(parameter).__name__
            return f"its parameter {name} is a {cls}, of which rows keep only the numbers: use nn.Parameter"
        if parameter.requires_grad and not (parameter.is_floating_point() and strided):
            numbers = str(parameter.dtype if strided else parameter.layout).removeprefix("torch.")
            return (
                f"its parameter {name} is {numbers}, but rows hold real numbers: use dense real parameters (of complex "
                "ones torch.view_as_real)"
            )
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and (tensor.layout != torch.strided or tensor.is_quantized):
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            return f"its {name} is {kind}, which models.safetensors cannot store: register it with persistent=False"
    return None


def shared_memory(module: nn.Module) -> str | None:
    """Describe two tensors that share memory, if one is trained: copies would not be tied. Return None if there are
    none."""
    ranges = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if not is_lazy(tensor) and tensor.layout == torch.strided and tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            ranges.append((start, start + (last + 1) * tensor.element_size(), name, tensor.requires_grad))
    ranges.sort(key=lambda each: each[0])
    for (_, end, one, trained), (start, _, other, too) in pairwise(ranges):
        if start < end and (trained or too):
            return (
                f"its {one} and {other} are two tensors in the same memory: share one parameter, as in self.b.weight "
                "= self.a.weight"
            )
    return None


def _uninitialized(module: nn.Module) -> str | None:
    return next((name for name, parameter in module.named_parameters() if is_lazy(parameter)), None)


def _leaves(output: Tensor) -> set[Tensor]:
    """Return the tensors that would receive gradients of the output from autograd."""
    found, seen, waiting = set[Any](), set[Any](), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
            found |= {node.variable} if hasattr(node, "variable") else set()
    return found
