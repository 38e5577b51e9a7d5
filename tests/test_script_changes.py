"""What a script does to a model and its optimizer before and after `decentral.wrap`: right, or one sentence."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import decentral
from decentral.errors import ConfigError
from decentral.network.world import World

HOW: dict[str, dict[str, Any]] = {
    "atc": {"mode": "atc"},
    "overlap": {"mode": "atc", "overlap": True, "bucket_mb": 1e-5},
    "awc": {"mode": "awc"},
    "push_sum": {"mode": "push_sum"},
    "algo": {"algo": "dpsgd"},
}


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def batch(rank: int, step: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * rank + step)).double()
    return x, x.sum(1, keepdim=True)


def backward(model: nn.Module, rank: int, step: int = 0) -> None:
    x, y = batch(rank, step)
    F.mse_loss(model(x), y).backward()


def values(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def wrapped(seed: int = 0, momentum: float = 0.0, topology: str = "ring", **how: Any) -> tuple[Any, Any]:
    """A network and its optimizer."""
    model = network(seed)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    return model, decentral.wrap(model, inner, topology, timeout_s=30, **how)


def heard(optimizer: Any, act: Callable[[], object]) -> str:
    """What a rank is told as it does something, if anything; then it closes its optimizer."""
    try:
        act()
    except (ConfigError, RuntimeError, ValueError) as error:
        return str(error)
    finally:
        optimizer.close()
    return ""


def trained(model: Any, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        backward(model, rank, step)
        optimizer.step()


# -- after wrap --------------------------------------------------------------------------------------------------------


def unfreeze(model: Any, optimizer: Any) -> None:
    model[0].requires_grad_(True)


def give_a_gradient(model: Any, optimizer: Any) -> None:
    model[0].bias.grad = torch.ones(8, dtype=torch.float64)


def add_a_group(model: Any, optimizer: Any) -> None:
    optimizer.inner.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def replace_a_module(model: Any, optimizer: Any) -> None:
    model[2] = nn.Linear(8, 1).double()


def replace_and_add(model: Any, optimizer: Any) -> None:
    replace_a_module(model, optimizer)
    optimizer.inner.add_param_group({"params": list(model[2].parameters())})


def add_a_module(model: Any, optimizer: Any) -> None:
    model[0].adapter = nn.Linear(2, 2)


def assign_a_state(model: Any, optimizer: Any) -> None:
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)


def cast(model: Any, optimizer: Any) -> None:
    model.float()


def give_other_memory(model: Any, optimizer: Any) -> None:
    model[2].weight.data = model[2].weight.data.clone()


CHANGES = [
    (unfreeze, "0.weight is trained now"),
    (give_a_gradient, "0.bias is trained now"),
    (add_a_group, "param_groups have changed"),
    (replace_a_module, "new parameters (2.weight, 2.bias)"),
    (replace_and_add, "param_groups have changed"),
    (add_a_module, "new parameters (0.adapter.weight, 0.adapter.bias)"),
    (assign_a_state, "new parameters"),
    (cast, "have moved since decentral.wrap"),
    (give_other_memory, "p.data.copy_"),
]


def changed(world: World, how: str, change: Callable[[Any, Any], None], who: range, averages: bool) -> str:
    """The sentence that this rank hears at a step, or at `averaged()`, after some ranks have changed something."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring", timeout_s=30, **HOW[how])
    trained(model, optimizer, world.rank, range(1))
    optimizer.zero_grad()
    optimizer.peers.barrier()  # or a rank may hear of it before its first step is done
    if world.rank in who:
        change(model, optimizer)

    def act() -> None:
        if averages:
            with optimizer.averaged():
                return
        if change not in (cast, assign_a_state):  # after which the forward pass itself may fail
            backward(model, world.rank)
        for _ in range(3):  # a neighbor hears of it at once, a neighbor of its a step later
            optimizer.step()

    return heard(optimizer, act)


CHANGED = [("algo", range(1, 2), False, *change) for change in CHANGES]
CHANGED += [("atc", range(3), False, *CHANGES[2]), ("overlap", range(2, 3), False, *CHANGES[0])]
CHANGED += [("awc", range(1), True, *change) for change in (CHANGES[3], CHANGES[-1])]


