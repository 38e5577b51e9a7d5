"""Modules and data sets as users have them, a line each: what `tests/test_user_code.py` tries in every way.

A module is a function without arguments, in `MODULES` under its name, with what it is fed (a key of `INPUTS`) and, where
plain PyTorch is no reference, why. A data set is a function that returns a training and a test set, in `DATA`.
"""

from __future__ import annotations

import copy
import random
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

CLASSES = 3
INPUTS: dict[str, Callable[[torch.Generator, int], Tensor]] = {
    "vectors": lambda g, n: torch.randn(n, 6, generator=g),
    "images": lambda g, n: torch.randn(n, 3, 8, 8, generator=g),
    "gray": lambda g, n: torch.randn(n, 8, 8, generator=g),
    "sequences": lambda g, n: torch.randn(n, 5, 4, generator=g),
    "signals": lambda g, n: torch.randn(n, 2, 12, generator=g),
    "volumes": lambda g, n: torch.randn(n, 1, 4, 4, 4, generator=g),
    "scalars": lambda g, n: torch.randn(n, generator=g),
    "unit": lambda g, n: torch.rand(n, 6, generator=g),
}
"""Inputs [n, ...] of each kind."""


def toy(kind: str = "vectors", num_train: int = 48, num_test: int = 20) -> tuple[TensorDataset, TensorDataset]:
    """A training and a test set of three classes."""
    g = torch.Generator().manual_seed(0)
    sets = [(INPUTS[kind](g, n), torch.arange(n) % CLASSES) for n in (num_train, num_test)]
    return TensorDataset(*sets[0]), TensorDataset(*sets[1])


class Entry(NamedTuple):
    """A module of the table."""

    make: Callable[[], nn.Module]
    inputs: str = "vectors"
    joint: bool = True
    """Whether n workers on the complete graph are plain PyTorch on the joint batch: no statistics of a batch, no draws."""
    stored: bool = True
    """Whether all of its state is in its `state_dict` (and not in a list, say)."""
    refused: str = ""
    """What is said before training, where it cannot be trained."""


class Net(nn.Module):
    """Layers by name, and a forward of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.own_forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.own_forward(self, x)


def seq(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


def mlp(*between: nn.Module, width: int = 8) -> nn.Sequential:
    """Two linear layers with these in between."""
    return seq(nn.Linear(6, width), *between, nn.Linear(width, CLASSES))


def conv(*after: nn.Module, **settings: Any) -> nn.Sequential:
    """A convolution, these, and a linear layer of whatever comes."""
    features = seq(nn.Conv2d(3, 4, 3, **settings), *after, nn.Flatten())
    with torch.no_grad():
        width = copy.deepcopy(features).eval()(torch.zeros(2, 3, 8, 8)).shape[1]
    return seq(*features, nn.Linear(width, CLASSES))


def flat(*layers: nn.Module, width: int) -> nn.Sequential:
    return seq(*layers, nn.Flatten(), nn.Linear(width, CLASSES))


def with_buffers(forward: Callable[[Any, Tensor], Tensor], **buffers: Any) -> Net:
    net = Net(forward, l=nn.Linear(6, CLASSES))
    for name, buffer in buffers.items():
        net.register_buffer(name, buffer)
    return net


def ema(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.mu.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
    return self.l(x - self.mu)


def ema_anew(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.mu = self.mu * 0.5 + x.detach().mean(0) * 0.5
    return self.l(x - self.mu)


def counting(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.count += 1
    return self.l(x) / (1 + self.count)


def not_persistent() -> Net:
    net = Net(lambda m, x: m.l(x + m.position), l=nn.Linear(6, CLASSES))
    net.register_buffer("position", torch.linspace(0, 1, 6), persistent=False)
    return net


class FrozenNorm(nn.Module):
    """A batch norm that keeps the statistics of a pretrained model."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.l = nn.BatchNorm1d(6), nn.Linear(6, CLASSES)
        self.bn.running_mean.fill_(0.3)
        self.bn.running_var.fill_(4.0)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.bn.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.l(self.bn(x))


class ExtraState(nn.Linear):
    """A layer whose state_dict has more than tensors, which changes in training."""

    def __init__(self) -> None:
        super().__init__(6, CLASSES)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= 0.9 if self.training else 1
        return super().forward(x) * self.scale

    def get_extra_state(self) -> dict[str, float]:
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.scale = state["scale"]


