"""Recipes: a training run as a TOML file that states only differences from the defaults."""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import tomli_w

from predictors.devices import Precision
from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.faults import find_fault
from predictors.files import read_toml
from stretch.network.models.load import is_file
from stretch.planning.config import PlanConfig
from stretch.planning.options import put_setting, read_setting

#: Bounds of factors within which single-precision steps stay finite.
_LEAST, _MOST = 1e-9, 1e9

_Positive = Annotated[float, msgspec.Meta(ge=_LEAST, le=_MOST)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]

#: The random order is seeded by the seed times a million plus the number of the epoch, in 64 bits.
MAX_SEED = (1 << 63) // 1_000_003 - 1_000_000

DistillKind = Literal["soft", "weighted"]


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Optimiser, schedule and numerics; the defaults are those of paper 003, section 7.2."""

    epochs: _Count = 100  # Passes over the training images.
    batch: _Count = 256  # Images per step over all processes.
    learning_rate: _Positive = 0.2  # Maximum learning rate, for this batch size.
    optimizer: Literal["sgd", "adamw"] = "sgd"  # ``sgd`` with momentum, or ``adamw``.
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9  # Momentum of SGD, or β₁ of AdamW.
    nesterov: bool = True  # Whether to use Nesterov momentum.
    weight_decay: _NotNegative = 5e-5  # Weight decay of all weights.
    warmup_epochs: _NotNegative = 0.0  # Epochs of linear warm-up before the cosine schedule.
    label_smoothing: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # Weight of the uniform distribution in the target.
    accumulate: _Count = 1  # Number of parts of a batch for gradient accumulation.
    clip: _NotNegative = 0.0  # Maximum global norm of the gradients; 0 for no limit.
    #: Decay of the moving average of weights, which is evaluated and kept; 0 for none.
    ema: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    amp: Literal["none", "bf16", "fp16"] = "bf16"  # Arithmetic of convolutions on a GPU; weights stay fp32.
    channels_last: bool = True  # Whether activations are stored NHWC.
    graph: bool = True  # Replay each step as one CUDA graph, which is faster for small networks.
    compile: bool = False  # Pass the network through `torch.compile`.
    parallel_branches: bool = True  # Run the branches of a segment on separate CUDA streams.
    sync_bn: bool = True  # Batch statistics over all processes.
    deterministic: bool = False  # Reproducible results on a GPU, at some cost.
    distill: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # Weight of the teacher's soft labels in the loss.
    distill_kind: DistillKind = "soft"  # ``soft`` labels, or ``weighted`` by the student's deficit (the paper's).
    temperature: _Positive = 1.0  # Temperature of the soft labels.
    features: _NotNegative = 0.0  # Weight of the distance to the teacher's tensors at meeting points.
    augment: Literal["crop", "mirror", "none"] = "crop"  # ``crop`` (shift and mirror), ``mirror``, or ``none``.
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] = 0  # Seed of the order, the augmentation and the initial weights.


class SandwichConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sampling of a supernet's subnets."""

    random: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2  # Random subnets per step, in addition to the largest and the smallest.
    #: Whether the largest subnet takes part and teaches the others; otherwise the run's teacher does, which is
    #: as good and cheaper for a trained original.
    largest: bool = True
    smallest: bool = True  # Whether the smallest subnet takes part, which bounds the pool from below.
    #: Weight of the scores of the largest subnet (or the teacher) in the loss of the others; labels have the remaining weight.
    inplace: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    temperature: _Positive = 1.0  # Temperature of these scores.


#: Keys of a recipe whose values are files or folders.
KEYS = ("model", "weights", "trained", "design", "data.path", "supernet.designs", "plan.accuracy")


def root_paths(raw: dict[str, Any], folder: Path) -> None:
    """Make the paths of a recipe absolute."""
    for key in KEYS:
        *parents, last = key.split(".")
        value: Any = raw
        for name in parents:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, dict) and last in value:
            value[last] = resolve_path(key, value[last], folder)


