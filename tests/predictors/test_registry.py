"""A registry finds by name, refuses doubles and hints at the closest name."""

import sys

import pytest

from predictors.errors import StretchError
from predictors.registry import Registry, Rules, import_modules


def test_registered_object_is_found_by_its_name():
    registry = Registry("tool")

    @registry.register("hammer")
    def hammer():
        return "bang"

    assert registry.get("hammer") is hammer
    assert "hammer" in registry
    assert "saw" not in registry


def test_second_object_of_a_name_is_refused():
    registry = Registry("tool")
    registry.register("axe")(len)
    with pytest.raises(StretchError, match="tool `axe` is registered twice"):
        registry.register("axe")(max)
    assert registry.get("axe") is len


def test_modules_of_a_folder_are_imported_with_what_they_register_and_those_below_are_left(tmp_path, monkeypatch):
    for folder in ("shelf_of_tools", "shelf_of_tools/box"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "shelf_of_tools/axe.py").write_text("")
    (tmp_path / "shelf_of_tools/box/nail.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import_modules("shelf_of_tools", [str(tmp_path / "shelf_of_tools")])
    try:
        assert sorted(name for name in sys.modules if name.startswith("shelf_of_tools")) == [
            "shelf_of_tools",
            "shelf_of_tools.axe",
            "shelf_of_tools.box",
        ]
    finally:
        for name in [name for name in sys.modules if name.startswith("shelf_of_tools")]:
            del sys.modules[name]


def test_rule_is_found_by_each_of_its_names():
    rules = Rules()

    @rules.add("saw", "axe")
    def cut():
        return "two"

    assert rules == {"saw": cut, "axe": cut}


def test_rules_may_start_from_those_of_another_table():
    first = Rules()
    first.add("saw")(len)
    second = Rules(first)
    second.add("axe")(len)
    assert (set(first), set(second)) == ({"saw"}, {"saw", "axe"})
