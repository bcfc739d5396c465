"""Image sets: the very pixels that were given, or a refusal with a reason; archives stay closed."""

import io
import json
import struct
import tarfile
import zlib
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from matinee.cli import main
from matinee.errors import AnnotationError, ConfigError, PackError
from matinee.media.image import decode_image
from matinee.pack.images.image_set import ImageSet
from matinee.pack.images.plan import plan_images
from matinee.pack.images.source import ArchiveSource
from matinee.pack.images.writer import write_images
from matinee.pack.open import open_data
from matinee.pack.reading.reader import Pack

RNG = np.random.default_rng(0)


def picture(width=20, height=20):
    return Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image, kind="PNG", **more):
    buffer = io.BytesIO()
    image.save(buffer, kind, **more)
    return buffer.getvalue()


def claiming(width, height):
    """A PNG whose header claims another size than it has."""
    data = bytearray(encoded(picture()))
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


def files(splits=("train/", "test/"), count=3):
    """Content of a source: name → bytes; two classes, PNG and JPEG."""
    return {
        f"{split}{label}/{n}.{kind}": encoded(picture(), "JPEG" if kind == "jpg" else "PNG")
        for split in splits
        for label in ("cat", "dog")
        for n, kind in zip(range(count), ("png", "jpg") * count, strict=False)
    }


def folder(root, content):
    for name, data in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def member(name, data=b"", **more):
    """A tar header; `data` follows it."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def archive(path, content, *extra, mode="w", prefix=""):
    """A tar of `content` in the reverse order of its names, then the members `extra`."""
    with tarfile.open(path, mode) as tar:
        for name in sorted(content, reverse=True):
            info, data = member(prefix + name, content[name])
            tar.addfile(info, io.BytesIO(data))
        for info, data in extra:
            tar.addfile(info, io.BytesIO(data))
    return path


def rows(images):
    return images.samples.to_pylist()


def test_a_folder_becomes_the_pixels_that_pillow_decodes(tmp_path):
    """Sorted by path, with splits and labels from the folders."""
    content = files()
    write_images(tmp_path / "a.images", folder(tmp_path / "src", content))
    images = ImageSet(tmp_path / "a.images")
    assert rows(images) == [
        {"sample": name, "split": name.split("/")[0], "label": name.split("/")[1]}
        for name in sorted(content)
    ]
    for row, name in enumerate(sorted(content)):
        theirs = np.asarray(Image.open(io.BytesIO(content[name])).convert("RGB"))
        assert np.array_equal(images.pixels[row], theirs)
    assert images.classes == ("cat", "dog") and images.splits() == {"test": 6, "train": 6}
    assert len(images) == 12 and images.size == (20, 20)
    assert images.select("label=dog").tolist() == [3, 4, 5, 9, 10, 11]


@pytest.mark.parametrize("kind", [("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.tgz", "w:gz")])
@pytest.mark.parametrize("prefix", ["", "./", "cifar/images/"])
def test_an_archive_gives_the_set_that_its_files_give(tmp_path, kind, prefix):
    """Whatever the order inside, compression, and folder around everything."""
    content = files()
    write_images(tmp_path / "folder.images", folder(tmp_path / "src", content))
    source = archive(tmp_path / kind[0], content, mode=kind[1], prefix=prefix)
    report = write_images(tmp_path / "tar.images", source)
    ours, theirs = ImageSet(tmp_path / "tar.images"), ImageSet(tmp_path / "folder.images")
    assert rows(ours) == rows(theirs) and ours.pixels.tobytes() == theirs.pixels.tobytes()
    assert any("cifar/images/" in note for note in report.notes) == (prefix == "cifar/images/")


def test_without_splits_the_last_of_each_class_are_held_out(tmp_path):
    """By name, as for videos; the note counts them."""
    report = write_images(
        tmp_path / "a.images", folder(tmp_path / "src", files(("",), 5)), val_fraction=0.4
    )
    held = {row["sample"] for row in rows(ImageSet(tmp_path / "a.images")) if row["split"] == "val"}
    assert {name.split(".")[0] for name in held} == {"cat/3", "cat/4", "dog/3", "dog/4"}
    assert "4 of 10" in report.notes[0]


def test_a_limit_takes_the_first_of_each_class_and_split(tmp_path):
    """By name, after everything was listed."""
    source = archive(tmp_path / "a.tar", files())
    write_images(tmp_path / "a.images", source, limit=2)
    names = [row["sample"].split(".")[0] for row in rows(ImageSet(tmp_path / "a.images"))]
    assert names == [
        f"{split}/{label}/{n}" for split in ("test", "train") for label in ("cat", "dog")
        for n in (0, 1)
    ]  # fmt: skip


def test_a_size_takes_the_centre_square(tmp_path):
    """Against Pillow's own crop, then resize."""
    wide, tall = picture(48, 32), picture(32, 64)
    content = {"train/a/wide.png": encoded(wide), "train/b/tall.png": encoded(tall)}
    write_images(tmp_path / "a.images", folder(tmp_path / "src", content), size=16)
    images = ImageSet(tmp_path / "a.images")
    for row, (image, box) in enumerate([(wide, (8, 0, 40, 32)), (tall, (0, 16, 32, 48))]):
        theirs = np.asarray(image.crop(box).resize((16, 16), Image.Resampling.BICUBIC))
        # The filter may see pixels beyond the box, or not: edges differ. The rest is rounding.
        gap = np.abs(images.pixels[row].astype(int) - theirs)[3:-3, 3:-3]
        assert gap.max() <= 1


