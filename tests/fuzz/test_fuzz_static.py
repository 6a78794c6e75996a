"""What the source must not hold and ruff's rules do not know: calls that run code from a file, or unpickle it."""

import ast
import re

import pytest
import rooms

SAFE = {"weights_only": True, "trust_remote_code": False, "allow_pickle": False}
NEEDED = {r".*torch\.load": "weights_only", r"Auto\w+\.from_pretrained|.*SentenceTransformer": "trust_remote_code"}


def faults(source):
    """What stands in a source and must not."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
        if called.endswith("register_for_checkpointing"):
            yield f"calls {called}"
        needed = {option for pattern, option in NEEDED.items() if re.fullmatch(pattern, called)}
        if not {"modules", None} & given.keys():
            yield from (f"{called} without {option}" for option in needed - given.keys())
        if None in given and '"trust_remote_code":False' not in "".join(source.split()) and "pretrained" in called:
            yield f"{called} with options that may ask whether to run code"
        for option in SAFE.keys() & given.keys():
            if getattr(given[option], "value", None) is not SAFE[option]:
                yield f"{called} with another {option}"


def test_nothing_runs_code_or_unpickles():
    assert [(name, fault) for name, source in rooms.tree_of().items() for fault in faults(source)] == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("torch.load(f)", True), ("torch.load(f, weights_only=False)", True), ("np.load(f, allow_pickle=x)", True),
        ("AutoModel.from_pretrained(x, trust_remote_code=True)", True), ("AutoConfig.from_pretrained(x)", True),
        ("AutoConfig.from_pretrained(x, **y)", True), ("SentenceTransformer(x)", True),
        ("accelerator.register_for_checkpointing(x)", True), ("torch.load(f, weights_only=True)", False),
        ("AutoModel.from_pretrained(x, trust_remote_code=False)", False), ("np.load(f)", False),
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(source, wrong):
    assert any(faults(source)) == wrong
