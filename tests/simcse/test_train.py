"""The training program: what it writes, what it prints, and every message for bad input."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences, reset_accelerator
from processes import forkserver, spawn
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import ModernBertModel

from dystress_text.core.diagnosis import BINS
from dystress_text.encoders.encoder import load_encoder
from dystress_text.errors import TrainingError
from dystress_text.evaluation.readers import read_sts_benchmark
from dystress_text.evaluation.sts import evaluate_sts
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.task import SimcseTask
from dystress_text.train import main, train
from dystress_text.training.build_loss import build_temperature

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def finished(tiny_run, tmp_path_factory):
    """The folder of a run that has ended, with a checkpoint before its last steps; to be left as it is."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    assert main([*tiny_run, f"--output_dir={folder}", "--save_steps=4"]) == 0
    reset_accelerator()
    return folder


@pytest.fixture
def ended(finished, flags, tmp_path):
    """The options of such a run, whose folder is this test's own."""
    shutil.copytree(finished, tmp_path / "out")
    return [*flags, "--save_steps=4"]


@pytest.mark.usefixtures("with_pictures")
def test_a_run_leaves_a_model_a_log_and_a_record(flags, tmp_path, data_dir, capsys):
    assert main(flags) == 0
    out = tmp_path / "out"
    record = json.loads((out / "run.json").read_text())
    printed = capsys.readouterr().out
    assert record["steps"] == 6
    assert record["corpus"]["sentences"] == 200
    assert set(record["untrained"]) == {"cls", "cls_before_pooler", "avg", "avg_top2", "avg_first_last"}
    assert record["sentences_per_second"] > 0
    assert 0 < record["padding_share"] < 1
    assert record["settings"]["preset"] == "paper"
    assert record["objective"] == "InfoNCELoss"
    assert record["temperature"].startswith("ShiftedCosineTemperature(tau_min=0.05")
    assert f"{record['trained']['sts_b_dev_spearman']:.2f}" in printed
    assert "ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4, scale=0.7)" in printed
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [3, 3, 6, 6]

    assert "<h2>Similarities and temperature</h2>" in (out / "report.html").read_text()

    pairs = read_sts_benchmark(data_dir / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv")
    assert record["similarities"]["set"] == "STS-B dev"
    for when in ("before", "after"):
        histograms = record["similarities"][when]
        assert sum(histograms["alike"]) == (pairs.scores > 4).sum()
        assert sum(histograms["others"]) == (pairs.scores <= 4).sum()
    model = SentenceTransformer(str(out), device="cpu")
    result = evaluate_sts(pairs, lambda s: model.encode(list(s), convert_to_tensor=True))
    assert result.spearman == pytest.approx(record["trained"]["sts_b_dev_spearman"], abs=1e-9)
    encoder, tokenizer = load_encoder(str(out), "cls", mlp_head=False)
    vectors = model.encode(pairs.sentences, convert_to_tensor=True)
    torch.testing.assert_close(vectors, encoder.encode(pairs.sentences, tokenizer), rtol=0, atol=1e-6)
    row = dict(zip(pairs.sentences, vectors.double(), strict=True))
    scored = zip(pairs.first, pairs.second, pairs.scores, strict=True)
    alike = [torch.cosine_similarity(row[a], row[b], dim=0).item() for a, b, score in scored if score > 4]
    counts = np.histogram(alike, BINS, (-1, 1))[0]
    assert np.abs(counts - record["similarities"]["after"]["alike"]).sum() <= 2  # one may lie on an edge


def test_no_flags_is_the_papers_run():
    settings = parse([])
    assert parse(["--preset", "paper"]) == settings
    assert (settings.text.model_name_or_path, settings.text.train_file) == ("bert-base-uncased", None)
    assert (settings.text.pooler_type, settings.text.max_seq_length) == ("cls", 32)
    assert (settings.engine.train_batch_size, settings.engine.learning_rate) == (64, 3e-5)
    assert (settings.engine.eval_steps, settings.engine.num_train_epochs) == (125, 1)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_read_and_stand_under_flags(name):
    settings = parse(["--preset", name, "--learning_rate", "7e-4"])
    assert settings.engine.learning_rate == 7e-4
    assert settings.text.model_name_or_path == PRESETS[name].settings["model_name_or_path"]


def test_simcses_own_command_line_is_understood():
    command = """--model_name_or_path bert-base-uncased --train_file data/wiki1m_for_simcse.txt --output_dir result/mine
        --num_train_epochs 1 --per_device_train_batch_size 64 --learning_rate 3e-5 --max_seq_length 32
        --evaluation_strategy steps --metric_for_best_model stsb_spearman --load_best_model_at_end --eval_steps 125
        --pooler_type cls --mlp_only_train --overwrite_output_dir --temp 0.05 --do_train --do_eval --fp16"""
    settings = parse(command.split())
    assert (settings.engine.mixed_precision, settings.engine.per_device_train_batch_size) == ("fp16", 64)
    assert (settings.loss.temp, settings.engine.metric_for_best_model) == (0.05, "stsb_spearman")


def test_simcses_name_for_the_metric(flags, tmp_path):
    assert main([*flags, "--metric_for_best_model=stsb_spearman"]) == 0
    assert main([*flags, "--overwrite_output_dir", "--metric_for_best_model=stsb_spearman", "--eval_set=none"]) == 2


def test_a_refused_resume_changes_nothing(ended, tmp_path, capsys):
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert main([*ended, "--resume_from_checkpoint", "--seed=7"]) == 2
    assert "seed was 42, is 7" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == files


def test_auto_begins_in_an_empty_folder_and_goes_on_in_a_runs(flags, tmp_path, capsys):
    repeated = [*flags, "--save_steps=4", "--resume_from_checkpoint", "auto"]
    (tmp_path / "out").mkdir()
    assert main(repeated) == 0
    assert "no checkpoint yet: from the start" in capsys.readouterr().out
    assert main(repeated) == 0
    assert "going on after step 4" in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("not a run")
    assert main([*repeated, f"--output_dir={tmp_path / 'mine'}"]) == 2
    assert "holds no run of this program" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["torn log", "no log"])
