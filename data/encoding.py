"""Encoding documents block by block: in this process, or for a long text in as many as there are cores."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.split import Survey, digest
from data.tokenizer import MARK, Tokenizer

BLOCK = 500_000  # characters that a process encodes at once
MOST_PROCESSES = 8  # each has an interpreter of its own in memory
ONE_PROCESS = 8_000_000  # bytes of text below which other processes are not worth starting


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


def encode_block(documents: list[str], tokenizer: Tokenizer, border: bytes) -> Block:
    """Encode documents, those whose hash lies below `border` apart."""
    dtype = id_type(tokenizer.vocab_size)
    raws = [document.encode("utf-8") for document in documents]
    digests = [digest(raw) for raw in raws]
    train = [document for document, hashed in zip(documents, digests, strict=True) if hashed >= border]
    apart = [index for index, hashed in enumerate(digests) if hashed < border]
    ids = tokenizer.encode_all([documents[index] for index in apart]).astype(dtype)
    each = np.split(ids, np.flatnonzero(ids == MARK) + 1)
    validation = [
        Document(digests[index], own, len(documents[index]) + 1, len(raws[index]) + 1)
        for index, own in zip(apart, each, strict=False)  # behind the last mark there is nothing
    ]
    size = sum(map(len, raws)) + len(raws) - sum(document.bytes for document in validation)
    ids = tokenizer.encode_all(train).astype(dtype)
    return Block(b"".join(digests), ids, len(train), sum(map(len, train)) + len(train), size, validation)


def encoded(blocks: Iterator[list[str]], tokenizer: Tokenizer, found: Survey) -> Iterator[Block]:
    """Encode blocks in order; a long text by as many processes as this one may use cores."""
    count = workers(found.bytes)
    if count == 0:
        yield from (encode_block(block, tokenizer, found.border) for block in blocks)
        return
    start = (tokenizer.model, found.border)
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
    """Return how many processes encode a text of `size` bytes beside this one; 0 where this one does it by itself."""
    return min(cores(), MOST_PROCESSES) if size >= ONE_PROCESS and cores() > 1 else 0


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def begin_worker(model: bytes, border: bytes) -> None:
    """Make a process ready for `work`: Ctrl-C is the first process's affair, and its death ends this one."""
    global _tokenizer, _border
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    _tokenizer, _border = Tokenizer(model), border


def end_with(parent: Any) -> None:
    """End this process when its parent has, however it did."""
    parent.join()
    os._exit(1)


def work(documents: list[str]) -> Block:
    """Encode documents in a process that `begin_worker` made ready."""
    return encode_block(documents, _tokenizer, _border)


_tokenizer: Tokenizer  # of a process that encodes
_border: bytes


def id_type(vocab_size: int) -> type[np.unsignedinteger]:
    """Return the narrowest type that holds every id of the vocabulary."""
    return np.uint16 if vocab_size <= 2**16 else np.uint32
