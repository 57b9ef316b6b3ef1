"""A run that has weights, opened again."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors.torch import load_file

from predictors.errors import StretchError
from stretch.train.folder import BEST, RunFolder
from stretch.train.prepare import Prepared, prepare


@dataclass(frozen=True)
class FinishedRun:
    """A run with its weights."""

    ready: Prepared  # Its recipe, made ready again, with the designs that were trained.
    weights: dict[str, torch.Tensor]  # The best weights.


def open_run(folder: Path, *, trust_code: bool = False) -> FinishedRun:
    """Open a run to take something out of it."""
    run = RunFolder(folder)
    recipe = run.recipe()
    if not (folder / BEST).is_file():
        raise StretchError(f"the run in {folder} has no weights yet", "wait for its first epoch, or go on with `stretch train --resume`")
    stored = tuple(str(path.relative_to(folder)) for path in run.designs())
    net = recipe.supernet
    again = (
        msgspec.structs.replace(recipe, design=stored[0])
        if net is None
        else msgspec.structs.replace(recipe, supernet=msgspec.structs.replace(net, designs=stored))
    )
    ready = prepare(again, folder, trust_code=trust_code)
    if run.facts().get("model") != ready.identity["model"]:
        raise StretchError(f"the weights of `{recipe.model}` are not those the run in {folder} started from", "restore the weights file")
    return FinishedRun(ready, load_file(folder / BEST))