def test_several_sizes_without_a_size_are_an_error_that_shows_two(tmp_path):
    """And nothing is made."""
    content = files() | {"train/cat/9.png": encoded(picture(24, 20))}
    with pytest.raises(ConfigError, match=r"several sizes .*20x20.*train/cat/9\.png 24x20.*--size"):
        write_images(tmp_path / "a.images", folder(tmp_path / "src", content))
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_every_kind_of_pixel_becomes_rgb(tmp_path):
    """Flat colours, so that the expectation is a number: grey, 16-bit grey, palette, CMYK,
    transparent, turned by EXIF."""
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise: the left column becomes the top row
    turned = np.zeros((8, 8, 3), np.uint8)
    turned[:, 0] = 255
    content = {
        "train/a/0.png": encoded(Image.new("L", (8, 8), 77)),
        "train/a/1.png": encoded(Image.fromarray(np.full((8, 8), 200 * 256 + 9, np.uint16))),
        "train/a/2.png": encoded(Image.new("RGB", (8, 8), (10, 200, 30)).quantize(2)),
        "train/a/3.jpg": encoded(Image.new("CMYK", (8, 8), (255, 0, 0, 51)), "JPEG", quality=100),
        "train/a/4.png": encoded(Image.new("RGBA", (8, 8), (10, 20, 30, 0))),
        "train/a/5.jpg": encoded(Image.fromarray(turned), "JPEG", quality=100, exif=exif),
    }
    write_images(tmp_path / "a.images", folder(tmp_path / "src", content))
    pixels = ImageSet(tmp_path / "a.images").pixels.astype(int)
    colours = [(77,) * 3, (200,) * 3, (10, 200, 30), (0, 204, 204), (10, 20, 30)]
    for row, colour in enumerate(colours):
        assert np.abs(pixels[row] - colour).max() <= 2, row
    assert pixels[5][0].min() > 240 and pixels[5][4:].max() < 16


BAD = {
    "train/cat/cut.jpg": (encoded(picture(), "JPEG")[:-40], "is damaged: image file is truncated"),
    "train/cat/empty.png": (b"", "is empty (0 bytes)"),
    "train/cat/text.png": (b"not an image at all", "is no JPEG, PNG or BMP image"),
    "train/cat/anim.gif": (encoded(picture(), "GIF"), "is no JPEG, PNG or BMP image"),
    "train/cat/wide.png": (claiming(5000, 20), "has 5000x20 pixels; the largest side read is 4096"),
    "train/cat/bomb.png": (claiming(60000, 60000), "is larger than 4096x4096 pixels"),
    "train/cat/deep.png": (encoded(Image.new("F", (20, 20)), "TIFF"), "is no JPEG, PNG or BMP"),
    "train/dog/film.png": (
        encoded(picture(), save_all=True, append_images=[picture()]),
        "is animated, with 2 pictures: pack it as a video",
    ),
}


