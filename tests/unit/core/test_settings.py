"""Settings: values, precedence, origins, refusals that explain themselves, and the reference page."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.core import limits, settings
from mainstem.core.errors import InvalidSetting, MainstemError
from mainstem.core.kinds import Address, BytesKind
from mainstem.core.settings import (
    BY_NAME,
    SETTINGS,
    Setting,
    Settings,
    load,
    require_loopback,
    table,
)
from mainstem.core.settings.reference import reference_markdown
from mainstem.core.settings.setting import MASK, invalid
from mainstem.core.settings.sources import CONFIG_BYTES_MAX

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mainstem.toml` of the working directory is read: no test may find one by chance."""
    monkeypatch.chdir(tmp_path)


def flag(**flags: str | None) -> Settings:
    return load(flags, {}).settings


def refusal(flags: dict[str, str | None] | None = None, environ: dict[str, str] | None = None, toml: str = "") -> str:
    """The message of the refusal of these sources."""
    path = None
    if toml:
        path = Path("given.toml")
        path.write_text(toml)
    with pytest.raises(InvalidSetting) as caught:
        load(flags or {}, environ or {}, path)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7070", Address("127.0.0.1", 7070)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:7070", Address("::1", 7070)),
        ("off", None),
        ("OFF", None),
    ],
)
def test_address(text: str, address: Address | None):
    assert flag(listen=text).listen == address
    assert BY_NAME["listen"].kind.parse(BY_NAME["listen"].kind.render(address)) == address


@pytest.mark.parametrize(
    "text", ["", "7070", ":7070", "localhost", "localhost:", "::1:7070", "a b:1", "h:65536", "h:-1"]
)
def test_address_refuses(text: str):
    message = refusal({"listen": text})
    assert "flag --listen" in message
    assert "host:port" in message


@pytest.mark.parametrize(("text", "value"), [("true", True), ("Yes", True), ("1", True), ("off", False), ("no", False)])
def test_bool(text: str, value: bool):
    assert flag(auto_create=text).auto_create is value


def test_path_expands_the_home_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert flag(data="~/log").data == Path("/home/ada/log")
    assert "home folder is not known" in refusal({"data": "~nobody-of-this-name/log"})
    with pytest.raises(InvalidSetting, match="home folder is not known"):
        load({}, {"MAINSTEM_CONFIG": "~nobody-of-this-name/x.toml"})


@pytest.mark.parametrize(
    "text", ["mainstem://localhost:7070", "mainstem://[::1]:7070", "mainstem://db1", "mainstem://a:1/"]
)
def test_url(text: str):
    assert flag(url=text).url == text


@pytest.mark.parametrize(
    "text",
    [
        "localhost:7070",
        "http://localhost:7070",
        "mainstem://",
        "mainstem://h:x",
        "mainstem://h:70000",
        "mainstem://h:1/x",
    ],
)
def test_url_refuses(text: str):
    assert "Write mainstem://host:port" in refusal({"url": text})


def test_url_refuses_credentials():
    assert "would show up in logs" in refusal({"url": "mainstem://ada:secret@localhost:7070"})


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
@given(text=st.text(max_size=30))
def test_any_text_is_a_value_or_a_clear_refusal(name: str, text: str):
    message = ""
    try:
        BY_NAME[name].check(getattr(flag(**{name: text}), name))
    except InvalidSetting as error:
        message = str(error)
    assert not message or (name in message and "flag --" in message)


# -------------------------------------------------------------------------------------------------------- settings


def test_defaults():
    loaded = load({}, {})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.config_path is None
    assert loaded.settings.data == Path("data")
    assert loaded.settings.listen == Address("127.0.0.1", 7070)
    assert loaded.settings.kafka is None
    assert loaded.settings.block_bytes == limits.BLOCK_BYTES_DEFAULT
    assert loaded.settings.record_bytes_max == limits.RECORD_BYTES_MAX
    assert loaded.settings.retention == 7 * 86_400


def test_settings_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().connections_max = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connections_max", True),
        ("connections_max", 0),
        ("block_bytes", "64MB"),
        ("heartbeat", float("nan")),
        ("listen", "127.0.0.1:7070"),
        ("listen", Address("0.0.0.0", 7070)),
        ("log_level", "loud"),
        ("url", "http://x"),
        ("data", "./data"),
        ("auto_create", 1),
    ],
)
def test_settings_made_in_code_are_checked_too(name: str, value: object):
    with pytest.raises(InvalidSetting, match=name):
        Settings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_is_described_and_its_example_works(setting: Setting):
    assert setting.help.endswith(".")
    assert setting.parse(setting.default_text) == setting.default
    files = {"tls_cert": "server.crt", "tls_key": "server.key"}
    files |= {"tls_client_cert": "client.crt", "tls_client_key": "client.key"}
    load({**(files if setting.name.startswith("tls_") else {}), setting.name: setting.example}, {})


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_values_out_of_bounds_are_refused(setting: Setting):
    for bound, beyond in ((setting.minimum, -1), (setting.maximum, 1)):
        if bound is not None:
            setting.check(bound)
            with pytest.raises(ValueError, match="out of bounds"):
                setting.check(type(bound)(bound + beyond))


