"""What the source must not hold: ways to run code from a file, or to unpickle one, that ruff's rules do not know."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for name in ("dystress_text", "eval", "vision", "data") for path in (ROOT / name).rglob("*.py"))
PICKLES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"register_for_checkpointing", "add_safe_globals", "load_state_dict_from_url", "hub.load"}
NEEDED = {  # options without which a call may run code
    "torch.load": ("weights_only", True), "extractall": ("filter", "data"), "unpack_archive": ("filter", "data"),
    "SentenceTransformer": ("trust_remote_code", False),
}  # fmt: skip
FIXED = {"weights_only": True, "trust_remote_code": False, "allow_pickle": False, "shell": False}


def faults(source):
    """What stands in a source and must not."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (f"imports {name}" for name in names if name.partition(".")[0] in PICKLES)
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
        values = {name: getattr(value, "value", None) for name, value in given.items()}
        if any(called.endswith(name) for name in CALLS):
            yield f"calls {called}"
        option, value = next((NEEDED[name] for name in NEEDED if called.endswith(name)), (None, None))
        if called.endswith("from_pretrained") and called.startswith("Auto"):
            option, value = "trust_remote_code", False
        if option and not {"modules", None} & given.keys() and values.get(option) != value:
            yield f"{called} without {option}={value}"
        if None in given and '"trust_remote_code":False' not in "".join(source.split()) and "pretrained" in called:
            yield f"{called} with options that may ask whether to run code"
        yield from (
            f"{called} with another {name}" for name in FIXED.keys() & given.keys() if values[name] is not FIXED[name]
        )


def test_nothing_runs_code_or_unpickles():
    assert [(path.name, fault) for path in SOURCES for fault in faults(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import pickle", True), ("from joblib import load", True), ("torch.load(f)", True),
        ("torch.load(f, weights_only=False)", True), ("np.load(f, allow_pickle=x)", True),
        ("AutoModel.from_pretrained(x, trust_remote_code=True)", True), ("AutoConfig.from_pretrained(x)", True),
        ("SentenceTransformer(x)", True), ("accelerator.register_for_checkpointing(x)", True),
        ("tar.extractall(x)", True), ("torch.serialization.add_safe_globals([x])", True),
        ("torch.load(f, weights_only=True)", False), ("AutoModel.from_pretrained(x, trust_remote_code=False)", False),
        ("tar.extractall(x, filter='data')", False), ("np.load(f)", False),
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(source, wrong):
    assert any(faults(source)) == wrong