@pytest.mark.parametrize("packed", [True, False])
def test_unsound_images_are_refused_by_name_and_never_replaced(tmp_path, packed):
    """All others keep their own pixels and labels; the reasons are in images.json."""
    sound = files()
    content = sound | {name: data for name, (data, _) in BAD.items()}
    source = archive(tmp_path / "a.tar", content) if packed else folder(tmp_path / "src", content)
    report = write_images(tmp_path / "a.images", source)
    told = {failure.path: failure.reason for failure in report.refused}
    assert set(told) == set(BAD)
    for name, (_, reason) in BAD.items():
        assert told[name].startswith(reason)
    listed = json.loads((tmp_path / "a.images" / "images.json").read_text())["refused"]
    assert {row["path"]: row["reason"] for row in listed} == told
    write_images(tmp_path / "sound.images", folder(tmp_path / "sound", sound))
    ours, theirs = ImageSet(tmp_path / "a.images"), ImageSet(tmp_path / "sound.images")
    assert rows(ours) == rows(theirs) and ours.pixels.tobytes() == theirs.pixels.tobytes()


def test_files_that_claim_nothing_are_ignored_and_listed(tmp_path):
    """Hidden ones, other kinds, images outside class folders."""
    content = files() | {
        "README.md": b"read me", "train/notes.txt": b"", "train/cat/.thumb.png": b"x",
        "train/loose.png": encoded(picture()),
    }  # fmt: skip
    report = write_images(tmp_path / "a.images", folder(tmp_path / "src", content))
    assert {(failure.path, failure.reason) for failure in report.ignored} == {
        ("README.md", "not an image by its name"),
        ("train/notes.txt", "not an image by its name"),
        ("train/cat/.thumb.png", "a hidden file"),
        ("train/loose.png", "not in a class folder"),
    }
    assert not report.refused and report.samples == 12


