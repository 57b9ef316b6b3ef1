import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stretch.network.capture import capture
from stretch.network.models.tiny import tiny_resnet
from stretch.train.distributed import SharedNorm, World, join_world
from stretch.train.images import synthetic
from stretch.train.loop import Run
from stretch.train.recipe import SandwichConfig, TrainConfig
from stretch.train.step import unwrap
from stretch.train.supernet import Supernet
from tests.contracts.repository import ROOT
from tests.stretch.train.supernets import pool


def work(path: Path, world, kind: str) -> None:
    """Train a network or a supernet a little, and let the first process write the weights."""
    torch.manual_seed(0)
    model = tiny_resnet()
    config = TrainConfig(epochs=1, batch=16, learning_rate=0.05, channels_last=False)
    sandwich = None
    if kind == "supernet":
        # Each process has its own batch-norm statistics of a supernet, so they are switched off for the comparison.
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eval()
        captured = capture(model, (1, 3, 16, 16), "tiny_resnet")
        designs = pool(captured.graph)
        model = Supernet(captured, designs)
        for subnet in model.subnets:
            subnet.model.eval().train = lambda mode=True, value=subnet.model: value
        sandwich = SandwichConfig(random=len(designs))
    start = {k: v.detach().clone() for k, v in model.named_parameters()}
    run = Run(model, synthetic(4, 16, 16), config, world=world, sandwich=sandwich)
    for _ in run.steps():
        pass
    if world.first:
        trained = unwrap(run.model)
        weights, (name, moved) = {k: v.clone() for k, v in trained.state_dict().items()}, next(trained.named_parameters())
        save_file(weights | {"start": start[name], "moved": moved.detach().clone()}, path)
    world.barrier()


#: Kinds of training in one process, as starting a process takes longer than both.
KINDS = ("network", "supernet")


def processes(count, folder):
    """Run real processes that communicate over gloo."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.stretch.train.test_distributed", str(folder)]
    running = [subprocess.Popen(command, cwd=ROOT, env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(count)]
    assert [process.wait(300) for process in running] == [0] * count


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the weights that two processes trained."""
    folder = tmp_path_factory.mktemp("trained")
    processes(2, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_what_one_does_with_the_same_batch(tmp_path, trained, kind):
    work(tmp_path / kind, World(), kind)
    one, two = (load_file(folder / kind) for folder in (tmp_path, trained))
    assert one.keys() == two.keys()
    start = one.pop("start")
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=5e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    # Training moved the weights by far more than the processes differ.
    assert (one["moved"] - start).abs().max() > 0.01


def test_shared_norm_in_one_process_is_batch_norm():
    shared_norm, batch_norm = SharedNorm(4), torch.nn.BatchNorm2d(4)
    x = torch.randn(3, 4, 5, 5)
    torch.testing.assert_close(shared_norm(x), batch_norm(x))
    torch.testing.assert_close(shared_norm.running_var, batch_norm.running_var)


if __name__ == "__main__":  # one of the processes that `processes` starts
    with join_world("cpu") as joined:
        for kind in KINDS:
            work(Path(sys.argv[1], kind), joined, kind)
