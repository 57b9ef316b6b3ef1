import numpy as np
import pytest
import torch
from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.network.capture import capture
from stretch.network.models.load import load_model
from stretch.train.images import ImageSet, Normalise
from stretch.train.loop import evaluate
from stretch.train.prepare import initialise, macs_ratios, prepare, replace_head, sample
from stretch.train.recipe import TrainConfig, load_recipe
from stretch.train.supernet import Supernet
from tests.stretch.network.capture.patterns import Calling
from tests.stretch.train.recipes import BODY, network, supernet

MINE = "from stretch.network.models.tiny import tiny_resnet\n\n\ndef make():\n    return tiny_resnet()\n"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mine.py:make", "stretch.network.models.tiny:tiny_resnet"])
def test_python_code_of_a_recipe_runs_only_if_trusted(tmp_path, model):
    (tmp_path / "mine.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n{MINE}")
    path, design = network(tmp_path), tmp_path / "d.toml"
    # the design fits any model
    design.write_text(design.read_text().replace('model = "tiny_resnet"\n', ""))
    path.write_text(path.read_text().replace("tiny_resnet", model, 1))
    with pytest.raises(UsageError, match="would be executed") as error:
        ready(path)
    assert "--trust-code" in error.value.hint
    assert not (tmp_path / "ran").exists()
    built = prepare(load_recipe(path), path.parent, trust_code=True)
    assert built.captured.graph.by_name[built.captured.graph.output].shape == (1, 10)


def test_network_that_reads_other_images_is_refused_without_an_option_that_train_lacks(tmp_path):
    layers = "nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)"
    (tmp_path / "mine.py").write_text(f"from torch import nn\n\n\ndef make():\n    return nn.Sequential({layers})\n")
    path = network(tmp_path)
    path.write_text(path.read_text().replace("tiny_resnet", "mine.py:make", 1))
    with pytest.raises(UsageError, match="rejects an input") as error:
        prepare(load_recipe(path), path.parent, trust_code=True)
    assert "3 channels" in error.value.hint
    assert "--" not in error.value.hint


def ready(path, *changes):
    return prepare(load_recipe(path, changes), path.parent)


@pytest.mark.slow
def test_identity_depends_on_recipe_design_and_weights_and_not_on_paths(tmp_path):
    path = network(tmp_path)
    one = ready(path).identity
    assert ready(path, "data.workers=3", "keep.last=9", "data.path=elsewhere").identity == one
    other = ready(path, "train.seed=5").identity
    assert {key: other[key] == one[key] for key in ("recipe", "model", "design")} == {"recipe": False, "model": False, "design": True}


@pytest.mark.slow
def test_calibrated_inherited_and_scratch_starts_differ(tmp_path):
    path, weights = network(tmp_path), []
    for start in ("inherit", "calibrate", "scratch"):
        built = ready(path, f"start={start}")
        net = built.network(torch.device("cpu"), built.images()[0])
        weights.append(net.branch("s2", "cpu").get_submodule("join_conv").weight)
    assert not any(torch.equal(weights[0], other) for other in weights[1:])


def test_pool_of_a_supernet_has_its_design_files_and_stays_in_its_range(tmp_path):
    path = supernet(tmp_path)
    built = ready(path)
    assert isinstance(built.network(torch.device("cpu"), None), Supernet)
    assert all(0.8 <= ratio <= 1.2 for ratio in macs_ratios(built))
    with pytest.raises(StretchError, match="of the original's MACs"):
        ready(path, "supernet.macs=[0.1, 0.2]")
    with pytest.raises(UsageError, match=r"from 1\.2 to 0\.8"):
        ready(path, "supernet.macs=[1.2, 0.8]")


def test_images_for_statistics_are_prepared_as_in_training(tmp_path):
    built = ready(network(tmp_path))
    batches = sample(built.images()[0], 40, 0, torch.device("cpu"))
    assert 40 <= sum(len(b) for b in batches) <= 64
    # Shifted images have borders of zeros, and zero is the mean.
    assert any(bool((b[:, :, 0] == 0).all(1).all(1).any()) for b in batches)


