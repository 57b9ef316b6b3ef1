import pytest

from predictors.errors import StretchError
from tests.scheduler.delegates.opencl import networks


@pytest.mark.slow
def test_newcomer_adds_a_kernel_with_one_file_and_one_function(tmp_path, added_template):
    (tmp_path / "cosine.cl").write_text(networks.COSINE)
    added_template("Cos", networks.cosine("cosine"), tmp_path)
    nodes = [("Relu", ["x"], "r", {}), ("Cos", ["r"], "y", {})]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 9, 5, 3)}, ["y"], {})
    assert "cosine" in networks.kernels(path)
    assert networks.error(path) <= 1e-6


def test_kernel_without_a_file_is_an_error_that_says_where_it_should_be(tmp_path, added_template):
    added_template("Cos", networks.cosine("cosine_of_nowhere"), tmp_path)
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 4, 2, 2)}, ["y"], {})
    with pytest.raises(StretchError, match=r"the kernel `cosine_of_nowhere` has no file cosine_of_nowhere\.cl in .*" + tmp_path.name):
        networks.error(path)
