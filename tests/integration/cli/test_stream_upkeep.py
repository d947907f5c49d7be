"""`mainstem stream` about what is kept: cleanup, trim and erase, for people and for programs."""

import json
from datetime import UTC, datetime, timedelta

import pytest

pytestmark = pytest.mark.slow("starts several processes, each of which loads pyarrow")


def show(cli, name):
    return json.loads(cli.out("stream", "show", name, "--json"))


def test_options_of_a_stream(cli, name):
    made = json.loads(
        cli.out(
            *("stream", "create", name, "--cleanup", "compact,delete", "--retention", "2d"),
            *("--retention-bytes", "10MB", "--tombstones", "3h", "--json"),
        )
    )
    assert (made["cleanup"], made["retention"], made["tombstones"]) == ("compact,delete", "2d", "3h")
    assert made["retention_bytes"] == 10_000_000
    assert (made["waiting_bytes"], made["gone_by"]) == (0, None)
    altered = json.loads(cli.out("stream", "alter", name, "--cleanup", "delete", "--retention-bytes", "0", "--json"))
    assert (altered["cleanup"], altered["retention_bytes"], altered["tombstones"]) == ("delete", 0, "3h")
    assert show(cli, name) == altered | {"verified_through": None}


def test_text_about_what_is_kept(local):
    local.run("stream", "create", "c", "--cleanup", "compact,delete", "--retention-bytes", "5MiB")
    first = local.out("stream", "show", "c").splitlines()[0]
    assert first == "c: 0 records, 0 B, the newest record of every key, kept for 7d, up to 5.2 MB, keys placed by crc32"
    local.run("stream", "alter", "c", "--cleanup", "compact")
    assert "kept for" not in local.out("stream", "show", "c")


def test_trim_by_offset_and_what_waits(local):
    local.run("stream", "create", "clicks")
    local.run("write", "clicks", stdin=b"a\nb\nc\nd\n")
    trimmed = local.out("stream", "trim", "clicks", "--offset", "4")
    assert trimmed.startswith("clicks: 0 records, 0 B, ")
    (line,) = [line for line in trimmed.splitlines() if "more are on the disk until 20" in line]
    assert line.endswith(": old copies of records that were merged or rewritten since, and what was trimmed")
    assert local.out("tail", "clicks", "--start", "earliest", "--no-follow") == ""
    found = show(local, "clicks")
    assert (found["starts"], found["ends"], found["bytes"]) == ([4], [4], 0)
    assert found["waiting_bytes"] > 0
    assert datetime.fromisoformat(found["gone_by"]) < datetime.now(UTC) + timedelta(days=1.1)


def test_how_much_of_a_stream_are_statistics(local):
    local.run("stream", "create", "clicks")
    assert show(local, "clicks")["statistics_bytes"] == 0
    assert "statistics" not in local.out("stream", "show", "clicks")
    local.run("write", "clicks", stdin=b"".join(b"line %d\n" % number for number in range(5_000)))
    assert show(local, "clicks")["statistics_bytes"] > 0
    assert " of it are statistics and filters, so that less has to be read\n" in local.out("stream", "show", "clicks")


def test_trim_of_one_shard_and_by_time(cli, name):
    cli.run("stream", "create", name, "--shards", "2")
    cli.run("write", name, stdin=b"a\nb\nc\nd\n")
    ends = show(cli, name)["ends"]
    shard = 0 if ends[0] else 1
    trimmed = json.loads(cli.out("stream", "trim", name, "--offset", "1", "--shard", str(shard), "--json"))
    assert trimmed["starts"][shard] == 1
    assert trimmed["starts"][1 - shard] == 0
    # Nothing is an hour old; everything is older than the year 9999.
    assert json.loads(cli.out("stream", "trim", name, "--before", "1h", "--json"))["starts"] == trimmed["starts"]
    emptied = json.loads(cli.out("stream", "trim", name, "--before", "9999-01-01T00:00:00Z", "--json"))
    assert emptied["starts"] == emptied["ends"] == ends


