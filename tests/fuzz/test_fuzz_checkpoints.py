"""Checkpoints that nobody thought of: damaged ones are passed over, forged ones run no code."""

import json
import os
import pickle
import shutil
import warnings

import pytest
import torch
from conftest import reset_accelerator
from fuzz_cases import accepted, deep, inputs, places_apart, snapshot, spoiled, spoiled_value, within
from hypothesis import given
from hypothesis import strategies as st

from dystress_text.errors import UserError
from dystress_text.files.whole import MANIFEST, damage_of, seal
from dystress_text.simcse.arguments import parse
from dystress_text.train import main, train
from dystress_text.training.checkpoints import newest_complete
from dystress_text.training.run_folder import RECORD, check_output, checkpoint_folders
from dystress_text.training.settings import EngineSettings

PICKLES = ("optimizer.bin", "random_states_0.pkl", "pytorch_model.bin", "scheduler.bin", "custom_checkpoint_0.pkl")


@pytest.fixture(scope="module")
def interrupted(tiny_bert, text_file, tmp_path_factory):
    """A run of two steps with two checkpoints, as it lies when it was killed after the second one; and its flags."""
    folder = tmp_path_factory.mktemp("interrupted")
    flags = [
        f"--model_name_or_path={tiny_bert}", f"--train_file={text_file}", "--eval_set=none", "--max_steps=3",
        "--train_batch_size=4", "--gradient_accumulation_steps=2", "--mixed_precision=no", "--save_steps=1",
    ]  # fmt: skip
    assert main([*flags, f"--output_dir={folder / 'out'}"]) == 0
    reset_accelerator()
    assert len(checkpoint_folders(folder / "out")) == 2
    return folder / "out", flags


@pytest.fixture
def copied(interrupted, tmp_path):
    """A copy to spoil, its newest checkpoint, and the flags."""
    run, flags = interrupted
    shutil.copytree(run, tmp_path / "out")
    return tmp_path / "out", checkpoint_folders(tmp_path / "out")[0], [*flags, f"--output_dir={tmp_path / 'out'}"]


def reseal(folder):
    """The manifest of what the folder holds, as a forger makes it."""
    (folder / MANIFEST).unlink(missing_ok=True)
    staging = folder.with_name("forged")
    folder.rename(staging)
    seal(staging, folder)


def resume(flags):
    """The run goes on to its end, or stops with one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return accepted(train, parse([*flags, "--resume_from_checkpoint"]))
    finally:
        reset_accelerator()


class Harm:
    """Makes a folder where it is unpickled."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


# ---- the manifest as it was ------------------------------------------------------------------------------------------


@inputs(150)
@given(st.data())
def test_damage_is_seen(interrupted, tmp_path_factory, data):
    """Whatever is changed in any file, the manifest included: either it is what was written, or it is passed over."""
    folder = tmp_path_factory.getbasetemp() / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint_folders(interrupted[0])[0], folder, copy_function=os.link)  # a copy of 100 kB is slow
    file = folder / data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    before = file.read_bytes()
    after = data.draw(spoiled(before))
    file.unlink()
    file.write_bytes(after)
    damage = accepted(damage_of, folder)
    if file.name != MANIFEST:
        assert (damage is None) == (before == after)


@inputs(300)
@given(st.data())
def test_manifests_of_any_form(interrupted, tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "manifests" / "checkpoint-1"
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    names = st.sampled_from(
        ("a", "..", "../..", "/etc/passwd", "/dev/zero", "", ".", "a/b", "x" * 300, "a\0b", "\udcff", "~")
    )
    manifest = {
        "files": data.draw(st.dictionaries(names, st.sampled_from(([1, "0" * 64], [0, ""], 3, None, [[], {}]))))
    }
    if data.draw(st.booleans()):
        manifest = data.draw(spoiled_value(manifest))
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with within():
        assert damage_of(folder) is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert accepted(newest_complete, folder.parent) is None


@pytest.mark.parametrize("content", [deep(), "{" * 10**5, "", "\0", "9" * 10**5])
def test_a_manifest_deeper_than_the_stack(content, tmp_path):
    (tmp_path / MANIFEST).write_text(content)
    assert "cannot be read" in damage_of(tmp_path)


def test_nothing_that_waits_or_leads_away_is_opened(tmp_path):
    """A pipe, links that lead out or in a circle, and a file that the manifest does not know."""
    folder, secret = tmp_path / "checkpoint-1", tmp_path / "secret"
    secret.write_text("x")
    makers = [
        os.mkfifo,
        lambda path: path.symlink_to(secret),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to(tmp_path, target_is_directory=True),
        lambda path: path.write_text("more"),
    ]
    for make in makers:
        for listed in (True, False):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "model").write_text("m")
            reseal(folder)
            make(folder / "odd")
            if listed:
                manifest = json.loads((folder / MANIFEST).read_text())
                manifest["files"]["odd"] = [0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]
                (folder / MANIFEST).write_text(json.dumps(manifest))
            with within(5):
                assert damage_of(folder) is not None


@pytest.mark.parametrize("content", [deep(), "null", "[]", '"x"', '{"program": []}', '{"program": {}}', "", "\0", "\\"])
def test_a_folder_whose_record_is_none_is_no_run(content, tmp_path):
    (tmp_path / RECORD).write_text(content)
    for option in ("resume_from_checkpoint", "overwrite_output_dir"):
        with pytest.raises(UserError, match="holds no run"):
            check_output(tmp_path, EngineSettings(output_dir=str(tmp_path), **{option: True}))


