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

#: Bounds of factors, within which steps in single precision stay finite.
_LEAST, _MOST = 1e-9, 1e9

_Positive = Annotated[float, msgspec.Meta(ge=_LEAST, le=_MOST)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]

#: Orders are drawn from a seed times a million and the number of the epoch, in 64 bits.
MAX_SEED = (1 << 63) // 1_000_003 - 1_000_000

DistillKind = Literal["soft", "weighted"]


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Optimiser, schedule and numerics; the defaults are those of paper 003, section 7.2."""

    epochs: _Count = 100  # Passes over the training images.
    batch: _Count = 256  # Images per step over all processes.
    learning_rate: _Positive = 0.2  # Maximum, for this batch.
    optimizer: Literal["sgd", "adamw"] = "sgd"  # ``sgd`` with momentum, or ``adamw``.
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9  # Of SGD, or β₁ of AdamW.
    nesterov: bool = True  # Whether to use Nesterov momentum.
    weight_decay: _NotNegative = 5e-5  # Of every weight.
    warmup_epochs: _NotNegative = 0.0  # Epochs of linear warm-up before the cosine schedule.
    label_smoothing: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # Weight of the uniform distribution in the target.
    accumulate: _Count = 1  # Number of parts of a batch for gradient accumulation.
    clip: _NotNegative = 0.0  # Maximum global norm of the gradients; 0 for no limit.
    #: Decay of the moving average of weights, which is evaluated and kept; 0 for none.
    ema: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    amp: Literal["none", "bf16", "fp16"] = "bf16"  # Arithmetic of convolutions on a GPU; weights stay fp32.
    channels_last: bool = True  # Whether activations are stored NHWC.
    graph: bool = True  # Replay each step as one CUDA graph, which speeds up small networks.
    compile: bool = False  # Pass the network through `torch.compile`.
    parallel_branches: bool = True  # Run the branches of a segment on separate CUDA streams.
    sync_bn: bool = True  # Batch statistics over all processes.
    deterministic: bool = False  # Reproducible on a GPU, at some cost.
    distill: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # Weight of the teacher's soft labels in the loss.
    distill_kind: DistillKind = "soft"  # ``soft`` labels, or ``weighted`` by the student's deficit (the paper's).
    temperature: _Positive = 1.0  # Of those soft labels.
    features: _NotNegative = 0.0  # Weight of the distance to the teacher's tensors at meeting points.
    augment: Literal["crop", "mirror", "none"] = "crop"  # ``crop`` (shift and mirror), ``mirror``, or ``none``.
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] = 0  # Of the order, the augmentation and the initial weights.


class SandwichConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sampling of a supernet."""

    random: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2  # Random subnets per step, in addition to the largest and the smallest.
    #: Whether the largest takes part and teaches the others; otherwise the run's teacher does, which for a trained original
    #: is as good and cheaper.
    largest: bool = True
    smallest: bool = True  # Whether the smallest takes part: it bounds the pool from below.
    #: Weight of the scores of the largest (or the teacher) in the loss of the others; the rest is labels.
    inplace: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    temperature: _Positive = 1.0  # Of those scores.


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
    """Return the value of a key, absolute if it is a path."""
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

#: Most classes: twice those of the largest set of ImageNet; a last layer takes memory with their number.
MAX_CLASSES = 1 << 16
#: Greatest height and width of images.
MAX_SIZE = 2048
MAX_WORKERS = 1024
#: Designs that share a supernet's weights: each is drawn, checked and kept.
MAX_POOL = 4096


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which images."""

    #: ``synthetic``, ``cifar10``, ``cifar100``, ``arrays`` (an .npz), ``images`` (a folder with ``train`` and ``val``, a folder a class),
    #: ``imagenet`` (the same) or ``shards`` (WebDataset).
    name: Literal["synthetic", "cifar10", "cifar100", "arrays", "images", "imagenet", "shards"] = "synthetic"
    path: str = ""  # Folder or file, relative to the recipe.
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)] = 0  # Height and width; 0 for the model's usual input.
    #: ``given``, or ``none`` to learn from the original alone: then ``images`` may lie in any folders.
    labels: Literal["given", "none"] = "given"
    #: Without labels, share of the images that are not trained on but compared on, where the set has no such part.
    held_back: Annotated[float, msgspec.Meta(gt=0, le=0.5)] = 0.1
    count: _Count = 2048  # Images of a synthetic training set; the test set has a quarter of it.
    workers: Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)] = 8  # Processes that decode images.
    bad_limit: Annotated[int, msgspec.Meta(ge=0)] = 100  # Images that may be unreadable before the run stops.
    device: Literal["auto", "cpu", "cuda"] = "auto"  # Where to train.


class SupernetConfig(SandwichConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A supernet instead of one network."""

    designs: tuple[str, ...] = ()  # Design files of the pool, relative to the recipe; drawn if empty.
    #: How to draw: ``random``, or ``fastest``: what the planner finds within the limits of ``plan``.
    draw: Literal["random", "fastest"] = "random"
    pool: Annotated[int, msgspec.Meta(ge=1, le=MAX_POOL)] = 8  # How many designs to draw.
    macs: tuple[float, float] = (0.97, 1.03)  # Range of their multiply-accumulates over the original's.
    images: _Count = 2048  # Training images for the statistics of an extracted subnet.


class RoundingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Training in the precisions that the network will run in."""

    precision: dict[str, Precision] = {}  # ``fp32``, ``fp16`` or ``int8`` by processor; the plan's assumption for all others.
    images: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64  # Training images that ranges of int8 are taken from.


class KeepConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Output of a run."""

    every: _Count = 1  # Epochs between checkpoints.
    steps: Annotated[int, msgspec.Meta(ge=0)] = 0  # Steps between checkpoints within an epoch; 0 for none.
    last: _Count = 2  # Checkpoints to keep, in addition to the best weights.
    evaluate: _Count = 1  # Epochs between evaluations.
    tensorboard: bool = True  # Whether to write TensorBoard events.


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training run."""

    #: A name of `stretch list models`; or Python code, ``file.py:factory`` (relative to the recipe) or ``package.module:factory``, which runs
    #: only where the command line trusts it.
    model: str
    device: str  # Profile the design is planned for.
    version: int = RECIPE_VERSION  # Of this format.
    weights: str = "default"  # Of the original: ``default``, ``none`` or a file, relative to the recipe.
    #: Classes of the data where they are others than the model's: its head is made again.
    classes: Annotated[int, msgspec.Meta(ge=0, le=MAX_CLASSES)] = 0
    design: str = ""  # A design file, relative to the recipe; planned if empty.
    #: Weights of the branched network: ``inherit`` from the original, ``calibrate`` (inherit, then fit layers, joins and statistics to
    #: training images; of a supernet, whose weights belong to many designs, the statistics alone), ``trained``: those of the file
    #: `trained`, or ``scratch``.
    start: Literal["inherit", "calibrate", "trained", "scratch"] = "inherit"
    #: Weights of a network of the same design, such as the ``model.safetensors`` of `stretch export`, relative to the recipe.
    trained: str = ""
    plan: PlanConfig = PlanConfig()  # Constraints of the planner.
    data: DataConfig = DataConfig()  # Images.
    train: TrainConfig = TrainConfig()  # Optimiser, schedule, numerics, distillation.
    supernet: SupernetConfig | None = None  # Train many designs at once.
    rounding: RoundingConfig | None = None  # Train with weights and tensors rounded as the bundle's will be.
    keep: KeepConfig = KeepConfig()  # Checkpoints and logs.


def recipe_folder() -> Path:
    """Return where the recipes of this installation are."""
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

    Files and folders that the recipe names are relative to its own folder, those
    that a change names to where the command runs. In the result they are absolute.

    Args:
        changes: ``key=value`` pairs that replace its settings, such as ``train.epochs=5``;
            values are TOML, and words may stand without quotes.
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
        fault = find_fault(raw, Recipe)
        raise UsageError(
            f"the recipe {path} cannot be used: {fault.sentence if fault else error}", fault.hint if fault else None
        ) from error


def recipe_to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML, every value written out."""
    return tomli_w.dumps(_without_none(msgspec.to_builtins(recipe)))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table without entries that are None, for which TOML has no word: left out, it is the default."""
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None}


#: Tables that a recipe may do without.
_OPTIONAL = {"supernet": SupernetConfig, "rounding": RoundingConfig}


def _check_keys(raw: dict[str, Any], kind: Any, prefix: str, path: Path) -> None:
    """Refuse keys that a struct does not have, naming the closest, and words that are no choice."""
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
