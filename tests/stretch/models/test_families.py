"""Every family offers names that it can build."""

import subprocess
import sys

import pytest
from torch import nn

from predictors.errors import StretchError
from stretch.models.families import each_family, families, find_family, model_names

pytestmark = pytest.mark.torch

FAMILIES = dict(each_family())


def test_own_families_are_registered():
    assert {"torchvision", "timm", "tiny"} <= set(families)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_lists_each_name_once_and_no_name_of_another(name):
    names = FAMILIES[name].names()
    assert len(set(names)) == len(names) > 0
    prefixed = {FAMILIES[name].prefix + n for n in names}
    for other, family in FAMILIES.items():
        if other != name:
            assert prefixed.isdisjoint(family.prefix + n for n in family.names())


@pytest.mark.parametrize("name", FAMILIES)
def test_checked_names_of_a_family_are_among_its_names(name):
    assert FAMILIES[name].checked() <= set(FAMILIES[name].names())


@pytest.mark.parametrize(
    ("asked", "family", "own"),
    [("tiny_vgg", "tiny", "tiny_vgg"), ("resnet18", "torchvision", "resnet18"), ("timm:resnet10t", "timm", "resnet10t")],
)
def test_name_is_found_in_its_family(asked, family, own):
    found, name = find_family(asked)
    assert isinstance(found, families.get(family))
    assert name == own
    assert isinstance(found.build(name), nn.Module)
    assert found.input_shape(name)[:2] == (1, 3)


def test_name_of_no_family_is_not_found():
    assert find_family("timm:no_such_net") is None


def test_wildcard_lists_sorted_names():
    assert model_names("tiny_*net") == [(n, "tiny") for n in ("tiny_efficientnet", "tiny_mobilenet", "tiny_regnet", "tiny_resnet")]


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
