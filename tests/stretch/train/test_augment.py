import pytest

torch = pytest.importorskip("torch")

from stretch.train.augment import Normalise, crop_and_flip  # noqa: E402 - torch may be missing

pytestmark = pytest.mark.torch


def test_every_image_is_one_of_its_own_shifts_or_mirrored_shifts():
    torch.manual_seed(0)
    images = torch.randn(20, 3, 6, 5)
    padded = torch.nn.functional.pad(images, (2,) * 4)
    for index, image in enumerate(crop_and_flip(images, 2)):
        crops = [padded[index, :, y : y + 6, x : x + 5] for y in range(5) for x in range(5)]
        assert any(torch.equal(image, c) or torch.equal(image, c.flip(2)) for c in crops)


def test_shifts_and_mirrors_all_occur():
    torch.manual_seed(0)
    image = torch.arange(25.0).reshape(1, 1, 5, 5).expand(400, 3, 5, 5)
    assert len(torch.unique(crop_and_flip(image, 1), dim=0)) == 18


def test_normalised_images_have_mean_zero_and_deviation_one():
    images = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8)
    mean, deviation = images.float().mean((0, 2, 3)), images.float().std((0, 2, 3), correction=0)
    out = Normalise(mean, deviation, torch.device("cpu"))(images)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
