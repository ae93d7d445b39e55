"""Weights and configurations to and from the directories of Hugging Face's BertForPreTraining, bit for bit.

A model with LayerNorm before each sublayer goes to and from MegatronBertForPreTraining, which is such a BERT.

An export is what evaluation reads and what a user takes away:

    config.json            the model's sizes
    model.safetensors      float32, in Hugging Face's names, the tied decoder stored once
    vocab.txt, ...         the tokenizer's files
    lineage.json           which run, step, data and code it came from
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from preprocessing.status import exists, is_file
from preprocessing.storage_errors import is_no_file
from preprocessing.tokenization import CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE
from trainer.files import DamagedFileError, incomplete, publish
from trainer.model import BertConfig, BertForPreTraining, parameter_count, parameter_shapes
from trainer.naming import name_some
from trainer.tensor_files import read_pickled_tensors, read_tensors, write_tensors

CONFIG, WEIGHTS, LINEAGE = "config.json", "model.safetensors", "lineage.json"
_PICKLED = "pytorch_model.bin"  # as older models are published
TOKENIZER_FILES = (VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE, "special_tokens_map.json")

# Ours -> theirs. A module stands for its weight and bias; a tuple, for what one product of ours joins.
_PARAMETERS = {
    "bert.embeddings.word.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.token_type.weight": "bert.embeddings.token_type_embeddings.weight",
    "mlm.bias": "cls.predictions.bias",
}
_MODULES = {
    "pooler.dense": "bert.pooler.dense",
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "nsp": "cls.seq_relationship",
}
_LAYER_MODULES = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
}
# Where they put the norms, after each residual or before each sublayer: outside the layers, and in each of them.
_NORMS = {
    False: {"bert.embeddings.norm": "bert.embeddings.LayerNorm"},
    True: {"bert.final_norm": "bert.encoder.ln"},
}
_LAYER_NORMS = {
    False: {"attention_norm": ("attention.output.LayerNorm",), "feed_forward_norm": ("output.LayerNorm",)},
    True: {"attention_norm": ("attention.ln",), "feed_forward_norm": ("ln",)},
}
_MODEL_TYPES = {False: "bert", True: "megatron-bert"}
_ARCHITECTURES = {False: "Bert", True: "MegatronBert"}
_ROOTS = ("bert.", "cls.")  # what else there is belongs to heads of other tasks
_HEADS = ("bert.pooler.", "cls.")  # what an encoder is published without
_TIED = {  # copies that some writers store
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_POSITIONS = "bert.embeddings.position_ids"  # 0, 1, 2, ..., which some writers store
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Not in config.json. What weights of another meaning need is a model type of their own, which transformers has too.
_OURS_ALONE = ("pre_layer_norm", "activation_checkpointing")
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# Settings that change what the weights mean, each with the only value that they mean the same with.
_FIXED = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


class Export(NamedTuple):
    """A model read from a directory."""

    config: BertConfig
    state: dict[str, Tensor]  # of BertForPreTraining, in the dtype that the file has
    initialized: list[str]  # parameters of it that the directory lacks, newly initialised


def to_hugging_face(state: Mapping[str, Tensor], config: BertConfig) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Rename and split the weights of a model of ours.

    Args:
        state: A state_dict of BertForPreTraining, any dtype.
        config: Its configuration.

    Returns:
        What config.json and model.safetensors hold. The tensors are views of those given.

    Raises:
        ValueError: ``state`` doesn't fit ``config``.
    """
    _check(state, parameter_shapes(config))
    return settings_of(config, "ForPreTraining"), rename_weights(state, config)


def settings_of(config: BertConfig, kind: str) -> dict[str, Any]:
    """What config.json holds of a model with some kind of head.

    Args:
        config: its configuration.
        kind: the end of the name of transformers' class: ForPreTraining, ForSequenceClassification, ...
    """
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in _OURS_ALONE}
    architecture = _ARCHITECTURES[config.pre_layer_norm] + kind
    return {"architectures": [architecture], "model_type": _MODEL_TYPES[config.pre_layer_norm], **settings}