@pytest.mark.parametrize(
    "cases", [CHANGED[-5:], pytest.param(CHANGED[:-5], marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_a_change_after_wrap_is_refused_on_every_rank(worlds, cases):
    """Every change on one rank, at a step; a few of them on several ranks, with overlap, or at `averaged()`."""
    for how, who, averages, change, says in cases:
        heard = worlds(3).call(changed, how, change, who, averages)
        assert all(says in sentence for sentence in heard), (how, change, heard)
        assert [sentence.startswith("rank ") for sentence in heard] == [rank not in who for rank in range(3)]


def trained_after(
    world: World, how: str, move: Callable[[nn.Module], object], when: str
) -> tuple[list[float], Any, str]:
    """Take three steps with a closure after a move of the model before or after wrap; return the losses, the parameters
    and what rank 0 was told."""
    model = network()
    if when == "before":
        move(model)
    optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), "ring", **HOW[how])

    def closure() -> Tensor:
        optimizer.zero_grad()
        x, y = (each.to(model[0].weight.dtype) for each in batch(world.rank, optimizer.round))
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    if when != "before" and not (move is other_memory and world.rank == 0):
        move(model)
    with contextlib.redirect_stderr(io.StringIO()) as told:
        with optimizer.averaged():  # before the first step, too
            pass
        losses = [optimizer.step(closure).item() for _ in range(3)]
    optimizer.close()
    return losses, values(model), told.getvalue()


def other_memory(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def to_float32(model: nn.Module) -> None:
    model.float()


@pytest.mark.parametrize("how", ["algo", *(pytest.param(how, marks=pytest.mark.slow) for how in HOW if how != "algo")])
def test_a_move_before_the_first_step_is_followed(how, worlds):
    for move in (other_memory, to_float32):
        expected, followed = (worlds(3).call(trained_after, how, move, when) for when in ("before", "after"))
        for (losses, end, quiet), (others, other, _) in zip(expected, followed, strict=True):
            assert losses == others and torch.equal(end, other) and end.dtype == other.dtype, move
            assert "moved" not in quiet
        notes = [told for *_, told in followed]
        assert "moved since decentral.wrap; training continues with 49 numbers of float" in notes[0]
        assert [told.count("moved") for told in notes] == [1, 0, 0]


def resumed_at(world: World, rounds: list[int]) -> str:
    _, optimizer = wrapped()
    state = optimizer.state_dict()
    state["state"]["decentral"]["round"] = rounds[world.rank]
    optimizer.load_state_dict(state)
    return heard(optimizer, optimizer.step)


def test_ranks_that_resume_at_different_steps_are_told(worlds):
    assert worlds(2).call(resumed_at, [4, 4]) == ["", ""]
    for said in worlds(2).call(resumed_at, [4, 6]):
        assert "in round 4" in said and "in round 6" in said


def wrapped_again(world: World) -> tuple[float, Tensor]:
    """How far a rank is from the mean after a second stage in which all is trained, and what a scheduler has done."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "complete")
    for step in range(6):
        if step == 3:
            model[0].requires_grad_(True)
            optimizer = decentral.wrap(model, optimizer.close(), peers=optimizer.peers, broadcast_from=None)
        optimizer.zero_grad()
        backward(model, world.rank, step)
        optimizer.step()
    own, mean = values(model), optimizer.peers.allreduce(values(model))
    optimizer.close()
    return float((own - mean).abs().max()), own - values(network())


def test_a_second_stage_is_averaged_when_it_is_wrapped_again(worlds):
    for distance, moved in worlds(3).call(wrapped_again):
        assert distance < 1e-12 and moved.abs().min() > 0


# -- parameters without a gradient -------------------------------------------------------------------------------------


class Branches(nn.Module):
    """One branch that all ranks use, one that rank 0 uses in even steps, and one that is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.sometimes, self.never = (nn.Linear(4, 1).double() for _ in range(3))

    def forward(self, x: Tensor, sometimes: bool) -> Tensor:
        return self.used(x) + self.sometimes(x) if sometimes else self.used(x)


def against_ddp(world: World, kind: str) -> tuple[Tensor, Tensor]:
    """The parameters after some steps in which gradients are missing: with wrap, and with torch's own class."""
    found = []
    for ours in (True, False):
        model: Any = Branches()
        settings = {"lr": 0.1, "weight_decay": 0.1}
        if kind == "sgd":
            optimizer: Any = torch.optim.SGD(model.parameters(), momentum=0.9, **settings)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), **settings)
        called = model
        if ours:
            optimizer = decentral.wrap(model, optimizer, "ring", mode="allreduce", bucket_mb=1e-5)
        else:
            called = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(world.rank, step)
            F.mse_loss(called(x, world.rank == 0 and step % 2 == 0), y).backward()
            optimizer.step()
        if ours:
            optimizer.close()
        found.append(values(model))
    return found[0], found[1]


