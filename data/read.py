"""From files to documents: find the files, decode them by a fixed order, part them into documents."""

import codecs
import glob
import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from data.config import DataConfig

SUFFIXES = (".txt", ".md")
VALIDATION_SHARE = 0.05
LEAST_DOCUMENTS = 20  # below this many, the text is cut into stretches, or the split would be a matter of luck
STRETCH = 1000  # characters
MARKS = [
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose little-endian mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]

Say = Callable[[str], None]


def nfc(text: str) -> str:
    """Return `text` in Unicode's composed form, so that 각 is one character however it was typed.

    This also unifies the 268 duplicate Hanja of KS X 1001 (U+F914 becomes U+6A02).
    """
    return unicodedata.normalize("NFC", text)


def read_documents(config: DataConfig, say: Say = lambda line: None) -> list[str]:
    """Return every document of `config.path` in order, in NFC, with `say` told how each file was read.

    Raises ValueError or OSError in one line where a file is missing, empty of text, or not to be decoded.
    """
    files = find_files(config.path, say)
    documents: list[str] = []
    for file in files:
        text, encoding = decode(file.read_bytes(), config.encoding, str(file))
        if len(files) <= 10 or encoding != "utf-8":
            say(f"{file}: read as {encoding}")
        documents.extend(part(text, config.unit))
        if config.limit and len(documents) >= config.limit:
            documents = documents[: config.limit]
            break
    if len(files) > 10:
        say(f"{len(files)} files read, as utf-8 where nothing else is said above")
    if not documents:
        raise ValueError(f"no text in {', '.join(config.path)}: the files are empty or hold only blank lines")
    say(f"{len(documents):,} documents by unit '{config.unit}'{PARTED[config.unit]}")
    return documents


def enough(documents: list[str], say: Say = lambda line: None) -> list[str]:
    """Return `documents`, or where they are fewer than 20 the stretches of about 1,000 characters they are cut into."""
    if len(documents) >= LEAST_DOCUMENTS:
        return documents
    stretches = [stretch for document in documents for stretch in cut(document)]
    say(
        f"fewer than {LEAST_DOCUMENTS} documents: cut at line ends (overlong lines at spaces) into "
        f"{len(stretches):,} stretches of about {STRETCH:,} characters"
    )
    return stretches


def find_files(paths: tuple[str, ...], say: Say = lambda line: None) -> list[Path]:
    """Return the text files that files, folders (searched whole) and globs name, each once, in order.

    A folder's README.md tells of the texts and is none of them: left out, and said.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if os.path.isdir(path):
            names = [name for name in sorted(Path(path).rglob("*")) if name.suffix.lower() in SUFFIXES]
            for name in [name for name in names if name.name.lower() == "readme.md"]:
                say(f"{name}: left out (name it by --data.path to read it)")
                names.remove(name)
            names = [name for name in names if name.is_file()]
            if not names:
                raise ValueError(f"no {' or '.join(SUFFIXES)} file in the folder {path}")
        elif os.path.exists(path):
            names = [Path(path)]
        else:
            names = [Path(name) for name in sorted(glob.glob(path, recursive=True)) if os.path.isfile(name)]
            if not names:
                raise FileNotFoundError(f"no such file or folder: {path}")
        found.update(dict.fromkeys(names))
    return list(found)


def decode(raw: bytes, encoding: str | None, name: str) -> tuple[str, str]:
    """Return the text of `raw` with line ends as \\n and in NFC, and the encoding it was read in.

    A fixed order, since short Korean bytes fool every detector: the encoding asked for, else a byte-order
    mark, else strict UTF-8, else strict CP949 (the code page of Korean Windows, a superset of EUC-KR).
    """
    if encoding:
        trials = [encoding]
    else:
        marked = [codec for mark, codec in MARKS if raw.startswith(mark)]
        trials = marked[:1] or ["utf-8", "cp949"]
    for trial in trials:
        try:
            text = raw.decode(trial)
        except LookupError:
            raise ValueError(f"unknown encoding '{trial}' for --data.encoding") from None
        except (UnicodeDecodeError, UnicodeError):
            continue
        text = text.removeprefix("\ufeff")
        if "\0" in text:
            raise ValueError(f"{name} holds NUL characters, so it is no {trial} text: name it by --data.encoding")
        return nfc(text.replace("\r\n", "\n").replace("\r", "\n")), trial.removesuffix("-sig")
    raise ValueError(f"{name} is not valid {' or '.join(trials)}: name its encoding by --data.encoding")


PARTED = {
    "document": ", parted by blank lines",
    "line": ", blank lines left out",
    "file": ", blank lines kept",
}


def part(text: str, unit: str) -> Iterator[str]:
    """Yield the documents of one file; the line end that closes each belongs to none of them."""
    if unit == "file":
        parts = [text.removesuffix("\n")]
    elif unit == "line":
        parts = text.split("\n")
    else:
        parts = re.split(r"\n(?:[ \t]*\n)+", text.strip("\n"))
    yield from (part for part in parts if part.strip())


def cut(document: str) -> Iterator[str]:
    """Yield `document` in stretches of about 1,000 characters that end where a line ends.

    A line over twice that is itself cut, at spaces where it has some; the line end or space at a cut is left out.
    """
    stretch = ""
    for line in document.split("\n"):
        while len(line) > 2 * STRETCH:
            space = line.find(" ", STRETCH, 2 * STRETCH)
            if stretch.strip():
                yield stretch
                stretch = ""
            yield line[: space if space > 0 else STRETCH]
            line = line[space + 1 if space > 0 else STRETCH :]
        stretch = f"{stretch}\n{line}" if stretch else line
        if len(stretch) >= STRETCH:
            yield stretch
            stretch = ""
    if stretch.strip():
        yield stretch


def position_by_content(document: str) -> float:
    """Return a number in [0, 1) that the text of `document` alone decides, so that it never changes sides."""
    return int.from_bytes(hashlib.sha256(document.encode("utf-8")).digest()[:8], "big") / 2**64


def split(documents: list[str]) -> tuple[list[str], list[str]]:
    """Part documents into a training and a validation side by content hash, 5 % validation.

    A text so small that none falls on the validation side gives it the one with the lowest hash.
    """
    positions = [position_by_content(document) for document in documents]
    border = max(VALIDATION_SHARE, min(positions) + 1e-12)
    train = [document for document, position in zip(documents, positions, strict=True) if position >= border]
    validation = [document for document, position in zip(documents, positions, strict=True) if position < border]
    return train, validation


def text_hash(documents: list[str]) -> str:
    """Return the SHA-256 of the documents in order, by which a run knows its text again."""
    digest = hashlib.sha256()
    for document in documents:
        encoded = document.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
