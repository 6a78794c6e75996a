"""Settings that nobody thought of: command lines. What is wrong with them is one line of ours."""

import json

from fuzz_cases import accepted, inputs
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.cli.command_line import exit_code
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.simcse.arguments import FLAGS, REPLACED, parse
from dystress_text.simcse.settings import TEXT, RunSettings, TextSettings
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


def checked(parser, argv):
    settings = accepted(parser, argv)
    if settings is not None:
        assert isinstance(settings, RunSettings | PretrainSettings)
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


def test_a_token_is_no_setting_and_is_not_printed(capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-secret-of-mine")
    for token in ("hf_" + "aB3" * 12, "a-secret-of-mine"):
        for words in (
            [f"--output_dir={token}"],
            [f"--train_file=https://user:{token}@huggingface.co/x"],
            [f"--max_steps={token}"],
            [token],
            [f"--preset={token}"],
        ):
            assert exit_code("dystress train", lambda words=words: bool(parse(words))) == 2
            shown = capsys.readouterr()
            assert "dystress train: error: " in shown.err
            assert token not in shown.out + shown.err
