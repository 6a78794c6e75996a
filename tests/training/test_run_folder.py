"""The folder of a run: who may write it, how a finished run is recognised, and what replaces it."""

import json
import shutil
from functools import partialmethod
from pathlib import Path

import pytest
from conftest import make_sentences
from sentence_transformers import SentenceTransformer
from trainer_cases import kill_before

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.lock import LOCK, locked
from dystress_text.programs.sweep import main as sweep
from dystress_text.programs.train import main
from dystress_text.training.run_folder import (
    RECORD,
    REPLACING,
    TRAINED,
    checkpoint_folders,
    finish_replacement,
    finished_record,
    locked_folder,
    read_record,
)


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


OLD_RESULTS = ("results.jsonl", "vision-cifar10.json")  # the second as 0.2 wrote it


@pytest.fixture(scope="module")
def finished(tiny_run, tmp_path_factory):
    """A finished run with files of its user, and its arguments."""
    folder = tmp_path_factory.mktemp("finished")
    flags = [*tiny_run, "--save_steps=0"]
    assert main([*flags, f"--output_dir={folder}"]) == 0
    (folder / "mine.txt").write_text("mine")
    for name in OLD_RESULTS:
        (folder / name).write_text("{}")
    return folder, flags


@pytest.fixture
def out(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "out")
    return tmp_path / "out"


def test_finished_run_is_kept(finished, out, capsys):
    before = content(out)
    flags = [*finished[1], f"--output_dir={out}"]
    assert main([*flags, "--resume_from_checkpoint=auto"]) == 0
    for more in ([], ["--resume_from_checkpoint", "--max_steps=9"]):
        assert main([*flags, *more]) == 2
        assert "--output_dir" in capsys.readouterr().err
    assert content(out) == before


def test_options_renamed_or_added_since_the_run_are_no_difference(tmp_path):
    """A record of before ``pairs`` and ``held_out``; an option that did not exist was off."""
    then = {"seed": 1, "eval_file": ["pairs.csv"]}
    (tmp_path / RECORD).write_text(json.dumps({"state": "finished", "settings": then}))
    now = {"seed": 1, "pairs": ["pairs.csv"], "held_out": 0, "distill": None}
    assert finished_record(tmp_path, now) is not None
    for changed in ({"seed": 2}, {"pairs": None}, {"held_out": 200}):
        with pytest.raises(ParameterError, match=f"{next(iter(changed))} was"):
            finished_record(tmp_path, now | changed)


# what an error names, by the file that changes, and how
CHANGES = {
    "mine.txt": ("training text", lambda old: old + b"one more sentence\n"),
    "pairs.csv": ("evaluation data", lambda old: old.replace(b"1.5", b"4.5")),
    "base/model.safetensors": ("model_name_or_path", lambda old: old[:-1] + bytes([old[-1] ^ 1])),
    "base/tokenizer.json": (
        "model_name_or_path",
        lambda old: old.replace(b'se": true', b'se": false'),
    ),
    "base/chat_template.jinja": ("model_name_or_path", lambda _: b"{{ messages }}"),
}


def test_other_content_under_the_same_name_is_another_run(tiny_run, tiny_bert, tmp_path, capsys):
    """Whether the run has finished or not; a sweep does not take it as done either."""
    base = shutil.copytree(tiny_bert, tmp_path / "base")
    text = tmp_path / "mine.txt"
    text.write_text("".join(f"{line}\n" for line in make_sentences(64)))
    pairs = tmp_path / "pairs.csv"
    sentences = make_sentences(8)
    lines = [f"{sentences[i]},{sentences[i + 4]},{i}.5\n" for i in range(4)]
    pairs.write_text("sentence1,sentence2,score\n" + "".join(lines))
    own = [f"--model_name_or_path={base}", f"--train_file={text}", f"--pairs={pairs}"]
    flags = [*tiny_run, *own, "--eval_set=none", "--resume_from_checkpoint=auto"]
    begun = [*flags, "--save_steps=2", f"--output_dir={tmp_path / 'begun'}"]
    folder = tmp_path / "sweep" / "small-seed-0"
    flags += ["--preset=small", "--seed=0", f"--output_dir={folder}"]
    assert main(flags) == 0
    assert main(flags) == 0
    kill_before(4, begun)
    planned = ["--presets=small", "--seeds=0", "--tasks=none", f"--output_dir={folder.parent}"]
    planned += ["--dry_run", "--", *tiny_run, *own, "--eval_set=none"]
    planned = [each for each in planned if not each.startswith("--data_dir")]
    before = content(folder)
    for name, (named, change) in CHANGES.items():
        file = tmp_path / name
        old = file.read_bytes() if file.is_file() else b""
        file.write_bytes(change(old))
        assert file.read_bytes() != old
        for program, argv in ((main, flags), (main, begun), (sweep, planned)):
            capsys.readouterr()
            assert program(argv) == 2
            assert named in capsys.readouterr().err
        file.write_bytes(old)
    assert content(folder) == before