def test_nothing_of_a_hostile_archive_leaves_it(tmp_path):
    """Names that lead outside, links, devices, sparse files, twice the same name: refused with
    their reasons; no file appears anywhere."""
    inside, png = tmp_path / "inside", encoded(picture())
    inside.mkdir()
    secret = tmp_path / "secret.png"
    secret.write_bytes(png)
    content = files()
    hostile = [
        member("../up.png", png),
        member("train/cat/../../../up.png", png),
        member(f"{tmp_path}/absolute.png", png),
        member("train/cat/link.png", type=tarfile.SYMTYPE, linkname=str(secret)),
        member("train/cat/hard.png", type=tarfile.LNKTYPE, linkname="train/cat/0.png"),
        member("train/cat/pipe.png", type=tarfile.FIFOTYPE),
        member("train/cat/zero.png", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        member("train/cat/0.png", png),
        member("train/cat/\x1b[2J.png", png),
        member("train/cat/\udce9.png", png),
    ]
    source = archive(inside / "a.tar", content, *hostile)
    before = set(tmp_path.rglob("*"))
    report = write_images(inside / "a.images", source)
    made = set(tmp_path.rglob("*")) - before
    names = ("", "/images.json", "/samples.parquet", "/pixels.npy")
    assert made == {inside / f"a.images{name}" for name in names}
    assert {(failure.path, failure.reason) for failure in report.refused} == {
        ("../up.png", "its name leads outside the archive"),
        ("train/cat/../../../up.png", "its name leads outside the archive"),
        (f"{tmp_path}/absolute.png", "its name leads outside the archive"),
        ("train/cat/link.png", f"a link to {str(secret)!r}"),
        ("train/cat/hard.png", "a link to 'train/cat/0.png'"),
        ("train/cat/pipe.png", "no file"),
        ("train/cat/zero.png", "no file"),
        ("train/cat/0.png", "the archive holds this name twice"),
        ("train/cat/\\x1b[2J.png", "its name holds bytes that are no text"),
        ("train/cat/\\udce9.png", "its name holds bytes that are no text"),
    }
    assert [row["sample"] for row in rows(ImageSet(inside / "a.images"))] == sorted(content)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_cut_off_anywhere_is_an_error(tmp_path, mode):
    """Also exactly between two files, where a reader could take the rest for absent."""
    name = "a.tar.gz" if mode == "w:gz" else "a.tar"
    whole = archive(tmp_path / name, files(count=2), mode=mode).read_bytes()
    # Of the plain archive only the last block of zeros may go: 10,240 bytes are padding.
    end = len(whole) if mode == "w:gz" else len(whole.rstrip(b"\0"))
    for at in [*range(1, end, 512), end - 1]:
        (tmp_path / name).write_bytes(whole[:at])
        with pytest.raises(PackError, match=r"is (damaged|cut off|no)|cannot be read"):
            write_images(tmp_path / "a.images", tmp_path / name)
        assert not (tmp_path / "a.images").exists()


@pytest.mark.parametrize(
    ("type", "size", "words"),
    [
        (tarfile.REGTYPE, 1 << 40, "is damaged"),
        (tarfile.REGTYPE, -(1 << 40), "is damaged"),
        (tarfile.XHDTYPE, 1 << 30, "a header of 1073741824 bytes"),
        (tarfile.GNUTYPE_LONGNAME, 1 << 30, "a header of 1073741824 bytes"),
    ],
)
def test_a_size_that_is_not_there_is_never_read(tmp_path, type, size, words):
    """A header that claims a terabyte of file, or a gigabyte of name."""
    info, _ = member("train/cat/huge.png")
    info.type, info.size = type, size
    block = info.tobuf(tarfile.GNU_FORMAT)
    path = archive(tmp_path / "a.tar", files())
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + bytes(-len(whole) % 512) + block + bytes(10240))
    with pytest.raises(PackError, match=words):
        write_images(tmp_path / "a.images", path)


def test_a_file_larger_than_any_image_is_refused_unread(tmp_path):
    """64 MiB and a byte of zeros, which gzip makes small."""
    big = [member("train/cat/big.png", bytes((64 << 20) + 1))]
    report = write_images(
        tmp_path / "a.images", archive(tmp_path / "a.tgz", files(), *big, mode="w:gz")
    )
    (failure,) = report.refused
    assert failure.path == "train/cat/big.png" and "largest image file read" in failure.reason


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"train/cat/a.txt": b""}, "no images in class folders"),
        ({"loose.png": b"x"}, "no images in class folders"),
        (files(("train/",)) | {"zebra/0.png": b"x"}, "split 'train' beside 'zebra'"),
        (files(("train/",)) | {"train/bird/a.txt": b""}, "class 'bird' is empty"),
        (files(("",)) | {"bird/a.txt": b""}, "class 'bird' is empty"),
    ],
)
def test_folders_that_make_no_sense_are_named(tmp_path, content, words):
    """With what was expected."""
    with pytest.raises(AnnotationError, match=words):
        write_images(tmp_path / "a.images", folder(tmp_path / "src", content))


