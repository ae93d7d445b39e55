"""What the heads of a model look at, as a picture.

    python -m eval.attention runs/large/exports/step-001000 "The cat sat on the mat." "It was tired." \
        --output page.html --png 5.3

The page holds every layer and head and needs nothing but a browser: no network, no server. Layers and heads are counted
from 1, as the literature does (Clark et al., 2019), and what lies between brackets is the model's own token.

The model itself never keeps these weights: its kernels are fused. Here they are computed anew, from the hidden states
and the very parameters of each layer, by the formula as it is written.
"""

from __future__ import annotations

import argparse
import base64
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from preprocessing.extras import needs
from preprocessing.status import exists, is_file, make_folder

with needs("eval"):
    import matplotlib as mpl
    import numpy as np
    import torch
    from matplotlib.figure import Figure
    from tokenizers import Encoding
    from torch import Tensor

    from eval.errors import UsageError
    from eval.pages import render_page
    from eval.pictures import save_picture
    from eval.pretrained import check_finite, load_pretrained, pack
    from preprocessing.command_line import OneLineParser, parse_path
    from preprocessing.figures import FONTS
    from preprocessing.storage_errors import UnavailableError, exit_code
    from preprocessing.terminal import in_line, show, tell_error
    from trainer.files import write_atomically
    from trainer.leases import hold_export
    from trainer.model import BertModel, Layer
    from trainer.packing import PackedTokens
    from trainer.run_directory import CheckpointError

_TOP = 65535  # a weight of 1 on the page, where weights are whole numbers of 16 bits
_MOST_INCHES = 40.0  # of a picture's side: 6,000 pixels
_LARGEST_PAGE = 64 << 20  # bytes: browsers take more, readers don't
_BYTES_A_WEIGHT = 8 / 3  # two, in base64


@dataclass(frozen=True)
class Picture:
    """The attention within one text or pair of texts of S tokens.

    Attributes:
        tokens: S pieces, [CLS] first.
        weights: float32 [L, N, S, S]: layer, head, the token that looks, the token that is looked at; rows sum to 1.
    """

    tokens: list[str]
    weights: np.ndarray


@torch.inference_mode()
def attention_weights(bert: BertModel, tokens: PackedTokens) -> list[Tensor]:
    """softmax(Q K^T / sqrt(H)) of every layer and head (Vaswani et al., 2017, section 3.2.1).

    Args:
        bert: in evaluation mode.
        tokens: B sequences.

    Returns:
        For each sequence its [L, N, S, S], without padding.
    """
    assert not bert.training
    layers = [cast("Layer", layer) for layer in bert.layers]
    states = bert.hidden_states(tokens)  # the last has no layer after it
    by_layer = [_layer_weights(layer, hidden, tokens) for layer, hidden in zip(layers, states, strict=False)]
    return [torch.stack(sequence) for sequence in zip(*by_layer, strict=True)]


def _layer_weights(layer: Layer, hidden: Tensor, tokens: PackedTokens) -> list[Tensor]:
    """[T, D] -> for each sequence [N, S, S]."""
    attention = layer.attention
    seen = layer.attention_norm(hidden) if layer.pre_layer_norm else hidden
    query, key, _ = (
        x.unflatten(-1, (attention.heads, -1)).transpose(0, 1) for x in attention.qkv(seen).chunk(3, dim=-1)
    )  # [N, T, H]
    lengths = tokens.lengths.tolist()
    pairs = zip(query.split(lengths, dim=1), key.split(lengths, dim=1), strict=True)
    return [_softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, attention.causal) for q, k in pairs]


def _softmax(scores: Tensor, causal: bool) -> Tensor:
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1)


def picture(export: Path, a: str, b: str | None = None) -> Picture:
    """The attention of an export within a text, or a pair of texts.

    Raises:
        UsageError: the export is broken, or the texts are longer than the model reads.
        UnavailableError: it can't be read now.
    """
    model, tokenizer = load_pretrained(export)
    encoding: Encoding = tokenizer.encode(a, b)
    positions = model.config.max_position_embeddings
    if len(encoding.ids) > positions:
        raise UsageError(f"{len(encoding.ids)} tokens, but the model has {positions} positions; give shorter texts")
    weights = attention_weights(model.bert, pack([encoding]))[0]
    check_finite(weights)
    return Picture(list(encoding.tokens), weights.numpy())


