"""Compute models' vectors as one consumer does. Runs in that consumer's environment, without this package.

python consumer.py sentence-transformers FOLDER.. < sentences.json
python consumer.py card FOLDER.. < sentences.json    # the last block of code of the folder's card

Prints one JSON object: by model the vectors, or the error in words.
"""

import json
import re
import sys
from pathlib import Path


def by_sentence_transformers(folder, sentences):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu").encode(sentences, batch_size=4, show_progress_bar=False)


def by_card(folder, sentences):
    code = re.findall(r"```python\n(.*?)```", (Path(folder) / "README.md").read_text(encoding="utf-8"), re.DOTALL)[-1]
    code = code.replace('"path/to/this/folder"', repr(folder))
    found = {"given": sentences, "print": lambda *_: None}
    exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), found)
    return found["embeddings"]


def main():
    sentences, answer = json.load(sys.stdin), {}
    embed = {"sentence-transformers": by_sentence_transformers, "card": by_card}[sys.argv[1]]
    for folder in sys.argv[2:]:
        try:
            answer[Path(folder).name] = embed(folder, sentences).tolist()
        except Exception as error:
            answer[Path(folder).name] = f"{type(error).__name__}: {' '.join(str(error).split())[:72]}"
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