class Backwards(nn.Sequential):
    """A sequence with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(-x)


class TwiceLinear(nn.Linear):
    """A layer of the user's that inherits a known one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


class Cube(torch.autograd.Function):
    """x^3 with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def hooked(register: Callable[[nn.Sequential], object]) -> nn.Sequential:
    net = mlp(nn.ReLU())
    register(net)
    return net


def tied() -> Net:
    net = Net(lambda m, x: m.o(m.b(torch.tanh(m.a(x)))), a=nn.Linear(6, 6), b=nn.Linear(6, 6), o=nn.Linear(6, CLASSES))
    net.b.weight = net.a.weight
    return net


def twice() -> nn.Sequential:
    layer = nn.Linear(6, 6)
    return seq(layer, nn.Tanh(), layer, nn.Linear(6, CLASSES))


def pruned() -> nn.Sequential:
    net = mlp(nn.ReLU())
    prune.l1_unstructured(net[0], "weight", 0.5)
    return net


def weight_norm_old() -> nn.Sequential:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and in use
        return seq(nn.utils.weight_norm(nn.Linear(6, 6)), nn.Linear(6, CLASSES))


def partly_frozen() -> nn.Sequential:
    net = mlp(nn.ReLU())
    net[0].weight.requires_grad_(False)
    return net


def writes(self: Any, x: Tensor) -> Tensor:
    x -= 0.3
    x /= 0.25
    return self.l(x)


def depth(draw: Callable[[], float]) -> Net:
    """A residual block that is left out at random in training."""
    block = nn.Linear(6, 6)
    return Net(lambda m, x: m.l(x if m.training and draw() < 0.5 else x + m.b(x)), l=nn.Linear(6, CLASSES), b=block)


def dropout_later(self: Any, x: Tensor) -> Tensor:
    self.n += self.training
    return F.dropout(self.l(x), 0.5, self.training and bool(self.n > 3))


def anneals(self: Any, x: Tensor) -> Tensor:
    self.config.scale *= 1.1 if self.training else 1
    return self.l(x) * self.config.scale


def recurrent(layer: nn.Module) -> Net:
    return Net(lambda m, x: m.o(m.r(x)[0][:, -1]), r=layer, o=nn.Linear(5, CLASSES))


def attention(self: Any, x: Tensor) -> Tensor:
    return self.o(self.a(x, x, x, need_weights=False)[0].mean(1))


def double_gradient(self: Any, x: Tensor) -> Tensor:
    """A model of energies: its output is a gradient."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(torch.tanh(self.l(x)).sum(), x, create_graph=True)
    return self.o(g)


def follows(self: Any, x: Tensor) -> Tensor:
    """A moving average of parameters, in parameters."""
    if self.training:
        for mean, own in zip(self.teacher.parameters(), self.a.parameters(), strict=True):
            mean.data.mul_(0.9).add_(own.data, alpha=0.1)
    return self.l(self.a(x) + self.teacher(x))


def with_teacher() -> Net:
    layer = nn.Linear(6, 6)
    return Net(follows, a=layer, teacher=copy.deepcopy(layer).requires_grad_(False), l=nn.Linear(6, CLASSES))


def in_one_memory() -> Net:
    net = Net(lambda m, x: m.o(m.l(x)), l=nn.Linear(6, 6), o=nn.Linear(6, CLASSES))
    net.l.weight.data[:3] = 0
    net.o.weight.data = net.l.weight.data[:3]
    return net


class Square(nn.Parameter):
    """A parameter of a class of its own."""


def sets_its_weights(self: Any, x: Tensor) -> Tensor:
    if self.training:
        with torch.no_grad():
            self.l.weight.fill_(7.0)
    return self.l(x)


def with_defaults() -> Net:
    net = Net(lambda m, x: m.l(m.centered(x)), l=nn.Linear(6, CLASSES), bn=nn.BatchNorm1d(6))
    net.centered = lambda x, bn=net.bn: bn(x) - bn.running_mean
    return net


def freezes_later(self: Any, x: Tensor) -> Tensor:
    self.n += self.training
    self.l.requires_grad_(self.n < 3)
    return self.o(self.l(x))


class Unstorable(nn.Linear):
    """What it says of its state cannot be stored."""

    def get_extra_state(self) -> Any:
        return {"rule": nn.Identity()}

    def set_extra_state(self, state: Any) -> None: ...


