"""Names that other programs import, and those other files of the project lean on."""

import importlib
from importlib.metadata import entry_points, version

import pytest

import stretch

PUBLIC = {
    "predictors.errors": ["InfeasibleError", "MissingBackendError", "StretchError", "UnknownNameError", "UsageError"],
    "predictors.graph": ["Op", "OpGraph"],
    "predictors.registry": ["Registry"],
    "stretch.cli": ["app"],
    "stretch.cli.output": ["Output", "verb"],
    "stretch.models": ["Family", "LoadedModel", "families", "load_model", "model_names"],
    "stretch.planning.design": ["BranchDesign", "BranchScale", "SegmentDesign"],
    "stretch.plugins": ["load_plugins"],
}


@pytest.mark.parametrize(("module", "names"), PUBLIC.items(), ids=PUBLIC.keys())
def test_module_has_its_public_names_with_a_docstring(module, names):
    found = importlib.import_module(module)
    assert found.__doc__
    for name in names:
        thing = getattr(found, name)
        assert callable(thing) is False or thing.__doc__, name


def test_version_is_that_of_the_distribution():
    assert stretch.__version__ == version("nn-stretch")


def test_distribution_installs_the_stretch_command():
    assert [point.value for point in entry_points(group="console_scripts", name="stretch")] == ["stretch.cli:app"]
