"""A hybrid model, whose vectors consist of the vectors of several parts.

A vector concatenates sqrt(weight) x unit vector of each part, so the cosine of two texts is the
weighted mean of the cosines of the parts. ``encode_document`` marks a text as a document, which
makes a short one less similar to queries.

dystress-text writes this file into the folder of a hybrid model. It needs only
sentence-transformers (5.4 or newer), which runs it if ``trust_remote_code`` is true.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_dir_path
from torch import Tensor, nn

DOCUMENT = "\u2063[DOC]\u2063 "  # the prompt of documents starts with it; no part reads it as text
SETTINGS = "hybrid.json"
LETTERS = 5  # an unknown word is looked up by its first letters
PLACES = 4  # a token adds to so many entries of a lexical vector

_ROWS = "distilled.safetensors"
_SOURCE = ("token", "cache_folder", "revision", "local_files_only")
_OF_MODELS = ("model_kwargs", "processor_kwargs", "config_kwargs", "backend")

LoadModel = Callable[[str], SentenceTransformer]


class BagReader:
    """Turns texts into bags of tokens, with the weights (1 + ln tf) idf.

    An unknown word counts as the most frequent token of the words with the same first letters.

    Args:
        words: the indices of each word's tokens; a stop word has none.
        idf: the inverse document frequency of each token.
        word: a regular expression for words in lower case.
        unspaced: a regular expression for runs of a script without spaces, whose words are
            character bigrams.
    """

    def __init__(
        self, words: Mapping[str, Sequence[int]], idf: Sequence[float], word: str, unspaced: str
    ) -> None:
        self.settings = {"words": words, "idf": idf, "word": word, "unspaced": unspaced}
        self._words: Mapping[str, Sequence[int]] = words
        self._idf = idf
        self._patterns = (word, unspaced)
        known = [(token, word) for word, tokens in words.items() for token in tokens]
        known.sort(key=lambda pair: -idf[pair[0]])
        self._by_letters = {word[:LETTERS]: [token] for token, word in known}  # the most frequent

    def bag(self, text: str) -> dict[int, float]:
        """Map the index of each token in a text to its weight."""
        counts: Counter[int] = Counter()
        for word in words_of(text, *self._patterns):
            tokens = self._words.get(word)
            if tokens is None:
                tokens = self._by_letters.get(word[:LETTERS], [])
            for token in tokens:
                counts[token] += 1
        return {token: (1 + math.log(tf)) * self._idf[token] for token, tf in counts.items()}

    def features(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return ``tokens`` and ``weights``, (tokens,) each, and the texts' ``offsets``, (n + 1,).

        No tensor has one row for each text, so losses of sentence-transformers that split a batch
        by rows leave it whole or raise an error.
        """
        bags = [self.bag(text) for text in texts]
        tokens = [token for bag in bags for token in bag]
        weights = [weight for bag in bags for weight in bag.values()]
        lengths = torch.tensor([0, *map(len, bags)])
        return {
            "tokens": torch.tensor(tokens, dtype=torch.long),
            "weights": torch.tensor(weights, dtype=torch.float32),
            "offsets": lengths.cumsum(0),
        }


def words_of(text: str, word: str, unspaced: str) -> list[str]:
    """Return the words of a text; ``word`` and ``unspaced`` are those of :class:`BagReader`."""
    text = unicodedata.normalize("NFC", text).lower()
    words = re.findall(word, text)
    for run in re.findall(unspaced, text):
        words += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
    return words


class DistilledPart(nn.Module):
    """The sum of a text's word vectors, with the weights (1 + ln tf) idf.

    Args:
        reader: reads the words.
        rows: the vector of each word, (words, dim).
    """

    def __init__(self, reader: BagReader, rows: Tensor) -> None:
        super().__init__()
        self.settings = {"reader": reader.settings}
        self.reader = reader
        self.rows = nn.Parameter(rows)

    def get_embedding_dimension(self) -> int:
        return self.rows.shape[1]

    def preprocess(self, inputs: Sequence[str], **_: Any) -> dict[str, Any]:
        """Return the features of texts."""
        return self.reader.features(inputs)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Return ``sentence_embedding``, (n, dim), which is 0 for a text without a known word."""
        sums = F.embedding_bag(
            features["tokens"],
            self.rows,
            features["offsets"],
            mode="sum",
            per_sample_weights=features["weights"].to(self.rows.dtype),
            include_last_offset=True,
        )
        return {"sentence_embedding": sums}


class LexicalPart(nn.Module):
    """TF-IDF vectors hashed to ``dim`` entries, which are not trained.

    Each token adds to four entries, with signs from its hash. The last entry marks documents.

    Args:
        reader: reads the tokens.
        tokens: the names of the tokens, which are hashed.
        dim: the dimension of the vectors, at least 2.
        document: the last entry of a document's vector; that of other texts is 0.
    """

    hashes: Tensor  # (tokens, 4)

    def __init__(self, reader: BagReader, tokens: Sequence[str], dim: int, document: float) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "reader": reader.settings,
            "tokens": tokens,
            "dim": dim,
            "document": document,
        }
        self.reader = reader
        digests = bytearray(4 * PLACES)  # a first row to drop, as frombuffer refuses 0 bytes
        for token in tokens:
            digests += blake2b(token.encode(), digest_size=4 * PLACES).digest()
        hashes = torch.frombuffer(digests, dtype=torch.int32).view(-1, PLACES)[1:]
        self.register_buffer("hashes", hashes, persistent=False)

    def get_embedding_dimension(self) -> int:
        return int(self.settings["dim"])

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **_: Any
    ) -> dict[str, Any]:
        """Return the features of texts, which are documents if there is a prompt."""
        document = self.settings["document"] if prompt else 0.0
        return {**self.reader.features(inputs), "document": document}

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Return ``sentence_embedding``, (n, dim)."""
        weights = features["weights"].unsqueeze(1)  # (tokens, 1)
        lengths = features["offsets"].diff()  # (n,)
        texts = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        hashes = self.hashes[features["tokens"]]  # (tokens, 4)
        dim = self.get_embedding_dimension()
        sums = weights.new_zeros(len(lengths), dim)
        places = (texts.unsqueeze(1), (hashes >> 1).remainder(dim - 1).long())
        signs = 2 * (hashes & 1) - 1
        sums.index_put_(places, weights * signs / math.sqrt(PLACES), accumulate=True)
        sums[:, -1] = features["document"]
        return {"sentence_embedding": sums}


