"""Make the review lines, one document each, from the Naver sentiment movie corpus: python -m bench.reviews RAW OUT

RAW is the folder raw/ of github.com/e9t/nsmc; OUT gets reviews-train.txt and reviews-val.txt.
"""

import json
import random
import sys
from pathlib import Path

from doors.door import DONE, Parser, run_door

LEAST = 15  # characters of a review; shorter ones say little beyond their stars


def main(arguments: list[str] | None = None) -> int:
    """Read every review, then write both sides."""
    parser = Parser(__doc__)
    parser.add_argument("raw", type=Path, metavar="RAW", help="folder of the corpus's JSON files")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder that gets both files")
    parser.add_argument("--train", type=int, default=240_000, metavar="N", help="lines to train on (240000)")
    parser.add_argument("--validation", type=int, default=8_000, metavar="N", help="lines to validate on (8000)")
    options = parser.parse_args(arguments)
    for name in ("train", "validation"):
        if (count := getattr(options, name)) < 1:
            parser.error(f"--{name} must be 1 or more, not {count}")
    lines = review_lines(options.raw)
    if len(lines) < options.train + options.validation:
        raise ValueError(
            f"{options.raw} gives {len(lines):,} lines, fewer than {options.train:,} to train on and "
            f"{options.validation:,} to validate on"
        )
    sides = {"reviews-train.txt": lines[: options.train], "reviews-val.txt": lines[-options.validation :]}
    contents = {name: "".join(line + "\n" for line in side).encode("utf-8") for name, side in sides.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (options.out / name).write_bytes(content)
        print(f"{options.out / name}: {len(sides[name]):,} lines")
    return DONE


def review_lines(folder: Path) -> list[str]:
    """Return every review of `folder` once, shuffled the same way each time.

    Raises ValueError where the folder holds no JSON files or one of them no reviews.
    """
    paths = sorted(folder.glob("*.json"), key=lambda path: path.name)
    if not paths:
        raise ValueError(f"no JSON files in {folder}")
    folded = (" ".join(text.split()) for path in paths for text in reviews(path))
    lines = list(dict.fromkeys(line for line in folded if len(line) >= LEAST))
    random.Random(0).shuffle(lines)
    return lines


def reviews(path: Path) -> list[str]:
    """Return the texts of one file, a JSON list of objects that each have a `review`."""
    try:
        entries = json.loads(path.read_bytes())
        texts = [entry["review"] for entry in entries]
        sound = isinstance(entries, list) and all(isinstance(text, str) for text in texts)
    except (ValueError, TypeError, KeyError):
        sound = False
    if not sound:
        raise ValueError(f"{path} is no JSON list of objects with a review each")
    return texts


if __name__ == "__main__":
    sys.exit(run_door(main))
