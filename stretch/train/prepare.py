"""Preparation of a recipe: model, design or pool, images, teacher."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from predictors.devices import DeviceProfile, Precision, load_device
from predictors.errors import StretchError, UsageError
from predictors.graph import Op, OpGraph
from stretch.evaluation.sensitivity.blocks import IMAGES, BlockLosses
from stretch.network.capture import Captured, capture
from stretch.network.capture.inputs import is_shape
from stretch.network.capture.trace import RejectedInputError
from stretch.network.models.load import LoadedModel, names_code
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.design.scale import JOIN_CONV, scaled_graph
from stretch.planning.plan import plan
from stretch.stages.design import read_design
from stretch.stages.network import read_network
from stretch.stages.rounded import RoundedModel
from stretch.train.images import ImageSource, Normalise, crop_and_flip, load_data, stored_size
from stretch.train.recipe import Recipe, RoundingConfig
from stretch.train.supernet import Supernet, fastest_designs, random_designs
from stretch.transform.build import build
from stretch.transform.calibrate import calibrate, undivided_design
from stretch.transform.model import BranchedModel
from stretch.transform.refine import fingerprint


def check_recipe(recipe: Recipe) -> None:
    """Refuse unsupported combinations with missing labels, rounding or a trained start, before anything is loaded."""
    train, supernet, starts_trained = recipe.train, recipe.supernet is not None, recipe.start == "trained"
    if starts_trained != bool(recipe.trained):
        raise UsageError(
            "a trained start takes start = trained and the file of weights, `trained`",
            "give both: start = trained, trained = FILE" if starts_trained else "set start = trained, or leave out `trained`",
        )
    needs, rounding = "{} needs labels, and the recipe has data.labels = none", "the recipe asks for rounding, but {}"
    unlabelled, rounded = recipe.data.labels == "none", recipe.rounding is not None
    scratch = "a rounded network keeps the statistics of its batch norms, and fresh ones have none"
    nothing = "without labels there is only the original to learn from, and the recipe asks for nothing of it"
    new_classes = f"a last layer of {recipe.classes} new classes"
    for wrong, problem, hint in (
        (unlabelled and supernet, needs.format("a supernet"), "leave out [supernet], or set data.labels = given"),
        (unlabelled and recipe.classes > 0, needs.format(new_classes), "leave out `classes`, or set data.labels = given"),
        (
            unlabelled and train.distill_kind == "weighted",
            needs.format("train.distill_kind = weighted"),
            "set train.distill_kind = soft",
        ),
        (unlabelled and train.label_smoothing > 0, needs.format("train.label_smoothing"), "leave it out"),
        (unlabelled and train.distill == train.features == 0, nothing, "set train.distill = 1, train.features, or both"),
        (starts_trained and supernet, "a supernet does not start from the weights of one network", "set start = inherit"),
        (
            rounded and supernet,
            rounding.format("many designs share the weights of a supernet"),
            "leave out [supernet] or [rounding]",
        ),
        (
            rounded and train.features > 0,
            rounding.format("tensors at meeting points are not matched where they are rounded"),
            "set train.features = 0",
        ),
        (rounded and recipe.start == "scratch", rounding.format(scratch), "set start = trained, calibrate or inherit"),
    ):
        if wrong:
            raise UsageError(problem, hint)


#: Operators after the head that keep one number per class.
_AFTER = frozenset(
    {
        *("identity", "dropout", "stochastic_depth", "flatten", "unflatten", "softmax", "log_softmax", "relu", "relu6", "sigmoid"),
        *("global_avg_pool", "global_max_pool", "avg_pool", "max_pool"),
    }
)
_HINT = "leave `classes` out of the recipe, or give a model of your own that has them"


def replace_head(captured: Captured, classes: int, seed: int) -> Captured:
    """Change the number of classes of a network.

    The head is the layer whose outputs are the network's result; it is found by following the
    operator graph back from its output. Its new weights
    are initialised as in a new layer of torch: they depend only on the seed, and the
    global random state does not change.
    """
    graph = captured.graph
    name, old = _module(captured, _head(graph))
    new = _new_layer(old, classes, seed)
    where, _, key = name.rpartition(".")
    setattr(captured.module.get_submodule(where), key, new)
    try:
        changed = capture(captured.module, graph.input.shape, graph.name)
    except StretchError as error:
        raise StretchError(f"`{graph.name}` does not work with {classes} classes in `{name}`: {error.message}", _HINT) from error
    output_shape = changed.graph.by_name[changed.graph.output].shape
    if output_shape[1] != classes:
        raise StretchError(f"`{graph.name}` gives {output_shape[1]} numbers an image with {classes} classes in `{name}`", _HINT)
    return changed


def _head(graph: OpGraph) -> Op:
    """Return the operator whose outputs are the classes."""
    op = graph.by_name[graph.output]
    while op.kind in _AFTER:
        op = graph.by_name[op.inputs[0]]
    if op.kind not in ("linear", "conv"):
        raise StretchError(f"the classes of `{graph.name}` come from `{op.name}` ({op.kind}), which cannot be given others", _HINT)
    return op


def _module(captured: Captured, head: Op) -> tuple[str, nn.Linear | nn.Conv2d]:
    """Return the name of the layer that holds the head's weights, and the layer."""
    weight = captured.weights[head.name]["weight"]
    for name, part in captured.module.named_modules():
        if isinstance(part, nn.Linear | nn.Conv2d) and part.weight is weight and name:
            if isinstance(part, nn.Conv2d) and part.groups != 1:
                break
            return name, part
    raise StretchError(f"the classes of `{captured.graph.name}` come from `{head.name}`, which is no plain layer", _HINT)


