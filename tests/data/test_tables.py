"""Tables give the text of their rows, cell by cell as it stands, and say what they need."""

import gzip
import json
import sys

import pytest

from data.config import DataConfig
from data.read import Text
from tests.conftest import PROJECT, door, process, sentences

ROWS = ["나무 아래", 'NA, "따옴표"', "첫 줄\n둘째 줄\n\n넷째 줄\t끝", "null", "2024-01-01", "007", "ㅋㅋ  두 칸"]


def read(path, said=None, **settings):
    config = DataConfig(path=(str(path),), **{"unit": "file"} | settings)
    return list(Text(config, (said if said is not None else []).append))


@pytest.mark.parametrize("sign, name", [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_another_separator_is_named(tmp_path, sign, name):
    """As Excel writes a CSV where commas are decimal points."""
    path = tmp_path / "excel.csv"
    path.write_text(sign.join(("id", "text")) + "\n" + sign.join(("1", "나는, 너는")) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"excel.csv seems to be separated by {name}.*save it with commas"):
        list(Text(DataConfig(path=(str(path),), unit="file")))


def as_csv(rows, separator=","):
    import csv
    import io

    out = io.StringIO(newline="")
    csv.writer(out, delimiter=separator).writerows(
        [["id", "text"], *([number, row] for number, row in enumerate(rows))]
    )
    return out.getvalue()


def as_json(rows):
    return "".join(json.dumps({"id": 1, "text": row}, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949", "utf-16"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name, written", [("a.csv", as_csv(ROWS)), ("a.jsonl", as_json(ROWS))])
def test_cells_come_as_they_stand(tmp_path, name, written, packed, encoding):
    raw = written.encode(encoding)
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(raw) if packed else raw)
    said = []
    assert read(path, said) == ROWS
    assert f"{path}: read as {encoding.removesuffix('-sig')}" in said
    assert f"{path}: text from the column 'text'" in said


def test_parquet_comes_as_it_stands(tmp_path):
    write_parquet(tmp_path / "[1] 한글.parquet", {"id": list(range(len(ROWS))), "text": ROWS})
    assert read(tmp_path) == ROWS


def write_parquet(path, columns):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_tabs_part_cells_and_quotes_are_text(tmp_path):
    (tmp_path / "ratings.tsv").write_text('id\ttext\tlabel\n1\t"최고\t1\n2\t그냥 "그럼"\t0\n', encoding="utf-8")
    assert read(tmp_path) == ['"최고', '그냥 "그럼"']


def test_empty_rows_are_left_out_and_counted(tmp_path):
    said = []
    (tmp_path / "a.jsonl").write_text(
        '{"text": null}\n\n{"text": "가"}\n{"text": " \\n"}\n{"id": 3}\n', encoding="utf-8"
    )
    assert read(tmp_path, said) == ["가"]
    assert "rows without text, left out: 3" in said
    write_parquet(tmp_path / "b.parquet", {"text": [None, "나", ""]})
    assert read(tmp_path / "b.parquet", said) == ["나"]
    assert "rows without text, left out: 2" in said


def test_the_unit_parts_rows_too(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"text": ["하나\n둘\n\n셋\r\n\r\n넷", "다섯"]})
    assert read(tmp_path, unit="document") == ["하나\n둘", "셋", "넷", "다섯"]
    assert read(tmp_path, unit="line") == ["하나", "둘", "셋", "넷", "다섯"]
    assert read(tmp_path, unit="file") == ["하나\n둘\n\n셋\n\n넷", "다섯"]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.csv", "id,document\n1,가\n", r"which column of .*a.csv is the text\? .*--data.text_column: id, document"),
        ("a.jsonl", '{"document": "가", "id": 1}\n', "--data.text_column: document, id"),
        ("a.csv", "id,text\n1,가,나\n", "line 2: 3 cells, where the first row has 2"),
        ("a.csv", 'id,text\n1,"가\n', "line 2: unexpected end of data"),
        ("a.jsonl", '{"text": "가"}\n{"text": \n', "line 2: no JSON"),
        ("a.jsonl", "[1]\n", "line 1: a JSON object was expected"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1: no JSON"),
        ("a.jsonl", '{"text": 3}\n', "line 1: 'text' holds int, not text"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "lone surrogate"),
        ("a.jsonl", '{"text": "\\u0000"}\n', "NUL characters"),
        ("a.parquet", "PAR1", "a.parquet is no Parquet file, or it is damaged"),
        ("a.csv", "", "no text in"),
        ("a.csv", "id,text\n", "no text in"),
    ],
)
def test_faults_name_the_place_and_the_way_out(tmp_path, name, content, words):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read(tmp_path / name)


