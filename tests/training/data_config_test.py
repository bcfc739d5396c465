"""Addresses of packs in a run's settings: secrets stay out of files."""

from __future__ import annotations

import pytest

from matinee.errors import ConfigError
from matinee.pack.open import open_data
from matinee.training.config import DataConfig


@pytest.mark.parametrize(
    "path",
    ["http://me:hush@h/a.pack", "https://h/a.pack?sig=hush", "a.pack:2,http://me@h/b.pack:1"],
)
def test_typed_secrets_are_refused_for_they_would_be_saved(path):
    """And the message does not repeat them."""
    with pytest.raises(ConfigError, match="environment variable") as caught:
        DataConfig(path)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["a.pack", "s3://bucket/a.pack", "http://h:80/a.pack:2,http://h/b.pack:1",
     "https://${LOGIN}@h/a.pack?${SIGNATURE}", "/home/me@work/a.pack"],
)  # fmt: skip
def test_addresses_without_them_are_taken(path):
    assert DataConfig(path).path == path


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("NO_SUCH_LOGIN", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_LOGIN"):
        open_data("http://${NO_SUCH_LOGIN}@127.0.0.1:1/a.pack")
