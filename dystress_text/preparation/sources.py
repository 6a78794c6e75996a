"""Where the files of a data set come from: the hub, or a file or folder that the user has."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

from dystress_text.errors import DataError
from dystress_text.files.hub import hub_reachable
from dystress_text.files.whole import sha256_of
from dystress_text.preparation.data_sets import DataSet

_SHA256 = re.compile(r"[0-9a-f]{64}")


def from_hub(entry: DataSet) -> list[Path]:
    """The set's files in huggingface_hub's cache, fetched where they are not there; an interrupted fetch goes on.

    Raises:
        DataError: no network, no such file, no permission, or content that is not what the hub says.
    """
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url

    assert entry.repository is not None
    if not hub_reachable():
        raise DataError(
            f"{entry.name}: the hub cannot be reached; --from FILE_OR_FOLDER takes a copy that lies on this machine"
        )
    paths = []
    try:
        names = HfApi().list_repo_files(entry.repository, repo_type="dataset")
        for pattern in entry.files:
            found = sorted(name for name in names if fnmatch(name, pattern))
            if not found:
                raise DataError(f"{entry.name}: the hub's {entry.repository} has no file {pattern}")
            for name in found:
                path = Path(hf_hub_download(entry.repository, name, repo_type="dataset"))
                stated = get_hf_file_metadata(hf_hub_url(entry.repository, name, repo_type="dataset")).etag or ""
                if _SHA256.fullmatch(stated) and sha256_of(path) != stated:
                    path.resolve().unlink()  # or the next try would find it again
                    raise DataError(f"{entry.name}: {name} is not what the hub says that it is (sha256); try again")
                paths.append(path)
    except DataError:
        raise
    except Exception as error:  # whatever the network, the hub or the file system says
        reason = " ".join(str(error).split())
        raise DataError(f"{entry.name}: {entry.repository} cannot be fetched: {reason}") from error
    return paths


def from_local(entry: DataSet, source: Path) -> list[Path]:
    """The set's files, or its folder, at a place that the user names.

    Raises:
        DataError: they are not there.
    """
    if not source.exists():
        raise DataError(f"--from: {str(source)!r} does not exist")
    if not source.is_dir():
        return [source]
    match entry.name:
        case "wiki1m":
            patterns = [["wiki1m_for_simcse.txt"], ["wiki1m/wiki1m_for_simcse.txt"], ["wiki1m*.txt*"]]
        case "senteval" | "stsb":
            if (source / "STS").is_dir():
                return [source]
            patterns = [
                ["senteval"],
                ["downstream"],
                ["SentEval/data/downstream"],
                ["data/downstream"],
                ["senteval.tar*"],
            ]
        case _:
            patterns = [[f"{place}{pattern}" for pattern in entry.files] for place in ("", f"{entry.name}*/")]
            patterns.append([f"{entry.name}*/{Path(pattern).name}" for pattern in entry.files])
    for group in patterns:
        found = [sorted(source.glob(pattern)) for pattern in group]
        if all(found):
            return [path for paths in found for path in paths][: 1 if len(group) == 1 else None]
    looked_for = ", ".join(group[0] for group in patterns)
    raise DataError(f"--from: nothing of {entry.name} in {str(source)!r}; looked for {looked_for}")
