"""Hugging Face models where the Hub is out of reach, or fails: one line, and no waiting."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from typing import TYPE_CHECKING

import httpx
import huggingface_hub
import pytest

from dflash_min import tokens, train
from dflash_min.config import TrainConfig
from dflash_min.errors import UsageError
from dflash_min.huggingface import hub
from dflash_min.resolve import resolve
from dflash_min.targets import choice as targets

from .hf_models import named, qwen3, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "someone/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Iterator[Path]:
    """An empty cache of the Hub's files, and nothing known of the Hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_HUB_ETAG_TIMEOUT", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    huggingface_hub.close_session()  # it has read the proxies
    hub.unreachable.cache_clear()
    yield tmp_path / "hub"
    hub.unreachable.cache_clear()
    huggingface_hub.close_session()


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """No host has an address, and nobody waits to ask again; the hosts that were asked for."""
    hosts = []

    def no_address(host: str, *_: object, **__: object) -> None:
        hosts.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def no_wait(seconds: float) -> None:
        raise AssertionError(f"a wait of {seconds} s")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    monkeypatch.setattr(time, "sleep", no_wait)
    return hosts


def test_an_unknown_name_without_a_network_is_one_line_at_once(asked, capfd):
    with pytest.raises(SystemExit) as stop:
        train.main(["--target", f"hf:{NAME}", "--steps", "1"])
    out, err = capfd.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err == (
        f"dflash_min.train: error: --target hf:{NAME}: no config.json in such a folder or in the "
        "Hub's cache, and the Hub cannot be reached "
        f"([Errno {socket.EAI_NONAME}] Name or service not known)\n"
    )
    assert set(asked) == {"huggingface.co"}


def test_a_hub_that_does_not_answer_is_given_up_and_asked_no_more(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", silent.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address])
        monkeypatch.setattr(hub, "_PATIENCE_S", 0.05)
        reason = hub.unreachable(NAME)
    assert reason is not None
    assert "timed out" in reason
    with pytest.raises(UsageError, match="the Hub cannot be reached"):
        resolve(TrainConfig(target=f"hf:{NAME}"), 0)


def test_a_hub_that_refuses_has_been_reached(monkeypatch):
    def refuse(url: str, *, timeout: float) -> None:
        answer = httpx.Response(401, request=httpx.Request("HEAD", url))
        raise huggingface_hub.errors.RepositoryNotFoundError("401", response=answer)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refuse)
    assert hub.unreachable(NAME) is None
    assert not hub.local_only(named(NAME))


@pytest.mark.parametrize("proxy", ["foo://127.0.0.1:9", "http://[::1", "socks5://127.0.0.1:9"])
def test_behind_a_proxy_that_cannot_be_used_the_hub_is_out_of_reach(monkeypatch, proxy):
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(UsageError, match="the Hub cannot be reached") as caught:
        resolve(TrainConfig(target=f"hf:{NAME}"), 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("value", "expected"), [("", 2.0), ("7", 7)])
def test_the_hub_is_waited_for_as_long_as_the_user_says(monkeypatch, value, expected):
    given = []
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", value)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", int(value or 10))
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", lambda _, *, timeout: given.append(timeout)
    )
    assert hub.unreachable(NAME) is None
    assert given == [expected]


def test_a_setting_that_huggingface_hub_cannot_read_is_one_line(monkeypatch):
    """It reads them as it is imported."""
    monkeypatch.delitem(sys.modules, "huggingface_hub.constants")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "soon")
    with pytest.raises(UsageError, match=r"environment variables \(.*'soon'\)$"):
        hub.file(named(NAME), "config.json")


@pytest.mark.parametrize(("status", "refused"), [(404, False), (429, True), (500, True)])
def test_a_file_that_the_hub_fails_to_give_is_not_one_that_it_does_not_have(
    monkeypatch, status, refused
):
    def download(name: str, file: str, *, local_files_only: bool) -> None:
        answer = httpx.Response(status, request=httpx.Request("HEAD", "https://hub.test"))
        error = huggingface_hub.errors.HfHubHTTPError(f"status {status}", response=answer)
        raise huggingface_hub.errors.LocalEntryNotFoundError("check your connection") from error

    monkeypatch.setattr(hub, "local_only", lambda _: False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    if refused:
        with pytest.raises(UsageError, match=rf"no tokenizer.json from the Hub \(status {status}"):
            hub.file(named(NAME), "tokenizer.json")
    else:
        assert hub.file(named(NAME), "tokenizer.json") is None


def test_a_model_in_the_cache_is_loaded_without_a_network(asked, cache, tmp_path, capfd):
    folder = save(tmp_path / "saved", qwen3())
    stored = cache / f"models--{NAME.replace('/', '--')}"
    shutil.copytree(folder, stored / "snapshots" / COMMIT)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(COMMIT)
    capfd.readouterr()
    resolved = resolve(TrainConfig(target=f"hf:{NAME}"), 0)
    target = targets.open_target(resolved.target, resolved.model, seed=0, device="cpu")
    words = tokens.of_target(resolved.target, resolved.model)
    assert words.decode(words.encode("as it was")) == "as it was"
    assert sum(p.numel() for _, p in target.named_parameters()) > 0
    assert set(asked) == {"huggingface.co"}
    assert "huggingface.co" not in capfd.readouterr().err


def test_a_folder_needs_no_hub(asked, tmp_path):
    assert hub.local_only(named(tmp_path))
    assert hub.file(named(tmp_path), "config.json") is None
    assert hub.places(named(tmp_path)) == "in the folder"
    assert asked == []
