"""Legal work-group sizes of a kernel: the candidates FAST and EXHAUSTIVE of paper 002."""

from dataclasses import dataclass
from math import prod

from predictors.errors import StretchError

#: Three dimensions; a grid of fewer ends with ones.
Size3 = tuple[int, int, int]

#: Fewest work-items of a candidate of EXHAUSTIVE.
LEAST_ITEMS = 32


@dataclass(frozen=True)
class Limits:
    """What a device and a kernel allow."""

    items: int  # Most work-items of a work-group for this kernel (K in paper 002).
    sizes: Size3  # Most work-items in each dimension.

    def allow(self, size: Size3) -> bool:
        """Whether a work-group may have this size."""
        return min(size) >= 1 and prod(size) <= self.items and all(n <= most for n, most in zip(size, self.sizes, strict=True))


def three(grid: tuple[int, ...]) -> Size3:
    """A grid of one to three dimensions as one of three."""
    if not 1 <= len(grid) <= 3 or min(grid) < 1:
        raise ValueError(f"{grid} is no grid of one to three dimensions")
    return (grid[0], grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1)


def greatest_divisor(n: int, most: int) -> int:
    """The largest divisor of `n` up to `most` (`gbd` of paper 002)."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)


def greatest_even_divisor(n: int, most: int = 8) -> int:
    """The first of 8, 4, 2 up to `most` that divides `n`, else its largest divisor up to `most` (`gbdp`)."""
    return next((d for d in (8, 4, 2) if d <= most and n % d == 0), 0) or greatest_divisor(n, most)


def fast(grid: tuple[int, ...], limits: Limits) -> Size3:
    """The one size that FAST takes for a kernel that is no convolution (paper 002, section 4.1)."""
    gx, gy, gz = three(grid)
    z = greatest_even_divisor(gz, min(8, limits.items))
    plane = limits.items // z
    x = min(-(-gx // 2), plane)
    return _within((x, min(plane // x, gy), z), limits)


def fast_convolution(grid: tuple[int, ...], limits: Limits, most_z: int = 16) -> Size3:
    """The one size that FAST takes for a convolution (paper 002, section 4.1).

    Args:
        most_z: Most in the last dimension: 16, on Adreno but the 3xx series 64.
    """
    gx, gy, gz = three(grid)
    z = greatest_divisor(gz, min(most_z, limits.sizes[2], limits.items))
    plane = min(256, limits.items) // z or 1
    x = min(gx, plane)
    y = min(plane // x, gy)
    if y == gy and gy % 2 == 0:
        y = gy // 2
    return _within((x, y, z), limits)


def exhaustive(grid: tuple[int, ...], limits: Limits, loose: bool = False) -> list[Size3]:
    """Every size that EXHAUSTIVE tries (paper 002, section 4.2).

    Triples of divisors of the grid's dimensions with 32 to K work-items; where
    there are none, the grid's parts ⌈g/i⌉ for i from 1 to 4, then 1 to 4 in each dimension.

    Args:
        loose: Also take divisors of a dimension's next five numbers.
    """
    dimensions = three(grid)
    choices = [_divisors(g, 5 if loose else 0) for g in dimensions]
    sizes = [size for size in _triples(choices) if limits.allow(size) and prod(size) >= LEAST_ITEMS]
    if not sizes:
        parts = [sorted({-(-g // i) for i in range(1, 5)}) for g in dimensions]
        sizes = [size for size in _triples(parts) if limits.allow(size)]
    if not sizes:
        sizes = [size for size in _triples([[1, 2, 3, 4]] * 3) if limits.allow(size)]
    if not sizes:
        raise StretchError(f"the device allows no work-group at all for a grid of {dimensions}")
    return sizes


def _triples(choices: list[list[int]]) -> list[Size3]:
    return [(x, y, z) for z in choices[2] for y in choices[1] for x in choices[0]]


def _divisors(n: int, further: int) -> list[int]:
    return sorted({d for m in range(n, n + further + 1) for d in range(1, m + 1) if m % d == 0 and d <= n + further})


def _within(size: Size3, limits: Limits) -> Size3:
    """The size cut down to the device's limits, which the paper's formulas leave to the driver."""
    x, y, z = (max(1, min(n, most)) for n, most in zip(size, limits.sizes, strict=True))
    while x * y * z > limits.items:
        if x >= y and x >= z:
            x = max(1, x // 2)
        elif y >= z:
            y = max(1, y // 2)
        else:
            z = max(1, z // 2)
    return x, y, z