def test_what_a_kill_leaves_of_the_log_does_not_matter(ended, tmp_path, damage):
    log = tmp_path / "out" / "metrics.jsonl"
    if damage == "torn log":
        log.write_text(log.read_text() + '{"step": 7, "lo')
    else:
        log.unlink()
    assert main([*ended, "--resume_from_checkpoint"]) == 0
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()][-1] == 6


def test_weights_that_are_no_numbers_are_not_saved(flags, tmp_path, capsys):
    wild = ["--learning_rate=1e38", "--max_grad_norm=0", "--max_steps=1", "--eval_set=none"]
    assert main([*flags, *wild]) == 2
    assert "a weight is not finite" in capsys.readouterr().err
    assert not (tmp_path / "out" / "modules.json").exists()


def test_others_may_read_the_model(finished):
    modes = {path.stat().st_mode for path in finished.iterdir() if path.is_file()}
    assert len(modes) == 1


def test_a_schedule_swings_over_the_run():
    temperature = build_temperature(parse(["--temperature=scheduled"]).loss, TEXT)
    seen = []
    for fraction in (0.0, 0.1, 0.2, 0.5):
        temperature.advance(epoch=0.0, run_fraction=fraction)
        seen.append(float(temperature(torch.zeros(()))))
    assert seen == pytest.approx([0.07, 0.05, 0.07, 0.05])


