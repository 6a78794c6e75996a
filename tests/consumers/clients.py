"""Compare the embeddings that other software gives of saved models with the models' own.

Run it by hand before a release; each client may have an environment of its own:

    python tests/consumers/clients.py save FOLDER               # models, copies and embeddings
    python tests/consumers/clients.py read FOLDER CLIENT ...    # where the client is installed

``read`` does not need this package. It prints a line of JSON for each model: the largest
difference of an entry of unit vectors (readers), and for how many queries the first hit is the one
of the cosine; or the client's error. The exit code is the number of clients with a wrong line.
"""

import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 2e-5  # of an entry of unit vectors
QUERIES = 40  # the first texts search in the others


def save(folder: Path) -> None:
    """Save models of five kinds with their copies, texts and embeddings."""
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests / "support")]
    import torch
    from conftest import make_sentences
    from model_cases import build_model, build_static, encoder_module
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

    from dystress_text.export.copies import PROBES, export
    from dystress_text.models.hybrid import new_hybrid
    from dystress_text.models.loading import save_model
    from dystress_text.models.static import embedded_tokenizer, initialize_by_idf, new_static

    def pooled(mode: Any, *others: Any) -> SentenceTransformer:
        modules = [encoder_module(), Pooling(16, mode), *others, Normalize()]
        return SentenceTransformer(modules=modules, device="cpu")

    tokenizer = embedded_tokenizer()
    static = new_static(tokenizer, 64, normalize=True)
    initialize_by_idf(static, torch.ones(tokenizer.get_vocab_size()), texts=2, seed=0)
    models: dict[str, SentenceTransformer] = {
        "avg": build_model("bert", "avg", normalize=True),
        "first-last": build_model("bert", "avg_first_last", normalize=True),
        "cls-head": build_model("bert", "cls", head=True, normalize=True),
        "static": static,  # clients may leave out its unknown token
        "decoder": build_model("llama", "last", normalize=True),
        "cls-mean": pooled(("cls", "mean")),
        "sqrt": pooled("mean_sqrt_len_tokens"),
        "wide": pooled("mean", Dense(16, 24)),
    }
    hybrid = new_hybrid(
        build_static(16, small=True), dense=build_model("bert", "avg", normalize=True)
    )
    save_model(hybrid, folder / "native" / "hybrid")
    texts = [*make_sentences(300), *filter(None, PROBES)]
    embeddings = {"hybrid": hybrid.encode(texts).tolist()}
    for kind, model in models.items():
        save_model(model, folder / "out" / kind)
        embeddings[kind] = model.encode(texts).tolist()
        layouts = ["native", "onnx"]
        if kind in ("avg", "first-last", "cls-head", "decoder"):
            layouts.append("hf")
        for to in layouts:
            export(folder / "out" / kind, to, folder / to / kind)
    (folder / "expected.json").write_text(json.dumps({"texts": texts, "embeddings": embeddings}))


# Readers return the embeddings of texts.


def sentence_transformers(model: str, texts: list[str], **options: Any) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model, trust_remote_code=True, **options).encode(texts)


def sentence_transformers_onnx(model: str, texts: list[str]) -> Any:
    return sentence_transformers(model, texts, backend="onnx")


def by_card(model: str, texts: list[str]) -> Any:
    """Run the last block of code on the model's card."""
    card = (Path(model) / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[-1]
    code = code.replace('"path/to/this/folder"', repr(model))
    code = re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE)
    names: dict[str, Any] = {"given": texts, "print": lambda *_: None}
    exec(code, names)
    return names["embeddings"]


def fastembed(model: str, texts: list[str]) -> Any:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model,
        PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(hf=model),
        dim=16,  # not used
        model_file="onnx/model.onnx",
    )
    return list(TextEmbedding(model, specific_model_path=model).embed(texts))


def langchain(model: str, texts: list[str]) -> Any:
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=model).embed_documents(texts)


def model2vec(model: str, texts: list[str]) -> Any:
    from model2vec import StaticModel

    return StaticModel.from_pretrained(model).encode(texts, max_length=None)


