"""An adaptation from a user's file to the verdict: check, split, train, choose, judge, and write what may be used."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from dystress_text.adaptation.checks import check_directions, check_language
from dystress_text.adaptation.choice import Chooser, Loaded, choose_share
from dystress_text.adaptation.measures import measure
from dystress_text.adaptation.questions import Questions
from dystress_text.adaptation.settings import AdaptSettings, Recipe
from dystress_text.adaptation.verdict import Bars, Outcome, Verdict, compare, decide
from dystress_text.encoders.saved_model import load_saved
from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import EncodedOnce
from dystress_text.evaluation.evaluators import Evaluation
from dystress_text.evaluation.random_pairs import random_pairs
from dystress_text.files.whole import versions, write_json
from dystress_text.simcse.run import TextRun, build_text_run
from dystress_text.simcse.settings import RunSettings
from dystress_text.simcse.start import load_start
from dystress_text.training.paper_row import PAPER
from dystress_text.training.run import run
from dystress_text.training.run_folder import (
    LOG,
    TRAINING,
    VERDICT,
    check_output,
    prepare_output,
    read_record,
    write_record,
)

Publish = Callable[[Path, Mapping[str, Any]], str | None]  # writes card and page; returns a line about them

TEXTS_A_SENTENCE = 8  # training on one costs as encoding these: two views, each with gradients, and the guide's

_OPTIONS = {"--train_file": "FILE", "--model_name_or_path": "--base", "--model": "--base"}


def adapt(
    settings: AdaptSettings,
    publish: Publish = lambda output, record: None,
    recipe: Recipe = Recipe(),  # noqa: B008  # it does not change
    bars: Bars = Bars(),  # noqa: B008
) -> dict[str, Any]:
    """Adapt a model to sentences, and write it or its base with a verdict.

    Args:
        settings: the user's options.
        publish: called when the model, ``run.json`` and ``verdict.json`` are there.
        recipe: of the training.
        bars: of the verdict.

    Returns:
        What ``verdict.json`` holds.

    Raises:
        UserError: text, base or options cannot be used; nothing is then written. Or the training failed.
    """
    with _named_as_here():
        output = Path(settings.output_dir)
        _check_base_stays(settings)
        check_output(output, settings.engine(output))
        _check_resumed(output, settings)
        questions = Questions.read(settings)
        _say(questions.words())
        training = output / TRAINING
        run_settings = settings.run(recipe, training, len(questions.split.train))
        chooser = Chooser(questions.choosing, bars)
        build = partial(_build, settings, run_settings, recipe, questions, chooser, output)
        record = run(run_settings.engine, build)
        base, tuned = _base(settings, training), Loaded(*load_saved(training))
        for each in (base, tuned):
            each.model.to("cuda" if torch.cuda.is_available() else "cpu")
        _say(f"step 3 of 4: choosing how much of the trained weights to take, of {len(recipe.alphas)} shares")
        points = choose_share(base, tuned, recipe.alphas, chooser)
        _say("step 4 of 4: judging on sentences that chose nothing")
        before, after = (measure(questions.judging, each.encode) for each in (base, tuned))
        verdict = decide(compare(before, after, bars, settings.seed), bars)
        found = _found(settings, recipe, questions, record, points, verdict)
        shipped = base if found["shipped"] == "base" else tuned
        _write(output, shipped, record, found, questions)
        _say(f"\n{verdict.words()}\n")
        _say(str(found["about"]))
        published = publish(output, record)
        if published is not None:
            _say(published)
        return found


def in_words(outcome: Outcome, adapted: bool, chosen: Mapping[str, Any]) -> str:
    """Which model was written, as a sentence.

    Args:
        outcome: of the verdict.
        adapted: whether it is the adapted one.
        chosen: its ``step`` and its share ``alpha`` of the trained weights.
    """
    if not adapted:
        return "The model that was written is the base, unchanged; --keep_anyway writes the adapted one."
    though = "" if outcome == Outcome.WIN else ", though it did not win (--keep_anyway)"
    return (
        f"The model that was written is the adapted one{though}: {chosen['alpha']:.0%} of the weights of step "
        f"{chosen['step']:,} and {1 - chosen['alpha']:.0%} of the base's."
    )


def _check_base_stays(settings: AdaptSettings) -> None:
    """The base is read again when all is trained, and a run that is replaced takes its model with it."""
    base = Path(settings.base)
    if base.is_dir() and base.resolve().is_relative_to(Path(settings.output_dir).resolve()):
        raise UserError(f"--output_dir: {settings.output_dir!r} holds the base, which must stay; name another folder")


def _check_resumed(output: Path, settings: AdaptSettings) -> None:
    before = read_record(output)
    if settings.engine(output).resumes and before and "adaptation" not in before:
        raise UserError(f"--resume_from_checkpoint: {str(output)!r} holds a run of dystress train, not of adapt")


def _build(
    settings: AdaptSettings,
    run_settings: RunSettings,
    recipe: Recipe,
    questions: Questions,
    chooser: Chooser,
    output: Path,
    accelerator: Accelerator,
) -> TextRun:
    """The training run; the base is checked and measured, and only then the output folder is made."""
    if accelerator.num_processes > 1:
        raise UserError("an adaptation is one process; start it without accelerate launch")
    built = build_text_run(run_settings, accelerator, lambda *_: None, questions.split.train, Evaluation([chooser]))
    check_language(questions.sentences, built.start.tokenizer)
    _say("step 1 of 4: measuring the base")
    start = time.perf_counter()
    base = EncodedOnce(Loaded(built.start.model, built.start.tokenizer).encode)  # in fp32, as the judge will
    check_directions(base(questions.choosing.sentences))
    chooser.base = measure(questions.choosing, base)
    engine = settings.engine(output)
    if not (engine.resumes and (output / TRAINING).is_dir()):
        prepare_output(output, engine, built.record | {"adaptation": {}})
    seconds = (time.perf_counter() - start) / len(questions.choosing.texts)
    left = seconds * texts_left(run_settings, recipe, questions)
    minutes = max(1, round(left / 60))
    _say(f"step 2 of 4: training; with all that follows it takes about {minutes} min, less if it stops early")
    return built


def texts_left(run_settings: RunSettings, recipe: Recipe, questions: Questions) -> int:
    """The work after the base is measured, as a number of texts to encode."""
    steps, choosing = run_settings.engine.max_steps, len(questions.choosing.texts)
    assert steps is not None
    trained = steps * run_settings.engine.train_batch_size * TEXTS_A_SENTENCE
    measured = (recipe.evaluations + len(recipe.alphas)) * choosing
    return trained + measured + 2 * len(questions.judging.texts)


def _base(settings: AdaptSettings, training: Path) -> Loaded:
    """The base as it is without training, in the form in which models are saved."""
    given = {"pooler_type"} if settings.pooler_type else set[str]()
    start = load_start(settings.text().model_name_or_path, settings.text(), given)
    start.model.save(training / "base", start.tokenizer)
    return Loaded(*load_saved(training / "base"))


def _found(
    settings: AdaptSettings,
    recipe: Recipe,
    questions: Questions,
    record: Mapping[str, Any],
    points: Mapping[float, float],
    verdict: Verdict,
) -> dict[str, Any]:
    """The content of ``verdict.json``."""
    adapted = verdict.outcome == Outcome.WIN or settings.keep_anyway
    chosen = {"step": record["best_step"], "steps": record["steps"], "alpha": next(iter(points)),
              "points": {f"{alpha:g}": points[alpha] for alpha in sorted(points)}}  # fmt: skip
    return verdict.record() | {
        "shipped": "adapted" if adapted else "base",
        "about": in_words(verdict.outcome, adapted, chosen),
        "base": settings.base if not Path(settings.base).is_dir() else Path(settings.base).resolve().name,
        "file": {"name": Path(settings.file).name, "sha256": record["corpus"]["sha256"]},
        "seed": settings.seed,
        "split": questions.account(),
        "chosen": chosen,
        "recipe": asdict(recipe) | {
            name: record["settings"][name] for name in (
                "learning_rate", "max_steps", "train_batch_size", "max_seq_length", "pooler_type", "dropout",
            )
        } | {"temperature": record["temperature"]},
        "versions": versions("sentence-transformers", "tokenizers"),
    }  # fmt: skip


def _write(
    output: Path, shipped: Loaded, record: dict[str, Any], found: Mapping[str, Any], questions: Questions
) -> None:
    """Write model, records and log, and remove what was not judged; complete ``record``."""
    source = str(found["file"]["name"])
    here = {"output_dir": str(output), "interpolate": found["chosen"]["alpha"], "preset": None}
    record["settings"] = record["settings"] | here
    record.pop(PAPER, None)  # an adaptation stands for no row of the paper
    record["adaptation"] = dict(found)
    try:
        shipped.model.save(output, shipped.tokenizer)
        held_out = questions.split.held_out.sentences
        random_pairs(shipped.encode(held_out).numpy(), source, held_out=True).save(output)
        write_json(output / VERDICT, found)
        shutil.move(output / TRAINING / LOG, output / LOG)
        write_record(output, record)
    except OSError as error:
        raise UserError(f"--output_dir: cannot write to {str(output)!r}: {error.strerror or error}") from error
    shutil.rmtree(output / TRAINING, ignore_errors=True)


@contextmanager
def _named_as_here() -> Iterator[None]:
    """Errors name the options of this program in place of those of the programs that share its parts."""
    try:
        yield
    except UserError as error:
        words = re.sub("|".join(rf"{name}\b" for name in _OPTIONS), lambda found: _OPTIONS[found[0]], str(error))
        error.args = (words,)
        raise


def _say(line: str) -> None:
    print(line, flush=True)