class HybridEmbedding(nn.Module):
    """The only module of a hybrid SentenceTransformer, made of parts.

    Args:
        parts: the parts by name, in the order of the vector: ``dense`` (a SentenceTransformer) or
            ``distilled``; ``lexical``; ``table`` (a static model, whose own prompt marks
            documents).
        weights: the weight of each part.
    """

    save_in_root = True

    def __init__(self, parts: Mapping[str, nn.Module], weights: Mapping[str, float]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        self.weights = dict(weights)
        self._main = "dense" if "dense" in parts else "table"

    @property
    def model(self) -> SentenceTransformer:
        """The part ``dense`` if there is one, else the part ``table``."""
        return cast(SentenceTransformer, self.parts[self._main])

    @property
    def dims(self) -> dict[str, int]:
        """The dimension of each part."""
        parts = cast(Any, self.parts)
        return {name: part.get_embedding_dimension() for name, part in parts.items()}

    def preprocess(
        self,
        inputs: Sequence[str],
        prompt: str | None = None,
        task: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Return the features of all parts, under names such as ``lexical:tokens``.

        Features of the dense model (of the table if there is none) have no such prefix.
        """
        prompt = prompt or ""
        prompts = {"dense": prompt.removeprefix(DOCUMENT)}
        if task == "document" or prompt.startswith(DOCUMENT):
            table = cast(SentenceTransformer, self.parts["table"])
            prompts |= {"lexical": DOCUMENT, "table": table.prompts.get("document") or ""}
        features: dict[str, Any] = {}
        for name, part in self.parts.items():
            own = prompts.get(name) or None
            of_part = cast(Any, part).preprocess(list(inputs), prompt=own, **options)
            prefix = "" if name == self._main else f"{name}:"
            features |= {prefix + key: value for key, value in of_part.items()}
        return features

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Set ``sentence_embedding`` to the joined, weighted vectors of all parts, (n, dim)."""
        vectors = []
        main: dict[str, Any] = self.model(features, **options)
        dtype = main["sentence_embedding"].dtype
        for name, part in self.parts.items():
            result = main
            if name != self._main:
                prefix = f"{name}:"
                own = [key for key in features if key.startswith(prefix)]
                result = part({key.removeprefix(prefix): features[key] for key in own})
            vectors.append(math.sqrt(self.weights[name]) * unit(result["sentence_embedding"]))
        joined = torch.cat(vectors, 1)
        empty = (joined == 0).all(1, keepdim=True)  # no part knows a word of the text
        main["sentence_embedding"] = unit(joined.masked_fill(empty, 1.0)).to(dtype)
        return main

    def get_embedding_dimension(self) -> int:
        """Return the sum of the dimensions of all parts."""
        return sum(self.dims.values())

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of :attr:`model`."""
        return self.model.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """The greatest number of tokens that :attr:`model` reads."""
        return self.model.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.model.max_seq_length = value

    def save(self, path: str, **_: Any) -> None:
        """Write the parts to a folder, those that are models to subfolders."""
        settings: dict[str, Any] = {"weights": self.weights}
        for name, part in self.parts.items():
            if isinstance(part, SentenceTransformer):
                part.save(str(Path(path, name)), create_model_card=False)
            else:
                settings[name] = part.settings
            if isinstance(part, DistilledPart):
                save_file(part.state_dict(), Path(path, _ROWS))
        text = json.dumps(settings, ensure_ascii=False)
        Path(path, SETTINGS).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> HybridEmbedding:
        """Load what :meth:`save` wrote, on the CPU.

        ``options`` are those of sentence-transformers; the parts that are models get some of them.
        Code that comes with these parts is not run.
        """
        source: dict[str, Any] = {name: options[name] for name in _SOURCE if name in options}
        folder = Path(str(load_dir_path(model_name_or_path, subfolder, **source)))
        of_models: dict[str, Any] = {name: options[name] for name in _OF_MODELS if name in options}

        def load_model(path: str) -> SentenceTransformer:
            return SentenceTransformer(path, device="cpu", **of_models)

        return cls.from_folder(folder, load_model)

    @classmethod
    def from_folder(cls, folder: Path, load_model: LoadModel) -> HybridEmbedding:
        """Load the parts from a folder, those that are models by ``load_model``."""
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        parts: dict[str, nn.Module] = {}
        for name in settings["weights"]:
            own = settings.get(name, {})
            if name == "lexical":
                parts[name] = LexicalPart(BagReader(**own.pop("reader")), **own)
            elif name == "distilled":
                parts[name] = DistilledPart(BagReader(**own["reader"]), **load_file(folder / _ROWS))
            else:
                parts[name] = load_model(str(folder / name))
        return cls(parts, settings["weights"])


def unit(vectors: Tensor) -> Tensor:
    """Scale vectors (n, dim) to length 1, in fp32. A zero vector stays 0 and has no gradient.

    ``F.normalize`` divides it by an epsilon, with a gradient of 1e12, or NaN in half precision.
    """
    vectors = vectors.float()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / lengths.masked_fill(lengths == 0, torch.inf)
