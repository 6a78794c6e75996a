"""Whether what other software reads of a saved model are the model's vectors.

    # here: models, their copies, and the vectors
    python tests/consumers/clients.py save FOLDER [MODEL ...]
    python tests/consumers/clients.py read FOLDER CLIENT ...   # where the client is installed
    python tests/consumers/clients.py table FILE ...           # what ``read`` printed, as a table

``read`` needs nothing of this package. It prints a line of JSON for each model: the largest
difference of an entry of unit vectors, and for how many of the queries the first hit is that of the
cosine; or the client's error. It ends with the number of clients that are wrong and say nothing.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

NEAR = 2e-5  # between entries of unit vectors; int8 and other formats have a measure of their own
QUERIES = 40  # the first sentences search in the others
SHOWN = {
    "avg": "avg",
    "first-last": "first-last",
    "cls-head": "cls + head",
    "static": "static",
    "decoder": "decoder",
}


def save(folder: Path, only: Sequence[str] = ()) -> None:
    """Models of five kinds and of four more families, or the named ones, with copies, sentences and
    vectors.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize
    from transformers import AutoConfig, AutoModel

    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests / "support")]
    from model_cases import build_model, random_head

    from dystress_text.evaluation.catalogue import eval_pairs
    from dystress_text.evaluation.embedder import with_pooler
    from dystress_text.export.copies import PROBES, export
    from dystress_text.io.paths import EMBEDDED
    from dystress_text.models.loading import load_encoder, save_model
    from dystress_text.models.static import (
        embedded_tokenizer,
        initialize_by_idf,
        new_static,
        pretrained_tokenizer,
        table_of,
    )

    torch.manual_seed(0)
    probes = [text for text in PROBES if text]  # of a text without tokens nobody expects anything
    sentences = [*list(dict.fromkeys(eval_pairs("mini_sts").sentences))[:300], *probes]

    def small(pooler: str) -> SentenceTransformer:
        return with_pooler(load_encoder(str(EMBEDDED / "bert-mini-wiki")), pooler)

    pieces = embedded_tokenizer()
    static = new_static(pieces, 256, normalize=True)
    ids = [set(pieces.encode(text, add_special_tokens=False).ids) for text in sentences]
    every = torch.tensor([i for of_text in ids for i in of_text])
    counts = torch.bincount(every, minlength=len(table_of(static)))
    initialize_by_idf(static, counts, len(sentences), 0)

    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    count = pieces.get_vocab_size()
    llama = AutoConfig.for_model("llama", vocab_size=count, pad_token_id=0, **sizes)
    AutoModel.from_config(llama).save_pretrained(folder / "decoder")
    pretrained_tokenizer(pieces).save_pretrained(folder / "decoder")

    models = {
        "avg": small("avg"),
        "first-last": small("avg_first_last"),
        "cls-head": SentenceTransformer(modules=[*small("cls"), random_head(256)], device="cpu"),
        "static": static,
        "decoder": with_pooler(load_encoder(str(folder / "decoder")), "last"),
    }
    for family in ("roberta", "distilbert", "mpnet", "modernbert"):
        models[family] = build_model(family, "avg_first_last")
    vectors = {}
    for name in only or models:
        model = models[name]
        if not isinstance(model[-1], Normalize):
            model.append(Normalize())
        save_model(model, folder / "out" / name)
        vectors[name] = model.encode(sentences).tolist()
        layouts = ["native", "onnx"]
        if name != "static":
            layouts.append("hf")
        for to in layouts:
            export(folder / "out" / name, to, folder / to / name)
    (folder / "expected.json").write_text(json.dumps({"sentences": sentences, "vectors": vectors}))


# ---- readers: what a user types to get vectors


def sentence_transformers(model: str, texts: list[str]) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model).encode(texts)


def sentence_transformers_onnx(model: str, texts: list[str]) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model, backend="onnx").encode(texts)


def by_card(model: str, texts: list[str]) -> Any:
    code = re.findall(
        r"```python\n(.*?)```", (Path(model) / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )[-1]
    code = code.replace('"path/to/this/folder"', repr(model))
    code = re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE)
    vectors: list[Any] = []
    for start in range(0, len(texts), 8):
        names = {"given": texts[start : start + 8], "print": lambda *_: None}
        exec(code, names)
        vectors += list(names["embeddings"])
    return vectors


