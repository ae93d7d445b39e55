"""DeepSpeed's engine behind a small door: a training step, an evaluation, a snapshot."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import torch
import torch.distributed
from torch import Tensor, nn

from trainer.config import Recipe, TrainConfig
from trainer.data import Batch
from trainer.deepspeed_config import without_communication
from trainer.determinism import use_deterministic_kernels
from trainer.fp8 import to_fp8
from trainer.gradients import add_up_at_once, leave_out_sum_over_ranks, scale_down, take_norm_once, total_norm
from trainer.graphs import InGraphs
from trainer.lean_imports import without
from trainer.loss_scale import LossScale, is_exhausted, put_loss_scale, scale_after_updates, take_loss_scale
from trainer.metrics import Laps, training_flops
from trainer.model import EMPTY_SLOT, BertForPreTraining, Losses, joined_sizes, parameter_shapes, pretraining_losses
from trainer.monitors import Monitors, without_monitors
from trainer.non_finite import Suspect, bad_gradient, bad_loss
from trainer.objective import Objective
from trainer.optim import Lamb, build_optimizer, parameter_groups, state_of
from trainer.ownership import find_owned, first_misplaced
from trainer.philox import derive_seed
from trainer.settings import ConfigError, first_problem
from trainer.sharded_state import MOMENTS, WEIGHTS, Flat, StateReader
from trainer.world import World

with without("mlflow"):  # which its autotuner has every rank import: a third of a start
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

# How DeepSpeed says that it does not take its configuration.
_REFUSALS = (
    *(DeepSpeedConfigError, ValueError, TypeError, KeyError, AssertionError, NotImplementedError),
    *(ImportError, OSError),  # of what it compiles
)


class GlobalCounts(NamedTuple):
    """Sums over all ranks' micro-batches of a step."""

    predictions: float
    samples: float
    micro_batches: float
    tokens: float  # real ones
    slots: float  # tokens and padding
    flops: float
    stop: float  # ranks that were asked to stop
    writing: float  # ranks that are still writing a checkpoint
    unreadable: float  # ranks that could not read their micro-batches