def test_no_sound_image_is_an_error_with_the_first_reason(tmp_path):
    """And nothing is left behind."""
    source = folder(tmp_path / "src", {"train/a/0.png": b"", "train/b/1.png": b""})
    with pytest.raises(PackError, match=r"none of 2 images is sound.*train/a/0\.png is empty"):
        write_images(tmp_path / "a.images", source)
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_an_interrupted_run_leaves_nothing_and_a_killed_one_does_not_hinder(tmp_path):
    """What a kill leaves lies beside the place, hidden, and is cleared by the next run."""
    source = folder(tmp_path / "src", files())

    def interrupt(done, total):
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_images(tmp_path / "a.images", source, on_progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["src"]
    (tmp_path / ".a.images.making").mkdir()
    for name in ("pixels.raw", "samples.parquet.7.tmp"):
        (tmp_path / ".a.images.making" / name).write_bytes(b"half")
    write_images(tmp_path / "a.images", source)
    assert {path.name for path in tmp_path.iterdir()} == {"src", "a.images"}
    held = {path.name for path in (tmp_path / "a.images").iterdir()}
    assert held == {"images.json", "samples.parquet", "pixels.npy"}


def test_a_set_is_kept_until_it_is_to_be_replaced(tmp_path):
    """The same source: complete already. Another: refused, then replaced with overwrite; a failing
    replacement leaves the old one."""
    source = folder(tmp_path / "src", files())
    made = write_images(tmp_path / "a.images", source)
    again = write_images(tmp_path / "a.images", source)
    assert again.was_complete and again.counts() == made.counts()
    with pytest.raises(PackError, match="other images or settings"):
        write_images(tmp_path / "a.images", source, limit=1)
    with pytest.raises(ConfigError, match="no such folder or archive"):
        write_images(tmp_path / "a.images", tmp_path / "gone", overwrite=True)
    assert len(ImageSet(tmp_path / "a.images")) == 12
    write_images(tmp_path / "a.images", source, limit=1, overwrite=True)
    assert len(ImageSet(tmp_path / "a.images")) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"src", "a.images"}


def test_what_is_no_image_set_is_never_overwritten(tmp_path):
    """Neither another folder, nor a file, nor a set that somebody put something into."""
    source = folder(tmp_path / "src", files())
    folder(tmp_path / "mine", {"thesis.txt": b"years"})
    for out in ("mine", "mine/thesis.txt"):
        with pytest.raises(ConfigError, match="is no image set"):
            write_images(tmp_path / out, source, overwrite=True)
    write_images(tmp_path / "a.images", source)
    folder(tmp_path / "a.images", {"thesis.txt": b"years"})
    with pytest.raises(ConfigError, match="is no image set"):
        write_images(tmp_path / "a.images", source, limit=1, overwrite=True)
    for kept in ("mine", "a.images"):
        assert (tmp_path / kept / "thesis.txt").read_bytes() == b"years"


@pytest.fixture
def made(tmp_path):
    write_images(tmp_path / "a.images", folder(tmp_path / "src", files()))
    return tmp_path / "a.images"


def test_damage_is_named_when_a_set_is_opened(made):
    """Too short, another shape, pickled objects, no table, a newer version, no manifest."""
    pixels = made / "pixels.npy"
    whole, images = pixels.read_bytes(), np.load(pixels)
    pixels.write_bytes(whole[:-1])
    with pytest.raises(PackError, match=r"pixels\.npy is damaged"):
        ImageSet(made)
    for array in (images[:-1], images.astype(np.int16), np.array([print], dtype=object)):
        np.save(pixels, array, allow_pickle=True)
        with pytest.raises(PackError, match=r"pixels\.npy"):
            ImageSet(made)
    pixels.write_bytes(whole)
    manifest = made / "images.json"
    meta = json.loads(manifest.read_text())
    for change, words in (
        ({"version": 99}, "version 99"), ({"format": "x"}, "does not describe"),
        ({"size": None}, "no size"), ({"classes": [1]}, "no list of classes"),
    ):  # fmt: skip
        manifest.write_text(json.dumps(meta | change))
        with pytest.raises(PackError, match=words):
            ImageSet(made)
    manifest.unlink()
    with pytest.raises(PackError, match="is no image set"):
        ImageSet(made)


def test_pixels_can_be_changed_in_memory_only(made):
    """The file keeps its content."""
    before = (made / "pixels.npy").read_bytes()
    ImageSet(made).pixels[:] = 0
    assert (made / "pixels.npy").read_bytes() == before


def test_open_data_tells_packs_from_image_sets(made, clips_pack, tmp_path):
    """By the manifest; neither is an error."""
    assert isinstance(open_data(made), ImageSet) and isinstance(open_data(clips_pack), Pack)
    with pytest.raises(PackError, match="is no pack"):
        open_data(tmp_path)