def late_layer(self: Any, x: Tensor) -> Tensor:
    if self.training and not hasattr(self, "late"):
        self.late = nn.Linear(6, 6)
    return self.l(self.late(x) if hasattr(self, "late") else x)


def late_buffer(self: Any, x: Tensor) -> Tensor:
    if self.training and not hasattr(self, "mu"):
        self.register_buffer("mu", x.mean(0))
    return self.l(x)


def keeps_a_graph(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.mu = 0.9 * self.mu + 0.1 * self.l(x).mean(0)
    return self.l(x) - self.mu


# fmt: off
MODULES: dict[str, Entry] = {
    # norms
    "batch_norm": Entry(lambda: mlp(nn.BatchNorm1d(8)), joint=False),
    "batch_norm_2d": Entry(lambda: conv(nn.BatchNorm2d(4), nn.ReLU()), "images", joint=False),
    "batch_norm_3d": Entry(lambda: flat(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), width=54), "volumes", joint=False),
    "batch_norm_plain": Entry(lambda: mlp(nn.BatchNorm1d(8, affine=False)), joint=False),
    "batch_norm_cumulative": Entry(lambda: mlp(nn.BatchNorm1d(8, momentum=None)), joint=False),
    "batch_norm_no_statistics": Entry(lambda: mlp(nn.BatchNorm1d(8, track_running_stats=False)), joint=False),
    "batch_norm_frozen": Entry(FrozenNorm),
    "instance_norm": Entry(lambda: conv(nn.InstanceNorm2d(4)), "images"),
    "instance_norm_tracked": Entry(lambda: conv(nn.InstanceNorm2d(4, track_running_stats=True)), "images", joint=False),
    "layer_norm": Entry(lambda: mlp(nn.LayerNorm(8), nn.GELU())),
    "group_norm": Entry(lambda: conv(nn.GroupNorm(2, 4), nn.SiLU()), "images"),
    "rms_norm": Entry(lambda: mlp(nn.RMSNorm(8))),
    "local_response_norm": Entry(lambda: conv(nn.LocalResponseNorm(2)), "images"),
    "spectral_norm": Entry(lambda: seq(parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, CLASSES)), joint=False),
    "spectral_norm_old": Entry(lambda: seq(nn.utils.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, CLASSES)), joint=False),
    "weight_norm": Entry(lambda: seq(parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, CLASSES))),
    "orthogonal": Entry(lambda: seq(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Linear(6, CLASSES))),
    # recurrent layers, attention
    "lstm": Entry(lambda: recurrent(nn.LSTM(4, 5, batch_first=True)), "sequences"),
    "gru": Entry(lambda: recurrent(nn.GRU(4, 5, batch_first=True)), "sequences"),
    "rnn_of_two_layers": Entry(lambda: recurrent(nn.RNN(4, 5, 2, batch_first=True)), "sequences"),
    "lstm_with_dropout": Entry(lambda: recurrent(nn.LSTM(4, 5, 2, batch_first=True, dropout=0.5)), "sequences", joint=False),
    "attention": Entry(lambda: Net(attention, a=nn.MultiheadAttention(4, 2, batch_first=True), o=nn.Linear(4, CLASSES)), "sequences"),
    "transformer": Entry(lambda: Net(lambda m, x: m.o(m.t(x).mean(1)), t=nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True),
                                     o=nn.Linear(4, CLASSES)), "sequences", joint=False),
    # parameters that are shared, pruned, frozen, empty, ...
    "tied": Entry(tied),
    "pruned": Entry(pruned),
    "weight_norm_old": Entry(weight_norm_old),
    "partly_frozen": Entry(partly_frozen),
    "sparse_embedding": Entry(lambda: Net(lambda m, x: m.o(m.e((x.abs() * 3).long().clamp(max=9)).mean(1)), e=nn.Embedding(10, 5, sparse=True), o=nn.Linear(5, CLASSES))),
    "complex_parameter": Entry(lambda: Net(lambda m, x: (x.to(m.w.dtype) @ m.w).real, w=nn.Parameter(torch.ones(6, CLASSES, dtype=torch.complex64))), refused="complex"),
    "extra_state": Entry(ExtraState),
    "tied_inside": Entry(lambda: Net(lambda m, x: m.o(m.b(m.a(x))), a=(a := nn.Linear(6, 6)), b=seq(a, nn.Tanh()), o=nn.Linear(6, CLASSES))),
    "called_twice": Entry(twice),
    "called_twice_by_forward": Entry(lambda: Net(lambda m, x: m.o(m.a(torch.tanh(m.a(x)))), a=nn.Linear(6, 6), o=nn.Linear(6, CLASSES))),
    "parameter_list": Entry(lambda: Net(lambda m, x: x @ m.p[0] + m.p[1], p=nn.ParameterList([torch.ones(6, CLASSES), torch.zeros(CLASSES)]))),
    "parameter_dict": Entry(lambda: Net(lambda m, x: x @ m.p["w"], p=nn.ParameterDict({"w": torch.ones(6, CLASSES)}))),
    "scalar_parameter": Entry(lambda: Net(lambda m, x: m.l(x) * m.s, l=nn.Linear(6, CLASSES), s=nn.Parameter(torch.tensor(2.0)))),
    "empty_parameter": Entry(lambda: Net(lambda m, x: m.l(x), l=nn.Linear(6, CLASSES), none=nn.Parameter(torch.zeros(0, 3)))),
    "unused_parameter": Entry(lambda: Net(lambda m, x: m.l(x), l=nn.Linear(6, CLASSES), unused=nn.Linear(3, 3))),
    # hooks and replaced forwards
    "forward_hook": Entry(lambda: hooked(lambda m: m.register_forward_hook(lambda mod, i, o: o * 3))),
    "forward_hook_inside": Entry(lambda: hooked(lambda m: m[1].register_forward_hook(lambda mod, i, o: o + 1))),
    "forward_pre_hook": Entry(lambda: hooked(lambda m: m[0].register_forward_pre_hook(lambda mod, i: (i[0] * 0.5,)))),
    "backward_hook": Entry(lambda: hooked(lambda m: m[2].register_full_backward_hook(lambda mod, i, o: None))),
    "backward_hook_that_scales": Entry(lambda: hooked(lambda m: m[2].register_full_backward_hook(lambda mod, i, o: (i[0] * 2,)))),
    "backward_pre_hook": Entry(lambda: hooked(lambda m: m[2].register_full_backward_pre_hook(lambda mod, o: (o[0] * 2,)))),
    "own_sequence": Entry(lambda: Backwards(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))),
    "own_linear": Entry(lambda: seq(TwiceLinear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))),
    # what writes into its input, its output, itself
    "writes_input": Entry(lambda: Net(writes, l=nn.Linear(6, CLASSES)), "unit"),
    "relu_in_place": Entry(lambda: seq(nn.ReLU(inplace=True), nn.Linear(6, CLASSES))),
    "anneals": Entry(lambda: Net(anneals, l=nn.Linear(6, CLASSES), config=types.SimpleNamespace(scale=1.0)), stored=False),
    # buffers
    "ema": Entry(lambda: with_buffers(ema, mu=torch.zeros(6)), joint=False),
    "ema_assigned_anew": Entry(lambda: with_buffers(ema_anew, mu=torch.zeros(6)), joint=False),
    "counter": Entry(lambda: with_buffers(counting, count=torch.tensor(0)), joint=False),
    "mask": Entry(lambda: with_buffers(lambda m, x: m.l(x * m.mask), mask=torch.tensor([True, False] * 3))),
    "not_persistent": Entry(not_persistent),
    "no_buffer": Entry(lambda: with_buffers(lambda m, x: m.l(x), missing=None)),
    "complex_buffer": Entry(lambda: with_buffers(lambda m, x: m.l((x * m.phase).real), phase=torch.tensor(0.5 + 0.5j))),
    "teacher": Entry(with_teacher, joint=False),
    # what cannot be trained
    "compiled": Entry(lambda: torch.compile(mlp()), refused=r"it is a OptimizedModule.* give the module before torch\.compile"),
    "scripted": Entry(lambda: torch.jit.script(mlp()), refused=r"it is a RecursiveScriptModule, .* before torch\.jit"),
    "parallel": Entry(lambda: nn.DataParallel(mlp()), refused=r"it is a DataParallel, .*\(\.module\)"),
    "in_one_memory": Entry(in_one_memory, refused="l.weight and o.weight are two tensors in the same memory: share one"),
    "own_parameter": Entry(lambda: Net(lambda m, x: m.l(x * m.w), l=nn.Linear(6, CLASSES), w=Square(torch.ones(6))), refused="its parameter w is a Square, .* use nn.Parameter"),
    "sets_its_weights": Entry(lambda: Net(sets_its_weights, l=nn.Linear(6, CLASSES))),
    "default_argument": Entry(with_defaults, refused="uses parameters of the original module even in a copy"),
    "freezes_later": Entry(lambda: Net(freezes_later, l=nn.Linear(6, 6), o=nn.Linear(6, CLASSES), n=0), refused="changes l.bias"),
    "all_frozen": Entry(lambda: mlp().requires_grad_(False), refused="no parameters to train: all of them have requires_grad=False"),
    "unstorable": Entry(lambda: Unstorable(6, CLASSES), refused="get_extra_state of Unstorable cannot be stored .*: let it return tensors"),
    "uncopied": Entry(lambda: Net(lambda m, x: m.l(x), l=nn.Linear(6, CLASSES), g=(i for i in range(3))), refused="cannot be copied, once for each worker: TypeError"),
    "sparse_buffer": Entry(lambda: with_buffers(lambda m, x: m.l(x), adjacency=torch.eye(6).to_sparse()), refused="its adjacency is sparse_coo, which .* register it with persistent=False"),
    "late_layer": Entry(lambda: Net(late_layer, l=nn.Linear(6, CLASSES)), refused=r"The model changes late\.bias while it is trained: make parameters .* __init__"),
    "late_buffer": Entry(lambda: Net(late_buffer, l=nn.Linear(6, CLASSES)), refused="The model changes mu while it is trained: make .* in __init__ .None will do for a buffer"),
    "keeps_a_graph": Entry(lambda: with_buffers(keeps_a_graph, mu=torch.zeros(CLASSES)), refused="second time.*: keep no graph of an earlier step in a buffer or an attribute"),
    "no_graph": Entry(lambda: Net(lambda m, x: m.l(x).detach(), l=nn.Linear(6, CLASSES)), refused="RuntimeError: element 0 of tensors does not require grad"),
    "never_initialized": Entry(lambda: Net(lambda m, x: m.l(x), l=nn.Linear(6, CLASSES), never=nn.LazyLinear(3)), refused="never.weight is not initialized by a forward pass: use it in forward, or remove it"),
    # random layers
    "dropout": Entry(lambda: mlp(nn.Dropout(0.5)), joint=False),
    "dropout_of_nothing": Entry(lambda: mlp(nn.Dropout(0.0))),
    "dropout_2d": Entry(lambda: conv(nn.Dropout2d(0.5)), "images", joint=False),
    "alpha_dropout": Entry(lambda: mlp(nn.SELU(), nn.AlphaDropout(0.2)), joint=False),
    "rrelu": Entry(lambda: mlp(nn.RReLU()), joint=False),
    "noise": Entry(lambda: Net(lambda m, x: m.l(x + torch.randn_like(x) if m.training else x), l=nn.Linear(6, CLASSES)), joint=False),
    "dropout_always": Entry(lambda: Net(lambda m, x: m.l(F.dropout(x, 0.5)), l=nn.Linear(6, CLASSES)), joint=False),
    "dropout_later": Entry(lambda: with_buffers(dropout_later, n=torch.tensor(0)), joint=False),
    "depth_of_python": Entry(lambda: depth(random.random), joint=False),
    "depth_of_numpy": Entry(lambda: depth(np.random.rand), joint=False),
    # what changes on the way, what is stored otherwise
    "without_numbers": Entry(lambda: nn.Linear(6, CLASSES, device="meta"), refused="device meta"),
    "tuple_in_training": Entry(lambda: Net(lambda m, x: (m.l(x), x) if m.training else m.l(x), l=nn.Linear(6, CLASSES)), refused="gives a tuple"),
    "fails_in_evaluation": Entry(lambda: Net(lambda m, x: m.l(x) if m.training or len(x) < 3 else m.nothing(x), l=nn.Linear(6, CLASSES)), refused="nothing"),
    # layers and shapes
    "one_linear": Entry(lambda: nn.Linear(6, CLASSES)),
    "no_bias": Entry(lambda: seq(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, CLASSES, bias=False))),
    "gray_flatten": Entry(lambda: seq(nn.Flatten(), nn.Linear(64, CLASSES)), "gray"),
    "gray_rows": Entry(lambda: seq(nn.Linear(8, 2), nn.Flatten(), nn.Linear(16, CLASSES)), "gray"),
    "gray_unsqueezed": Entry(lambda: seq(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, CLASSES)), "gray"),
    "scalars": Entry(lambda: Net(lambda m, x: m.l(x[:, None]), l=nn.Linear(1, CLASSES)), "scalars"),
    "linear_of_sequences": Entry(lambda: seq(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(15, CLASSES)), "sequences"),
    "flatten_from_2": Entry(lambda: seq(nn.Flatten(2), nn.Linear(64, 2), nn.Flatten(), nn.Linear(6, CLASSES)), "images"),
    "conv": Entry(lambda: conv(nn.ReLU(), nn.MaxPool2d(2)), "images"),
    "conv_reflect": Entry(lambda: conv(nn.ReLU(), padding=1, padding_mode="reflect"), "images"),
    "conv_1d": Entry(lambda: seq(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(30, CLASSES)), "signals"),
    "conv_transposed": Entry(lambda: seq(nn.ConvTranspose2d(3, 2, 2), nn.Flatten(), nn.Linear(162, CLASSES)), "images"),
    "pool_average": Entry(lambda: conv(nn.AvgPool2d(2)), "images"),
    "prelu": Entry(lambda: mlp(nn.PReLU())),
    "softmax": Entry(lambda: mlp(nn.Softmax(dim=-1))),
    "softmax_over_the_batch": Entry(lambda: mlp(nn.Softmax(dim=0)), joint=False),
    "bilinear": Entry(lambda: Net(lambda m, x: m.b(x, x), b=nn.Bilinear(6, 6, CLASSES))),
    "identity": Entry(lambda: seq(nn.Identity(), nn.Linear(6, CLASSES))),
    "empty_sequence_inside": Entry(lambda: seq(seq(), nn.Linear(6, CLASSES))),
    "embedding": Entry(lambda: Net(lambda m, x: m.o(m.e((x.abs() * 3).long().clamp(max=9)).mean(1)), e=nn.Embedding(10, 5), o=nn.Linear(5, CLASSES))),
    # containers, arithmetic of one's own
    "module_list": Entry(lambda: Net(lambda m, x: sum(l(x) for l in m.ls), ls=nn.ModuleList([nn.Linear(6, CLASSES) for _ in range(3)]))),
    "module_dict": Entry(lambda: Net(lambda m, x: m.ls["a"](torch.relu(m.ls["b"](x))), ls=nn.ModuleDict({"a": nn.Linear(8, CLASSES), "b": nn.Linear(6, 8)}))),
    "own_function": Entry(lambda: Net(lambda m, x: m.o(Cube.apply(m.l(x))), l=nn.Linear(6, 4), o=nn.Linear(4, CLASSES))),
    "double_gradient": Entry(lambda: Net(double_gradient, l=nn.Linear(6, 4), o=nn.Linear(6, CLASSES)), joint=False),
    "checkpointed": Entry(lambda: Net(lambda m, x: m.o(torch.utils.checkpoint.checkpoint(m.l, x, use_reentrant=False)), l=nn.Linear(6, 4), o=nn.Linear(4, CLASSES))),
    "default_dtype_inside": Entry(lambda: Net(lambda m, x: m.l(x + torch.ones(6).to(x)), l=nn.Linear(6, CLASSES))),
    "batch_statistics_by_hand": Entry(lambda: Net(lambda m, x: m.l(x - x.mean(0)), l=nn.Linear(6, CLASSES)), joint=False),
}
# fmt: on


