"""The package of the delegates: what its folder holds is found, and its classes are its names."""

import pytest

from scheduler.delegates import delegates


def test_class_of_every_delegate_of_the_folder_is_a_name_of_the_package():
    import scheduler.delegates as package

    ours = [delegates.get(name) for name in delegates if delegates.get(name).__module__.startswith("scheduler.delegates.")]
    assert len(ours) >= 9
    for our in ours:
        assert getattr(package, our.__name__) is our


def test_name_that_is_no_delegate_is_no_name_of_the_package():
    with pytest.raises(ImportError, match="NoSuchDelegate"):
        from scheduler.delegates import NoSuchDelegate  # noqa: F401
