import pytest

from predictors.errors import MissingBackendError
from scheduler.boards import ours


def test_nn_stretch_that_was_never_installed_says_so(monkeypatch):
    monkeypatch.setattr(ours, "DISTRIBUTION", "nn-stretch-that-is-not-here")
    with pytest.raises(MissingBackendError, match="known only where it is installed"):
        ours.distribution()
