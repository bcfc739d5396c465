"""Cards and how many of them."""

import json
from pathlib import Path

import pytest

from matinee.errors import ConfigError
from matinee.measure.plan.cards import as_dict, parse_gpus, read_cards

WANTED = (
    "A5000", "A6000", "A100-40GB", "A100-80GB", "H100-SXM", "H100-PCIe", "H200", "V100-16GB",
    "V100-32GB", "L4", "L40S", "T4", "3090", "4090", "5090",
)  # fmt: skip


def test_usual_cards_are_there_with_plausible_dense_rates() -> None:
    cards = read_cards()
    assert set(WANTED) <= set(cards)
    for card in cards.values():
        assert card.source and card.fp32 > 1e12 and card.fp16 >= card.fp32
        assert card.memory_rate > 1e11 and card.memory > 2**33
        # Half-precision rates that are half of the sparse ones printed: none beyond 2.3 PFLOPS.
        assert card.fp16 < 2.5e15 and card.bf16 in (0, card.fp16)
        assert not card.tf32 or card.fp32 <= card.tf32 <= card.fp16
        json.dumps(as_dict(card))
    a100 = cards["A100-80GB"]  # its data sheet: 312 TFLOPS dense, 19.5 in float32, 2,039 GB/s
    assert (a100.bf16, a100.fp32, a100.memory_rate) == (312e12, 19.5e12, 2039e9)
    assert (a100.link, a100.link_rate, a100.host_rate) == ("nvlink", 300e9, 32e9)


# TFLOPS in float32, TF32, fp16 (dense), GB/s of memory, GB/s to other cards, MiB that the driver
# tells. Written from the makers' sheets, not from cards.toml.
STATED = {
    "V100-16GB": (15.7, 0, 125, 900, 150, 16160), "V100-32GB": (15.7, 0, 125, 900, 150, 32510),
    "T4": (8.1, 0, 65, 320, 16, 15360), "A10": (31.2, 62.5, 125, 600, 32, 23028),
    "A100-40GB": (19.5, 156, 312, 1555, 300, 40960),
    "A100-80GB": (19.5, 156, 312, 2039, 300, 81920),
    "A100-80GB-PCIe": (19.5, 156, 312, 1935, 32, 81920),
    "A4000": (19.2, 38.3, 76.7, 448, 32, 16376), "A5000": (27.8, 55.6, 111.1, 768, 32, 24564),
    "A6000": (38.7, 77.4, 154.8, 768, 32, 49140),
    "RTX-6000-Ada": (91.1, 182.1, 364.2, 960, 32, 49140),
    "3090": (35.6, 35.6, 71, 936, 32, 24576), "4090": (82.6, 82.6, 165.2, 1008, 32, 24564),
    "5090": (104.8, 104.8, 209.5, 1792, 64, 32607),
    "L4": (30.3, 60, 121, 300, 32, 23034), "L40S": (91.6, 183, 362, 864, 32, 46068),
    "H100-PCIe": (51, 378, 756, 2000, 64, 81559), "H100-SXM": (67, 494.7, 989.4, 3350, 450, 81559),
    "H200": (67, 494.7, 989.4, 4800, 450, 143771), "B200": (75, 1125, 2250, 7700, 900, 183359),
}  # fmt: skip


def test_every_card_is_as_its_maker_states_it() -> None:
    cards = read_cards()
    assert set(cards) == set(STATED)
    for name, (fp32, tf32, fp16, memory_rate, link, mib) in STATED.items():
        card = cards[name]
        found = (card.fp32, card.tf32, card.fp16, card.memory_rate, card.link_rate)
        stated = (fp32 * 1e12, tf32 * 1e12, fp16 * 1e12, memory_rate * 1e9, link * 1e9)
        assert found == pytest.approx(stated), name
        assert card.memory == pytest.approx(mib * 2**20, abs=2**20), name
        assert card.link == ("nvlink" if link >= 150 else "pcie")
        half = 0 if name[:2] in ("V1", "T4") else card.fp16
        assert card.bf16 == half, name


