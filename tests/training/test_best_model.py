"""The best model is copied, written by a thread, and in the folder before a checkpoint, a stop and the end."""

import math
import threading
import time

import pytest
import torch
from dystress_text.training.best_model import check_finite, copied_to_cpu
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.modules import Dense
from torch.utils._python_dispatch import TorchDispatchMode
from trainer_cases import make_task, run, weights

from dystress_text.errors import Interrupted, TrainingError
from dystress_text.simcse.task import SimcseTask
from dystress_text.training import trainer as loop
from dystress_text.training.checkpoints import SavedState


class Reads(TorchDispatchMode):
    """Counts the values that the host reads from tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        return function(*args, **(kwargs or {}))


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2).bfloat16())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_one_wrong_weight_anywhere_is_found(wrong):
    with torch.no_grad():
        for i, parameter in enumerate(network().parameters()):
            model = network()
            list(model.parameters())[i].view(-1)[parameter.numel() - 1] = wrong
            with pytest.raises(TrainingError, match="a weight is not finite at step 7; lower --learning_rate"):
                check_finite(model, 7)


def test_finite_weights_are_one_read_however_large():
    model = network()
    with torch.no_grad():
        model[0].weight.fill_(torch.finfo(torch.float32).max)
    with Reads() as reads:
        check_finite(model, 7)
    assert reads.count == 1


def test_a_copy_has_values_and_sharing_and_nothing_else_in_common(corpus):
    model = make_task(corpus).model
    model.transformer.encoder.layer[1].output.dense.weight = model.transformer.encoder.layer[0].output.dense.weight
    model.register_buffer("seen", torch.arange(3))
    copied, expected = copied_to_cpu(model), {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    assert copied.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in copied.state_dict().items())
    first, second, _ = (layer.output.dense.weight for layer in copied.transformer.encoder.layer)
    assert first is second
    assert [p.requires_grad for p in copied.parameters()] == [p.requires_grad for p in model.parameters()]


def real_snapshots(task, before_writing=lambda: None):
    """Let a scripted task copy and write its model after all."""

    def snapshot():
        write = SimcseTask.snapshot(task)

        def later(folder):
            before_writing()
            write(folder)

        return later

    task.snapshot = snapshot
    return task


def test_training_goes_on_beside_the_write_and_does_not_touch_the_copy(tmp_path, corpus):
    task, stepped, seen = make_task(corpus), threading.Event(), {}
    task.scores = iter([3.0, 1.0, 2.0])
    real_snapshots(task, lambda: seen.setdefault(threading.current_thread().name, stepped.wait(10)))
    evaluate, begin, steps = task.evaluate, task.begin_step, []

    def noting():
        seen[f"weights {len(steps)}"] = weights(task)
        return evaluate()

    def beginning(*progress):
        steps.append(1)
        if len(steps) == 6:  # the model of step 4 is not written before that
            stepped.set()
        begin(*progress)

    task.evaluate, task.begin_step = noting, beginning
    run(task, corpus, tmp_path, eval_steps=4, max_steps=9, metric_for_best_model="score")
    assert [value for name, value in seen.items() if name.startswith("best-model")] == [True]
    saved = load_file(tmp_path / "model.safetensors")
    kept, last = ({k.removeprefix("transformer."): v for k, v in seen[f"weights {n}"].items()} for n in (4, 9))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in saved.items())
    assert not all(torch.equal(tensor, last[name]) for name, tensor in saved.items())


def test_a_checkpoint_a_stop_and_the_end_wait_for_the_model(tmp_path, corpus, monkeypatch):
    task, model, found = make_task(corpus), tmp_path / "model.safetensors", []
    real_snapshots(task, lambda: (model.unlink(missing_ok=True), time.sleep(0.3)))
    write = SavedState.write
    monkeypatch.setattr(SavedState, "write", lambda self, *given: (found.append(model.is_file()), write(self, *given)))
    task.evaluate = lambda: {"score": float(task.begun)}
    begin, task.begun = task.begin_step, 0

    def beginning(*progress):
        task.begun += 1
        begin(*progress)

    task.begin_step = beginning
    run(task, corpus, tmp_path, eval_steps=1, save_steps=2, max_steps=5, metric_for_best_model="score")
    assert found == [True, True]
    assert model.is_file()

    class Stop:
        requested = 15

        def __init__(self, main):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(loop, "StopSignals", Stop)
    with pytest.raises(Interrupted):
        run(task, corpus, tmp_path, eval_steps=1, max_steps=5, metric_for_best_model="score")
    assert found == [True] * 3


@pytest.mark.parametrize(
    ("options", "step"), [({"eval_steps": 2}, 6), ({"eval_steps": 4, "save_steps": 5}, 5), ({"eval_steps": 5}, 6)]
)
def test_a_failed_write_stops_the_run_and_names_folder_and_model(tmp_path, corpus, options, step):
    """At the next evaluation, checkpoint or end, whichever is first."""
    task, writes = make_task(corpus), []

    def failing():
        writes.append(1)
        if len(writes) == (1 if "save_steps" in options else 2):
            raise OSError(28, "No space left on device")

    task.evaluate = lambda: {"score": float(len(writes))}
    with pytest.raises(TrainingError) as caught:
        run(real_snapshots(task, failing), corpus, tmp_path, metric_for_best_model=None, **options)
    kept = {2: "The model of step 2 is in", 4: "This run has saved no model", 5: "The model of step 5 is in"}
    said = str(caught.value)
    assert said.startswith(f"cannot write to {str(tmp_path)!r} after step {step}: [Errno 28] No space left on device. ")
    assert kept[options["eval_steps"]] in said


@pytest.mark.parametrize("head", [False, True])
def test_random_numbers_are_those_of_runs_of_before(tmp_path, corpus, head):
    """sentence-transformers' module for a head drew its first weights on each save; the writing itself draws none."""
    task = make_task(corpus)
    task.model.keep_head = head
    torch.manual_seed(3)
    write = SimcseTask.snapshot(task)
    after = torch.get_rng_state()
    write(tmp_path)
    assert torch.equal(after, torch.get_rng_state())
    torch.manual_seed(3)
    if head:
        Dense(16, 16)
    assert torch.equal(after, torch.get_rng_state())
