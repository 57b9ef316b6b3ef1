import numpy as np
import pytest

from predictors.errors import InfeasibleError
from scheduler.bundle import load_bundle
from stretch.export.tflite.bundle import export_tflite
from stretch.export.tflite.compare import MIN_COSINE, MIN_COSINE_ROUNDED, OUTPUT, Comparison, compare
from stretch.quantize.compare import Loss, loss
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches

pytest.importorskip("ai_edge_litert")

IMAGES = synthetic_images((1, 3, 8, 8), 8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    floats = load_bundle(two_branches(folder / "floats", processors=("cpu", "dsp")))
    export_tflite(floats, folder / "out", IMAGES, "synthetic")
    return load_bundle(folder / "out")


def test_reals_agree_to_rounding_in_every_signature(bundle):
    found = compare(bundle, IMAGES)
    assert found.losses.keys() == {"stem", "s1.cpu", "s1.dsp", "s1.join", "s2.cpu", "s2.dsp", "s2.join", "head", OUTPUT}
    assert min(each.snr_db for each in found.losses.values()) > 100
    assert set(found.least.values()) == {MIN_COSINE}
    found.refuse()


def test_loss_against_the_whole_model_is_that_of_the_same_tensors(bundle):
    """Where the bundle's subgraphs are fp32, its whole model has the same tensors."""
    found = compare(bundle, IMAGES)
    for name, each in found.fp32.items():
        assert each.cosine == pytest.approx(found.losses[name].cosine, abs=1e-9)


def test_signature_below_its_bound_is_refused_by_name():
    x = np.ones(4, np.float32)
    bad = loss([(x, x * np.float32(1.2))])  # a wrong scale leaves the cosine as it is
    assert bad.cosine == pytest.approx(1)
    comparison = Comparison({"a": Loss(1.0, 200.0), "b": bad}, {}, {"a": MIN_COSINE, "b": MIN_COSINE_ROUNDED}, "runtime")
    with pytest.raises(InfeasibleError, match="signature `b`"):
        comparison.refuse()
