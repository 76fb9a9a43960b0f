"""What can be set about the text and its tokenizer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

AtLeastOne = Annotated[int, Ge(1), Le(10**12)]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the text lies and where its documents part."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    path: Annotated[
        tuple[str, ...],
        "files (.txt .md .jsonl .csv .tsv .parquet, also .gz), folders or globs; replaces the config's list",
    ] = ()
    dataset: Annotated[
        str | None, "a Hugging Face data set in place of files: a name on the Hub, or a folder that holds one"
    ] = None
    subset: Annotated[str | None, "which part of the data set, such as 20231101.ko"] = None
    split: Annotated[str, "which split of the data set"] = "train"
    revision: Annotated[str | None, "which branch, tag or commit of the data set"] = None
    streaming: Annotated[bool, "read the data set as it comes, twice, instead of downloading it first"] = False
    text_column: Annotated[str | None, "the column of a table that holds the text; left out, the one named text"] = None
    unit: Annotated[
        Literal["document", "line", "file"],
        "what a document is: a stretch between blank lines, a line, or a whole file (or row of a table)",
    ] = "document"
    encoding: Annotated[str | None, "encoding of the files, when the fixed order of trials reads them wrong"] = None
    limit: Annotated[AtLeastOne | None, "read at most this many documents"] = None

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.dataset):
            raise ValueError("exactly one of path and dataset must be set")

    @property
    def where(self) -> str:
        """Where the text lies, to be printed."""
        return self.dataset or ", ".join(self.path)


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How text is cut into tokens."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    kind: Annotated[Literal["bpe", "unigram"], "how SentencePiece chooses the tokens"] = "bpe"
    vocab_size: Annotated[int, Ge(1), Le(10**6), "number of tokens, the 256 byte tokens among them"] = 4096
    coverage: Annotated[
        float | None,
        "share of the text whose characters get a token of their own, the rest being written in bytes; "
        "left out, as much as two fifths of the vocabulary can hold",
    ] = None
    path: Annotated[str | None, "use this tokenizer.model instead of training one"] = None

    def __post_init__(self) -> None:
        if self.coverage is not None and not 0.98 <= self.coverage <= 1:
            raise ValueError(f"coverage must lie between 0.98 and 1, not {self.coverage}")