def fastembed(model: str, texts: list[str]) -> Any:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    source, file = ModelSource(hf=model), "onnx/model.onnx"
    TextEmbedding.add_custom_model(model, PoolingType.MEAN, True, source, dim=256, model_file=file)
    return list(TextEmbedding(model, specific_model_path=model).embed(texts))


def langchain(model: str, texts: list[str]) -> Any:
    from langchain_huggingface import HuggingFaceEmbeddings

    return HuggingFaceEmbeddings(model_name=model).embed_documents(texts)


def llama_index(model: str, texts: list[str]) -> Any:
    from llama_index.embeddings.huggingface import HuggingFaceEmbedding

    return HuggingFaceEmbedding(model).get_text_embedding_batch(texts)


def txtai(model: str, texts: list[str]) -> Any:
    from txtai import Embeddings

    return Embeddings(path=model).batchtransform(texts)


def txtai_named(model: str, texts: list[str]) -> Any:
    from txtai import Embeddings

    return Embeddings(path=model, method="sentence-transformers").batchtransform(texts)


def infinity(model: str, texts: list[str]) -> Any:
    from infinity_emb import EngineArgs, SyncEngineArray

    engines = SyncEngineArray.from_args(
        [EngineArgs(model_name_or_path=model, device="cpu", training="torch", dtype="float32")]
    )
    try:
        return engines.embed(model=model, sentences=texts).result()[0]
    finally:
        engines.stop()


def setfit(model: str, texts: list[str]) -> Any:
    from setfit import SetFitModel

    return SetFitModel.from_pretrained(model).encode(texts)


def bertopic(model: str, texts: list[str]) -> Any:
    from bertopic import BERTopic
    from bertopic.backend._utils import select_backend

    return select_backend(BERTopic(embedding_model=model).embedding_model).embed(texts)


def keybert(model: str, texts: list[str]) -> Any:
    from keybert import KeyBERT

    return KeyBERT(model).model.embed(texts)


def model2vec(model: str, texts: list[str]) -> Any:
    from model2vec import StaticModel

    return StaticModel.from_pretrained(model).encode(texts, max_length=None)


# ---- stores: the first hit of each query in what a user types


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
    from chromadb import EphemeralClient
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

    embed = SentenceTransformerEmbeddingFunction(model_name=model)
    collection = EphemeralClient().create_collection(Path(model).name, embedding_function=embed)
    collection.add(ids=[str(i) for i in range(len(texts))], documents=texts)
    return [int(found[0]) for found in collection.query(query_texts=queries, n_results=1)["ids"]]


def haystack(model: str, texts: list[str], queries: list[str]) -> Any:
    from haystack import Document
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack_integrations.components.embedders.sentence_transformers import (
        SentenceTransformersDocumentEmbedder,
        SentenceTransformersTextEmbedder,
    )

    store, embed = (
        InMemoryDocumentStore(),
        SentenceTransformersDocumentEmbedder(model=model, progress_bar=False),
    )
    embed.warm_up()
    store.write_documents(
        embed.run([Document(id=str(i), content=text) for i, text in enumerate(texts)])["documents"]
    )
    retrieve, of_query = (
        InMemoryEmbeddingRetriever(store),
        SentenceTransformersTextEmbedder(model=model, progress_bar=False),
    )
    of_query.warm_up()
    return [
        int(retrieve.run(of_query.run(query)["embedding"], top_k=1)["documents"][0].id)
        for query in queries
    ]


def qdrant(model: str, texts: list[str], queries: list[str]) -> Any:
    from qdrant_client import QdrantClient
    from qdrant_client.models import Distance, PointStruct, VectorParams

    vectors, store = np.array(fastembed(model, [*texts, *queries])), QdrantClient(":memory:")
    store.create_collection(
        "texts", vectors_config=VectorParams(size=vectors.shape[1], distance=Distance.COSINE)
    )
    store.upsert(
        "texts", [PointStruct(id=i, vector=v.tolist()) for i, v in enumerate(vectors[: len(texts)])]
    )
    return [
        store.query_points("texts", query=v.tolist(), limit=1).points[0].id
        for v in vectors[len(texts) :]
    ]


