"""What models say of the pictures they read, against the libraries' own transforms on the same picture."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")
image = pytest.importorskip("PIL.Image")

import torchvision.models as tv  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing  # noqa: E402
from stretch.api import branch  # noqa: E402
from stretch.models.families import find_family  # noqa: E402
from stretch.models.load import load_model  # noqa: E402
from stretch.models.preprocessing import stated_preprocessing  # noqa: E402
from stretch.planning.config import PlanConfig  # noqa: E402
from stretch.quantize.images import read_images  # noqa: E402

pytestmark = pytest.mark.torch

#: One grey level, in deviations of the smallest deviation used.
GREY_LEVEL = 1 / 255 / 0.2


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
    family, own = find_family(name)
    [found] = read_images(file, family.input_shape(own), family.preprocessing(own))
    return found


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "efficientnet_b0", "efficientnet_b5", "regnet_x_1_6gf", "swin_t", "inception_v3"])
def test_torchvisions_presets_are_followed(name, picture):
    preset = tv.get_model_weights(name).DEFAULT.transforms()
    expected = preset(image.open(picture)).numpy()[None]
    assert np.abs(read(name, picture) - expected).max() < 1.01 * GREY_LEVEL
    assert np.abs(read(name, picture) - expected).mean() < 1e-3


@pytest.mark.parametrize(
    "name", ["resnet50", "mobilenetv3_large_100", "tf_efficientnet_lite4", "convnext_tiny", "vit_base_patch16_clip_224"]
)
def test_timms_configurations_are_followed(name, picture):
    from timm.data import create_transform, resolve_data_config

    config = timm.get_pretrained_cfg(name).to_dict()
    expected = create_transform(**resolve_data_config(pretrained_cfg=config))(image.open(picture)).numpy()[None]
    assert np.abs(read(f"timm:{name}", picture) - expected).max() < 1e-5


def test_squashed_pictures_are_timms(picture):
    from timm.data import create_transform, resolve_data_config

    name = next(n for n in timm.list_models() if (c := timm.get_pretrained_cfg(n)) and c.crop_mode == "squash" and c.input_size[1] < 300)
    config = timm.get_pretrained_cfg(name).to_dict()
    expected = create_transform(**resolve_data_config(pretrained_cfg=config))(image.open(picture)).numpy()[None]
    assert np.abs(read(f"timm:{name}", picture) - expected).max() < 1e-5


def test_every_family_name_has_one_that_a_bundle_can_carry():
    import msgspec

    for name in ("resnet20_cifar10", "resnet56_cifar100", *tv.list_models(module=tv)):
        family, own = find_family(name)
        told = family.preprocessing(own)
        assert msgspec.convert(msgspec.to_builtins(told), Preprocessing) == told


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


def test_module_that_states_nothing_reads_as_for_imagenet():
    assert stated_preprocessing(torch.nn.Linear(1, 1), "mine") == IMAGENET


def test_timm_module_states_its_configuration():
    module = timm.create_model("mobilenetv3_small_050", pretrained=False)
    assert stated_preprocessing(module, "mine") == find_family("timm:mobilenetv3_small_050")[0].preprocessing("mobilenetv3_small_050")


@pytest.mark.parametrize("stated", ["imagenet", {"mean": 0.5}, {"deviation": (1, 1, 1)}, {"std": (1, 0, 1)}])
def test_what_cannot_be_used_is_one_sentence(stated):
    with pytest.raises(StretchError, match="the `preprocessing` of `mine` cannot be used"):
        stated_preprocessing(Own(stated), "mine")


@pytest.mark.slow
def test_it_reaches_calibration_and_the_bundle(tmp_path):
    """Pictures calibrate as arrays do that torchvision made of them."""
    from torchvision import transforms

    mean, std = (0.3, 0.5, 0.7), (0.1, 0.3, 0.2)
    theirs = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor(), transforms.Normalize(mean, std)])
    random = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "arrays").mkdir()
    for i in range(16):
        file = tmp_path / "pictures" / f"{i:02}.png"
        image.fromarray(random.integers(0, 256, (50, 60, 3), np.uint8)).save(file)
        np.save(tmp_path / "arrays" / f"{i:02}.npy", theirs(image.open(file)).numpy())

    def made(folder, out=None):
        module = load_model("tiny_resnet", weights="none").module
        module.preprocessing = {"mean": mean, "std": std, "crop": 0.8}
        config = PlanConfig(alpha=5)
        return branch(module, "pixel6", images=tmp_path / folder, out=out, config=config, input_shape=(1, 3, 32, 32), image_count=16)

    result, expected = made("pictures", tmp_path / "bundle"), made("arrays")
    assert result.calibration
    for one, other in zip(result.calibration, expected.calibration, strict=True):
        assert one.after == pytest.approx(other.after, rel=1e-3)
    assert load_bundle(tmp_path / "bundle").manifest.model.preprocessing == Preprocessing(mean, std, 0.8)
    assert result.to_json()["preprocessing"]["std"] == list(std)
