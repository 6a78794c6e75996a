"""The state of a run: who may write its folder, and what a finished run and one that replaces it
leave.
"""

import json
import re
import shutil
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import finish, start, wait_for
from sentence_transformers import SentenceTransformer
from trainer_cases import logged

from dystress_text.errors import UserError
from dystress_text.io.lock import LOCK, locked
from dystress_text.programs.prepare import main as prepare
from dystress_text.programs.sweep import main as sweep
from dystress_text.programs.train import main
from dystress_text.training import run as run_module
from dystress_text.training.run_folder import checkpoint_folders
from dystress_text.training.run_state import (
    REPLACING,
    TRAINED,
    finish_replacement,
    locked_folder,
    state_of,
)
from dystress_text.training.trainer import Trainer, spread_of


def content(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(tiny_run, tmp_path_factory):
    """A finished run, with what its user has added; and its flags."""
    folder = tmp_path_factory.mktemp("finished")
    flags = [*tiny_run, "--save_steps=0"]
    assert main([*flags, f"--output_dir={folder}"]) == 0
    (folder / "mine.txt").write_text("mine")
    (folder / "results.jsonl").write_text("{}")
    (folder / "README.md").write_text("edited")
    return folder, flags


@pytest.fixture
def out(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "out")
    return tmp_path / "out"


def test_a_finished_run_stays_as_it_is_unless_it_is_to_be_replaced(finished, out, capsys):
    before, flags = content(out), [*finished[1], f"--output_dir={out}"]
    assert state_of(json.loads((out / "run.json").read_text())) == "finished"
    for resume in ("auto", "yes"):
        assert main([*flags, "--resume_from_checkpoint", resume]) == 0
        assert capsys.readouterr().out.count("\n") == 1
    for words in (
        [],
        ["--resume_from_checkpoint=auto", "--seed=7"],
        ["--resume_from_checkpoint", "--max_steps=9"],
    ):
        assert main([*flags, *words]) == 2
    said = capsys.readouterr().err
    assert "holds a run, which is finished; name another folder, or add" in said
    assert "with other settings (max_steps was 6, is 9)" in said
    assert content(out) == before


def interrupted(monkeypatch, words, step):
    """The program, which is killed before a step."""
    steps, do = [], Trainer._step

    def killed(self, batches):
        steps.append(1)
        if len(steps) == step:
            raise KeyboardInterrupt
        do(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", killed)
        assert main(words) == 130


def test_the_old_run_stands_until_the_new_one_is_trained(
    finished, out, tmp_path, monkeypatch, capsys
):
    before, replace = (
        content(out),
        [*finished[1], f"--output_dir={out}", "--seed=3", "--overwrite_output_dir"],
    )
    interrupted(
        monkeypatch, [*replace, "--save_steps=2"], 5
    )  # after a checkpoint and a better model
    assert {
        name: data for name, data in content(out).items() if name.parts[0] != REPLACING
    } == before
    SentenceTransformer(str(out))
    assert (
        main([*finished[1], f"--output_dir={out}", "--resume_from_checkpoint=auto"]) == 0
    )  # the old one's line
    assert "holds this run, finished" in capsys.readouterr().out
    resume = [word for word in replace if word != "--overwrite_output_dir"]
    interrupted(monkeypatch, [*resume, "--save_steps=2", "--resume_from_checkpoint"], 2)
    assert "going on after step 4" in capsys.readouterr().out
    assert main([*resume, "--save_steps=2", "--resume_from_checkpoint"]) == 0
    assert main([*finished[1], f"--output_dir={tmp_path / 'new'}", "--seed=3"]) == 0
    assert (out / "model.safetensors").read_bytes() == (
        tmp_path / "new" / "model.safetensors"
    ).read_bytes()
    assert (out / "mine.txt").read_text() == "mine"
    assert not (out / "results.jsonl").exists()  # of the old model
    assert not (out / REPLACING).exists()
    assert state_of(json.loads((out / "run.json").read_text())) == "finished"


def test_a_replacement_that_was_given_up_does_not_touch_the_finished_run(
    finished, out, monkeypatch, capsys
):
    """The line of the finished run does not go on with one of other settings, and needs no lock
    alone.
    """
    flags = [*finished[1], f"--output_dir={out}"]
    interrupted(monkeypatch, [*flags, "--seed=3", "--overwrite_output_dir"], 3)
    before = content(out)
    capsys.readouterr()
    assert main([*flags, "--resume_from_checkpoint=auto"]) == 0
    assert "finished; nothing was changed" in capsys.readouterr().out
    assert content(out) == before
    shutil.rmtree(out / REPLACING)
    monkeypatch.setattr(run_module, "locked_folder", None)  # as where nothing can be written
    assert main([*flags, "--resume_from_checkpoint=auto"]) == 0


def test_a_model_stands_while_its_run_without_checkpoints_begins_main(
    finished, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    flags = [*finished[1], f"--output_dir={out}", "--eval_steps=2", "--resume_from_checkpoint=auto"]
    interrupted(monkeypatch, flags, 4)
    model = (out / "model.safetensors").read_bytes()
    assert main([*flags, "--seed=3"]) == 2
    assert "holds a run with other settings (seed was 42, is 3)" in capsys.readouterr().err
    interrupted(monkeypatch, flags, 2)
    interrupted(monkeypatch, flags, 4)
    assert (out / "model.safetensors").read_bytes() == model
    assert main(flags) == 0
    assert main([*finished[1], "--eval_steps=2", f"--output_dir={tmp_path / 'new'}"]) == 0
    assert (out / "model.safetensors").read_bytes() == (
        tmp_path / "new" / "model.safetensors"
    ).read_bytes()
    assert not (out / REPLACING).exists()


def test_a_finished_run_says_that_it_was_not_uploaded(finished, out, monkeypatch, capsys):
    monkeypatch.setattr("dystress_text.programs.fine_tuning.check_push", lambda *_: None)
    flags = [
        *finished[1],
        f"--output_dir={out}",
        "--resume_from_checkpoint=auto",
        "--push_to_hub=me/it",
    ]
    assert main(flags) == 0
    assert "not uploaded. To upload it, run dystress export" in capsys.readouterr().out


def test_a_replacement_killed_at_any_change_of_its_swap_is_completed_at_the_next_start(
    finished, out, monkeypatch
):
    new = out / REPLACING
    shutil.copytree(finished[0], new)
    (new / "model.safetensors").write_bytes(b"new")
    (new / "checkpoint-4").mkdir()
    (new / "checkpoint-4" / "file").write_text("new")
    for name in ("mine.txt", "results.jsonl"):  # of the user, of the old model
        (new / name).unlink()
    wanted = content(new) | {Path("mine.txt"): b"mine"}
    for changes in range(100):
        place = out.with_name(f"killed-after-{changes}")
        shutil.copytree(out, place)
        left = [changes]

        def change(self, *target, do, left=left):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return do(self, *target)

        with monkeypatch.context() as patch:
            for name in ("replace", "rename", "unlink"):
                patch.setattr(Path, name, partialmethod(change, do=getattr(Path, name)))
            try:
                finish_replacement(place)
            except KeyboardInterrupt:
                pass
            else:
                break
        assert (place / TRAINED).is_dir() == (changes > 0)
        if changes:
            with locked_folder(place):
                assert content(place) == wanted | {Path(LOCK): b""}
    assert content(place) == wanted
    assert changes > 8


def test_what_is_refused_before_the_first_step_leaves_nothing(
    finished, out, tmp_path, monkeypatch, capsys
):
    def refused(*_):
        raise UserError("no such model can be saved")

    monkeypatch.setattr("dystress_text.programs.fine_tuning.check_saving", refused)
    before = sorted(out.rglob("*"))
    assert main([*finished[1], f"--output_dir={out}", "--overwrite_output_dir"]) == 2
    assert main([*finished[1], f"--output_dir={tmp_path / 'a' / 'b'}"]) == 2
    assert capsys.readouterr().err.count("no such model can be saved") == 2
    assert sorted(out.rglob("*")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_processes_in_one_folder(flags, tmp_path, capsys):
    """Of train, sweep and prepare the second one is refused, and the first one ends as if it were
    alone.
    """
    out = tmp_path / "out"
    with locked(out / LOCK):
        for program, words in (
            (main, flags),
            (main, [*flags, "--resume_from_checkpoint=auto"]),
            (main, [*flags, "--overwrite_output_dir"]),
            (sweep, ["--presets", "quickstart", "--tasks=none", f"--output_dir={out}"]),
        ):
            assert program(words) == 2
            assert "is in use by" in capsys.readouterr().err
        assert [path.name for path in out.iterdir()] == [LOCK]
    with locked(tmp_path / f".senteval{LOCK}"):
        assert prepare(["senteval", f"--data_dir={tmp_path}"]) == 2
    assert f"{str(tmp_path / 'senteval')!r} is in use by" in capsys.readouterr().err
    errors = tmp_path / "errors"
    process = start([*flags, "--logging_steps=1", "--max_steps=30"], errors)
    wait_for(lambda: logged(out) >= 1, process)
    assert main([*flags, "--resume_from_checkpoint=auto"]) == 2
    assert finish(process) == 0, errors.read_text()
    assert json.loads((out / "run.json").read_text())["steps"] == 30


def test_without_evaluation_the_model_is_written_once(tiny_run, tmp_path, monkeypatch):
    from dystress_text.finetuning.task import SimcseTask

    saved, save = [], SimcseTask.save
    monkeypatch.setattr(
        SimcseTask, "save", lambda self, folder: saved.append(folder) or save(self, folder)
    )
    assert main([*tiny_run, f"--output_dir={tmp_path}", "--eval_set=none", "--eval_steps=2"]) == 0
    assert saved == [tmp_path]


def test_a_collapse_ends_the_run_and_what_was_saved_before_stays(tiny_run, tmp_path, capsys):
    """A rate of 1 makes all vectors of this encoder one."""
    flags = [
        *tiny_run,
        "--pooler_type=avg",
        "--learning_rate=1",
        "--max_steps=40",
        "--save_steps=1",
        "--eval_steps=1",
        "--warmup_ratio=0.9",
    ]
    saved = {"stsb_dev": "The model of step ", "none": "This run has saved no model"}
    for evaluation, said in saved.items():
        out = tmp_path / evaluation
        assert main([*flags, f"--output_dir={out}", f"--eval_set={evaluation}"]) == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        collapsed = int(re.search(r"have collapsed at step (\d+) ", last)[1])
        assert said in last
        assert checkpoint_folders(out)[0].name == f"checkpoint-{collapsed - 1}"
    SentenceTransformer(str(tmp_path / "stsb_dev"))


def test_vectors_that_are_one_or_one_of_two_have_no_spread(monkeypatch):
    # as on a GPU with --deterministic, before torch 2.10
    monkeypatch.setattr(torch.Tensor, "kthvalue", None)
    rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    cosines = np.corrcoef(np.hstack([rows, -rows]))[
        np.triu_indices(40, 1)
    ]  # rows of mean 0 have the same cosines
    assert spread_of(rows) == pytest.approx(np.sort(1 - cosines)[311], rel=1e-4)
    two = torch.where(torch.arange(40)[:, None] % 2 == 0, rows[:1], rows[1:2])
    assert spread_of(two * torch.rand(40, 1)) < 1e-9
    assert spread_of(rows[:1]) == 0
