"""Settings that nobody thought of: command lines and files. What is wrong with them is one line of ours."""

import contextlib
import io
import json

import pytest
import yaml
from fuzz_cases import ODD_VALUES, accepted, deep, inputs, places_apart, snapshot, spoiled
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.cli.command_line import exit_code
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.errors import UserError
from dystress_text.evaluation.run import SentEvalSettings
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.senteval import make_parser
from dystress_text.simcse.arguments import FLAGS, REPLACED, parse
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.training.build_loss import build_objective
from dystress_text.training.settings import EngineSettings, LossSettings
from vision.pretraining.settings import PretrainSettings, VisionEngineSettings, VisionLossSettings, VisionSettings
from vision.train import parse as parse_vision

TEXT_NAMES = sorted(
    {**vars(TextSettings()), **vars(EvaluationSettings()), **vars(LossSettings()), **vars(EngineSettings())}
)
VISION_NAMES = sorted({**vars(VisionSettings()), **vars(VisionLossSettings()), **vars(VisionEngineSettings())})
LIKELY = (
    "true", "false", "no", "null", "~", "1", "-1", "0", "64", "1e-4", "nan", "inf", "-inf", "1e400", "1_000", "0x10",
    "9" * 30, "9" * 5000, "٣", "", " ", "macl", "queue", "scheduled", "shifted_cosine", "run", "epoch", "a\nb", "--",
    "paper", "quickstart", "cifar10", "-", "=", "%s", "{}", "$(touch x)", "`touch x`", "; touch x", "@file", "\x1b[2J",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(LIKELY),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=30),
    st.text("-=%@", max_size=5),
)

EVIL = [
    "!!python/object/apply:os.system ['touch {0}']",
    "output_dir: !!python/object/apply:os.system ['touch {0}']",
    "output_dir: !!python/object/new:subprocess.Popen [['touch', '{0}']]",
    "output_dir: !!python/name:os.system",
    "? !!python/object/apply:os.system ['touch {0}']\n: 1",
    "<<: !!python/module:os",
    "seed: !!int x",
    "seed: !!binary AAAA",
    "--- 1\n--- 2\n",
    "%TAG ! tag:x,2000:\n--- !os.system\nseed: 1",
    "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
    "g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
    "a: &a {{<<: *a}}",
    "&a [*a]",
    "seed: 1\nseed: 2",
    "? [seed]\n: 1",
    "? {{seed: 1}}\n: 1",
    "seed: \"1\\0\"",
    "output_dir: \"a\\0b\"",
    "output_dir: \"\\ud800\"",
    "\"a\\nb\": [1]",
    "\"seed\\n\": 1",
    "\"\": 1",
    "seed 1",
    "'",
    "\t",
    "\x00",
    "\ufeffseed: 1",
    "output_dir: |\n  a\n  b\n",
]  # fmt: skip


def checked(parser, argv):
    settings = accepted(parser, argv)
    if settings is not None:
        assert isinstance(settings, RunSettings | PretrainSettings)
        for name, value in settings.options().items():
            if isinstance(value, str):  # a path or a name that the system takes
                assert "\0" not in value, name
                value.encode("utf-8", "surrogateescape")
        json.dumps(settings.options())
    return settings


@st.composite
def command_lines(draw, names):
    words = []
    for _ in range(draw(st.integers(0, 5))):
        name = draw(st.sampled_from([*names, "preset", "x", "no_packing"]))
        value = draw(VALUES)
        shape = draw(st.integers(0, 5))
        words += [f"--{name}={value}"] if shape < 3 else [f"--{name}", value] if shape < 5 else [value]
    if draw(st.integers(0, 5)) == 0:
        words.append(draw(st.sampled_from(sorted([*FLAGS, *REPLACED]))))
    return words


@inputs(250)
@given(command_lines(TEXT_NAMES))
def test_command_lines_of_text(argv):
    settings = checked(parse, argv)
    if settings is not None:
        objective = accepted(build_objective, settings.loss, TEXT)
        assert objective is None or isinstance(objective, ContrastiveLoss)


@inputs(200)
@given(command_lines(VISION_NAMES))
def test_command_lines_of_vision(argv):
    checked(parse_vision, argv)


@inputs(300)
@given(st.lists(st.one_of(VALUES, st.sampled_from(
    ["--model", "--tasks", "--suite", "--batch_size", "--dtype", "--plot", "--geometry", "--engine", "--cache"]
)), max_size=6))  # fmt: skip
def test_command_lines_of_evaluation(argv):
    accepted(lambda: SentEvalSettings(**vars(make_parser().parse_args(["--model=x", *argv]))))


@pytest.mark.parametrize("parser", [parse, parse_vision])
def test_help_is_the_only_other_end(parser, capsys):
    with pytest.raises(SystemExit) as ended:
        parser(["--help"])
    assert ended.value.code == 0
    assert "--output_dir" in capsys.readouterr().out


def loss_options():
    number = st.one_of(st.none(), st.floats(), st.sampled_from((0.0, 1e-320, 1e308, 0.05, -0.4)))
    numbers = {
        n: number for n, v in vars(LossSettings()).items() if v is None and n not in ("temperature", "unit", "rows")
    }
    names = st.sampled_from(
        (None, "constant", "cosine", "shifted_cosine", "one_sided_cosine", "linear", "exponential", "monotonic_cosine",
         "even_ode", "scheduled", "alignment_adaptive", "x")
    )  # fmt: skip
    objective = st.sampled_from(("infonce", "ntxent", "dcl", "dclw", "macl"))
    unit = st.sampled_from((None, "run", "epoch", "x"))
    rows = st.sampled_from((None, "infonce", "ntxent", "x"))
    return st.fixed_dictionaries(
        {"objective": objective}, optional={"temperature": names, "unit": unit, "rows": rows, **numbers}
    )