def _new_layer(old: nn.Linear | nn.Conv2d, classes: int, seed: int) -> nn.Linear | nn.Conv2d:
    """Return a layer like `old` with another number of outputs and torch's default initialisation."""
    bias = old.bias is not None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # seed of the CPU's generator only
        if isinstance(old, nn.Linear):
            return nn.Linear(old.in_features, classes, bias).train(old.training)
        same = {key: getattr(old, key) for key in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
        return nn.Conv2d(old.in_channels, classes, bias=bias, **same).train(old.training)


@dataclass
class TrainingJob:
    """Networks that a recipe trains."""

    recipe: Recipe
    profile: DeviceProfile
    captured: Captured  # The original network.
    weights_source: str  # Source of the original's weights, as in `LoadedModel`.
    designs: list[BranchDesign]  # The design, or the pool of a supernet.
    warnings: list[str]  # Warnings for the user.

    @property
    def identity(self) -> dict[str, str]:
        """Fingerprints that must equal those of a checkpoint for resuming."""
        # Paths, the frequency of checkpoints and the device may change when a run is resumed;
        # designs and weights have separate fingerprints below.
        recipe = msgspec.to_builtins(self.recipe)
        for key in ("path", "workers", "device", "bad_limit"):
            recipe["data"].pop(key)
        recipe.pop("keep")
        recipe.pop("design")
        recipe["model"] = self.captured.graph.name
        for part, key in ((recipe, "weights"), (recipe, "trained"), (recipe["plan"], "accuracy")):
            part[key] = part[key].rpartition("/")[2]
        if recipe["supernet"] is not None:
            recipe["supernet"].pop("designs")
        return {
            "recipe": _digest(msgspec.json.encode(recipe, order="sorted")),
            "design": _digest(msgspec.json.encode(self.designs)),
            "model": fingerprint(self.captured.tensors)[:16],
        }

    @property
    def size(self) -> int:
        """Height and width of the input in pixels."""
        return self.captured.graph.input.shape[2]

    def images(self) -> tuple[ImageSource, ImageSource]:
        """Load the training and test set."""
        graph = self.captured.graph
        return load_data(self.recipe.data, graph.by_name[graph.output].shape[1], self.size)

    def network(self, device: torch.device, images: ImageSource | None) -> nn.Module:
        """Build the network to train on a device: a branched network or a supernet."""
        recipe, scratch = self.recipe, self.recipe.start == "scratch"
        torch.manual_seed(recipe.train.seed)
        if recipe.supernet is not None:
            net = Supernet(self.captured, self.designs, device, scratch=scratch, channels_last=recipe.train.channels_last)
            if recipe.start == "calibrate" and images is not None:
                net.calibrate(sample(images, recipe.supernet.images, recipe.train.seed, device))
            return net.train()
        if scratch:
            return initialise(BranchedModel(self.captured.graph, self.designs[0])).to(device)
        if recipe.start == "trained":
            model = load_trained(BranchedModel(self.captured.graph, self.designs[0]), Path(recipe.trained)).to(device).eval()
        else:
            model = build(self.captured, self.designs[0]).to(device)
        if recipe.start == "calibrate" and images is not None:
            calibrate(model, self.captured, sample(images, 512, recipe.train.seed, device))
        return model if recipe.rounding is None else self.rounded(model, images)

    def rounded(self, model: BranchedModel, images: ImageSource | None) -> RoundedModel:
        """Return a network with the rounding of the recipe."""
        assert self.recipe.rounding is not None
        device = next(model.parameters()).device
        if images is None:
            batches = [torch.randn(2, *self.captured.graph.input.shape[1:], device=device)]
        else:
            normalise = Normalise(*images.moments(), device)
            sample_batches = images.subset(self.recipe.rounding.images).batches(self.recipe.rounding.images)
            batches = [normalise(batch.to(device)) for batch, _ in sample_batches]
        return RoundedModel(model, self.precision, batches)

    @property
    def precision(self) -> dict[str, Precision]:
        """Precision of each processor of the first design: from the recipe's rounding, else from the plan."""
        rounding = self.recipe.rounding.precision if self.recipe.rounding is not None else {}
        planned = self.recipe.plan.precision
        precisions = {}
        for name in self.designs[0].processors:
            processor = self.profile.processor(name)
            requested = next((table[key] for table in (rounding, planned) for key in (name, processor.family) if key in table), None)
            precisions[name] = processor.check_precision(requested)
        return precisions

    def teacher(self) -> nn.Module | None:
        """Return the original if the recipe learns from it, divided at the meeting points if features are matched; None otherwise."""
        train, net = self.recipe.train, self.recipe.supernet
        if train.features > 0:
            return build(self.captured, undivided_design(self.captured, self.designs[0]))
        if train.distill > 0 or (net is not None and not net.largest):
            return copy.deepcopy(self.captured.module)
        return None


def prepare(recipe: Recipe, folder: Path, *, trust_code: bool = False) -> TrainingJob:
    """Load and capture the model, and determine the design."""
    check_recipe(recipe)
    profile = load_device(recipe.device)
    if names_code(recipe.model) and not trust_code:
        raise UsageError(f"the recipe's model `{recipe.model}` is code that would be executed", "add --trust-code if you trust it")

    def shape(loaded: LoadedModel) -> tuple[int, ...]:
        size, stored = recipe.data.size, stored_size(recipe.data)
        if not is_shape(loaded.input_shape) or len(loaded.input_shape) != 4:
            raise _unsupported_network(loaded.name)
        if loaded.input_shape[1] != 3:
            raise UsageError(f"training images have 3 channels, and `{loaded.name}` reads {loaded.input_shape[1]}", _HINT_OWN_LOSS)
        if stored and size and stored != (size, size):
            raise UsageError(f"data.size is {size}, and the images have {stored[0]}×{stored[1]} pixels", "leave out data.size")
        height, width = stored or (size or loaded.input_shape[2], size or loaded.input_shape[3])
        return (1, 3, height, width)

    # designs name their model
    try:
        network = read_network(recipe.model, shape, weights=recipe.weights, seed=recipe.train.seed, trust_code=trust_code).portable
    except RejectedInputError as error:
        raise UsageError(error.message, "recipes train networks of images with 3 channels; data.size is their height and width") from error
    loaded, captured = network.loaded, network.captured
    if len(captured.graph.outputs) > 1 or len(captured.graph.inputs) > 1 or not captured.returned.is_single_tensor:
        raise _unsupported_network(loaded.name)
    warnings = list(loaded.warnings)
    if recipe.classes:
        captured = replace_head(captured, recipe.classes, recipe.train.seed)
    returned = captured.graph.by_name[captured.graph.output].shape
    if recipe.data.labels == "given" and len(returned) != 2:
        raise UsageError(f"`{loaded.name}` returns {'×'.join(map(str, returned))} numbers, and labels need one per class", _HINT_OWN_LOSS)
    taught = recipe.train.distill > 0 or recipe.train.features > 0
    if loaded.weights_source == "random" and (taught or recipe.start != "scratch"):
        warnings.append("the original has random weights: there is nothing to inherit or to learn from it")
    inherited = recipe.start in ("calibrate", "inherit") and loaded.weights_source != "random"
    designs = _designs(recipe, folder, captured, profile, inherited=inherited)
    job = TrainingJob(recipe, profile, captured, loaded.weights_source, designs, warnings)
    if recipe.rounding is not None:
        _check_precision(job, recipe.rounding)
    return job


#: Hint for networks that recipes do not train.
_HINT_OWN_LOSS = "train `Branched.model` with a loss of your own, then save it as a bundle"


def _unsupported_network(name: str) -> UsageError:
    return UsageError(
        f"networks of one image in and one tensor out are trained, and `{name}` is another",
        _HINT_OWN_LOSS,
    )


def _check_precision(job: TrainingJob, rounding: RoundingConfig) -> None:
    """Refuse precisions of processors that the design does not use, and rounding without any effect."""
    used = job.precision
    names = {*used, *(job.profile.processor(name).family for name in used)}
    strange = next((name for name in rounding.precision if name not in names), None)
    if strange is not None:
        raise UsageError(f"rounding.precision names `{strange}`, which the design does not use", f"it uses {', '.join(used)}")
    if set(used.values()) == {"fp32"}:
        raise UsageError(
            f"nothing is rounded: {', '.join(used)} compute in fp32",
            'name a precision, as rounding.precision = { cpu = "int8" }',
        )


def load_trained(model: BranchedModel, file: Path) -> BranchedModel:
    """Load weights of the same design into a network."""
    try:
        model.load_state_dict(load_file(file))
    except (OSError, SafetensorError) as error:
        raise StretchError(
            f"cannot read the weights {file}: {str(error).splitlines()[0]}", "give the model.safetensors that `stretch export` wrote"
        ) from error
    except RuntimeError as error:
        raise StretchError(f"{file} holds the weights of another design than the recipe's", "give its design with `design`") from error
    return model


def initialise(model: nn.Module) -> nn.Module:
    """Initialise every convolution by He et al. 2015, whichever code built the model.

    The convolution of a join has neither a batch norm nor an activation after it, so it keeps the variance of its input. Otherwise the
    activations grow at every join, and training diverges.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            if name.rpartition(".")[2] == JOIN_CONV:
                nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="linear")
            else:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def sample(images: ImageSource, count: int, seed: int, device: torch.device) -> list[torch.Tensor]:
    """Return batches of training images without labels, as the network reads them in training.

    Batch-norm statistics should fit the training inputs, so images are shifted and
    mirrored as in training, and normalised.
    """
    source = images.to(device)
    size = min(256, max(1, len(source) // 2))
    normalise = Normalise(*source.moments(), device)
    generator = torch.Generator(device).manual_seed(seed)
    batches: list[torch.Tensor] = []
    for batch, _ in source.epoch(0, size, seed):
        x = normalise(batch)
        batches.append(x if source.augmented else crop_and_flip(x, 4, generator))
        if sum(len(b) for b in batches) >= count:
            break
    return batches


def _designs(recipe: Recipe, folder: Path, captured: Captured, profile: DeviceProfile, *, inherited: bool) -> list[BranchDesign]:
    """Return the design or pool; a planned design that inherits trained weights keeps the blocks that matter most on training images."""
    net, graph = recipe.supernet, captured.graph
    if net is None and recipe.design:
        return [read_design(folder / recipe.design, graph, profile)]
    if net is None:
        losses = None
        if inherited and recipe.data.name != "synthetic":
            images, _ = load_data(recipe.data, graph.by_name[graph.output].shape[1], graph.input.shape[2])
            losses = BlockLosses(captured, sample(images, IMAGES, recipe.train.seed, torch.device("cpu")))
        return [plan(graph, profile, recipe.plan, losses=losses).design]
    if net.macs[0] > net.macs[1]:
        raise UsageError(f"supernet.macs goes from {net.macs[0]:g} to {net.macs[1]:g}", "write the smaller ratio first")
    if net.designs:
        designs = [read_design(folder / name, graph, profile) for name in net.designs]
        for name, design in zip(net.designs, designs, strict=True):
            ratio = scaled_graph(graph, design).macs / graph.macs
            if not net.macs[0] <= ratio <= net.macs[1]:
                raise StretchError(f"the design {name} has {ratio:.3f} of the original's MACs", "widen supernet.macs, or change the design")
        return designs
    if net.draw == "fastest":
        return fastest_designs(graph, profile, recipe.plan, net.pool, net.macs)
    return random_designs(graph, profile, recipe.plan.processors, net.pool, net.macs, seed=recipe.train.seed)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def macs_ratios(prepared: TrainingJob) -> Sequence[float]:
    """Return the multiply-accumulates of each design relative to the original's."""
    graph = prepared.captured.graph
    return [scaled_graph(graph, design).macs / graph.macs for design in prepared.designs]
