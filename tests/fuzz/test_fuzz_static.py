"""What the source must not hold: ways to run code or a shell from a file, or to unpickle one."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for name in ("dystress_text", "eval", "vision", "data") for path in (ROOT / name).rglob("*.py"))
MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "imp", "code", "pty"}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.startfile", "pickle.load", "joblib.load",
    "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all",
    "subprocess.getoutput", "subprocess.getstatusoutput", "pd.read_pickle", "pandas.read_pickle", "torch.hub.load",
    "asyncio.create_subprocess_shell", "tempfile.mktemp",
}  # fmt: skip
METHODS = {"register_for_checkpointing", "read_pickle", "load_module"}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader"}


def dotted(node):
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def faults(source, name="x.py"):
    """What stands in a source and must not, each with its line."""
    found = []

    def fault(node, what):
        found.append(f"{name}, line {node.lineno}: {what}")

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names] + [node.module or ""]
            for imported in names:
                if imported.split(".")[0] in MODULES or imported in CALLS:
                    fault(node, f"imports {imported}")
        if not isinstance(node, ast.Call):
            continue
        called, given = dotted(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
        last = called.rpartition(".")[2]
        is_true = {name for name, value in given.items() if isinstance(value, ast.Constant) and value.value is True}
        if called in CALLS or last in METHODS:
            fault(node, f"calls {called}")
        if last in ("extractall", "extract", "unpack_archive") and "filter" not in given:
            fault(node, "unpacks without a filter")
        if last == "add_safe_globals":
            fault(node, "lets more be unpickled")
        if None in given and last == "from_pretrained":
            settings = "".join(source.split())  # which the call takes from a dictionary of the same function
            if '"trust_remote_code":False' not in settings:
                fault(node, "from_pretrained that may ask whether to run code")
        for option in {"trust_remote_code", "allow_pickle", "shell"} & given.keys():
            if not (isinstance(given[option], ast.Constant) and given[option].value is False):
                fault(node, f"gives {option}")
        if called == "torch.load" and "weights_only" not in is_true:
            fault(node, "torch.load without weights_only=True")
        if "weights_only" in given and "weights_only" not in is_true:
            fault(node, "weights_only that is not True")
        if called in ("yaml.load", "yaml.compose"):
            loader = given.get("Loader", node.args[1] if len(node.args) > 1 else None)
            if loader is None or dotted(loader).rpartition(".")[2] not in SAFE_LOADERS:
                fault(node, f"{called} without a safe loader")
        if last == "from_pretrained" and called.startswith("Auto") and not {"trust_remote_code", None} & given.keys():
            fault(node, "from_pretrained that may ask whether to run code")
        if last == "SentenceTransformer" and "modules" not in given and "trust_remote_code" not in given:
            fault(node, "SentenceTransformer without trust_remote_code=False")
    return found


def test_nothing_runs_code_or_a_shell():
    assert [fault for path in SOURCES for fault in faults(path.read_text(encoding="utf-8"), path.name)] == []


WRONG = (
    "import pickle", "from joblib import load", "import os.path, marshal", "eval('1')", "exec(x)", "os.system(x)",
    "from os import system", "torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f, allow_pickle=True)",
    "np.load(f, allow_pickle=x)", "subprocess.run(x, shell=True)", "yaml.load(f, Loader=yaml.Loader)", "yaml.load(f)",
    "AutoModel.from_pretrained(x, trust_remote_code=True)", "AutoConfig.from_pretrained(x)", "SentenceTransformer(x)",
    "accelerator.register_for_checkpointing(x)", "load(f, weights_only=flag)", "tar.extractall(x)",
    "torch.serialization.add_safe_globals([x])",
)  # fmt: skip
RIGHT = (
    "model.eval()", "torch.load(f, weights_only=True)", "re.compile(x)", "yaml.load(f, Loader=yaml.BaseLoader)",
    "subprocess.run([x])", "np.load(f)", "AutoModel.from_pretrained(x, trust_remote_code=False)",
)  # fmt: skip


def test_the_search_finds_what_it_looks_for_and_leaves_the_rest_alone():
    assert [source for source in WRONG if not faults(source)] == []
    assert [source for source in RIGHT if faults(source)] == []
