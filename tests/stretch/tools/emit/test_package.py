import pytest

from predictors.errors import StretchError, UsageError
from stretch.tools.emit.package import captured_sources, check_folder, write_package


def test_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "net").mkdir()
    check_folder(tmp_path / "net")
    (tmp_path / "net" / "mine").touch()
    with pytest.raises(UsageError, match="there is something at"):
        check_folder(tmp_path / "net")
    with pytest.raises(UsageError, match="does not exist"):
        check_folder(tmp_path / "no" / "net")


def test_package_that_computes_something_else_is_not_written(captured, tmp_path):
    result = captured("tiny_resnet")
    sources = captured_sources(result)
    sources.tensors = {key: value * 2 for key, value in sources.tensors.items()}
    with pytest.raises(StretchError, match="computes something else"):
        write_package(tmp_path / "net", sources, result.module, "A network.")
    assert list(tmp_path.iterdir()) == []


def test_package_that_lacks_a_tensor_is_not_written(captured, tmp_path):
    result = captured("tiny_resnet")
    sources = captured_sources(result)
    sources.tensors.popitem()
    with pytest.raises(StretchError, match="the package lacks"):
        write_package(tmp_path / "net", sources, result.module, "A network.")
    assert list(tmp_path.iterdir()) == []
