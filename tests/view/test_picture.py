"""The picture: a PNG of one head, its axes named where a font has Hangul, numbered where none has."""

from unittest import mock

import numpy as np
import pytest

from tests.conftest import PROJECT
from view import picture

NAMES = ["〈시작〉", "나는", "사과를"]
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.1, 0.2, 0.7]])


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn."""
    from matplotlib.figure import Figure

    made = []
    before = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: made.append(self) or before(self, *a, **k))
    return made


@pytest.mark.parametrize("font", [None, "DejaVu Sans"])
def test_axes_are_named_or_numbered(figures, tmp_path, font, recwarn):
    names = (
        NAMES if font is None else ["a", "b", "c"]
    )  # the font of the second has no Hangul: it stands for one that has
    with mock.patch.object(picture, "hangul_font", return_value=font):
        assert picture.draw(tmp_path / "head.png", "layer 0, head 1", names, WEIGHTS) == (font is not None)
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")
    axes = figures[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == (names if font else ["0", "1", "2"])
    assert sorted(text.get_text() for text in axes.texts) == sorted(["1.00", "0.25", "0.75", "0.10", "0.20", "0.70"])
    assert np.isnan(axes.images[0].get_array().filled(np.nan)).sum() == 3  # what the mask forbids has no colour
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_the_first_installed_font_is_taken():
    from matplotlib import font_manager

    class Font:
        def __init__(self, name):
            self.name = name

    def installed(*names):
        return mock.patch.object(font_manager.fontManager, "ttflist", [Font(name) for name in names])

    with installed("NanumGothic", "Arial", "Malgun Gothic"):
        assert picture.hangul_font() == "Malgun Gothic"
    latin = font_manager.findfont("DejaVu Sans")
    for paths in ([], [latin], [str(PROJECT / "README.md")]):
        with installed("Arial"), mock.patch.object(font_manager, "findSystemFonts", return_value=paths):
            assert picture.hangul_font() is None
    with (
        installed("Arial"),
        mock.patch.object(font_manager, "findSystemFonts", return_value=[latin]),
        mock.patch.object(font_manager, "get_font") as opened,
    ):
        opened.return_value.get_char_index.return_value = 7  # a font with Hangul that no list knows
        assert picture.hangul_font() == "DejaVu Sans"
