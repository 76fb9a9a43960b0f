"""From files to documents: find the files, decode them by a fixed order, part them into documents, one at a time."""

import codecs
import glob
import gzip
import io
import os
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from data.config import DataConfig

PLAIN, TABLES = (".txt", ".md"), (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
SUFFIXES = (*PLAIN, *TABLES)  # and each of them with .gz behind it
LEAST_DOCUMENTS = 20  # below this many, the text is cut into stretches, or the split would be a matter of luck
STRETCH = 1000  # characters
LONGEST = 1_000_000  # characters; a longer document is cut, so that memory does not grow with it
BLOCK = 1_000_000  # characters read at once
MARKS = [
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose little-endian mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]
BOM = "\ufeff"
# Before one of these, composing never reaches back: there a text can be cut and NFC taken of each part.
APART = re.compile(r"[\n -~가-힣]")

Say = Callable[[str], None]


def nfc(text: str) -> str:
    """Return `text` in Unicode's composed form, so that 각 is one character however it was typed.

    This also unifies the 268 duplicate Hanja of KS X 1001 (U+F914 becomes U+6A02).
    """
    return unicodedata.normalize("NFC", text)


def line_ends(text: str) -> str:
    """Return `text` with every kind of line end as \\n."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def clean(text: str) -> str:
    """Return a prompt as a text is read: line ends as \\n, no BOM, in NFC. Raises ValueError where it holds NUL."""
    with suppress(UnicodeError):  # of a command line that Python read in a locale without Hangul
        text = text.encode("utf-8", "surrogateescape").decode("utf-8")
    if "\0" in text:
        raise ValueError("the text holds NUL characters, which no text does")
    return nfc(line_ends(text).replace(BOM, ""))


def decode(raw: bytes, name: str) -> str:
    """Return the text of a prompt's bytes, decoded by the same rules as a file of text."""
    try:
        encoding = find_encoding(partial(io.BytesIO, raw), None, name)
    except ValueError:
        raise ValueError(f"{name} is neither UTF-8 nor CP949, nor what its BOM says") from None
    return clean(raw.decode(encoding))


class Text:
    """The documents of a config, in order and in NFC, read anew each time they are iterated and never held together."""

    def __init__(self, config: DataConfig, say: Say = lambda line: None, offline: bool = False) -> None:
        """Find the files; `say` prints how each is read, the first time. offline: take data sets from the cache alone.

        Raises ValueError or OSError in one line where a file is missing, empty of text, or not to be decoded; what
        lies inside a file is met when it is read.
        """
        self.config, self.offline, self._say = config, offline, say
        self.said: set[str] = set()
        self.files = find_files(config.path, say) if config.path else []
        self.encodings: dict[Path, str] = {}
        self._data: Any = None  # the open data set

    def say(self, line: str) -> None:
        """Say a line, but not again when the text is read again."""
        if line not in self.said:
            self.said.add(line)
            self._say(line)

    def __iter__(self) -> Iterator[str]:
        """Yield document by document."""
        config, count, long, self.left_out, self.marks = self.config, 0, 0, 0, 0
        for document in islice((each for row in self.rows() for each in part(row, config.unit)), config.limit):
            count += 1
            long += len(document) >= LONGEST
            yield document
        if not count:
            raise ValueError(f"no text in {config.where}: nothing there, or only blank lines and empty rows")
        for number, what in (
            (self.left_out, "rows without text, left out"),
            (self.marks, "BOMs inside the text, left out"),
            (long, f"stretches of {LONGEST:,} characters, cut at line ends from longer documents"),
        ):
            if number:
                self.say(f"{what}: {number:,}")
        self.say(f"{count:,} documents by unit '{config.unit}'{PARTED[config.unit]}")

    def rows(self) -> Iterator[Iterable[str]]:
        """Yield each file, or each row of a table, in blocks."""
        if self.config.dataset:
            from data.tables import dataset_rows, open_dataset

            self._data = self._data or open_dataset(self.config, self.offline)
            yield from self.cleaned(dataset_rows(self._data, self.config, self.say), self.config.dataset)
        for number, file in enumerate(self.files):
            kind = kind_of(file)
            if kind == ".parquet":
                from data.tables import parquet_rows

                yield from self.cleaned(parquet_rows(file, self.config.text_column, self.say), str(file))
                continue
            if file.name.lower().removesuffix(".gz").endswith(".json"):
                raise ValueError(f"{file}: .json holds no rows; make it .jsonl, or name its folder by --data.dataset")
            if file not in self.encodings:
                self.encodings[file] = find_encoding(partial(opened, file), self.config.encoding, str(file))
            encoding = self.encodings[file]
            if len(self.files) <= 10 or encoding != "utf-8":
                self.say(f"{file}: read as {encoding.removesuffix('-sig')}")
            elif number == 10:
                self.say(f"{len(self.files)} files, read as utf-8 where nothing else is said")
            blocks = (self.clean(block, str(file)) for block in decoded(file, encoding))
            if kind in TABLES:
                from data.tables import line_rows

                yield from self.cleaned(line_rows(blocks, kind, self.config.text_column, file, self.say), str(file))
            else:
                yield blocks

    def cleaned(self, rows: Iterable[str | None], where: str) -> Iterator[list[str]]:
        """Yield the rows that hold text; those that do not are counted."""
        for row in rows:
            if row is None or not row.strip():
                self.left_out += 1
            else:
                yield [self.clean(line_ends(row), where)]

    def clean(self, text: str, where: str) -> str:
        """Return `text` in NFC without BOMs; raise ValueError for what no text holds."""
        if BOM in text:
            self.marks += text.count(BOM)
            text = text.replace(BOM, "")
        if "\0" in text:
            raise ValueError(f"{where} holds NUL characters, which no text does: mend it, or name its --data.encoding")
        return nfc(text)


class Stretches:
    """Documents cut into stretches of about 1,000 characters, each time they are iterated."""

    def __init__(self, documents: Iterable[str]) -> None:
        self.documents = documents

    def __iter__(self) -> Iterator[str]:
        """Yield stretch by stretch."""
        return (stretch for document in self.documents for stretch in cut(document, STRETCH))


def enough(documents: Iterable[str], say: Say = lambda line: None) -> Iterable[str]:
    """Return `documents`, or where they are fewer than 20 the stretches of about 1,000 characters they are cut into."""
    if sum(1 for _ in islice(documents, LEAST_DOCUMENTS)) >= LEAST_DOCUMENTS:
        return documents
    say(
        f"fewer than {LEAST_DOCUMENTS} documents: cut at line ends (overlong lines at spaces) into stretches of about "
        f"{STRETCH:,} characters"
    )
    return Stretches(documents)


def find_files(paths: tuple[str, ...], say: Say = lambda line: None) -> list[Path]:
    """Return the text files that files, folders (searched whole) and globs name, each once, in order.

    Links are followed; one file that several names lead to is read once. What is left out of a folder is said: hidden
    files, such as those that macOS puts beside each file of an archive, other endings, dead links, and README.md,
    which is about the texts and none of them.
    """
    found: dict[str, Path] = {}  # by the real file
    for path in map(typed, paths):
        if os.path.isdir(path):
            names = in_folder(Path(path), say)
        elif os.path.isfile(path):
            names = [Path(path)]
            if not kind_of(names[0]) and not names[0].name.lower().removesuffix(".gz").endswith(".json"):
                say(f"{path}: of no known ending, read as plain text")
        elif os.path.exists(path):
            raise ValueError(f"{path} is neither a file nor a folder")
        else:
            names = sorted((Path(name) for name in glob.glob(path, recursive=True)), key=in_order)
            names = [name for name in names if name.is_file()]
            if not names:
                raise FileNotFoundError(f"no such file or folder: {path}")
        for name in names:
            first = found.setdefault(os.path.realpath(name), name)
            if first != name:
                say(f"{name}: the same file as {first}, read once")
    return list(found.values())


def typed(path: str) -> str:
    """Return `path` as it is stored: a name of Hangul may be typed composed and stored decomposed, or the reverse."""
    forms = (path, nfc(path), unicodedata.normalize("NFD", path))
    return next((form for form in forms if os.path.exists(form)), path)


def in_folder(folder: Path, say: Say) -> list[Path]:
    """Return the text files of a folder and of those inside it. Raises OSError where one cannot be looked into."""
    names: list[Path] = []
    left_out: dict[str, list[Path]] = {}
    visited: set[str] = set()

    def stop(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:  # a link back to a folder that it lies in
            folders.clear()
            continue
        visited.add(real)
        hidden = [name for name in folders if name.startswith(".")]
        folders[:] = sorted(set(folders) - set(hidden), key=nfc)
        for path in [Path(place, name) for name in (*hidden, *files)]:
            if path.name.startswith("."):
                left_out.setdefault("hidden", []).append(path)
            elif not path.exists():
                left_out.setdefault("dead links", []).append(path)
            elif path.name.lower() == "readme.md":
                left_out.setdefault("name by --data.path to read", []).append(path)
            elif not kind_of(path) or not path.is_file():
                left_out.setdefault("of another kind", []).append(path)
            else:
                names.append(path)
    for why, paths in left_out.items():
        more = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
        say(f"left out ({why}): {', '.join(map(str, sorted(paths, key=in_order)[:3]))}{more}")
    if not names:
        raise ValueError(f"no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file in the folder {folder}")
    return sorted(names, key=in_order)


def in_order(path: Path) -> tuple[str, ...]:
    """Return what files are sorted by: the same on file systems that compose Hangul in names and those that do not."""
    return tuple(nfc(part) for part in path.parts)


def kind_of(path: Path) -> str:
    """Return the suffix that tells what a file holds, .gz taken off; empty where it is none of ours."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def opened(path: Path) -> BinaryIO:
    """Open a file to read its bytes, unpacked."""
    return cast(BinaryIO, gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb"))


def find_encoding(open_it: Callable[[], BinaryIO], asked: str | None, name: str) -> str:
    """Return the encoding that all of a file is valid in; raises ValueError that names the file where there is none.

    A fixed order, since short Korean bytes fool every detector: the encoding asked for, else a
    BOM, else strict UTF-8, else strict CP949 (the code page of Korean Windows, a superset of EUC-KR).
    """
    trials = [asked] if asked else []
    if not trials:
        with damaged_named(name), open_it() as file:
            start = file.read(4)
        trials = [codec for mark, codec in MARKS if start.startswith(mark)][:1] or ["utf-8", "cp949"]
    for trial in trials:
        try:
            with damaged_named(name), io.TextIOWrapper(open_it(), encoding=trial) as file:
                for _ in text_blocks(file):
                    pass
        except LookupError:
            raise ValueError(f"unknown encoding '{trial}' for --data.encoding") from None
        except UnicodeError:
            continue
        return trial
    tried = " or ".join(trial.removesuffix("-sig") for trial in trials)
    raise ValueError(f"{name} is not valid {tried}: name its encoding by --data.encoding")


def decoded(path: Path, encoding: str) -> Iterator[str]:
    """Yield the text of a file in blocks, line ends as \\n, cut where NFC of each block is NFC of the whole."""
    rest = ""
    with damaged_named(str(path)), io.TextIOWrapper(opened(path), encoding=encoding) as file:
        for block in text_blocks(file):
            rest += block
            border = next((at for at in range(len(rest) - 1, 0, -1) if APART.match(rest, at)), 0)
            if border:
                yield rest[:border]
                rest = rest[border:]
    if rest:
        yield rest


def text_blocks(file: TextIO) -> Iterator[str]:
    """Yield what a text file holds, a block at a time."""
    return iter(lambda: file.read(BLOCK), "")


class damaged_named:
    """Lets a damaged archive name itself in one line."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (EOFError, zlib.error, gzip.BadGzipFile)):
            raise ValueError(f"{self.name} is damaged: {error}") from None


PARTED = {
    "document": ", parted by blank lines",
    "line": ", blank lines left out",
    "file": ", blank lines kept",
}
BETWEEN: dict[str, Callable[[str], list[str]]] = {
    "document": re.compile(r"\n(?:[ \t]*\n)+").split,
    "line": lambda text: text.split("\n"),
    "file": lambda text: [text],
}


def part(blocks: Iterable[str], unit: str) -> Iterator[str]:
    """Yield the documents of one file, or of one row; the line end that closes each belongs to none of them."""
    return (document for document in parted(blocks, unit) if document.strip())


def parted(blocks: Iterable[str], unit: str) -> Iterator[str]:
    """Yield what lies between the borders of the unit, blank or not."""
    rest = ""
    for block in blocks:
        rest += block
        if unit == "document":
            rest = rest.lstrip("\n")
        settled = len(rest.rstrip(" \t\n"))  # a blank line may not have ended yet
        *whole, last = BETWEEN[unit](rest[:settled])
        yield from whole
        if len(last) > 2 * LONGEST:
            *whole, last = cut(last, LONGEST)
            yield from whole
        rest = last + rest[settled:]
    rest = rest.removesuffix("\n") if unit == "file" else rest.rstrip("\n")
    yield from BETWEEN[unit](rest)


def cut(document: str, size: int) -> Iterator[str]:
    """Yield `document` in stretches that end with the first line after `size` characters.

    Where none ends within twice that, a stretch ends at a space, or where there is none, just there. The line end or
    space at a cut is left out, blank stretches too.
    """
    start = 0
    while len(document) - start > size:
        end = document.find("\n", start + size, start + 2 * size)
        if end < 0:
            end = document.find(" ", start + size, start + 2 * size)
        if end < 0 and len(document) - start <= 2 * size:
            break
        between = end >= 0
        stretch = document[start : end if between else start + size]
        start += len(stretch) + between
        if stretch.strip():
            yield stretch
    if document[start:].strip():
        yield document[start:]