def resolve_path(key: str, value: Any, folder: Path) -> Any:
    """Return the value of a key, as an absolute path if it is a path."""
    if key not in KEYS or value in ("", None):
        return value
    if isinstance(value, list):
        return [resolve_path(key, element, folder) for element in value]
    if not isinstance(value, str) or (key == "weights" and value in ("default", "none")):
        return value
    if key == "model" and not is_file(value) and not value.endswith(".py"):
        return value
    file, colon, factory = value.rpartition(":")
    if key != "model" or not file.endswith(".py"):
        file, colon, factory = value, "", ""
    return f"{folder.absolute() / Path(file).expanduser()}{colon}{factory}"


RECIPE_VERSION = 1

#: Maximum number of classes, twice that of the largest set of ImageNet, because the last layer's memory grows with it.
MAX_CLASSES = 1 << 16
#: Maximum height and width of images in pixels.
MAX_SIZE = 2048
MAX_WORKERS = 1024
#: Maximum number of designs that share a supernet's weights, because each is drawn, checked and stored.
MAX_POOL = 4096


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Images of a run."""

    #: ``synthetic``, ``cifar10``, ``cifar100``, ``arrays`` (an .npz), ``images`` (a folder with ``train`` and ``val``, each with one folder
    #: per class), ``imagenet`` (the same) or ``shards`` (WebDataset).
    name: Literal["synthetic", "cifar10", "cifar100", "arrays", "images", "imagenet", "shards"] = "synthetic"
    path: str = ""  # Folder or file, relative to the recipe.
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)] = 0  # Height and width in pixels; 0 for the model's default input.
    #: ``given``, or ``none`` to learn from the original alone; ``images`` may then be in any folders.
    labels: Literal["given", "none"] = "given"
    #: Without labels: share of images that are held back for comparison, if the set has no such part.
    held_back: Annotated[float, msgspec.Meta(gt=0, le=0.5)] = 0.1
    count: _Count = 2048  # Number of images of a synthetic training set; the test set has a quarter of it.
    workers: Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)] = 8  # Number of processes that decode images.
    bad_limit: Annotated[int, msgspec.Meta(ge=0)] = 100  # Maximum number of unreadable images, after which the run stops.
    device: Literal["auto", "cpu", "cuda"] = "auto"  # Device for the training.


class SupernetConfig(SandwichConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Trains a supernet instead of one network."""

    designs: tuple[str, ...] = ()  # Design files of the pool, relative to the recipe; drawn if empty.
    #: Method of drawing: ``random``, or ``fastest`` for the planner's designs within the limits of ``plan``.
    draw: Literal["random", "fastest"] = "random"
    pool: Annotated[int, msgspec.Meta(ge=1, le=MAX_POOL)] = 8  # Number of designs to draw.
    macs: tuple[float, float] = (0.97, 1.03)  # Range of their multiply-accumulates relative to the original's.
    images: _Count = 2048  # Number of training images for the statistics of an extracted subnet.


class RoundingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Training in the precisions in which the network will run."""

    precision: dict[str, Precision] = {}  # ``fp32``, ``fp16`` or ``int8`` by processor; the plan's precision for all others.
    images: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64  # Number of training images for the ranges of int8.


class KeepConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Output of a run."""

    every: _Count = 1  # Epochs between checkpoints.
    steps: Annotated[int, msgspec.Meta(ge=0)] = 0  # Steps between checkpoints within an epoch; 0 for none.
    last: _Count = 2  # Number of checkpoints to keep, in addition to the best weights.
    evaluate: _Count = 1  # Epochs between evaluations.
    tensorboard: bool = True  # Whether to write TensorBoard events.


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training run."""

    #: A name from `stretch list models`; or Python code, ``file.py:factory`` (relative to the recipe) or ``package.module:factory``. Code
    #: runs only if the command line trusts it.
    model: str
    device: str  # Profile for which the design is planned.
    version: int = RECIPE_VERSION  # Version of this format.
    weights: str = "default"  # Weights of the original: ``default``, ``none`` or a file, relative to the recipe.
    #: Number of classes of the data, if it differs from the model's: the head is then replaced.
    classes: Annotated[int, msgspec.Meta(ge=0, le=MAX_CLASSES)] = 0
    design: str = ""  # A design file, relative to the recipe; planned if empty.
    #: Weights of the branched network: ``inherit`` from the original; ``calibrate``: inherit, then fit layers, joins and statistics to
    #: training images (for a supernet, whose weights belong to many designs, only the statistics); ``trained``: those of the file
    #: `trained`; or ``scratch``.
    start: Literal["inherit", "calibrate", "trained", "scratch"] = "inherit"
    #: Weights of a network of the same design, such as the ``model.safetensors`` of `stretch export`, relative to the recipe.
    trained: str = ""
    plan: PlanConfig = PlanConfig()  # Constraints of the planner.
    data: DataConfig = DataConfig()  # Images.
    train: TrainConfig = TrainConfig()  # Optimiser, schedule, numerics, distillation.
    supernet: SupernetConfig | None = None  # Train many designs at once.
    rounding: RoundingConfig | None = None  # Train with weights and tensors rounded as in the bundle.
    keep: KeepConfig = KeepConfig()  # Checkpoints and logs.


def recipe_folder() -> Path:
    """Return the folder with the recipes of this installation."""
    installed = Path(__file__).parents[1] / "_recipes"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "recipes"


def find_recipe(name: str) -> Path:
    """Return the file of a recipe."""
    path = Path(name)
    if path.is_file():
        return path
    recipes = {file.stem: file for file in recipe_folder().glob("*.toml")}
    if path.stem in recipes and path.parent.name in ("", "recipes"):
        return recipes[path.stem]
    raise UnknownNameError.among("recipe", name, recipes)


def load_recipe(path: Path, changes: tuple[str, ...] = ()) -> Recipe:
    """Read a recipe.

    Files and folders that the recipe names are relative to its own folder; those in
    `changes` are relative to the current folder. In the result they are absolute.

    Args:
        changes: ``key=value`` pairs that replace settings, such as ``train.epochs=5``;
            values are TOML, and strings need no quotes.
    """
    raw = read_toml(path, "recipe")
    if "segments" in raw:
        raise UsageError(f"{path} is a design, not a recipe", f"branch a model with it: stretch branch MODEL --device D --design {path}")
    root_paths(raw, path.parent)
    for change in changes:
        key, value = read_setting(change)
        put_setting(raw, key, resolve_path(key, value, Path.cwd()))
    version = raw.get("version", RECIPE_VERSION)
    if isinstance(version, int) and version > RECIPE_VERSION:
        raise StretchError(f"{path} has recipe version {version}, this nn-stretch reads up to {RECIPE_VERSION}", "upgrade nn-stretch")
    _check_keys(raw, Recipe, "", path)
    try:
        return msgspec.convert(raw, Recipe)
    except msgspec.ValidationError as error:
        problem, hint = find_fault(raw, Recipe) or (str(error), None)
        raise UsageError(f"the recipe {path} cannot be used: {problem}", hint) from error


def recipe_to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML, with every value written out."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(recipe)))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table without None entries, which TOML cannot express; a missing entry means the default."""
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None}


#: Tables that a recipe may leave out.
_OPTIONAL = {"supernet": SupernetConfig, "rounding": RoundingConfig}


def _check_keys(raw: dict[str, Any], kind: Any, prefix: str, path: Path) -> None:
    """Refuse unknown keys, with the closest known key as a hint, and unknown choices."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
            hint = f"did you mean `{prefix}{close[0]}`?" if close else f"known: {', '.join(sorted(fields))}"
            raise UsageError(f"the recipe {path} has the unknown key `{prefix}{key}`", hint)
        if get_origin(fields[key]) is Literal and isinstance(value, str) and value not in get_args(fields[key]):
            choices = get_args(fields[key])
            if (prefix, key) == ("data.", "name"):
                raise UnknownNameError.among("image set", value, choices)
            raise UsageError(f"the recipe {path} has `{prefix}{key}` = `{value}`", f"it is one of {', '.join(choices)}")
        inner = _OPTIONAL.get(key, fields[key]) if not prefix else fields[key]
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _check_keys(value, inner, f"{prefix}{key}.", path)