def unused(world: World, how: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The layer that only rank 0 uses, before and after two steps without it."""
    model = Branches()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = decentral.wrap(model, inner, **{"topology": "complete", **how})
    x, y = batch(world.rank)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(x, step == 0), y).backward()
        optimizer.step()
        found.append(values(model.sometimes))
    optimizer.close()
    return found[0], found[2]


def test_unused_parameters_neither_decay_nor_keep_their_momentum(worlds):
    for how in ({"mode": "atc"}, {"algo": "relaysgd", "topology": "chain"}):
        for before, after in worlds(2).call(unused, how):
            torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)


def test_all_reduce_treats_missing_gradients_as_torch_does(worlds):
    for kind in ("sgd", "adamw"):
        for ours, theirs in worlds(2).call(against_ddp, kind):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
            assert torch.equal(ours[10:], values(Branches())[10:])  # what is never used has not decayed


# -- what already communicates -----------------------------------------------------------------------------------------


def twice(world: World, kind: str) -> str:
    """What wrap, or the first step after it, says about a model that torch communicates as well."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model: Any = nn.Linear(4, 1).double()
    called: Any = None
    if kind in ("ddp", "its module"):
        called = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        called = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    elif kind == "fully_shard":
        fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    wrapped = called if kind in ("ddp", "fsdp") else model
    inner: Any = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    if kind == "zero":
        inner = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ConfigError) as error:
        optimizer = decentral.wrap(wrapped, inner, "ring")
        called = nn.parallel.DistributedDataParallel(model)
        F.mse_loss(called(torch.ones(2, 4).double()), torch.ones(2, 1).double()).backward()
        optimizer.step()
    return str(error.value)


def test_a_model_that_torch_communicates_as_well_is_refused(worlds):
    for kind in ("ddp", "its module", "after wrap", "fsdp", "fully_shard", "zero"):
        for said in worlds(2).call(twice, kind):
            assert "communicates by itself" in said if kind == "zero" else "already averages or shards" in said, kind


# -- what would be silently wrong --------------------------------------------------------------------------------------


