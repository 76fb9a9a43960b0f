"""From documents to token files: split, train the tokenizer on one side, encode both, keep the result."""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from data import tokenizer
from data.config import TokenizerConfig
from data.read import Say, position_by_content, split, text_hash
from data.tokenizer import MARK, Tokenizer

FORMAT = "malssi-tokens/1"  # part of every key: a change of what is written here must change it
FOLDER = Path(__file__).parent / "prepared"


@dataclass(frozen=True)
class Tokens:
    """One side of the split as ids: the mark, a document, the mark, a document, … the mark."""

    ids: np.ndarray  # (pieces,), uint16 or uint32, mapped from disk
    documents: int
    characters: int  # of the documents after NFC, and one an end mark
    bytes: int  # likewise in UTF-8

    @property
    def targets(self) -> int:
        """Pieces to predict: all but the first mark."""
        return len(self.ids) - 1


@dataclass(frozen=True)
class Prepared:
    """A text made ready for training."""

    tokenizer: Tokenizer
    train: Tokens
    validation: Tokens
    text_hash: str


def encode(documents: list[str], by: Tokenizer) -> Tokens:
    """Return `documents` in order as ids, the document mark before, between and after them."""
    ids = [MARK]
    arrays = []
    dtype = id_type(by.vocab_size)
    for document in documents:
        ids.extend(by.encode(document))
        ids.append(MARK)
        if len(ids) > 1_000_000:  # so that a large text never stands in memory as Python numbers
            arrays.append(np.array(ids, dtype))
            ids = []
    return Tokens(
        ids=np.concatenate([*arrays, np.array(ids, dtype)]),
        documents=len(documents),
        characters=sum(len(document) + 1 for document in documents),
        bytes=sum(len(document.encode("utf-8")) + 1 for document in documents),
    )


def id_type(vocab_size: int) -> type[np.unsignedinteger]:
    """Return the narrowest type that holds every id of the vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def prepare(
    documents: list[str],
    config: TokenizerConfig,
    eval_pieces: int,
    say: Say = lambda line: None,
    folder: Path | None = None,
) -> Prepared:
    """Return the two sides of `documents` as ids, from `folder` where the same text was prepared before.

    folder: left out, data/prepared.
    eval_pieces: the validation side is kept to about this many pieces, whole documents chosen by content hash.
    Raises ValueError where the text is too small to be split.
    """
    hashed = text_hash(documents)
    given = tokenizer.load(config.path) if config.path else None
    settings = {**asdict(config), "path": given.hash if given else None}
    folder = folder or FOLDER
    key = hashlib.sha256(json.dumps([FORMAT, hashed, settings, eval_pieces]).encode("utf-8")).hexdigest()[:16]
    place = folder / key
    if place.exists():
        try:
            ready = load(place, hashed)
            say(f"prepared before: {place}")
            return ready
        except (OSError, ValueError):
            say(f"{place} is damaged: made anew")
            shutil.rmtree(place)

    train, validation = split(documents)
    if not train:
        raise ValueError(
            f"the text has {len(documents)} document, which leaves none to train on beside the validation side: "
            "add text, or part it by --data.unit line"
        )
    trained = given or tokenizer.train(train, config, say)
    draft = folder / f"{key}.{os.getpid()}"
    draft.mkdir(parents=True, exist_ok=True)
    try:
        (draft / "tokenizer.model").write_bytes(trained.model)
        save(draft / "train.safetensors", encode(train, trained), trained)
        save(draft / "validation.safetensors", encode(chosen(validation, trained, eval_pieces), trained), trained)
        if not place.exists():  # another process may have been faster with the same text
            draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return load(place, hashed)


def chosen(documents: list[str], by: Tokenizer, pieces: int) -> list[str]:
    """Return, in order, the documents with the lowest content hashes that together stay within `pieces`."""
    taken: set[int] = set()
    total = 0
    for index in sorted(range(len(documents)), key=lambda index: position_by_content(documents[index])):
        total += len(by.encode(documents[index])) + 1
        if total > pieces and taken:
            break
        taken.add(index)
    return [document for index, document in enumerate(documents) if index in taken]


def save(path: Path, tokens: Tokens, by: Tokenizer) -> None:
    """Write one side with the hash of the tokenizer that made it."""
    counts = {"documents": tokens.documents, "characters": tokens.characters, "bytes": tokens.bytes}
    # In one entry, since safetensors writes several in no fixed order, and the same input shall give the same bytes.
    metadata = json.dumps({"format": FORMAT, "tokenizer": by.hash, "counts": counts})
    save_file({"ids": tokens.ids}, path, metadata={"malssi": metadata})


def load(place: Path, hashed: str) -> Prepared:
    """Open a prepared folder; raises ValueError where a file is damaged or another tokenizer's."""
    by = tokenizer.load(place / "tokenizer.model")
    return Prepared(
        by, open_tokens(place / "train.safetensors", by), open_tokens(place / "validation.safetensors", by), hashed
    )


def open_tokens(path: Path, by: Tokenizer) -> Tokens:
    """Map one side from disk, so that memory does not grow with the text."""
    try:
        with safe_open(path, "np") as file:
            metadata = json.loads((file.metadata() or {}).get("malssi", "{}"))
            kind = file.get_slice("ids").get_dtype()
            shape = file.get_slice("ids").get_shape()
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if metadata.get("format") != FORMAT or metadata.get("tokenizer") != by.hash:
        raise ValueError(f"{path} was not made with {path.parent / 'tokenizer.model'}")
    dtype = np.dtype(id_type(by.vocab_size)).newbyteorder("<")
    if kind != f"U{dtype.itemsize * 8}":
        raise ValueError(f"{path} holds ids as {kind}, where {by.vocab_size} pieces call for U{dtype.itemsize * 8}")
    with path.open("rb") as raw:
        header = int.from_bytes(raw.read(8), "little")
    return Tokens(np.memmap(path, dtype, "r", offset=8 + header, shape=tuple(shape)), **metadata["counts"])
