import numpy as np
import pytest

from predictors.errors import InfeasibleError
from scheduler.bundle.load import load_bundle
from stretch.export.tflite.bundle import export_tflite
from stretch.export.tflite.compare import MARGIN_DB, MIN_COSINE, MIN_COSINE_ROUNDED, OUTPUT, Comparison, compare
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


@pytest.mark.slow
def test_reals_agree_to_rounding_in_every_signature(bundle):
    found = compare(bundle, IMAGES)
    assert found.losses.keys() == {"stem", "s1.cpu", "s1.dsp", "s1.join", "s2.cpu", "s2.dsp", "s2.join", "head", OUTPUT}
    assert min(each.snr_db for each in found.losses.values()) > 100
    assert set(found.least.values()) == {MIN_COSINE}
    found.refuse()


X = np.ones(4, np.float32)
EXACT = Loss(1.0, 200.0)
#: A wrong scale leaves the cosine as it is.
WRONG = loss([(X, X * np.float32(1.2))])


def comparison(least, own, fp32, onnx_fp32):
    return Comparison(
        {"a": EXACT, "b": own}, {"a": EXACT, "b": fp32}, {"a": EXACT, "b": onnx_fp32}, {"a": MIN_COSINE, "b": least}, "runtime"
    )


@pytest.mark.parametrize("least", [MIN_COSINE, MIN_COSINE_ROUNDED])
def test_signature_below_its_bound_is_refused_by_name(least):
    assert WRONG.cosine == pytest.approx(1)
    with pytest.raises(InfeasibleError, match="signature `b`"):
        comparison(least, WRONG, WRONG, EXACT).refuse()


def test_where_both_round_a_lot_being_as_near_to_fp32_is_enough():
    apart, lossy = Loss(0.98, 13.8), Loss(0.979, 13.6)
    comparison(MIN_COSINE_ROUNDED, apart, lossy, Loss(0.98, 13.4)).refuse()
    with pytest.raises(InfeasibleError):
        comparison(MIN_COSINE_ROUNDED, apart, lossy, Loss(0.99, 13.6 + MARGIN_DB + 0.1)).refuse()
    with pytest.raises(InfeasibleError):  # reals have no such excuse
        comparison(MIN_COSINE, apart, lossy, lossy).refuse()