class TwoModels(torch.optim.SGD):
    """An optimizer with a second model in its state, as schedule-free ones have."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


def misused(world: World, kind: str) -> str:
    """What a rank hears."""
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    inner: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {}
    if kind == "two models":
        inner = TwoModels(model.parameters(), lr=0.1)
    elif kind == "tied by memory":
        model[1].weight = nn.Parameter(model[0].weight)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
    elif kind == "hook":
        model.register_parameter("other", nn.Parameter(torch.zeros(2)))
        inner, settings = torch.optim.SGD(model.parameters(), lr=0.1), {"mode": "allreduce"}
        inner.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    elif kind == "buffers":
        model.register_buffer("cache", torch.zeros(2 + world.rank))
    elif kind == "rate":
        inner, settings = torch.optim.Adafactor(model.parameters(), lr=0.1), {"algo": "momentum_tracking"}
    with pytest.raises((ConfigError, ValueError)) as error:
        optimizer = decentral.wrap(model, inner, "ring", timeout_s=20, **settings)
        model(torch.ones(2, 4).double()).sum().backward()
        if kind == "inner step":
            inner.step()
        optimizer.step()
        with optimizer.averaged():
            pass
    return str(error.value)


SAID = {
    "hook": "would see the averaged gradients of one dtype only",
    "two models": "keeps a second model in its state",
    "tied by memory": "two tensors in the same memory",
    "buffers": "the buffers cache",
    "rate": "Adafactor is not linear in its learning rate",
    "inner step": "does not communicate: call step() of the one that decentral.wrap returned",
}


def test_silent_errors_are_refused(worlds):
    for kind, part in SAID.items():
        for said in worlds(2).call(misused, kind):
            assert part in said


def after_loading(
    world: World, topology: str, how: dict[str, Any], store: dict[int, Any]
) -> tuple[dict[str, Any], str]:
    """The state of this rank after two steps, and what is said to the stored state that it loads last."""
    model, optimizer = wrapped(topology=topology, **how)
    trained(model, optimizer, world.rank, range(2))
    state = optimizer.state_dict()
    return state, heard(optimizer, lambda: store and optimizer.load_state_dict(store[world.rank]))


def test_corrections_of_another_number_of_ranks_are_refused(worlds):
    how = {"algo": "exact_diffusion"}
    of_three = dict(enumerate(state for state, _ in worlds(3).call(after_loading, "complete", how, {})))
    for _, said in worlds(2).call(after_loading, "complete", how, of_three):
        assert "is of 3 ranks, not of 2" in said


def test_corrections_for_other_matrices_are_refused(worlds):
    how = {"algo": "choco", "compress": "int8"}
    on_a_ring = dict(enumerate(state for state, _ in worlds(3).call(after_loading, "ring", how, {})))
    for _, said in worlds(3).call(after_loading, "star", how, on_a_ring):
        assert "topology ring" in said and "not for topology star" in said and ".inner" in said
    for _, said in worlds(3).call(after_loading, "ring", how, on_a_ring):
        assert not said


def loads(world: World, algo: str, what: str) -> str:
    """What a rank hears in the steps after rank 1 has loaded something."""
    settings = {"period_steps": 2} if algo == "diloco" else {}  # all ranks hear of it in the next outer step
    model, optimizer = wrapped(algo=algo, algo_settings=settings)
    trained(model, optimizer, world.rank, range(2))  # the first outer step
    optimizer.peers.barrier()
    own, other = copy.deepcopy(model.state_dict()), network(1).state_dict()
    if world.rank == 1:
        if what == "own after state":
            optimizer.load_state_dict(optimizer.state_dict())
        model.load_state_dict(other)
        if what == "a part back":
            model[0].load_state_dict({"weight": own["0.weight"], "bias": own["0.bias"]})
        if what == "all back":
            model.load_state_dict(own)
    copy.deepcopy(model).load_state_dict(other)
    return heard(optimizer, lambda: trained(model, optimizer, world.rank, range(3)))


def test_weights_loaded_beside_an_anchor_are_refused(worlds):
    for algo, what, refused in (
        ("diloco", "a part back", True),
        ("diloco", "all back", False),
        ("diloco", "own after state", False),
        ("dpsgd", "weights", False),
    ):
        for said in worlds(2).call(loads, algo, what):
            assert ("has loaded other weights since decentral.wrap, but algo=diloco" in said) is refused, (what, said)


def trained_in_channels_last(world: World, fused: bool) -> Tensor:
    """The weights after three steps before `wrap` and three after it, with a convolution in channels_last memory."""
    torch.manual_seed(world.rank)
    model: Any = nn.Sequential(nn.Conv2d(2, 3, (3, 2)), nn.Flatten(), nn.Linear(18, 1)).to(
        memory_format=torch.channels_last
    )
    inner = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    optimizer: Any = inner
    for step in range(6):
        if step == 3:
            optimizer = decentral.wrap(model, inner, "ring", broadcast_from=None)
        optimizer.zero_grad()
        model(torch.arange(60.0).view(2, 2, 5, 3) % (7 + step)).square().mean().backward()
        optimizer.step()
    optimizer.close()
    return values(model)


def test_a_fused_optimizer_finds_its_state_in_the_order_of_its_parameters(worlds):
    fused, plain = (worlds(2).call(trained_in_channels_last, fused) for fused in (True, False))
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


class Counts(torch.optim.SGD):
    """An optimizer that counts its steps in its groups, as schedule-free ones do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
        super().step()


def counted(world: World, overlap: bool) -> str:
    model = network()
    optimizer = decentral.wrap(model, Counts(model.parameters(), lr=0.1), "ring", overlap=overlap, bucket_mb=1e-5)
    return heard(optimizer, lambda: trained(model, optimizer, world.rank, range(1)))


def test_an_optimizer_that_counts_its_steps_takes_whole_ones(worlds):
    assert all("counts its steps" in said for said in worlds(2).call(counted, True))
    assert not any(worlds(2).call(counted, False))