# by name: the package whose version counts, the copy that is read, and the lines
READERS: dict[str, tuple[str, str, Callable[[str, list[str]], Any]]] = {
    "sentence-transformers": ("sentence-transformers", "native", sentence_transformers),
    "sentence-transformers, onnx": ("sentence-transformers", "onnx", sentence_transformers_onnx),
    "transformers": ("transformers", "hf", by_card),
    "onnxruntime": ("onnxruntime", "onnx", by_card),
    "fastembed": ("fastembed", "onnx", fastembed),
    "LangChain": ("langchain-huggingface", "native", langchain),
    "LlamaIndex": ("llama-index-embeddings-huggingface", "native", llama_index),
    "txtai": ("txtai", "native", txtai),
    "txtai, sentence-transformers": ("txtai", "native", txtai_named),
    "infinity": ("infinity-emb", "native", infinity),
    "setfit": ("setfit", "native", setfit),
    "BERTopic": ("bertopic", "native", bertopic),
    "KeyBERT": ("keybert", "native", keybert),
    "model2vec": ("model2vec", "native", model2vec),
}
STORES: dict[str, tuple[str, str, Callable[[str, list[str], list[str]], Any]]] = {
    "FAISS": ("faiss-cpu", "native", faiss),
    "usearch": ("usearch", "native", usearch),
    "Chroma": ("chromadb", "native", chroma),
    "Haystack": ("haystack-ai", "native", haystack),
    "Qdrant, fastembed": ("qdrant-client", "onnx", qdrant),
}


def unit(vectors: Any) -> np.ndarray:
    x = np.array([np.asarray(v, np.float64) for v in vectors])
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def read(folder: Path, client: str) -> bool:
    """Print a line for each model; whether none is wrong without an error."""
    content, good = json.loads((folder / "expected.json").read_text()), True
    texts = content["sentences"]
    package, layout, get = (READERS | STORES)[client]
    for kind, vectors in content["vectors"].items():
        place, expected = folder / layout / kind, unit(vectors)
        cosines = expected[:QUERIES] @ expected[QUERIES:].T
        if not place.is_dir():
            continue
        line = {
            "client": client,
            "package": package,
            "version": version(package),
            "read": layout,
            "model": kind,
        }
        try:
            if client in READERS:
                found = unit(get(str(place), texts))
                line["difference"] = float(np.abs(found - expected).max())
                first = (found[:QUERIES] @ found[QUERIES:].T).argmax(1)
            else:
                first = np.array(get(str(place), texts[QUERIES:], texts[:QUERIES]))
            line["hits"] = int((cosines[np.arange(QUERIES), first] > cosines.max(1) - 1e-6).sum())
            line["right"] = line["hits"] == QUERIES and line.get("difference", 0) < NEAR
            good &= line["right"]
        except Exception as error:
            line["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        print(json.dumps(line), flush=True)
    return good


def table(files: list[str]) -> None:
    """Print a row for each client and version."""
    lines = [
        json.loads(line)
        for file in files
        for line in Path(file).read_text().splitlines()
        if line[:1] == "{"
    ]
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for line in lines:
        if "error" in line:
            said = "refused"
        elif not line["right"]:
            said = "WRONG"
        else:
            said = (
                f"{line['difference']:.0e}"
                if "difference" in line
                else f"{line['hits']} of {QUERIES}"
            )
        package = f"{line['package']} {line['version']}"
        about = package if line["client"] == line["package"] else f"{line['client']} ({package})"
        rows.setdefault((line["client"], about, line["read"]), {})[line["model"]] = said
    print("| client | reads |", *(f" {title} |" for title in SHOWN.values()), sep="")
    print("|---" * (2 + len(SHOWN)), "|", sep="")
    order = [*READERS, "transformers.js", "llama.cpp", *STORES]
    for (_, about, layout), of_model in sorted(
        rows.items(), key=lambda row: order.index(row[0][0])
    ):
        print(
            f"| {about} | {layout} |", *(f" {of_model.get(kind, '-')} |" for kind in SHOWN), sep=""
        )


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "save":
        save(Path(words[0]), words[1:])
    elif command == "read":
        sys.exit(sum(not read(Path(words[0]), client) for client in words[1:]))
    else:
        table(words)
