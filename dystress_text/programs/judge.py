"""Judge which documents are relevant to your queries, then compare models by that.

    dystress judge --model A B --train_file mine.txt --queries queries.txt --output judged

For each query it shows the first five documents of each model and of BM25, shuffled and without
names. Press r for relevant, n for not, s to skip, u to undo, q to quit. Each key is saved at once;
to go on later, run the same command again. At the end it prints the table of ``dystress evaluate
--retrieval judged``. Only what was shown is judged, so use the folder for these models alone.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, one_line, program
from dystress_text.errors import ParameterError

WIDTH = 79
DOCUMENT_LINES = 14  # with the rest they fill a terminal of 24


def make_parser() -> OneLineParser:
    parser = OneLineParser("dystress judge", __doc__)
    add = parser.add_argument
    help = "sentence-transformers models to compare: folders or hub names"
    add("--model", nargs="+", required=True, help=help)
    help = "documents: a text a line, or tables, as --train_file of dystress train"
    add("--train_file", nargs="+", required=True, metavar="FILE", help=help)
    help = "columns of a table of documents; default title and text"
    add("--text_columns", nargs="+", metavar="NAME", help=help)
    add("--queries", nargs=1, required=True, metavar="FILE", help="a query a line, or a table")
    help = "folder of the judgements, a collection in BEIR's layout"
    add("--output", type=Path, required=True, metavar="FOLDER", help=help)
    help = "file with r, n or s for each document that is left, read in place of keys"
    add("--answers", type=Path, metavar="FILE", help=help)
    return parser


@program("dystress judge", "interrupted; the answers are saved. Run the same command to go on")
def main(argv: list[str]) -> None:
    options = make_parser().parse_args(argv)
    if options.answers is None and not sys.stdin.isatty():
        raise ParameterError("answers", "required where the input is not a terminal")
    # imported here because torch would slow down --help
    import click

    from dystress_text.evaluation.judging import ANSWERS, RELEVANT, open_judging
    from dystress_text.evaluation.results import RESULTS
    from dystress_text.io.lock import LOCK, locked
    from dystress_text.programs.evaluate import evaluate

    documents = _read("train_file", options.train_file, options.text_columns)
    queries = _read("queries", options.queries)
    folder = options.output.resolve()
    with locked(folder.with_name(f".{folder.name}{LOCK}")):
        judging = open_judging(folder, options.model, queries, documents)
        if options.answers is not None:
            keys = "".join(options.answers.read_text(errors="replace").split())
            if len(keys) != judging.left or not set(keys) <= set(ANSWERS):
                reason = f"{judging.left} documents are left; expected r, n or s for each"
                raise ParameterError("answers", reason)
            judging.save(folder, judging.answers + keys)
        key = None
        while judging.left and key not in ("q", ""):
            query, document = judging.shown[len(judging.answers)]
            print("\n" + WIDTH * "-")
            print(f"query {query + 1} of {len(queries)}; documents left: {judging.left}")
            for text, lines in ((queries[query], 4), (documents[document], DOCUMENT_LINES)):
                print(textwrap.fill(one_line(text), WIDTH, max_lines=lines), end="\n\n")
            print("r relevant, n not, s skip, u undo, q quit: ", end="", flush=True)
            key = None
            try:
                key = click.getchar()
            finally:  # ends the line of an interruption, too
                print(ANSWERS.get(key or "", ""))
            if key in ANSWERS:
                judging.save(folder, judging.answers + key)
            elif key == "u":
                judging.save(folder, judging.answers[:-1])
    if judging.left:
        print(f"documents left: {judging.left}; the same command goes on")
    elif RELEVANT not in judging.answers:
        print("no document is relevant, so there is nothing to compare")
    else:
        evaluate(options.model, retrieval=options.output, output=options.output / RESULTS)


def _read(parameter: str, files: list[str], columns: list[str] | None = None) -> list[str]:
    """Return the distinct texts in some files."""
    from dystress_text.finetuning.settings import TextSettings
    from dystress_text.finetuning.texts import training_text

    try:
        text = training_text(TextSettings(train_file=files, text_columns=columns, views="crop"))
        report = text.report()
        texts = list(dict.fromkeys(sentence for _, sentence in text.read(report)))
    except ParameterError as error:
        raise ParameterError(parameter, str(error).partition(": ")[2]) from error
    print(f"{parameter}: {report.summary()}")
    if not texts:
        raise ParameterError(parameter, "has no text")
    return texts
