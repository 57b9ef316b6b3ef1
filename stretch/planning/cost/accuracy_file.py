"""Files of accuracy predictors, of either kind."""

from pathlib import Path

import msgspec
import numpy as np

from predictors.errors import StretchError
from predictors.files import read_bytes
from stretch.planning.cost import accuracy, sensitivity
from stretch.planning.cost.accuracy import AccuracyPredictor
from stretch.planning.cost.sensitivity import Sensitivity

#: Larger files are not ours.
MAX_BYTES = 1 << 22

_HINT = "give the accuracy.json that `stretch export --rank` or the sensitivity.json that `stretch search --images` wrote"


class _Kind(msgspec.Struct):
    """What every file says of itself."""

    kind: str = "supernet"
    schema: int = 1


def save_accuracy(path: Path, predictor: AccuracyPredictor | Sensitivity) -> None:
    """Write a predictor as JSON, whole or not at all."""
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(predictor), indent=1) + b"\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StretchError(f"cannot write {path}: {error.strerror}") from error


def load_accuracy(path: Path, model: str) -> AccuracyPredictor | Sensitivity:
    """Read a predictor."""
    content = read_bytes(path, "accuracy predictor", MAX_BYTES, _HINT)
    try:
        kind = msgspec.json.decode(content, type=_Kind)
        known = {"supernet": (AccuracyPredictor, accuracy.SCHEMA), "sensitivity": (Sensitivity, sensitivity.SCHEMA)}
        if kind.kind not in known:
            raise StretchError(f"{path} is no accuracy predictor: it says that it is a `{kind.kind}`", _HINT)
        struct, schema = known[kind.kind]
        if kind.schema != schema:
            raise StretchError(f"{path} has schema {kind.schema}, this nn-stretch reads {schema}", "make it anew")
        found: AccuracyPredictor | Sensitivity = msgspec.json.decode(content, type=struct)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path} is no accuracy predictor: {error}", _HINT) from error
    if found.model != model:
        raise StretchError(f"{path} is about `{found.model}`, not `{model}`", "make one for this network")
    if isinstance(found, AccuracyPredictor) and not np.isfinite([found.base, *(w for row in found.weights.values() for w in row)]).all():
        raise StretchError(f"{path} has weights that are no numbers", "fit it anew with `stretch export --rank`")
    return found