def render(shown: Picture, title: str) -> str:
    """A page in HTML that holds everything it needs.

    Weights are rounded to a 65,535th. Texts reach the page as data and are put into it as text, never as markup; and
    its own policy lets no script run but the page's, and nothing be fetched.

    Raises:
        UsageError: the page would be too large for a browser.
    """
    if shown.weights.size * _BYTES_A_WEIGHT > _LARGEST_PAGE:
        raise UsageError(
            f"{len(shown.tokens)} tokens in {shown.weights.shape[0]} layers of {shown.weights.shape[1]} heads "
            f"make a page of more than {_LARGEST_PAGE >> 20} MB; give shorter texts"
        )
    layers, heads = shown.weights.shape[:2]
    whole = np.rint(shown.weights * _TOP).astype("<u2")
    data = {"tokens": shown.tokens, "layers": layers, "heads": heads, "top": _TOP}
    return render_page("attention.html.j2", title=title, data=data, weights=base64.b64encode(whole).decode())


def draw_head(shown: Picture, layer: int, head: int) -> Figure:
    """One head as a figure for a report; layers and heads count from 1."""
    weights, tokens = shown.weights[layer - 1, head - 1], shown.tokens
    wanted = max(4.0, 1.8 + 0.27 * len(tokens))
    inches = min(wanted, _MOST_INCHES)
    style = {
        "font.family": FONTS,
        "font.size": 11 * inches / wanted,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "text.parse_math": False,  # a token that holds dollars is no formula
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(inches + 0.9, inches), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=max(weights.max(), 1e-6))
        axes.set_xticks(range(len(tokens)), tokens, rotation=90)
        axes.set_yticks(range(len(tokens)), tokens)
        axes.xaxis.tick_top()
        axes.set(title=f"Layer {layer}, head {head}", ylabel="token that looks")
        axes.set_xlabel("token that is looked at", labelpad=6)
        axes.tick_params(length=0)
        figure.colorbar(image, ax=axes, shrink=0.7, label="attention weight")
    return figure


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; the exit code is 0, 1 if the storage failed, or 2 for a mistake in what was asked for."""
    arguments = _parse(argv)
    try:
        with hold_export(arguments.export):
            shown = picture(arguments.export, arguments.a, arguments.b)
        page = render(shown, f"Attention of {arguments.export.resolve().name}")
        for layer, head in arguments.png:
            _check_head(shown, layer, head)
        named = [arguments.output.with_name(f"{arguments.output.stem}-{x}.{y}.png") for x, y in arguments.png]
        output, *files = map(_replaceable, (arguments.output, *named))
        make_folder(output.parent, parents=True)
        write_atomically(output, page)
        show(in_line(str(arguments.output)))
        for (layer, head), file, name in zip(arguments.png, files, named, strict=True):
            save_picture(draw_head(shown, layer, head), file)
            show(in_line(str(name)))
    except (CheckpointError, UsageError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    except OSError as error:
        tell_error(f"{error.filename or arguments.output}: {error.strerror}; mend that, or choose another --output")
        return exit_code(error)
    return 0


def _replaceable(path: Path) -> Path:
    """What a path leads to: a file or nothing. Root could replace a device by a page, too."""
    found = path.resolve()
    if exists(found) and not is_file(found):
        raise UsageError(f"{path}: there, and no file; give the page another name")
    return found


def _check_head(shown: Picture, layer: int, head: int) -> None:
    layers, heads = shown.weights.shape[:2]
    if not (1 <= layer <= layers and 1 <= head <= heads):
        raise UsageError(f"there is no head {layer}.{head}: the model has layers 1 to {layers}, heads 1 to {heads}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m eval.attention", description="Attention as a page in HTML.")
    parser.add_argument("export", type=parse_path, metavar="EXPORT", help="RUN/exports/step-NNNNNN")
    parser.add_argument("a", type=_sentence, metavar="SENTENCE")
    parser.add_argument("b", type=_sentence, metavar="SENTENCE", nargs="?", help="a second one, for a pair")
    parser.add_argument(
        "--output", type=_file, default=Path("attention.html"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--png", type=_head, action="append", default=[], metavar="LAYER.HEAD",
        help="also this head as a picture, beside the page; several times for several",
    )  # fmt: skip
    return parser.parse_args(argv)


def _sentence(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8; set the terminal's encoding to it") from error
    return text


def _file(text: str) -> Path:
    if not Path(text).name:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file")
    return parse_path(text)


def _head(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form LAYER.HEAD, such as 5.3")
    return int(match[1]), int(match[2])


if __name__ == "__main__":
    sys.exit(main())
