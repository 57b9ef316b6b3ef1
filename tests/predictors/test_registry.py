"""A registry finds by name, refuses doubles and hints at the closest name."""

import pytest

from predictors.errors import StretchError, UnknownNameError
from predictors.registry import Registry


def test_registered_object_is_found_by_its_name():
    registry = Registry("tool")

    @registry.register("hammer")
    def hammer():
        return "bang"

    assert registry.get("hammer") is hammer
    assert "hammer" in registry
    assert "saw" not in registry


def test_names_are_sorted_whatever_the_order_of_registration():
    registry = Registry("tool")
    for name in ("saw", "axe", "hammer"):
        registry.register(name)(name)
    assert registry.names() == list(registry) == ["axe", "hammer", "saw"]


def test_same_object_may_be_registered_again_under_its_name():
    registry = Registry("tool")
    registry.register("axe")(len)
    assert registry.register("axe")(len) is len


def test_second_object_of_a_name_is_refused():
    registry = Registry("tool")
    registry.register("axe")(len)
    with pytest.raises(StretchError, match="tool `axe` is registered twice"):
        registry.register("axe")(max)
    assert registry.get("axe") is len


def test_unknown_name_hints_at_the_closest():
    registry = Registry("tool")
    registry.register("hammer")(len)
    with pytest.raises(UnknownNameError) as caught:
        registry.get("hamer")
    assert caught.value.hint == "did you mean `hammer`?"
