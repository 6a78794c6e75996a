"""Finding data: prepared, embedded, from a hub on loopback, or nowhere."""

import socket
import tarfile
import time

import pytest
from hub_server import hub_server, tar_of, with_hub

from dystress_text.data.texts import wiki1m
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import eval_pairs
from dystress_text.io import paths
from dystress_text.io.hub import HUB_REPOSITORY
from dystress_text.io.paths import data_root

NAME = "./STS/STSBenchmark/sts-dev.csv"
STSB = b"g\tf\ty\t1\t3.5\tone\ttwo\ng\tf\ty\t2\t5\tthree\tfour\n"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that this process knows; its files of SimCSE's data set."""
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("DYSTRESS_CACHE", str(tmp_path / "cache"))
    with hub_server() as (address, files, _), with_hub(address, tmp_path / "hf"):
        yield files.setdefault(HUB_REPOSITORY, {})


def test_stsb_dev_comes_out_of_the_hubs_archive(hub):
    hub["senteval.tar"] = tar_of({"./STS/other.txt": b"x", NAME: STSB})
    assert eval_pairs("stsb_dev").first == ("one", "three")


@pytest.mark.parametrize(
    "content", [None, tar_of({NAME: STSB})[:520], tar_of({NAME: STSB}, tarfile.SYMTYPE)]
)
def test_a_bad_archive_is_one_line(hub, content):
    if content is not None:
        hub["senteval.tar"] = content
    with pytest.raises(UserError, match="Three ways on") as caught:
        eval_pairs("stsb_dev")
    assert "\n" not in str(caught.value)


def test_no_hub_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path / "none"))

    def resolve(*_, **__):  # a resolver that has no network may take half a minute to say so
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with with_hub("http://no.such.host.invalid", tmp_path / "hf"):
        begin = time.monotonic()
        with pytest.raises(UserError, match="Three ways on"):
            wiki1m()
        assert time.monotonic() - begin < 10  # huggingface_hub itself tries for half a minute


def test_without_a_checkout_data_lie_in_the_users_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CHECKOUT", None)
    monkeypatch.delenv("DYSTRESS_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_root() == tmp_path / "dystress-text"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".local" / "share" / "dystress-text"


def test_prepared_data_come_first(tmp_path, monkeypatch):
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("elsewhere").name == "elsewhere"
    (tmp_path / "wiki1m").mkdir()
    (tmp_path / "wiki1m" / "wiki1m_for_simcse.txt").write_text("x\n")
    assert wiki1m() == tmp_path / "wiki1m" / "wiki1m_for_simcse.txt"
    folder = tmp_path / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    (folder / "sts-dev.csv").write_bytes(STSB)
    assert len(eval_pairs("stsb_dev")) == 2