def setfit(model: str, texts: list[str]) -> Any:
    from setfit import SetFitModel

    return SetFitModel.from_pretrained(model, trust_remote_code=True).model_body.encode(texts)


def keybert(model: str, texts: list[str]) -> Any:
    from keybert import KeyBERT

    return KeyBERT(model).model.embed(texts)


def bertopic(model: str, texts: list[str]) -> Any:
    from bertopic.backend._utils import select_backend

    return select_backend(model).embed(texts)


def txtai(model: str, texts: list[str]) -> Any:
    from txtai import Embeddings

    return Embeddings(path=model, method="sentence-transformers").batchtransform(texts)


# Stores return the index of each query's first hit.


def faiss(model: str, texts: list[str], queries: list[str]) -> Any:
    import faiss

    vectors = sentence_transformers(model, texts)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search(sentence_transformers(model, queries), 1)[1][:, 0]


def usearch(model: str, texts: list[str], queries: list[str]) -> Any:
    from usearch.index import Index

    vectors = sentence_transformers(model, texts)
    index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
    index.add(np.arange(len(texts)), vectors)
    return index.search(sentence_transformers(model, queries), 1, exact=True).keys[:, 0]


def chroma(model: str, texts: list[str], queries: list[str]) -> Any:
    import chromadb
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

    embed = SentenceTransformerEmbeddingFunction(model, trust_remote_code=True)
    name = Path(model).name
    store = chromadb.EphemeralClient().create_collection(name, embedding_function=embed)
    store.add(ids=[str(number) for number in range(len(texts))], documents=texts)
    return [int(first) for (first,) in store.query(query_texts=queries, n_results=1)["ids"]]


# name: (package, layout, function)
READERS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "sentence-transformers": ("sentence-transformers", "native", sentence_transformers),
    "sentence-transformers, onnx": ("sentence-transformers", "onnx", sentence_transformers_onnx),
    "transformers": ("transformers", "hf", by_card),
    "onnxruntime": ("onnxruntime", "onnx", by_card),
    "fastembed": ("fastembed", "onnx", fastembed),
    "LangChain": ("langchain-huggingface", "native", langchain),
    "model2vec": ("model2vec", "native", model2vec),
    "setfit": ("setfit", "native", setfit),
    "KeyBERT": ("keybert", "native", keybert),
    "BERTopic": ("bertopic", "native", bertopic),
    "txtai, sentence-transformers": ("txtai", "native", txtai),
}
STORES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "FAISS": ("faiss-cpu", "native", faiss),
    "usearch": ("usearch", "native", usearch),
    "Chroma": ("chromadb", "native", chroma),
}


def unit(vectors: Any) -> np.ndarray:
    """Return vectors (n, dim) at length 1, in fp64."""
    x = np.array([np.asarray(vector, np.float64) for vector in vectors])
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def read(folder: Path, client: str) -> bool:
    """Print a line for each model; return whether a line is wrong without an error."""
    content = json.loads((folder / "expected.json").read_text())
    texts = content["texts"]
    package, layout, function = (READERS | STORES)[client]
    wrong = False
    for kind, embeddings in content["embeddings"].items():
        model = folder / layout / kind
        if not model.is_dir():
            continue
        expected = unit(embeddings)
        line = {"client": client, "package": f"{package} {version(package)}", "model": kind}
        try:
            if client in READERS:
                found = np.array([*function(str(model), texts)], np.float64)
                line["difference"] = float(np.abs(found - expected).max())
                hits = (found[:QUERIES] @ found[QUERIES:].T).argmax(1)
            else:
                hits = np.array(function(str(model), texts[QUERIES:], texts[:QUERIES]))
            cosines = expected[:QUERIES] @ expected[QUERIES:].T  # (queries, others)
            best = cosines[np.arange(QUERIES), hits] > cosines.max(1) - 1e-6
            line["hits"] = int(best.sum())
            line["right"] = bool(best.all()) and line.get("difference", 0) < TOLERANCE
            wrong |= not line["right"]
        except Exception as error:
            line["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        print(json.dumps(line), flush=True)
    return wrong


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "save":
        save(Path(arguments[0]))
    else:
        sys.exit(sum(read(Path(arguments[0]), client) for client in arguments[1:]))
