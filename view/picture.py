"""One head as a PNG: a heatmap with the axes named, in the first installed font that has Hangul."""

import io
from contextlib import suppress
from pathlib import Path

import numpy as np

from data.files import replace_file
from machine.plotting import figure

FONTS = (
    "Pretendard", "Apple SD Gothic Neo", "AppleGothic", "Malgun Gothic", "Noto Sans KR", "Noto Sans CJK KR",
    "Noto Sans CJK JP", "NanumGothic", "NanumBarunGothic", "UnDotum",
)  # fmt: skip
MOST_DIGITS = 16  # units beyond which a cell is too small for its number


def draw(path: Path, title: str, names: list[str], weights: np.ndarray) -> bool:
    """Draw (G, G) weights, rows looking, columns looked at; return whether a font with Hangul was found.

    Without one the axes are numbered.
    """
    forbidden = np.triu(np.ones_like(weights, dtype=bool), 1)
    side = min(max(0.55 * len(names) + 2, 4), 14)
    buffer = io.BytesIO()
    with figure(side, side) as made:
        from matplotlib import rcParams
        from matplotlib.patches import Rectangle

        font = hangul_font()
        shown = names if font else [str(number) for number in range(len(names))]
        rcParams.update({"font.family": [font, "sans-serif"] if font else ["sans-serif"], "axes.unicode_minus": False})
        axes = made.subplots()
        axes.imshow(np.where(forbidden, np.nan, weights), cmap="Blues", vmin=0, vmax=1)
        for query in range(len(names) - 1):
            corner, width = (query + 0.5, query - 0.5), len(names) - query - 1
            axes.add_patch(Rectangle(corner, width, 1, fill=False, hatch="////", edgecolor="lightgrey", linewidth=0))
        axes.set_xticks(range(len(names)), shown, rotation=90)
        axes.set_yticks(range(len(names)), shown)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set(xlabel="is looked at →", ylabel="← looks", title=title)
        if len(names) <= MOST_DIGITS:
            for query, key in zip(*np.nonzero(~forbidden), strict=True):
                weight = weights[query, key]
                axes.text(
                    key, query, f"{weight:.2f}", ha="center", va="center", color="white" if weight > 0.5 else "black"
                )
        made.savefig(buffer, format="png", dpi=110)
    replace_file(path, buffer.getvalue())
    return font is not None


def hangul_font() -> str | None:
    """Return the name of the first installed font that has Hangul."""
    from matplotlib.font_manager import findSystemFonts, fontManager, get_font

    installed = {font.name for font in fontManager.ttflist}
    if known := next((name for name in FONTS if name in installed), None):
        return known
    for path in sorted(findSystemFonts()):  # matplotlib's list may be older than the newest font
        with suppress(OSError, RuntimeError):  # what is no font after all
            if get_font(path).get_char_index(ord("한")):
                fontManager.addfont(path)
                return fontManager.ttflist[-1].name
    return None
