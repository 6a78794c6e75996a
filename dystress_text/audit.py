"""Find which constant temperature a rule amounts to, and how near: from a run's log, or on sentences without training.

    dystress audit out                                    # a run with --log_similarity, of text or images
    dystress audit out --sentences mine.txt               # its model and its rule on other sentences
    dystress audit NAME --sentences mine.txt --tau_min 0.02 --tau_max 0.05    # any model, any rule
    dystress audit NAME --sentences mine.txt --temperature cosine --batch_size 512

The distance is the share of the negatives' gradient that must be moved from pairs to other pairs to turn the rule's
into the constant's; the scale of the whole gradient is left out, as Adam and clipping take it out. The audit of a run
is written into its folder: audit.json and, with the plots extra, audit.png and audit.svg. With --sentences they are
written to --output alone. Sentences are one a line (.gz, .xz and .bz2 too; - is standard input), at most 10,000 drawn
at random; the model makes two dropout views of each, as in training.
"""

from __future__ import annotations

import sys
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import transformers

from dystress_text.cli.command_line import exit_code
from dystress_text.cli.extras import require
from dystress_text.cli.options import SettingsParser
from dystress_text.cli.text_table import lay_out
from dystress_text.core.registry import TEMPERATURES, Temperature
from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.files.whole import write_json
from dystress_text.report.audit import Audit, in_words, record_of, table, windows_of
from dystress_text.simcse.objective import TEXT, loss_of_record, temperature_of_record
from dystress_text.training.build_loss import build_objective
from dystress_text.training.run_folder import (
    AUDIT,
    IMAGE_PROGRAM,
    PROGRAMS,
    SIMILARITY_LOG,
    TEXT_PROGRAM,
    read_record,
    read_steps,
)
from dystress_text.training.settings import LossSettings

_ENCODER = ("pooler_type", "max_seq_length", "dropout")  # options of TextSettings
Found = tuple[Audit, Temperature | None, bool]  # with the rule where it can be built, and whether it is detached