def test_erase(cli, name):
    cli.run("stream", "create", name)
    cli.run("write", name, "--key-separator", ":", stdin=b"ann:1\nbob:2\nann:3\n")
    said = json.loads(cli.out("stream", "erase", name, "ann", "--yes", "--json"))
    assert (said["stream"], said["records"]) == (name, 2)
    assert datetime.fromisoformat(said["gone_by"]) > datetime.now(UTC)
    assert cli.out("tail", name, "--start", "earliest", "--no-follow", "--output", "raw") == "2\n"
    assert cli.out("stream", "erase", name, "nobody", "-y").startswith(f"erased 0 records of {name}\n")
    lines = cli.out("stream", "erase", name, "bob", "--yes").splitlines()
    assert lines[0] == f"erased 1 record of {name}"
    assert lines[1].startswith("their last bytes are off the disk by 20")


def test_erase_of_what_a_list_names(local):
    local.run("stream", "create", "clicks")
    local.run("write", "clicks", "--key-separator", ":", stdin=b"ann:1\nbob:2\ncid:3\n")
    said = local.shell(
        "printf 'ann\\ncid\\n' | while read key; do mainstem stream erase clicks $key --yes --json; done"
    )
    assert said.count('"records": 1') == 2
    assert show(local, "clicks")["records"] == 1
    assert json.loads(local.out("stream", "list", "--json"))[0]["records"] == 1
    assert local.out("stream", "show", "clicks").splitlines()[-1].split() == ["0", "0", "3", "1"]
    assert local.out("tail", "clicks", "--start", "earliest", "--no-follow", "--output", "raw") == "2\n"


def test_wrong_usage_and_exit_codes(local):
    local.run("stream", "create", "clicks")
    for command in (("trim", "--offset", "1"), ("erase", "key", "--yes"), ("alter", "--cleanup", "compact")):
        assert "there is no stream 'nothing'; mainstem stream list" in local.error(
            "stream", command[0], "nothing", *command[1:], code=3
        )
    assert "cleanup 'shrink' is not known" in local.error("stream", "create", "other", "--cleanup", "shrink", code=2)
    assert "cleanup 'shrink' is not known" in local.error("stream", "alter", "clicks", "--cleanup", "shrink", code=2)
    assert "use a size like 10GB" in local.error("stream", "alter", "clicks", "--retention-bytes", "much", code=2)
    assert "'soon'" in local.error("stream", "alter", "clicks", "--tombstones", "soon", code=2)
    assert "nothing to change" in local.error("stream", "alter", "clicks", code=2)
    one_of_them = "--before TIME or --offset OFFSET, one of them"
    assert one_of_them in local.error("stream", "trim", "clicks", code=2)
    assert one_of_them in local.error("stream", "trim", "clicks", "--before", "1h", "--offset", "3", code=2)
    assert "--before yesterday" in local.error("stream", "trim", "clicks", "--before", "yesterday", code=2)
    assert "needs a zone" in local.error("stream", "trim", "clicks", "--before", "2026-01-01T00:00:00", code=2)
    assert "there is no shard 5" in local.error("stream", "trim", "clicks", "--offset", "0", "--shard", "5", code=2)
    assert "nothing is before 9" in local.error("stream", "trim", "clicks", "--offset", "9", "--shard", "0", code=2)
    assert "say --yes" in local.error("stream", "erase", "clicks", "key", code=2)
    assert "stream name '../x'" in local.error("stream", "erase", "../x", "key", "--yes", code=2)


def test_a_compacted_stream_takes_only_keys(cli, name):
    cli.run("stream", "create", name, "--cleanup", "compact")
    assert "every record needs a key" in cli.error("write", name, stdin=b"a\n", code=1)
    cli.run("write", name, "--key-separator", ":", stdin=b"k:a\n")
    assert show(cli, name)["records"] == 1


def test_compaction_of_records_without_keys_is_warned_of(cli, name):
    cli.run("stream", "create", name)
    cli.run("write", name, stdin=b"a\n")
    done = cli.run("stream", "alter", name, "--cleanup", "compact")
    assert f"the first records of {name} have no key: compaction never takes such away" in done.stderr.decode()
    assert cli.run("stream", "alter", name, "--retention", "2d").stderr == b""
    cli.run("stream", "trim", name, "--offset", "1")
    cli.run("write", name, "--key-separator", ":", stdin=b"k:a\n")
    assert cli.run("stream", "alter", name, "--cleanup", "compact,delete").stderr == b""