@inputs(400)
@given(loss_options())
def test_every_number_of_a_temperature(options):
    accepted(lambda: build_objective(LossSettings(**options), TEXT))


def settings_file(folder, content):
    file = folder / "settings.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return str(file)


@pytest.mark.parametrize("parser", [parse, parse_vision])
@pytest.mark.parametrize("text", EVIL)
def test_files_that_mean_harm(text, parser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    canary = tmp_path / "canary"
    checked(parser, [settings_file(tmp_path, text.format(canary))])
    assert list(tmp_path.iterdir()) == [tmp_path / "settings.yaml"]


@pytest.mark.parametrize("text", [deep(), "{" * 50_000, "- " * 20_000, "a: " * 10_000, "? " * 20_000, "!" * 100_000])
def test_files_that_are_nested_deeper_than_the_stack(text, tmp_path):
    with pytest.raises(UserError, match=r"settings\.yaml: "):
        parse([settings_file(tmp_path, text)])


@pytest.mark.parametrize(
    "text",
    ["seed: " + "9" * 10**6, "output_dir: " + "x" * 10**6, "".join(f"x{i}: y\n" for i in range(3000)), "#" * 10**6],
)
def test_long_files(text, tmp_path):
    checked(parse, [settings_file(tmp_path, text)])


def test_a_name_that_stands_twice_is_refused(tmp_path):
    with pytest.raises(UserError, match="seed stands twice"):
        parse([settings_file(tmp_path, "seed: 1\nlearning_rate: 1e-4\nseed: 2\n")])


VALID = "learning_rate: 3e-5\nseed: 7\noutput_dir: out\nobjective: infonce\nfp16: false\ntau_min: 0.05 # low\n"
YAML_WORDS = st.sampled_from(
    [*TEXT_NAMES, ": ", "\n", "- ", "? ", "&a ", "*a", "{", "}", "[", "]", ", ", "'", '"', "#", "|", ">", "!!str ",
     "<<", "---", "...", "%YAML 1.1", "\t", "  ", "\\", "\0", "\u2028", "1", "true", "null", "é"]
)  # fmt: skip


@inputs(250)
@given(st.one_of(
    spoiled(VALID.encode()), st.lists(YAML_WORDS, max_size=25).map(lambda words: "".join(words).encode()),
    st.binary(max_size=60), st.text(max_size=60).map(str.encode),
))  # fmt: skip
def test_files_of_text(tmp_path_factory, content):
    checked(parse, [settings_file(tmp_path_factory.getbasetemp(), content)])


def trees():
    leaves = st.one_of(st.sampled_from(ODD_VALUES), st.integers(), st.floats(), st.text(max_size=8), st.booleans())
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    )
    names = st.one_of(st.sampled_from([*TEXT_NAMES, "preset"]), st.text(max_size=5))
    return st.dictionaries(names, st.one_of(leaves, values), max_size=4)


@inputs(250)
@given(trees(), st.booleans())
def test_files_of_values(tmp_path_factory, tree, as_json):
    text = json.dumps(tree) if as_json else yaml.dump(tree, allow_unicode=True)
    checked(parse, [settings_file(tmp_path_factory.getbasetemp(), text)])


@pytest.mark.parametrize("name", ["missing.yaml", "folder.yaml", "\udcff.yaml", "x" * 300 + ".yaml", "a\nb.yml"])
def test_files_that_are_none(name, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(UserError, match=r"\.ya?ml"):
        parse([str(tmp_path / name)])


@inputs(300)
@given(st.text(st.characters(codec=None), max_size=60))
def test_an_error_is_one_line_whatever_it_quotes(message):
    """On standard error; neither line ends nor a terminal's commands come through."""

    def work():
        raise UserError(message)

    raw = io.BytesIO()
    with contextlib.redirect_stderr(io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace")) as stream:
        assert exit_code("dystress train", work) == 2
        stream.flush()
        said = raw.getvalue().decode()
    assert said.startswith("dystress train: error:")
    assert said.endswith("\n")
    assert said[:-1].isprintable()


@pytest.mark.parametrize("option", ["model_name_or_path", "output_dir", "report_to", "train_file"])
def test_a_token_is_no_setting(option, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-mine")
    for token in ("hf_" + "aB3" * 12, "a-secret-of-mine"):
        for value in (token, f"https://user:{token}@huggingface.co/x"):
            for argv in ([f"--{option}={value}"], [settings_file(tmp_path, f"{option}: {value}")]):
                with pytest.raises(UserError, match=f"--{option}: .*token") as refused:
                    parse(argv)
                assert token not in str(refused.value)


@pytest.mark.parametrize(
    "argv", [["--hf_token={0}"], ["--token", "{0}"], ["--max_steps={0}"], ["{0}"], ["--preset={0}"]]
)
def test_a_token_in_the_wrong_place_is_not_printed(argv, capsys):
    token = "hf_" + "aB3" * 12
    assert exit_code("dystress train", lambda: bool(parse([word.format(token) for word in argv]))) == 2
    shown = capsys.readouterr()
    assert "dystress train: error: " in shown.err
    assert token not in shown.out + shown.err


def test_nothing_is_written_by_reading_settings(tmp_path, monkeypatch):
    """A batch of command lines and files, with a look at the folders before and after."""
    places = places_apart(tmp_path, monkeypatch, "files")
    for value in LIKELY:
        for name in ("output_dir", "train_file", "report_to", "model_name_or_path", "data_dir"):
            checked(parse, [f"--{name}={value}"])
            checked(parse, [settings_file(places["files"], json.dumps({name: value}))])
    (places["files"] / "settings.yaml").unlink()
    assert set(snapshot(tmp_path)) == set(places.values())
