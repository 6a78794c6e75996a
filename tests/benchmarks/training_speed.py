"""Training sentences a second, against sentence-transformers' trainer and a bare loop.

    python tests/benchmarks/training_speed.py --corpus sentences.txt [--model FOLDER]

Unsupervised SimCSE on the same sentences with the same encoder, precision, batch size and
truncation, alternately by this package's loop, by sentence-transformers' trainer with
MultipleNegativesRankingLoss on pairs of a sentence with itself, and by a bare loop: transformers'
model as it comes, both views in one forward pass, backward, clipping, step. The first tokenisation
is counted (the bare loop has none); loading the model is not. Without ``--model``, a BERT of
``--layers`` and ``--width`` (6 and 384; BERT-base has 12 and 768) with random weights is built
around the embedded tokenizer; ``--vocabulary 30522`` gives its embedding BERT's size. Runs on
an accelerator where there is one, after a few batches of each contestant that load its kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import torch
import transformers
from datasets import Dataset
from datasets.utils import logging as datasets_logging
from devices import Seconds, here, in_turn, print_rates, wait
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoTokenizer, BertConfig, BertModel

from dystress_text import InfoNCELoss, ShiftedCosineTemperature
from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.initial_model import TextModel, load_initial_model
from dystress_text.finetuning.settings import TextSettings
from dystress_text.finetuning.task import TextTask
from dystress_text.finetuning.texts import plain_text
from dystress_text.io.paths import EMBEDDED
from dystress_text.io.text_lines import LineCounts, open_text, read_sentences
from dystress_text.models.reading import TextReader
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.allocator import keep_freed_memory
from dystress_text.training.batches import BatchOrder
from dystress_text.training.settings import TrainingSettings
from dystress_text.training.task import TrainingPlan
from dystress_text.training.trainer import Trainer, parameter_groups

RATE = 3e-5
LENGTH = 32
WARM = 5  # batches of each contestant before the first turn, on an accelerator


def random_bert(
    folder: Path, layers: int = 6, width: int = 384, vocabulary: int | None = None
) -> str:
    """Save a BERT with random weights and the embedded tokenizer; return the folder.

    Heads have 32 dimensions, or 64 from a width of 768 on.
    """
    head_dim = 64 if width >= 768 else 32
    tokenizer = AutoTokenizer.from_pretrained(str(EMBEDDED / "bert-mini-wiki"))
    config = BertConfig(
        vocab_size=vocabulary or len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // head_dim,
        intermediate_size=4 * width,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def engine(initial: TextModel, text: Path, settings: TrainingSettings) -> tuple[Trainer, TextTask]:
    """Return this package's trainer with the paper's loss on a file of sentences, and its task."""
    cache = Path(settings.output_dir) / "cache"
    reader = TextReader(initial.embedder.model, LENGTH)
    corpus = load_corpus(plain_text(text), reader, cache_dir=cache)
    loss = InfoNCELoss(ShiftedCosineTemperature(0.05, 0.07, shift=-0.4))
    task = TextTask(initial, corpus, loss)
    task.save = lambda folder: None  # type: ignore[method-assign]  # saving is not training
    plan = TrainingPlan(task=task, samples=len(corpus))
    return Trainer(plan, settings, make_accelerator(settings)), task


def ours(model: str, sentences: list[str], batch: int, precision: str) -> float:
    """Return the seconds of this package's training, tokenisation included."""
    initial = load_initial_model(TextSettings(model, pooler_type="cls"))
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "sentences.txt"
        text.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        settings = TrainingSettings(
            output_dir=folder, train_batch_size=batch, learning_rate=RATE, mixed_precision=precision
        )
        start = time.perf_counter()
        with keep_freed_memory():
            engine(initial, text, settings)[0].fit()
        return time.perf_counter() - start


def theirs(model: str, sentences: list[str], batch: int, precision: str) -> float:
    """Return the seconds of sentence-transformers' trainer; it tokenises while it trains."""
    transformer = Transformer(model, max_seq_length=LENGTH)
    pooling = Pooling(transformer.get_embedding_dimension(), "cls")
    encoder = SentenceTransformer(modules=[transformer, pooling])
    data = Dataset.from_dict({"anchor": sentences, "positive": sentences})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            num_train_epochs=1,
            learning_rate=RATE,
            bf16=precision == "bf16",
            use_cpu=not torch.accelerator.is_available(),
            save_strategy="no",
            report_to="none",
            dataloader_drop_last=True,
        )
        trainer = SentenceTransformerTrainer(
            encoder,
            arguments,
            train_dataset=data,
            loss=MultipleNegativesRankingLoss(encoder, scale=20),
        )
        start = time.perf_counter()
        trainer.train()
        return time.perf_counter() - start


def bare(model: str, sentences: list[str], batch: int, precision: str) -> float:
    """Return the seconds of a bare loop over batches that are tokenised beforehand."""
    initial = load_initial_model(TextSettings(model, pooler_type="cls"))
    embedder = initial.embedder
    device = here()
    embedder.to(device).train()
    transformer = cast(Transformer, embedder.model[0]).model
    assert embedder.head is not None
    objective = InfoNCELoss(ShiftedCosineTemperature(0.05, 0.07, shift=-0.4))
    optimizer = torch.optim.AdamW(parameter_groups(embedder, 0.0), lr=RATE, fused=True)
    order = BatchOrder(len(sentences), batch, 42).epoch(0)
    batches = []
    for rows in order:
        texts = [sentences[i] for i in rows]
        encoded = initial.model.tokenizer(
            texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"
        )
        batches.append(encoded)
    start = time.perf_counter()
    for encoded in batches:
        ids = encoded["input_ids"].to(device).repeat(2, 1)
        mask = encoded["attention_mask"].to(device).repeat(2, 1)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            states = transformer(ids, attention_mask=mask).last_hidden_state
            vectors = embedder.head({"sentence_embedding": states[:, 0]})["sentence_embedding"]
        objective(*vectors.chunk(2)).backward()
        torch.nn.utils.clip_grad_norm_(embedder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    wait(device)
    return time.perf_counter() - start


def main() -> None:
    """Print the table and its JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument(
        "--vocabulary", type=int, help="rows of the embedding; default the tokenizer's"
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", choices=["bf16", "no"], default="bf16")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    with open_text(options.corpus) as stream:
        sentences = list(
            islice(read_sentences(stream, LineCounts()), options.steps * options.batch)
        )
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or random_bert(
            Path(folder), options.layers, options.width, options.vocabulary
        )

        def seconds_of(repeats: int, texts: list[str]) -> Seconds:
            common = model, texts, options.batch, options.precision
            contestants = {
                "dystress_text": ours,
                "sentence-transformers": theirs,
                "bare loop": bare,
            }
            with (
                contextlib.redirect_stderr(io.StringIO()),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                return in_turn(
                    {name: partial(each, *common) for name, each in contestants.items()}, repeats
                )

        if here().type != "cpu":
            seconds_of(1, sentences[: WARM * options.batch])
        seconds = seconds_of(options.repeats, sentences)
    encoder = f"{options.layers} layers x {options.width}"
    if options.model:
        encoder = Path(options.model).name
    print_rates(f"{encoder}, batch {options.batch}, {options.precision}", len(sentences), seconds)


if __name__ == "__main__":
    main()
