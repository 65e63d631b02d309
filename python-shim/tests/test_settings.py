"""Settings: where the socket comes from, and that every mistake names key, value and fix."""

import re
from pathlib import Path

import pytest
from tierkv.connectors.vllm.link.settings import default_socket, load_settings
from tierkv.connectors.vllm.naming.weights import Weights

from .support.engine import vllm_config


def write(folder: Path, text: str) -> str:
    path = folder / "tierkv.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_socket_of_a_config_file_is_used(tmp_path: Path) -> None:
    path = write(tmp_path, '[cluster]\nrole = "inference"\n[sidecar]\nsocket = "/run/x.sock"\n')
    settings = load_settings({"config_path": path})
    assert (settings.socket, settings.source) == ("/run/x.sock", path)


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    path = write(tmp_path, '[sidecar]\nsocket = "~/s.sock"\n')
    assert load_settings({"config_path": path}).socket == "/home/someone/s.sock"


def test_an_explicit_socket_wins(tmp_path: Path) -> None:
    path = write(tmp_path, '[sidecar]\nsocket = "/run/x.sock"\n')
    assert load_settings({"config_path": path, "socket": "/run/y.sock"}).socket == "/run/y.sock"


def test_the_default_is_the_users_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_socket() == f"{tmp_path}/tierkv/sidecar.sock"
    assert load_settings({}).socket == default_socket()
    silent = write(tmp_path, '[cluster]\nrole = "inference"\n')
    assert load_settings({"config_path": silent}).socket == default_socket()


def test_autostart_is_on_unless_the_file_or_the_launch_line_says_no(tmp_path: Path) -> None:
    assert load_settings({}).autostart
    assert load_settings({"socket": "/run/x.sock"}).autostart
    silent = write(tmp_path, '[cluster]\nrole = "inference"\n')
    assert load_settings({"config_path": silent}).autostart
    off = write(tmp_path, "[sidecar]\nautostart = false\n")
    assert not load_settings({"config_path": off}).autostart
    assert not load_settings({"config_path": off, "socket": "/run/x.sock"}).autostart
    assert load_settings({"config_path": off, "autostart": True}).autostart
    assert not load_settings({"autostart": False}).autostart


def test_the_sidecar_gets_the_file_by_a_path_that_holds_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "")
    assert load_settings({"config_path": "tierkv.toml"}).config_path == f"{tmp_path}/tierkv.toml"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings({}).config_path == f"{tmp_path}/tierkv.toml"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", "raw"),
        ('[turbo_quant]\nstates = "bf16"\n', "bf16"),
        ('[turbo_quant]\nenabled = true\nstates = "int8"\n', "int8"),
        ('[turbo_quant]\nenabled = false\nstates = "int8"\n', "raw"),
        ("turbo_quant = false\n", "raw"),
    ],
)
def test_states_stay_raw_unless_the_file_asks_and_compression_is_on(
    tmp_path: Path, text: str, form: str
) -> None:
    assert load_settings({"config_path": write(tmp_path, text)}).states == form
    assert load_settings({}).states == "raw"


@pytest.mark.parametrize("runtime", ["", "/no/such/folder"])
def test_without_a_runtime_folder_it_is_a_private_one(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert re.fullmatch(r"/tmp/tierkv-\d+/sidecar\.sock", default_socket())


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"config_pth": "x"}, ["'config_pth'", "'config_path'", "'socket'", "'autostart'"]),
        ({"autostart": "no"}, ["kv_connector_extra_config.autostart", "'no'", "true or false"]),
        ({"socket": 5}, ["kv_connector_extra_config.socket", "5", "expected a path"]),
        ({"socket": ""}, ["kv_connector_extra_config.socket", "''", "expected a path"]),
        ({"config_path": ["x"]}, ["kv_connector_extra_config.config_path", "['x']"]),
        ({"config_path": "/no/such.toml"}, ["'/no/such.toml'", "No such file", "tierkv.toml"]),
    ],
)
def test_a_mistake_names_key_value_and_fix(extra: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        load_settings(extra)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sidecar\n", ["not valid TOML", "tierkv config check"]),
        ("[sidecar]\nsocket = 7\n", ["sidecar.socket", "7", "expected a path"]),
        ("[sidecar]\nautostart = 1\n", ["sidecar.autostart", "1", "true or false"]),
        (
            '[turbo_quant]\nstates = "fp8"\n',
            ["turbo_quant.states", "'fp8'", "'raw', 'bf16', 'int8'"],
        ),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=r".") as caught:
        load_settings({"config_path": path})
    for word in [path, *words]:
        assert word in str(caught.value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tierkv.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not valid TOML"):
        load_settings({"config_path": str(path)})


def test_without_a_path_the_engine_reads_the_file_that_its_sidecar_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    (home / ".config" / "tierkv").mkdir(parents=True)
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("TIERKV_CONFIG", raising=False)
    monkeypatch.chdir(here)
    assert load_settings({}).config_path is None
    write(home / ".config" / "tierkv", '[sidecar]\nsocket = "/run/home.sock"\n')
    assert load_settings({}).socket == "/run/home.sock"
    write(here, '[sidecar]\nsocket = "/run/here.sock"\nautostart = false\n')
    found = load_settings({})
    assert (found.socket, found.autostart) == ("/run/here.sock", False)
    assert found.config_path == str(here / "tierkv.toml")
    named = tmp_path / "named.toml"
    named.write_text('[sidecar]\nsocket = "/run/named.sock"\n')
    monkeypatch.setenv("TIERKV_CONFIG", str(named))
    assert load_settings({}).socket == "/run/named.sock"
    assert load_settings({"socket": "/run/x.sock"}).socket == "/run/x.sock"


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, '[sidecar]\nsocket = "/run/x.sock"\n')
    Path(path).chmod(0o646)
    with pytest.raises(ValueError, match=r"with mode 646, so others may have written it"):
        load_settings({"config_path": path})


def test_the_operators_name_for_the_weights_is_read_by_the_engine(tmp_path: Path) -> None:
    text = '[model]\nidentity = "org/model@3f1c0de"\n'
    settings = load_settings({"config_path": write(tmp_path, text)})
    assert settings.identity == "org/model@3f1c0de"
    weights = Weights(vllm_config("s3://bucket/model"), identity=settings.identity)
    weights.start()
    assert (weights.digest, weights.refused) == ("stated:org/model@3f1c0de", "")
    assert load_settings({}).identity == ""


@pytest.mark.parametrize("value", ["7", '""', '"two words"', '"a\\u0000b"', f'"{"a" * 257}"'])
def test_a_name_that_is_none_is_refused_by_key_and_value(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValueError, match=r"model\.identity = .*without spaces"):
        load_settings({"config_path": write(tmp_path, f"[model]\nidentity = {value}\n")})
