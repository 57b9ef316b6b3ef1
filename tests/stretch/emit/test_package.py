import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from predictors.errors import StretchError, UsageError  # noqa: E402 - torch may be missing
from stretch.emit.network import branched_sources, captured_sources  # noqa: E402
from stretch.emit.package import check_folder, write_package  # noqa: E402
from stretch.transform import build  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch

#: What a machine without nn-stretch finds.
BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("stretch", "scheduler", "predictors"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.slow
def test_package_runs_and_exports_by_torch_where_nn_stretch_is_not_installed(captured, tmp_path):
    found = captured("tiny_mobilenet")
    model = build(found, cpu_and("gpu", found.graph, "sum"))
    files, _ = write_package(tmp_path / "branched", branched_sources(found.graph, model), model, "A network.")
    assert {"__init__.py", "example.py", "model.safetensors", "network.py"} <= set(files)
    x = torch.randn(found.graph.input.shape)
    torch.save({"x": x}, tmp_path / "x.pt")
    code = BLOCKED + (
        "import runpy, torch\n"
        "from branched import load\n"
        "model = load()\n"
        "x = torch.load('x.pt', weights_only=True)['x']\n"
        "torch.save({'y': model(x).detach()}, 'y.pt')\n"
        "runpy.run_module('branched.example')\n"
    )
    # run beside the package, and without the path of the repository
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", f"import sys; sys.path.insert(0, '.')\n{code}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[(1, ")
    with torch.inference_mode():
        want = model(x)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt", weights_only=True)["y"], want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
    program = torch.export.load(tmp_path / "branched.pt2")
    torch.testing.assert_close(program.module()(x), want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def test_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "net").mkdir()
    check_folder(tmp_path / "net")
    (tmp_path / "net" / "mine").touch()
    with pytest.raises(UsageError, match="there is something at"):
        check_folder(tmp_path / "net")
    with pytest.raises(UsageError, match="does not exist"):
        check_folder(tmp_path / "no" / "net")


def test_package_that_computes_something_else_is_not_written(captured, tmp_path):
    found = captured("tiny_resnet")
    sources = captured_sources(found)
    sources.tensors = {key: value * 2 for key, value in sources.tensors.items()}
    with pytest.raises(StretchError, match="computes something else"):
        write_package(tmp_path / "net", sources, found.module, "A network.")
    assert list(tmp_path.iterdir()) == []


def test_package_that_lacks_a_tensor_is_not_written(captured, tmp_path):
    found = captured("tiny_resnet")
    sources = captured_sources(found)
    sources.tensors.popitem()
    with pytest.raises(StretchError, match="the package lacks"):
        write_package(tmp_path / "net", sources, found.module, "A network.")
    assert list(tmp_path.iterdir()) == []
