"""Run one small STS task of MTEB on data of the checkout. Runs in MTEB's environment, offline.

MTEB takes the loaded model (its get_model looks on the hub alone), wraps it in its own class and encodes by its own
code.

python mteb_task.py FOLDER
"""

import sys
from pathlib import Path

import mteb
from datasets import Dataset, DatasetDict
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer, util

DATA = (
    Path(__file__).resolve().parents[2] / "dystress_text" / "embedded" / "senteval" / "STS" / "MiniSTS" / "mini-sts.csv"
)


def read_pairs():
    rows = [line.split("\t") for line in DATA.read_text(encoding="utf-8").splitlines()]
    return {
        "sentence1": [row[5] for row in rows],
        "sentence2": [row[6] for row in rows],
        "score": [float(row[4]) for row in rows],
    }


class MiniSTS(AbsTaskSTS):
    min_score = 0
    max_score = 5
    metadata = TaskMetadata(
        name="MiniSTS",
        dataset={"path": "local/mini-sts", "revision": "1"},
        description="A small set of sentence pairs",
        type="STS",
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="cosine_spearman",
        reference=None,
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation=None,
    )

    def load_data(self, *args, **kwargs):
        self.dataset = DatasetDict({"test": Dataset.from_dict(read_pairs())})
        self.dataset = {"default": self.dataset}
        self.data_loaded = True


def main():
    folder = sys.argv[1]
    encoder = SentenceTransformer(folder, device="cpu")
    result = mteb.evaluate(encoder, [MiniSTS()], cache=None, encode_kwargs={"batch_size": 8})
    score = result.task_results[0].get_score()
    pairs = read_pairs()
    similarity = util.pairwise_cos_sim(encoder.encode(pairs["sentence1"]), encoder.encode(pairs["sentence2"]))
    expected = spearmanr(similarity, pairs["score"]).statistic
    print(f"mini-STS cosine Spearman {score:.6f}, without MTEB {expected:.6f}")
    return 0 if abs(score - expected) < 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
