"""What can be set about the text and its tokenizer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

AtLeastOne = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the text lies and where its documents part."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    path: Annotated[tuple[str, ...], "text files, folders or globs; replaces the config's list"] = ("data/corpus",)
    unit: Annotated[
        Literal["document", "line", "file"],
        "what a document is: a stretch between blank lines, a line, or a whole file",
    ] = "document"
    encoding: Annotated[str | None, "encoding of the files, when the fixed order of trials reads them wrong"] = None
    limit: Annotated[AtLeastOne | None, "read at most this many documents"] = None


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How text is cut into pieces."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Annotated[Literal["bpe", "unigram"], "how SentencePiece chooses the pieces"] = "bpe"
    vocab_size: Annotated[AtLeastOne, "number of pieces, the 256 byte pieces among them"] = 4096
    coverage: Annotated[
        float | None,
        "share of the text whose characters get a piece of their own, the rest being written in bytes; "
        "left out, as much as two fifths of the vocabulary can hold",
    ] = None
    path: Annotated[str | None, "use this tokenizer.model instead of training one"] = None

    def __post_init__(self) -> None:
        if self.coverage is not None and not 0.98 <= self.coverage <= 1:
            raise ValueError(f"coverage must lie between 0.98 and 1, not {self.coverage}")
