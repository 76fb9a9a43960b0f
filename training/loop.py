"""A run from its first step to its last, or from where it stopped."""

import math
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from data.batches import Batches, Place, Windows
from data.prepare import Prepared
from machine.about import made_with
from machine.device import NAMES, as_tensors, choose_compile, choose_device, choose_precision, product_rate
from measures.bits import total_bits
from model.gpt import GPT
from run import checkpoint
from run.checkpoint import Progress
from run.config import Config, by_name
from run.folder import STATE, WEIGHTS, begun, snapshots
from training.estimate import SHARE_USED, flops_per_token, memory_needed
from training.learner import Learner, NonFinite
from training.log import Log, clock, say
from training.schedule import learning_rate
from training.stopping import Stopping
from writing.writer import DEFAULT, Writer

SNAPSHOT_LIMIT = 300  # MB; beyond, snapshots are off
SAMPLE_TOKENS = 60


def train(config: Config, prepared: Prepared, folder: Path, resume: bool = False) -> int:
    """Train in `folder` until the run is done or a signal asks it to stop; return that signal's number, 0 when done.

    With `resume`, goes on from state.safetensors. Raises ValueError or OSError in one line, NonFinite before a step
    that would ruin the weights.
    """
    trainer = Trainer(config, prepared, folder)
    if resume and begun(folder):
        trainer.resume()
    else:
        trainer.start()
    trainer.introduce()
    with Stopping() as stopping:
        trainer.begin()
        while not trainer.finished:
            trainer.step_once()
            stop = bool(stopping.signal) and not trainer.finished
            if trainer.due(config.train.sample_every_steps):
                trainer.sample()
            if trainer.due(config.train.eval_every_steps) or trainer.finished or (stop and trainer.unread):
                trainer.evaluate()
            if trainer.snapshot_due():
                trainer.snapshot()
            if trainer.due(config.train.save_every_steps) or trainer.finished or stop:
                trainer.save()
            if stop:
                say(f"stopping after step {trainer.step}: saved")
                break
    trainer.close()
    return 0 if trainer.finished else stopping.signal