def rename_weights(state: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """Those weights of a BertForPreTraining of ours that there are, by Hugging Face's names; views of the same."""
    split: dict[str, Tensor] = {}
    for ours, theirs in _names(config).items():
        if ours in state:
            split.update(zip(theirs, state[ours].chunk(len(theirs)), strict=True))  # QKV: [3D, D] -> three [D, D]
    return split


def from_hugging_face(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> tuple[BertConfig, dict[str, Tensor]]:
    """Rename and join weights of Hugging Face's, the inverse of ``to_hugging_face``.

    Args:
        config: What config.json holds.
        state: A state_dict of BertForPreTraining of transformers. Tensors under other names than those below ``bert.``
            and ``cls.``, such as the classifier of a fine-tuned model, are left out.

    Returns:
        The configuration, and a state_dict for our BertForPreTraining in the dtypes given.

    Raises:
        ValueError: The configuration is of no BERT that we have, or tensors are missing, too many, of another shape or
            dtype, or there under two names with different values.
    """
    ours = _read_config(config)
    return ours, _joined(_canonical(state), ours)


def save_export(
    directory: Path, state: Mapping[str, Tensor], config: BertConfig, tokenizer_dir: Path, lineage: Mapping[str, Any]
) -> None:
    """Write a state_dict of BertForPreTraining as one that transformers' class of that name loads; see write_model.

    Raises:
        ValueError: See ``to_hugging_face`` and write_model.
        OSError: It can't be written.
    """
    write_model(directory, *to_hugging_face(state, config), tokenizer_dir, lineage)


def write_model(
    directory: Path,
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    tokenizer_dir: Path,
    lineage: Mapping[str, Any],
) -> None:
    """Write a directory that transformers loads: complete or not at all.

    Args:
        directory: Where; what is there already is replaced.
        settings: What config.json holds.
        weights: By Hugging Face's names; written as float32.
        tokenizer_dir: Holds the tokenizer's files, which are copied.
        lineage: Where the weights come from, as JSON can hold it.

    Raises:
        ValueError: ``tokenizer_dir`` holds no tokenizer.
        OSError: It can't be written.
    """
    tokenizer = [tokenizer_dir / name for name in TOKENIZER_FILES if is_file(tokenizer_dir / name)]
    if not tokenizer:
        raise ValueError(f"{tokenizer_dir}: no tokenizer there; give a folder with {' or '.join(TOKENIZER_FILES[:2])}")
    staging = incomplete(directory)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        _write_json(staging / CONFIG, settings)
        _write_json(staging / LINEAGE, lineage)
        # transformers wants to know that the tensors are PyTorch's.
        write_tensors(staging / WEIGHTS, {k: v.float().contiguous() for k, v in weights.items()}, {"format": "pt"})
        for file in tokenizer:
            shutil.copyfile(file, staging / file.name)
        _fit_tokenizer(staging / CONFIG_FILE, settings)
        publish(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # where the disk is full, the next checkpoint needs the room


def load_export(directory: Path | str, seed: int = 0) -> Export:
    """Read a directory that ``save_export`` or transformers wrote, or one that holds an encoder alone.

    Args:
        directory: With config.json and weights (see weights_file); names without ``bert.``, as BertModel saves them,
            will do.
        seed: Of the weights that are missing: the pooler and the heads may be, layers and embeddings may not.

    Raises:
        ValueError: A file is missing or damaged, or does not fit, or a weight is infinite or not a number; the message
            names the file and what to do.
        OSError: The storage fails.
    """
    directory = Path(directory)
    config, file = load_config(directory), weights_file(directory)
    try:
        state = _canonical(_read_weights(file))
        _check_count(state, config)
        initialized = _add_missing_heads(state, config, seed)
        joined = _joined(state, config)
        _check_finite(joined)
        return Export(config, joined, initialized)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def weights_file(directory: Path) -> Path:
    """The file of a directory's weights: model.safetensors, or pytorch_model.bin where that alone is there.

    Raises:
        OSError: It can't be told which is there.
    """
    pickled = directory / _PICKLED
    return pickled if not exists(directory / WEIGHTS) and is_file(pickled) else directory / WEIGHTS


def load_config(directory: Path) -> BertConfig:
    """The configuration in a directory that ``save_export`` or transformers wrote.

    Raises:
        ValueError: config.json is missing, damaged, or of no BERT that we have.
        OSError: It can't be read.
    """
    file = directory / CONFIG
    settings = _read_json(file)
    try:
        return _read_config(settings)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def _names(config: BertConfig) -> dict[str, tuple[str, ...]]:
    """Every parameter of ours, and the tensors of Hugging Face's that it joins."""
    names: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in _PARAMETERS.items()}
    for kind in ("weight", "bias"):
        modules = _MODULES | _NORMS[config.pre_layer_norm]
        names |= {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in modules.items()}
        for i in range(config.num_hidden_layers):
            names |= {
                f"bert.layers.{i}.{ours}.{kind}": tuple(f"bert.encoder.layer.{i}.{part}.{kind}" for part in theirs)
                for ours, theirs in (_LAYER_MODULES | _LAYER_NORMS[config.pre_layer_norm]).items()
            }
    return names


def _their_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    shapes = parameter_shapes(config)
    return {
        part: (shapes[ours][0] // len(theirs), *shapes[ours][1:])
        for ours, theirs in _names(config).items()
        for part in theirs
    }


def _check(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a state whose names or shapes are not those of the configuration."""
    if missing := sorted(shapes.keys() - state.keys()):
        raise ValueError(f"weights and configuration are from different models: missing {name_some(missing)}")
    if surplus := sorted(state.keys() - shapes.keys()):
        raise ValueError(f"weights and configuration are from different models: unexpected {name_some(surplus)}")
    for name, shape in shapes.items():
        if tuple(state[name].shape) != tuple(shape):
            raise ValueError(
                f"{name} has shape {tuple(state[name].shape)} where the configuration means {tuple(shape)}; "
                "take weights and configuration of one model"
            )


def _check_count(state: Mapping[str, Tensor], config: BertConfig) -> None:
    """Refuse sizes that the weights can't have before a model of them is built: it might take all memory.

    Embeddings and layers, which must be there, are more than half of a model.
    """
    wanted, found = parameter_count(config), sum(tensor.numel() for tensor in state.values())
    if wanted > 2 * found:
        raise ValueError(
            f"weights and configuration are from different models: {found:,} numbers where the configuration means "
            f"{wanted:,}"
        )


def _check_finite(state: Mapping[str, Tensor]) -> None:
    for name, tensor in state.items():
        if not torch.isfinite(tensor.float()).all():  # as they are computed with: float64 holds larger ones
            raise ValueError(f"{name} contains NaN or infinity; take weights from before that")


def _read_config(config: Mapping[str, Any]) -> BertConfig:
    kind = config.get("model_type", "bert")
    if kind not in _MODEL_TYPES.values():
        raise ValueError(f"model_type is {kind!r}; only {' and '.join(_MODEL_TYPES.values())} can be loaded")
    for name, value in _FIXED.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name} is {config[name]!r}; only a BERT with {value!r} can be loaded")
    if missing := [name for name in _SIZES if name not in config]:
        raise ValueError(f"{', '.join(missing)} missing; give the sizes of the model")
    kinds = {field.name: field.type for field in dataclasses.fields(BertConfig) if field.name not in _OURS_ALONE}
    settings = {name: value for name, value in config.items() if name in kinds}
    if settings.get("pad_token_id") is None:  # null means the same as nothing
        settings["pad_token_id"] = 0
    for name, value in settings.items():
        if type(value) not in ((int, float) if kinds[name] is float else (kinds[name],)):  # a bool is no number here
            raise ValueError(f"{name} is {value!r}; give the sizes and settings of a model")
    return BertConfig(**settings, pre_layer_norm=kind == _MODEL_TYPES[True])


def _canonical(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring the names that various writers have used to those that BertForPreTraining saves today."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(("embeddings.", "encoder.", "pooler.")):  # BertModel's own
            name = f"bert.{name}"
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name == _POSITIONS or not name.startswith(_ROOTS):
            continue
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"{name} holds {tensor.dtype}; take weights in floating point of 16 bits or more")
        if name in renamed and not torch.equal(renamed[name], tensor):
            raise ValueError(f"{name} is there under two names with different values; take weights of one program")
        renamed[name] = tensor
    for copy, original in _TIED.items():
        if copy in renamed and not torch.equal(renamed[copy], renamed.setdefault(original, renamed.pop(copy))):
            raise ValueError(f"{copy} differs from {original}: only a model with a tied decoder can be loaded")
    return renamed


def _add_missing_heads(state: dict[str, Tensor], config: BertConfig, seed: int) -> list[str]:
    """Complete a state of Hugging Face's in place; return which parameters of ours were new."""
    names = _names(config)
    missing = [ours for ours, theirs in names.items() if theirs[0].startswith(_HEADS) and theirs[0] not in state]
    if missing:
        fresh = BertForPreTraining(config, seed).state_dict()
        state |= {names[ours][0]: fresh[ours] for ours in missing}
    return missing


def _joined(state: Mapping[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """A state of Hugging Face's, complete and under today's names, as one of ours."""
    _check(state, _their_shapes(config))
    return {ours: _join([state[part] for part in theirs]) for ours, theirs in _names(config).items()}


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)  # Q, K, V: three [D, D] -> [3D, D]


def _read_json(path: Path) -> dict[str, Any]:
    if not is_file(path):
        raise ValueError(f"{path}: missing; give a folder that save_pretrained or an export of ours wrote")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); copy the folder anew") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a JSON object; copy the folder anew")  # noqa: TRY004  a mistake in a file
    return content


def _read_weights(file: Path) -> dict[str, Tensor]:
    try:
        return read_pickled_tensors(file) if file.name == _PICKLED else read_tensors(file)
    except DamagedFileError as error:
        raise ValueError(f"damaged ({error}); copy the folder anew") from error
    except OSError as error:
        if not is_no_file(error):
            raise
        raise ValueError(
            "missing; weights in another format become this one by transformers: "
            f"{_class_of(file.parent)}.from_pretrained(X).save_pretrained(X), where X is the folder"
        ) from error


def _class_of(directory: Path) -> str:
    """The class that weights are of: another would draw the heads that they lack, and those would pass for theirs."""
    architectures = _read_json(directory / CONFIG).get("architectures")
    names = architectures if isinstance(architectures, list) else []
    return next((name for name in map(str, names) if re.fullmatch("[A-Z][A-Za-z]{,60}", name)), "AutoModel")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _fit_tokenizer(path: Path, model: Mapping[str, Any]) -> None:
    """Tell transformers' tokenizer what shards, which are for any model, don't say of the one beside it.

    That is where a text that is too long is to be cut; and of a model of one token type that it takes none, as a second
    text would get a type that the model lacks.
    """
    told: dict[str, Any] = {"model_max_length": model["max_position_embeddings"]}
    if model["type_vocab_size"] == 1:
        told["model_input_names"] = ["input_ids", "attention_mask"]
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        _write_json(path, {**settings, **told})
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return  # another program's, and not as we know it: left as it is
