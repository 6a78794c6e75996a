"""Data that are prepared, on a hub on loopback, or nowhere."""

import socket
import tarfile
import time
from pathlib import Path

import pytest
from hub_server import hub_server, tar_of, with_hub

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.finetuning.texts import wiki1m
from dystress_text.io import paths
from dystress_text.io.hub import HUB_REPOSITORY
from dystress_text.io.paths import cache_root, data_root

NAME = "./STS/STSBenchmark/sts-dev.csv"
STSB = b"g\tf\ty\t1\t3.5\tone\ttwo\ng\tf\ty\t2\t5\tthree\tfour\n"


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE])
def test_stsb_from_the_archive_on_the_hub(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        files[HUB_REPOSITORY] = {"senteval.tar": tar_of({NAME: STSB}, kind)}
        if kind == tarfile.REGTYPE:
            assert eval_pairs("stsb_dev").first == ("one", "three")
        else:
            with pytest.raises(UserError, match=r"\A[^\n]+\Z"):
                eval_pairs("stsb_dev")


def test_unreachable_hub_is_reported_at_once(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with with_hub("http://no.such.host.invalid", tmp_path / "hf"):
        begin = time.monotonic()
        with pytest.raises(UserError):
            wiki1m()
        assert time.monotonic() - begin < 10  # huggingface_hub itself tries for half a minute


def test_prepared_data_come_first(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path))
    file = tmp_path / "senteval" / NAME
    file.parent.mkdir(parents=True)
    file.write_bytes(STSB)
    assert len(eval_pairs("stsb_dev")) == 2


def test_the_home_folder_in_variables(monkeypatch):
    monkeypatch.setenv("DYSTRESS_DATA", "~/data")
    monkeypatch.setenv("DYSTRESS_CACHE", "~/cache")
    assert data_root() == Path.home() / "data"
    assert cache_root() == Path.home() / "cache"


def test_data_root_of_an_installed_package(tmp_path, monkeypatch):
    monkeypatch.delenv("DYSTRESS_DATA", raising=False)
    monkeypatch.setattr(paths, "CHECKOUT", None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_root() == tmp_path / "dystress-text"
