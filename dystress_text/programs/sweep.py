"""Train and evaluate configurations with several seeds, each run in its own process and folder.

    # three temperatures on your own scored pairs and your own search
    dystress sweep --presets own-text --loss "dcl(0.05)" "dcl(0.1)" "dcl(0.2)" \\
        --pairs pairs.csv --retrieval COLLECTION -- --train_file mine.txt
    dystress sweep --table sts --seeds 0 1 2                      # the paper's nine rows
    dystress sweep --table sts controls --seeds 0 1 2 --tasks all # and constants as their controls
    dystress sweep --presets sts-macl paper --seeds 0 -- --max_steps 100

Each --loss replaces the loss of the preset. The last lines compare the configurations with each
other, with the untrained model of the first one and with the lexical baseline (TF-IDF, BM25).

Options after -- go to the training program. The data of the evaluation are checked before the first
run. The same command again runs what is missing and resumes interrupted runs. A failed run does not
stop the others; the exit code is then 1.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.finetuning.presets import TABLES


def make_parser() -> OneLineParser:
    parser = OneLineParser("dystress sweep", __doc__)
    add = parser.add_argument_group("what to train").add_argument
    tables = "sts: the rows of the paper's table; controls: constants; rules: of other papers"
    add("--table", nargs="+", default=[], choices=TABLES, help=tables)
    add(
        "--presets",
        nargs="+",
        default=[],
        metavar="NAME",
        help="presets by name: dystress train --list_presets",
    )
    add(
        "--loss",
        nargs="+",
        default=[],
        metavar="LOSS",
        help="losses that replace that of the preset",
    )
    add(
        "--seeds",
        nargs="+",
        type=int,
        default=[0, 1, 2],
        help="seeds to train each configuration with (default 0 1 2)",
    )
    add = parser.add_argument_group("how").add_argument
    add(
        "--output_dir",
        type=Path,
        default=Path("sweep"),
        help="a folder for each run, and logs/ (default sweep)",
    )
    add(
        "--tasks",
        nargs="+",
        help="sts, transfer, all, names of tasks, or none; default sts, none with --pairs or "
        "--retrieval",
    )
    pairs = "evaluate on your own scored pairs, as dystress evaluate does"
    add("--pairs", nargs="+", default=[], metavar="FILE", help=pairs)
    search = "evaluate search in your own collections"
    add("--retrieval", nargs="+", default=[], type=Path, metavar="FOLDER", help=search)
    add(
        "--baseline",
        metavar="LOSS",
        help="compare the others with this loss or preset; default the first in the tables",
    )
    add(
        "--suite",
        choices=("senteval", "mini"),
        default="senteval",
        help="suite of the evaluation tasks (default senteval)",
    )
    add("--data_dir", help="folder of prepared data, for training and evaluation")
    add(
        "--dry_run",
        action="store_true",
        help="list the runs with their next commands; run nothing",
    )
    return parser


@program("dystress sweep")
def main(argv: list[str]) -> bool:
    """Run the sweep; return whether every run is done."""
    cut = argv.index("--") if "--" in argv else len(argv)
    options = make_parser().parse_args(argv[:cut])
    # imported here because torch would slow down --help
    from dystress_text.programs.planned_runs import sweep

    return sweep(options, argv[cut + 1 :])
