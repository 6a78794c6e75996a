"""Whether saved hybrid models and tables give right values in sentence-transformers' own hands.

    python tests/consumers/trainers.py save FOLDER  # here: the models, their parts and copies
    python tests/consumers/trainers.py read FOLDER  # with any release of sentence-transformers
    python tests/consumers/trainers.py table FILE ...  # what ``read`` printed, as a table

``read`` needs nothing of this package. A hybrid model is compared with its parts, the loss of a
step with a loop over the vectors; each line has the largest difference. It ends with the number of
lines that are wrong.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

UNKNOWN = "\N{SLIGHTLY SMILING FACE}"
PROMPT = "Instruct: find the red house "
TEXTS = [
    "the cat saw a dog",
    "a man ran",
    UNKNOWN,
    "a [SEP] struck [CLS] bird",
    "[SEP] the old river",
    "one",
]
TRIPLETS = {
    "anchor": ["cat", "dog", "the bird sat", "fish"],
    "positive": ["tree", "the big man sat on a house", UNKNOWN, "river"],
    "negative": ["one", "two", "three", "red"],
}  # some columns have one token a text, so that there are as many tokens as texts
KINDS = {"hybrid": "hybrid", "hybrid-static": "hybrid, static base", "table": "table"}
NEAR, NEAR_HALF = 2e-6, 4e-3


def save(folder: Path) -> None:
    """Train a table, and hybrid models of a transformer and of another table."""
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests / "support")]
    from conftest import make_sentences, set_dropout
    from model_cases import build_model

    from dystress_text.models.loading import save_model
    from dystress_text.programs.export import main as export
    from dystress_text.programs.train import main as train

    lines = folder / "lines.txt"
    lines.write_text("\n".join(make_sentences(200)) + "\n", encoding="utf-8")
    base = build_model("bert", "avg", normalize=True)
    config = base[0].model.config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    set_dropout(base, 0.0)
    save_model(base, folder / "base")
    common = ["--preset=own-text", f"--train_file={lines}", "--max_steps=4", "--eval_set=none"]
    for name, more in (
        ("table", ["--dim=12"]),
        ("hybrid", ["--dim=24", f"--hybrid={folder / 'base'}"]),
        ("hybrid-static", ["--dim=24", f"--hybrid={folder / 'table'}"]),
    ):
        assert train([*common, *more, f"--output_dir={folder / name}"]) == 0
    for name in ("table", "hybrid"):
        assert export([str(folder / name), "--to=onnx", f"--output={folder / f'{name}-onnx'}"]) == 0


def load(folder: Path, **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True, **options)


def unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def expected(folder: Path, texts: list[str], prompt: str = "") -> np.ndarray:
    """Vectors from the parts: a prompt is for the dense part; in a table it is text."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    file = "words" if (folder / "beside.json").is_file() else "tokenizer"
    tokenizer = Tokenizer.from_file(str(folder / f"{file}.json"))
    weights = folder / ("words.safetensors" if file == "words" else "model.safetensors")
    (rows,) = load_file(weights).values()
    given = texts if file == "words" else [prompt + text for text in texts]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(given, add_special_tokens=False)]
    lexical = unit(np.stack([rows[of_text].astype(np.float64).sum(0) for of_text in ids]))
    if file != "words":
        return lexical
    weight = json.loads((folder / "beside.json").read_text())["weight"]
    dense = unit(load(folder / "model").encode(texts, prompt=prompt).astype(np.float64))
    return unit(np.concatenate([dense, weight * lexical], 1))


def off(found: Any, right: np.ndarray) -> float:
    return float(np.abs(np.asarray(found, dtype=np.float64) - right).max())


# ---- each gives a difference


