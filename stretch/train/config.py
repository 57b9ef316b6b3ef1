"""What decides a training run."""

from typing import Annotated, Literal

import msgspec

#: No factor of a run that learns is beyond these, and steps in single precision stay finite.
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
    batch: _Count = 256  # Images per step, those of all processes together.
    learning_rate: _Positive = 0.2  # At its highest, for this batch.
    optimizer: Literal["sgd", "adamw"] = "sgd"  # ``sgd`` with momentum, or ``adamw``.
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9  # Of SGD; the first of AdamW's two.
    nesterov: bool = True  # Whether the momentum looks ahead.
    weight_decay: _NotNegative = 5e-5  # Of every weight.
    warmup_epochs: _NotNegative = 0.0  # Epochs of linear rise before the half-cosine.
    label_smoothing: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # Weight of the uniform distribution in the target.
    accumulate: _Count = 1  # Parts a batch is cut into, one after another, where memory is short.
    clip: _NotNegative = 0.0  # Largest norm of all gradients together; 0 for no limit.
    ema: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # Decay of the running mean of weights that is evaluated and kept; 0 for none.
    amp: Literal["none", "bf16", "fp16"] = "bf16"  # Arithmetic of convolutions on a GPU; weights stay fp32.
    channels_last: bool = True  # Whether activations are stored NHWC.
    graph: bool = True  # Replay each step as one CUDA graph, which small networks need.
    compile: bool = False  # Pass the network through `torch.compile`.
    parallel_branches: bool = True  # Run the branches of a segment on CUDA streams of their own.
    sync_bn: bool = True  # Batch statistics over all processes rather than each its own.
    deterministic: bool = False  # Equal seeds give equal weights on a GPU too, at some cost.
    distill: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0  # Weight of the teacher's soft labels in the loss.
    distill_kind: DistillKind = "soft"  # ``soft`` labels, or ``weighted`` by how far the student is behind (the paper's).
    temperature: _Positive = 1.0  # Of those soft labels.
    features: _NotNegative = 0.0  # Weight of the distance to the teacher's tensors at meeting points.
    augment: Literal["crop", "mirror", "none"] = "crop"  # ``crop`` (shift and mirror), ``mirror``, or ``none``.
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] = 0  # Of order, augmentation and initial weights.


class SandwichConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a supernet is sampled."""

    random: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2  # Subnets of the pool in every step, beside the largest and the smallest.
    #: Whether the largest takes part and teaches the others; without it the run's teacher does, which for a start from a trained original
    #: is as good and cheaper.
    largest: bool = True
    smallest: bool = True  # Whether the smallest takes part: it bounds the pool from below, and is never used.
    #: Weight of the scores of the largest (or the teacher) in the loss of the others; the rest is labels.
    inplace: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    temperature: _Positive = 1.0  # Of those scores.
