"""A trained table of words beside a sentence-transformers model, saved as one model; the model's weights stay."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from dystress_text.encoders import beside_module
from dystress_text.encoders.beside_module import BesideEmbedding, joined
from dystress_text.encoders.encoder import TokenizedOnce
from dystress_text.encoders.saving import MODULES, PROMPTS, prompts_of, quiet
from dystress_text.encoders.static import StaticConfig, StaticEncoder, StaticTable, tokenizer_of
from dystress_text.errors import ParameterError
from dystress_text.files.whole import replaced_files, write_json

WEIGHT = 0.7  # of the words' part
_KEPT = {".json", ".txt", ".model", ".md", ".safetensors", ".bin"}  # suffixes of a model's files


def new_beside(dim: int, model: Any) -> tuple[StaticTable, PreTrainedTokenizerBase]:
    """A table of a model's own vocabulary, (vocabulary, dim), and its tokenizer; the table is not yet started."""
    words = _words_of(model)
    return StaticTable(StaticConfig(1 + max(words.get_vocab().values()), dim)), words


def _words_of(model: Any) -> PreTrainedTokenizerBase:
    """A model's tokenizer without special tokens around a text."""
    return tokenizer_of(getattr(model.tokenizer, "backend_tokenizer", model.tokenizer))


class BesideEncoder(StaticEncoder):
    """A table that trains as without the model; its evaluations and its files are those of both.

    Where the model is a transformer without prompts and the table has its vocabulary, both read the same ids, cut as
    for the model: one graph can hold them. Else the table reads the whole text, without a prompt of the model's.
    """

    def __init__(self, table: StaticTable, words: PreTrainedTokenizerBase, model: Any, source: Path) -> None:
        super().__init__(table)
        self._model = (model,)  # a tuple, since it must not be a submodule
        self.source, self.dim = source, len(model.encode(["One text."], show_progress_bar=False)[0])
        self.weight = WEIGHT
        self._own: dict[str, Tensor] = {}
        transformer = type(model[0]).__name__ == "Transformer" and not any(model.prompts.values())
        same = tokenizer_of(words.backend_tokenizer).backend_tokenizer.to_str()
        self.shared = transformer and _words_of(model).backend_tokenizer.to_str() == same
        if kept := prompts_of(model):
            setattr(table.config, PROMPTS, kept | {"similarity_fn_name": "cosine"})
        if self.shared:
            words.model_max_length = (model.max_seq_length or sys.maxsize) - len(model.tokenizer("")["input_ids"])

    @property
    def model(self) -> Any:
        return self._model[0]

    def _encode(
        self,
        sentences: Sequence[str],
        tokenized: TokenizedOnce,
        batches: Iterable[Sequence[int]],
        dtype: torch.dtype,
        poolers: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        plain = [BesideEmbedding.without_prompt(self, text) for text in sentences]
        of_words = super()._encode(plain, tokenized, batches, dtype, poolers)  # (n, dim) each
        if new := [text for text in dict.fromkeys(sentences) if text not in self._own]:
            self.model.to(self.transformer.device)
            vectors = self.model.encode(new, prompt="", convert_to_tensor=True, show_progress_bar=False)
            self._own.update(zip(new, vectors.float().cpu(), strict=True))
        own = torch.stack([self._own[text] for text in sentences])  # (n, the model's dim)
        return {name: joined(own.to(words.device), words, WEIGHT) for name, words in of_words.items()}

    def module(self, words: PreTrainedTokenizerBase) -> BesideEmbedding:
        """Both parts as sentence-transformers has them; ``words`` is the table's tokenizer."""
        weights = self.transformer.embedding.weight.detach().cpu().clone()  # (vocabulary, dim)
        if self.shared:  # the ids have special tokens around the text, which are no words
            weights[self.model.tokenizer("")["input_ids"]] = 0
        plain = tokenizer_of(words.backend_tokenizer).backend_tokenizer
        return BesideEmbedding(self.model, weights, plain, WEIGHT, self.shared)

    def for_graph(self, words: PreTrainedTokenizerBase) -> tuple[BesideEmbedding, Any, PretrainedConfig]:
        """What one graph of both needs: the module, and tokenizer and configuration of the model."""
        if not self.shared:
            raise ParameterError(
                "to",
                "onnx needs a table trained on the vocabulary of the model beside it, a transformer without prompts",
            )
        tokenizer = self.model.tokenizer
        tokenizer.model_max_length = self.model.max_seq_length or tokenizer.model_max_length
        return self.module(words), tokenizer, self.model[0].auto_model.config

    @quiet()
    def save(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        kept = getattr(self.transformer.config, PROMPTS, {"similarity_fn_name": "cosine"})
        file = Path(beside_module.__file__)
        kind = f"{file.stem}.{BesideEmbedding.__name__}"
        with replaced_files(folder) as complete:
            _copy_model(self.source, Path(complete) / beside_module.MODEL)
            self.module(tokenizer).save_words(Path(complete))
            shutil.copyfile(file, Path(complete) / file.name)
            write_json(Path(complete) / "config_sentence_transformers.json", kept)
            write_json(Path(complete) / MODULES, [{"idx": 0, "name": "0", "path": "", "type": kind}])


def saved_beside(model: Any, folder: Path) -> tuple[BesideEncoder, PreTrainedTokenizerBase]:
    """The encoder of a saved model, loaded from a folder, and its table's tokenizer."""
    table = StaticTable(StaticConfig(*model[0].table.weight.shape))
    table.embedding.weight.data = model[0].table.weight.detach()
    words = tokenizer_of(model[0].words)
    return BesideEncoder(table, words, model[0].model, folder / beside_module.MODEL), words


def _copy_model(source: Path, target: Path) -> None:
    """Copy the files of a model, and no others that lie beside them, to the letter."""
    modules = json.loads((source / MODULES).read_text(encoding="utf-8"))
    for path in {"", *(entry["path"] for entry in modules if (source / entry["path"]).is_dir())}:
        files = [file for file in (source / path).iterdir() if file.is_file() and file.suffix in _KEPT]
        safe = any(file.suffix == ".safetensors" for file in files)
        (target / path).mkdir(parents=True, exist_ok=True)
        for file in files:
            if not (safe and file.suffix == ".bin"):
                shutil.copyfile(file, target / path / file.name)
