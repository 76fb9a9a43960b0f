"""Text to tokens and back, exactly: SentencePiece with nothing normalised but what `nfc` composes in sight."""

import codecs
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import sentencepiece

from data.config import TokenizerConfig
from data.read import Say, nfc

UNKNOWN, MARK = 0, 1  # ids; byte fallback leaves nothing unknown, SentencePiece wants the token all the same
SAMPLE_BYTES = 20_000_000  # of a text, at most, that a tokenizer is trained on
LONG = 10_000  # characters
CHUNK = 1000  # characters; SentencePiece leaves out lines over 4,192 bytes, and four bytes are the longest character
RESERVED = re.compile("[\0\t\n\u2581\u2585]")  # SentencePiece gives these a meaning of its own: never inside a token
TINY, HUGE = 10, 10**7  # vocabularies that no text allows: asking for them gives the bounds
NUL = "\0"
LINES = re.compile(r"(?:(?<=\n)|\A)(?=[^\n])")  # where one that is not empty begins
LINES_AND_DOCUMENTS = re.compile(r"(?:(?<=[\n\0])|\A)(?=[^\n\0])")  # where NUL parts documents
SPACE = "\u2581"  # how SentencePiece writes a space inside a token


class Tokenizer:
    """A SentencePiece model whose `decode(encode(text))` is `nfc(text)`, character for character.

    Every line is encoded with one space before it, which decoding takes off: so a word is the same token
    at the start of a line as inside it. U+2581, SentencePiece's own sign for a space, goes through as bytes.
    """

    def __init__(self, model: bytes) -> None:
        """Load a tokenizer from the bytes of a `tokenizer.model`; no path ever reaches C++ code.

        Raises ValueError if they are not a model of the kind that `train` makes.
        """
        self.model = model
        self.hash = hashlib.sha256(model).hexdigest()
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, TypeError):
            raise ValueError("the tokenizer is no SentencePiece model, or it is damaged") from None
        self._bytes = [self._bytes_of(id) for id in range(self.vocab_size)]
        usable = self._processor.is_control(MARK) and self._processor.is_unknown(UNKNOWN)
        if not usable or not all(self._processor.is_byte(id) for id in self._byte_ids(bytes(range(256)))):
            raise ValueError(
                "the tokenizer lacks byte tokens or the document mark: train one here, without --tokenizer.path"
            )

    @property
    def vocab_size(self) -> int:
        """The number of tokens really made."""
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` after NFC, without the document mark.

        Raises ValueError where `text` holds a lone surrogate, which no UTF-8 text can.
        """
        ids: list[int] = []
        for index, part in enumerate(spaced(valid(nfc(text))).split(SPACE)):
            if index:
                ids.extend(self._byte_ids(SPACE.encode("utf-8")))
            for stretch in lines(part):
                ids.extend(self._processor.encode(stretch))
        return ids

    def encode_all(self, documents: Sequence[str]) -> np.ndarray:
        """Return the ids of `documents`, the document mark behind each: (tokens,), int32.

        What `encode` gives for each, several times as fast where they are short: many go through SentencePiece
        at once, NUL between them, which no text holds and which becomes a token of its own.
        """
        parts, several, length = [], list[str](), 0
        for document in documents:
            if SPACE in document or NUL in document or len(document) > LONG:
                parts += [self._several(several), np.array([*self.encode(document), MARK], np.int32)]
                several, length = [], 0
            else:
                several.append(document)
                length += len(document)
            if length > LONG:
                parts.append(self._several(several))
                several, length = [], 0
        return np.concatenate([*parts, self._several(several)])

    def _several(self, documents: list[str]) -> np.ndarray:
        """Encode documents without NUL or U+2581 in them, joined."""
        text = spaced(valid(nfc("".join(document + NUL for document in documents))), LINES_AND_DOCUMENTS)
        ids = self._processor.encode_as_numpy(text)
        ends = ids == self._byte_ids(b"\0")[0]
        if ends.sum() != len(documents):  # a tokenizer from elsewhere, that has tokens with NUL in them
            return np.array([id for document in documents for id in (*self.encode(document), MARK)], np.int32)
        return np.where(ends, np.int32(MARK), ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; marks have none, and the bytes of an unfinished last character are left out."""
        return "".join(self.stream(ids))

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text that each id completes, perhaps none; joined, this is what `decode` returns."""
        stream = Stream(self)
        for id in ids:
            yield stream.add(id)

    def token(self, id: int) -> str:
        """Return the token of `id` as SentencePiece writes it, a space as U+2581."""
        return self._processor.id_to_piece(id)

    def label(self, id: int) -> str:
        """Return the token of `id` for a person to read: marks named, a space as ␣, a line end as ⏎."""
        if id in (UNKNOWN, MARK):
            return "〈unknown〉" if id == UNKNOWN else "〈mark〉"
        return self.token(id).replace(SPACE, "␣").replace("\n", "⏎").replace("\t", "⇥")

    def bytes_of(self, id: int) -> bytes:
        """Return the UTF-8 bytes that `id` adds to a text."""
        return self._bytes[id]

    def _bytes_of(self, id: int) -> bytes:
        if self._processor.is_control(id) or self._processor.is_unknown(id):
            return b""
        token = self._processor.id_to_piece(id)
        if self._processor.is_byte(id):
            return bytes([int(token[1:-1], 16)])
        return token.replace(SPACE, " ").encode("utf-8")

    def _byte_ids(self, raw: bytes) -> list[int]:
        return [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in raw]


class Stream:
    """Decodes id by id without ever giving half a syllable: bytes wait until their character is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._line_starts = True

    def add(self, id: int) -> str:
        """Return the text that `id` completes; a document mark has none, and a line starts after it."""
        if id == MARK:
            self._line_starts = True
            return ""
        text = self._utf8.decode(self._tokenizer.bytes_of(id))
        out = re.sub(r"\n ", "\n", text[1:] if self._line_starts and text.startswith(" ") else text)
        if text:
            self._line_starts = text.endswith("\n")
        return out

    @property
    def unfinished(self) -> bool:
        """Whether bytes of a character still wait for the rest of it."""
        return bool(self._utf8.getstate()[0])


def spaced(text: str, starts: re.Pattern[str] = LINES) -> str:
    """Return `text` with a space before each line that is not empty."""
    return starts.sub(" ", text)


def lines(text: str) -> Iterator[str]:
    """Yield a text whole, or where it is long in stretches that begin with a line end.

    SentencePiece needs much memory for each character it is given at once, and none of our tokens reaches over a line
    end.
    """
    start = 0
    while len(text) - start > LONG and (end := text.find("\n", start + LONG)) > 0:
        yield text[start:end]
        start = end
    yield text[start:]


def valid(text: str) -> str:
    """Return `text`; raise ValueError where it holds a lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}), "
            "which is no character"
        ) from None
    return text


def train(
    documents: list[str], config: TokenizerConfig, say: Say = lambda line: None, given: int | None = None
) -> Tokenizer:
    """Train a tokenizer on `documents`; the same documents and settings give the same model bytes.

    given: bytes of the text that `documents` are a sample of, to be printed. A vocabulary that the text cannot fill, or
    too small for its characters, is replaced by the nearest possible size, and both bounds are printed. Raises
    ValueError where no tokenizer can be made of the text.
    """
    taken = sum(len(document.encode("utf-8")) for document in documents)
    if config.coverage is None:
        config = replace(config, coverage=coverage(documents, config.vocab_size))
    say(
        f"tokenizer: {config.kind}, trained on {taken:,} of {given or taken:,} bytes; "
        f"{config.coverage:.3%} of the characters by tokens, the rest by bytes"
    )
    model, bound = attempt(documents, config, max(config.vocab_size, TINY))
    if model is None:
        least, most = attempt(documents, config, TINY)[1], attempt(documents, config, HUGE)[1]
        size = min(max(config.vocab_size, least), most)
        say(
            f"vocab_size {config.vocab_size:,} does not suit this text, which allows {least:,} to {most:,}: "
            f"{size:,} taken"
        )
        model, bound = attempt(documents, config, size)
    if model is None:
        raise ValueError(
            f"no {config.kind} tokenizer of {config.vocab_size:,} tokens can be made: try vocab_size {bound:,}"
        )
    return Tokenizer(model)


def coverage(documents: list[str], vocab_size: int) -> float:
    """Return the share of the text that the commonest characters make up, two fifths of the vocabulary of them.

    Characters in bytes should be rare: all of them begin with the same few bytes, and a model that is about to write
    any rare character finds those first bytes likely, and then writes one that does not exist.
    """
    counts = Counter(character for document in documents for character in document)
    common = sum(count for _, count in counts.most_common(vocab_size * 2 // 5))
    return min(max(common / counts.total(), 0.98), 1.0)  # the bounds that SentencePiece sets


def attempt(documents: list[str], config: TokenizerConfig, vocab_size: int) -> tuple[bytes | None, int]:
    """Train with just this `vocab_size`; return the model, or None and the bound that the size oversteps."""
    buffer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chunks(documents),
            model_writer=buffer,
            model_type=config.kind,
            vocab_size=vocab_size,
            character_coverage=config.coverage,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,  # `spaced` does it, line by line
            byte_fallback=True,
            user_defined_symbols=["\n", "\t"],
            unk_id=UNKNOWN,
            bos_id=MARK,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # a machine's own count would change the order of sums, and with it the tokens
            max_sentence_length=5 * CHUNK,
            minloglevel=2,
        )
    except RuntimeError as error:  # its text is the only place where SentencePiece tells the bounds
        bound = re.search(r"(?:value <=|\d+ vs) (\d+)", str(error))
        if bound is None:
            raise ValueError("SentencePiece found nothing in this text to make tokens of") from error
        return None, int(bound[1])
    return buffer.getvalue(), vocab_size


def chunks(documents: list[str]) -> Iterator[str]:
    """Yield the lines of `documents` as SentencePiece may see them, long ones cut between characters."""
    for document in documents:
        for part in RESERVED.split(spaced(document)):
            for start in range(0, len(part), CHUNK):
                yield part[start : start + CHUNK]


def load(path: str | Path) -> Tokenizer:
    """Load a `tokenizer.model`; raises ValueError or OSError in one line that names the file."""
    try:
        return Tokenizer(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
