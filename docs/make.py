"""Renew the figures and pictures of the documentation: python docs/make.py [--run DIR]

Trains the default config, unless --run names a run of it, and renews docs/curve.png, docs/attention.html, its picture
and, in both READMEs, what is between <!-- NAME --> and <!-- /NAME -->: two texts that the run wrote, and its figures.

python docs/make.py --measure NAME [flags of bench/NAME.py] takes that measurement instead and renews its table in
docs/speed.md, or docs/guarantees.md; --block names another place there than the one of its name.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright
from safetensors import safe_open

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from bench.measure import processor  # noqa: E402

PROMPT, SEED, TEXTS = "나는", 7, 2
LOOKED_AT = "나는 사과를 맛있게 먹었다"
SIGN = "=== "  # before the title of a report


def door(name: str, *arguments: str) -> str:
    """Run a door from the project's folder and return what it prints; its notices pass through."""
    command = [sys.executable, f"{name}.py", *arguments]
    return subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def figures(run: Path) -> dict[str, Any]:
    """Return what was measured of `run`."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    training = [line for line in metrics if "loss" in line]
    with safe_open(run / "model.safetensors", "pt") as file:
        parameters = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    return {
        **json.loads(door("evaluate", "--run", str(run), "--copied", "--json")),
        "minutes": training[-1]["seconds"] / 60,
        "steps": training[-1]["step"],
        "parameters": parameters,
        "machine": f"{processor().split(',')[0]}, {os.cpu_count()} cores, torch {torch.__version__.split('+')[0]}",
    }


def sample_block(run: Path) -> str:
    """Return the lines that the run writes, one a text, as a fenced block."""
    texts = door(
        "sample", "--run", str(run), "--prompt", PROMPT, "--count", str(TEXTS), "--seed", str(SEED), "--tokens", "60",
        "--json",
    )  # fmt: skip
    lines = [" ".join(json.loads(line)["text"].split()) for line in texts.splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```"


def photograph(page: Path, picture: Path) -> None:
    """Take a picture of the page, in English, by a Chromium that stands where Debian puts it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
        tab = browser.new_page(viewport={"width": 1100, "height": 640}, color_scheme="light")
        tab.goto(f"{page.as_uri()}#lang=en")
        tab.wait_for_selector("canvas, table")
        tab.screenshot(path=picture)
        browser.close()


def replace_block(path: Path, name: str, text: str) -> None:
    """Put `text` between the two comments that name it."""
    before = path.read_text(encoding="utf-8")
    pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
    after, count = re.subn(pattern, lambda match: f"{match[1]}{text}\n{match[2]}", before, flags=re.S)
    if count != 1:
        sys.exit(f"{path} has {count} places named {name}, not one")
    path.write_text(after, encoding="utf-8", newline="\n")


def measure(name: str, block: str, flags: list[str]) -> None:
    """Take one measurement of bench/ and put its command and its table where the documentation has a place for it."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *flags],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    print(done.stdout)
    title, *lines = done.stdout[done.stdout.rindex(SIGN) + len(SIGN) :].strip().split("\n")
    table = [line for line in lines if line.startswith("|")]
    about = "  \n".join(line for line in lines if not line.startswith("|"))
    command = " ".join(["python -m", f"bench.{name}", *(Path(flag).name if "/" in flag else flag for flag in flags)])
    text = "\n".join([f"`{command}`: {title}", "", *table, "", about])
    places = [PROJECT / "docs" / name for name in ("speed.md", "guarantees.md")]
    there = [place for place in places if f"<!-- {block} -->" in place.read_text(encoding="utf-8")]
    replace_block((there or places)[0], block, text)


def main() -> None:
    """Train or take the run, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--run", type=Path, help="a finished run of the default configuration")
    parser.add_argument("--measure", metavar="NAME", help="take this measurement of bench/ instead")
    parser.add_argument("--block", metavar="NAME", help="the place of its table")
    options, flags = parser.parse_known_args()
    if options.measure:
        return measure(options.measure, options.block or options.measure, flags)
    if flags:
        parser.error(f"unknown flags: {' '.join(flags)}")
    run = options.run
    if run is None:
        run = PROJECT / "runs" / "docs"
        shutil.rmtree(run, ignore_errors=True)
        subprocess.run([sys.executable, "train.py", "--run", str(run)], cwd=PROJECT, check=True)
    run = run.resolve()
    shutil.copy(run / "curve.png", PROJECT / "docs" / "curve.png")
    door("attend", LOOKED_AT, "--run", str(run), "-o", str(PROJECT / "docs" / "attention.html"))
    photograph(PROJECT / "docs" / "attention.html", PROJECT / "docs" / "attention.png")
    made, block = figures(run), sample_block(run)
    english = (
        f"{made['parameters']:,} parameters, {made['steps']:,} steps in {made['minutes']:.1f} minutes: "
        f"**{made['bits_per_character']:.3f} bits per character** ({made['bits_per_byte']:.3f} per byte) on the "
        f"{made['documents']} validation documents, seed 1; of the 30-character stretches of 100 samples "
        f"{made['copied']:.1%} stand in the training text ({made['copied_validation']:.1%} of the validation text). "
        f"Machine: {made['machine']}."
    )
    korean = (
        f"매개변수 {made['parameters']:,}개, {made['steps']:,}스텝을 {made['minutes']:.1f}분에 학습: 검증 문서 "
        f"{made['documents']}개에서 **글자당 {made['bits_per_character']:.3f}비트**"
        f"(바이트당 {made['bits_per_byte']:.3f}), 시드 1. 생성한 글 100편의 30글자 조각 중 "
        f"{made['copied']:.1%}가 학습 글에 그대로 있음(검증 글은 {made['copied_validation']:.1%}). "
        f"기계: {made['machine']}."
    )
    for name, text in (("README.md", english), ("README.ko.md", korean)):
        replace_block(PROJECT / name, "sample", block)
        replace_block(PROJECT / name, "figures", text)


if __name__ == "__main__":
    main()