def test_another_column_is_taken_when_it_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("id,document\n1,가\n", encoding="utf-8")
    write_parquet(tmp_path / "b.parquet", {"id": [1], "document": ["나"]})
    assert read(tmp_path, text_column="document") == ["가", "나"]
    with pytest.raises(ValueError, match="a.csv has no column 'body'"):
        read(tmp_path, text_column="body")
    with pytest.raises(ValueError, match="'id' holds int"):
        read(tmp_path / "b.parquet", text_column="id")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder of three data sets, with a cache of its own and no network."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets
    import huggingface_hub

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    folder = tmp_path / "sets"
    for name in ("wiki/20231101.ko", "nsmc/data", "script", "plain"):
        (folder / name).mkdir(parents=True)
    write_parquet(folder / "wiki" / "20231101.ko" / "train-00000-of-00002.parquet", {"text": ROWS[:3]})
    write_parquet(folder / "wiki" / "20231101.ko" / "train-00001-of-00002.parquet", {"text": ROWS[3:]})
    (folder / "wiki" / "README.md").write_text(
        "---\nconfigs:\n- config_name: 20231101.ko\n  data_files: 20231101.ko/*.parquet\n"
        "- config_name: 20231101.en\n  data_files: 20231101.en/*.parquet\n---\n",
        encoding="utf-8",
    )
    write_parquet(folder / "nsmc" / "data" / "train.parquet", {"id": ["1", "2"], "document": ["최고", None]})
    write_parquet(folder / "nsmc" / "data" / "test.parquet", {"id": ["3"], "document": ["별로"]})
    (folder / "script" / "script.py").write_text("raise SystemExit", encoding="utf-8")
    (folder / "plain" / "a.txt").write_text("가\n\n나\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("streaming", [False, True])
def test_data_sets_by_subset_split_and_column(hub, streaming):
    def documents(said, **settings):
        return list(Text(DataConfig(unit="file", streaming=streaming, **settings), said.append))

    said = []
    assert documents(said, dataset=str(hub / "wiki"), subset="20231101.ko") == ROWS
    assert any("split 'train', text from the column 'text'" in line for line in said)
    assert documents(said, dataset=str(hub / "nsmc"), text_column="document") == ["최고"]
    assert documents(said, dataset=str(hub / "nsmc"), split="test", text_column="document") == ["별로"]


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"dataset": "wiki"}, "20231101.en"),
        ({"dataset": "wiki", "subset": "ja"}, "ja.*20231101.ko"),
        ({"dataset": "nsmc"}, "Name one by --data.text_column: id, document"),
        ({"dataset": "nsmc", "split": "validation", "text_column": "document"}, "validation.*train"),
        ({"dataset": "plain"}, "cuts into lines: name the folder by --data.path"),
        ({"dataset": "script"}, "script.*--data.revision refs/convert/parquet, or download"),
        ({"dataset": "someone/somewhere"}, "someone/somewhere.*(cache|reach|offline)"),
    ],
)
def test_what_keeps_a_data_set_from_loading_is_told(hub, settings, words):
    name = settings["dataset"]
    settings = settings | {"dataset": name if "/" in name else str(hub / name)}
    with pytest.raises(ValueError, match=words) as caught:
        list(Text(DataConfig(**settings)))
    assert "\n" not in str(caught.value)


