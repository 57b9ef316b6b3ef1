"""Subgraphs in other precisions, one by one: their loss is that of the outputs, computed here another way."""

import numpy as np
import pytest

from scheduler.bundle.load import load_bundle
from stretch.export.lowering import LAYER_IMAGES, Lowering
from stretch.quantize.images import synthetic_images
from tests.onnx_runtime import output
from tests.scheduler.bundles import two_branches

IMAGES = synthetic_images((1, 3, 8, 8), 8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("lowering") / "b", processors=("cpu", "dsp", "gpu")))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_loss_is_that_of_the_output_given_what_the_float_form_reads(bundle, precision):
    first = next(sub for sub in bundle.manifest.subgraphs if sub.inputs == bundle.manifest.inputs)
    lowered = Lowering(bundle, {first.name: precision}, IMAGES, lambda *_: None).lower(first)
    want = np.stack([output(bundle.file(first.file), x) for x in IMAGES])
    got = np.stack([output(lowered.model.SerializeToString(), x) for x in IMAGES])
    assert lowered.precision == precision
    assert (lowered.edges is None) == (precision == "fp16")
    assert lowered.loss.snr_db == pytest.approx(20 * np.log10(np.linalg.norm(want) / np.linalg.norm(want - got)), abs=1.0)
    assert len(IMAGES) > LAYER_IMAGES
    assert lowered.layers