def test_new_head_does_not_depend_on_earlier_random_numbers(tmp_path):
    path = network(tmp_path)
    rows = []
    for state in (1, 2):
        torch.manual_seed(state)
        rows.append(ready(path, "classes=7"))
    one, two = (row.captured.module.state_dict() for row in rows)
    assert one["fc.weight"].shape[0] == len(one["fc.bias"]) == 7
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert rows[0].identity == rows[1].identity
    assert ready(path, "classes=7", "train.seed=9").identity["model"] != rows[0].identity["model"]


class AuxiliaryLast(nn.Module):
    """The head is registered first; the last registered linear layer is inside of the network."""

    def __init__(self):
        super().__init__()
        self.classify, self.stem, self.gate = nn.Linear(4, 10), nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x):
        x = self.stem(x).mean((2, 3))
        return self.classify(x * self.gate(x).sigmoid())


def changed(module, classes=7, seed=3, size=32):
    return replace_head(capture(module.eval(), (1, 3, size, size)), classes, seed).module


def test_layer_of_the_result_is_replaced_in_any_registration_order_without_random_numbers():
    module, before = AuxiliaryLast(), torch.random.get_rng_state()
    module = changed(module)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (module.classify.out_features, module.gate.out_features) == (7, 4)
    assert module.eval()(torch.rand(2, 3, 8, 8)).shape == (2, 7)


@pytest.mark.parametrize("name", ["squeezenet1_1", "timm:mobilenetv3_small_050"])
def test_convolutional_and_linear_heads_of_real_networks_get_the_number_of_classes(name):
    built = changed(load_model(name, weights="none").module, 6, size=64)
    assert built(torch.rand(1, 3, 64, 64)).shape == (1, 6)
    assert not built.training


TWO_HEADS = Calling(lambda x, one, two: (one(x) + two(x)).mean((2, 3)), nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1))
FIXED_VIEW = Calling(lambda x, layer: layer(x.mean((2, 3), keepdim=True)).view(-1, 4), nn.Conv2d(3, 4, 1))


@pytest.mark.parametrize(("module", "reason"), [(TWO_HEADS, "add"), (FIXED_VIEW, "with 7 classes in `part0`")])
def test_head_that_cannot_be_replaced_is_named(module, reason):
    with pytest.raises(StretchError, match=reason) as error:
        changed(module)
    assert "classes" in error.value.hint


def test_initial_joins_keep_the_variance_that_arrives():
    """For any shape of join; growing variance at each join made training diverge."""
    model = nn.Sequential()
    model.add_module("join_conv", nn.Conv2d(256, 16, 1))
    torch.manual_seed(0)
    x = torch.randn(8, 256, 8, 8)
    assert initialise(model)(x).std().item() == pytest.approx(1, rel=0.15)


def test_network_is_captured_at_the_size_of_stored_images_and_another_one_is_refused(tmp_path):
    path, file = network(tmp_path), tmp_path / "images.npz"
    np.savez(file, train_images=np.zeros((4, 20, 24, 3), np.uint8))
    stored = ("data.name=arrays", f"data.path={file}")
    assert ready(path, *stored, "data.size=0").captured.graph.input.shape == (1, 3, 20, 24)
    assert ready(path, "data.name=cifar10", "data.size=0").size == 32
    with pytest.raises(UsageError, match="20×24 pixels"):
        ready(path, *stored)


def test_map_of_classes_is_refused_with_labels_and_its_agreement_is_that_of_pixels(tmp_path):
    (tmp_path / "mine.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1))\n")
    path = tmp_path / "map.toml"
    path.write_text('model = "mine.py:make"\ndevice = "mi9"\n' + BODY)
    with pytest.raises(UsageError, match="5×16×16 numbers"):
        prepare(load_recipe(path), tmp_path, trust_code=True)
    model, images = nn.Conv2d(3, 5, 3, padding=1), torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    held_back = ImageSet.of(images, torch.zeros(4, dtype=torch.int64), 5)
    normalise = Normalise(*held_back.moments(), torch.device("cpu"))
    assert evaluate(model, held_back, normalise, TrainConfig(channels_last=False), model.eval()) == 1