EDITS: dict[str, Callable[[nn.Module, Any], object]] = {
    "none": lambda model, optimizer: None,
    "clip": lambda model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    "zero in place": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "replace": lambda model, optimizer: setattr(
        next(model.parameters()), "grad", torch.ones_like(next(model.parameters()))
    ),
    "tensor": lambda model, optimizer: optimizer.param_groups[-1]["lr"].mul_(2),
    "momentum": lambda model, optimizer: optimizer.param_groups[0].update(momentum=0.5),
}


def edited(world: World, name: str, mode: str) -> str:
    """Two steps with usual calls around them; what is done between backward and step in the second."""
    model = network()
    groups = [{"params": [p], "lr": torch.tensor(0.1, dtype=torch.float64)} for p in model.parameters()]
    inner = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    optimizer = decentral.wrap(model, inner, "ring", mode=mode, overlap=True, bucket_mb=1e-5)
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)

    def act() -> None:
        for step, edit in enumerate([EDITS["none"], EDITS[name]]):
            optimizer.zero_grad()
            with optimizer.accumulate():
                backward(model, world.rank, step + 7)
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            backward(model, world.rank, step)
            edit(model, optimizer)
            optimizer.step()
            scheduler.step()

    return heard(optimizer, act)


def test_edits_that_an_overlapped_step_would_ignore_are_refused(worlds):
    for name in EDITS:
        what = "settings" if name in ("tensor", "momentum") else "gradients"
        for said in worlds(2).call(edited, name, "atc"):
            assert (said == "") if name == "none" else f"{what} were changed between" in said, (name, said)
    for name in ("clip", "momentum"):
        assert worlds(2).call(edited, name, "awc") == ["", ""], "it is not too late"


def evaluated_in_inference_mode(world: World) -> str:
    model, optimizer = wrapped(algo="allreduce")
    with torch.inference_mode(), optimizer.averaged():
        values(model)
    return heard(optimizer, lambda: trained(model, optimizer, world.rank, range(2)))


def test_the_first_evaluation_may_be_in_inference_mode(worlds):
    assert worlds(2).call(evaluated_in_inference_mode) == ["", ""]


# -- before wrap -------------------------------------------------------------------------------------------------------


def resumed(world: World, optimizer: str, loads: str, how: dict[str, Any], **told: Any) -> tuple[Tensor, Tensor]:
    """Six steps at once; and three, saved, loaded into new objects before or after wrap, and three more.

    `loads` is plain for the state of torch's own optimizer, which is loaded before wrap.
    """

    def wrapped(saved: dict[str, Any] | None = None, **more: Any) -> tuple[nn.Module, Any]:
        model = nn.Sequential(*network(world.rank), nn.BatchNorm1d(1).double())
        inner = {
            "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.05),
            "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            "adam": lambda: torch.optim.Adam(model.parameters(), lr=0.01),
        }[optimizer]()
        if saved and loads != "after":
            model.load_state_dict(saved["model"])
            inner.load_state_dict(saved["optimizer"])
        optimizer_here = decentral.wrap(model, inner, **how, **more)
        if saved and loads == "after":
            model.load_state_dict(saved["model"])
            optimizer_here.load_state_dict(saved["optimizer"])
        return model, optimizer_here

    def train(model: nn.Module, wrapped: Any, steps: range) -> None:
        for step in steps:
            wrapped.zero_grad()
            backward(model, world.rank, step)
            wrapped.step()
        wrapped.state_dict()  # delivers the messages in flight

    def everything(model: nn.Module) -> Tensor:
        return torch.cat([tensor.reshape(-1).double() for tensor in model.state_dict().values()])

    model, whole = wrapped()
    train(model, whole, range(6))
    whole.close()
    first, half = wrapped()
    train(first, half, range(3))
    stored = io.BytesIO()
    state = (half.inner if loads == "plain" else half).state_dict()
    torch.save({"model": first.state_dict(), "optimizer": state}, stored)
    half.close()
    stored.seek(0)
    second, rest = wrapped(torch.load(stored, weights_only=True), **told)
    train(second, rest, range(3, 6))
    rest.close()
    return everything(model), everything(second)


