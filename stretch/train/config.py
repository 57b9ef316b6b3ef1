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
    """Optimiser, schedule and numerics; the defaults are those of paper 003, section 7.2.

    Args:
        epochs: Passes over the training images.
        batch: Images per step, those of all processes together.
        learning_rate: At its highest, for this batch.
        optimizer: ``sgd`` with momentum, or ``adamw``.
        momentum: Of SGD; the first of AdamW's two.
        nesterov: Whether the momentum looks ahead.
        weight_decay: Of every weight.
        warmup_epochs: Epochs of linear rise before the half-cosine.
        label_smoothing: Weight of the uniform distribution in the target.
        accumulate: Parts a batch is cut into, one after another, where memory is short.
        clip: Largest norm of all gradients together; 0 for no limit.
        ema: Decay of the running mean of weights that is evaluated and kept; 0 for none.
        amp: Arithmetic of convolutions on a GPU; weights stay fp32.
        channels_last: Whether activations are stored NHWC.
        graph: Replay each step as one CUDA graph, which small networks need.
        compile: Pass the network through `torch.compile`.
        parallel_branches: Run the branches of a segment on CUDA streams of their own.
        sync_bn: Batch statistics over all processes rather than each its own.
        deterministic: Equal seeds give equal weights on a GPU too, at some cost.
        distill: Weight of the teacher's soft labels in the loss.
        distill_kind: ``soft`` labels, or ``weighted`` by how far the student is behind (the paper's).
        temperature: Of those soft labels.
        features: Weight of the distance to the teacher's tensors at meeting points.
        augment: ``crop`` (shift and mirror), ``mirror``, or ``none``.
        seed: Of order, augmentation and initial weights.
    """

    epochs: _Count = 100
    batch: _Count = 256
    learning_rate: _Positive = 0.2
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    nesterov: bool = True
    weight_decay: _NotNegative = 5e-5
    warmup_epochs: _NotNegative = 0.0
    label_smoothing: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    accumulate: _Count = 1
    clip: _NotNegative = 0.0
    ema: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    amp: Literal["none", "bf16", "fp16"] = "bf16"
    channels_last: bool = True
    graph: bool = True
    compile: bool = False
    parallel_branches: bool = True
    sync_bn: bool = True
    deterministic: bool = False
    distill: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    distill_kind: DistillKind = "soft"
    temperature: _Positive = 1.0
    features: _NotNegative = 0.0
    augment: Literal["crop", "mirror", "none"] = "crop"
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] = 0


class SandwichConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a supernet is sampled.

    Args:
        random: Subnets of the pool in every step, beside the largest and the smallest.
        largest: Whether the largest takes part and teaches the others; without it the
            run's teacher does, which for a start from a trained original is as good and cheaper.
        smallest: Whether the smallest takes part: it bounds the pool from below, and is never used.
        inplace: Weight of the scores of the largest (or the teacher) in the loss of the others; the rest is labels.
        temperature: Of those scores.
    """

    random: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2
    largest: bool = True
    smallest: bool = True
    inplace: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    temperature: _Positive = 1.0