def test_a_name_in_the_cache_needs_no_network(hub, tmp_path):
    import datasets

    datasets.load_dataset(str(hub / "nsmc"))  # as the library keeps it, under the name of the folder
    (kept,) = (tmp_path / "cache").glob("nsmc*")
    kept.rename(kept.with_name("e9t___nsmc"))
    config = DataConfig(dataset="e9t/nsmc", text_column="document")
    assert list(Text(config, offline=True)) == ["최고"]


def test_plain_text_needs_none_of_it(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(sentences(30)), encoding="utf-8")
    code = (
        "import sys; from data.config import DataConfig; from data.read import Text; "
        f"list(Text(DataConfig(path=({str(tmp_path / 'a.txt')!r},)))); "
        "import data.prepare; print({'datasets', 'pyarrow', 'pandas', 'torch'} & set(sys.modules))"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "set()"


def test_from_a_table_to_a_run_that_is_measured(tmp_path):
    (tmp_path / "a.csv").write_text(as_csv(sentences(200)), encoding="utf-8")
    small = (
        "--data.path a.csv --data.unit file --model.layers 1 --model.heads 2 --model.width 16 --model.context 16 "
        "--tokenizer.vocab_size 330 --train.steps 5 --run runs/table --compile off --device cpu"
    ).split()
    trained = process("train", *small, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "200 documents by unit 'file'" in trained.stdout
    measured = process("evaluate", "--run", "runs/table", cwd=tmp_path)
    assert measured.returncode == 0 and "the run's own text" in measured.stderr, measured.stderr


def test_the_ready_configs_read_data_sets_of_their_form(hub, tmp_path):
    texts = [f"{sentence} {number}" for number, sentence in enumerate(sentences(200))]
    (hub / "articles" / "20231101.ko").mkdir(parents=True)
    write_parquet(hub / "articles" / "20231101.ko" / "train.parquet", {"id": texts, "title": texts, "text": texts})
    (hub / "articles" / "README.md").write_text(
        "---\nconfigs:\n- config_name: 20231101.ko\n  data_files: 20231101.ko/*.parquet\n---\n", encoding="utf-8"
    )
    (hub / "reviews").mkdir()
    write_parquet(hub / "reviews" / "train.parquet", {"id": texts, "document": texts, "label": [0] * 200})
    (hub / "rows").mkdir()
    (hub / "rows" / "train.json").write_text(json.dumps([{"text": text} for text in texts]), encoding="utf-8")
    (hub / "stories").mkdir()
    (hub / "stories" / "stories-train.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    small = "--tokenizer.vocab_size 330 --train.steps 0".split()
    for config, arguments in {
        "wikipedia": ["--data.dataset", hub / "articles", "--data.subset", "20231101.ko"],
        "nsmc": ["--data.dataset", hub / "reviews"],
        "tinystories": ["--data.path", hub / "stories"],
        "tinystories ": ["--data.dataset", hub / "rows", "--data.unit", "file"],
    }.items():
        path = PROJECT / "configs" / f"{config.strip()}.yaml"
        result = door("train", "--config", path, *arguments, *small, cwd=tmp_path)
        assert result.returncode == 0, (config, result.stderr)
        assert "200 documents" in result.stdout, (config, result.stdout)


def test_a_table_can_be_measured(run, tmp_path):
    (tmp_path / "a.tsv").write_text("id\tdocument\n1\t나는 사과를 먹었다.\n2\t\n", encoding="utf-8")
    arguments = ("--run", run, "--data.path", tmp_path / "a.tsv", "--data.unit", "line")
    asked = door("evaluate", *arguments, cwd=tmp_path)
    assert asked.returncode == 1 and "--data.text_column: id, document" in asked.stderr
    measured = door("evaluate", *arguments, "--data.text_column", "document", "--json", cwd=tmp_path)
    assert measured.returncode == 0 and json.loads(measured.stdout)["documents"] == 1, measured.stderr
