"""`decentral.join` in somebody's own training script: models, optimizers, the timeline, and torchrun."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

import decentral
from decentral.network.world import World


def model(rank: int) -> nn.Module:
    """Parameters, buffers and a counter that differ from rank to rank; weights in two dtypes."""
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).double())
    net[1](torch.randn(5 + rank, 4))
    for _ in range(rank):
        net[1](torch.randn(5, 4))
    return net


def state(net: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in net.state_dict().values()]


def start_alike(world: World) -> list[list[torch.Tensor]]:
    with decentral.join() as peers:
        one, other = model(world.rank), model(world.rank)
        peers.broadcast_parameters(one, root=1)
        peers.allreduce_parameters(other)
        return [state(one), state(other)]


def test_models_are_broadcast_and_averaged_with_their_buffers(worlds):
    states = [state(model(rank)) for rank in range(4)]
    for broadcast, averaged in worlds(4).call(start_alike):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(broadcast, states[1], strict=True))
        for found, *originals in zip(averaged, *states, strict=True):
            if found.is_floating_point():
                torch.testing.assert_close(found, sum(originals) / 4)
    counters = [[value for value in found[1] if not value.is_floating_point()] for found in worlds(4).call(start_alike)]
    assert [int(counter) for (counter,) in counters] == [1, 2, 3, 4]


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "plain sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=2),
}


def continue_like_root(world: World, name: str) -> tuple[float, list[torch.Tensor]]:
    """Only rank 1 has taken steps, with another learning rate; then all take the same step."""
    with decentral.join() as peers:
        net = nn.Linear(3, 2)
        peers.broadcast_parameters(net)
        optimizer = OPTIMIZERS[name](net.parameters())
        x = torch.ones(4, 3)

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = net(x).square().sum()
            value.backward()
            return value

        if world.rank == 1:
            optimizer.param_groups[0]["lr"] = 0.05
            optimizer.step(loss)
        peers.broadcast_optimizer_state(optimizer, root=1)
        peers.broadcast_parameters(net, root=1)
        optimizer.step(loss)
        return optimizer.param_groups[0]["lr"], state(net)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_go_on_like_that_of_the_root(worlds, name):
    found = worlds(4).call(continue_like_root, name)
    assert [lr for lr, _ in found] == [0.05] * 4
    for _, parameters in found:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(parameters, found[1][1], strict=True))


def recorded(world: World, path: str) -> None:
    with decentral.join("ring") as peers, peers.timeline(path):
        peers.neighbor_allreduce(torch.ones(1000))
        peers.neighbor_allreduce(torch.ones(10), self_weight=0.5, dst_weights={(world.rank + 1) % world.size: 0.5})


def test_the_timeline_shows_the_verbs_of_all_ranks_on_one_clock(worlds, tmp_path):
    path = tmp_path / "timeline.json"
    worlds(4).call(recorded, str(path))
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert {f"rank {rank}" for rank in range(4)} <= set(names.values())
    for rank in range(4):
        of_rank = [e for e in events if e.get("ph") == "X" and names[e["pid"]] == f"rank {rank}"]
        verbs = [e["name"] for e in of_rank if e["name"].startswith("decentral.") and e.get("cat") == "user_annotation"]
        assert sorted(verbs) == sorted(
            ["decentral.neighbor_allreduce", "decentral.neighbor_allreduce.wait", "decentral.neighbor_allreduce.finish"]
            * 2
        )
    begins = [e["ts"] for e in events if e["name"] == "decentral.neighbor_allreduce"]
    ends = [e["ts"] + e["dur"] for e in events if e["name"] == "decentral.neighbor_allreduce.finish"]
    assert max(ends) - min(begins) < 60e6  # microseconds: the clocks of the ranks have been brought together


SCRIPT = """
import sys
import torch
import decentral

