"""The folders of data and caches on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dystress_text.errors import ParameterError, UserError

PACKAGE = Path(__file__).resolve().parents[1]
# None: installed from a wheel
CHECKOUT = PACKAGE.parent if (PACKAGE.parent / "pyproject.toml").is_file() else None
EMBEDDED = PACKAGE / "embedded"  # the small model and the small evaluation sets
# the small model's folder there, and its name wherever a model is named
EMBEDDED_MODEL = "bert-mini-wiki"
_OURS = {EMBEDDED_MODEL: "the small encoder of the package"}


def data_root(data_dir: str | Path | None = None) -> Path:
    """Return the folder of prepared data.

    It is the argument, else ``$DYSTRESS_DATA``, else ``data/prepared`` of the checkout. Without a
    checkout it is ``dystress-text`` in ``$XDG_DATA_HOME``, else in ``~/.local/share``.
    """
    named = data_dir or os.environ.get("DYSTRESS_DATA")
    if named:
        return Path(named)
    if CHECKOUT is not None:
        return CHECKOUT / "data" / "prepared"
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "dystress-text"


def model_path(name: str) -> str:
    """Return a model's folder or name on the hub; ``bert-mini-wiki`` is in the package."""
    return str(EMBEDDED / name) if name == EMBEDDED_MODEL else name


def model_name(path: str) -> str:
    """Return the path as it is, but the small model's name for any path of its folder.

    So nothing is written there.
    """
    return EMBEDDED_MODEL if Path(path).resolve() == EMBEDDED / EMBEDDED_MODEL else path


def refuse_folder(parameter: str, model: str, ours: Mapping[str, str] = _OURS) -> None:
    """Refuse a name of ours that is also a local folder; ``ours`` has more of them."""
    what = {**_OURS, **ours}.get(model)
    if what and Path(model).is_dir():
        reason = f"{model!r} is {what} and a folder; ./{model} is the folder"
        raise ParameterError(parameter, reason)


def cache_root() -> Path:
    """Return ``$DYSTRESS_CACHE``, else ``dystress-text`` in the user's cache folder."""
    configured = os.environ.get("DYSTRESS_CACHE")
    if configured:
        return Path(configured)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "dystress-text"


def cache_error(folder: Path, error: OSError) -> UserError:
    """The error for a folder of the cache that cannot be created or written."""
    return UserError(
        f"cannot write to the cache {str(folder)!r}: {error.strerror}; "
        "the environment variable DYSTRESS_CACHE names another place"
    )


def revision() -> str | None:
    """The commit of the checkout; None where the package is installed, or git is not."""
    if CHECKOUT is None:
        return None
    try:
        command = ["git", "-C", str(CHECKOUT), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
