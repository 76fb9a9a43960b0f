"""A run from its first step to its last, or from where it stopped."""

import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from data.batches import Place, Windows
from data.prepare import Prepared
from model.fast.training import fast_loss
from model.gpt import GPT
from training import checkpoint
from training.checkpoint import Progress
from training.config import Config, by_name
from training.device import NAMES, autocast, choose_device, choose_precision, compiled, hold_memory, product_rate
from training.evaluate import as_tensors, total_bits
from training.log import Log, clock, say
from training.optimizer import NonFinite, make_optimizer, update
from training.schedule import learning_rate
from training.write import USUAL, Writer

SNAPSHOT_LIMIT = 300  # MB; beyond, snapshots are off
SAMPLE_TOKENS = 60
SHARE_USED = 0.4  # of the rate of one matrix product; the default run was measured at 0.44


def train(
    config: Config, prepared: Prepared, folder: Path, resume: bool = False, init_from: Path | None = None
) -> bool:
    """Train in `folder` until the run is done or Ctrl-C asks it to stop; return whether it is done.

    With `resume`, goes on from state.safetensors. Raises ValueError or OSError in one line, NonFinite before a step
    that would ruin the weights.
    """
    trainer = Trainer(config, prepared, folder)
    if resume and checkpoint.begun(folder):
        trainer.resume()
    else:
        trainer.start(init_from)
    trainer.introduce()
    with Interrupt() as interrupt:
        trainer.begin()
        while not trainer.finished:
            trainer.step_once()
            stopping = interrupt.asked and not trainer.finished
            if trainer.due(config.train.sample_every_steps):
                trainer.sample()
            if trainer.due(config.train.eval_every_steps) or trainer.finished or (stopping and not trainer.best_step):
                trainer.evaluate()
            if trainer.snapshot_due():
                trainer.snapshot()
            if trainer.due(config.train.save_every_steps) or trainer.finished or stopping:
                trainer.save()
            if stopping:
                break
    trainer.log.close()
    return trainer.finished


class Interrupt:
    """Turns the first Ctrl-C into a wish, so that the step is finished and saved; the second leaves at once."""

    asked = False

    def __enter__(self) -> "Interrupt":
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self._before)
        say("stopping after this step; once more Ctrl-C leaves at once")


