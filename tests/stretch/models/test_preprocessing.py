"""What models say of the pictures they read, against the libraries' own transforms on the same picture."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")
image = pytest.importorskip("PIL.Image")


from predictors.errors import StretchError  # noqa: E402
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing  # noqa: E402
from stretch.models.families import find_family  # noqa: E402
from stretch.models.load import load_model, stated_preprocessing  # noqa: E402
from stretch.quantize.images import read_images  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", params=[(500, 375), (330, 640)], ids=str)
def picture(request, tmp_path_factory):
    """A picture with smooth and sharp parts."""
    width, height = request.param
    random = np.random.default_rng(0)
    small = image.fromarray(random.integers(0, 256, (height // 8, width // 8, 3), np.uint8)).resize((width, height))
    pixels = np.clip(np.asarray(small, np.float64) + random.normal(0, 10, (height, width, 3)), 0, 255).astype(np.uint8)
    file = tmp_path_factory.mktemp("picture") / "a.png"
    image.fromarray(pixels).save(file)
    return file


def read(name, file):
    """What the project makes of a picture for a model."""
    family, current = find_family(name)
    [result] = read_images(file, family.input_shape(current), family.preprocessing(current))
    return result


def test_squashed_pictures_are_timms(picture):
    from timm.data import create_transform, resolve_data_config

    name = next(n for n in timm.list_models() if (c := timm.get_pretrained_cfg(n)) and c.crop_mode == "squash" and c.input_size[1] < 300)
    config = timm.get_pretrained_cfg(name).to_dict()
    expected = create_transform(**resolve_data_config(pretrained_cfg=config))(image.open(picture)).numpy()[None]
    assert np.abs(read(f"timm:{name}", picture) - expected).max() < 1e-5


def test_cifar_networks_read_whole_pictures():
    assert load_model("resnet20_cifar10", weights="none").preprocessing.crop == 1.0
    assert load_model("tiny_resnet", weights="none").preprocessing == IMAGENET


class Own(torch.nn.Module):
    def __init__(self, preprocessing):
        super().__init__()
        self.preprocessing = preprocessing


@pytest.mark.parametrize("stated", [{"mean": (0.5, 0.5, 0.5), "crop": 1}, Preprocessing((0.5, 0.5, 0.5), crop=1.0)])
def test_own_module_states_its_own(stated):
    assert stated_preprocessing(Own(stated), "mine") == Preprocessing((0.5, 0.5, 0.5), crop=1.0)


@pytest.mark.parametrize("stated", ["imagenet", {"mean": 0.5}, {"deviation": (1, 1, 1)}, {"std": (1, 0, 1)}])
def test_what_cannot_be_used_is_one_sentence(stated):
    with pytest.raises(StretchError, match="the `preprocessing` of `mine` cannot be used"):
        stated_preprocessing(Own(stated), "mine")