def step(
    folder: Path, cached: bool, columns: dict[str, list[str]]
) -> tuple[float, dict[str, Any], Any]:
    """The difference of a step's loss from a loop, the step's log and the model."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )

    model = load(folder)
    vectors = [expected(folder, texts) for texts in columns.values()]
    anchors, candidates = vectors[0], np.concatenate(vectors[1:])
    rows = [
        np.log(np.exp(20 * candidates @ anchor).sum()) - 20 * candidates[i] @ anchor
        for i, anchor in enumerate(anchors)
    ]
    loss: Any = losses.MultipleNegativesRankingLoss(model)
    if cached:
        loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=3)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder.parent / "trained"), max_steps=1, logging_steps=1, save_strategy="no",
        per_device_train_batch_size=len(anchors), learning_rate=1e-3, lr_scheduler_type="constant",
        report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss
    )
    trainer.train()
    log = trainer.state.log_history[0]
    return abs(log["loss"] - float(np.mean(rows))), log, model


def three_columns(folder: Path) -> float:
    return step(folder, False, TRIPLETS)[0]


def cached(folder: Path) -> float:
    return step(folder, True, TRIPLETS)[0]


def unknown_words(folder: Path) -> float:
    """A text of unknown words in each batch: others learn as much as they do without it."""
    columns = {"anchor": [*TEXTS[:2], UNKNOWN], "positive": ["dog", "woman", "tree"]}
    difference, log, model = step(folder, False, columns)
    moved = off(model.encode(TEXTS[:2]), expected(folder, TEXTS[:2]))
    if not (log["grad_norm"] < 1e6 and 1e-3 < moved < 0.5):
        raise ValueError(f"gradient norm {log['grad_norm']}, vectors move by {moved:.1g}")
    return difference


def half(folder: Path) -> float:
    # of a text without any token a table's vector is NaN, as Normalize divides 0 by 0
    texts = TEXTS if folder.name == "table" else [*TEXTS, ""]
    return off(load(folder).half().encode(texts), expected(folder, texts))


def base_in_half(folder: Path) -> float:
    model = load(folder, model_kwargs={"torch_dtype": "float16"})
    return off(model.encode(TEXTS), expected(folder, TEXTS))


def own_prompt(folder: Path) -> float:
    return off(load(folder).encode(TEXTS, prompt=PROMPT), expected(folder, TEXTS, PROMPT))


def truncated(folder: Path) -> float:
    return off(load(folder, truncate_dim=10).encode(TEXTS), expected(folder, TEXTS)[:, :10])


def processes(folder: Path) -> float:
    model = load(folder)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        return off(model.encode(TEXTS, pool=pool, chunk_size=3), expected(folder, TEXTS))
    finally:
        model.stop_multi_process_pool(pool)


def onnx(folder: Path) -> float:
    """What ONNX Runtime gives, as the copy's card says."""
    import onnxruntime
    from transformers import AutoTokenizer

    copy = folder.parent / f"{folder.name}-onnx"
    if not copy.is_dir():
        raise ValueError("export refuses it")
    session = onnxruntime.InferenceSession(
        str(copy / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    batch = AutoTokenizer.from_pretrained(copy)(
        TEXTS, padding=True, truncation=True, return_tensors="np"
    )
    inputs = {name: batch[name].astype("int64") for name in ("input_ids", "attention_mask")}
    return off(session.run(["sentence_embedding"], inputs)[0], expected(folder, TEXTS))


CHECKS: dict[str, tuple[Callable[[Path], float], float]] = {
    "a loss of three columns": (three_columns, 1e-4),  # the trainer's log is rounded
    "a cached loss of three columns": (cached, 1e-4),
    "unknown words in each batch": (unknown_words, 1e-4),
    "`.half()`": (half, NEAR_HALF),
    "a base in fp16": (base_in_half, NEAR_HALF),
    "a prompt of the user's own": (own_prompt, NEAR),
    "`truncate_dim`": (truncated, NEAR),
    "two processes": (processes, NEAR),
    "ONNX, special tokens in the text": (onnx, 2 * NEAR),
}


def read(folder: Path) -> int:
    """Print a line for each check and model; returns how many are wrong without an error."""
    import sentence_transformers

    wrong = 0
    for check, (run, near) in CHECKS.items():
        for kind in KINDS:
            line = {"release": sentence_transformers.__version__, "check": check, "model": kind}
            try:
                line["difference"] = run(folder / kind)
                line["right"] = line["difference"] < near
                wrong += not line["right"]
            except Exception as error:
                line["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            print(json.dumps(line), flush=True)
    return wrong


def table(files: list[str]) -> None:
    """Print a row for each check; a column for each model and each release that loads it."""
    lines = [
        json.loads(line)
        for file in files
        for line in Path(file).read_text().splitlines()
        if line[:2] == '{"'  # not what trainers print
    ]
    cells = {}
    for line in lines:
        cell = "refused" if "error" in line else "WRONG"
        if line.get("right"):
            cell = f"{line['difference']:.0e}"
        cells[line["check"], line["model"], line["release"]] = cell
    columns = [
        (kind, release)
        for kind in KINDS
        for release in sorted({line["release"] for line in lines})
        if cells.get(("`truncate_dim`", kind, release), "refused") != "refused"
    ]
    titles = [f"{KINDS[kind]}, {release}" for kind, release in columns]
    print(f"| | {' | '.join(titles)} |")
    print("|---" * (1 + len(columns)) + "|")
    for check in CHECKS:
        row = [cells.get((check, *column), "-") for column in columns]
        print(f"| {check} | {' | '.join(row)} |")


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "save":
        save(Path(words[0]))
    elif command == "read":
        sys.exit(read(Path(words[0])))
    else:
        table(words)