# ---- a forged manifest -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "pickle") for name in PICKLES), ("pytorch_model.bin", "torch"), ("optimizer.bin", "inside"),
     ("random_states_0.pkl", "inside")],
)  # fmt: skip
def test_a_pickle_is_never_run(name, how, copied, tmp_path):
    _, folder, flags = copied
    canary = tmp_path / "canary"
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    harm = Harm(canary)
    if how == "pickle":
        (folder / name).write_bytes(pickle.dumps(harm))
    else:
        torch.save(
            {"state": {}, "param_groups": [harm], "torch_manual_seed": harm} if how == "inside" else harm, folder / name
        )
    pickle.loads(pickle.dumps(harm))  # which would do harm, if anybody did this
    assert canary.is_dir()
    canary.rmdir()
    reseal(folder)
    result = resume(flags)
    assert not canary.exists()
    assert result is None or name in ("scheduler.bin",)


STATES = "state", "scheduler", "identity"


def copy_of(run, tmp_path_factory):
    """A copy of a run to be forged, in the place of the one before, and its newest checkpoint."""
    out = tmp_path_factory.getbasetemp() / "forged"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(run, out)
    return out, checkpoint_folders(out)[0]


@inputs(8)
@given(st.data())
def test_states_of_any_form(interrupted, tmp_path_factory, data):
    run, flags = interrupted
    out, folder = copy_of(run, tmp_path_factory)
    file = folder / "training_state.json"
    part = data.draw(st.sampled_from(STATES))
    stored = json.loads(file.read_text())
    stored[part] = data.draw(spoiled_value(stored[part]))
    file.write_text(json.dumps(stored))
    reseal(folder)
    resume([*flags, f"--output_dir={out}"])


@inputs(8)
@given(st.data())
def test_files_of_any_form(interrupted, tmp_path_factory, data):
    run, flags = interrupted
    out, folder = copy_of(run, tmp_path_factory)
    name = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)))
    (folder / name).write_bytes(data.draw(spoiled((folder / name).read_bytes())))
    reseal(folder)
    resume([*flags, f"--output_dir={out}"])


def forged_optimizer(change):
    def spoil(folder):
        stored = torch.load(folder / "optimizer.bin", weights_only=True)
        change(stored)
        torch.save(stored, folder / "optimizer.bin")

    return spoil


def forged_random(change):
    def spoil(folder):
        from accelerate.utils import load

        stored = load(folder / "random_states_0.pkl")
        change(stored)
        torch.save(stored, folder / "random_states_0.pkl")

    return spoil


FORGERIES = {
    "moments of another shape": forged_optimizer(lambda s: s["state"][0].update(exp_avg=torch.zeros(3))),
    "no moments": forged_optimizer(lambda s: s["state"][0].pop("exp_avg")),
    "moments of text": forged_optimizer(lambda s: s["state"][0].update(exp_avg="x")),
    "a count of text": forged_optimizer(lambda s: s["state"][0].update(step="x")),
    "moments of another type": forged_optimizer(lambda s: s["state"][0].update(exp_avg=s["state"][0]["exp_avg"].int())),
    "a rate of text": forged_optimizer(lambda s: s["param_groups"][0].update(lr="x")),
    "betas of text": forged_optimizer(lambda s: s["param_groups"][0].update(betas="xy")),
    "one beta": forged_optimizer(lambda s: s["param_groups"][0].update(betas=(0.9,))),
    "no betas": forged_optimizer(lambda s: s["param_groups"][0].pop("betas")),
    "another way to step": forged_optimizer(lambda s: s["param_groups"][0].update(fused="x", capturable=True)),
    "other groups": forged_optimizer(lambda s: s["param_groups"].pop()),
    "a state of all else": forged_optimizer(lambda s: s.update(state=[1])),
    "a step of text": forged_random(lambda s: s.update(step="x")),
    "a huge step": forged_random(lambda s: s.update(step=10**30)),
    "no random state": forged_random(lambda s: s.pop("random_state")),
    "a random state of another form": forged_random(lambda s: s.update(torch_manual_seed=torch.zeros(3))),
    "no numbers": forged_random(lambda s: s.update(numpy_random_seed=None)),
}


@pytest.mark.parametrize("spoil", FORGERIES.values(), ids=FORGERIES)
def test_forged_tensors(spoil, copied):
    _, folder, flags = copied
    spoil(folder)
    reseal(folder)
    resume(flags)


@pytest.mark.parametrize("content", [deep(), "null", "[]", '{"state": null}', "\udcff", "{" * 10**5])
def test_a_state_deeper_than_the_stack(content, copied):
    _, folder, flags = copied
    (folder / "training_state.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    reseal(folder)
    assert resume(flags) is None


def test_a_log_of_any_form(copied):
    run, _, flags = copied
    with (run / "metrics.jsonl").open("ab") as file:
        file.writelines(
            [b"\xff\xfe\n", b"\0\n", b"[1]\n", b'{"step": NaN}\n', deep().encode() + b"\n", b"\xe2\x80\xa8"]
        )
    result = resume(flags)
    assert result is not None
    assert result["steps"] == 3


def test_nothing_is_written_outside(interrupted, tmp_path, monkeypatch):
    """A batch of forged runs, with a look at the folders before and after."""
    run, flags = interrupted
    places = places_apart(tmp_path, monkeypatch, "beside")
    for odd in ("../beside", "/", "checkpoint-1/../../beside"):
        shutil.copytree(run, tmp_path / "out")
        folder = checkpoint_folders(tmp_path / "out")[0]
        stored = json.loads((folder / "training_state.json").read_text())
        stored["identity"]["output_dir"] = stored["state"]["best_step"] = odd
        (folder / "training_state.json").write_text(json.dumps(stored))
        reseal(folder)
        resume([*flags, f"--output_dir={tmp_path / 'out'}"])
        shutil.rmtree(tmp_path / "out")
        assert set(snapshot(tmp_path)) == set(places.values())