# -- data sets ---------------------------------------------------------------------------------------------------------


class Made(Dataset):
    """Each item is made by a function of its number."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < self.length:
            raise IndexError(number)
        return self.make(number)


class WithTargets(Made):
    """As those of torchvision: items, and `targets`."""

    def __init__(self, length: int, make: Callable[[int], Any], targets: Any) -> None:
        super().__init__(length, make)
        self.targets = targets


class Relabeled(TensorDataset):
    """The user's own labels, by overriding `__getitem__`."""

    def __getitem__(self, number: int) -> Any:
        x, label = super().__getitem__(number)
        return x, (label + 1) % CLASSES


class ScaledLater(TensorDataset):
    """Inputs that are changed on the way out."""

    def __getitem__(self, number: int) -> Any:
        x, label = super().__getitem__(number)
        return x * 2 + 1, label


class OneBuffer(Dataset):
    """Every item is the same memory, filled anew."""

    def __init__(self, inner: Dataset) -> None:
        self.inner, self.memory = inner, torch.zeros(6)

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getitem__(self, number: int) -> Any:
        self.memory.copy_(self.inner[number][0])
        return self.memory, self.inner[number][1]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(toy()[0])


class Endless(Dataset):
    def __getitem__(self, number: int) -> Any:
        return torch.zeros(6), 0


