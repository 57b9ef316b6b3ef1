"""One network of half the width, by nn-stretch and by Torch-Pruning, in a process of its own."""

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

#: Rounds of both, in turns, unless another number is asked for.
ROUNDS = 3
#: Largest difference from the masked parent, relative to the largest output, that counts as equal.
EQUAL = 1e-3


def try_network(name: str, rounds: int = ROUNDS, note: Callable[[dict[str, Any]], None] = lambda row: None) -> dict[str, Any]:
    """What became of a network: whether each of both slices it, and the seconds of one core that it takes.

    Args:
        name: Of the network.
        rounds: Of both, in turns.
        note: Told what is known, whenever one of both has ended.
    """
    import torch

    from stretch.models.load import load_model

    torch.manual_seed(0)
    # one thread: its time hardly depends on what else the machine does
    torch.set_num_threads(1)
    loaded = load_model(name, weights="none")
    module, shape = loaded.module.eval(), tuple(loaded.input_shape)
    _drawn(module)
    row: dict[str, Any] = {"network": name, "rounds": rounds, "parameters": sum(parameter.numel() for parameter in module.parameters())}
    contenders: dict[str, Callable[[nn.Module, tuple[int, ...]], tuple[float, dict[str, Any]]]] = {"ours": _ours, "theirs": _theirs}
    seconds: dict[str, list[float]] = {key: [] for key in contenders}
    for number in range(rounds):
        for key in contenders if number % 2 == 0 else reversed(contenders):
            if "failed" in row.get(key, {}):
                continue
            with _caught(row, key):
                # each of both may change what it is given
                taken, result = contenders[key](copy.deepcopy(module), shape)
                seconds[key].append(taken)
                row[key] = result
            for side, second in seconds.items():
                if second and "failed" not in row[side]:
                    row[side]["seconds"] = round(statistics.median(second), 3)
            note(row)
    return row


def _drawn(module: "nn.Module") -> None:
    """Draw weights anew that start at zero or next to it, behind which a mistake would not show."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.abs().max() < 1e-2:
                parameter.normal_(0, 0.1)


@contextlib.contextmanager
def _caught(row: dict[str, Any], key: str) -> Iterator[None]:
    """What stops one of both is why it failed."""
    try:
        yield
    except Exception as error:
        row[key] = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"}


def _ours(module: "nn.Module", shape: tuple[int, ...]) -> tuple[float, dict[str, Any]]:
    """Capture, channel groups and the narrow module."""
    import torch

    from experiments.width_slicing.slicing import distance, sliced
    from stretch.capture import capture

    start = time.process_time()
    captured = capture(module, shape, "net")
    narrow, branch, chosen = sliced(captured)
    seconds = time.process_time() - start
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    apart = distance(captured, narrow, branch, chosen, x)
    if not apart <= EQUAL:
        raise ValueError(f"differs from the masked parent by {apart:.1e}")
    return seconds, {"distance": float(f"{apart:.1e}"), "kept": _share(narrow, module)}


def _theirs(module: "nn.Module", shape: tuple[int, ...]) -> tuple[float, dict[str, Any]]:
    """The dependency graph and one pruning, as Torch-Pruning's examples have it, heads of timm's attention told."""
    import torch
    import torch_pruning
    from torch import nn

    before = sum(parameter.numel() for parameter in module.parameters())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
    attentions = [part for part in module.modules() if isinstance(getattr(part, "qkv", None), nn.Linear) and hasattr(part, "num_heads")]
    start = time.process_time()
    pruner = torch_pruning.pruner.MetaPruner(
        module,
        x,
        importance=torch_pruning.importance.MagnitudeImportance(p=1),
        pruning_ratio=0.5,
        ignored_layers=[last],
        num_heads={part.qkv: part.num_heads for part in attentions},
    )
    pruner.step()
    for part in attentions:
        part.num_heads = pruner.num_heads[part.qkv]
        part.head_dim = part.qkv.out_features // (3 * part.num_heads)
    seconds = time.process_time() - start
    with torch.no_grad():
        out = module(x)
    if not torch.isfinite(out).all():
        raise ValueError("its output is not finite")
    left = sum(parameter.numel() for parameter in module.parameters())
    if left >= before:
        raise ValueError("no parameter was taken")
    return seconds, {"kept": round(left / before, 3)}


def _share(narrow: "nn.Module", module: "nn.Module") -> float:
    """Share of the parameters that is left.

    Raises:
        ValueError: If none was taken.
    """
    left, before = (sum(parameter.numel() for parameter in part.parameters()) for part in (narrow, module))
    if left >= before:
        raise ValueError("no parameter was taken")
    return round(left / before, 3)
