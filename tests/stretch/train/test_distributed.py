import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from stretch.train.distributed import SharedNorm, World
from tests.contracts.repository import ROOT
from tests.stretch.train.ddp_worker import work


def processes(count, path, what):
    """Real processes that meet over gloo."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.stretch.train.ddp_worker", str(path), what]
    running = [subprocess.Popen(command, cwd=ROOT, env=shared | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(count)]
    assert [process.wait(300) for process in running] == [0] * count


@pytest.mark.slow
@pytest.mark.parametrize("what", ["network", "supernet"])
def test_two_processes_train_what_one_does_with_the_same_batch(tmp_path, what):
    processes(2, tmp_path / "two.safetensors", what)
    work(tmp_path / "one.safetensors", World(), what)
    one, two = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    start = one.pop("start")
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=5e-6, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    # Training moved the weights by far more than the processes differ.
    assert (one["moved"] - start).abs().max() > 0.01


def test_shared_norm_alone_is_batch_norm():
    shared_norm, theirs = SharedNorm(4), torch.nn.BatchNorm2d(4)
    x = torch.randn(3, 4, 5, 5)
    torch.testing.assert_close(shared_norm(x), theirs(x))
    torch.testing.assert_close(shared_norm.running_var, theirs.running_var)
