"""A registered model, as MLflow loads and serves it: embeddings of sentences and filled masks.

MLflow runs this file (models from code: nothing is pickled) with the packages it imports beside it, and finds the
export among the artifacts. eval.registry has the signature: what a caller may ask for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from eval.embeddings import Pooling, TermStatistics, embed, load_terms
from eval.encoding import mask_places
from eval.errors import UsageError
from eval.pretrained import Pretrained, check_lengths, load_pretrained
from eval.probe import fill_masks
from preprocessing.tokenization import MASK

EXPORT, TERMS = "export", "terms"  # the artifacts


class ServedModel(PythonModel):
    """An export that answers questions."""

    def __init__(self) -> None:
        self._pretrained: Pretrained | None = None
        self._terms: TermStatistics | None = None

    def load_context(self, context: PythonModelContext) -> None:
        """Read the artifacts; MLflow calls it once."""
        self._pretrained = load_pretrained(Path(context.artifacts[EXPORT]))
        self._terms = load_terms(Path(context.artifacts[TERMS])) if TERMS in context.artifacts else None

    def predict(
        self,
        context: PythonModelContext,  # noqa: ARG002  MLflow's interface
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> pd.DataFrame:
        """Answer for each row of the column ``text``.

        Args:
            context: not used.
            model_input: with a column ``text``.
            params: ``task`` is embed or fill_mask; ``layer`` and ``pooling`` are of eval.embeddings.embed; ``top``
                is the number of tokens for each mask.

        Returns:
            A column ``embedding``, lists of D numbers; or ``masks``, for each mask a list of tokens and probabilities.

        Raises:
            MlflowException: an unknown task, or what eval.embeddings.embed refuses, or a text without a mask. This kind
                is what MLflow's server tells its caller by the message.
        """
        assert self._pretrained is not None
        asked: dict[str, Any] = {"task": "embed", "layer": -1, "pooling": "mean", "top": 5}
        asked |= {name: value for name, value in (params or {}).items() if value is not None}
        texts = model_input["text"]
        if texts.isna().any():
            raise MlflowException.invalid_parameter_value("a text is null; leave the row out")
        given = [str(text) for text in texts]
        try:
            "".join(given).encode()
            return _answer(self._pretrained, self._terms, given, **asked)
        except UnicodeEncodeError as error:  # JSON can have half of a surrogate pair
            raise MlflowException.invalid_parameter_value(f"a text is no Unicode: {error.reason}") from error
        except UsageError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error


def _answer(
    pretrained: Pretrained,
    terms: TermStatistics | None,
    texts: Sequence[str],
    task: str,
    layer: int,
    pooling: Pooling,
    top: int,
) -> pd.DataFrame:
    if task == "embed":
        return pd.DataFrame({"embedding": embed(pretrained, texts, layer, pooling, terms).tolist()})
    if task == "fill_mask":
        return pd.DataFrame({"masks": _fill(pretrained, texts, top)})
    raise UsageError(f"task {task!r} is unknown; choose embed or fill_mask")


def _fill(pretrained: Pretrained, texts: Sequence[str], top: int) -> list[list[list[dict[str, Any]]]]:
    if top < 1:
        raise UsageError(f"top is {top}; give a number of tokens of 1 or more")
    encodings = pretrained.tokenizer.encode_batch(list(texts))
    for i, encoding in enumerate(encodings, start=1):
        if not mask_places(pretrained.tokenizer, encoding):
            raise UsageError(f"text {i} has no {MASK}; write it where a word is to be guessed")
    check_lengths(pretrained.model, encodings)
    filled = fill_masks(pretrained.model, pretrained.tokenizer, texts, top)
    return [dataclasses.asdict(sentence)["masks"] for sentence in filled]


set_model(ServedModel())
