"""From documents to token files: split, train the tokenizer on one side, encode both, keep the result.

The documents are read twice and never held together: first to know the text (its hash, its sides, the tokenizer's
sample), then to encode it, by as many processes as there are cores where it is long.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from data import tokenizer
from data.config import TokenizerConfig
from data.files import BLANK, naming, replace_file, seal, verify
from data.read import Say
from data.tokenizer import MARK, SAMPLE_BYTES, Tokenizer

FORMAT = "malssi-tokens/2"  # part of every key: a change of what is written here must change it
FOLDER = Path(__file__).parent / "prepared"
VALIDATION_SHARE = 0.05
BLOCK = 500_000  # characters that a process encodes at once
MOST_PROCESSES = 8  # each has an interpreter of its own in memory
ALONE = 8_000_000  # bytes of text below which other processes are not worth starting


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


@dataclass(frozen=True)
class Survey:
    """What one reading of a text tells."""

    hash: str  # of the hashes of the documents in order, by which a run knows its text again
    border: bytes  # documents whose hash lies below it are the validation side
    documents: int
    bytes: int  # in UTF-8
    sample: list[str]  # of the training side, what a tokenizer learns from
    training_bytes: int

    def side(self, documents: Iterable[str], validation: bool) -> "Side":
        """Return one side of the same `documents`."""
        return Side(documents, self.border, validation)


@dataclass(frozen=True)
class Side:
    """The documents of one side, read anew each time: decided by their content, so that none ever changes sides."""

    documents: Iterable[str]
    border: bytes
    validation: bool

    def __iter__(self) -> Iterator[str]:
        """Yield document by document."""
        return (text for text in self.documents if (digest(text.encode("utf-8")) < self.border) is self.validation)


def digest(document: bytes) -> bytes:
    """Return the SHA-256 of a document; read as a number, it lies anywhere with the same chance."""
    return hashlib.sha256(document).digest()


def below(share: float) -> bytes:
    """Return the border below which this share of all hashes lies."""
    return min(round(share * 2**64), 2**64 - 1).to_bytes(8, "big")


def survey(documents: Iterable[str]) -> Survey:
    """Read `documents` once; of the training side, whole documents of at most 20 MB are kept as the sample.

    The sample is halved by content hash whenever it grows beyond that. Where no document falls among the 5 % of
    validation, the one with the lowest hash is taken.
    """
    text, count, size = hashlib.sha256(), 0, 0
    border, lowest = below(VALIDATION_SHARE), b"\xff" * 32
    sample: list[tuple[bytes, str, int]] = []  # hash, document, bytes
    share, sampled, training = 1.0, 0, 0
    taken = below(share)
    for document in bar(documents, None, "reading"):
        raw = document.encode("utf-8")
        hashed = digest(raw)
        text.update(hashed)
        count, size = count + 1, size + len(raw)
        if hashed < lowest:
            lowest = hashed
        if hashed < border:
            continue
        training += len(raw)
        if hashed[8:] < taken:  # by other digits than those that decide the side
            sample.append((hashed, document, len(raw)))
            sampled += len(raw)
        while sampled > SAMPLE_BYTES:
            share /= 2
            taken = below(share)
            sample = [entry for entry in sample if entry[0][8:] < taken]
            sampled = sum(length for _, _, length in sample)
    if lowest >= border:
        border = lowest + b"\0"  # just above it
    kept = [document for hashed, document, _ in sample if hashed >= border]
    training -= sum(length for hashed, _, length in sample if hashed < border)
    return Survey(text.hexdigest(), border, count, size, kept, training)


def prepare(
    documents: Iterable[str],
    config: TokenizerConfig,
    eval_pieces: int,
    say: Say = lambda line: None,
    folder: Path | None = None,
    own: Tokenizer | None = None,
) -> Prepared:
    """Return the two sides of `documents` as ids, from `folder` where the same text was prepared before.

    documents: read once where it was, twice where not.
    folder: left out, data/prepared.
    eval_pieces: the validation side is kept to about this many pieces, whole documents chosen by content hash.
    own: the tokenizer of a run that goes on, in place of the one that `config` would give.
    Raises ValueError where the text is too small to be split, OSError that names the place where the disk is full.
    """
    found, folder = survey(documents), folder or FOLDER
    if not found.sample:
        raise ValueError(
            f"the text has {found.documents} document, which leaves none to train on beside the validation side: "
            "add text, or part it by --data.unit line"
        )
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    by = own or (tokenizer.load(config.path) if config.path else learned(found, config, folder, say))
    place = folder / key(found.hash, by.hash, eval_pieces)
    with alone(place.with_suffix(".lock"), say):
        if place.exists():
            try:
                ready = load(place, by, found.hash)
                say(f"prepared before: {place}")
                return ready
            except (OSError, ValueError):
                say(f"{place} is damaged: made anew")
                shutil.rmtree(place)
        draft = place.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        try:
            with naming(draft):
                draft.mkdir()
                say(f"encoding {found.bytes:,} bytes in {workers(found.bytes) or 1} processes")
                make(draft, documents, found, by, eval_pieces)
                draft.rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return load(place, by, found.hash)


def key(*parts: object) -> str:
    """Return a name for what is made of `parts`: the same input has the same name."""
    return hashlib.sha256(json.dumps([FORMAT, *parts]).encode("utf-8")).hexdigest()[:16]


def learned(found: Survey, config: TokenizerConfig, folder: Path, say: Say) -> Tokenizer:
    """Return the tokenizer of a text, trained once and kept under a name that holds its hash."""
    name = key(found.hash, asdict(config))
    for path in folder.glob(f"{name}-*.model"):
        with suppress(OSError, ValueError):
            by = tokenizer.load(path)
            if by.hash.startswith(path.stem.removeprefix(f"{name}-")):
                return by
    by = tokenizer.train(found.sample, config, say, found.training_bytes)
    replace_file(folder / f"{name}-{by.hash[:16]}.model", by.model)
    return by


@contextmanager
def alone(lock: Path, say: Say) -> Iterator[None]:
    """Hold `lock`; where another process prepares the same text, wait until it has. A kill leaves no lock behind."""
    try:
        held = FileLock(lock).acquire(timeout=0)
    except Timeout:
        say("another process prepares the same text: waiting for it")
        held = FileLock(lock).acquire()
    with held:
        yield


def make(draft: Path, documents: Iterable[str], found: Survey, by: Tokenizer, eval_pieces: int) -> None:
    """Encode both sides of `documents` into token files in the folder `draft`."""
    text, validation = hashlib.sha256(), Lowest(eval_pieces)
    with TokenFile(draft / "train.safetensors", by) as train, bar(None, found.bytes, "encoding") as progress:
        for block in encoded(blocks(documents), by, found):
            text.update(block.digests)
            train.add(block.ids, block.documents, block.characters, block.bytes)
            for each in block.validation:
                validation.add(each)
            progress.update(block.bytes)
    if text.hexdigest() != found.hash:
        raise ValueError("the text changed while it was being prepared: start again when it is at rest")
    with TokenFile(draft / "validation.safetensors", by) as file:
        for each in validation.in_order():
            file.add(each.ids, 1, each.characters, each.bytes)


def blocks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield `documents` a handful at a time."""
    block, characters = [], 0
    for document in documents:
        block.append(document)
        characters += len(document)
        if characters >= BLOCK:
            yield block
            block, characters = [], 0
    yield block


