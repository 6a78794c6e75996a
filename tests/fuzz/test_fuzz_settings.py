"""Settings that nobody thought of: command lines and files. What is wrong with them is one line of ours."""

import json

import pytest
import yaml
from fuzz_cases import ODD_VALUES, accepted, deep, inputs, spoiled
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.cli.command_line import exit_code
from dystress_text.evaluation.settings import EvaluationSettings
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
    "output_dir: !!python/object/new:subprocess.Popen [['touch', '{0}']]",
    "<<: !!python/module:os",
    "--- 1\n--- 2\n",
    "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
    "g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
    "&a [*a]",
    "seed: 1\nseed: 2",
    "? {seed: 1}\n: 1",
    "output_dir: \"a\\0b\"",
    "\"seed\\n\": 1",
    "\ufeffseed: 1",
    "seed: " + "9" * 10**6,
    deep(),
    "- " * 20_000,
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
        accepted(build_objective, settings.loss, TEXT)


@inputs(200)
@given(command_lines(VISION_NAMES))
def test_command_lines_of_vision(argv):
    checked(parse_vision, argv)


def settings_file(folder, content):
    file = folder / "settings.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return str(file)


@pytest.mark.parametrize("parser", [parse, parse_vision])
@pytest.mark.parametrize("text", EVIL, ids=range(len(EVIL)))
def test_files_that_mean_harm(text, parser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checked(parser, [settings_file(tmp_path, text.replace("{0}", str(tmp_path / "canary")))])
    assert list(tmp_path.iterdir()) == [tmp_path / "settings.yaml"]


VALID = "learning_rate: 3e-5\nseed: 7\noutput_dir: out\nobjective: infonce\nfp16: false\ntau_min: 0.05 # low\n"


def trees():
    leaves = st.one_of(st.sampled_from(ODD_VALUES), st.integers(), st.floats(), st.text(max_size=8), st.booleans())
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    )
    names = st.one_of(st.sampled_from([*TEXT_NAMES, "preset"]), st.text(max_size=5))
    return st.dictionaries(names, st.one_of(leaves, values), max_size=4)


@inputs(300)
@given(st.one_of(spoiled(VALID.encode()), st.binary(max_size=60), trees().map(json.dumps), trees().map(yaml.dump)))
def test_files(tmp_path_factory, content):
    checked(parse, [settings_file(tmp_path_factory.getbasetemp(), content)])


def test_a_token_is_no_setting_and_is_not_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-mine")
    for token in ("hf_" + "aB3" * 12, "a-secret-of-mine"):
        file = settings_file(tmp_path, f"train_file: https://user:{token}@huggingface.co/x")
        for words in ([f"--output_dir={token}"], [file], [f"--max_steps={token}"], [token], [f"--preset={token}"]):
            assert exit_code("dystress train", lambda words=words: bool(parse(words))) == 2
            shown = capsys.readouterr()
            assert "dystress train: error: " in shown.err
            assert token not in shown.out + shown.err
