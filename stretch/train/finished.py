"""Reopening of a run that has weights."""

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

    ready: Prepared  # Its prepared recipe, with the trained designs.
    weights: dict[str, torch.Tensor]  # The best weights.


def open_run(folder: Path, *, trust_code: bool = False) -> FinishedRun:
    """Open a run for extraction."""
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
