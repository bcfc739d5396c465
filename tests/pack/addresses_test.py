"""Addresses on the command line: what splits a mixture, and what of them is shown."""

from __future__ import annotations

import pytest

from matinee.cli import main as cli
from matinee.errors import ConfigError, PackError
from matinee.pack import open as opening
from matinee.pack.mixture import split_mixture
from matinee.pack.open import open_data


@pytest.mark.parametrize(
    ("text", "names", "weights"),
    [
        ("http://h:18901,http://h:18902", ["http://h:18901", "http://h:18902"], None),
        ("http://u:p@h:1,https://[::1]:2", ["http://u:p@h:1", "https://[::1]:2"], None),
        ("http://h:18901:2,http://h/b:1", ["http://h:18901", "http://h/b"], [2.0, 1.0]),
        ("s3://bucket:2,gs://other:1", ["s3://bucket", "gs://other"], [2.0, 1.0]),
        ("http://h/a,b.pack,http://h/c", ["http://h/a,b.pack", "http://h/c"], None),
        ("http://h/a?k=1,2:3,s3://b/c:1", ["http://h/a?k=1,2", "s3://b/c"], [3.0, 1.0]),
        ("a.pack,no-such.pack", ["a.pack", "no-such.pack"], None),
        ("a.pack,http://h/b", ["a.pack", "http://h/b"], None),
        ("http://h/a%2Chttp://h,s3://b/c", ["http://h/a%2Chttp://h", "s3://b/c"], None),
    ],
)
def test_ports_are_no_weights_and_commas_of_addresses_no_ends(text, names, weights):
    assert split_mixture(text) == (names, weights)


def test_behind_an_address_an_existing_path_is_another_pack(tmp_path):
    (tmp_path / "b.pack").mkdir()
    local = f"{tmp_path}/b.pack"
    assert split_mixture(f"http://h/a,{local}") == (["http://h/a", local], None)
    assert split_mixture(f"http://h/a:1,{local}:2") == (["http://h/a", local], [1.0, 2.0])
    assert split_mixture("http://h/a,none.pack") is None
    assert split_mixture("a" * 5000 + "," + "b" * 5000) is not None


def test_an_address_with_a_comma_that_is_no_pack_says_how_commas_are_read(monkeypatch):
    def fail(path, **_):
        raise PackError("no such pack")

    monkeypatch.setattr(opening, "Pack", fail)
    with pytest.raises(PackError, match=r"no such pack.* http://h/a,b: .*%2C") as told:
        open_data("http://me:hushpass@h/a,b?key=hushpass")
    assert "hushpass" not in str(told.value)
    with pytest.raises(PackError, match=r"^no such pack$"):
        open_data("http://h/a")


@pytest.mark.parametrize(
    "text",
    [
        "http://me:hushpass@h/a.pack:1,http://b/c.pack",
        "http://b/c.pack?key=hushpass,http://h/a.pack:1",
        "http://me:hushpass@h/a,",
        "ftp://me:hushpass@h/a:1,b",
        "ftp://me:hushpass@h/a",
        "s3://me:hushpass@h/a:1,s3://b",
        "http://me:hushpass@h/a?key=${MATINEE_UNSET_NAME}",
    ],
)
def test_no_message_shows_what_is_secret_in_an_address(text, capsys):
    assert cli(["info", text]) == 2
    printed = capsys.readouterr()
    assert "hushpass" not in printed.out + printed.err
    assert len(printed.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["annotate", "http://me:hushpass@h/a.pack", "--annotations", "table:a.csv"],
        ["pack", "videos", "--out", "http://me:hushpass@h/a.pack"],
        ["pack", "http://me:hushpass@h/videos", "--out", "a.pack"],
        ["index", "videos", "--out", "s3://hushpass/a.pack"],
        ["index", "https://me:hushpass@h/videos", "--out", "a.pack"],
    ],
)
def test_commands_that_write_take_local_packs_only(args, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli(args) == 2
    printed = capsys.readouterr()
    assert "local packs only" in printed.err and "hushpass" not in printed.out + printed.err
    assert len(printed.err.strip().splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_cache_is_for_the_addresses_of_a_mixture(monkeypatch, tmp_path):
    given = {}

    class Noted:
        def __init__(self, path, *, cache, cache_bytes):
            given[path] = cache

    monkeypatch.setattr(opening, "Pack", Noted)
    monkeypatch.setattr(opening, "Mixture", lambda packs, weights: packs)
    open_data("http://h/a,s3://b/c", cache=tmp_path)
    open_data("local.pack,http://h/d", cache=tmp_path)
    assert given == {
        "http://h/a": tmp_path, "s3://b/c": tmp_path, "local.pack": None, "http://h/d": tmp_path,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="are local"):
        open_data("a.pack,b.pack", cache=tmp_path)