def bar(documents: Iterable[str] | None, size: int | None, what: str) -> tqdm:
    """Return a progress bar on stderr, shown on a terminal when it takes longer than a second."""
    unit = {"unit": " documents"} if size is None else {"unit": "B", "unit_scale": True}
    return tqdm(documents, what, size, leave=False, disable=None, delay=1, dynamic_ncols=True, **unit)


@dataclass(frozen=True)
class Document:
    """One encoded document of the validation side."""

    hash: bytes
    ids: np.ndarray  # the mark behind it included
    characters: int
    bytes: int


@dataclass(frozen=True)
class Block:
    """What encoding some documents gave: those of the training side in one, those of validation each."""

    digests: bytes  # the SHA-256 of every document
    ids: np.ndarray
    documents: int
    characters: int
    bytes: int
    validation: list[Document]


def encode_block(documents: list[str], by: Tokenizer, border: bytes) -> Block:
    """Encode documents, those whose hash lies below `border` apart."""
    dtype = id_type(by.vocab_size)
    raws = [document.encode("utf-8") for document in documents]
    digests = [digest(raw) for raw in raws]
    train = [document for document, hashed in zip(documents, digests, strict=True) if hashed >= border]
    apart = [index for index, hashed in enumerate(digests) if hashed < border]
    ids = by.encode_all([documents[index] for index in apart]).astype(dtype)
    each = np.split(ids, np.flatnonzero(ids == MARK) + 1)
    validation = [
        Document(digests[index], own, len(documents[index]) + 1, len(raws[index]) + 1)
        for index, own in zip(apart, each, strict=False)  # behind the last mark there is nothing
    ]
    size = sum(map(len, raws)) + len(raws) - sum(document.bytes for document in validation)
    ids = by.encode_all(train).astype(dtype)
    return Block(b"".join(digests), ids, len(train), sum(map(len, train)) + len(train), size, validation)


