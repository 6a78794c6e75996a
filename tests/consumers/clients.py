"""Compare the embeddings that other software gives of saved models with the models' own.

Run it by hand before a release; each client may have an environment of its own:

    python tests/consumers/clients.py save FOLDER               # models, copies and embeddings
    python tests/consumers/clients.py read FOLDER CLIENT ...    # where the client is installed

``read`` does not need this package. It prints a line of JSON for each model: the largest
difference of an entry of unit vectors (readers), and for how many queries the first hit is the one
of the cosine; or the client's error. A model with a prompt of documents has a second line, where
the texts are documents and the queries are not. The exit code is the number of clients with a wrong
line.
"""

import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 2e-5  # of an entry of unit vectors
QUERIES = 40  # the first texts search in the others


def save(folder: Path) -> None:
    """Save models of several kinds with their copies, texts and embeddings."""
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests / "support")]
    import torch
    from conftest import make_sentences
    from model_cases import build_model, encoder_module, with_document_row
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

    from dystress_text.export.copies import PROBES, export
    from dystress_text.io.words import WordReader
    from dystress_text.models.hybrid import count_tokens, lexical_part, new_hybrid
    from dystress_text.models.hybrid_module import DistilledPart
    from dystress_text.models.loading import save_model
    from dystress_text.models.static import (
        embedded_tokenizer,
        initialize_by_idf,
        new_static,
        table_of,
    )

    def pooled(mode: Any, *others: Any) -> SentenceTransformer:
        modules = [encoder_module(), Pooling(16, mode), *others, Normalize()]
        return SentenceTransformer(modules=modules, device="cpu")

    def table() -> SentenceTransformer:
        static = new_static(embedded_tokenizer(), 64, normalize=True)
        initialize_by_idf(static, torch.ones(len(table_of(static))), texts=2, seed=0)
        return with_document_row(static, texts[:1])

    texts = [*make_sentences(300), *filter(None, PROBES)]
    reader, words, _ = count_tokens(texts[:100], lambda word: [word], 10_000)
    rows = torch.randn(len(words), 24, generator=torch.Generator().manual_seed(0))
    lexical = lexical_part(lambda: iter(texts), WordReader("english"), 128)
    distilled = DistilledPart(reader, rows)
    dense = build_model("bert", "avg", normalize=True)
    hybrids = {
        "hybrid": new_hybrid(table(), dense=dense, lexical=lexical),
        "lexical": new_hybrid(table(), lexical=lexical),
        "distilled": new_hybrid(table(), distilled=distilled, lexical=lexical),
    }
    models: dict[str, SentenceTransformer] = {
        "avg": dense,
        "first-last": build_model("bert", "avg_first_last", normalize=True),
        "cls-head": build_model("bert", "cls", head=True, normalize=True),
        "static": table(),  # clients may leave out its unknown token
        "decoder": build_model("llama", "last", normalize=True),
        "cls-mean": pooled(("cls", "mean")),
        "sqrt": pooled("mean_sqrt_len_tokens"),
        "wide": pooled("mean", Dense(16, 24)),
    }
    for kind, model in hybrids.items():
        save_model(model, folder / "native" / kind)
    for kind, model in models.items():
        save_model(model, folder / "out" / kind)
        layouts = ["native", "onnx"]
        if kind == "cls-head":
            layouts.append("hf")
        for to in layouts:
            export(folder / "out" / kind, to, folder / to / kind)
    embeddings = {}
    documents = {}
    for kind, model in (models | hybrids).items():
        embeddings[kind] = model.encode(texts).tolist()
        if model.prompts.get("document"):
            documents[kind] = model.encode_document(texts).tolist()
    content = {"texts": texts, "embeddings": embeddings, "documents": documents}
    (folder / "expected.json").write_text(json.dumps(content))


def card_of(model: str) -> str:
    return (Path(model) / "README.md").read_text(encoding="utf-8")


def prompted(model: str, texts: list[str], document: bool) -> list[str]:
    """Return texts for a client that knows no prompts, with that of documents on the card."""
    if not document:
        return texts
    prompt = json.loads(re.findall(r'`("[^`]+")` \(document\)', card_of(model))[0])
    return [prompt + text for text in texts]


# Readers return the embeddings of texts, or of documents where the client has a way to say so.


def sentence_transformers(
    model: str, texts: list[str], document: bool = False, **options: Any
) -> Any:
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(model, trust_remote_code=True, **options)
    return loaded.encode_document(texts) if document else loaded.encode(texts)


def sentence_transformers_onnx(model: str, texts: list[str]) -> Any:
    return sentence_transformers(model, texts, backend="onnx")


def by_card(model: str, texts: list[str], document: bool = False) -> Any:
    """Run the last block of code on the model's card, with the prompt that it names."""
    code = re.findall(r"```python\n(.*?)```", card_of(model), re.DOTALL)[-1]
    code = code.replace('"path/to/this/folder"', repr(model))
    code = re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE)
    given = prompted(model, texts, document)
    names: dict[str, Any] = {"given": given, "print": lambda *_: None}
    exec(code, names)
    return names["embeddings"]


def fastembed(model: str, texts: list[str], document: bool = False) -> Any:
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
    texts = prompted(model, texts, document)
    return list(TextEmbedding(model, specific_model_path=model).embed(texts))


def langchain(model: str, texts: list[str], document: bool = False) -> Any:
    from langchain_huggingface import HuggingFaceEmbeddings

    embeddings = HuggingFaceEmbeddings(
        model_name=model,
        model_kwargs={"trust_remote_code": True},
        encode_kwargs={"prompt_name": "document"} if document else {},
    )
    return embeddings.embed_documents(texts)


