import functools

import pytest


@functools.cache
def _captured(name):
    from stretch.network.capture import capture
    from stretch.network.models.load import load_model

    loaded = load_model(name, weights="none")
    return capture(loaded.module, loaded.input_shape, name)


@pytest.fixture(scope="session")
def captured():
    """Function that captures a registered model with random weights once per session."""
    return _captured
