"""Where the files of a data set come from: the hub, or a file or folder that the user has."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

from dystress_text.errors import DataError, reason_of
from dystress_text.files.hub import hub_reachable
from dystress_text.files.whole import sha256_of
from dystress_text.preparation.data_sets import DataSet


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
                if re.fullmatch("[0-9a-f]{64}", stated) and sha256_of(path) != stated:
                    path.resolve().unlink()  # or the next try would find it again
                    raise DataError(f"{entry.name}: {name} is not what the hub says that it is (sha256); try again")
                paths.append(path)
    except DataError:
        raise
    except Exception as error:  # whatever the network, the hub or the file system says
        raise DataError(f"{entry.name}: {entry.repository} cannot be fetched: {reason_of(error)}") from error
    return paths


def from_local(entry: DataSet, source: Path) -> list[Path]:
    """The set's files at a place that the user names; for SentEval the folder or archive that holds its tasks.

    Raises:
        DataError: they are not there.
    """
    if source.is_file() or source.is_fifo():
        return [source]
    if entry.folder == "senteval" and (tasks := folder_of_tasks(source)) is not None:
        return [tasks]
    groups = [[place + pattern for pattern in entry.files] for place in ("", f"{entry.name}*/")]
    groups.append([f"{entry.name}*/{Path(pattern).name}" for pattern in entry.files])
    groups += [[f"{entry.name}*.txt*"], [f"{entry.folder}*.tar*"]]
    for group in groups:
        found = [sorted(source.glob(pattern)) for pattern in group]
        if all(found):
            return [path for paths in found for path in paths]
    raise DataError(f"{entry.name}: not in {str(source)!r}; looked for {', '.join(group[0] for group in groups)}")


def folder_of_tasks(folder: Path) -> Path | None:
    """The folder, at most three levels down, that holds SentEval's tasks: its STS among them."""
    found = (path.parent for depth in range(4) for path in sorted(folder.glob("*/" * depth + "STS")) if path.is_dir())
    return next(found, None)
