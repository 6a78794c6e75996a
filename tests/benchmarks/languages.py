"""own-text with a vocabulary of the text, in many languages, against TF-IDF:
docs/study/languages.jsonl.

    python tests/benchmarks/languages.py FOLDER          # with NAME.txt, a text a line
    python tests/benchmarks/languages.py # prints the table of docs/laboratory/own-text.md

A fifth of the texts, at most 500, is held out. The first half of each looks for its second half
among all second halves. The texts of the table are the Debian handbook's (package debian-handbook
11.20220922) and, of Khmer, the help of LibreOffice (libreoffice-help-km 7.4.7).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study" / "languages.jsonl"
SEEDS = (0, 1, 2)


def found_first(similarity: NDArray[Any]) -> float:
    """The share x 100 of first halves, (n, n) similarities to all second ones, that find their own
    alone first.
    """
    own = np.diag(similarity)
    others = similarity - np.diag(np.full(len(own), np.inf))
    return round(100 * float((own > others.max(1)).mean()), 1)


def by_words(
    first: Sequence[str], second: Sequence[str], train: Sequence[str], **options: Any
) -> float:
    """By TF-IDF as scikit-learn has it, with the idf of all texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, **options).fit([*train, *first, *second])
    return found_first((vectorizer.transform(first) @ vectorizer.transform(second).T).toarray())


def by_table(first: Sequence[str], second: Sequence[str], train: Sequence[str], seed: int) -> float:
    """By own-text with its own vocabulary, trained on the others."""
    import dystress_text

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "text.txt"
        file.write_text("\n".join(train) + "\n", encoding="utf-8")
        run = dystress_text.train(
            "own-text",
            train_file=file,
            vocabulary="text",
            held_out=0,
            seed=seed,
            output_dir=Path(place) / "out",
        )
        model = run.model
    one, other = (
        model.encode(list(half), normalize_embeddings=True) for half in (first, second)
    )  # (n, dim) each
    return found_first(one @ other.T)


def measure(file: Path) -> dict[str, Any]:
    """The line of a language."""
    from dystress_text.finetuning.holdout import halves_of

    texts = list(dict.fromkeys(file.read_text(encoding="utf-8").splitlines()))
    step = max(5, -(-len(texts) // 500))
    held, train = texts[::step], [text for i, text in enumerate(texts) if i % step]
    first, second = zip(*map(halves_of, held), strict=True)
    return {
        "language": file.stem,
        "texts": len(train),
        "held_out": len(held),
        "own_text": [by_table(first, second, train, seed) for seed in SEEDS],
        "tf_idf_words": by_words(first, second, train),
        "tf_idf_bigrams": by_words(first, second, train, analyzer="char", ngram_range=(2, 2)),
    }


def table() -> list[str]:
    """The rows of docs/laboratory/own-text.md."""
    rows = []
    for line in map(json.loads, STUDY.read_text(encoding="utf-8").splitlines()):
        own = line["own_text"]
        cells = [line["language"], line["texts"], line["held_out"], line["tf_idf_words"], line["tf_idf_bigrams"],
                 f"{np.mean(own):.1f} ± {np.std(own, ddof=1):.1f}"]  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return rows


def main() -> None:
    for file in sorted(Path(sys.argv[1]).glob("*.txt")) if len(sys.argv) > 1 else ():
        line = measure(file)
        with STUDY.open("a", encoding="utf-8") as study:
            study.write(json.dumps(line) + "\n")
    print(*table(), sep="\n")


if __name__ == "__main__":
    main()
