"""What a run says while it trains: a bar or plain lines, metrics.jsonl, samples.txt, curve.png, perhaps wandb."""

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data.files import naming, replace_file
from machine.plotting import figure
from machine.streams import visible


def say(line: str) -> None:
    """Print one line at once, above the bar if there is one."""
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()


class Log:
    """Writes what is measured to the run's folder and to the terminal; a fault of wandb never stops a run."""

    def __init__(self, folder: Path, settings: dict[str, Any], wandb: str, start_step: int) -> None:
        """Cut the folder's logs back to `start_step`, where a resumed run goes on (-1: all of it), and open them."""
        self.folder = folder
        cut_metrics(folder / "metrics.jsonl", start_step)
        cut_samples(folder / "samples.txt", start_step)
        self._metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8", newline="\n")
        self._samples = (folder / "samples.txt").open("a", encoding="utf-8", newline="\n")
        self._terminal = sys.stdout.isatty()
        self._draws = True
        self._bar: tqdm | None = None
        if self._terminal:
            self._bar = tqdm(
                total=1.0, file=sys.stdout, bar_format="{percentage:3.0f}% {bar} {desc}", dynamic_ncols=True
            )
        self._wandb = start_wandb(wandb, folder, settings)

    def training(self, values: dict[str, Any], progress: float, seconds_left: float, keep: bool) -> None:
        """Show the figures of one step; with `keep`, write them down too."""
        line = (
            f"step {values['step']} · loss {values['loss']:.3f} · {values['bits_per_character']:.3f} bits/character · "
            f"{values['tokens_per_second']:,.0f} tokens/s · {clock(seconds_left)} left"
        )
        if self._bar is not None:
            self._bar.n = progress
            self._bar.set_description_str(line)
        elif keep:
            say(line)
        if keep:
            self._write(values)

    def validation(self, step: int, bits_per_character: float) -> None:
        """Show and write down the figure of one evaluation."""
        say(f"step {step} · validation {bits_per_character:.4f} bits/character")
        self._write({"step": step, "validation_bits_per_character": bits_per_character})

    def draw(self) -> None:
        """Renew the curve; where it cannot be drawn, that is said once."""
        self.flush()
        if self._draws:
            try:
                draw_curve(self.folder)
            except Exception as error:  # a picture is decoration, whatever its library meets
                self._draws = False
                say(f"curve.png could not be drawn ({' '.join(str(error).split())[:150]}): going on without it")

    def sample(self, step: int, text: str) -> None:
        """Show and keep a text that the model wrote."""
        say(f"step {step} writes: {visible(' '.join(text.split()))}")
        with naming(Path(self._samples.name)):
            self._samples.write(f"=== step {step}\n{text}\n\n")

    def flush(self) -> None:
        """Put what was written on the disk, before a checkpoint that counts on it."""
        for file in (self._metrics, self._samples):
            with naming(Path(file.name)):
                file.flush()
                os.fsync(file.fileno())

    def close(self) -> None:
        """Close everything."""
        self.flush()
        self._metrics.close()
        self._samples.close()
        if self._bar is not None:
            self._bar.close()
        if self._wandb is not None:
            tolerate(self._wandb.finish)

    def _write(self, values: dict[str, Any]) -> None:
        with naming(Path(self._metrics.name)):
            self._metrics.write(json.dumps(values) + "\n")
        if self._wandb is not None:
            tolerate(
                lambda: self._wandb.log({name: values[name] for name in values if name != "step"}, step=values["step"])
            )


def clock(seconds: float) -> str:
    """Return a time such as 4:05 or 1:00:00."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics.jsonl; one that a kill left half written is no line."""
    lines = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict) and isinstance(values.get("step"), int):
                lines.append(values)
    return lines


def cut_metrics(path: Path, step: int) -> None:
    """Leave only the lines up to `step`: those after it were not saved and will come again."""
    if path.exists():
        found = read_metrics(path)
        if (lost := path.read_bytes().count(b"\n") - len(found)) > 0:  # more than the line that a kill cut short
            say(f"{path}: {lost:,} lines that cannot be read, left out")
        lines = (json.dumps(values) + "\n" for values in found if values["step"] <= step)
        replace_file(path, "".join(lines).encode("utf-8"))


def cut_samples(path: Path, step: int) -> None:
    """Leave only the samples up to `step`."""
    if path.exists():
        text = path.read_bytes().decode("utf-8", errors="replace")
        later = (
            heading.start() for heading in re.finditer(r"^=== step (\d{1,18})\n", text, re.M) if int(heading[1]) > step
        )
        replace_file(path, text[: next(later, len(text))].encode("utf-8"))


def draw_curve(folder: Path) -> None:
    """Draw curve.png from metrics.jsonl: bits per character over steps, in training and in validation."""
    lines = read_metrics(folder / "metrics.jsonl")
    buffer = io.BytesIO()
    with figure(7, 4) as made:
        axes = made.subplots()
        for name, label, style in (
            ("bits_per_character", "training (one batch)", {"linewidth": 0.8, "alpha": 0.6}),
            ("validation_bits_per_character", "validation", {"marker": "o", "markersize": 3}),
        ):
            points = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), (int, float))]
            axes.plot([x for x, _ in points], [y for _, y in points], label=label, **style)
        axes.set(xlabel="step", ylabel="bits per character", title=folder.name if folder.name.isascii() else None)
        axes.grid(alpha=0.3)
        axes.legend()
        made.savefig(buffer, format="png", dpi=110)
    replace_file(folder / "curve.png", buffer.getvalue())


def start_wandb(mode: str, folder: Path, settings: dict[str, Any]) -> Any:
    """Return a wandb run, or None where it is not asked for or does not come up; never asks a question."""
    if mode == "off":
        return None
    try:
        import wandb
    except ImportError:
        say("wandb is not installed (pip install wandb): going on without it")
        return None
    if mode == "online" and not (os.environ.get("WANDB_API_KEY") or has_key(wandb)):
        say("wandb has no key (wandb login makes one): logging offline")
        mode = "offline"
    try:
        return wandb.init(project="malssi", name=folder.name, dir=folder, config=settings, mode=mode)
    except Exception as error:  # whatever a logger meets, training goes on
        say(f"wandb did not start ({' '.join(str(error).split())[:150]}): going on without it")
        return None


def has_key(wandb: Any) -> bool:
    """Whether `wandb login` left a key."""
    try:
        return bool(wandb.Api().api_key)
    except Exception:
        return False


def tolerate(action: Callable[[], Any]) -> None:
    """Do `action`; a fault in it is said, and no more."""
    try:
        action()
    except Exception as error:  # whatever a logger meets, training goes on
        say(f"wandb: {' '.join(str(error).split())[:150]}")
