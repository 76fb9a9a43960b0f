"""Settings come from a file and the command line, are checked by name, and are kept whole."""

import argparse
from pathlib import Path

import pytest
import torch
import yaml

from model.gpt import GPT
from run.config import PROJECT, add_flags, as_yaml, by_name, given, read_config, settings

SHIPPED = sorted((PROJECT / "configs").glob("*.yaml"))


def write(folder: Path, text: str) -> Path:
    (folder / "mine.yaml").write_text(text, encoding="utf-8")
    return folder / "mine.yaml"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_config_builds(path):
    config = read_config(path)
    assert config.train.steps is not None or config.auto  # so that a seed reproduces it
    with torch.device("meta"):
        model = GPT(config.model, config.tokenizer.vocab_size)
        logits = model(torch.zeros(2, config.model.context, dtype=torch.long))
    assert logits.shape == (2, config.model.context, config.tokenizer.vocab_size)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_kept_beside_a_run_reads_back_the_same(path, tmp_path):
    config = read_config(path, {"train.learning_rate": 1e-5, "compile": "off"})
    assert read_config(write(tmp_path, as_yaml(config)), own=True) == config


def test_numbers_and_words_are_read_as_they_stand(tmp_path):
    text = "data: {dataset: b, revision: 20231101, split: 010}\ntrain: {steps: 010, learning_rate: 1e-3}"
    config = read_config(write(tmp_path, text + "\nwandb: off\nauto: no"))
    assert (config.data.revision, config.data.split) == ("20231101", "010")
    assert (config.train.steps, config.train.rate, config.wandb, config.auto) == (10, 1e-3, "off", False)
    assert read_config(write(tmp_path, "train: {steps: 1}\ncompile: no\nwandb: false")).compile == "off"
    assert read_config(write(tmp_path, "train: {steps: 1, minutes: null}\ndata: ~")).train.steps == 1


def test_the_rate_left_out_suits_the_optimizer(tmp_path):
    rates = [
        read_config(write(tmp_path, f"train: {{steps: 1, optimizer: {name}}}")).train.rate for name in ("muon", "adamw")
    ]
    assert rates == [1e-2, 2e-3]


def test_paths_count_from_the_config_that_names_them(tmp_path):
    text = "data: {path: [a.txt]}\ntokenizer: {path: b.model}\ntrain: {steps: 1, init_from: c}\n"
    path = write(tmp_path, text)
    found = read_config(path)
    assert found.data.path == (str(tmp_path / "a.txt"),) and found.tokenizer.path == str(tmp_path / "b.model")
    assert found.train.init_from == str(tmp_path / "c")
    assert read_config(path, own=True).data.path == (str(PROJECT / "a.txt"),)  # a run's own config.yaml
    assert read_config(SHIPPED[0]).data.path == (str(PROJECT / "data" / "corpus" / "story-*.txt"),)
    assert read_config(write(tmp_path, "train: {steps: 1}")).data.path == (
        str(PROJECT / "data" / "corpus" / "story-*.txt"),
    )
    (tmp_path / "set").mkdir()
    assert read_config(write(tmp_path, "data: {dataset: set}\ntrain: {steps: 1}")).data.dataset == str(tmp_path / "set")
    assert read_config(write(tmp_path, "data: {dataset: a/b}\ntrain: {steps: 1}")).data.dataset == "a/b"


def test_paths_inside_the_project_are_kept_movable():
    assert yaml.safe_load(as_yaml(read_config(SHIPPED[0])))["data"]["path"] == ["data/corpus/story-*.txt"]


def test_the_command_line_goes_over_the_file(tmp_path):
    path = write(tmp_path, "model: {layers: 2, width: 40}\ntrain: {steps: 7, learning_rate: 1e-3}\ncompile: off\n")
    config = read_config(path, {"model.layers": 3, "train.minutes": 2.0})
    assert (config.model.layers, config.model.width, config.train.learning_rate) == (3, 40, 1e-3)
    assert (config.train.steps, config.train.minutes) == (None, 2.0)  # one silences the other
    assert config.compile == "off"  # YAML reads a bare off as false
    assert read_config(path).train.steps == 7


