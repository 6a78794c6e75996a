"""An encoder that does not train, a guide or a teacher: vectors of token ids, without dropout or gradient."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import SentenceEncoder, length_limit
from dystress_text.encoders.packed import Packing
from dystress_text.encoders.pretrained import load_sentence_transformer, readable
from dystress_text.encoders.prompts import prompt_length
from dystress_text.encoders.saved_model import find_saved, load_saved
from dystress_text.errors import UserError


@dataclass(frozen=True)
class FrozenEncoder:
    """Any encoder of token ids.

    Attributes:
        network: a :class:`SentenceEncoder` or a ``SentenceTransformer``, in evaluation mode.
        tokenizer: its own.
        limit: the most tokens that it reads of a sentence.
        prompt: what its sentences begin with.
        dtype: of the forward pass; any other than fp32 uses autocast.
        packing: compute nothing for padding, where the encoder allows that.
    """

    network: nn.Module
    tokenizer: PreTrainedTokenizerBase
    limit: int
    prompt: str = ""
    dtype: torch.dtype = torch.float32
    packing: bool = True

    @torch.no_grad()
    def __call__(self, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors (n, dim) in fp32 of ids (tokens,), row after row, whose mask is (n, longest)."""
        with torch.autocast(token_ids.device.type, self.dtype, enabled=self.dtype != torch.float32):
            if isinstance(self.network, SentenceEncoder):
                vectors: Tensor = self.network(token_ids, attention_mask, self.packing and self.network.can_pack)
            else:
                ids = Packing.of_mask(attention_mask, len(token_ids)).padded_ids(
                    token_ids, self.tokenizer.pad_token_id or 0
                )
                features = {"input_ids": ids, "attention_mask": attention_mask}
                if self.prompt:
                    features["prompt_length"] = torch.full((len(ids),), prompt_length(self.tokenizer, self.prompt))
                vectors = self.network(features)["sentence_embedding"]
        return vectors.float()


def frozen_copy(model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, with_head: bool) -> FrozenEncoder:
    """A frozen copy of an encoder as it is now; ``with_head`` says whether its vectors are those after its head."""
    network = copy.deepcopy(model).eval().requires_grad_(False)
    network.keep_head = network.keep_head and with_head
    return FrozenEncoder(network, tokenizer, length_limit(tokenizer, network.transformer), model.prompts.text)


def load_frozen(name: str, option: str) -> FrozenEncoder:
    """A sentence-transformers model as a frozen encoder; the random state stays as it is.

    What :class:`SentenceEncoder` can read is read so, since that is faster; any other model runs in its own code.

    Args:
        name: folder or hub name.
        option: the program's option for it, for error messages.

    Raises:
        UserError: it is no such model, or encodes no text.
    """
    try:
        folder = find_saved(name)
    except UserError as error:
        raise UserError(f"{option}: {str(error).removeprefix('--model_name_or_path: ')}") from error
    if folder is None:
        raise UserError(f"{option}: {name!r} is not a sentence-transformers model")
    with torch.random.fork_rng(devices=[]):
        try:
            encoder, tokenizer = load_saved(folder, name)
        except UserError:
            return _in_its_own_code(name, option)
    return frozen_copy(encoder, tokenizer, with_head=True)


def _in_its_own_code(name: str, option: str) -> FrozenEncoder:
    model = load_sentence_transformer(name, option, device="cpu").eval().requires_grad_(False)
    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or not tokenizer.is_fast:
        raise UserError(f"{option}: {name!r} has no text encoder with a fast (tokenizers) tokenizer")
    prompt = model.prompts.get(model.default_prompt_name or "") or ""
    frozen = FrozenEncoder(model, tokenizer, int(model.max_seq_length or 512), prompt)
    with readable(name, option, kind=" as a text encoder"):
        ids = torch.tensor(tokenizer("One sentence.")["input_ids"])
        if frozen(ids, torch.ones(1, len(ids), dtype=torch.int64)).ndim != 2:
            raise ValueError("it does not give one vector a sentence")
    return frozen
