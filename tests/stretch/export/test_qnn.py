import numpy as np
import pytest

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.checks.verify import random_input, verify_bundle
from scheduler.delegates import DspDelegate
from scheduler.runtime.session import Session
from stretch.export.chips import export_contexts
from stretch.export.precision import export_precision
from stretch.quantize.images import synthetic_images
from tests.scheduler.bundles import two_branches

pytestmark = pytest.mark.qnn


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp")))


@pytest.fixture(scope="module")
def int8(floats, tmp_path_factory):
    out = tmp_path_factory.mktemp("int8") / "bundle"
    export_precision(floats, out, {"dsp": "int8"}, synthetic_images((1, 3, 8, 8), 8), "synthetic")
    return load_bundle(out)


@pytest.fixture(scope="module")
def compiled(int8, tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled") / "bundle"
    steps = []
    export = export_contexts(int8, out, ["sm8350"], steps.append)
    assert steps == ["s1.dsp for sm8350", "s2.dsp for sm8350"]
    assert min(item.cosine for item in export.losses["sm8350"].values()) > 0.9999
    return load_bundle(out, check_hashes=True)


@pytest.mark.slow
def test_code_of_the_bundle_runs_in_the_session_that_asks_for_it(int8, compiled):
    x = random_input(int8)
    with Session(int8) as plain, Session(compiled, delegates={"dsp": DspDelegate(chip="sm8350")}) as coded:
        assert np.allclose(coded(x), plain(x), atol=0.02 * np.abs(plain(x)).max())


def test_bundle_with_code_is_verified_like_any_other(compiled):
    assert verify_bundle(compiled.path).ok
    assert set(compiled.manifest.contexts["sm8350"]) == {"s1.dsp", "s2.dsp"}
    assert compiled.manifest.checks["contexts"]["sm8350"]["s1.dsp"]["cosine"] > 0.9999


def test_chip_that_the_bundle_has_no_code_for_is_named(compiled):
    with pytest.raises(StretchError, match=r"has no code of subgraph `s1.dsp` for sm8550"):
        Session(compiled, delegates={"dsp": DspDelegate(chip="sm8550")})


def test_float_bundle_has_nothing_to_compile(floats, tmp_path):
    with pytest.raises(UsageError, match="no int8 subgraph on a dsp"):
        export_contexts(floats, tmp_path / "out", ["sm8350"])