TOPK = {"compress": "topk", "compress_settings": {"keep": 0.2}}
RESUMED: list[tuple[str, str, dict[str, Any]]] = [
    ("momentum", "before", {"topology": "one_peer_exponential", "mode": "push_sum"}),
    ("sgd", "before", {"topology": "one_peer_exponential", "algo": "gradient_tracking"}),
    ("adam", "plain", {"topology": "ring", "algo": "dpsgd"}),
    ("momentum", "after", {"topology": "dbt", "algo": "relaysgd"}),
    ("momentum", "plain", {"topology": "ring"}),
    ("momentum", "after", {"topology": "ring", "algo": "d2"}),
    ("momentum", "after", {"topology": "ring", "algo": "gradient_tracking"}),
    ("momentum", "after", {"topology": "star", "weights": "uniform", "algo": "sgp"}),
    ("momentum", "after", {"topology": "star", "weights": "uniform", "mode": "push_sum"}),
    ("momentum", "after", {"topology": "ring", "algo": "choco", **TOPK}),
    ("momentum", "after", {"topology": "ring", "algo": "allreduce", **TOPK}),
    (
        *("momentum", "after"),
        {"topology": "ring", "algo": "allreduce", "compress": "powersgd", "compress_settings": {"rank": 1}},
    ),
]


@pytest.mark.parametrize("cases", [RESUMED[:4], pytest.param(RESUMED[4:], marks=pytest.mark.slow)], ids=["few", "more"])
def test_a_checkpoint_is_resumed_bit_for_bit(worlds, cases):
    for optimizer, loads, how in cases:
        for whole, second in worlds(3).call(resumed, optimizer, loads, how):
            torch.testing.assert_close(second, whole, rtol=0, atol=0, msg=f"{loads} {how}")
    for whole, second in worlds(3).call(partial(resumed, broadcast_from=None), "sgd", "plain", {"topology": "ring"}):
        torch.testing.assert_close(second, whole, rtol=0, atol=0)


def resumed_around_wrap(world: World, how: dict[str, Any], case: str) -> str:
    """The model's checkpoint and the optimizer's, loaded before and after wrap, and a step."""
    model, first = wrapped(world.rank, 0.9, **how)
    trained(model, first, world.rank, range(1))
    saved = {name: value.clone() for name, value in model.state_dict().items()}, first.state_dict()
    first.close()
    model = network(world.rank)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if case != "after":
        model.load_state_dict(saved[0])
    told = {"broadcast_from": 0} if case == "told" else {}
    optimizer = decentral.wrap(model, inner, "ring", **how, **told)
    if case == "plain":
        inner.load_state_dict(
            {**saved[1], "state": {key: v for key, v in saved[1]["state"].items() if key != "decentral"}}
        )
    else:
        optimizer.load_state_dict(saved[1])
    if case == "after":
        model.load_state_dict(saved[0])
    return heard(optimizer, lambda: trained(model, optimizer, world.rank, range(1)))


def test_an_optimizer_loaded_beside_replaced_weights_is_refused(worlds):
    """The state of an algorithm has the models, too."""
    cases = [("awc", case) for case in ("before", "plain", "after", "told")]
    for how, case in (*cases, ("algo", "before"), ("algo", "plain")):
        is_wrong = case == "plain" or (how, case) == ("awc", "before")
        for said in worlds(3).call(resumed_around_wrap, HOW[how], case):  # two on a ring would be equal
            assert ("has replaced the weights" in said) == is_wrong, (how, case, said)


