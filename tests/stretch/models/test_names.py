import subprocess
import sys

import pytest

from stretch.models.names import quick_names


@pytest.mark.parametrize(("start", "found"), [("tiny_v", ["tiny_vgg"]), ("timm:resnet10t", ["timm:resnet10t"]), ("none such", [])])
def test_only_names_that_start_so_are_given(start, found):
    assert quick_names(start) == found


def test_nothing_heavy_is_imported():
    code = "import sys\nfrom stretch.models.names import quick_names\nquick_names('timm:')\nprint('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
