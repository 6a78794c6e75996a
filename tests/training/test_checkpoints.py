"""Checkpoints: a resumed run is the run, another run is refused, and no file can run code."""

import json
import pickle
import random
import shutil
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from fuzz_cases import Harm
from safetensors.torch import save_file
from trainer_cases import equal, interrupt, log_of, make_task, run, weights

from dystress_text.errors import ParameterError, TrainingError
from dystress_text.programs.train import main
from dystress_text.training.checkpoints import Checkpoints
from dystress_text.training.run_folder import STAGING, checkpoint_folders


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, corpus, precision):
    """With dropout, across the end of an epoch, and with the log of similarities."""
    options = {"max_steps": 30, "save_steps": 4, "mixed_precision": precision, "logging_steps": 1}
    options |= {"log_similarity": precision == "no"}
    whole, broken = make_task(corpus, dropout=0.1), make_task(corpus, dropout=0.1)
    run(whole, corpus, tmp_path / "whole", **options)
    inner, calls = broken.loss, []
    broken.loss = lambda z: (
        calls.append(1) or inner(z) * (float("nan") if len(calls) == 27 else 1.0)
    )  # in epoch 2
    with pytest.raises(TrainingError):
        run(broken, corpus, tmp_path / "broken", **options)
    make_task(corpus, dropout=0.5)  # other weights and random state than at the interruption
    resumed = make_task(corpus, dropout=0.1)
    summary, trainer = run(
        resumed, corpus, tmp_path / "broken", resume_from_checkpoint="yes", **options
    )
    assert summary.step == 30
    assert equal(weights(whole), weights(resumed))
    for key in ("loss", "learning_rate"):
        assert log_of(tmp_path / "broken", key) == log_of(tmp_path / "whole", key)
    assert trainer.scheduler.last_epoch == 30
    if precision == "no":
        one, other = (
            (tmp_path / name / "similarity.jsonl").read_text() for name in ("whole", "broken")
        )
        assert one == other


def test_the_scale_of_fp16_goes_on(tmp_path, corpus):
    """A scale that overflows at first, in torch's fp16 of a CPU, which accelerate refuses."""
    from test_trainer import scaled

    options = {"max_steps": 12, "save_steps": 5, "backoff": 0.05, "logging_steps": 1}
    whole = scaled(corpus, tmp_path / "whole", 2.0**36, **options)
    scaled(corpus, tmp_path / "broken", 2.0**36, **options)
    shutil.rmtree(tmp_path / "broken" / "checkpoint-10")
    again = scaled(corpus, tmp_path / "broken", 2.0**10, **options, resume_from_checkpoint="yes")
    assert again.skipped_steps == whole.skipped_steps > 0
    assert log_of(tmp_path / "broken", "loss") == log_of(tmp_path / "whole", "loss")


