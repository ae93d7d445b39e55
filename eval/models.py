"""A learned model as a folder that transformers loads, with the pretrained model's tokenizer and where it comes from.

    OUTPUT/models/mrpc/
        config.json        BertForSequenceClassification, the names of its classes
        model.safetensors  float32: the encoder and its head
        vocab.txt, ...     the tokenizer's files
        lineage.json       the point of the grid, what it was made of and is worth, and the pretrained model's own

eval.run reads it like an export: its encoder may be learned on, as RTE from MNLI's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from eval.heads import FineTunedBert, SpanHead
from eval.inputs import Checkpoint
from eval.kinds import Choices, Kind, Texts
from eval.storage import reading
from preprocessing.status import make_folder
from trainer.hugging_face import LINEAGE, rename_weights, settings_of, write_model
from trainer.model import BertConfig

_ENCODER, _POOLER, _OUTPUT = "bert.", "head.pooler.", "head.output."  # of FineTunedBert's parameters


def why_not_saved(kind: Kind, config: BertConfig) -> str | None:
    """Why transformers has no class for what is learned; None where it has one."""
    if kind.published_as is None:
        return "transformers has no class for a BiLSTM on a frozen encoder; leave out the option, or this task"
    if config.is_decoder and isinstance(kind, Texts | Choices):
        return (
            "a left-to-right model is judged by its last token, for which transformers' BERT has no class; leave out "
            "the option, or this task"
        )
    return None


def to_hugging_face(model: FineTunedBert, kind: Kind, config: BertConfig) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What config.json and model.safetensors hold of a learned model; the tensors are the model's own."""
    state = model.state_dict()
    ours = {name: tensor for name, tensor in state.items() if name.startswith(_ENCODER)}
    ours |= {f"pooler.{n.removeprefix(_POOLER)}": tensor for n, tensor in state.items() if n.startswith(_POOLER)}
    output = "qa_outputs" if isinstance(model.head, SpanHead) else "classifier"
    head = {f"{output}.{n.removeprefix(_OUTPUT)}": tensor for n, tensor in state.items() if n.startswith(_OUTPUT)}
    assert kind.published_as is not None
    settings = settings_of(config, kind.published_as) | _classes(kind)
    return settings, rename_weights(ours, config) | head


def _classes(kind: Kind) -> dict[str, Any]:
    """What config.json says of a head's outputs."""
    names, told = kind.classes, dict[str, Any]()
    if isinstance(kind, Texts):
        names = kind.names or kind.labels or ["score"]  # one output, which rates
        told["problem_type"] = "single_label_classification" if kind.labels else "regression"
    if names:
        told |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    return told


def lock_of(folder: Path) -> Path:
    """The file whose lock whoever writes the model of a task holds."""
    make_folder(folder.parent, parents=True)
    return folder.with_name(f".{folder.name}.lock")


def origin_of(folder: Path) -> dict[str, Any] | None:
    """What the model in a folder was made of; None where there is none, or another program's or user's.

    Raises:
        UnavailableError: it can't be told now.
    """
    file = folder / LINEAGE
    try:
        with reading(file):
            told = json.loads(file.read_text(encoding="utf-8"))
        origin: dict[str, Any] = told["fine_tuned"]["origin"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return origin


def save_model(
    folder: Path,
    model: nn.Module,
    kind: Kind,
    checkpoint: Checkpoint,
    origin: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, float]],
    code: Mapping[str, Any],
) -> None:
    """Write a model in the place of the one before; who writes holds its lock.

    Args:
        folder: of the task's model.
        model: of a kind that ``why_not_saved`` has nothing against.
        kind: of task.
        checkpoint: the pretrained model.
        origin: what the model was made of.
        metrics: what it is worth, by the part of the data set.
        code: which learned it, see trainer.lineage.code_version.

    Raises:
        OSError: it can't be written.
    """
    assert isinstance(model, FineTunedBert)
    lineage = {
        "fine_tuned": {"origin": dict(origin), "metrics": metrics, "code": dict(code)},
        "pretrained": {"path": str(checkpoint.path), "lineage": checkpoint.lineage},
    }
    settings, state = to_hugging_face(model, kind, checkpoint.export.config)
    write_model(folder, settings, state, checkpoint.path, lineage)