def test_yaml_values_are_read_as_written(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("shift: -2.0e-1\nlearning_rate: 1e-4\nmixed_precision: no\ndo_train: true\n")
    settings = parse([str(file)])
    assert (settings.loss.shift, settings.engine.learning_rate) == (-0.2, 1e-4)
    assert settings.engine.mixed_precision == "no"


def test_a_yaml_file_stands_under_flags(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("preset: small\nlearning_rate: 2.0e-4\nseed: 7\ndetach_temperature: false\ndata_dir: null\n")
    settings = parse([str(file), "--seed", "8"])
    assert settings.engine.learning_rate == 2e-4
    assert settings.engine.seed == 8
    assert settings.text.pooler_type == "avg"
    assert settings.loss.detach_temperature is False


def test_without_an_evaluation_set_the_last_model_is_saved(flags, tmp_path, capsys):
    assert main([*flags, "--eval_set=none"]) == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["trained"] == {}
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").encode("the cat").shape == (16,)
    assert "Spearman" not in capsys.readouterr().out


def test_another_run_is_refused_replaced_or_continued(ended, flags, tmp_path, capsys):
    out = tmp_path / "out"
    for mine in ("mine.txt", "model-backup.safetensors"):
        (out / mine).write_text("keep")
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main(flags) == 2
    assert "--overwrite_output_dir or --resume_from_checkpoint" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == files

    assert main([*ended, "--resume_from_checkpoint"]) == 0  # steps 5 and 6 once more
    again = load_file(out / "model.safetensors")
    assert all(torch.equal(again[k], v) for k, v in load_file_bytes(files[out / "model.safetensors"]).items())

    (out / "senteval-mini-test.json").write_text("{}")  # of the model that goes
    assert main([*flags, "--overwrite_output_dir", "--learning_rate=1e-2", "--eval_steps=0"]) == 0
    assert not (out / "senteval-mini-test.json").exists()
    assert (out / "mine.txt").read_text() == (out / "model-backup.safetensors").read_text() == "keep"
    assert not (out / "checkpoint").exists()
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


def test_overwriting_spares_what_is_not_the_runs(flags, tmp_path, capsys):
    logs = tmp_path / "out" / "logs" / "mine.log"
    logs.parent.mkdir(parents=True)
    logs.write_text("keep")
    (tmp_path / "out" / "metrics.jsonl").write_text("{}")
    assert main([*flags, "--overwrite_output_dir"]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == "{}"
    (tmp_path / "out" / "run.json").write_text(json.dumps({"program": "dystress_text/train.py"}))
    assert main([*flags, "--overwrite_output_dir"]) == 0
    assert logs.read_text() == "keep"


def test_the_model_of_an_overwritten_run_is_not_taken_for_the_new_ones(ended, flags, tmp_path, capsys):
    assert main([*flags, "--overwrite_output_dir", "--learning_rate=1e30"]) == 2
    assert "saved no model" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.safetensors"))
    assert main([*flags, "--overwrite_output_dir"]) == 0  # a run that broke can be replaced


def test_a_changed_text_is_another_run(ended, tmp_path, text_file, capsys):
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text() + "one more sentence\n")
    resume = [flag for flag in ended if not flag.startswith("--train_file")]
    assert main([*resume, "--resume_from_checkpoint", f"--train_file={other}"]) == 2
    assert "training data was" in capsys.readouterr().err
    copy = tmp_path / "copy.txt"
    copy.write_text(text_file.read_text())
    assert main([*resume, "--resume_from_checkpoint", f"--train_file={copy}"]) == 0


def test_a_changed_tokenizer_is_another_run(flags, tmp_path, tiny_bert, capsys):
    model = shutil.copytree(tiny_bert, tmp_path / "model")
    mine = [f"--model_name_or_path={model}", *flags[1:], "--save_steps=4"]
    assert main(mine) == 0
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    content["normalizer"]["lowercase"] = False
    file.write_text(json.dumps(content))
    assert main([*mine, "--resume_from_checkpoint"]) == 2
    assert re.search(r"training data was (\w+), tokenizer \w+, is \1, tokenizer", capsys.readouterr().err)


def test_an_encoder_without_dropout_is_refused_unless_given_some(flags, tmp_path, capsys):
    folder = tmp_path / "modern"
    config = build_transformer("modernbert").config
    config.embedding_dropout = 0.0  # as published
    ModernBertModel(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    modern = [*flags, f"--model_name_or_path={folder}"]
    assert main(modern) == 2
    assert "--dropout 0.1" in capsys.readouterr().err
    assert main([*modern, "--dropout=0.1"]) == 0


def load_file_bytes(data):
    from safetensors.torch import load

    return load(data)


def test_macl_and_the_other_objectives_run(flags, tmp_path):
    for objective in ("ntxent", "dcl", "dclw"):
        assert main([*flags, "--overwrite_output_dir", "--objective", objective]) == 0
    assert main([*flags, "--overwrite_output_dir", "--objective=macl", "--alpha=0.1"]) == 0


def test_a_table_is_a_training_text(flags, tmp_path, capsys):
    table = tmp_path / "mine.csv"
    table.write_text("id,text\n" + "".join(f"{i},{s}\n" for i, s in enumerate(make_sentences(50))))
    assert main([*flags, f"--train_file={table}", "--text_column=text"]) == 0
    assert "50 sentences" in capsys.readouterr().out
    assert main([*flags, "--overwrite_output_dir", "--text_column=text"]) == 2
    assert "without columns" in capsys.readouterr().err


def test_a_temperature_that_reaches_zero_ends_in_one_line(flags, tmp_path, capsys):
    assert main([*flags, "--objective=macl", "--alpha=50", "--a_0=1.0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must stay positive" in line
    assert "--alpha, --a_0" in line


def test_an_output_folder_that_cannot_be_made(flags, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main([*flags, f"--output_dir={tmp_path / 'file' / 'out'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--output_dir" in line


BAD = [
    (["--high_similarity=1", "--log_similarity"], ["--high_similarity", "[-1, 1)"]),
    (["--high_similarity=nan", "--log_similarity"], ["--high_similarity", "[-1, 1)"]),
    (["--high_similarity=0.5"], ["--high_similarity", "--log_similarity"]),
    (["--preset=nope"], ["--preset", "paper", "quickstart"]),
    (["--max_steps=5", "--preset"], ["--preset", "expected one argument"]),
    (["--temperature=nope"], ["--temperature", "shifted_cosine", "constant"]),
    (["--pooler_type=max"], ["--pooler_type", "avg_first_last"]),
    (["--train_file=/no/such.txt"], ["--train_file", "/no/such.txt"]),
    (["--model_name_or_path=/no/such"], ["--model_name_or_path", "/no/such"]),
    (["--tau_min=0.1", "--tau_max=0.05"], ["--tau_min", "tau_max", "0.1", "0.05"]),
    (["--tau_min=0"], ["--tau_min", "positive"]),
    (["--tau_min=-0.1"], ["--tau_min", "positive"]),
    (["--tau_min=nan"], ["--tau_min", "finite"]),
    (["--temp=0"], ["--temp", "positive"]),
    (["--shift=1.5"], ["--shift", "[-1, 1]"]),
    (["--scale=0"], ["--scale", "positive"]),
    (["--temperature=cosine", "--shift=0.1"], ["--shift", "--tau_min, --tau_max"]),
    (["--temp=0.05", "--tau_min=0.03"], ["--tau_min", "--temp"]),
    (["--temperature=scheduled", "--unit=days"], ["--unit", "epoch"]),
    (["--temperature=exponential", "--sharpness=-1"], ["--sharpness", "positive"]),
    (["--sigma=0.5"], ["--sigma", "dclw"]),
    (["--objective=dclw", "--sigma=0"], ["--sigma", "positive"]),
    (["--objective=triplet"], ["--objective", "infonce", "macl"]),
    (["--train_batch_size=1"], ["--train_batch_size", "at least 2"]),
    (["--train_batch_size=500"], ["--train_batch_size", "200"]),
    (["--per_device_train_batch_size=1"], ["--per_device_train_batch_size", "at least 2"]),
    (["--max_seq_length=2"], ["--max_seq_length", "at least 3"]),
    (["--max_seq_length=41"], ["--max_seq_length", "at most 40 tokens"]),
    (["--dropout=1"], ["--dropout", "[0, 1)"]),
    (["--metric_for_best_model=sts_b_dev_alignment"], ["--metric_for_best_model", "sts_b_dev_spearman"]),
    (["--eval_set=none", "--metric_for_best_model=sts_b_dev_spearman"], ["--metric_for_best_model", "--eval_set"]),
    (["--eval_set=nope"], ["--eval_set", "stsb_dev", "mini_sts"]),
    (["--metric_for_best_model=accuracy"], ["--metric_for_best_model", "sts_b_dev_spearman"]),
    (["--learning_rate=fast"], ["--learning_rate", "fast"]),
    (["--no_such_option"], ["--no_such_option"]),
    (["--temper=0.05"], ["--temper"]),
    (["--mixed_precision=fp8"], ["--mixed_precision", "bf16"]),
    (["--report_to=nowhere"], ["--report_to", "nowhere"]),
    (["/no/such.yaml"], ["/no/such.yaml"]),
    (["--resume_from_checkpoint"], ["--resume_from_checkpoint", "no run"]),
    (["--resume_from_checkpoint=out/checkpoint-4"], ["--resume_from_checkpoint", "yes, no or auto"]),
    (["--overwrite_output_dir", "--resume_from_checkpoint"], ["--overwrite_output_dir", "--resume_from_checkpoint"]),
]


@pytest.mark.parametrize(("wrong", "words"), BAD, ids=lambda x: " ".join(x) if x[0].startswith(("-", "/")) else "")
def test_bad_input_is_one_line_and_writes_nothing(flags, wrong, words, tmp_path, capsys):
    given = {flag.split("=")[0] for flag in wrong}
    arguments = [*wrong, *(flag for flag in flags if flag.split("=")[0] not in given)]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("dystress train: error: ")
    assert all(word in line for word in words), line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content", ["- a\n- b\n", "a: [1\n", "seed: [1, 2]\n", "no_such: 1\n", "\x00", "seed: {a: 1}\n", ""]
)
def test_bad_yaml_is_one_line(tmp_path, content, capsys):
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    assert main([str(file)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_network_the_papers_run_names_the_three_ways_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "nothing"))
    assert main([f"--output_dir={tmp_path / 'out'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(way in line for way in ("prepare", "--train_file", "--preset quickstart"))


def test_a_falling_logit_is_one_warning(flags):
    with pytest.warns(UserWarning, match="logit s / tau") as caught:
        assert main([*flags, "--tau_min=0.02", "--tau_max=0.05"]) == 0
    assert len([w for w in caught if "logit" in str(w.message)]) == 1


def run_script(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def fail_to_save(folder, arguments):
    """One of several processes; leaves the error that ended it."""
    SimcseTask.snapshot = Mock(side_effect=OSError("no space left"))
    with pytest.raises(TrainingError) as error:
        train(parse(arguments))
    (folder / f"rank{os.environ['RANK']}").write_text(str(error.value))


def test_a_failure_of_the_main_process_ends_all(flags, tmp_path):
    """Without the word from the main process the other one would wait for it until a time-out."""
    spawn(2, fail_to_save, tmp_path, flags)
    said = [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)]
    assert said[0].startswith(f"cannot write to {str(tmp_path / 'out')!r} after step 3: no space left. ")
    assert said[1] == f"the main process failed: {said[0]}"


@pytest.mark.slow(20)
def test_two_processes_train_as_one(flags, tmp_path, tiny_bert):
    """The same global batches, losses and weights, up to the order of sums; dropout off."""
    shared = [*flags, "--dropout=0", "--logging_steps=1"]
    script = str(ROOT / "dystress_text" / "train.py")
    configuration = str(ROOT / "docs" / "accelerate" / "cpu.yaml")
    launch = ["-m", "accelerate.commands.launch", "--config_file", configuration, "--main_process_port=0", script]
    assert main([*shared, f"--output_dir={tmp_path / '1'}", "--save_steps=4"]) == 0
    done = run_script(
        *launch, *shared, f"--output_dir={tmp_path / '2'}", "--save_steps=4", OMP_NUM_THREADS="1",
        ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    logs = []
    for processes in "12":
        out = tmp_path / processes
        assert json.loads((out / "run.json").read_text())["processes"] == int(processes)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        logs.append([line["loss"] for line in lines if "loss" in line])
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    start, one, two = (
        load_file(folder / "model.safetensors") for folder in (tiny_bert, tmp_path / "1", tmp_path / "2")
    )
    moved = sum(float((one[name] - start[name]).square().sum()) for name in one)
    apart = sum(float((one[name] - two[name]).square().sum()) for name in one)
    assert apart < 1e-4 * moved  # Adam blows up the rounding of gradients that are zero but for it


def list_to_nobody(errors):
    """In a new process: the list of presets, into a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), Path(errors).open("w", buffering=1)  # noqa: SIM115
    sys.exit(main(["--list_presets"]))


def test_a_reader_that_leaves_is_one_line(tmp_path):
    process = forkserver().Process(target=list_to_nobody, args=(str(tmp_path / "errors"),))
    process.start()
    process.join(60)
    assert process.exitcode == 141
    assert (tmp_path / "errors").read_text() == "dystress train: stopped: the reader of its output has ended\n"