def chroma_function(model: str, texts: list[str], document: bool = False) -> Any:
    from chromadb.utils.embedding_functions import SentenceTransformerEmbeddingFunction

    SentenceTransformerEmbeddingFunction.models.clear()  # they are kept by name alone
    options = {"default_prompt_name": "document"} if document else {}
    return SentenceTransformerEmbeddingFunction(model, trust_remote_code=True, **options)(texts)


def model2vec(model: str, texts: list[str], document: bool = False) -> Any:
    from model2vec import StaticModel

    texts = prompted(model, texts, document)
    return StaticModel.from_pretrained(model).encode(texts, max_length=None)


def setfit(model: str, texts: list[str], document: bool = False) -> Any:
    from setfit import SetFitModel

    body = SetFitModel.from_pretrained(model, trust_remote_code=True).model_body
    return body.encode_document(texts) if document else body.encode(texts)


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


def faiss(model: str, texts: list[str], queries: list[str], document: bool = False) -> Any:
    import faiss

    vectors = sentence_transformers(model, texts, document)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index.search(sentence_transformers(model, queries), 1)[1][:, 0]


def usearch(model: str, texts: list[str], queries: list[str], document: bool = False) -> Any:
    from usearch.index import Index

    vectors = sentence_transformers(model, texts, document)
    index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
    index.add(np.arange(len(texts)), vectors)
    return index.search(sentence_transformers(model, queries), 1, exact=True).keys[:, 0]


def chroma(model: str, texts: list[str], queries: list[str], document: bool = False) -> Any:
    import chromadb

    store = chromadb.EphemeralClient().create_collection(f"{Path(model).name}-{document}")
    vectors = chroma_function(model, texts, document)
    store.add(ids=[str(number) for number in range(len(texts))], embeddings=vectors)
    found = store.query(query_embeddings=chroma_function(model, queries), n_results=1)
    return [int(first) for (first,) in found["ids"]]


Client = tuple[str, str, Callable[..., Any]]  # package, layout, function

READERS: dict[str, Client] = {
    "sentence-transformers": ("sentence-transformers", "native", sentence_transformers),
    "sentence-transformers, onnx": ("sentence-transformers", "onnx", sentence_transformers_onnx),
    "transformers": ("transformers", "hf", by_card),
    "onnxruntime": ("onnxruntime", "onnx", by_card),
    "fastembed": ("fastembed", "onnx", fastembed),
    "LangChain": ("langchain-huggingface", "native", langchain),
    "Chroma's function": ("chromadb", "native", chroma_function),
    "model2vec": ("model2vec", "native", model2vec),
    "setfit": ("setfit", "native", setfit),
    "KeyBERT": ("keybert", "native", keybert),
    "BERTopic": ("bertopic", "native", bertopic),
    "txtai, sentence-transformers": ("txtai", "native", txtai),
}
STORES: dict[str, Client] = {
    "FAISS": ("faiss-cpu", "native", faiss),
    "usearch": ("usearch", "native", usearch),
    "Chroma": ("chromadb", "native", chroma),
}


def unit(vectors: Any) -> np.ndarray:
    """Return vectors (n, dim) at length 1, in fp64."""
    x = np.array([np.asarray(vector, np.float64) for vector in vectors])
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def read(folder: Path, client: str) -> bool:
    """Print the lines of each model; return whether a line is wrong without an error."""
    content = json.loads((folder / "expected.json").read_text())
    package, layout, function = (READERS | STORES)[client]
    reads_documents = "document" in signature(function).parameters
    wrong = False
    for kind, embeddings in content["embeddings"].items():
        model = folder / layout / kind
        if not model.is_dir():
            continue
        name = {"client": client, "package": f"{package} {version(package)}", "model": kind}
        wrong |= compare(name, model, content["texts"], embeddings)
        if reads_documents and kind in content["documents"]:
            documents = content["documents"][kind]
            name["model"] = f"{kind}, documents"
            wrong |= compare(name, model, content["texts"], embeddings, documents)
    return wrong


def compare(
    line: dict[str, Any], model: Path, texts: list[str], embeddings: Any, documents: Any = None
) -> bool:
    """Print a line with its results; return whether they are wrong.

    Args:
        line: the client and the model.
        model: its folder.
        texts: the first search in the others.
        embeddings: of the texts.
        documents: those of the texts as documents; None to read without the prompt.
    """
    function = (READERS | STORES)[line["client"]][2]
    options = {} if documents is None else {"document": True}
    queries = unit(embeddings)[:QUERIES]
    expected = unit(embeddings if documents is None else documents)
    line = dict(line)
    try:
        if line["client"] in READERS:
            found = np.array([*function(str(model), texts, **options)], np.float64)
            line["difference"] = float(np.abs(found - expected).max())
            own = found[:QUERIES]
            if documents is not None:
                own = np.array([*function(str(model), texts[:QUERIES])], np.float64)
            hits = (own @ found[QUERIES:].T).argmax(1)
        else:
            hits = np.array(function(str(model), texts[QUERIES:], texts[:QUERIES], **options))
        cosines = queries @ expected[QUERIES:].T  # (queries, others)
        best = cosines[np.arange(QUERIES), hits] > cosines.max(1) - 1e-6
        line["hits"] = int(best.sum())
        line["right"] = bool(best.all()) and line.get("difference", 0) < TOLERANCE
    except Exception as error:
        line["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    print(json.dumps(line), flush=True)
    return not line.get("right", True)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "save":
        save(Path(arguments[0]))
    else:
        sys.exit(sum(read(Path(arguments[0]), client) for client in arguments[1:]))
