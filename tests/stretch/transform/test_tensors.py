import resource

import pytest
import torch
from safetensors.torch import load_file

from predictors.errors import StretchError
from stretch.transform.tensors import write_tensors


def test_full_disk_leaves_the_old_file_and_no_partial_one(tmp_path):
    path = tmp_path / "w.safetensors"
    write_tensors(path, {"a": torch.zeros(1)})
    content, before = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StretchError, match=r"w\.safetensors: the disk is full"):
            write_tensors(path, {"a": torch.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (content, [path])
    with pytest.raises(StretchError, match=r"cannot write .*safetensors/model\.safetensors"):
        write_tensors(path / "model.safetensors", {"a": torch.zeros(1)})


def test_tensors_that_share_memory_are_written_separately(tmp_path):
    weight = torch.arange(4.0)
    write_tensors(tmp_path / "w.safetensors", {"a": weight, "b": weight, "c": torch.ones(4)[1:3]})
    assert {name: value.tolist() for name, value in load_file(tmp_path / "w.safetensors").items()} == {
        "a": [0.0, 1.0, 2.0, 3.0],
        "b": [0.0, 1.0, 2.0, 3.0],
        "c": [1.0, 1.0],
    }
