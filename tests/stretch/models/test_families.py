"""Every family offers names that it can build."""

import subprocess
import sys

import pytest

from predictors.errors import StretchError
from stretch.models.families import families

pytestmark = pytest.mark.torch


def test_second_family_of_a_name_is_refused():
    with pytest.raises(StretchError, match="`tiny` is registered twice"):
        families.register("tiny")(type("Other", (), {}))


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("tiny_resnet", ["torchvision", "timm", "torch._dynamo"]),
        ("resnet20_cifar10", ["torchvision", "timm", "torch._dynamo"]),
        ("resnet18", ["timm"]),
        ("stretch.models.tiny:tiny_vgg", ["torchvision", "timm", "torch._dynamo"]),
    ],
)
def test_model_brings_no_library_that_it_is_not_made_of(name, absent):
    code = (
        "import sys; from stretch.stages.network import read_network\n"
        f"read_network({name!r}, weights='none')\n"
        f"print(sorted(set(sys.modules) & set({absent!r})))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
