"""Memory of attention by its kinds, each measured in a process of its own."""

import json
from contextlib import nullcontext

import pytest
import torch

from matinee.errors import ConfigError, MatineeError
from matinee.measure import machine
from matinee.measure.bench import attention, attention_probe
from matinee.measure.bench.attention_probe import Probe, Probed, Probes
from matinee.measure.result import write_result

CPU = torch.device("cpu")
SMALL = {"width": 64, "heads": 4}


@pytest.fixture(scope="module")
def probes():
    with Probes(CPU) as run:
        yield run


def test_a_layer_holds_the_matrix_only_if_it_is_explicit(probes):
    """4 heads of 1024² float32 are 16 MiB, and softmax needs a second such matrix."""
    matrix = 4 * 4 * 1024**2
    explicit = probes(Probe("explicit", 0, 1024, **SMALL))
    fused = probes(Probe("fused", 0, 1024, **SMALL))
    assert explicit.peak_bytes > 2 * matrix
    assert fused.peak_bytes < matrix / 2
    assert explicit.seconds > 0 and fused.seconds > 0


def test_blocks_computed_anew_keep_one_blocks_activations(probes):
    """Of 6 blocks, about a sixth and the inputs: well below half."""
    kept = probes(Probe("fused", 6, 1024, **SMALL)).peak_bytes
    anew = probes(Probe("recomputed", 6, 1024, **SMALL)).peak_bytes
    assert anew < kept / 2


def test_what_is_likely_needed_is_near_what_is(probes):
    """Within a factor of two, so that what is left out would not have fitted."""
    for probe in (Probe("explicit", 4, 1024, **SMALL), Probe("fused", 4, 1024, **SMALL)):
        assert 0.5 < probes(probe).peak_bytes / probe.likely_bytes < 2


def test_a_measurement_that_fails_says_so_and_the_next_goes_on(probes):
    with pytest.raises(MatineeError, match=r"measuring Probe.*heads"):
        probes(Probe("fused", 0, 16, width=10, heads=3))
    assert probes(Probe("fused", 0, 16, **SMALL)).seconds > 0


def run(tmp_path):
    options = attention.Options(out=tmp_path, tokens=(1024, 512), rounds=1, device="cpu", **SMALL)
    return attention.measure(options, on_step=lambda *_: None)


class Made:
    """In place of `Probes`: measurements as they would be, without making them."""

    def __init__(self, device):
        pass

    def __call__(self, probe):
        return Probed(probe.likely_bytes, 1e-3 * probe.tokens)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_both_parts_are_measured_with_exponents_and_plots(probes, tmp_path, monkeypatch):
    # The process that others of these tests have started already.
    monkeypatch.setattr(attention_probe, "Probes", lambda device: nullcontext(probes))
    write_result(run(tmp_path), tmp_path)
    data = json.loads((tmp_path / "attention.json").read_text())
    assert set(data["layer"]) == {"explicit", "fused", "blocks"} and data["layer"]["blocks"] == 0
    assert set(data["blocks"]) == {"explicit", "fused", "recomputed", "blocks"}
    explicit, fused = (data["layer"][k]["exponent"]["bytes"] for k in ("explicit", "fused"))
    assert explicit["last_doubling"] > 1.5 and fused["last_doubling"] < 1.3
    assert [m["tokens"] for m in data["layer"]["fused"]["measured"]] == [512, 1024]
    assert not data["left_out"]
    for part in ("layer", "blocks"):
        for plot in ("memory", "time"):
            assert (tmp_path / f"attention-{part}-{plot}.svg").stat().st_size > 5000


def test_what_does_not_fit_is_left_out_and_said(tmp_path, monkeypatch):
    """Explicit blocks at 1,024 tokens need most."""
    largest = Probe("explicit", 2, 1024, **SMALL).likely_bytes
    monkeypatch.setattr(machine, "free_bytes", lambda device: int(largest / 0.7) - 1)
    monkeypatch.setattr(attention_probe, "Probes", Made)
    result = run(tmp_path)
    assert result.data["left_out"] == [
        {"kind": "explicit", "blocks": 2, "tokens": 1024, "needs": largest}
    ]
    assert "Left out" in result.parts[1].text and "explicit at 1024 tokens" in result.parts[1].text
    assert ["1024", "left out"] in [list(row[:2]) for row in result.parts[1].tables[0].rows]


def test_no_room_at_all_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda device: 1)
    with pytest.raises(ConfigError, match="take fewer --tokens"):
        run(tmp_path)
