"""One model that learns: everything that a training step needs, and the step itself."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from machine.device import Say, autocast
from machine.memory import hold_memory
from model.fast.training import fast_loss
from model.gpt import GPT
from run.checkpoint import load_weights
from run.config import TrainConfig
from training.optimizer import make_optimizer

Batch = tuple[Tensor, Tensor]  # inputs and targets, (B, T) each


class NonFinite(ArithmeticError):
    """The loss or the gradient is not finite, so that a step would ruin the weights."""


class Learner:
    """A model with its optimizer, the dtype of its products, the scaler of its loss, and compiling."""

    def __init__(
        self, model: GPT, config: TrainConfig, dtype: torch.dtype, compile: bool = False, say: Say = lambda line: None
    ) -> None:
        """model: on its device; its weights stay fp32. dtype: of the matrix products."""
        hold_memory()
        self.model, self.config, self.say = model.train(), config, say
        self.device = model.device
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32 for what is not in half precision
        self.autocast = autocast(self.device, dtype)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)
        self.optimizer = make_optimizer(model, config, dtype)
        self.plain_loss = fast_loss(model)
        self.loss: Callable[[Tensor, Tensor], Tensor] = torch.compile(self.plain_loss) if compile else self.plain_loss
        self.skipped = 0  # steps left out since their fp16 gradients overflowed

    @property
    def compiled(self) -> bool:
        """Whether steps are compiled."""
        return self.loss is not self.plain_loss

    def update(self, batches: Sequence[Batch], rate: float) -> float:
        """Take one step at this learning rate on `batches` together; return the mean loss over all their targets.

        Raises NonFinite before the step where the loss or the gradient is not finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = self.add_gradients(batches)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm)
        loss, length = torch.stack([total, norm]).tolist()  # the only place where a card is waited for
        overflowed = not math.isfinite(length)
        # fp16's scaler leaves out a step that overflows and scales down; anywhere else that is the end of the run.
        if not math.isfinite(loss) or (overflowed and not self.scaler.is_enabled()):
            raise NonFinite(f"the loss is {loss:.4g}, the norm of its gradient {length:.4g}")
        self.skipped += int(overflowed)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def add_gradients(self, batches: Sequence[Batch]) -> Tensor:
        """Set each parameter's gradient to that of the mean loss over all targets; return that loss, a scalar.

        Where compiling fails, that is said once and the run goes on without it.
        """
        try:
            return self._add_gradients(batches)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # torch raises many kinds where a compiler is missing or fails
            if not self.compiled:
                raise
            self.say(f"compiling failed ({type(error).__name__}): going on without it")
            self.loss = self.plain_loss
            return self._add_gradients(batches)

    def _add_gradients(self, batches: Sequence[Batch]) -> Tensor:
        count = sum(targets.numel() for _, targets in batches)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for inputs, targets in batches:  # however the step is split, its gradient is the same
            with self.autocast():
                loss = self.loss(inputs, targets) / count
            self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def state_tensors(self) -> dict[str, Tensor]:
        """Return everything that training needs to go on as if it had never stopped, by name."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors.update({f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()})
        tensors["generator.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["generator.cuda"] = torch.cuda.get_rng_state(self.device)
        if self.scaler.is_enabled():
            state = self.scaler.state_dict()
            tensors["scaler.scale"] = torch.tensor(state["scale"])
            tensors["scaler.growth_tracker"] = torch.tensor(state["_growth_tracker"])
        return tensors

    def restore(self, tensors: dict[str, Tensor], path: Path) -> None:
        """Put back what `state_tensors` returned. Raises ValueError that names `path` where the two do not fit."""
        weights = {name.removeprefix("model."): tensors[name] for name in tensors if name.startswith("model.")}
        load_weights(self.model, weights, path)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if match := re.fullmatch(r"optimizer\.(\d{1,9})\.(\w+)", name):
                index = int(match[1])
                if index >= len(parameters) or tensor.dim() and tensor.shape != parameters[index].shape:
                    raise ValueError(f"{path} does not fit the model that config.yaml beside it describes: {name}")
                state.setdefault(index, {})[match[2]] = tensor
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})
        try:
            torch.set_rng_state(tensors["generator.cpu"])
        except (KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"{path} is damaged: no state of the random generator ({error})") from None
        if self.device.type == "cuda" and "generator.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["generator.cuda"], self.device)
        if self.scaler.is_enabled() and "scaler.scale" in tensors:
            saved = {"scale": tensors["scaler.scale"].item()}
            if "scaler.growth_tracker" in tensors:  # not in runs made before
                saved["_growth_tracker"] = int(tensors["scaler.growth_tracker"])
            self.scaler.load_state_dict({**self.scaler.state_dict(), **saved})
