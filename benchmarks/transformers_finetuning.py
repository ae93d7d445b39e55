"""Fine-tuning as transformers' examples do it: its classes, torch's AdamW, its schedule, padded batches.

The peer of benchmarks/finetuning.py, and the reference of tests/eval/test_against_transformers.py. It takes our
samples, and gives logits for what we make of them; nothing else is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from eval.encoding import Sample
from eval.kinds import Choices, Kind, Questions, Tags, Texts
from trainer.model import EMPTY_SLOT

EVALUATED = 32  # sequences of a batch, in prediction


def build(kind: Kind, export: Path, **settings: Any) -> Any:
    """The class of transformers for a kind of task, with an export's encoder and a new head from torch's generator.

    Args:
        kind: of the task.
        export: directory of the weights.
        settings: of its BertConfig, such as other dropouts.
    """
    models: dict[type[Kind], Any] = {
        Texts: transformers.BertForSequenceClassification,
        Choices: transformers.BertForMultipleChoice,
        Questions: transformers.BertForQuestionAnswering,
        Tags: transformers.BertForTokenClassification,
    }
    model = models[type(kind)]
    outputs = {"num_labels": len(kind.classes) or 1} if isinstance(kind, Texts | Tags) else {}
    config = transformers.BertConfig.from_pretrained(export, **outputs, **settings)
    return model.from_pretrained(export, config=config)


def learn(
    model: Any, samples: Sequence[Sample], kind: Kind, batches: Iterable[list[int]], steps: int, learning_rate: float
) -> Iterator[float]:
    """Train, and give each step's loss.

    Args:
        model: of ``build``.
        samples: to learn from.
        kind: of the task.
        batches: numbers of the samples of each step.
        steps: in all.
        learning_rate: reached after a tenth of the steps.
    """
    plain = [p for n, p in model.named_parameters() if not n.endswith(("bias", "LayerNorm.weight"))]
    rest = [p for n, p in model.named_parameters() if n.endswith(("bias", "LayerNorm.weight"))]
    groups = [{"params": plain, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    for chosen in batches:
        batch = [samples[i] for i in chosen]
        inputs = _padded(batch, kind)
        loss = model(**inputs, **_labels(batch, kind, inputs["attention_mask"])).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield loss.item()


@torch.no_grad()
def predict(model: Any, samples: Sequence[Sample], kind: Kind) -> list[np.ndarray]:
    """The logits of each sample, as ``kind.conclude`` takes them."""
    model.eval()
    order = sorted(range(len(samples)), key=lambda i: samples[i].size)
    logits: list[np.ndarray] = [np.empty(0)] * len(samples)
    for begin in range(0, len(order), EVALUATED):
        numbers = order[begin : begin + EVALUATED]
        batch = [samples[i] for i in numbers]
        output = model(**_padded(batch, kind))
        rows = (
            torch.stack([output.start_logits, output.end_logits], dim=-1)
            if isinstance(kind, Questions)
            else output.logits
        )
        for i, sample, row in zip(numbers, batch, rows.numpy(), strict=True):
            logits[i] = _of_sample(kind, sample, row)
    return logits


def _of_sample(kind: Kind, sample: Sample, row: np.ndarray) -> np.ndarray:
    if isinstance(kind, Tags):
        tagged: np.ndarray = row[: sample.size][np.array(sample.targets) != EMPTY_SLOT]
        return tagged
    return row[: sample.size] if isinstance(kind, Questions) else row


def _padded(samples: Sequence[Sample], kind: Kind) -> dict[str, Tensor]:
    sequences = [sequence for sample in samples for sequence in sample.sequences]
    lengths = torch.tensor([len(sequence.ids) for sequence in sequences])
    places = torch.arange(int(lengths.max()))
    mask = places < lengths[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    ids[mask] = torch.cat([torch.from_numpy(sequence.ids).long() for sequence in sequences])
    types = (places >= torch.tensor([sequence.second for sequence in sequences])[:, None]) & mask
    inputs = {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types.long()}
    if isinstance(kind, Choices):
        inputs = {name: tensor.view(len(samples), -1, mask.shape[1]) for name, tensor in inputs.items()}
    return inputs


def _labels(samples: Sequence[Sample], kind: Kind, mask: Tensor) -> dict[str, Tensor]:
    if isinstance(kind, Questions):
        begins, ends = torch.tensor([sample.targets for sample in samples]).T
        return {"start_positions": begins, "end_positions": ends}
    if isinstance(kind, Tags):
        labels = torch.full(mask.shape, EMPTY_SLOT)
        for row, sample in zip(labels, samples, strict=True):
            row[: sample.size] = torch.tensor(sample.targets)
        return {"labels": labels}
    return {"labels": torch.tensor([sample.targets[0] for sample in samples])}
