"""What holds of the project as a whole: both READMEs tell the same, and no command in them is made up."""

import re

import pytest

from tests.conftest import PROJECT

READMES = [PROJECT / "README.md", PROJECT / "README.ko.md"]


def commands(path):
    blocks = re.findall(r"^```bash\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_both_readmes_give_the_same_commands():
    assert commands(READMES[0]) == commands(READMES[1]) != []


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.name)
def test_every_flag_and_link_is_real(path):
    text = path.read_text(encoding="utf-8")
    paths = [path for pattern in ("*.py", "doors/*.py", "bench/*.py") for path in PROJECT.glob(pattern)]
    sources = "".join(path.read_text(encoding="utf-8") for path in paths)
    from run.config import settings

    for flag in set(re.findall(r"(?<![\w-])--([a-z][a-z_.-]+)", text)):
        ours = flag in settings() or flag == "help" or f'"--{flag}"' in sources
        assert ours or flag in ("repo-type", "local-dir"), flag  # those of hf download
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (PROJECT / link).exists(), link


@pytest.mark.parametrize("name", ["guarantees.md", "guarantees.ko.md"])
def test_each_promise_names_tests_that_exist(name):
    text = (PROJECT / "docs" / name).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| tests/" in line]
    assert len(rows) > 20
    for row in rows:
        tests = row.rstrip("| ").rsplit("| ", 1)[1].split(", ")
        for test in tests:
            path, _, function = test.partition("::")
            source = (PROJECT / path).read_text(encoding="utf-8")
            assert not function or f"def {function}(" in source, test
    names = {test for row in rows for test in row.rstrip("| ").rsplit("| ", 1)[1].split(", ")}
    other = (PROJECT / "docs" / ("guarantees.md" if "ko" in name else "guarantees.ko.md")).read_text(encoding="utf-8")
    assert all(test in other for test in names)
