"""Draws `docs/images/bands.svg`: bands of rows through three convolutions, by the project's own rules of rows.

``python docs/make_bands_picture.py`` writes the picture, ``--check`` only says whether it is as it would be written.
"""

import sys
from pathlib import Path

from predictors.graph import Op, OpGraph
from predictors.rows import Rows
from predictors.shapes import Attr
from stretch.planning.divisions.rows import bands_of

PICTURE = Path(__file__).parent / "images" / "bands.svg"

ROWS = 14
BANDS = {"upper": (0, 8), "lower": (8, ROWS)}
COLOURS = {"upper": "#4a7db5", "lower": "#d08a3e", "both": "#8a8a8a"}
TITLES = ("what arrives", "convolution 1", "convolution 2", "output")

#: Width, height and distance of what is drawn, in pixels.
CELL, WIDE, STEP, LEFT, TOP = 16, 96, 168, 24, 48


def network() -> OpGraph:
    """Three convolutions of 3×3 that keep the size."""
    attrs: dict[str, Attr] = {"out_channels": 4, "kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "groups": 1, "bias": False}
    ops = [Op("x", "input", attrs={"shape": (1, 4, ROWS, ROWS)})]
    for i in range(3):
        ops.append(Op(f"c{i}", "conv", (ops[-1].name,), {**attrs, "padding": (1, 1, 1, 1)}))
    return OpGraph.build("net", ops, "c2")


def owner(row: int, needs: dict[str, Rows]) -> str:
    """The band that needs a row, or ``both``."""
    result = [band for band, rows in needs.items() if rows.start <= row < rows.stop]
    return result[0] if len(result) == 1 else "both"


def picture() -> str:
    """The picture as SVG."""
    graph = network()
    needs = {band: bands_of(graph, *rows)[0] for band, rows in BANDS.items()}
    width, height = 2 * LEFT + 3 * STEP + WIDE, TOP + ROWS * CELL + 64
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        "<title>Two bands of rows through three convolutions, and the rows that both compute</title>",
        "<desc>Four columns of rows, from what arrives to the output. The rows that both bands need grow from the output to the left.</desc>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for at, (op, title) in enumerate(zip(graph.ops, TITLES, strict=True)):
        left = LEFT + at * STEP
        parts.append(f'<text x="{left + WIDE // 2}" y="{TOP - 16}" text-anchor="middle" fill="#222222">{title}</text>')
        for row in range(ROWS):
            colour = COLOURS[owner(row, {band: rows[op.name] for band, rows in needs.items()})]
            parts.append(f'<rect x="{left}" y="{TOP + row * CELL}" width="{WIDE}" height="{CELL - 2}" fill="{colour}"/>')
        if at:
            middle = TOP + ROWS * CELL // 2
            parts.append(f'<path d="M{left - STEP + WIDE + 12} {middle} H{left - 18} m-6 -5 l6 5 l-6 5" fill="none" stroke="#222222"/>')
    words = {"upper": "upper band", "lower": "lower band", "both": "halo: read or computed by both"}
    at = LEFT
    for key, word in words.items():
        y = TOP + ROWS * CELL + 28
        parts.append(f'<rect x="{at}" y="{y - 11}" width="14" height="14" fill="{COLOURS[key]}"/>')
        parts.append(f'<text x="{at + 20}" y="{y}" fill="#222222">{word}</text>')
        at += 150
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Write or check the picture."""
    drawn = picture()
    if "--check" not in sys.argv:
        PICTURE.write_text(drawn)
    elif not PICTURE.is_file() or PICTURE.read_text() != drawn:
        sys.exit(f"{PICTURE.name} is not as it would be drawn: run `python docs/make_bands_picture.py`")


if __name__ == "__main__":
    main()