def test_replacement_is_resumed(finished, out, tmp_path, capsys):
    """The old run is usable until the new one, which equals a run in a new folder, is trained."""
    before = content(out)
    flags = [*finished[1], f"--output_dir={out}"]
    replace = [*flags, "--seed=3", "--save_steps=2"]
    kill_before(5, [*replace, "--overwrite_output_dir"])
    kept = {name: data for name, data in content(out).items() if name.parts[0] != REPLACING}
    assert kept == before
    SentenceTransformer(str(out))
    assert main([*flags, "--resume_from_checkpoint=auto"]) == 0  # the old run's command
    capsys.readouterr()
    kill_before(2, [*replace, "--resume_from_checkpoint"])
    assert "step 4" in capsys.readouterr().out
    assert main([*replace, "--resume_from_checkpoint"]) == 0
    assert main([*finished[1], f"--output_dir={tmp_path / 'new'}", "--seed=3"]) == 0
    model = "model.safetensors"
    assert (out / model).read_bytes() == (tmp_path / "new" / model).read_bytes()
    assert (out / "mine.txt").read_text() == "mine"
    assert not any((out / name).exists() for name in (*OLD_RESULTS, REPLACING))
    assert checkpoint_folders(out) == []
    assert read_record(out).state == "finished"


def test_swap_killed_at_any_change_is_completed(finished, out, monkeypatch):
    new = out / REPLACING
    shutil.copytree(finished[0], new)
    (new / "model.safetensors").write_bytes(b"new")
    (new / "checkpoint-4").mkdir()
    (new / "checkpoint-4" / "file").write_text("new")
    for name in ("mine.txt", *OLD_RESULTS):
        (new / name).unlink()
    wanted = content(new) | {Path("mine.txt"): b"mine"}
    for changes in range(100):
        folder = out.with_name(f"killed-after-{changes}")
        shutil.copytree(out, folder)
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
                finish_replacement(folder)
            except KeyboardInterrupt:
                pass
            else:
                break
        assert (folder / TRAINED).is_dir() == (changes > 0)
        if changes:
            with locked_folder(folder):
                completed = content(folder)
            del completed[Path(LOCK)]
            assert completed == wanted
    assert content(folder) == wanted
    assert changes > 8


def test_rejected_run_leaves_nothing(finished, out, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("no such model can be saved")

    monkeypatch.setattr("dystress_text.finetuning.fine_tune.check_saving", fail)
    before = content(out)
    assert main([*finished[1], f"--output_dir={out}", "--overwrite_output_dir"]) == 2
    assert main([*finished[1], f"--output_dir={tmp_path / 'a' / 'b'}"]) == 2
    assert content(out) == before
    assert list(tmp_path.iterdir()) == [out]


def test_second_process_is_rejected(flags, tmp_path, capsys):
    out = tmp_path / "out"
    with locked(out / LOCK):
        assert sweep(["--presets", "quickstart", "--tasks=none", f"--output_dir={out}"]) == 2
        assert main([*flags, "--resume_from_checkpoint=auto"]) == 2
        assert [path.name for path in out.iterdir()] == [LOCK]
    assert capsys.readouterr().err.count("in use by") == 2