def warned(world: World, case: str) -> tuple[str, Tensor]:
    """What a rank is told at wrap, and what it starts with."""
    from contextlib import redirect_stderr

    model = network(world.rank if case != "equal" else 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if case.startswith("state") and not (case == "state of rank 0" and world.rank):
        for p in model.parameters():
            p.grad = torch.full_like(p, float(world.rank if case == "states differ" else 1))
        before = values(model).clone()
        optimizer.step()
        nn.utils.vector_to_parameters(before, model.parameters())
    said = io.StringIO()
    with redirect_stderr(said):
        told = {"told 1": {"broadcast_from": 1}, "told none": {"broadcast_from": None}}.get(case, {})
        mode = "allreduce" if "allreduce" in case else "atc"
        decentral.wrap(model, optimizer, "ring", mode=mode, **told).close()
    return said.getvalue(), values(model)


def test_weights_that_differ_at_wrap_are_told(worlds):
    for case, starts, says in (
        ("equal", [0, 0, 0], []),
        ("fresh", [0, 0, 0], ["(0.weight of rank 1 by 0.", "broadcast_from=None keeps"]),
        ("told 1", [1, 1, 1], []),
        ("told none", [0, 1, 2], []),
        ("states differ", [0, 1, 2], ["each rank keeps its own", "broadcast_from=0 gives"]),
        ("states equal", [0, 0, 0], ["broadcast_from=None keeps"]),
        ("state of rank 0", [0, 0, 0], ["broadcast_from=None keeps", "broadcast_optimizer_state"]),
    ):
        found = worlds(3).call(warned, case)
        for (_, start), seed in zip(found, starts, strict=True):
            assert torch.equal(start, values(network(seed))), case
        told = found[0][0]
        assert all(part in told for part in says) and bool(told) == bool(says), (case, told)
        assert told.count("weights differ") <= 1 and not any(said for said, _ in found[1:]), case


# -- copies ------------------------------------------------------------------------------------------------------------


def copied(world: World, how: str) -> int:
    """Rank 0 alone copies its model in four ways, and trains and evaluates the copies: nobody waits for anybody."""
    model, optimizer = wrapped(**HOW[how])
    trained(model, optimizer, world.rank, range(1))
    made = 0
    if world.rank == 0:
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        average = torch.optim.swa_utils.AveragedModel(model)
        average.update_parameters(model)
        for twin in (copy.deepcopy(model), average, torch.load(stored, weights_only=False), copy.deepcopy(average)):
            twin.to(torch.float64).train()
            alone = torch.optim.SGD(twin.parameters(), lr=0.1)
            backward(twin, 0)
            alone.step()
            made += 1
        inner = copy.deepcopy(optimizer.inner)
        assert len(inner.state_dict()["param_groups"]) == 1
        with pytest.raises(TypeError, match="use its state_dict"):
            copy.deepcopy(optimizer)
    optimizer.zero_grad()
    trained(model, optimizer, world.rank, range(1, 2))
    optimizer.close()
    return made


def test_copies_of_a_wrapped_model_are_plain_modules(worlds):
    for how in ("overlap", "algo"):
        assert worlds(2).call(copied, how) == [4, 0], how


# -- what cannot be wrapped --------------------------------------------------------------------------------------------


def buffered(buffer: Tensor) -> nn.Module:
    model = network()
    model.register_buffer("b", buffer)
    return model


UNFIT: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "lazy": (lambda rank: nn.Sequential(nn.LazyLinear(3)) if rank == 1 else network(), "0.weight has no values"),
    "meta": (lambda rank: network().to("meta"), "0.weight has no values"),
    "expanded": (lambda rank: buffered(torch.full((1,), float(rank)).expand(3)), "b is sparse, quantized or expanded"),
    "sparse": (lambda rank: buffered(torch.eye(3).to_sparse()), "b is sparse, quantized or expanded"),
    "dtype": (lambda rank: buffered(torch.zeros(3, dtype=[torch.float32, torch.float64][rank])), "b [3] torch.float64"),
    "frozen": (
        lambda rank: nn.Sequential(network(), nn.Linear(2 + rank, 1).requires_grad_(False)),
        "has frozen 1.weight [1, 3]",
    ),
}


def unfit(world: World, case: str) -> str:
    model = UNFIT[case][0](world.rank)
    with pytest.raises(ConfigError) as error:
        decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring")
    return str(error.value)


def test_models_that_cannot_be_sent_are_refused_on_every_rank(worlds):
    for case, (_, part) in UNFIT.items():
        for told in worlds(2).call(unfit, case):
            assert part in told


def left_alone(world: World, how: str) -> None:
    """Random state, default dtype and training mode, in a script that is in float64."""
    import random

    import numpy as np

    torch.set_default_dtype(torch.float64)
    try:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
        model[1].eval()

        def state() -> list[Any]:
            modes = [module.training for module in model.modules()]
            random_states = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()
            return [modes, *random_states, torch.get_default_dtype(), torch.is_grad_enabled()]

        before = state()
        optimizer = decentral.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), "ring", **HOW[how])
        optimizer.step()
        optimizer.state_dict()
        with optimizer.averaged():
            pass
        assert state() == before and all(p.dtype == torch.float64 for p in model.parameters())
        optimizer.close()
    finally:
        torch.set_default_dtype(torch.float32)


def test_wrap_leaves_random_states_modes_and_dtypes_alone(worlds):
    for how in ("overlap", "push_sum", "algo"):
        worlds(2).call(left_alone, how)