def make_parser() -> SettingsParser:
    """The program's options."""
    parser = SettingsParser(
        [LossSettings], prog="dystress audit", description=__doc__, formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.usage = "%(prog)s RUN | %(prog)s MODEL --sentences FILE [--OPTION VALUE ...]"
    add = parser.add_argument
    add("model", metavar="RUN", help="folder of a run; with --sentences, folder or name of a model")
    add("--sentences", type=Path, metavar="FILE", help="audit on these sentences, without training")
    add("--batch_size", type=int, help="sentences: in a batch, which has the negatives (default the run's, else 64)")
    add("--pooler_type", help="sentences: of the encoder (default the run's or the model's, else cls)")
    add("--max_seq_length", type=int, help="sentences: most tokens of one (default the run's, else 32)")
    add("--dropout", type=float, help="sentences: every dropout rate of the encoder (default the run's, else its own)")
    add("--output", type=Path, metavar="FOLDER", help="where the files go (default the run's folder)")
    return parser


def _parse(argv: Sequence[str]) -> tuple[LossSettings, Namespace, set[str]]:
    """The rule, the other options, and the names of the options that are given."""
    parser = make_parser()
    loss, options, unknown = parser.parse_args_into_dataclasses(
        list(argv), return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        parser.error(f"unknown option {' '.join(unknown)}")
    words = (word.removeprefix("--").split("=")[0].replace("-", "_") for word in argv if word.startswith("--"))
    return loss, options, {word.removeprefix("no_") for word in words}


def _of_run(folder: Path, given: set[str]) -> Found:
    """The audit of a run's log."""
    record = read_record(folder)
    if record.get("program") not in PROGRAMS:
        raise UserError(f"no run in {str(folder)!r}; a model that is none needs --sentences")
    for name in given - {"output"}:
        raise ParameterError(name, "has no effect without --sentences: the rule is the run's")
    log = folder / SIMILARITY_LOG
    if not log.is_file():
        raise UserError(f"{str(folder)!r} has no {SIMILARITY_LOG}: train with --log_similarity, or give --sentences")
    windows, negatives = windows_of(list(read_steps(log)), log)
    data = "images" if record["program"] == IMAGE_PROGRAM else "sentences"
    audit = Audit(str(folder), str(record["temperature"]), str(record["objective"]), data, negatives, windows)
    return audit, _rule_of(record), record["settings"].get("detach_temperature", True)


def _rule_of(record: Mapping[str, Any]) -> Temperature | None:
    """The rule of a run, if it can be built from its record."""
    try:
        if record["program"] == TEXT_PROGRAM:
            return temperature_of_record(record)
        kinds = {kind.__name__: kind for kind in TEMPERATURES.values()}
        return kinds[record["temperature"].partition("(")[0]](**record["temperature_parameters"])
    except (KeyError, TypeError, ValueError, AttributeError, UserError):
        return None


def _of_sentences(loss: LossSettings, options: Namespace, given: set[str]) -> Found:
    """The audit on sentences: with the rule that is given, else with that of the model's run, else the default."""
    from dystress_text.report.audit_sentences import drawn_sentences, log_of_sentences  # slow to import

    record = read_record(Path(options.model))
    settings = record.get("settings", {}) if record.get("program") == TEXT_PROGRAM else {}
    if settings and not given & {field.name for field in fields(LossSettings)}:
        loss = loss_of_record(record)
    batch_size = options.batch_size or settings.get("train_batch_size", 64)
    if batch_size < 2:
        raise ParameterError("batch_size", f"must be at least 2, got {batch_size}")
    encoder = {name: settings[name] for name in _ENCODER if name in settings}
    encoder |= {name: getattr(options, name) for name in _ENCODER if getattr(options, name) is not None}
    objective = build_objective(loss, TEXT)
    sentences = drawn_sentences(options.sentences)
    if len(sentences) < 2:
        raise ParameterError("sentences", f"two distinct sentences are needed, got {len(sentences)}")
    lines = log_of_sentences(options.model, encoder, given, sentences, objective, batch_size)
    windows, negatives = windows_of(lines, options.sentences)
    source = f"{options.model} on {len(sentences):,} sentences of {options.sentences}, batches of {batch_size}"
    rule = objective.temperature
    audit = Audit(source, repr(rule), type(objective).__name__, "sentences", negatives, windows)
    return audit, rule, loss.detach_temperature


def _write(found: Found, folder: Path) -> str:
    """Write the files of an audit, and return a line about them."""
    record, *pictures = (folder / name for name in AUDIT)
    audit, rule, detached = found
    if rule is not None and (rule.needs_progress or rule.needs_mean_positive):
        rule = None  # its gradient depends on more than the similarity
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(record, record_of(audit))
        try:
            require("plots", "a figure")
        except UserError as error:
            return f"{record} has the figures; no picture: {error}"
        from dystress_text.report.audit_drawing import draw_audit
        from dystress_text.report.plots import save

        for picture in pictures:
            save(draw_audit(audit, rule, detached), picture)
    except OSError as error:
        raise ParameterError("output", f"cannot write to {str(folder)!r}: {reason_of(error)}") from error
    return f"{record} has the figures, {pictures[0]} shows them."


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def work() -> bool:
        loss, options, given = _parse(sys.argv[1:] if argv is None else argv)
        of_run = options.sentences is None
        found = _of_run(Path(options.model), given) if of_run else _of_sentences(loss, options, given)
        print("\n".join(in_words(found[0])))
        print(f"{found[0].rule}, {found[0].objective}: {found[0].source}")
        print(lay_out(table(found[0])), flush=True)
        folder = options.output or (Path(options.model) if of_run else None)
        if folder is not None:
            print(_write(found, folder))
        return True

    return exit_code("dystress audit", work)


if __name__ == "__main__":
    sys.exit(main())