class Engine:
    """A model, its optimizer and DeepSpeed around them, for the batch sizes of one phase."""

    def __init__(
        self,
        recipe: Recipe,
        deepspeed_config: dict[str, Any],
        world: World,
        *,
        checkpoint: Path | None = None,
        weights: Mapping[str, Tensor] | None = None,
        loss_scale: LossScale | None = None,
        monitors: Monitors | None = None,
        step: int = 0,
    ):
        """Build the model from its seed, from weights or from a checkpoint, and hand it to DeepSpeed.

        Args:
            recipe: of the run: its model, optimizer, and what [train] says of seed, tasks and kernels.
            deepspeed_config: resolved, see trainer.deepspeed_config.resolve.
            world: this rank's place.
            checkpoint: written by write_state, by any number of ranks under any ZeRO stage.
            weights: float32, to begin with where there is no checkpoint.
            loss_scale: to begin with in fp16; without it DeepSpeed's settings say.
            monitors: that DeepSpeed reports to.
            step: finished updates of the run, by which DeepSpeed knows when to report.

        Raises:
            StateError: the checkpoint is damaged or another model's.
            ConfigError: DeepSpeed does not take its configuration, or lays weights out in a way that is not known here.
        """
        train = recipe.train
        use_deterministic_kernels(train.deterministic, world.device)
        self._recipe = recipe
        self._world = world
        self._laps: Laps | None = None  # of the last step, on a GPU
        self._next_sentence = float(train.next_sentence)  # whether its loss counts; metrics have it in any case
        shapes = parameter_shapes(recipe.model)
        reader = StateReader(checkpoint, shapes) if checkpoint else None
        given = reader.weights() if reader else weights
        model = BertForPreTraining(recipe.model, seed=None if given else train.seed)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        if given:  # DeepSpeed rounds them to the precision of the products, so they are put in again below
            model.load_state_dict(given)
        initial = given or {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        untrained = [] if train.next_sentence else [*model.pooler.parameters(), *model.nsp.parameters()]
        groups = parameter_groups(model, recipe.optimizer.weight_decay, untrained)
        self._optimizer = build_optimizer(groups, recipe.optimizer)
        objective = _speed_up(model, train, world.device)
        self._engine = _initialize(objective, self._optimizer, without_monitors(deepspeed_config), world)
        self._engine.monitor = monitors or Monitors()
        self._engine.global_steps, self._engine.global_samples = step, recipe.samples(step)
        take_norm_once(self._engine.optimizer)
        add_up_at_once(self._engine.optimizer)
        self._engine.clip_fp32_gradients = lambda: None  # without ZeRO: see _update
        self._owned = list(find_owned(self._engine, self._optimizer, names, world.rank))
        self._check_layout(initial)
        if isinstance(self._optimizer, Lamb):
            add = _sum_over_ranks(world.device) if self._engine.zero_optimization() else None
            self._optimizer.partition(self._owned, add, joined_sizes(shapes))
        self.reset_moments()
        if given:
            self._fill(given, reader)
        has_parts = self._engine.zero_optimization() or world.is_first  # without ZeRO all ranks have the same
        self._copies = [flat.room() for flat in self._flats()] if has_parts else []
        self._scaler: Any = getattr(self._engine.optimizer, "loss_scaler", None)
        put_loss_scale(self._scaler, loss_scale)
        self._change_scale = scale_after_updates(self._engine.optimizer)

    def train_step(
        self, step: int, batches: Sequence[tuple[int, Batch]], totals: GlobalCounts, learning_rate: float,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:  # fmt: skip
        """One optimizer update.

        Losses are sums over a micro-batch divided by the predictions of the whole global batch, so neither
        accumulation nor the number of ranks changes the objective. Dropout is seeded for every micro-batch by its place
        in the global batch, so there is no generator's state to save, and it is the same at any world size.

        What is not finite never reaches weights or moments: the loss is looked at before the update, the gradient's
        norm over all ranks before the optimizer is called. In fp16 with dynamic loss scaling such a gradient is an
        everyday thing: the update is left out and counted, the moments' step does not advance, the scale is lowered.

        Args:
            step: finished updates.
            batches: this rank's micro-batches, each with its place in the global batch.
            totals: of the global batch, from count_step.
            learning_rate: of this update.
            meanwhile: called once, when the device has the last forward pass to do: DeepSpeed may have this process
                wait for the backward pass.

        Returns:
            Losses, accuracies and the gradient norm of the global batch, and seconds of the parts of the step; on a GPU
            those of the step before, none after the first, and under ZeRO 0 to 2 also host_share, what its host took of
            that one's first forward pass to ask for it. In fp16 also loss_scale and skipped_updates, 1 where this one
            was left out, which then has no gradient norm. A step with nothing to predict, as where data.skip leaves out
            all of it, has no losses and accuracies of that.

        Raises:
            NonFiniteError: on every rank, before the update.
        """
        if not self._engine.module.training:  # it takes a walk through all modules, for which a GPU waits
            self._engine.train()
        laps = Laps(self._world.device)
        sums: list[Tensor] = []
        predictions, samples = max(1, totals.predictions), max(1, totals.samples)
        for place, batch in batches:
            _seed_dropout(derive_seed(self._recipe.train.seed, "dropout", step, place), self._world.device)
            losses = self._losses(batch)
            sums.append(torch.stack([value.detach().double() for value in losses]))
            laps.lap("forward_seconds")
            is_last = place + self._world.size >= totals.micro_batches
            if is_last:
                take_losses = _brought(torch.stack(sums))
                meanwhile()
            # Times 0 and not left out: every parameter gets a gradient, as ZeRO expects.
            next_sentence = self._next_sentence * losses.nsp_loss / samples
            loss = losses.mlm_loss / predictions + next_sentence
            # DeepSpeed averages the gradients over the ranks; our losses are shares of a sum.
            self._engine.backward(loss * self._world.size, scale_wrt_gas=False)
            if not is_last:
                self._engine.step()  # not a boundary: counts the micro-batch, updates nothing
            laps.lap("backward_seconds")
        of_micro_batches = take_losses()
        all_sums = self._world.sum(of_micro_batches.sum(dim=0).tolist())
        metrics = self._means(all_sums, totals.predictions, totals.samples)
        if not math.isfinite(bad := sum(metrics.values())):
            suspects = self._find_suspects(of_micro_batches, batches)
            skipped = self._recipe.data.skip
            raise bad_loss(step + 1, metrics.get("loss", bad), suspects, int(totals.micro_batches), skipped)
        metrics["learning_rate"] = learning_rate
        metrics |= self._update(step, batches, learning_rate)
        laps.lap("update_seconds")
        return metrics | self._seconds(laps)

    @torch.no_grad()
    def evaluate(
        self, parts: Sequence[Iterable[Batch | None]], is_asked_to_stop: Callable[[], bool] = lambda: False
    ) -> list[dict[str, float]] | None:
        """Losses and accuracies without dropout over the batches of all ranks.

        Args:
            parts: this rank's batches, in parts of which figures are wanted; every rank needs as many of each, and has
                None for one that it can't read.
            is_asked_to_stop: looked at before each batch.

        Returns:
            The figures of all parts together, then those of each; none of what is not to be predicted in a part. None
            on every rank once one of them lacks a batch or is asked to stop.
        """
        self._engine.eval()
        sums = torch.zeros(len(parts), 6, dtype=torch.float64)
        for part, batches in enumerate(parts):
            for batch in batches:
                if self._world.sum([batch is None or is_asked_to_stop()])[0] or batch is None:
                    return None
                counts = [(labels != EMPTY_SLOT).sum() for labels in (batch.mlm_labels, batch.nsp_labels)]
                sums[part] += torch.stack([value.double().cpu() for value in (*self._losses(batch), *counts)])
        of_parts = torch.tensor(self._world.sum(sums.flatten().tolist()), dtype=torch.float64).view_as(sums)
        return [
            self._means(losses, predictions, samples)
            for *losses, predictions, samples in (of_parts.sum(0).tolist(), *of_parts.tolist())
        ]

    def count_step(
        self, batches: Sequence[Batch], stop: bool, writing: bool = False, unreadable: bool = False
    ) -> GlobalCounts:
        """What the ranks must agree on before a step, in one small all-reduce.

        Args:
            batches: this rank's micro-batches.
            stop: whether this rank was asked to stop after the step.
            writing: whether this rank is still writing a checkpoint.
            unreadable: whether this rank has no micro-batches, for it could not read them.
        """
        lengths = torch.cat([torch.zeros(0), *(batch.lengths for batch in batches)])
        predicted = sum(int((batch.mlm_labels != EMPTY_SLOT).sum()) for batch in batches)
        judged = sum(int((batch.nsp_labels != EMPTY_SLOT).sum()) for batch in batches)
        slots = sum(len(batch.tokens.input_ids) for batch in batches)
        flops = training_flops(self._recipe.model, lengths, predicted)
        mine = GlobalCounts(
            predicted, judged, len(batches), int(lengths.sum()), slots, flops, stop, writing, unreadable
        )
        return GlobalCounts(*self._world.sum(mine))

    def snapshot(self) -> list[Flat]:
        """Copies in CPU memory of the weights and moments that this rank owns and the first one does not have too.

        The next call takes the same memory.
        """
        for copy, flat in zip(self._copies, self._flats(), strict=False):
            copy.take(flat)
        return self._copies

    @property
    def zero_stage(self) -> int:
        """Of ZeRO, which for one rank may be another than the configuration's."""
        return int(self._engine.zero_optimization_stage())

    @property
    def dtype(self) -> torch.dtype:
        """What the products are computed in."""
        parameter: Tensor = next(self._engine.module.parameters())
        return parameter.dtype

    @property
    def recorded_graphs(self) -> int:
        """Pairs of CUDA graphs, so far."""
        module = self._engine.module
        return module.recorded if isinstance(module, InGraphs) else 0

    @property
    def loss_scale(self) -> LossScale | None:
        """The state of fp16's dynamic loss scaling; None where there is none."""
        return take_loss_scale(self._scaler)

    @property
    def optimizer_step(self) -> int:
        """Updates that the moments have seen."""
        return int(self._optimizer.state[self._owned[0].tensor]["step"])

    def reset_moments(self) -> None:
        """Empty the optimizer's state; the weights stay."""
        for owned in self._owned:
            for value in state_of(self._optimizer, owned.tensor).values():
                value.zero_()

    def close(self) -> None:
        """Free weights, gradients and moments, so that the next phase can build its own engine in their place.

        DeepSpeed's engine, optimizer and parameters refer to one another in circles, which only the collector takes,
        and where a gradient's hook is part of one, no sooner than in a second pass. In ZeRO 3 of DeepSpeed 0.19 it does
        not take them either, so the largest tensors are emptied first.
        """
        self._engine.destroy()
        for tensor, *_ in self._owned:
            for large in (tensor, *state_of(self._optimizer, tensor).values()):
                large.data = large.new_empty(0)
        del self._engine, self._optimizer, self._owned, self._copies, self._scaler
        for _ in range(2):
            gc.collect()
        get_accelerator().empty_cache()

    def _check_layout(self, initial: Mapping[str, Tensor]) -> None:
        """See that every fragment is where DeepSpeed keeps it, by the weights that the model was just built with.

        With a layout that is not known here training would be right, and every checkpoint and export scrambled.

        Raises:
            ConfigError: on every rank, a fragment of one of them holds something else.
        """
        names = self._world.gather(first_misplaced(self._owned, initial, self.dtype))
        for rank, name in enumerate(names):
            if name:
                raise ConfigError(
                    f"DeepSpeed's configuration: rank {rank} finds {name} in another place than DeepSpeed says, so "
                    "checkpoints would be scrambled; remove what changes the order of zero_optimization's buffers"
                )

    @torch.no_grad()
    def _fill(self, weights: Mapping[str, Tensor], reader: StateReader | None) -> None:
        """Put whole float32 parameters, and a checkpoint's moments, into what this rank owns."""
        for flat in self._flats():
            flat.fill(WEIGHTS, lambda name, begin, end: weights[name].reshape(-1)[begin:end])
            if reader:
                reader.fill_moments(flat)
        if reader:
            for owned in self._owned:
                state_of(self._optimizer, owned.tensor)["step"].fill_(reader.optimizer_step)

    def _flats(self) -> Iterator[Flat]:
        for tensor, fragments, _ in self._owned:
            state = state_of(self._optimizer, tensor)
            tensors = {WEIGHTS: tensor.detach(), **{name: state[name] for name in MOMENTS}}
            yield Flat(fragments, {name: values.view(-1) for name, values in tensors.items()})

    def _means(self, sums: Sequence[float], predictions: float, samples: float) -> dict[str, float]:
        """Losses and accuracies by their sums; of nothing there is no mean."""
        mlm_loss, nsp_loss, mlm_correct, nsp_correct = sums
        means = {}
        if predictions and samples:
            means["loss"] = mlm_loss / predictions + self._next_sentence * nsp_loss / samples
        if predictions:
            means |= {"mlm_loss": mlm_loss / predictions, "mlm_accuracy": mlm_correct / predictions}
        if samples:
            means |= {"nsp_loss": nsp_loss / samples, "nsp_accuracy": nsp_correct / samples}
        return means

    def _update(self, step: int, batches: Sequence[tuple[int, Batch]], learning_rate: float) -> dict[str, float]:
        """Clip, step and clear, unless a gradient is not finite; what there is to report of it.

        DeepSpeed's ZeRO looks at the norm over all ranks before it calls our optimizer (resolve of deepspeed_config
        refuses what would turn that off). Without ZeRO the gradients are whole on every rank; DeepSpeed would clip them
        by a norm of its own, which on a CPU is 8e-4 off, and tell none.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        scale, exhausted = self.loss_scale, is_exhausted(self._scaler)
        if self._engine.zero_optimization():
            self._engine.step()
            self._change_scale()
            finite, norm = not self._engine.optimizer.overflow, self._engine.get_global_grad_norm()
        else:
            gradients = [p.grad for p in self._engine.module.parameters() if p.grad is not None]
            norm = total_norm(gradients).cpu()
            finite = bool(torch.isfinite(norm))
            if finite:
                if max_norm := self._recipe.optimizer.max_gradient_norm:
                    scale_down(gradients, max_norm, norm)
                self._engine.step()
        if not finite and (scale is None or exhausted):
            mine = torch.cat([batch.indices for _, batch in batches]).tolist()
            samples = list(chain.from_iterable(self._world.gather(mine)))
            raise bad_gradient(step + 1, samples, scale.scale if scale else None)
        report = {} if scale is None else {"loss_scale": scale.scale, "skipped_updates": float(not finite)}
        return {**report, "grad_norm": float(norm)} if finite else report

    def _seconds(self, laps: Laps) -> dict[str, float]:
        """Of a step's parts; on a GPU of those of the step before, if any, so that nobody waits for this update."""
        if self._world.device.type != "cuda":
            return laps.seconds()
        done, self._laps = self._laps, laps
        if done is None:
            return {}
        share = {"host_share": done.host_share()} if self.zero_stage < 3 else {}  # under 3 it waits for weights too
        return done.seconds() | share

    def _find_suspects(self, losses: Tensor, batches: Sequence[tuple[int, Batch]]) -> list[Suspect]:
        """The micro-batches of all ranks whose losses are NaN or infinite.

        Args:
            losses: [micro-batches, 4], this rank's sums.
            batches: what they are of.
        """
        finite = losses.isfinite().all(dim=1).tolist()
        mine = [
            Suspect(turn, self._world.rank, batch.indices.tolist())
            for turn, (_, batch) in enumerate(batches)
            if not finite[turn]
        ]
        return list(chain.from_iterable(self._world.gather(mine)))

    def _losses(self, batch: Batch) -> Losses:
        losses: Losses = self._engine(batch)
        return losses


def _speed_up(model: BertForPreTraining, train: TrainConfig, device: torch.device) -> Objective | InGraphs:
    """Have the model compute as [train] says; it keeps its parameters, and these their names.

    Returns:
        What DeepSpeed is to be handed.
    """
    if train.fp8:
        to_fp8(model.bert.layers, device)
    if train.compile:
        torch._dynamo.reset()  # what it keeps of one phase would count against its limit of ways in the next
        torch._dynamo.config.recompile_limit = 16  # training and validation have 7 ways, of 8 at first
    if train.fused:
        from trainer.fused import fuse  # its kernels want triton

        fuse(model.bert.layers, model.config)
    elif train.compile:
        model.bert.compile_layers()
    objective = Objective(model, device, torch.compile(pretraining_losses) if train.compile else pretraining_losses)
    return InGraphs(objective) if train.cuda_graphs else objective


def _initialize(
    objective: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], world: World
) -> deepspeed.DeepSpeedEngine:
    """DeepSpeed's engine around the model and its losses.

    Raises:
        ConfigError: DeepSpeed does not take its configuration.
    """
    if world.size == 1:
        config = without_communication(config)
    with _mistakes():
        engine: deepspeed.DeepSpeedEngine = deepspeed.initialize(model=objective, optimizer=optimizer, config=config)[0]
    if world.size == 1:
        leave_out_sum_over_ranks(engine)
    return engine


def check_deepspeed(config: Mapping[str, Any]) -> None:
    """See that DeepSpeed can read its configuration, as far as it looks at it without a model.

    Raises:
        ConfigError: it can't.
    """
    with _mistakes():  # the batch is that of all ranks, and this one has not met them yet
        DeepSpeedConfig({name: value for name, value in config.items() if name != "train_batch_size"})


@contextlib.contextmanager
def _mistakes() -> Iterator[None]:
    """What DeepSpeed refuses is a mistake of the user."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise ConfigError(f"DeepSpeed's configuration: {first_problem(error)} ({error.title})") from error
    except _REFUSALS as error:
        why = str(error).replace("\n", " ") or type(error).__name__
        raise ConfigError(f"DeepSpeed's configuration: {why}") from error


def _brought(values: Tensor) -> Callable[[], Tensor]:
    """What gives values on the CPU, once they are there; what a GPU is asked for next is not waited for."""
    copy = values.to("cpu", non_blocking=True)
    if not values.is_cuda:
        return lambda: copy
    done = torch.cuda.Event()
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return copy

    return wait


def _seed_dropout(seed: int, device: torch.device) -> None:
    """As torch.manual_seed, which also looks for kinds of devices that nobody has here, while a GPU waits."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _sum_over_ranks(device: torch.device) -> Callable[[Tensor], None]:
    def add(values: Tensor) -> None:
        total = values.to(device)  # an offloaded optimizer's tensors lie on the CPU, and NCCL adds on GPUs only
        torch.distributed.all_reduce(total)
        values.copy_(total)

    return add
