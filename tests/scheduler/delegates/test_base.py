import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.delegates import CpuDelegate, Delegate, delegates, get_delegate, load_plugins


def installed(tmp_path, monkeypatch, name, target, code=""):
    """An installed package with one entry point in our group."""
    info = tmp_path / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[nn_stretch.delegates]\n{name} = {target}\n")
    (tmp_path / f"{name}_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)


THEIRS = """
from scheduler.delegates.null import NullDelegate

class Theirs(NullDelegate):
    summary = "from another package"
"""


@pytest.fixture
def clean_registry(monkeypatch):
    """The registry as it was, whatever the test loads."""
    monkeypatch.setattr(delegates, "_items", dict(delegates._items))


def test_delegate_of_another_package_is_found_by_its_entry_point(tmp_path, monkeypatch, clean_registry):
    installed(tmp_path, monkeypatch, "theirs_ok", "theirs_ok_module:Theirs", THEIRS)
    assert get_delegate("theirs_ok").summary == "from another package"
    assert load_plugins() == {}
    assert "theirs_ok" in delegates


@pytest.mark.parametrize(
    ("name", "target", "code", "told"),
    [
        ("nowhere", "no_such_module:X", "", "ModuleNotFoundError"),
        ("crashing", "crashing_module:X", "1 / 0", "ZeroDivisionError"),
        ("notours", "notours_module:X", "X = 3", "is not a Delegate"),
        ("cpu", "cpu_module:Theirs", THEIRS, "the name is taken"),
    ],
)
def test_broken_package_is_reported_and_takes_nothing_away(tmp_path, monkeypatch, clean_registry, name, target, code, told):
    installed(tmp_path, monkeypatch, name, target, code)
    assert told in load_plugins()[name]
    assert get_delegate("cpu") is CpuDelegate


@pytest.mark.representatives(18)
@pytest.mark.parametrize(
    ("inputs", "outputs", "told"),
    [
        ([], [np.zeros((1, 6, 8, 8), np.float32)], "1 inputs, 0 buffers"),
        ([np.zeros((1, 3, 8, 8), np.float32)], [np.zeros((1, 6, 8, 9), np.float32)], "output `t0` has shape"),
        ([np.zeros((1, 3, 8, 16), np.float32)[..., ::2]], [np.zeros((1, 6, 8, 8), np.float32)], "not contiguous"),
    ],
)
@pytest.mark.parametrize(
    "name", [name for name in delegates if "fp32" in delegates.get(name).precisions and delegates.get(name).form == "onnx"]
)
def test_every_delegate_refuses_buffers_that_do_not_fit(bundle_dir, name, inputs, outputs, told):
    delegate: Delegate = delegates.get(name)()
    with pytest.raises(StretchError, match=told):
        delegate.compile(bundle_dir / "stem.onnx").bind(inputs, outputs)


@pytest.mark.representatives(24)
@pytest.mark.parametrize("name", sorted(delegates))
@pytest.mark.parametrize("content", [None, b"", b"not onnx at all"])
def test_every_delegate_refuses_a_file_that_is_no_model(tmp_path, name, content):
    file = tmp_path / "m.onnx"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StretchError):
        delegates.get(name)().compile(file)


@pytest.mark.parametrize("name", [name for name in delegates if not delegates.get(name).tunes])
def test_delegate_without_kernels_of_its_own_says_that_it_has_nothing_to_tune(bundle_dir, name):
    with pytest.raises(StretchError, match=r"has nothing to tune in subgraph `s1\.gpu`"):
        delegates.get(name)().tuning_from(load_bundle(bundle_dir), "s1.gpu", "fast")
