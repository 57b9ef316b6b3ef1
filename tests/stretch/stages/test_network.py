"""A model is loaded and captured the same way, whoever asks."""

from contextlib import contextmanager

import pytest

pytest.importorskip("torch")

from predictors.errors import UnknownNameError
from stretch.models.load import load_model
from stretch.stages.network import read_graph, read_network

pytestmark = pytest.mark.torch


def test_input_is_the_model_s_usual_one_or_the_one_asked_for_or_made_from_it():
    usual = load_model("tiny_resnet", weights="none").input_shape
    assert read_network("tiny_resnet", weights="none").graph.input.shape == usual
    assert read_network("tiny_resnet", (1, 3, 48, 40), weights="none").graph.input.shape == (1, 3, 48, 40)
    wider = read_network("tiny_resnet", lambda loaded: (*loaded.input_shape[:3], 64), weights="none")
    assert wider.graph.input.shape == (*usual[:3], 64)


def test_model_may_be_loaded_already():
    loaded = load_model("tiny_resnet", weights="none", seed=3)
    network = read_network(lambda: loaded)
    assert network.loaded is loaded
    assert network.captured.module is loaded.module


def test_model_of_a_file_is_called_without_its_folder_where_that_is_asked_for(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import torch\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())\n")
    shape = (1, 3, 8, 8)
    assert read_network(f"{file}:net", shape, trust_code=True, portable=True).graph.name == "mine.py:net"
    assert read_network(f"{file}:net", shape, trust_code=True).graph.name == f"{file}:net"


def test_loading_and_capturing_are_told_one_after_the_other():
    told = []

    @contextmanager
    def phase(name):
        told.append(name)
        yield
        told.append(f"{name} done")

    read_network("tiny_resnet", weights="none", phase=phase)
    assert told == ["load", "load done", "capture", "capture done"]


def test_unknown_model_is_refused():
    with pytest.raises(UnknownNameError):
        read_network("tiny_resnot")


def test_network_that_cannot_be_traced_is_read_for_a_prediction_with_the_reason(tmp_path):
    (tmp_path / "tokens.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    input_shape = (1, 3, 8, 8)\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.patch, self.norm = torch.nn.Conv2d(3, 6, 2, 2), torch.nn.LayerNorm(6)\n"
        "    def forward(self, x):\n"
        "        return self.norm(self.patch(x).flatten(2).transpose(1, 2)).mean(1)\n"
    )
    read = read_graph(f"{tmp_path}/tokens.py:Net", trust_code=True)
    assert "cannot capture node" in read.refusal
    assert read.graph.macs == 16 * 6 * 12
    assert read_graph("tiny_resnet").refusal is None


def test_ncnn_network_is_read_for_a_prediction(tmp_path):
    path = tmp_path / "net.param"
    path.write_text("7767517\n2 2\nInput x 0 1 x 0=8 1=8 2=3\nConvolution c 1 1 x y 0=4 1=1 5=1 6=12\n")
    read = read_graph(str(path))
    assert (read.graph.macs, read.refusal) == (64 * 12, None)
