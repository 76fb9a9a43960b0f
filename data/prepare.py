"""From documents to token files: split, train the tokenizer on one side, encode both, keep the result.

The documents are read twice and never held together: first to know the text (its hash, its sides, the tokenizer's
sample), then to encode it.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from pathlib import Path

from filelock import FileLock, Timeout

from data import tokenizer as tokenizers
from data.config import TokenizerConfig
from data.encoding import Document, blocks, encoded, workers
from data.files import naming, replace_file
from data.progress import bar
from data.read import Say
from data.split import Survey, survey
from data.tokenizer import Tokenizer
from data.tokens import FORMAT, TokenFile, Tokens, open_tokens

FOLDER = Path(__file__).parent / "prepared"


@dataclass(frozen=True)
class Prepared:
    """A text ready for training."""

    tokenizer: Tokenizer
    train: Tokens
    validation: Tokens | None  # None where the text has fewer than two different documents
    text_hash: str


def prepare(
    documents: Iterable[str],
    config: TokenizerConfig,
    eval_tokens: int,
    say: Say = lambda line: None,
    folder: Path | None = None,
    own: Tokenizer | None = None,
) -> Prepared:
    """Return the two sides of `documents` as ids, from `folder` where the same text was prepared before.

    documents: read once where it was, twice where not.
    folder: left out, data/prepared.
    eval_tokens: the validation side is kept to about this many tokens, whole documents chosen by content hash.
    own: the tokenizer of a run that goes on, in place of the one that `config` would give.
    Raises OSError that names the place where the disk is full.
    """
    found, folder = survey(documents), folder or FOLDER
    if not found.parted:
        say("fewer than two different documents: all of the text is training text, and none is left for validation")
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tokenizer = own or (tokenizers.load(config.path) if config.path else learned(found, config, folder, say))
    place = folder / key(found.hash, tokenizer.hash, eval_tokens)
    with held(place.with_suffix(".lock"), say):
        if place.exists():
            try:
                ready = load(place, tokenizer, found)
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
                make(draft, documents, found, tokenizer, eval_tokens)
                draft.rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return load(place, tokenizer, found)


def key(*parts: object) -> str:
    """Return a name for what is made of `parts`: the same input has the same name."""
    return hashlib.sha256(json.dumps([FORMAT, *parts]).encode("utf-8")).hexdigest()[:16]


def learned(found: Survey, config: TokenizerConfig, folder: Path, say: Say) -> Tokenizer:
    """Return the tokenizer of a text, trained once and kept under a name that holds its hash."""
    name = key(found.hash, asdict(config))
    for path in folder.glob(f"{name}-*.model"):
        with suppress(OSError, ValueError):
            tokenizer = tokenizers.load(path)
            if tokenizer.hash.startswith(path.stem.removeprefix(f"{name}-")):
                return tokenizer
    tokenizer = tokenizers.train(found.sample, config, say, found.training_bytes)
    replace_file(folder / f"{name}-{tokenizer.hash[:16]}.model", tokenizer.model)
    return tokenizer


@contextmanager
def held(lock: Path, say: Say) -> Iterator[None]:
    """Hold `lock`; where another process prepares the same text, wait until it has. A kill leaves no lock behind."""
    try:
        lock_held = FileLock(lock).acquire(timeout=0)
    except Timeout:
        say("another process prepares the same text: waiting for it")
        lock_held = FileLock(lock).acquire()
    with lock_held:
        yield


def make(draft: Path, documents: Iterable[str], found: Survey, tokenizer: Tokenizer, eval_tokens: int) -> None:
    """Encode both sides of `documents` into token files in the folder `draft`."""
    text, validation = hashlib.sha256(), Lowest(eval_tokens)
    with TokenFile(draft / "train.safetensors", tokenizer) as train, bar(None, found.bytes, "encoding") as progress:
        for block in encoded(blocks(documents), tokenizer, found):
            text.update(block.digests)
            train.add(block.ids, block.documents, block.characters, block.bytes)
            for each in block.validation:
                validation.add(each)
            progress.update(block.bytes)
    if text.hexdigest() != found.hash:
        raise ValueError("the text changed while it was being prepared: start again when it is at rest")
    if not found.parted:
        return
    with TokenFile(draft / "validation.safetensors", tokenizer) as file:
        for each in validation.in_order():
            file.add(each.ids, 1, each.characters, each.bytes)


class Lowest:
    """Of the documents added, those with the lowest content hashes that together stay within so many tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.total, self.count = tokens, 0, 0
        self.heap: list[tuple[int, int, Document]] = []  # the highest hash first, then the place in the text

    def add(self, document: Document) -> None:
        """Add the next document of the text."""
        heappush(self.heap, (-int.from_bytes(document.hash, "big"), self.count, document))
        self.count += 1
        self.total += len(document.ids)
        while len(self.heap) > 1 and self.total - len(self.heap[0][2].ids) > self.tokens:
            self.total -= len(heappop(self.heap)[2].ids)

    def in_order(self) -> list[Document]:
        """Return them as they come in the text."""
        if len(self.heap) > 1 and self.total > self.tokens:
            heappop(self.heap)
        return [document for _, _, document in sorted(self.heap, key=lambda entry: entry[1])]


def load(place: Path, tokenizer: Tokenizer, found: Survey) -> Prepared:
    """Open a prepared folder; raises ValueError where a file is damaged or another tokenizer's."""
    train = open_tokens(place / "train.safetensors", tokenizer)
    validation = open_tokens(place / "validation.safetensors", tokenizer) if found.parted else None
    return Prepared(tokenizer, train, validation, found.hash)
