"""Several processes against one, through the real engine: the same batches, losses and weights."""

import copy
import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from conftest import build_tokenizer, build_transformer, make_sentences, reset_accelerator

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    CosineTemperature,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
    ProcessGather,
    ShiftedCosineTemperature,
)
from dystress_text.corpus import load_corpus
from dystress_text.encoder import SentenceEncoder
from dystress_text.engine import Trainer, make_accelerator
from dystress_text.settings import EngineSettings
from dystress_text.simcse import SimcseTask

STEPS, BATCH, SENTENCES = 20, 8, 67  # 8 batches an epoch and 3 sentences that sit it out: two and a half epochs

OBJECTIVES = {
    "InfoNCE, shifted cosine": lambda gather: InfoNCELoss(ShiftedCosineTemperature(), gather=gather),
    "NT-Xent, cosine in the gradient": lambda gather: NTXentLoss(
        CosineTemperature(0.05, 0.1), detach_temperature=False, gather=gather
    ),
    "MACL": lambda gather: MACLLoss(temperature=AlignmentAdaptiveTemperature(0.1, 0.5, 0.8), gather=gather),
}
CASES = {name: (name, {}) for name in OBJECTIVES}
CASES["accumulation"] = ("InfoNCE, shifted cosine", {"gradient_accumulation_steps": 2})


class Task(SimcseTask):
    """Its model is saved as it is in memory, in fp64; it is evaluated by using it."""

    def evaluate(self):
        return {"norm": float(self.encode(["the cat sat", "a dog ran"]).norm())}

    def save(self, folder):
        torch.save(self.model.state_dict(), folder / "weights.pt")


def make_task(corpus, objective, world_size, rank):
    transformer = build_transformer("bert")
    for module in transformer.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(1)
    encoder = SentenceEncoder(transformer, "cls").double()
    gather = ProcessGather(rank, world_size) if world_size > 1 else None
    return Task(encoder, build_tokenizer(), corpus, OBJECTIVES[objective](gather))


def shard(accelerator):
    """Sharded training on the CPU, which torch can do, and for which accelerate has no name."""
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )
    accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP


def train(folder, text, objective, sharded=False, **options):
    """One run; leaves metrics.jsonl and weights.pt in the folder."""
    defaults = {"max_steps": STEPS, "train_batch_size": BATCH, "learning_rate": 1e-3, "max_grad_norm": 0.5}
    defaults |= {"mixed_precision": "no", "logging_steps": 1, "eval_steps": 10, "weight_decay": 0.1}
    settings = EngineSettings(output_dir=str(folder), **defaults | options)
    accelerator = make_accelerator(settings)
    if sharded:
        shard(accelerator)
    corpus = load_corpus(text, build_tokenizer(), 16, SENTENCES, progress=False)
    task = make_task(corpus, objective, accelerator.num_processes, accelerator.process_index)
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    trainer = Trainer(task, len(corpus), settings, accelerator)
    trainer.fit()
    return trainer


def process(rank, world_size, folder, port, work):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1",
    )  # fmt: skip
    torch.set_num_threads(1)
    work(Path(folder))