def encoded(blocks: Iterator[list[str]], by: Tokenizer, found: Survey) -> Iterator[Block]:
    """Encode blocks in order; a long text by as many processes as this one may use cores."""
    count = workers(found.bytes)
    if count == 0:
        yield from (encode_block(block, by, found.border) for block in blocks)
        return
    start = (by.model, found.border)
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), begin_worker, start) as pool:
        waiting: deque[Future[Block]] = deque()
        try:
            for block in blocks:
                waiting.append(pool.submit(work, block))
                if len(waiting) > 2 * count:  # no more, so that memory stays small
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def workers(size: int) -> int:
    """Return how many processes encode a text of `size` bytes beside this one; 0 where this one does it alone."""
    return min(cores(), MOST_PROCESSES) if size >= ALONE and cores() > 1 else 0


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin_worker(model: bytes, border: bytes) -> None:
    """Make a process ready for `work`: Ctrl-C is the first process's affair, and its death ends this one."""
    global _by, _border
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    _by, _border = Tokenizer(model), border


def end_with(parent: Any) -> None:
    """End this process when its parent has, however it did."""
    parent.join()
    os._exit(1)


def work(documents: list[str]) -> Block:
    """Encode documents in a process that `begin_worker` made ready."""
    return encode_block(documents, _by, _border)


_by: Tokenizer
_border: bytes


class Lowest:
    """Of the documents added, those with the lowest content hashes that together stay within so many pieces."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.total, self.count = pieces, 0, 0
        self.heap: list[tuple[int, int, Document]] = []  # the highest hash first, then the place in the text

    def add(self, document: Document) -> None:
        """Add the next document of the text."""
        heappush(self.heap, (-int.from_bytes(document.hash, "big"), self.count, document))
        self.count += 1
        self.total += len(document.ids)
        while len(self.heap) > 1 and self.total - len(self.heap[0][2].ids) > self.pieces:
            self.total -= len(heappop(self.heap)[2].ids)

    def in_order(self) -> list[Document]:
        """Return them as they come in the text."""
        if len(self.heap) > 1 and self.total > self.pieces:
            heappop(self.heap)
        return [document for _, _, document in sorted(self.heap, key=lambda entry: entry[1])]


def encode(documents: Iterable[str], by: Tokenizer) -> Tokens:
    """Return `documents` in order as ids, the document mark before, between and after them."""
    arrays, count, characters, size = [np.array([MARK], id_type(by.vocab_size))], 0, 0, 0
    for block in blocks(documents):
        arrays.append(by.encode_all(block).astype(id_type(by.vocab_size)))
        count += len(block)
        characters += sum(map(len, block)) + len(block)
        size += sum(len(document.encode("utf-8")) for document in block) + len(block)
    return Tokens(np.concatenate(arrays), count, characters, size)


def id_type(vocab_size: int) -> type[np.unsignedinteger]:
    """Return the narrowest type that holds every id of the vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32


class TokenFile:
    """A safetensors file of ids that grows block by block, and gets its header with a checksum when it is closed."""

    HEADER = 1024  # bytes kept free for it

    def __init__(self, path: Path, by: Tokenizer) -> None:
        self.path, self.by, self.dtype = path, by, np.dtype(id_type(by.vocab_size)).newbyteorder("<")
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
                about = {"format": FORMAT, "tokenizer": self.by.hash, "counts": self.counts, "sha256": BLANK.decode()}
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


def load(place: Path, by: Tokenizer, hashed: str) -> Prepared:
    """Open a prepared folder; raises ValueError where a file is damaged or another tokenizer's."""
    train, validation = (open_tokens(place / f"{side}.safetensors", by) for side in ("train", "validation"))
    return Prepared(by, train, validation, hashed)


def open_tokens(path: Path, by: Tokenizer) -> Tokens:
    """Map one side from disk, so that memory does not grow with the text."""
    verify(path)
    try:
        with safe_open(path, "np") as file:
            metadata = json.loads((file.metadata() or {}).get("malssi", "{}"))
            kind = file.get_slice("ids").get_dtype()
            shape = file.get_slice("ids").get_shape()
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if metadata.get("format") != FORMAT or metadata.get("tokenizer") != by.hash:
        raise ValueError(f"{path} was not made by this tokenizer")
    dtype = np.dtype(id_type(by.vocab_size)).newbyteorder("<")
    if kind != f"U{dtype.itemsize * 8}":
        raise ValueError(f"{path} holds ids as {kind}, where {by.vocab_size} pieces call for U{dtype.itemsize * 8}")
    with path.open("rb") as raw:
        header = int.from_bytes(raw.read(8), "little")
    return Tokens(np.memmap(path, dtype, "r", offset=8 + header, shape=tuple(shape)), **metadata["counts"])
