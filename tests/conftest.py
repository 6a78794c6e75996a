"""Small models and texts that the tests share. Nothing is downloaded."""

import contextlib
import gc
import os
import signal
import subprocess

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    # a process on each core: one thread in each, and in the programs that tests start
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from hypothesis import settings
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.texts import plain_text

# background jobs of a shell ignore Ctrl-C, and so do the programs that they start
signal.signal(signal.SIGINT, signal.default_int_handler)

# no deadline: the machine may be busy
settings.register_profile("tests", max_examples=50, deadline=None)
settings.load_profile("tests")

SHARED = Path(__file__).resolve().parents[2] / "shared"

VOCABULARY = """
a the cat dog bird fish man woman child sat ran flew swam ate saw on under over near mat tree river
house red blue small big old new quickly slowly yesterday today and but not is was in of to with one
two three
"""
WORDS = VOCABULARY.split()

SIZES = {"vocab_size": len(WORDS) + 4, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
BERT = {
    "max_position_embeddings": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
ROBERTA = BERT | {"max_position_embeddings": 42}  # its positions begin after the padding's
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "mpnet": ROBERTA,
    "xlm-roberta": ROBERTA,
    "deberta-v2": {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "type_vocab_size": 0,
        **BERT,
    },
    # rotary positions other than the default, so that lost settings change the vectors
    "llama": {
        "num_key_value_heads": 1,
        "attention_dropout": 0.1,
        "rope_theta": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        **BERT,
    },
    "gpt2": BERT,
    "fnet": BERT,  # its vectors change with padding: a Fourier transform over the tokens
    "distilbert": {
        "max_position_embeddings": 40,
        "dim": 16,
        "n_layers": 3,
        "n_heads": 2,
        "hidden_dim": 32,
    },
    # ModernBERT has no dropout by default; training for two dropout views needs some
    "modernbert": {
        "embedding_dropout": 0.1,
        "cls_token_id": 0,
        "sep_token_id": 2,
        "global_rope_theta": 900.0,
        "local_rope_theta": 500.0,
        "global_attn_every_n_layers": 2,
        **BERT,
    },
}


def build_transformer(family):
    """Return a random encoder of a family, with position tables for 40 tokens."""
    torch.manual_seed(0)
    return AutoModel.from_config(AutoConfig.for_model(family, **SIZES, **FAMILIES[family]))


def set_dropout(model, rate):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        if hasattr(module, "dropout_prob"):  # attention of transformers 4
            module.dropout_prob = rate


def build_tokenizer(special="[CLS] $A [SEP]"):
    """Return a tokenizer of words that adds the special tokens of the template ``special``."""
    vocabulary = {word: i for i, word in enumerate(["[CLS]", "[PAD]", "[SEP]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=special, special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        pad_token="[PAD]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def make_sentences(n, seed=0):
    """Return distinct sequences of 3 to 12 words."""
    generator = torch.Generator().manual_seed(seed)
    sentences = {}
    while len(sentences) < n:
        length = int(torch.randint(3, 13, (1,), generator=generator))
        drawn = torch.randint(len(WORDS), (length,), generator=generator)
        sentences[" ".join(WORDS[i] for i in drawn)] = None
    return list(sentences)


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """Return a folder with a random BERT and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-bert")
    build_transformer("bert").save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """Return a file of 200 sentences, one a line."""
    file = tmp_path_factory.mktemp("text") / "sentences.txt"
    file.write_text("".join(f"{sentence}\n" for sentence in make_sentences(200)))
    return file


@pytest.fixture
def corpus(text_file):
    """Return the sentences of ``text_file``, of at most 16 tokens."""
    from model_cases import text_reader

    return load_corpus(plain_text(text_file), text_reader(16))


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """Return a data folder with a small STS-B dev file, scored by the shared words."""
    data = tmp_path_factory.mktemp("data")
    folder = data / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    sentences = make_sentences(80, seed=9)
    lines = []
    for i, (one, two) in enumerate(zip(sentences[:40], sentences[40:], strict=True)):
        first, second = set(one.split()), set(two.split())
        score = 5 * len(first & second) / len(first | second) if i else 5.0
        lines.append(f"main\tx\t2026\t{i}\t{score:.3f}\t{one}\t{two}\n")
    (folder / "sts-dev.csv").write_text("".join(lines))
    return data


@pytest.fixture(scope="session")
def tiny_run(tiny_bert, text_file, data_dir):
    """Return the options of a run of a second, without its folder."""
    return [
        f"--model_name_or_path={tiny_bert}",
        f"--train_file={text_file}",
        f"--data_dir={data_dir}",
        "--max_steps=6",
        "--train_batch_size=8",
        "--eval_steps=3",
        "--mixed_precision=no",
        "--learning_rate=1e-3",
    ]


@pytest.fixture
def flags(tiny_run, tmp_path):
    """Return the options of a run of a second."""
    return [*tiny_run, f"--output_dir={tmp_path / 'out'}"]


def pytest_collection_modifyitems(items):
    """Put slow tests first, in order of the seconds that ``slow(40)`` names."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    slow.sort(key=lambda item: -(item.get_closest_marker("slow").args or (10,))[0])
    # worksteal gives each process a contiguous part of the list
    shares = [item for first in range(processes) for item in slow[first::processes]]
    items[:] = [*shares, *(item for item in items if item not in slow)]
    # imported modules need no garbage collection, which runs do twice each
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def galleries(tmp_path_factory):
    """Give the tests a cache of their own, and pages without pictures, which take seconds."""
    from dystress_text.analysis import page

    whole = page.galleries
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYSTRESS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(page, "galleries", lambda runs: [])
        yield whole


@pytest.fixture
def with_pictures(galleries, monkeypatch):
    """Draw the pictures of pages in a test."""
    monkeypatch.setattr("dystress_text.analysis.page.galleries", galleries)


@pytest.fixture
def small_blocks(monkeypatch):
    """Give the blockwise form of losses blocks of four rows."""
    monkeypatch.setattr("dystress_text.losses.blockwise.CPU_BLOCK", 4)


@pytest.fixture(scope="session")
def shared():
    """Return the folder of real data next to the checkout."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no real data: the folder shared/ is not next to the checkout")
    return SHARED


def reset_accelerator():
    """Reset the state that accelerate keeps for the life of the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def _fresh_accelerator():
    yield
    reset_accelerator()


@pytest.fixture
def small_disk(tmp_path_factory):
    """Return a function that mounts a disk of some bytes; skip where mounting is not allowed."""
    with contextlib.ExitStack() as mounted:

        def mount(size):
            folder = tmp_path_factory.mktemp("disk")
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no disk can be mounted: {error}")
            mounted.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
            return folder

        yield mount
