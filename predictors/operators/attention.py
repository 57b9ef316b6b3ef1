"""Attention: the pixels of a row attend to each other, head by head.

Heads are consecutive channels, the same number for each head. Pixels that
attend to each other are a row: an image of one row for attention over all tokens, one
row per window for attention within windows.
"""

from collections.abc import Sequence

from predictors.channels import Groups, OperatorView, Pieces, freeze_all
from predictors.kinds import KernelWork, Kind, kinds
from predictors.shapes import Attrs, Shape, integer, ints, number, rank4
from predictors.slices import Channels, Slice

#: Weights that are added to the scores, for all heads or for each: learned ones and masks.
ADDED = ("bias", "mask")


def _shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(ins) != 3:
        raise ValueError(f"it needs queries, keys and values, it reads {len(ins)} tensors")
    query, key, value = map(rank4, ins)
    heads = integer(attrs, "heads")
    number(attrs, "scale")
    if heads < 1 or query[1] % heads or value[1] % heads or query[1] != key[1]:
        raise ValueError(f"{heads} heads do not divide queries {query}, keys {key} and values {value}")
    if (query[0], query[2]) != (key[0], key[2]) or (key[0], *key[2:]) != (value[0], *value[2:]):
        raise ValueError(f"its queries {query}, keys {key} and values {value} differ in more than channels")
    if integer(attrs, "keys") != key[3]:
        raise ValueError(f"it states {attrs['keys']} keys, it reads {key[3]}")
    for name in ADDED:
        if name in attrs:
            sizes = ints(attrs, name)
            if len(sizes) != 4 or any(size not in (1, most) for size, most in zip(sizes, (heads, *query[2:], key[3]), strict=True)):
                raise ValueError(f"its {name} {sizes} does not fit {heads} heads and scores of {query[2]}×{query[3]}×{key[3]}")
    return (query[0], value[1], *query[2:])


def _macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    query, key, value = ins
    return query[0] * query[2] * query[3] * key[3] * (query[1] + value[1])


def _work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
    """Return the work of the two products of attention, each with the size of the second."""
    query, key, value = ins
    heads = integer(attrs, "heads")
    reduced = max(1, key[3] * (query[1] + value[1]) // (2 * value[1]))
    return KernelWork("matmul", reduced, value[1] // heads, heads * query[2], 2, query[0] * query[3])


def _channels(groups: Groups, view: OperatorView, ins: Sequence[Pieces]) -> Pieces:
    """Tie the channels of queries, keys and values with one unit per head, and return the channels of the values."""
    if any(len(pieces) != 1 for pieces in ins):
        return freeze_all(groups, view, ins)
    heads = integer(view.attrs, "heads")
    if not groups.tie([pieces[0] for pieces in ins], heads):
        return freeze_all(groups, view, ins)
    return ins[2]


def _of_heads(attrs: Attrs, heads: int) -> Attrs:
    """Return the attributes for another number of heads; an added tensor has a row for each head, or one for all."""
    old_heads = integer(attrs, "heads")
    added = {name: (heads, *ints(attrs, name)[1:]) for name in ADDED if name in attrs and ints(attrs, name)[0] == old_heads > 1}
    return {**attrs, "heads": heads, **added}


def _slices(view: OperatorView, requested: Channels) -> Slice:
    """Return the whole heads that contain the requested channels."""
    heads = integer(view.attrs, "heads")
    written = view.shape[1] // heads
    first, stop = requested.start // written, -(-requested.stop // written)
    reads = tuple(Channels(first * (shape[1] // heads), stop * (shape[1] // heads)) for shape in view.inputs)
    return Slice(reads, Channels(first * written, stop * written), _of_heads(view.attrs, stop - first))


kinds.register("attention")(
    Kind(
        _shape,
        _macs,
        lambda ins, attrs: {name: ints(attrs, name) for name in ADDED if name in attrs},
        channels=_channels,
        slices=_slices,
        work=_work,
        scaled=lambda attrs, narrowed: _of_heads(attrs, narrowed.after * integer(attrs, "heads") // narrowed.before),
        min_inputs=3,
    )
)
