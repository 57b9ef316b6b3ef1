import msgspec
import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from predictors.errors import StretchError  # noqa: E402
from scheduler.bundle.load import load_bundle  # noqa: E402
from scheduler.bundle.statements import MAX_ROUNDING  # noqa: E402
from scheduler.checks.judge import judge  # noqa: E402
from scheduler.checks.sample import read_sample  # noqa: E402
from scheduler.checks.verify import TOLERANCE, random_input, verify_bundle  # noqa: E402
from scheduler.runtime.distance import MARGIN  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.capture import capture  # noqa: E402
from stretch.export.bundle import BundleFacts, export_bundle  # noqa: E402
from stretch.export.checks import check_export  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.designs import identity_design  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def exported(captured, tmp_path):
    found = captured("tiny_resnet")
    model = build(found, identity_design(found.graph))
    manifest = export_bundle(tmp_path / "b", found, model, model, BundleFacts("pixel6", False, "random"), "0.1.0")
    return tmp_path / "b", manifest, found, model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "named"), [("model.onnx", "model"), ("subgraphs/s1.cpu.onnx", "s1.cpu"), ("controls/original.onnx", "original")]
)
def test_file_that_computes_something_else_is_named(exported, file, named):
    folder, manifest, found, model = exported
    proto = onnx.load(folder / file)
    weight = next(t for t in proto.graph.initializer if t.name.endswith(".weight") and len(t.dims) == 4)
    weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * 1.01).astype(np.float32).tobytes()
    onnx.save(proto, folder / file)
    with pytest.raises(StretchError, match=f"export of `{named}` differs"):
        check_export(folder, manifest, found, model, model)


def test_weights_that_blow_roundings_up_are_told_from_a_wrong_file(captured, tmp_path):
    found = captured("tiny_resnet")
    model = build(found, identity_design(found.graph))
    with torch.no_grad():
        # sines of large numbers: two inputs that differ in the last bit give outputs that have nothing in common
        model.register_forward_hook(lambda module, given, output: torch.sin(output * 1e9))
    with pytest.raises(StretchError, match=r"is off by .* in float64: this network amplifies rounding errors"):
        export_bundle(tmp_path / "b", found, model, None, BundleFacts("pixel6", False, "random"), "0.1.0")


class Cancelling(nn.Module):
    """Sums of large numbers that cancel: what is left is as large as what the order of the sums changes makes it uncertain."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.Conv2d(32, 4, 1)
        with torch.no_grad():
            self.head.weight[:, :16], self.head.weight[:, 16:] = size, -size
            self.head.weight[:, 16:] += torch.randn(4, 16, 1, 1)

    def forward(self, x):
        y = self.stem(x)
        z = self.body(y)
        return self.head(torch.cat([z, z], 1))


def test_differences_that_the_order_of_float_sums_explains_are_no_fault_and_others_are(tmp_path):
    torch.manual_seed(0)
    found = capture(Cancelling(1e4).eval(), (1, 3, 24, 24), "cancelling")
    model = build(found, identity_design(found.graph))
    manifest = export_bundle(tmp_path / "b", found, model, None, BundleFacts("pixel6", False, "random"), "0.1.0")
    checks = manifest.checks
    (own,) = [checks["rounding"][name] for name in manifest.outputs]
    assert TOLERANCE < checks["max_error"] <= checks["tolerance"]
    assert TOLERANCE < own < MAX_ROUNDING
    assert verify_bundle(tmp_path / "b").ok
    with Session(tmp_path / "b") as session:
        judge(session, random_input(load_bundle(tmp_path / "b"), 3))
    proto = onnx.load(tmp_path / "b" / "model.onnx")
    bias = next(t for t in proto.graph.initializer if t.name.endswith("head.bias"))
    largest = np.abs(read_sample(checks).values).max()
    bias.raw_data = (np.frombuffer(bias.raw_data, np.float32) + 10 * MARGIN * own * largest).astype(np.float32).tobytes()
    onnx.save(proto, tmp_path / "b" / "model.onnx")
    with pytest.raises(StretchError, match=r"export of `model` differs .* output$"):
        check_export(tmp_path / "b", manifest, found, model, None)


@pytest.mark.slow
def test_output_that_is_not_a_number_fails(exported):
    folder, manifest, found, model = exported
    proto = onnx.load(folder / "model.onnx")
    weight = next(t for t in proto.graph.initializer if t.name.endswith("bias"))
    weight.raw_data = np.full(len(weight.raw_data) // 4, np.nan, np.float32).tobytes()
    onnx.save(proto, folder / "model.onnx")
    with pytest.raises(StretchError, match="`model` differs"):
        check_export(folder, msgspec.structs.replace(manifest, controls={}), found, model, None)