def test_an_image_reads_like_a_video_of_one_frame(made):
    """What shows packs shows image sets."""
    images = ImageSet(made)
    info = images.info(3)
    assert (info.id, info.label, info.split) == (images.samples.column("sample")[3].as_py(), "dog",
                                                 "test")  # fmt: skip
    assert (info.num_frames, info.width, info.height) == (1, 20, 20)
    assert np.array_equal(images.read(3, [0, 0]), np.stack([images.pixels[3]] * 2))
    assert images.read(3, [0], size=(10, 14)).shape == (1, 10, 14, 3)
    with pytest.raises(IndexError):
        images.read(3, [1])


def test_the_pack_command_tells_why_it_makes_an_image_set(tmp_path, capsys):
    """An archive; a folder that holds only images; both with the next command."""
    source = folder(tmp_path / "src", files())
    for path, why in ((archive(tmp_path / "a.tar", files()), "is an archive"),
                      (source, "holds 12 images and no videos")):  # fmt: skip
        out = tmp_path / f"{path.name}.images"
        assert main(["pack", str(path), "--out", str(out), "--json", str(tmp_path / "j")]) == 0
        said = capsys.readouterr()
        assert why in said.err and "12 images of 20x20 pixels in 2 classes" in said.out
        assert json.loads((tmp_path / "j").read_text())["samples"] == 12


def test_the_pack_command_fails_softly_on_refused_images(tmp_path, capsys):
    """Status 1, or 0 with --skip-bad, the reason on a line."""
    source = folder(tmp_path / "src", files() | {"train/cat/e.png": b""})
    command = ["pack", str(source), "--out", str(tmp_path / "a.images")]
    assert main(command) == 1
    assert "train/cat/e.png is empty (0 bytes)" in capsys.readouterr().out
    assert main([*command, "--skip-bad"]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stride", "8"], "--stride has no effect on an image set"),
        (["--images", "--labels", "x.csv"], "--labels has no effect on an image set"),
        (["--size", "4"], "--size 4: between 8 and 1024"),
        (["--limit", "0"], "--limit 0: at least 1"),
        (["--val-fraction", "1"], "--val-fraction 1"),
    ],
)
def test_options_that_do_nothing_or_cannot_be_are_refused(tmp_path, capsys, options, words):
    """In one line."""
    source = folder(tmp_path / "src", files())
    assert main(["pack", str(source), "--out", str(tmp_path / "a.images"), *options]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_videos_beside_images_are_still_packed_as_videos(tmp_path, film, capsys):
    """Options of image sets then have no effect and say so."""
    source = folder(tmp_path / "src", files())
    film(source / "train" / "cat" / "a.mp4", frames=4)
    assert main(["pack", str(source), "--out", str(tmp_path / "p"), "--limit", "3"]) == 2
    assert "--limit has no effect on a pack of videos" in capsys.readouterr().err


def test_cifar10_as_it_is_distributed(real_data):
    """Its archive: 10 classes of 5,000 and 1,000 images; the first ones against Pillow."""
    source = ArchiveSource(real_data / "cifar10" / "cifar10_jpg.tar.gz")
    plan = plan_images(source.list(), "it", val_fraction=0.2, limit=None, archive=True)
    counts = Counter((sample.split, sample.label) for sample in plan.samples)
    assert sorted(Counter(counts.values()).items()) == [(1000, 10), (5000, 10)]
    assert len(plan.samples) == len(plan.files) == 60_000 and not plan.notes
    first = sorted(plan.files.values(), key=lambda file: file.place)[:3]
    read = source.read({file.place: file for file in first})
    with tarfile.open(source.path, "r|gz") as tar:
        members = (member for member in tar if member.name.endswith(".jpg"))
        for (file, data), info in zip(read, members, strict=False):
            theirs = Image.open(tar.extractfile(info))
            assert (file.id, theirs.size) == (info.name, (32, 32))
            assert np.array_equal(np.asarray(decode_image(data)), np.asarray(theirs))
