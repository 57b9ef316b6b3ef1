"""Weights files: fetched whole or not at all, read without pickle."""

import hashlib
import http.server
import pickle
import threading

import pytest
import torch
from safetensors.torch import save_file

from predictors.errors import StretchError
from stretch.models.download import check_host, read_weights, trained_weights_file

pytestmark = pytest.mark.torch

CONTENT = b"weights" * 1000


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Address of a local web server of one folder."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def named(content):
    """File name that carries the content's hash, as torchvision's do."""
    return f"net-{hashlib.sha256(content).hexdigest()[:8]}.pth"


def test_file_is_fetched_once_and_then_found(server, tmp_path):
    folder, address = server
    name = named(CONTENT)
    (folder / name).write_bytes(CONTENT)
    path = trained_weights_file(f"{address}/{name}", tmp_path / "hub")
    assert path.read_bytes() == CONTENT
    (folder / name).unlink()
    assert trained_weights_file(f"{address}/{name}", tmp_path / "hub") == path


def test_file_with_another_hash_is_refused_and_nothing_is_left(server, tmp_path):
    folder, address = server
    name = named(CONTENT)
    (folder / name).write_bytes(CONTENT + b"!")
    with pytest.raises(OSError, match="wrong hash"):
        trained_weights_file(f"{address}/{name}", tmp_path / "hub")
    assert list((tmp_path / "hub").iterdir()) == []


def test_file_that_the_server_lacks_is_an_os_error_and_nothing_is_left(server, tmp_path):
    with pytest.raises(OSError, match="cannot be fetched: File not found"):
        trained_weights_file(f"{server[1]}/absent.pth", tmp_path / "hub")
    assert list((tmp_path / "hub").iterdir()) == []


def test_host_that_does_not_resolve_is_an_os_error(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match=r"weights\.invalid cannot be reached"):
        check_host("weights.invalid")


TENSORS = {"conv.weight": torch.arange(4.0), "bn.num_batches_tracked": torch.tensor(3)}


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: {"state_dict": t, "epoch": 3}, lambda t: {"model": {f"module.{k}": v for k, v in t.items()}}]
)
def test_checkpoint_is_read_plain_nested_or_from_data_parallel_training(tmp_path, wrap):
    torch.save(wrap(TENSORS), tmp_path / "net.pth")
    read = read_weights(tmp_path / "net.pth")
    assert read.keys() == TENSORS.keys()
    assert torch.equal(read["conv.weight"], TENSORS["conv.weight"])


class Evil:
    """Would create a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("save", [torch.save, lambda thing, path: path.write_bytes(pickle.dumps(thing))])
def test_checkpoint_that_carries_code_is_refused_and_not_run(tmp_path, save):
    save({"w": Evil(tmp_path / "ran")}, tmp_path / "net.pth")
    with pytest.raises(StretchError, match="is no weights file: it is damaged, or holds more than tensors"):
        read_weights(tmp_path / "net.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
def test_truncated_file_is_refused(tmp_path, name):
    path = tmp_path / name
    (save_file if name.endswith("safetensors") else torch.save)(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StretchError, match="is no weights file"):
        read_weights(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(StretchError, match=r"there is no weights file .*absent\.pth"):
        read_weights(tmp_path / "absent.pth")


def test_value_that_is_not_finite_is_refused_by_name(tmp_path):
    save_file({"conv.weight": torch.tensor([1.0, float("nan")])}, tmp_path / "net.safetensors")
    with pytest.raises(StretchError, match=r"`conv\.weight` .* not finite"):
        read_weights(tmp_path / "net.safetensors")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("conv.weight", torch.eye(3).to_sparse(), "is sparse_coo, weights are dense"),
        ("conv.weight", torch.ones(3, dtype=torch.complex64), "holds complex64"),
        ("conv.weight", torch.ones(3, dtype=torch.bool), "holds bool"),
        ("conv.weight", torch.ones(1).expand(1 << 40), "fewer numbers than its shape"),
        ("bn.running_var", torch.tensor([1.0, -1e-3]), "is a variance and has negative numbers"),
    ],
)
def test_tensor_that_is_no_weight_is_refused_by_name(tmp_path, key, value, problem):
    torch.save({key: value}, tmp_path / "net.pth")
    with pytest.raises(StretchError, match=rf"weight `{key}` .* {problem}"):
        read_weights(tmp_path / "net.pth")


@pytest.mark.parametrize("content", [{}, [1, 2], {"a": "text"}])
def test_file_without_named_tensors_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "net.pth")
    with pytest.raises(StretchError, match="holds no tensors by name"):
        read_weights(tmp_path / "net.pth")
