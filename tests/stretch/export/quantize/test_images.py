import importlib.util
import struct
import zlib

import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.bundle.preprocessing import Preprocessing
from stretch.export.quantize.images import FEWEST, load_images, read_images, synthetic_images

SHAPE = (1, 3, 6, 8)


pictures = pytest.mark.skipif(importlib.util.find_spec("PIL") is None, reason="Pillow is not installed")


def png_that_states(width, height):
    """A PNG of a few bytes whose header states this width and height in pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def arrays(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, *SHAPE[1:])).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", np.zeros((9, 3, 6, 9), np.float32), "the model reads float32 of shape"),
        ("a.npy", np.zeros((9, 3, 6, 8), np.float64), "float64"),
        ("a.npy", np.zeros((9, 3, 6, 8), np.uint8), "uint8"),
        ("a.npy", np.zeros((2, 9, 3, 6, 8), np.float32), "of shape"),
        ("a.npy", np.full((9, 3, 6, 8), np.nan, np.float32), "NaN"),
        ("a.npy", np.float32(1), "of shape"),
        *(
            (name, content, "no plain arrays")
            for name in ("a.npy", "a.npz")
            for content in (b"", b"not an array", np.array([{}]), b"PK\x03\x04broken zip")
        ),
        pytest.param("a.png", b"no picture", r"a\.png is no picture", marks=pictures),
        pytest.param("a.png", png_that_states(60_000, 60_000), "more pixels than a photograph|no picture|too large", marks=pictures),
        pytest.param("a.png", png_that_states(1, 2_000_000), "more pixels than a photograph|no picture|too large", marks=pictures),
    ],
)
def test_file_without_images_of_the_models_shape_is_refused(tmp_path, name, content, message):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        with (tmp_path / name).open("wb") as stream:
            np.save(stream, content, allow_pickle=True)
    with pytest.raises(StretchError, match=message):
        load_images(tmp_path, SHAPE, 100)
    with pytest.raises(StretchError, match="there is no folder"):
        load_images(tmp_path / "nowhere", SHAPE, 100)


@pytest.mark.parametrize(("size", "crop"), [(None, 0.875), (None, 1.0), (37, None), (48, None)])
def test_pictures_are_preprocessed_like_torchvision(tmp_path, size, crop):
    image = pytest.importorskip("PIL.Image")
    transforms = pytest.importorskip("torchvision.transforms")
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    mean, deviation = (0.5, 0.4, 0.3), (0.2, 0.25, 0.5)
    [got] = read_images(tmp_path / "a.png", (1, 3, 32, 32), Preprocessing(mean, deviation, crop or 1.0, size))
    resized = size or round(32 / crop)
    steps = [transforms.Resize(resized), transforms.CenterCrop(32), transforms.ToTensor(), transforms.Normalize(mean, deviation)]
    expected = transforms.Compose(steps)(image.open(tmp_path / "a.png")).numpy()[None]
    assert np.abs(got - expected).max() < 1e-5


def test_arrays_are_read_in_the_order_of_names_and_many_files_are_sampled_evenly(tmp_path):
    many = arrays(30)
    (tmp_path / "c").mkdir()
    np.save(tmp_path / "a.npy", many[0])
    np.save(tmp_path / "b.npy", many[1:5])
    np.savez(tmp_path / "c" / "d.npz", x=many[5:9])
    images = load_images(tmp_path, SHAPE, 100)
    assert np.array_equal(np.concatenate(images), many[:9])
    assert all(image.shape == SHAPE for image in images)
    for i, image in enumerate(many):
        (tmp_path / "many").mkdir(exist_ok=True)
        np.save(tmp_path / "many" / f"{i:02}.npy", image)
    assert np.array_equal(np.concatenate(load_images(tmp_path / "many", SHAPE, 10)), many[::3])


def test_smaller_picture_and_picture_with_other_channels_than_the_model_are_refused(tmp_path):
    pytest.importorskip("PIL.Image").new("RGB", (50, 70)).save(tmp_path / "a.png")
    with pytest.raises(StretchError, match="is smaller than what the model reads, 32×32"):
        read_images(tmp_path / "a.png", (1, 3, 32, 32), Preprocessing((0, 0, 0), (1, 1, 1), 1.0, 20))
    for shape, message in (((1, 1, 8, 8), "reads 1×8×8"), ((1, 3, 900), "reads 3×900")):
        with pytest.raises(StretchError, match=message):
            load_images(tmp_path, shape, 100)


def test_pictures_are_rotated_by_their_exif_orientation(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    upright = np.zeros((40, 20, 3), np.uint8)
    upright[:20] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated by 90°: the first row of pixels is the right-hand side
    for name, pixels, options in (("a_upright.png", upright, {}), ("b_turned.png", np.rot90(upright), {"exif": exif})):
        Image.fromarray(np.ascontiguousarray(pixels)).save(tmp_path / name, **options)
    for i in range(FEWEST):
        Image.fromarray(upright).save(tmp_path / f"c{i}.png")
    first, second, *_ = load_images(tmp_path, SHAPE, 100)
    assert np.array_equal(first, second)
    assert first[0, :, 0].mean() != first[0, :, -1].mean()


def test_grey_picture_of_16_bits_keeps_its_shades(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    shades = np.tile(np.linspace(0, 65535, 8).astype(np.uint16), (6, 1))
    Image.fromarray(shades).save(tmp_path / "deep.png")
    (result,) = read_images(tmp_path / "deep.png", SHAPE, Preprocessing(crop=1.0))
    assert (np.diff(result[0, 0, 0]) > 0).all()


@pytest.mark.parametrize("shape", [(1, 1), (2, 16), (1, 16, 96), (1, 3, 6, 8), (1, 2, 3, 4, 5), (1, 4, 1, 1)])
def test_synthetic_images_have_the_requested_shape_and_differ(shape):
    images = synthetic_images(shape, 4)
    assert [image.shape for image in images] == [shape] * 4
    assert all(np.isfinite(image).all() for image in images)
    assert len({image.tobytes() for image in images}) == 4
