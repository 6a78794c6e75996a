"""The state of a run: who may write its folder, and what replaces a finished run."""

import json
import shutil
from functools import partialmethod
from pathlib import Path

import pytest
from conftest import make_sentences
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

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
from dystress_text.training.trainer import Trainer


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


def changed_text(base, text, pairs):
    text.write_text(text.read_text() + "one more sentence\n")


def changed_pairs(base, text, pairs):
    pairs.write_text(pairs.read_text().replace("1.5", "4.5"))


def changed_base(base, text, pairs):
    file = base / "model.safetensors"
    weights = {name: 1.01 * x for name, x in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})


def changed_tokenizer(base, text, pairs):
    file = base / "tokenizer.json"
    content = json.loads(file.read_text())
    content["normalizer"]["lowercase"] = not content["normalizer"]["lowercase"]
    file.write_text(json.dumps(content))


def changed_template(base, text, pairs):
    (base / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (changed_text, "training text"),
        (changed_pairs, "evaluation data"),
        (changed_base, "model_name_or_path"),
        (changed_tokenizer, "model_name_or_path"),
        (changed_template, "model_name_or_path"),
    ],
)
def test_other_content_under_the_same_name_is_another_run(
    change, named, tiny_run, tiny_bert, tmp_path, monkeypatch, capsys
):
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
    interrupted(monkeypatch, begun, 4)
    planned = ["--presets=small", "--seeds=0", "--tasks=none", f"--output_dir={folder.parent}"]
    planned += ["--dry_run", "--", *tiny_run, *own, "--eval_set=none"]
    planned = [each for each in planned if not each.startswith("--data_dir")]
    before = content(folder)
    change(base, text, pairs)
    for argv in (flags, begun):
        capsys.readouterr()
        assert main(argv) == 2
        assert named in capsys.readouterr().err
    assert sweep(planned) == 2
    assert named in capsys.readouterr().err
    assert content(folder) == before


def interrupted(monkeypatch, argv, step):
    """Run the program, and kill it before a step."""
    steps = []
    do = Trainer._step

    def killed(self, batches):
        steps.append(1)
        if len(steps) == step:
            raise KeyboardInterrupt
        do(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", killed)
        assert main(argv) == 130


def test_replacement_is_resumed(finished, out, tmp_path, monkeypatch, capsys):
    """The old run is usable until the new one, which equals a run in a new folder, is trained."""
    before = content(out)
    flags = [*finished[1], f"--output_dir={out}"]
    replace = [*flags, "--seed=3", "--save_steps=2"]
    interrupted(monkeypatch, [*replace, "--overwrite_output_dir"], 5)
    kept = {name: data for name, data in content(out).items() if name.parts[0] != REPLACING}
    assert kept == before
    SentenceTransformer(str(out))
    assert main([*flags, "--resume_from_checkpoint=auto"]) == 0  # the old run's command
    capsys.readouterr()
    interrupted(monkeypatch, [*replace, "--resume_from_checkpoint"], 2)
    assert "step 4" in capsys.readouterr().out
    assert main([*replace, "--resume_from_checkpoint"]) == 0
    assert main([*finished[1], f"--output_dir={tmp_path / 'new'}", "--seed=3"]) == 0
    model = "model.safetensors"
    assert (out / model).read_bytes() == (tmp_path / "new" / model).read_bytes()
    assert (out / "mine.txt").read_text() == "mine"
    assert not any((out / name).exists() for name in OLD_RESULTS)
    assert not (out / REPLACING).exists()
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
                found = content(folder)
            del found[Path(LOCK)]
            assert found == wanted
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


def test_a_finished_run_keeps_its_checkpoints_only_on_request(tiny_run, tmp_path):
    for kept in ("no", "yes"):
        folder = tmp_path / kept
        flags = [*tiny_run, "--max_steps=6", "--save_steps=2", "--eval_set=none"]
        assert main([*flags, f"--output_dir={folder}", f"--keep_checkpoints={kept}"]) == 0
    assert checkpoint_folders(tmp_path / "no") == []
    assert [each.name[-1] for each in checkpoint_folders(tmp_path / "yes")] == ["4", "2"]
