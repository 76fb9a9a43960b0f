"""What made a figure or a run: the versions of malssi, torch and Python, and the processor."""

import platform
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


@cache  # asked at every save
def made_with() -> dict[str, str]:
    """Return the versions and the processor's name; torch is not imported for it."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "malssi": project["version"],
        "torch": version("torch"),
        "python": platform.python_version(),
        "processor": processor_name(),
    }


def processor_name() -> str:
    """Return the name that the processor gives itself."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
