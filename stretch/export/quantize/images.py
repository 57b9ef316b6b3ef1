"""Calibration images: a folder of pictures or arrays, or synthetic images for random weights."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictors.errors import MissingBackendError, StretchError, need
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing

Array = NDArray[np.float32]

#: Minimum number of images to find the range of activations.
FEWEST = 8

ARRAYS = (".npy", ".npz")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")

#: Maximum size of a file of calibration images, bytes.
MAX_BYTES = 4 << 30


def load_images(folder: Path, shape: Sequence[int], limit: int, preprocessing: Preprocessing = IMAGENET) -> list[Array]:
    """Return up to `limit` images of a folder, sorted by name and spread evenly over all files.

    Folders are often sorted by class, so the first files would show few classes.
    Pictures are rotated by their EXIF data, resized, cropped at the centre and normalised.
    Arrays (``.npy``, ``.npz``) hold model inputs: float32, one image as
    channels × height × width or a batch of images, already normalised.

    Args:
        shape: The model's input shape, batch (1) first.
    """
    files = image_files(folder)
    images: list[Array] = []
    for file in files if len(files) <= limit else [files[i * len(files) // limit] for i in range(limit)]:
        if len(images) >= limit:
            break
        images += read_images(file, shape, preprocessing)
    if len(images) < FEWEST:
        raise StretchError(
            f"{folder} has {len(images)} calibration images, at least {FEWEST} are needed",
            f"add images that the model will meet ({', '.join((*ARRAYS, *PICTURES))})",
        )
    return images[:limit]


def image_files(folder: Path) -> list[Path]:
    """Return the image files of a folder, sorted by name; refuse a folder without any."""
    if not folder.is_dir():
        raise StretchError(f"there is no folder {folder} with calibration images", "give a folder of pictures or .npy arrays with --images")
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (*ARRAYS, *PICTURES) and path.is_file())
    need(bool(files), f"{folder} has no calibration images", f"it holds files that end in {', '.join((*ARRAYS, *PICTURES))}")
    return files


def read_images(file: Path, shape: Sequence[int], preprocessing: Preprocessing = IMAGENET) -> list[Array]:
    """Return the images in one file: a picture, or the arrays of a ``.npy`` or ``.npz``, which are not preprocessed.

    Args:
        shape: The model's input shape, batch (1) first.
    """
    return _arrays(file, shape) if file.suffix.lower() in ARRAYS else [_picture(file, shape, preprocessing)]


def fingerprint(image: Array) -> str:
    """Return a hash of a preprocessed image."""
    return hashlib.sha256(np.ascontiguousarray(image).data).hexdigest()[:16]


def synthetic_images(shape: Sequence[int], count: int, seed: int = 0) -> list[Array]:
    """Return synthetic images with mean 0 and deviation 1: alternately white noise and smooth colours; only noise for inputs without a plane.

    Args:
        shape: The model's input shape, batch (1) first.
    """
    random = np.random.default_rng(seed)
    images = []
    for i in range(count):
        if i % 2 == 0 or len(shape) < 3 or max(shape[-2:]) == 1:
            image = random.standard_normal(shape)
        else:
            rows, columns = (np.linspace(0, 7, n) for n in shape[-2:])
            image = _bilinear(random.standard_normal((*shape[:-2], 8, 8)), rows, columns)
            image /= image.std()
        images.append(image.astype(np.float32))
    return images


def _bilinear(coarse: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any]) -> NDArray[Any]:
    top, left = np.minimum(rows.astype(int), 6), np.minimum(columns.astype(int), 6)
    down, right = (rows - top)[:, None], columns - left
    upper = coarse[..., top, :][..., left] * (1 - right) + coarse[..., top, :][..., left + 1] * right
    lower = coarse[..., top + 1, :][..., left] * (1 - right) + coarse[..., top + 1, :][..., left + 1] * right
    return np.asarray(upper * (1 - down) + lower * down)


def _arrays(file: Path, shape: Sequence[int]) -> list[Array]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False) if size <= MAX_BYTES else None
            arrays = [] if loaded is None else [loaded[key] for key in loaded.files] if file.suffix.lower() == ".npz" else [loaded]
    except OSError as error:
        raise StretchError(f"cannot read {file}: {error.strerror or error}") from error
    except Exception as error:  # zip, header and pickle errors share no base class
        raise StretchError(f"{file} holds no plain arrays", "write it with numpy.save(path, array)") from error
    if size > MAX_BYTES:
        raise StretchError(f"{file} is larger than {MAX_BYTES >> 30} GB", "calibrate with fewer images a file")
    image_shape = tuple(shape[1:])
    images: list[Array] = []
    for array in arrays:
        if (
            array.shape[-len(image_shape) :] != image_shape
            or array.ndim not in (len(image_shape), len(image_shape) + 1)
            or array.dtype != np.float32
        ):
            raise StretchError(
                f"{file} holds {array.dtype} of shape {list(array.shape)}, the model reads float32 of shape {list(image_shape)}",
                "store normalised images as float32, channels first",
            )
        if not np.isfinite(array).all():
            raise StretchError(f"{file} contains NaN or infinity")
        images += list(np.ascontiguousarray(array).reshape(-1, 1, *image_shape))
    return images


def _picture(file: Path, shape: Sequence[int], preprocessing: Preprocessing) -> Array:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingBackendError(
            "reading pictures needs Pillow, which is not installed", "`pip install pillow`, or give .npy arrays"
        ) from error
    if len(shape) != 4 or shape[1] != 3:
        raise StretchError(f"{file} is a picture, and the model reads {'×'.join(map(str, shape[1:]))}", "give .npy arrays with --images")
    height, width = shape[2:]
    try:
        with warnings.catch_warnings():
            # Pillow also warns of pictures at half the refused size
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file) as opened:
                picture = _colours(ImageOps.exif_transpose(opened))
    except Image.DecompressionBombError as error:
        raise StretchError(f"{file} has more pixels than a photograph", "make it smaller, or remove it from the folder") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise StretchError(f"{file} is no picture that can be read", "remove it from the folder") from error
    size = preprocessing.resized_size(picture.width, picture.height, (width, height))
    picture = picture.resize(size, Image.Resampling[preprocessing.interpolation.upper()])
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    pixels = np.asarray(picture.crop((left, top, left + width, top + height)), np.float32) * np.float32(preprocessing.range / 255)
    normal = (pixels - np.array(preprocessing.mean, np.float32)) / np.array(preprocessing.std, np.float32)
    ordered = normal if preprocessing.channels == "rgb" else normal[..., ::-1]
    return np.ascontiguousarray(ordered.transpose(2, 0, 1)[None], np.float32)


def _colours(picture: Any) -> Any:
    """Return a picture of any mode in RGB; Pillow alone would clip 16-bit greys at 255."""
    from PIL import Image

    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture, np.float64) / 257).round().clip(0, 255).astype(np.uint8))
    return picture.convert("RGB")
