"""CIFAR-10 as JPEG files in ``.npz`` to plain arrays: `python -m experiments.cifar_accuracy.prepare FOLDER OUT.npz`."""

import argparse
import io
import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def decode(files: list[bytes]) -> NDArray[np.uint8]:
    """Decode JPEG files to images (n, 32, 32, 3)."""
    return np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])


def read(path: Path, pool: ProcessPoolExecutor) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images and labels of one part: `jpeg` (the files one after another), `offsets`, `labels`."""
    with np.load(path, allow_pickle=False) as part:
        data, offsets, labels = part["jpeg"].tobytes(), part["offsets"], part["labels"].astype(np.int64)
    files = [data[a:b] for a, b in itertools.pairwise(offsets)]
    images = np.concatenate(list(pool.map(decode, [files[i : i + 500] for i in range(0, len(files), 500)])))
    return images, labels


def main() -> None:
    """Decode training and test images into one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with train-0.npz, train-1.npz, test.npz")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        parts = [read(options.folder / f"train-{i}.npz", pool) for i in (0, 1)]
        test_images, test_labels = read(options.folder / "test.npz", pool)
    np.savez(
        options.out,
        train_images=np.concatenate([images for images, _ in parts]),
        train_labels=np.concatenate([labels for _, labels in parts]),
        test_images=test_images,
        test_labels=test_labels,
    )


if __name__ == "__main__":
    main()
