"""Write networks as bundles in float and in int8, and generate images for them."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import Phase

from scheduler.bundle.load import load_bundle
from stretch.export.bundle import BundleFacts, export_bundle
from stretch.export.precision import Acceptance, export_precision
from stretch.planning.design.branch_design import undivided
from stretch.transform import build

FACTS = BundleFacts("pixel6", False, "random")

#: Without shrinking: an example takes seconds, and a smaller example explains little more.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


def written(folder, result, design):
    export_bundle(folder, result, build(result, design), None, replace(FACTS, controls=False))
    return load_bundle(folder)


def in_int8(bundle, images, *, repair=False):
    precision = {sub.processor: "int8" for sub in bundle.manifest.subgraphs}
    folder = bundle.path.parent / f"{bundle.path.name}_int8"
    export_precision(bundle, folder, precision, images, "random", Acceptance(-1.0, repair))
    return load_bundle(folder)


def images_of(result, count=3):
    generator = np.random.default_rng(5)
    return [generator.normal(size=result.graph.input.shape).astype(np.float32) for _ in range(count)]


def parts_and_whole(folder, result, design, images):
    """A divided network and its undivided twin, both in int8."""
    return tuple(in_int8(written(folder / name, result, item), images) for name, item in (("p", design), ("w", undivided(design))))


def assert_near(session, model, shape):
    """Check that a session and a module give equal results up to rounding."""
    x = torch.randn(shape)
    with torch.inference_mode():
        want = model(x).numpy()
    assert np.abs(session(x.numpy()) - want).max() <= 1e-4 * np.abs(want).max()