with decentral.join("one_peer_exponential") as peers, peers.timeline(sys.argv[1]):
    torch.manual_seed(peers.rank)
    model = torch.nn.Linear(4, 1).to(peers.device)
    peers.broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = torch.tensor([[1.0, -2.0, 3.0, 0.5]])
    for step in range(200):
        inputs = torch.randn(16, 4)
        loss = (model(inputs) - inputs @ truth.T).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peers.neighbor_allreduce(model, step, inplace=True)
    assert torch.allclose(model.weight, truth, atol=1e-3), model.weight
    pushed = peers.neighbor_allreduce(torch.tensor([float(peers.rank)]), self_weight=0.5,
                                      dst_weights={(peers.rank + 2) % peers.size: 0.5})
    try:
        peers.neighbor_allreduce(pushed, self_weight=1, src_weights=[], dst_weights=[(peers.rank + 1) % peers.size])
    except decentral.ConfigError as error:
        assert "rank 0 sends to rank 1" in str(error)
    together = peers.allgather(pushed).tolist()
    if peers.rank == 0:
        print(peers.size, together)
"""


@pytest.mark.slow
def test_a_script_under_torchrun(tmp_path):
    script, trace = tmp_path / "script.py", tmp_path / "trace.json"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-W", "error::UserWarning", "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=4", str(script), str(trace)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4 [1.0, 2.0, 1.0, 2.0]"
    assert len(json.loads(trace.read_text())["traceEvents"]) > 4 * 200


@pytest.mark.slow
def test_a_script_that_asks_for_what_does_not_exist_ends_on_every_rank(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import decentral\ndecentral.join('rign')\n")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode != 0
    assert "script.py, line 2: topology='rign' does not exist. Did you mean 'ring'?" in done.stderr
    assert "Traceback" not in done.stderr.partition("elastic")[0] and done.stderr.count("does not exist") == 1


def test_alone_the_same_script_runs_without_torchrun(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):  # what was left can be joined again
        with decentral.join("ring", every=2) as peers:
            assert (peers.rank, peers.size) == (0, 1)
            x = torch.arange(3.0)
            assert torch.equal(peers.neighbor_allreduce(x, 1), x)
            assert torch.equal(peers.neighbor_allreduce(x, self_weight=2, dst_weights={}), 2 * x)
            assert peers.neighbor_allgather(x).shape == (0,)
            with peers.timeline(tmp_path / "trace.json"):
                peers.allreduce(x)
        assert not dist.is_initialized()
    with decentral.join("dbt") as peers:  # which would need two
        assert torch.equal(peers.neighbor_allreduce(torch.ones(3)), torch.ones(3))
    with pytest.raises(decentral.ConfigError, match="Did you mean"):
        decentral.join("rign")
    assert not dist.is_initialized()


def test_importing_the_package_does_not_import_torch():
    code = "import decentral, sys; assert 'torch' not in sys.modules; decentral.join; assert 'torch' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {"join", "Peers", "Window", "wrap", "ConfigError"} <= set(dir(decentral))
    with pytest.raises(AttributeError, match="no attribute 'jion'"):
        decentral.jion  # noqa: B018


AGAIN = """
import torch
import decentral

for _ in range(3):
    with decentral.join("ring") as peers:
        assert peers.neighbor_allreduce(torch.ones(2) * peers.rank).tolist() == [0.5, 0.5]
        with decentral.Window(torch.ones(2), peers, zero_init=True, transport="torch") as window:
            window.push()
            window.drain()
"""


@pytest.mark.slow
def test_a_group_can_be_left_and_joined_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(AGAIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr


def share_a_lambda(world: World) -> str:
    """What rank 0's optimizer holds cannot be pickled."""
    with decentral.join() as peers:
        optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
        optimizer.param_groups[0]["rule"] = (lambda lr: lr) if world.rank == 0 else None
        try:
            peers.broadcast_optimizer_state(optimizer)
        except decentral.ConfigError as error:
            return str(error)
        return ""


def test_an_optimizer_that_cannot_be_sent_is_refused_on_every_rank(worlds):
    told = worlds(2).call(share_a_lambda)
    assert all(one.startswith("the state of SGD cannot be sent, because it holds more than tensors") for one in told)
