"""From tables to rows of text: lines of JSON, comma- and tab-separated values, Parquet, Hugging Face data sets.

CSV and JSON are read by Python itself, cell by cell as they stand; what guesses types would read the text "NA" as
nothing and a date as a moment.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data.config import DataConfig

COLUMN = "text"  # taken by itself where a table has it
ROWS = 1000  # at once
OTHER_SEPARATORS = {";": "semicolons (;)", "\t": "tabs", "|": "bars (|)"}
PARQUET = "refs/convert/parquet"  # the branch of the Hub that holds a data set's Parquet copy


def choose_column(names: list[str], asked: str | None, where: str) -> str:
    """Return the column that holds the text; raises ValueError with their names where it must be asked for."""
    wanted = asked or COLUMN
    if names.count(wanted) > 1:
        raise ValueError(f"{where} has {names.count(wanted)} columns '{wanted}': give each a name of its own")
    if wanted in names:
        return wanted
    there = f"{where} has no column '{wanted}'." if asked else f"which column of {where} is the text?"
    raise ValueError(f"{there} Name one by --data.text_column: {', '.join(map(str, names))}")


def text_of(value: Any, column: str, where: str) -> str | None:
    """Return a cell's text, None for an empty one; raises ValueError where it holds something else."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{where}: '{column}' holds {type(value).__name__}, not text; name another --data.text_column")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{where}: '{column}' holds a lone surrogate, which is no character") from None
    return value


def line_rows(
    blocks: Iterable[str], kind: str, asked: str | None, path: Path, say: Any = lambda line: None
) -> Iterator[str | None]:
    """Yield the text of each row of a .jsonl, .csv or .tsv file that comes in blocks."""
    rows = json_rows(blocks, path) if kind in (".jsonl", ".ndjson") else separated_rows(blocks, kind, path, asked)
    column = None
    for number, row in rows:
        if column is None:
            column = choose_column(list(row), asked, str(path))
            say(f"{path}: text from the column '{column}'")
        yield text_of(row.get(column), column, f"{path}, line {number}")


def json_rows(blocks: Iterable[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield line number and object of each line that is not blank."""
    for number, line in enumerate(lines(blocks), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: no JSON ({error})") from None
        if not isinstance(row, dict):
            raise ValueError(f'{path}, line {number}: a JSON object was expected, such as {{"{COLUMN}": …}}')
        yield number, row


def separated_rows(
    blocks: Iterable[str], kind: str, path: Path, asked: str | None
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield line number and cells of each row; the first row names the columns.

    In .csv, quotes hold a cell together (RFC 4180); in .tsv they are characters like any other, as the IANA's
    definition of text/tab-separated-values has it and as data sets of reviews need.
    """
    csv.field_size_limit(2**31 - 1)
    if kind == ".csv":
        reader = csv.reader(lines(blocks), strict=True)
    else:
        reader = csv.reader(lines(blocks), delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        names = next(reader, [])
        if (count := names.count(asked or COLUMN)) > 1:
            raise ValueError(f"{path} has {count} columns '{asked or COLUMN}': give each a name of its own")
        if kind == ".csv" and len(names) == 1 and (found := [sign for sign in OTHER_SEPARATORS if sign in names[0]]):
            raise ValueError(
                f"{path} seems to be separated by {OTHER_SEPARATORS[found[0]]}, and a .csv is read by commas: save it "
                "with commas, or with tabs as .tsv"
            )
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                raise ValueError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, where the first row has {len(names)}; "
                    "a cell that holds the separator must stand in quotes"
                )
            yield reader.line_num, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def lines(blocks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in blocks, each with its line end."""
    rest = ""
    for block in blocks:
        *whole, rest = (rest + block).split("\n")
        yield from (line + "\n" for line in whole)
    if rest:
        yield rest


def parquet_rows(path: Path, asked: str | None, say: Any = lambda line: None) -> Iterator[str | None]:
    """Yield the text of each row of a Parquet file."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            column = choose_column(file.schema_arrow.names, asked, str(path))
            say(f"{path}: text from the column '{column}'")
            at = file.schema_arrow.names.index(column)
            # A name with a dot in it could be that of a field inside another column, so all columns are read then.
            wanted = None if "." in column else [column]
            for batch in file.iter_batches(ROWS, columns=wanted):
                for value in batch.column(at if wanted is None else 0).to_pylist():
                    yield text_of(value, column, str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: '{column}' holds bytes that are no UTF-8 ({error.reason})") from None
    except (ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is no Parquet file, or it is damaged: {error}") from None


def open_dataset(config: DataConfig, offline: bool) -> Any:
    """Return the split that `config` names, as the datasets library gives it.

    It is downloaded whole and mapped from the disk, or with `streaming` read as it comes.
    offline: from the cache alone. Raises ValueError in one line where there is no such thing.
    """
    name = str(config.dataset)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported, which nothing else here does before
    import datasets

    try:
        builder = datasets.load_dataset_builder(name, config.subset, revision=config.revision)
        if builder.info.builder_name != "text":
            return datasets.load_dataset(
                name, config.subset, split=config.split, revision=config.revision, streaming=config.streaming
            )
    except Exception as error:
        raise ValueError(explained(error, name)) from None
    raise ValueError(
        f"{name} holds plain text, which datasets cuts into lines: name the folder by --data.path (of the Hub, "
        "what hf download NAME --repo-type dataset --local-dir FOLDER brings)"
    )


def dataset_rows(data: Any, config: DataConfig, say: Any = lambda line: None) -> Iterator[str | None]:
    """Yield the text of each row of what `open_dataset` gave."""
    name = str(config.dataset)
    names = data.column_names or list(next(iter(data), {}))  # while it streams, columns may be known by the rows alone
    if not names:
        raise ValueError(f"{name}: split '{config.split}' has no rows")
    column = choose_column(names, config.text_column, name)
    say(f"{name}: split '{config.split}', text from the column '{column}'")
    try:
        for batch in data.select_columns([column]).iter(ROWS):
            for value in batch[column]:
                yield text_of(value, column, name)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: '{column}' holds bytes that are no UTF-8 ({error.reason})") from None


def explained(error: Exception, name: str) -> str:
    """Return in one line what kept a data set from being loaded, and what to do."""
    message = " ".join(str(error).split())
    if "scripts are no longer supported" in message:
        return (
            f"{name} is loaded by a script, which datasets no longer runs: take its Parquet copy by --data.revision "
            f"{PARQUET}, or download its files and name them by --data.path"
        )
    if isinstance(error, ConnectionError):
        return (
            f"data set {name} is not in the cache, and the Hub cannot be asked: name it by --data.dataset where there "
            f"is a network, or files by --data.path ({message})"
        )
    return f"data set {name}: {message}"
