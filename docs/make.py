"""Renew the figures and pictures of the documentation: python docs/make.py [--run DIR]

Trains the default config, unless --run names a run of it, and renews docs/curve.png, docs/attention.html, its picture
and, in both READMEs, what is between <!-- NAME --> and <!-- /NAME -->: texts that the run wrote, and its figures.

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
from evaluate import as_figure  # noqa: E402

TOP, TEXTS = 2, 10  # unchosen texts at the top and under Results, by the seeds 0 and on
PROMPT, STEPS = "어느 날 토끼가", (0, 100, 400, None)  # continued by these snapshots, None being the best weights
LOOKED_AT = "토끼는 당근을 맛있게 먹었어요"
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
        **json.loads(door("evaluate", "--run", str(run), "--writing", "--json")),
        "minutes": training[-1]["seconds"] / 60,
        "steps": training[-1]["step"],
        "parameters": parameters,
        "machine": f"{processor().split(',')[0]}, {os.cpu_count()} cores, torch {torch.__version__.split('+')[0]}",
    }


def texts(run: Path, *flags: str) -> list[str]:
    """Return what the run writes, a line a text."""
    lines = door("sample", "--run", str(run), "--json", *flags).splitlines()
    return [" ".join(json.loads(line)["text"].split()) for line in lines]


def fenced(lines: list[str]) -> str:
    """Return lines as a block that is shown as it is."""
    return "```text\n" + "\n".join(lines) + "\n```"


def learning(run: Path) -> list[str]:
    """Return how the run continues one prompt after more and more steps, each with the step of its snapshot."""
    found = []
    for step in STEPS:
        flags = [] if step is None else ["--step", str(step)]
        taken = json.loads(door("evaluate", "--run", str(run), "--json", *flags))["step"]
        (text,) = texts(run, "--prompt", PROMPT, "--seed", "0", "--tokens", "60", *flags)
        found.append(f"{taken:>5}: {text}")
    return found


def writing_table(writing: dict[str, dict[str, float | None]], titles: tuple[str, str, str]) -> str:
    """Return the figures of evaluate.py --writing as a table with these titles."""
    rows = [
        f"| `{name}` | {as_figure(name, values['model'])} | {as_figure(name, values['validation'])} |"
        for name, values in writing.items()
    ]
    return "\n".join([f"| {' | '.join(titles)} |", "|---|---:|---:|", *rows])


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
    made, written, steps = figures(run), texts(run, "--count", str(TEXTS), "--seed", "0"), learning(run)
    english = (
        f"{made['parameters']:,} parameters, {made['steps']:,} steps in {made['minutes']:.1f} minutes: "
        f"**{made['bits_per_character']:.3f} bits per character** ({made['bits_per_byte']:.3f} per byte) on the "
        f"{made['documents']} validation stories; {made['document_bits_per_character']:.3f} where each story is read "
        f"from its beginning; seed 1. Machine: {made['machine']}."
    )
    korean = (
        f"매개변수 {made['parameters']:,}개, {made['steps']:,}스텝을 {made['minutes']:.1f}분에 학습: 검증 이야기 "
        f"{made['documents']}편에서 **글자당 {made['bits_per_character']:.3f}비트**"
        f"(바이트당 {made['bits_per_byte']:.3f}), 이야기마다 처음부터 읽으면 "
        f"{made['document_bits_per_character']:.3f}비트, 시드 1. 기계: {made['machine']}."
    )
    titles = (("figure", "model", "validation"), ("값", "모델", "검증"))
    for name, text, row in zip(("README.md", "README.ko.md"), (english, korean), titles, strict=True):
        replace_block(PROJECT / name, "sample", fenced(written[:TOP]))
        replace_block(PROJECT / name, "figures", text)
        replace_block(PROJECT / name, "writing", writing_table(made["writing"], row))
        replace_block(PROJECT / name, "stories", fenced(written))
        replace_block(PROJECT / name, "steps", fenced(steps))


if __name__ == "__main__":
    main()
