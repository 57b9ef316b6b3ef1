import subprocess
import sys

import pytest

from stretch.models.names import quick_names


def test_names_found_without_importing_are_those_that_exist():
    pytest.importorskip("torch")
    from stretch.models import model_names

    real = {name for name, family in model_names() if family in ("torchvision", "tiny", "cifar", "timm")}
    assert {name for name in quick_names() if name != "timm:"} == {name for name in real if not name.startswith("timm:")}
    assert set(quick_names("timm:")) == {name for name in real if name.startswith("timm:")}


@pytest.mark.parametrize(("start", "found"), [("tiny_v", ["tiny_vgg"]), ("timm:resnet10t", ["timm:resnet10t"]), ("none such", [])])
def test_only_names_that_start_so_are_given(start, found):
    assert quick_names(start) == found


def test_nothing_heavy_is_imported():
    code = "import sys\nfrom stretch.models.names import quick_names\nquick_names('timm:')\nprint('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