class Trainer:
    """The parts of a run and where it stands."""

    log: Log

    def __init__(self, config: Config, prepared: Prepared, folder: Path) -> None:
        self.config, self.prepared, self.folder = config, prepared, folder
        self.device = choose_device(config.device, say)
        state = folder / STATE
        before = checkpoint.load(state, tensors=False)[1] if state.exists() else None
        self.dtype = choose_precision(config.precision, self.device, say, before.precision if before else None)
        self.threads = torch.get_num_threads()
        self.step, self.seconds_before, self.best, self.best_step = 0, 0.0, math.inf, 0
        self.finished = False
        self.evaluation_seconds = 0.0
        self.started: float | None = None  # set when the first step is about to be taken
        torch.manual_seed(config.train.seed)
        self.model = GPT(config.model, prepared.tokenizer.vocab_size).to(self.device)
        self.rate = product_rate(self.dtype, self.device)
        was_compiled = before.compiled if before else None
        compile = choose_compile(config.compile, self.seconds_expected, self.device, say, was_compiled)
        self.learner = Learner(self.model, config.train, self.dtype, compile, say)
        self.place = Place()
        self.bits_per_nat = prepared.train.targets / prepared.train.characters / math.log(2)

    # Beginning

    def start(self) -> None:
        """Begin a new run, from random weights or from those of another run; what an earlier start left goes."""
        for snapshot in snapshots(self.folder).values():
            snapshot.unlink()
        if self.config.train.init_from is not None:
            path = Path(self.config.train.init_from) / WEIGHTS
            checkpoint.load_weights(self.model, checkpoint.load(path)[0], path)

    def resume(self) -> None:
        """Take up weights, optimizer, generators and place in the data where they were saved."""
        path = self.folder / STATE
        tensors, progress = checkpoint.load(path)
        checkpoint.check_tokenizer(self.folder, self.prepared.tokenizer, progress, path.name)
        if progress.text != self.prepared.text_hash:
            raise ValueError(f"the text is not the one that {self.folder} was trained on: name that one by --data.path")
        if progress.threads != self.threads:
            torch.set_num_threads(progress.threads)
            say(f"using {progress.threads} threads as this run did before, so that sums are added in the same order")
            self.threads = progress.threads
        made = progress.made_with
        changed = [
            f"{name} {made[name]} (now {now})" for name, now in made_with().items() if made.get(name, now) != now
        ]
        if changed:
            say(f"this run was made with {', '.join(changed)}: it goes on, but not bit for bit")
        self.learner.restore(tensors, path)
        self.learner.skipped = progress.skipped
        self.step, self.seconds_before = progress.step, progress.seconds
        self.place = Place(progress.epoch, progress.used)
        _, best = checkpoint.load(self.folder / WEIGHTS, tensors=False)
        checkpoint.check_tokenizer(self.folder, self.prepared.tokenizer, best, WEIGHTS)
        self.best, self.best_step = best.best, best.step
        for step, snapshot in snapshots(self.folder).items():
            if step > self.step:
                snapshot.unlink()
        say(f"resuming {self.folder} after step {self.step}")

    @property
    def seconds_expected(self) -> float:
        """About how long the whole run takes, by the rate of one matrix product."""
        train = self.config.train
        if train.steps is None:
            return 60 * (train.minutes or 0)
        tokens = train.steps * train.batch_size * self.config.model.context
        return tokens * flops_per_token(self.model) / (SHARE_USED * self.rate)

    def introduce(self) -> None:
        """Say what is about to happen: sizes, epochs, memory, time, snapshots."""
        train, text, model = self.config.train, self.prepared, self.model
        shape = self.config.model
        say(
            f"model: {model.parameter_count:,} parameters · {shape.layers} layers, {shape.heads} heads, "
            f"width {shape.width}, context {shape.context}, {model.vocab_size:,} tokens in the vocabulary"
        )
        evaluations = "no validation side, so the last weights are kept"
        if text.validation is not None:
            evaluations = (
                f"evaluations during training cover {text.validation.documents:,} validation documents, "
                f"{text.validation.targets:,} tokens"
            )
        say(f"text: {text.train.documents:,} documents, {text.train.targets:,} tokens to train on; {evaluations}")
        length = f"{train.minutes or 0:g} minutes"
        if train.steps is not None:
            tokens = train.steps * train.batch_size * shape.context
            length = f"{train.steps:,} steps, {tokens:,} tokens, {tokens / text.train.targets:.1f} epochs"
            length += f" · about {clock(self.seconds_expected)}, at {SHARE_USED:.0%} of {self.rate / 1e9:,.0f} GFLOP/s"
        memory = memory_needed(shape, model.parameter_count, model.vocab_size, train.at_once, self.dtype, self.device)
        say(f"run: {length} · about {memory / 1e6:,.0f} MB of memory beside torch's own")
        size = 2 * model.parameter_count * train.snapshots / 1e6
        self.snapshots = train.snapshots if size <= SNAPSHOT_LIMIT else 0
        if train.snapshots:
            off = "" if self.snapshots else f": off, since that is above {SNAPSHOT_LIMIT} MB"
            say(f"snapshots: about {train.snapshots} of {size / train.snapshots:.1f} MB, {size:,.0f} MB in all{off}")

    def begin(self) -> None:
        """Open the logs; evaluate and save an untrained model, so that a run can be read from its first moment."""
        train = self.config.train
        self.log = Log(self.folder, by_name(self.config), self.config.wandb, self.step or -1)
        windows = Windows(self.prepared.train.ids, self.config.model.context, train.seed, self.place)
        self.batches = Batches(windows, train.batch_size)
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
        cut, self.place = self.batches.next()
        inputs, targets = as_tensors(*cut, self.device)
        batches = list(zip(inputs.split(train.at_once), targets.split(train.at_once), strict=True))
        skipped = self.learner.skipped
        try:
            loss = self.learner.update(batches, rate)
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
        if self.learner.skipped > skipped:
            say(f"step {self.step} was skipped: its gradients overflowed in fp16 ({self.learner.skipped} so far)")

    @property
    def unread(self) -> bool:
        """Whether model.safetensors knows nothing yet of what was learned."""
        return self.prepared.validation is None or not self.best_step

    def evaluate(self) -> None:
        """Measure bits per character on the validation documents, and keep the weights where they are the best yet.

        Where there are none, the weights are kept as they are.
        """
        began = time.perf_counter()
        validation, better = self.prepared.validation, True
        if validation is not None:
            # No more at once than in training, so that evaluating needs no more memory.
            figure = total_bits(self.model, validation.ids, self.config.train.at_once) / validation.characters
            self.log.validation(self.step, figure)
            better = figure < self.best
            self.best = min(figure, self.best)
        if better:
            self.best_step = self.step
            self.save_weights(self.folder / WEIGHTS, self.model.state_dict())
        self.log.draw()
        self.evaluation_seconds = time.perf_counter() - began

    def save(self) -> None:
        """Save everything that going on needs, in one file."""
        self.log.flush()
        checkpoint.save(self.folder / STATE, self.learner.state_tensors(), self.where())

    def where(self) -> Progress:
        """Return where the run stands."""
        return Progress(
            step=self.step,
            text=self.prepared.text_hash,
            tokenizer=self.prepared.tokenizer.hash,
            epoch=self.place.epoch,
            used=self.place.used,
            seconds=self.seconds,
            threads=self.threads,
            precision=NAMES[self.dtype],
            compiled=self.learner.compiled,
            skipped=self.learner.skipped,
            finished=self.finished,
            best=self.best,
            made_with=made_with(),
        )

    def close(self) -> None:
        """Close the logs and end the thread that cuts batches."""
        self.batches.close()
        self.log.close()

    def sample(self) -> None:
        """Let the model write a few words from nothing; its generator is its own, so nothing learned changes."""
        self.model.eval()
        writer = Writer(self.model, self.prepared.tokenizer)
        text = writer.write("", SAMPLE_TOKENS, DEFAULT, [self.config.train.seed])[0]
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