def test_for_command_gives_what_a_command_takes():
    names = {setting.name for setting in settings.for_command("tail")}
    files = {"token_file", "tls_ca", "tls_client_cert", "tls_client_key"}
    assert names == {"url", *files, "log_format", "log_level"}
    assert "url" not in {setting.name for setting in settings.for_command("serve")}
    assert "listen" in {setting.name for setting in settings.for_command("serve")}


# ------------------------------------------------------------------------------------------------------ precedence


def test_flag_over_variable_over_file_over_default():
    path = Path("x.toml")
    path.write_text('listen = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nblock_bytes = "1MB"\n')
    environ = {"MAINSTEM_LISTEN": "127.0.0.1:3", "MAINSTEM_HTTP": "127.0.0.1:4", "PATH": "/bin"}
    loaded = load({"listen": "127.0.0.1:5", "http": None}, environ, path)
    assert loaded.settings.listen == Address("127.0.0.1", 5)
    assert loaded.settings.http == Address("127.0.0.1", 4)
    assert loaded.settings.block_bytes == 1_000_000
    assert loaded.origins["listen"] == "flag --listen"
    assert loaded.origins["http"] == "variable MAINSTEM_HTTP"
    assert loaded.origins["block_bytes"] == "file x.toml"
    assert loaded.origins["data"] == "default"
    assert loaded.config_path == path


def test_config_is_found_by_flag_then_variable_then_in_the_working_directory():
    for number, name in enumerate(("mainstem.toml", "variable.toml", "flag.toml"), start=1):
        Path(name).write_text(f"connections_max = {number}")
    environ = {"MAINSTEM_CONFIG": "variable.toml"}
    assert load({}, {}).settings.connections_max == 1
    assert load({}, environ).settings.connections_max == 2
    assert load({}, environ, Path("flag.toml")).settings.connections_max == 3
    assert load({}, {}).origins["connections_max"] == "file mainstem.toml"


def test_file_takes_native_numbers_and_booleans():
    Path("mainstem.toml").write_text("block_bytes = 1_000_000\nauto_create = true\nauto_create_shards = 4\n")
    loaded = load({}, {}).settings
    assert (loaded.block_bytes, loaded.auto_create, loaded.auto_create_shards) == (1_000_000, True, 4)


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("heartbeat = 5", "needs a unit, as in '5s'"),
        ("connections_max = true", "must be written as text"),
        ("auto_create = 1", "must be written as text"),
        ("block_bytes = 1.5", "must be written as text"),
        ("listen = []", "must be written as text"),
        ("block-bytes = 1", "Did you mean block_bytes?"),
        ("[serve]\nlisten = 'x'", "'serve' in given.toml is not a setting"),
        ("listen = 127.0.0.1", "is not valid TOML"),
        ("listen = '127.0.0.1:1'\nlisten = '127.0.0.1:2'", "is not valid TOML"),
    ],
)
def test_file_refusals(toml: str, expected: str):
    message = refusal(toml=toml)
    assert expected in message
    assert "given.toml" in message