def test_the_newest_is_found_by_its_step_and_only_the_newest_are_kept(tmp_path, corpus):
    for step in (9, 100, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-mine").mkdir()
    (tmp_path / "checkpoint-500").write_text("a file")
    assert [path.name for path in checkpoint_folders(tmp_path)] == [
        "checkpoint-100",
        "checkpoint-20",
        "checkpoint-9",
    ]
    run(make_task(corpus), corpus, tmp_path, save_steps=4)
    kept = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert kept == ["checkpoint-100", "checkpoint-20", "checkpoint-500", "checkpoint-mine"]


@pytest.fixture(scope="module")
def interrupted(tiny_bert, text_file, tmp_path_factory):
    """A run of two steps as it lies when it was killed after its last checkpoint; and its flags."""
    folder = tmp_path_factory.mktemp("interrupted")
    flags = [
        f"--model_name_or_path={tiny_bert}",
        f"--train_file={text_file}",
        "--eval_set=none",
        "--max_steps=3",
        "--train_batch_size=4",
        "--gradient_accumulation_steps=2",
        "--mixed_precision=no",
        "--save_steps=1",
    ]
    assert main([*flags, f"--output_dir={folder / 'out'}"]) == 0
    interrupt(folder / "out")
    return folder / "out", flags


@pytest.fixture
def copied(interrupted, tmp_path):
    """The newest checkpoint of a copy to spoil, and the flags that resume it."""
    shutil.copytree(interrupted[0], tmp_path / "out")
    flags = [*interrupted[1], f"--output_dir={tmp_path / 'out'}", "--resume_from_checkpoint"]
    return checkpoint_folders(tmp_path / "out")[0], flags


def refused(flags, capsys):
    """The one line of a run that does not go on."""
    code = main(flags)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert code == 2, said
    last = said.strip().splitlines()[-1]
    assert last.startswith("dystress train: error: --resume_from_checkpoint: ")
    return last


def test_bytes_of_any_kind_end_in_a_line_and_a_pickle_is_never_run(interrupted, tmp_path, capsys):
    """Each file cut, emptied, or replaced by random bytes or one that would do harm; and one that
    is gone.
    """
    chance, canary, damaged = random.Random(5), tmp_path / "canary", tmp_path / "damaged"
    harm = Harm(canary)
    pickle.loads(pickle.dumps(harm))  # which would do harm, if anybody did this
    canary.rmdir()
    torch.save({"state": {}, "param_groups": [harm], "torch_manual_seed": harm}, damaged)
    contents = (b"", chance.randbytes(300), None, pickle.dumps(harm), damaged.read_bytes())
    names = {path.name for path in checkpoint_folders(interrupted[0])[0].iterdir()} - {
        "scheduler.bin"
    }
    assert {
        "optimizer.bin",
        "random_states_0.pkl",
        "task.safetensors",
        "training_state.json",
    } < names
    for name in sorted(names | {"pytorch_model.bin", "custom_checkpoint_0.pkl"}):
        for content in contents:
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            shutil.copytree(interrupted[0], tmp_path / "out")
            file = checkpoint_folders(tmp_path / "out")[0] / name
            if name == "pytorch_model.bin":
                (file.parent / "model.safetensors").unlink()
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_bytes(content)
            if content is not None or name != "custom_checkpoint_0.pkl":
                refused(
                    [
                        *interrupted[1],
                        f"--output_dir={tmp_path / 'out'}",
                        "--resume_from_checkpoint",
                    ],
                    capsys,
                )
    assert not canary.exists()


def test_a_random_state_that_was_not_loaded_is_noticed(copied, monkeypatch, capsys):
    """accelerate only logs it."""
    monkeypatch.setattr("accelerate.checkpointing.torch.set_rng_state", lambda state: None)
    assert "the random state was not loaded" in refused(copied[1], capsys)


@pytest.mark.parametrize("loaded", [True, False])
def test_the_random_state_of_the_own_gpu_is_looked_at(loaded, tmp_path, monkeypatch):
    """Of the second of two; a machine may show fewer GPUs than before."""
    states = [torch.zeros(16, dtype=torch.uint8), torch.ones(16, dtype=torch.uint8)]
    stored = {"torch_manual_seed": torch.get_rng_state(), "torch_cuda_manual_seed": states}
    torch.save(stored, tmp_path / "random_states_1.pkl")
    save_file({}, tmp_path / "task.safetensors")
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[loaded].clone())
    accelerator = Mock(process_index=1, device=torch.device("cuda", 1))
    run = Mock(options={}, task=Mock(state=torch.nn.Module()))
    checkpoints = Checkpoints(run, Mock(), accelerator, tmp_path)
    with nullcontext() if loaded else pytest.raises(ParameterError, match="was not loaded"):
        checkpoints.load(tmp_path)


def test_a_learned_temperature_is_part_of_it(tiny_run, tmp_path):
    options = [*tiny_run, "--loss=infonce(learned(0.05, learning_rate=0.05))", "--save_steps=3"]
    assert main([*options, f"--output_dir={tmp_path}"]) == 0
    before = json.loads((tmp_path / "run.json").read_text())["learned_temperature"]
    interrupt(tmp_path)
    assert main([*options, f"--output_dir={tmp_path}", "--resume_from_checkpoint"]) == 0
    assert json.loads((tmp_path / "run.json").read_text())["learned_temperature"] == before


def test_another_run_is_not_continued(copied, capsys):
    folder, flags = copied
    file, log = folder / "training_state.json", folder.parent / "metrics.jsonl"
    whole, before = file.read_text(), log.read_bytes()
    content = json.loads(whole)
    content["identity"] |= {"device": "cuda", "training data": "other"}
    file.write_text(json.dumps(content))
    said = refused([*flags, "--seed=43"], capsys)
    for words in ("seed was 42, is 43", "device was cuda, is cpu", "training data was other, is "):
        assert words in said
    assert log.read_bytes() == before
    file.write_text(whole)
    (folder.parent / STAGING).mkdir()  # of a run that was killed
    assert main([*flags, "--save_steps=3", "--logging_steps=1"]) == 0  # of no weight for the result
    assert not (folder.parent / STAGING).exists()


def test_an_earlier_checkpoint_goes_on_and_shortens_a_log_of_any_form(copied):
    folder, flags = copied
    shutil.rmtree(folder)
    log = folder.parent / "metrics.jsonl"
    with log.open("ab") as file:
        file.writelines([b"\xff\xfe\n", b"[1]\n", b'{"step": NaN}\n', b'{"step": 2, "lo'])
    assert main(flags) == 0
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()][-1] == 3
