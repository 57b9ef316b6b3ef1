"""Images that networks with random weights separate: noise has one class alone."""

import numpy as np


def coloured(count, seed=0):
    """Images of four colours each, (count, 3, 32, 32)."""
    colours = 2 * np.random.default_rng(seed).standard_normal((count, 3, 2, 2))
    return np.kron(colours, np.ones((16, 16))).astype(np.float32)


def folder_of(folder, count):
    """A folder of so many."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "some.npy", coloured(count))
    return folder
