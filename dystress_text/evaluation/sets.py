"""The sets of scored pairs that training knows by name."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dystress_text.errors import UserError
from dystress_text.evaluation.sts import (
    STS_SUBSETS,
    StsPairs,
    concatenate,
    read_sick,
    read_sts_benchmark,
    read_sts_year,
)
from dystress_text.files.hub import published_file
from dystress_text.files.places import cache_root, data_root, embedded

STSB_DEV = Path("STS") / "STSBenchmark" / "sts-dev.csv"


def _whole_year(folder: Path, name: str) -> StsPairs:
    return concatenate(name, list(read_sts_year(folder, name).values()))


_STSB, _SICK = Path("STS") / "STSBenchmark", Path("SICK")


_SETS: dict[str, tuple[Path, Callable[[Path], StsPairs]]] = {  # where they lie among SentEval's files, and their reader
    "sickr_dev": (_SICK / "SICK_trial.txt", partial(read_sick, name="SICK-R dev")),
    **{name.lower(): (Path("STS") / f"{name}-en-test", partial(_whole_year, name=name)) for name in STS_SUBSETS},
    "stsb_test": (_STSB / "sts-test.csv", partial(read_sts_benchmark, name="STS-B test")),
    "sickr_test": (_SICK / "SICK_test_annotated.txt", partial(read_sick, name="SICK-R test")),
}


PREPARED_SETS = ("stsb_dev", *_SETS)


EVAL_SETS = ("stsb_dev", "mini_sts", "none", *_SETS)


def eval_pairs(name: str, data_dir: str | Path | None = None) -> StsPairs | None:
    """Pairs that training evaluates on: those of a name in :data:`EVAL_SETS`, or None for ``none``.

    Of STS12 to STS16 it is all subsets together ("all").

    Raises:
        UserError: unknown name, or the files are nowhere or damaged.
    """
    if name == "none":
        return None
    if name == "mini_sts":
        return read_sts_benchmark(embedded("senteval/STS/MiniSTS/mini-sts.csv"), "mini-STS")
    if name in _SETS:
        place, reader = _SETS[name]
        path = data_root(data_dir) / "senteval" / place
        if not path.exists():
            raise UserError(
                f"--eval_set: no {name}: {path} does not exist; prepare the data (python data/prepare.py senteval)"
            )
        return reader(path)
    if name != "stsb_dev":
        raise UserError(f"--eval_set: unknown set {name!r}; known are {', '.join(EVAL_SETS)}")
    prepared = data_root(data_dir) / "senteval" / STSB_DEV
    if not prepared.is_file():
        prepared = published_file(
            "senteval.tar",
            _stsb_dev_of,
            f"no STS-B dev set: {prepared} does not exist. Three ways on: prepare the data (python data/prepare.py "
            "stsb); --eval_set mini_sts or none; or --preset quickstart",
        )
    return read_sts_benchmark(prepared, "STS-B dev")


def _stsb_dev_of(archive: str) -> Path:
    """Copy the STS-B dev file out of SentEval's archive into the cache; nothing else is unpacked."""
    target = cache_root() / "stsb" / STSB_DEV.name
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and Path(member.name).parts[-3:] == STSB_DEV.parts:
                content = tar.extractfile(member)
                assert content is not None  # a regular file
                target.parent.mkdir(parents=True, exist_ok=True)
                staging = target.with_suffix(f".{os.getpid()}")
                staging.write_bytes(content.read())
                staging.replace(target)
                return target
    raise UserError(f"{archive} holds no {STSB_DEV}")
