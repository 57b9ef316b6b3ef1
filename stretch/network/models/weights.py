"""Weights: downloaded with a timeout, hashed and read without pickle; and random ones that make errors in a network visible."""

import contextlib
import hashlib
import os
import re
import socket
import threading
import urllib.request
import warnings
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from predictors.errors import StretchError, first_line, need
from stretch.network.capture.inputs import Inputs, InputShapes

#: Timeout in seconds for resolving a name, for a connection, and for the next bytes.
PATIENCE = 5.0

_CHUNK = 1 << 20


def check_host(host: str) -> None:
    """Raise an error unless a host name resolves.

    The resolver has no timeout of its own, so it runs in a thread.
    """
    if urllib.request.getproxies().get("https"):
        return
    result: list[object] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            result.extend(socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not result:
        raise OSError(f"{host} cannot be reached from here")


def trained_weights_file(url: str, folder: Path | None = None) -> Path:
    """Return the path of the file at `url` in torch's hub folder; download it first if necessary.

    Its name contains the first digits of its SHA-256, as torchvision's do
    (``resnet50-11ad3fa6.pth``), which are checked after a download.
    """
    name = urlsplit(url).path.rpartition("/")[2]
    folder = folder or Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / name
    if path.is_file():
        return path
    if host := urlsplit(url).hostname:
        check_host(host)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{name}.{os.getpid()}.part"
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as source, partial.open("wb") as target:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                target.write(chunk)
        stated = re.search(r"-([0-9a-f]{8,})\.", name)
        if stated and not digest.hexdigest().startswith(stated[1]):
            raise OSError(f"{url} has a wrong hash")
        partial.replace(path)
    except URLError as error:
        raise OSError(f"{url} cannot be fetched: {error.reason}") from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors, by name, from a safetensors file or a torch checkpoint without code.

    A checkpoint may hold them under ``state_dict`` or ``model``. A prefix
    ``module.`` of their names, which data-parallel training adds, is removed.
    """
    need(path.is_file(), f"there is no weights file {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            raw: object = load_file(path)
        else:
            with warnings.catch_warnings(action="ignore"):  # the fault of the file is in the error that follows
                raw = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StretchError(f"cannot read the weights {path}: {error.strerror or error}") from error
    except Exception as error:
        # torch's own messages name its internals, or advise to load such a file although it may contain code
        reason = first_line(error) if path.suffix == ".safetensors" else "it is damaged, or holds more than tensors"
        raise StretchError(
            f"{path} is no weights file: {reason}", "give a .safetensors file or a torch checkpoint that holds tensors alone"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(raw, dict) and isinstance(raw.get(key), dict):
            raw = raw[key]
    if not isinstance(raw, dict) or not raw or not all(isinstance(value, Tensor) for value in raw.values()):
        raise StretchError(f"{path} holds no tensors by name", "save the model's state_dict()")
    tensors = {str(key).removeprefix("module."): value for key, value in raw.items()}
    for key, value in tensors.items():
        if problem := _problem(key, value):
            raise StretchError(f"weight `{key}` in {path} {problem}", "save the model's state_dict()")
        need(not value.is_floating_point() or bool(torch.isfinite(value).all()), f"weight `{key}` in {path} has values that are not finite")
    return tensors


def _problem(key: str, value: Tensor) -> str:
    """Return why a tensor is not a valid weight; empty if it is valid."""
    if value.layout != torch.strided or value.is_quantized:
        return f"is {str(value.layout).removeprefix('torch.')}{' and quantised' if value.is_quantized else ''}, weights are dense"
    if value.is_complex() or value.dtype == torch.bool:
        return f"holds {str(value.dtype).removeprefix('torch.')}, weights are real numbers"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f"of shape {list(value.shape)} has fewer numbers than its shape"
    if key.endswith("running_var") and bool((value < 0).any()):
        return "is a variance and has negative numbers"
    return ""


# Random weights that show what a network computes: activations neither explode nor vanish, and no layer has only zeros.


#: Number of images for the statistics: one of each kind of `_images`.
#: They have the model's own size: smaller images have a larger share of border,
#: and the difference grows from layer to layer.
IMAGES = 2

#: Layers that some networks initialise with zeros.
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def settle(module: nn.Module, input_shape: InputShapes, generator: torch.Generator) -> None:
    """Give every batch norm the statistics of its input, and its own random scale and shift.

    Scales are drawn from 0.8 to 1.2 and shifts from −0.1 to 0.1. With the
    usual 1 and 0 (or 0 and 0 at the end of a residual block) mistakes in them
    would not change any output. Layers whose weights are all 0, such as the
    classifiers of some transformers, get weights of deviation 1 over the root
    of their number of inputs per output. The module is left in evaluation mode.
    """
    module.eval()
    for layer in module.modules():
        if isinstance(layer, _LAYERS) and not layer.weight.any():
            layer.weight.normal_(0, layer.weight[0].numel() ** -0.5, generator=generator)
    norms = [m for m in module.modules() if isinstance(m, _NORMS)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        if norm.affine:
            norm.weight.uniform_(0.8, 1.2, generator=generator)
            norm.bias.uniform_(-0.1, 0.1, generator=generator)
        if norm.track_running_stats:
            norm.reset_running_stats()
            # None gives the plain average over all batches
            norm.momentum = None
            norm.train()
    if not norms:
        return
    try:
        arguments = Inputs.of(input_shape, module)
        arguments.call(module, [_images((IMAGES, *shape[1:]), generator) for shape in arguments.shapes.values()])
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        module.eval()


def _images(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return images of mean 0 and deviation 1: half are white noise, half are smooth colours.

    Spectra of photographs are between these two, so that the statistics suit
    all of them.
    """
    noise = torch.randn(shape, generator=generator)
    if len(shape) != 4:
        return noise
    coarse = torch.randn((*shape[:2], 8, 8), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=shape[2:], mode="bilinear")
    noise[1::2] = (smooth / smooth.std())[1::2]
    return noise
