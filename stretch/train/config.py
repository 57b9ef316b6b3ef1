"""Configuration of a training run."""

from typing import Annotated, Literal

import msgspec

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
    ema: Annotated[float, msgspec.Meta(ge=0, lt=1)] = (
        0.0  # Decay of the moving average of weights, which is evaluated and kept; 0 for none.
    )
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
