"""One reading of a text: its hash, which document is on which side, and the sample a tokenizer is trained on."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from data.progress import bar
from data.tokenizer import SAMPLE_BYTES

VALIDATION_SHARE = 0.05


@dataclass(frozen=True)
class Survey:
    """What one reading of a text finds."""

    hash: str  # of the hashes of the documents in order, by which a run knows its text again
    border: bytes  # documents whose hash lies below it are the validation side; empty where there is none
    documents: int
    bytes: int  # in UTF-8
    sample: list[str]  # of the training side, what a tokenizer learns from
    training_bytes: int

    @property
    def parted(self) -> bool:
        """Whether the text has a validation side."""
        return bool(self.border)

    def side(self, documents: Iterable[str], validation: bool) -> "Side":
        """Return one side of the same `documents`."""
        return Side(documents, self.border, validation)


@dataclass(frozen=True)
class Side:
    """The documents of one side, read anew each time: which side one is on is decided by its content."""

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
    validation, or every one does, the one with the lowest hash is taken; a text of fewer than two different documents
    is not parted.
    """
    text, count, size = hashlib.sha256(), 0, 0
    border, lowest, highest = below(VALIDATION_SHARE), b"\xff" * 32, b""
    sample: list[tuple[bytes, str, int]] = []  # hash, document, bytes
    share, sampled, training = 1.0, 0, 0
    taken = below(share)
    aside: list[str] = []  # of the validation side, until one of the training side comes
    for document in bar(documents, None, "reading"):
        raw = document.encode("utf-8")
        hashed = digest(raw)
        text.update(hashed)
        count, size = count + 1, size + len(raw)
        lowest, highest = min(lowest, hashed), max(highest, hashed)
        if hashed < border:
            if not training:
                aside.append(document)
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
    if not training:  # a few documents, all below the border
        sample = [(digest(raw), document, len(raw)) for document in aside for raw in [document.encode("utf-8")]]
        training = size
    if lowest >= highest:  # all the same, or none
        border = b""
    elif lowest >= border or highest < border:
        border = lowest + b"\0"  # just above it
    kept = [document for hashed, document, _ in sample if hashed >= border]
    training -= sum(length for hashed, _, length in sample if hashed < border)
    return Survey(text.hexdigest(), border, count, size, kept, training)