@pytest.mark.parametrize(
    "text, words",
    [
        ("model: {layrs: 2}\ntrain: {steps: 1}", "model.layrs: no such setting"),
        ("modell: {layers: 2}\ntrain: {steps: 1}", "modell: no such setting"),
        ("model: {layers: 0}\ntrain: {steps: 1}", "model.layers: .*greater than or equal to 1"),
        ("model: {layers: many}\ntrain: {steps: 1}", "model.layers: .*valid integer.*'many'"),
        ("model: {position: left}\ntrain: {steps: 1}", "model.position: .*'learned'"),
        ("model: {width: 10, heads: 3}\ntrain: {steps: 1}", "multiple of heads"),
        ("tokenizer: {coverage: 2}\ntrain: {steps: 1}", "coverage must lie between"),
        ("train: {steps: 1, minutes: 1}", "exactly one of steps and minutes"),
        ("data: {path: [a], dataset: b}\ntrain: {steps: 1}", "exactly one of path and dataset"),
        ("data: {unit: line}\ntrain: {steps: 1}", "exactly one of path and dataset"),
        ("a: &a [1]\nb: *a\ntrain: {steps: 1}", "references"),
        ("x: " + "y" * 200_000, "longer than 100,000 bytes"),
        ("model: {layers: 2}", "train"),
        ("train: {minutes: .nan}", "train.minutes"),
        ("model: {layers: 2, layers: 3}\ntrain: {steps: 1}", "'layers' is given twice"),
        ("train: {steps: 1}\nmodel: {layers: 2}\ntrain: {steps: 2}", "'train' is given twice"),
        ("train: {steps: yes}", "train.steps: .*valid integer.*'yes'"),
        ("train: {steps: true}", "train.steps: .*valid integer.*'true'"),
        ("train: {steps: !!bool yes}", "train.steps: .*valid integer.*'yes'"),
        ("train: {steps: 1, learning_rate: on}", "train.learning_rate: .*valid number.*'on'"),
        ("train: {steps: 1:30}", "train.steps: .*valid integer.*'1:30'"),
        ("train: {steps: 0x10}", "train.steps: .*valid integer.*'0x10'"),
        ("- a list", "must hold sections"),
        ("model: [1]\ntrain: {steps: 1}", "must hold sections"),
        ("train: {steps: 1", "no YAML"),
        ("", "train"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, words):
    with pytest.raises(ValueError, match=f"mine.yaml.*{words}") as caught:
        read_config(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_section_that_is_none_is_refused_when_it_is_overridden_too(tmp_path):
    with pytest.raises(ValueError, match="mine.yaml: train must hold settings, not '.'"):
        read_config(write(tmp_path, "train: ."), {"train.steps": 0})


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no YAML in UTF-8"):
        read_config(tmp_path / "mine.yaml")


def test_files_and_data_sets_stand_in_place_of_each_other(tmp_path):
    files = write(tmp_path, "data: {path: [a]}\ntrain: {steps: 1}\n")
    config = read_config(files, {"data.dataset": "b", "data.subset": "c"}).data
    assert (config.path, config.dataset, config.subset) == ((), "b", "c")
    (tmp_path / "set.yaml").write_text(
        "data: {dataset: b, subset: c, revision: d}\ntrain: {steps: 1}\n", encoding="utf-8"
    )
    other = read_config(tmp_path / "set.yaml", {"data.path": ("a",)}).data
    assert (other.dataset, other.subset, other.revision, other.split) == (None, None, None, "train")
    same = read_config(tmp_path / "set.yaml", {"data.dataset": "b"}).data
    assert (same.subset, same.revision) == ("c", "d")
    another = read_config(tmp_path / "set.yaml", {"data.dataset": "e"}).data
    assert (another.subset, another.revision) == (None, None)


def test_flags_are_read_by_the_type_of_their_field(capsys):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    found = given(parser.parse_args(["--train.learning_rate", "1e-3", "--model.bias", "true", "--data.path", "a", "b"]))
    assert found == {
        "train.learning_rate": 1e-3,
        "model.bias": True,
        "data.path": (str(Path("a").absolute()), str(Path("b").absolute())),
    }
    for wrong in (["--train.steps", "x"], ["--train.step", "1"], ["--train.seed", "-1"], ["--data.unit", "page"]):
        with pytest.raises(SystemExit) as caught:
            parser.parse_args(wrong)
        assert caught.value.code == 2
    assert "--train.steps" in capsys.readouterr().err


def test_every_setting_has_a_name_and_a_help():
    config = read_config(SHIPPED[0])
    assert set(by_name(config)) == set(settings())
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert all(action.help for action in parser._actions)
