"""What a temperature rule amounted to on the data of a run: the nearest constant, and how near it
is.

    dystress audit out/            # of a run of text or images with --log_similarity

It prints a sentence and a table, and writes ``audit.json`` into the run's folder.
For a model and sentences without training: a run of a few steps at ``--learning_rate 1e-12``.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.cli.text_table import lay_out
from dystress_text.errors import UserError, reason_of
from dystress_text.files.whole import write_json
from dystress_text.training import run_folder


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress audit", __doc__)
    help = "folder of a run with --log_similarity"
    parser.add_argument("run", type=Path, metavar="RUN", help=help)
    return parser


@program("dystress audit")
def main(words: list[str]) -> None:
    """The program."""
    folder: Path = make_parser().parse_args(words).run
    # here, so that help does without torch
    from dystress_text.laboratory.audit import Audit, in_words, record_of, table, windows_of

    if run_folder.read_record(folder).get("program") not in run_folder.PROGRAMS:
        raise UserError(f"no run in {str(folder)!r}")
    record = run_folder.read_run(folder)
    log = folder / run_folder.SIMILARITY_LOG
    if not log.is_file():
        raise UserError(f"{str(folder)!r} has no {log.name}: train with --log_similarity")
    windows, negatives = windows_of(list(run_folder.read_steps(log)), log)
    data = "images" if record.program == run_folder.IMAGE_PROGRAM else "sentences"
    audit = Audit(str(folder), record.loss, data, negatives, windows)
    lines = [*in_words(audit), f"{audit.loss}: {audit.source}", lay_out(table(audit))]
    print(*lines, sep="\n", flush=True)
    try:
        write_json(folder / run_folder.AUDIT, record_of(audit))
    except OSError as error:
        raise UserError(f"cannot write to {str(folder)!r}: {reason_of(error)}") from error
    print(f"{folder / run_folder.AUDIT} has the figures.")
