"""Weights in the order in which the kernels read them."""

import numpy as np

from scheduler.delegates.base import Array


def pack_dense(weight: Array, lanes: int, vc: int, *, blocked_input: bool) -> Array:
    """Weights M×C×KH×KW as [tile][kh][kw][input channel][vc][lane]."""
    m, c, kh, kw = weight.shape
    tiles = -(-m // (lanes * vc))
    width = -(-c // lanes) * lanes if blocked_input else c
    padded = np.zeros((tiles * vc * lanes, width, kh, kw), np.float32)
    padded[:m, :c] = weight
    return np.ascontiguousarray(padded.reshape(tiles, vc * lanes, width, kh, kw).transpose(0, 3, 4, 2, 1))


def pack_stem(weight: Array, lanes: int, vc: int) -> Array:
    """Weights M×C×KH×KW as [tile][c][kh][kw][vc][lane]."""
    m, c, kh, kw = weight.shape
    tiles = -(-m // (lanes * vc))
    padded = np.zeros((tiles * vc * lanes, c, kh, kw), np.float32)
    padded[:m] = weight
    return np.ascontiguousarray(padded.reshape(tiles, vc * lanes, c, kh, kw).transpose(0, 2, 3, 4, 1))


def input_blocks(weight: Array, groups: int, lanes: int, vc: int) -> list[tuple[int, int]]:
    """The blocks of input channels that each tile of a grouped convolution reads, those of all groups that it has a part of."""
    m, per_group, size = weight.shape[0], weight.shape[1], vc * lanes
    step = m // groups
    ranges = []
    for first in range(0, m, size):
        low, high = first // step, (min(m, first + size) - 1) // step
        ranges.append((low * per_group // lanes, ((high + 1) * per_group - 1) // lanes + 1))
    return ranges


def pack_grouped(weight: Array, groups: int, channels: int, lanes: int, vc: int) -> tuple[Array, Array]:
    """Weights of a grouped convolution, a tile of output blocks reading only the input blocks of its groups.

    Where groups and blocks are not aligned, a block holds channels of several
    groups: weights between channels of different groups are zero.
    """
    m, per_group, kh, kw = weight.shape
    step = m // groups
    size = vc * lanes
    blocks = -(-channels // lanes)
    ranges = input_blocks(weight, groups, lanes, vc)
    tiles = len(ranges)
    count = max(stop - start for start, stop in ranges)
    first = [min(start, blocks - count) for start, _ in ranges]
    packed = np.zeros((tiles, kh, kw, count * lanes, size), np.float32)
    for o in range(m):
        t, group = o // size, o // step
        start = group * per_group - first[t] * lanes
        packed[t, :, :, start : start + per_group, o % size] = weight[o].transpose(1, 2, 0)
    return packed, np.asarray(first, np.int32)


def pack_depthwise(weight: Array, lanes: int) -> Array:
    """Weights C×1×KH×KW as [block][kh][kw][lane]."""
    c, _, kh, kw = weight.shape
    blocks = -(-c // lanes)
    padded = np.zeros((blocks * lanes, kh, kw), np.float32)
    padded[:c] = weight[:, 0]
    return np.ascontiguousarray(padded.reshape(blocks, lanes, kh, kw).transpose(0, 2, 3, 1))