def items(change: Callable[[Tensor, int], Any]) -> Callable[[], tuple[Dataset, Dataset]]:
    """Each item changed, one after the other."""

    def make() -> tuple[Dataset, Dataset]:
        sets = toy()
        return tuple(Made(len(one), lambda i, one=one: change(one[i][0], int(one[i][1]))) for one in sets)  # type: ignore[return-value,misc]

    return make


def wrapped(change: Callable[[TensorDataset], Dataset]) -> Callable[[], tuple[Dataset, Dataset]]:
    """Both sets changed as a whole."""
    return lambda: tuple(map(change, toy()))  # type: ignore[return-value,arg-type]


class DataEntry(NamedTuple):
    """Data sets of the table."""

    make: Callable[[], tuple[Dataset, Dataset]]
    refused: str = ""


DATA: dict[str, DataEntry] = {
    "tensors": DataEntry(toy),
    "tensors_relabeled": DataEntry(wrapped(lambda d: Relabeled(*d.tensors))),
    "tensors_scaled": DataEntry(wrapped(lambda d: ScaledLater(*d.tensors))),
    "subset": DataEntry(wrapped(lambda d: Subset(d, list(range(len(d)))[::-1]))),
    "subset_of_relabeled": DataEntry(wrapped(lambda d: Subset(Relabeled(*d.tensors), range(0, len(d), 2)))),
    "concatenated": DataEntry(wrapped(lambda d: ConcatDataset([d, Relabeled(*d.tensors)]))),
    "list_of_pairs": DataEntry(wrapped(lambda d: [d[i] for i in range(len(d))])),  # type: ignore[arg-type,return-value]
    "items": DataEntry(items(lambda x, y: (x, y))),
    "items_as_lists": DataEntry(items(lambda x, y: [x, y])),
    "items_of_numpy": DataEntry(items(lambda x, y: (x.numpy(), np.int64(y)))),
    "items_of_float64": DataEntry(items(lambda x, y: (x.double(), y))),
    "items_of_one_memory": DataEntry(wrapped(OneBuffer)),
    "labels_of_tensors": DataEntry(items(lambda x, y: (x, torch.tensor(y)))),
    "labels_with_a_gap": DataEntry(items(lambda x, y: (x, 2 * (y > 0)))),
    "targets": DataEntry(wrapped(lambda d: WithTargets(len(d), lambda i: d[i], d.tensors[1].tolist()))),
    "targets_of_others": DataEntry(wrapped(lambda d: WithTargets(len(d), lambda i: d[i], [0] * len(d)))),
    "labels_in_a_column": DataEntry(wrapped(lambda d: TensorDataset(d.tensors[0], d.tensors[1][:, None]))),
    "labels_of_bytes": DataEntry(wrapped(lambda d: TensorDataset(d.tensors[0], d.tensors[1].byte()))),
    "labels_of_arrays": DataEntry(items(lambda x, y: (x, np.array(y)))),
    "items_of_several_shapes": DataEntry(items(lambda x, y: (x[: 4 + y], y)), "shape"),
    "a_stream": DataEntry(lambda: (Stream(), Stream()), "IterableDataset|map-style|length"),
    "no_length": DataEntry(lambda: (Endless(), Endless()), "length|len"),
    "nothing": DataEntry(lambda: (Made(0, lambda i: None), toy()[1]), "no |empty"),
}


def __getattr__(name: str) -> Any:
    """What `model=user_table:make_NAME` and `data=user_table:data_of_KIND` name."""
    if name.startswith("make_"):
        return MODULES[name.removeprefix("make_")].make
    if name.startswith("data_of_"):
        return lambda: toy(name.removeprefix("data_of_"))
    raise AttributeError(name)