def test_config_that_cannot_be_read():
    with pytest.raises(InvalidSetting, match=r"missing\.toml \(named by flag --config\) cannot be read: No such file"):
        load({}, {}, Path("missing.toml"))
    with pytest.raises(InvalidSetting, match=r"named by variable MAINSTEM_CONFIG"):
        load({}, {"MAINSTEM_CONFIG": "missing.toml"})
    Path("binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSetting, match="not UTF-8"):
        load({}, {}, Path("binary.toml"))
    Path("huge.toml").write_bytes(b"#" * (CONFIG_BYTES_MAX + 1))
    with pytest.raises(InvalidSetting, match="larger than"):
        load({}, {}, Path("huge.toml"))


def test_unknown_names_say_the_closest():
    assert "Did you mean MAINSTEM_LISTEN?" in refusal(environ={"MAINSTEM_LISTN": "x"})
    assert "Did you mean MAINSTEM_CONFIG?" in refusal(environ={"MAINSTEM_CONFIGS": "x"})
    assert "Did you mean --block-bytes?" in refusal({"block_byte": "1MB"})
    assert "Did you mean MAINSTEM_BLOCK_BYTES?" in refusal(environ={"MAINSTEM_BLOK": "x"})
    assert "The valid names are: " in refusal(environ={"MAINSTEM_ZZZZZZZZZZZZ": "x"})


def test_kubernetes_service_variables_are_left_alone():
    environ = {
        "MAINSTEM_SERVICE_HOST": "10.0.0.1",
        "MAINSTEM_SERVICE_PORT": "7070",
        "MAINSTEM_SERVICE_PORT_NATIVE": "7070",
        "MAINSTEM_PORT": "tcp://10.0.0.1:7070",
        "MAINSTEM_PORT_7070_TCP": "tcp://10.0.0.1:7070",
        "MAINSTEM_PORT_7070_TCP_ADDR": "10.0.0.1",
    }
    assert load({}, environ).settings == Settings()


# -------------------------------------------------------------------------------------------------------- refusals


def test_refusal_says_what_where_and_what_to_do():
    assert refusal(environ={"MAINSTEM_BLOCK_BYTES": "big"}) == (
        "block_bytes = 'big' (variable MAINSTEM_BLOCK_BYTES) is not a number of bytes that can be used:"
        " it is not a number followed by a unit. Write 64MB, 64 MiB or a number of bytes; for example 256MB."
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_is_allowed(host: str):
    require_loopback(Address(host, 7070))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.4", "10.0.0.1", "example.com", "localhost.evil.com", "127.1"]
)
def test_elsewhere_is_refused_with_the_reason(host: str):
    with pytest.raises(InvalidSetting, match=r"--tls-cert .* mainstem token create .* listen on 127\.0\.0\.1:7070"):
        require_loopback(Address(host, 7070))


@pytest.mark.parametrize("name", ["listen", "http"])
def test_load_refuses_to_listen_elsewhere(name: str):
    message = refusal({name: "0.0.0.0:7999"})
    assert message.startswith(f"{name} = '0.0.0.0:7999' (flag --{name}) would let other machines connect")


def test_elsewhere_is_allowed_with_tls():
    chosen = flag(listen="0.0.0.0:7999", http="0.0.0.0:7998", tls_cert="a.crt", tls_key="a.key")
    assert (chosen.listen, chosen.http) == (Address("0.0.0.0", 7999), Address("0.0.0.0", 7998))
    assert (chosen.tls_cert, chosen.tls_client_ca) == (Path("a.crt"), None)


@pytest.mark.parametrize(
    "given",
    [{"tls_cert": "a.crt"}, {"tls_key": "a.key"}, {"tls_client_ca": "a.crt"}, {"tls_client_cert": "a.crt"}],
    ids=lambda given: next(iter(given)),
)
def test_a_part_of_tls_is_of_no_use(given):
    assert "of no use without" in refusal(given)


def test_kafka_accepts_only_off():
    assert flag(kafka="off").kafka is None
    assert "does not speak the Kafka protocol" in refusal({"kafka": "127.0.0.1:9092"})


def test_the_two_doors_need_two_ports():
    assert "are both 127.0.0.1:7070" in refusal({"http": "127.0.0.1:7070"})
    load({"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}, {})
    load({"listen": "off", "http": "off"}, {})


def test_idle_timeout_leaves_room_for_a_late_heartbeat():
    message = refusal({"heartbeat": "10s"})
    assert "idle_timeout = '15s' (default) is less than twice the heartbeat of 10s (flag --heartbeat)" in message
    assert "at least 20s" in message
    load({"heartbeat": "10s", "idle_timeout": "20s"}, {})


def test_refusals_are_errors_of_ours_and_value_errors():
    assert issubclass(InvalidSetting, MainstemError)
    assert issubclass(InvalidSetting, ValueError)


# ------------------------------------------------------------------------------------------------- table and page


def test_table_shows_value_and_origin():
    rows = {name: (value, origin) for name, value, origin in table(load({"heartbeat": "500ms"}, {}))}
    assert list(rows) == [setting.name for setting in SETTINGS]
    assert rows["heartbeat"] == ("500ms", "flag --heartbeat")
    assert rows["kafka"] == ("off", "default")
    assert rows["data"] == ("./data", "default")


def test_secrets_are_masked_when_shown_and_when_refused():
    secret = Setting("token", BytesKind(), 1, "A secret.", "1", secret=True, maximum=10)
    assert secret.shown(7) == MASK
    message = str(invalid(secret, "hunter2", "flag --token", ValueError("it is wrong")))
    assert "hunter2" not in message
    assert MASK in message


def test_reference_page_is_current():
    """To renew it: python tools/pages.py"""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == reference_markdown()


def test_reference_page_names_every_setting():
    page = reference_markdown()
    for setting in SETTINGS:
        assert page.count(f"### {setting.name}\n") == 1
        assert f"`{setting.flag}`, `{setting.variable}`" in page


def test_the_file_on_the_reference_page_is_the_defaults():
    match = re.search(r"```toml\n(.*?)```", reference_markdown(), re.DOTALL)
    assert match is not None
    Path("mainstem.toml").write_text(match[1])
    loaded = load({}, {})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"file mainstem.toml"}