class Trainer:
    """The parts of a run and where it stands."""

    log: Log

    def __init__(self, config: Config, prepared: Prepared, folder: Path) -> None:
        hold_memory()
        self.config, self.prepared, self.folder = config, prepared, folder
        self.device = choose_device(config.device, say)
        state = folder / "state.safetensors"
        before = checkpoint.load(state, tensors=False)[1].precision if state.exists() else None
        self.dtype = choose_precision(config.precision, self.device, say, before)
        self.autocast = autocast(self.device, self.dtype)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.threads = torch.get_num_threads()
        self.step, self.seconds_before, self.best, self.best_step = 0, 0.0, math.inf, 0
        self.finished = False
        self.evaluation_seconds = 0.0
        self.started: float | None = None  # set when the first step is about to be taken
        torch.manual_seed(config.train.seed)
        self.model = GPT(config.model, prepared.tokenizer.vocab_size).to(self.device)
        self.optimizer = make_optimizer(self.model, config.train, self.dtype)
        self.windows = Windows(prepared.train.ids, config.model.context, config.train.seed)
        self.bits_per_nat = prepared.train.targets / prepared.train.characters / math.log(2)

    # Beginning

    def start(self, init_from: Path | None) -> None:
        """Begin a new run, from random weights or from those of another run."""
        if init_from is not None:
            weights, _ = checkpoint.load(init_from / "model.safetensors")
            checkpoint.load_weights(self.model, weights, init_from / "model.safetensors")

    def resume(self) -> None:
        """Take up weights, optimizer, generators and place in the data where they were saved."""
        path = self.folder / "state.safetensors"
        tensors, progress = checkpoint.load(path)
        checkpoint.check_tokenizer(self.folder, self.prepared.tokenizer, progress, path.name)
        if progress.text != self.prepared.text_hash:
            raise ValueError(f"the text is not the one that {self.folder} was trained on: name that one by --data.path")
        if progress.threads != self.threads:
            torch.set_num_threads(progress.threads)
            say(f"using {progress.threads} threads as this run did before, so that sums are added in the same order")
            self.threads = progress.threads
        checkpoint.restore(tensors, self.model, self.optimizer, self.scaler, path)
        self.step, self.seconds_before = progress.step, progress.seconds
        self.windows = Windows(
            self.prepared.train.ids,
            self.config.model.context,
            self.config.train.seed,
            Place(progress.epoch, progress.used),
        )
        _, best = checkpoint.load(self.folder / "model.safetensors", tensors=False)
        checkpoint.check_tokenizer(self.folder, self.prepared.tokenizer, best, "model.safetensors")
        self.best, self.best_step = best.best, best.step
        for snapshot in (self.folder / "snapshots").glob("step-*.safetensors"):
            if int(snapshot.stem.removeprefix("step-")) > self.step:
                snapshot.unlink()
        say(f"resuming {self.folder} after step {self.step}")

    def introduce(self) -> None:
        """Say what is about to happen: sizes, epochs, memory, time, snapshots."""
        train, text, model = self.config.train, self.prepared, self.model
        shape = self.config.model
        say(
            f"model: {model.parameter_count:,} parameters · {shape.layers} layers, {shape.heads} heads, "
            f"width {shape.width}, context {shape.context}, {model.vocab_size:,} pieces"
        )
        say(
            f"text: {text.train.documents:,} documents, {text.train.targets:,} tokens to train on; evaluations in "
            f"training cover {text.validation.documents:,} validation documents, {text.validation.targets:,} tokens"
        )
        seconds = 60 * (train.minutes or 0)
        length = f"{train.minutes or 0:g} minutes"
        if train.steps is not None:
            tokens = train.steps * train.batch_size * shape.context
            length = f"{train.steps:,} steps, {tokens:,} tokens, {tokens / text.train.targets:.1f} epochs"
            if self.device.type == "cpu":
                rate = product_rate(self.dtype)
                seconds = tokens * flops_per_token(model) / (SHARE_USED * rate)
                length += (
                    f" · about {clock(seconds)}, if {SHARE_USED:.0%} of a product's {rate / 1e9:,.0f} GFLOP/s are used"
                )
        memory = memory_estimate(self.config, model, self.dtype)
        say(f"run: {length} · about {memory:,.0f} MB of memory beside torch's own")
        size = 2 * model.parameter_count * train.snapshots / 1e6
        self.snapshots = train.snapshots if size <= SNAPSHOT_LIMIT else 0
        if train.snapshots:
            off = "" if self.snapshots else f": off, since that is above {SNAPSHOT_LIMIT} MB"
            say(f"snapshots: about {train.snapshots} of {size / train.snapshots:.1f} MB, {size:,.0f} MB in all{off}")
        self.loss = compiled(fast_loss(self.model), self.config.compile, seconds, self.device, say)

    def begin(self) -> None:
        """Open the logs; evaluate and save an untrained model, so that a run can be read from its first moment."""
        train = self.config.train
        self.log = Log(self.folder, by_name(self.config), self.config.wandb, self.step)
        self.model.train()
        self.finished = self.step >= train.steps if train.steps is not None else self.progress_before() >= 1
        if self.step == 0:
            self.evaluate()
            self.snapshot()
            self.save()
        self.progress_at_start = self.step / train.steps if train.steps else self.progress_before()
        self.started = time.perf_counter()

    # Time

    @property
    def seconds(self) -> float:
        """Training time so far, that before a resume included."""
        return self.seconds_before + (0.0 if self.started is None else time.perf_counter() - self.started)

    def progress_before(self) -> float:
        """Return the share of its minutes that a resumed run has used."""
        return self.seconds_before / (60 * (self.config.train.minutes or math.inf))

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1; the last evaluation and save fit into the minutes."""
        train = self.config.train
        if train.steps is not None:
            return self.step / train.steps
        assert train.minutes is not None
        available = 60 * train.minutes - 1.5 * self.evaluation_seconds
        return min(self.seconds / max(available, 1e-9), 1.0)

    def due(self, every: int) -> bool:
        """Whether a step that is a multiple of `every` was just taken; never if that is 0."""
        return every > 0 and self.step % every == 0

    # Doing

    def step_once(self) -> None:
        """Take one update and log it."""
        train, began, progress = self.config.train, time.perf_counter(), self.progress
        rate = learning_rate(progress, train)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = as_tensors(*self.windows.next(train.batch_size), self.device)
        batches = list(zip(inputs.split(train.at_once), targets.split(train.at_once), strict=True))
        try:
            loss = update(self.loss, self.optimizer, batches, train.max_norm, self.autocast, self.scaler)
        except NonFinite as error:
            raise NonFinite(
                f"stopped before step {self.step + 1} at rate {rate:.3g}: {error}. The last save in {self.folder} is "
                "untouched; a lower --train.learning_rate may help"
            ) from None
        self.step += 1
        done = self.progress
        self.finished = done >= 1
        seconds = self.seconds
        values = {
            "step": self.step,
            "seconds": round(seconds, 3),
            "loss": loss,
            "bits_per_character": loss * self.bits_per_nat,
            "learning_rate": rate,
            "tokens_per_second": round(inputs.numel() / (time.perf_counter() - began), 1),
        }
        left = (seconds - self.seconds_before) * (1 - done) / max(done - self.progress_at_start, 1e-9)
        keep = self.step <= 10 or self.due(train.log_every_steps) or self.finished
        self.log.training(values, done, left, keep)

    def evaluate(self) -> None:
        """Measure bits per character on the validation documents, and keep the weights where they are the best yet."""
        began = time.perf_counter()
        validation = self.prepared.validation
        # No more at once than in training, so that evaluating needs no more memory.
        bits = total_bits(self.model, validation.ids, self.config.train.at_once)
        figure = bits / validation.characters
        self.log.validation(self.step, figure)
        if figure < self.best:
            self.best, self.best_step = figure, self.step
            self.save_weights(self.folder / "model.safetensors", self.model.state_dict())
        self.evaluation_seconds = time.perf_counter() - began

    def save(self) -> None:
        """Save everything that going on needs, in one file."""
        self.log.flush()
        tensors = checkpoint.state_tensors(self.model, self.optimizer, self.scaler)
        checkpoint.save(self.folder / "state.safetensors", tensors, self.where())

    def where(self) -> Progress:
        """Return where the run stands."""
        return Progress(
            step=self.step,
            text=self.prepared.text_hash,
            tokenizer=self.prepared.tokenizer.hash,
            epoch=self.windows.place.epoch,
            used=self.windows.place.used,
            seconds=self.seconds,
            threads=self.threads,
            precision=NAMES[self.dtype],
            finished=self.finished,
            best=self.best,
        )

    def sample(self) -> None:
        """Let the model write a few words from nothing; its generator is its own, so nothing learned changes."""
        self.model.eval()
        writer = Writer(self.model, self.prepared.tokenizer)
        text = writer.write("", SAMPLE_TOKENS, USUAL, [self.config.train.seed])[0]
        self.model.train()
        self.log.sample(self.step, text.completion)

    def snapshot_due(self) -> bool:
        """Whether this step is one to keep: about evenly spaced by the logarithm, the last included."""
        if not self.snapshots or self.finished:
            return bool(self.snapshots)
        steps = self.config.train.steps
        if steps is None:  # unknown beforehand: powers of two
            return self.step & (self.step - 1) == 0
        count = max(self.snapshots - 2, 1)
        return self.step in {round(steps ** (index / count)) for index in range(count + 1)}

    def snapshot(self) -> None:
        """Keep the weights of this step in fp16, to look at how they came about."""
        if self.snapshots:
            (self.folder / "snapshots").mkdir(exist_ok=True)
            weights = {name: tensor.half() for name, tensor in self.model.state_dict().items()}
            self.save_weights(self.folder / "snapshots" / f"step-{self.step}.safetensors", weights)

    def save_weights(self, path: Path, weights: dict[str, Tensor]) -> None:
        """Save weights without the time they took, so that the same run gives the same bytes."""
        checkpoint.save(path, weights, replace(self.where(), seconds=0.0))


def flops_per_token(model: GPT) -> int:
    """Return the floating-point operations of training on one token, forwards and backwards.

    Six a parameter, and the scores and sums of attention (Kaplan et al. 2020, section 2.1; Chowdhery et al. 2022, B).
    """
    shape = model.config
    return 6 * model.parameter_count + 12 * shape.layers * shape.width * shape.context


def memory_estimate(config: Config, model: GPT, dtype: torch.dtype) -> float:
    """Return about how many MB training holds.

    Weights, gradient and the optimizer's two averages; all but the gradient once more while they are saved; what a
    pass keeps for its way back; and, on a card, the logits with their gradient.
    """
    weights = (16 + 12) * model.parameter_count
    kept = 20 * config.model.width * config.model.layers * dtype.itemsize
    logits = 12 * model.vocab_size if model.device.type != "cpu" else 0
    return (weights + config.train.at_once * config.model.context * (kept + logits)) / 1e6