@pytest.mark.parametrize(
    ("text", "name", "count", "nodes"),
    [("8xA5000", "A5000", 8, 1), ("1536xV100", "V100-16GB", 1536, 192),
     ("a100-80gb", "A100-80GB", 1, 1),
     ("16 × rtx-4090", "4090", 16, 2), ("3090", "3090", 1, 1), ("2X3090", "3090", 2, 1)],
)  # fmt: skip
def test_gpus_are_read_as_they_are_written(text: str, name: str, count: int, nodes: int) -> None:
    fleet = parse_gpus(text, read_cards())
    assert (fleet.card.name, fleet.count, fleet.nodes) == (name, count, nodes)


def test_gpus_per_node_makes_machines() -> None:
    fleet = parse_gpus("1536xV100", read_cards(), 6)
    assert (fleet.per_node, fleet.nodes) == (6, 256)
    assert str(fleet) == "1536 × V100-16GB in 256 machines of 6"


@pytest.mark.parametrize(
    "text", ["", "0xA5000", "-1xA5000", "8x", "8xA5001", "eight A5000", "8.5xT4"]
)
def test_other_gpus_are_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(ConfigError, match="--gpus"):
        parse_gpus(text, read_cards())


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"did you mean A5000.*\? There are"):
        parse_gpus("8xA5001", read_cards())
    with pytest.raises(ConfigError, match=r"no card 'zzz'\. There are"):
        parse_gpus("zzz", read_cards())


def test_a_file_may_name_a_known_card_by_its_alias(tmp_path: Path) -> None:
    own = tmp_path / "cards.toml"
    own.write_text("[a100]\nreaches = 0.5\n")
    cards = read_cards(own)
    assert set(cards) == set(read_cards())
    assert parse_gpus("A100", cards).card.reaches == cards["A100-40GB"].reaches == 0.5


def test_a_file_adds_cards_and_changes_known_ones(tmp_path: Path) -> None:
    own = tmp_path / "cards.toml"
    own.write_text(
        '["A5000"]\nreaches = 0.5\n["MINE"]\nfp32 = 10\nfp16 = 20\nmemory_gb = 12\n'
        'memory_gb_s = 300\nlink = "pcie"\nlink_gb_s = 16\nsource = "measured"\n'
    )
    cards = read_cards(own)
    assert cards["A5000"].reaches == 0.5
    assert cards["A5000"].memory == read_cards()["A5000"].memory
    mine = parse_gpus("2xmine", cards).card
    assert (mine.fp16, mine.bf16, mine.memory, mine.host_rate) == (20e12, 0, 12 * 2**30, 16e9)
    with pytest.raises(ConfigError, match="MINE has no bf16 units"):
        mine.rate("bf16")


@pytest.mark.parametrize(
    ("text", "told"),
    [('["MINE"]\nfp32 = 1\n', "missing"), ('["A5000"]\nspeed = 1\n', "unknown 'speed'"),
     ('["A5000"]\nfp32 = "fast"\n', "a number"), ('["A5000"]\nmemory_gb = 0\n', "positive"),
     ('["A5000"]\nfp32 = nan\n', "a number"), ('["A5000"]\nlink = "wifi"\n', "nvlink or pcie"),
     ('["A5000"]\naliases = 5\n', "a list of names"),
     ('["A5000"]\naliases = [1]\n', "a list of names"),
     ('["A5000"]\naliases = "A"\n', "a list of names"),
     ('["A5000"]\nreaches = 0\n', "positive"), ("fp32 = 1\n", "no table"), ("[", "no TOML")],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    own = tmp_path / "cards.toml"
    own.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        read_cards(own)
    assert str(own) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--cards"):
        read_cards(tmp_path / "none.toml")
