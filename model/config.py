"""The shape of the transformer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, Lt

AtLeastOne = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of the transformer; the defaults suit a laptop. GPT-2 has bias, learned positions and gelu_tanh."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    layers: Annotated[AtLeastOne, "blocks, one after the other"] = 4
    heads: Annotated[AtLeastOne, "attention heads in each block"] = 4
    width: Annotated[AtLeastOne, "size of the vector at each position"] = 192
    context: Annotated[AtLeastOne, Le(2**16), "longest look-back, in tokens"] = 128
    dropout: Annotated[
        float, Ge(0), Lt(1), "share of what is embedded, and of what each layer adds, set to zero while training"
    ] = 0.0
    position: Annotated[
        Literal["rotary", "learned", "sinusoidal", "none"], "how the model knows the order of tokens"
    ] = "rotary"
    bias: Annotated[bool, "biases in linear layers and layer norms, as GPT-2 has"] = False
    activation: Annotated[Literal["gelu", "gelu_tanh"], "exact GELU, or GPT-2's approximation by tanh"] = "gelu"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        if self.position == "rotary" and self.head_width % 2:
            raise ValueError(f"rotary positions need an even width of a head, not {self.head_width}")
        if self.position == "sinusoidal" and self.width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {self.width}")

    @property
    def head_width(self) -> int:
        """D, the width of one head."""
        return self.width // self.heads
