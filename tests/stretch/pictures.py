"""Images that networks with random weights separate; noise always gets the same class."""

import numpy as np


def coloured(count, seed=0):
    """Draw images of four colours each, (count, 3, 32, 32)."""
    colours = 2 * np.random.default_rng(seed).standard_normal((count, 3, 2, 2))
    return np.kron(colours, np.ones((16, 16))).astype(np.float32)


def folder_of(folder, count):
    """Save `count` images in a folder; return the folder."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "some.npy", coloured(count))
    return folder
