"""Run README's own commands, so that what a newcomer types is what is tested: readme.py train | test"""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def commands() -> list[str]:
    """Return every `python …` command line that stands in a fenced block of README.md, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip().startswith("python ")]


def main(which: str) -> None:
    """Run the commands of one kind; stop at the first that fails."""
    chosen = [
        command for command in commands() if ("-m pytest" in command) == (which == "test") and "-m venv" not in command
    ]
    if not chosen:
        sys.exit(f"no {which} command in {README}")
    for command in chosen:
        if command.startswith("python train.py"):
            command += " --train.steps 60"
        print(f"+ {command}", flush=True)
        subprocess.run(command, shell=True, check=True, stdin=subprocess.DEVNULL, cwd=README.parent)


if __name__ == "__main__":
    main(sys.argv[1])
