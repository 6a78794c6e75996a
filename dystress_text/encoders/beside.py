"""A trained table of words beside a sentence-transformers model, saved as one model; the model's
weights stay.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from dystress_text.encoders import beside_module
from dystress_text.encoders.beside_module import (
    BesideEmbedding,
    is_table,
    joined,
    without_prompt,
)
from dystress_text.encoders.saving import MODULES, PROMPTS, SETTINGS, prompts_of, quiet
from dystress_text.encoders.static import (
    StaticEncoder,
    StaticTable,
    table_of,
    tokenizer_of,
    words_of,
)
from dystress_text.errors import ParameterError, UserError
from dystress_text.files.whole import replaced_files, write_json

WEIGHT = 0.7  # of the words' part
GIVES = (
    "Words beside a model are for search in the text that they were trained on: nDCG@10 x 100 of all-MiniLM-L6-v2 goes "
    "from 42.1 to 45.5 on CISI and from 40.9 to 47.5 on CACM. They cost similarity of other sentences (with CACM's "
    "words STS12 goes from 72.4 to 69.5, SICK-R from 77.2 to 72.3), longer vectors, and trust_remote_code."
)
_READ = (  # by sentence-transformers, and by transformers and peft inside it, but for the weights
    MODULES, "config_sentence_transformers.json", "README.md", "config.json", "sentence_*_config.json",
    "adapter_config.json", "cnn_config.json", "lstm_config.json", "wordembedding_config.json",
    "whitespacetokenizer_config.json", "phrasetokenizer_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt", "dict.txt", "bpe.codes", "entity_vocab.json", "normalizer.json",
    "emoji.json", "sentencepiece.bpe.model", "sentencepiece.model", "spiece.model", "spm.model", "tokenizer.model",
)  # fmt: skip
_SAFE = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    "adapter_model.safetensors",
)
_PICKLED = (  # read where no safetensors are
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model-?????-of-?????.bin",
    "adapter_model.bin",
)


def tokenizers_form(model: Any) -> Tokenizer:
    """The tokenizer of a sentence-transformers model as one of the package tokenizers."""
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", model.tokenizer)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(
            f"{type(tokenizer).__name__} has no fast form for a table; --vocabulary embedded needs none"
        )
    return tokenizer


class BesideEncoder(StaticEncoder):
    """A table that trains as without the model; its evaluations and its files are those of both."""

    def __init__(self, table: StaticTable, model: Any, source: Path) -> None:
        super().__init__(table)
        table.set_unknown(0.0)  # a text of unknown tokens alone has the model's vector alone
        self._model = (model,)  # a tuple, since it must not be a submodule
        self.source, self.dim = source, len(model.encode(["One text."], show_progress_bar=False)[0])
        self._own: dict[str, Tensor] = {}  # the model's vectors, which training does not change
        setattr(table.config, PROMPTS, prompts_of(model) | {"similarity_fn_name": "cosine"})

    @property
    def model(self) -> Any:
        return self._model[0]

    def _encode(self, sentences: Sequence[str], *how: Any, **more: Any) -> dict[str, Tensor]:
        plain = [without_prompt(self.model, text) for text in sentences]
        of_words = super()._encode(plain, *how, **more)  # (n, dim) each
        if new := [text for text in dict.fromkeys(sentences) if text not in self._own]:
            self.model.to(self.transformer.device)
            vectors = self.model.encode(
                new, prompt="", convert_to_tensor=True, show_progress_bar=False
            )
            self._own.update(zip(new, vectors.float().cpu(), strict=True))
        own = torch.stack([self._own[text] for text in sentences])  # (n, the model's dim)
        return {
            name: joined(own.to(words.device), words, WEIGHT) for name, words in of_words.items()
        }

    def forward_padded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors (n, dim) of whole texts as the model's own tokenizer reads them; its part is cut
        here.

        It is for one graph of both.
        """
        limit = self.model.max_seq_length or sys.maxsize
        lengths, positions = attention_mask.sum(1, keepdim=True), torch.arange(input_ids.shape[1])
        # of a text, (tokens,): what the tokenizer puts around it is no word, an equal token in it is
        around = self.model.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        before, after = around.index(0), around[::-1].index(0)
        is_word = (positions >= before) & (positions < lengths - after)  # (n, length)
        words = (self.transformer.embedding(input_ids) * is_word.unsqueeze(-1)).sum(1)
        kept = torch.sym_min(input_ids.shape[1], limit)  # type: ignore[no-untyped-call]
        positions, mask = positions[:kept], attention_mask[:, :kept]
        # a cut text keeps its last tokens
        moved = (lengths - limit).clamp(min=0) * (positions >= limit - after)  # (n, kept)
        ids = input_ids.gather(1, positions + moved)
        features = self.model({"input_ids": ids, "attention_mask": mask})
        return joined(features["sentence_embedding"], words, WEIGHT)

    @property
    def may_have_graph(self) -> bool:
        """Whether one graph can hold both, if they have one vocabulary."""
        return not is_table(self.model) and not any(self.model.prompts.values())

    def of_graph(
        self, words: PreTrainedTokenizerBase
    ) -> tuple[PreTrainedTokenizerBase, PretrainedConfig]:
        """Tokenizer and configuration of a graph of both; ``words`` is the table's tokenizer."""
        own = tokenizer_of(tokenizers_form(self.model))
        if (
            not self.may_have_graph
            or own.backend_tokenizer.to_str() != words.backend_tokenizer.to_str()
        ):
            raise ParameterError(
                "to",
                "onnx needs a table of the vocabulary of the model beside it, a transformer without prompts",
            )
        tokenizer: PreTrainedTokenizerBase = copy.deepcopy(self.model.tokenizer)
        tokenizer.model_max_length = sys.maxsize
        return tokenizer, self.model[0].auto_model.config

    @quiet()
    def save(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        file = Path(beside_module.__file__)
        module = {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": f"{file.stem}.{BesideEmbedding.__name__}",
        }
        weights = self.transformer.embedding.weight.detach().cpu()
        with replaced_files(folder) as complete:
            _copy_model(self.source, complete / beside_module.MODEL)
            inside = complete / beside_module.MODEL / MODULES
            modules = json.loads(inside.read_text(encoding="utf-8"))
            for entry in modules:  # by names that each release reads: 5 lacks some of 6
                entry["type"] = f"sentence_transformers.models.{entry['type'].rpartition('.')[2]}"
            write_json(inside, modules)
            BesideEmbedding(self.model, weights, words_of(tokenizer), WEIGHT).save_words(complete)
            shutil.copyfile(file, complete / file.name)
            write_json(
                complete / SETTINGS,
                getattr(self.transformer.config, PROMPTS),
            )
            write_json(complete / MODULES, [module])


def saved_beside(module: Any, folder: Path) -> tuple[BesideEncoder, PreTrainedTokenizerBase]:
    """The encoder of a folder whose :class:`BesideEmbedding` is loaded, and its table's tokenizer."""
    tokenizer = tokenizer_of(module.words)
    table = table_of(module.table.weight, tokenizer.unk_token_id)
    return BesideEncoder(table, module.model, folder / beside_module.MODEL), tokenizer


def _copy_model(source: Path, target: Path) -> None:
    """Copy the files that a model's loader reads, to the letter; an evaluation's or a run's stay."""
    modules = json.loads((source / MODULES).read_text(encoding="utf-8"))
    for path in {"", *(entry["path"] for entry in modules)}:
        (target / path).mkdir(parents=True, exist_ok=True)
        weights = _files(source / path, _SAFE) or _files(source / path, _PICKLED)
        for file in _files(source / path, _READ) + weights:
            shutil.copyfile(file, target / path / file.name)


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [file for pattern in patterns for file in folder.glob(pattern)]
