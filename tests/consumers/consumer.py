"""Compute a model's vectors as one consumer does. Runs in that consumer's environment, without this package.

    python consumer.py sentence-transformers FOLDER.. < sentences.json
    python consumer.py card FOLDER..                  < sentences.json    # the last block of code of the folder's card

Prints one JSON object: the versions, and by folder the vectors or the error.
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
    code = re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE)
    found = {"given": sentences, "print": lambda *_: None}
    exec(code, found)
    return found["embeddings"]


def main():
    sentences = json.load(sys.stdin)
    embed = {"sentence-transformers": by_sentence_transformers, "card": by_card}[sys.argv[1]]
    answer = {"vectors": {}, "errors": {}}
    for folder in sys.argv[2:]:
        try:
            answer["vectors"][folder] = embed(folder, sentences).tolist()
        except Exception as error:
            answer["errors"][folder] = f"{type(error).__name__}: {' '.join(str(error).replace('`', '').split())[:72]}"
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
