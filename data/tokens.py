"""Token files: the ids of one side of a text, written block by block, mapped from the disk when they are read."""

import hashlib
import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.encoding import blocks, id_type
from data.files import BLANK, read_header, seal, verify
from data.tokenizer import MARK, Tokenizer

FORMAT = "malssi-tokens/2"  # part of every name of a prepared text: a change of what is written must change it


@dataclass(frozen=True)
class Tokens:
    """One side of the split as ids: the mark, a document, the mark, a document, … the mark."""

    ids: np.ndarray  # (tokens,), uint16 or uint32, mapped from disk
    documents: int
    characters: int  # of the documents after NFC, and one an end mark
    bytes: int  # likewise in UTF-8

    @property
    def targets(self) -> int:
        """Tokens to predict: all but the first mark."""
        return len(self.ids) - 1


def encode(documents: Iterable[str], tokenizer: Tokenizer) -> Tokens:
    """Return `documents` in order as ids, the document mark before, between and after them."""
    arrays, count, characters, size = [np.array([MARK], id_type(tokenizer.vocab_size))], 0, 0, 0
    for block in blocks(documents):
        arrays.append(tokenizer.encode_all(block).astype(id_type(tokenizer.vocab_size)))
        count += len(block)
        characters += sum(map(len, block)) + len(block)
        size += sum(len(document.encode("utf-8")) for document in block) + len(block)
    return Tokens(np.concatenate(arrays), count, characters, size)


class TokenFile:
    """A safetensors file of ids that grows block by block, and gets its header with a checksum when it is closed."""

    HEADER = 1024  # bytes kept free for it

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self.path, self.tokenizer, self.dtype = (
            path,
            tokenizer,
            np.dtype(id_type(tokenizer.vocab_size)).newbyteorder("<"),
        )
        self.length, self.counts, self.hash = 0, {"documents": 0, "characters": 0, "bytes": 0}, hashlib.sha256()

    def __enter__(self) -> "TokenFile":
        self.file: BinaryIO = self.path.open("xb")
        self.file.write(bytes(self.HEADER))
        self.write(np.array([MARK]))
        return self

    def add(self, ids: np.ndarray, documents: int, characters: int, size: int) -> None:
        """Append documents, each with its mark behind it."""
        self.write(ids)
        for name, more in zip(self.counts, (documents, characters, size), strict=True):
            self.counts[name] += more

    def write(self, ids: np.ndarray) -> None:
        """Append ids."""
        raw = ids.astype(self.dtype).tobytes()
        self.file.write(raw)
        self.hash.update(raw)
        self.length += len(ids)

    def __exit__(self, kind: object, *_: object) -> None:
        with self.file:
            if kind is None:
                about = {
                    "format": FORMAT,
                    "tokenizer": self.tokenizer.hash,
                    "counts": self.counts,
                    "sha256": BLANK.decode(),
                }
                header = {
                    "__metadata__": {"malssi": json.dumps(about)},
                    "ids": {
                        "dtype": f"U{8 * self.dtype.itemsize}",
                        "shape": [self.length],
                        "data_offsets": [0, self.length * self.dtype.itemsize],
                    },
                }
                raw = json.dumps(header).encode("utf-8").ljust(self.HEADER - 8)
                self.file.seek(0)
                self.file.write(struct.pack("<Q", len(raw)) + seal(raw, self.hash.digest()))
                self.file.flush()
                os.fsync(self.file.fileno())


def open_tokens(path: Path, tokenizer: Tokenizer) -> Tokens:
    """Map one side from disk, so that memory does not grow with the text."""
    verify(path)
    header = read_header(path)
    try:
        metadata = json.loads(header["__metadata__"]["malssi"])
        kind, shape, start = header["ids"]["dtype"], header["ids"]["shape"], header["ids"]["data_offsets"][0]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if metadata.get("format") != FORMAT or metadata.get("tokenizer") != tokenizer.hash:
        raise ValueError(f"{path} was not made by this tokenizer")
    dtype = np.dtype(id_type(tokenizer.vocab_size)).newbyteorder("<")
    if kind != f"U{dtype.itemsize * 8}":
        raise ValueError(
            f"{path} holds ids as {kind}, where {tokenizer.vocab_size} tokens call for U{dtype.itemsize * 8}"
        )
    with path.open("rb") as raw:
        start += 8 + int.from_bytes(raw.read(8), "little")
    return Tokens(np.memmap(path, dtype, "r", offset=start, shape=tuple(shape)), **metadata["counts"])
