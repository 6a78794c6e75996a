"""Find the constant temperature that the loss of a run amounts to, or draw losses.

    dystress audit out/            # a run of text or images with --log_similarity
    dystress audit "dcl(cosine(0.1, 0.2))" "dcl(0.1)" --figure curve.png

The first command prints the audit and writes ``audit.json`` into the run's folder.
The second one draws temperature and logit over the similarity of a pair. To audit a model and
sentences without training, train a few steps with ``--learning_rate 1e-12``.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.cli.extras import require
from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.io.atomic import write_json
from dystress_text.training import run_folder


def make_parser() -> OneLineParser:
    parser = OneLineParser("dystress audit", __doc__)
    help = "folder of a run with --log_similarity, or with --figure losses"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=help)
    help = "draw the losses into this file (.png, .pdf, .svg)"
    parser.add_argument("--figure", type=Path, metavar="FILE", help=help)
    return parser


def _draw(texts: list[str], file: Path) -> None:
    require("plots", "a figure")
    from dystress_text.analysis.page import draw_losses, style
    from dystress_text.losses.objectives import parse_loss

    losses = {text: parse_loss(text, own_classes=True) for text in texts}
    with style():
        figure = draw_losses(losses, (1, 2), (4.75, 2.2 + 0.15 * len(losses)))
        if figure is None:
            raise UserError("nothing to draw: no temperature depends on the similarity alone")
        figure.savefig(file)
    print(f"{file} shows the losses.")


@program("dystress audit")
def main(argv: list[str]) -> None:
    options = make_parser().parse_args(argv)
    if options.figure is not None:
        try:
            return _draw(options.runs, options.figure)
        except (OSError, ValueError, TypeError) as error:  # of the file, its ending, or a loss
            raise ParameterError("figure", reason_of(error)) from error
    if len(options.runs) > 1:
        raise ParameterError(
            "figure", "required to draw several losses; without it name a single run"
        )
    folder = Path(options.runs[0])
    # imported here because torch would slow down --help
    from dystress_text.analysis.audit import audit_log, summary

    record = run_folder.find_record(folder)
    if record.program not in run_folder.PROGRAMS:
        raise UserError(f"no run in {str(folder)!r}; --figure draws a loss")
    log = folder / run_folder.SIMILARITY_LOG
    if not log.is_file():
        raise UserError(f"{str(folder)!r} has no {log.name}: train with --log_similarity")
    data = "images" if record.program == run_folder.IMAGE_PROGRAM else "sentences"
    try:
        audit = audit_log(list(run_folder.read_steps(log)), log, record.loss, data)
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{log} is damaged: {reason_of(error)}") from error
    print(summary(audit), flush=True)
    try:
        content = {**vars(audit), "equivalent": audit.equivalent}
        write_json(folder / run_folder.AUDIT, content)
    except OSError as error:
        raise UserError(f"cannot write to {str(folder)!r}: {reason_of(error)}") from error
    print(f"{folder / run_folder.AUDIT} holds the figures.")
