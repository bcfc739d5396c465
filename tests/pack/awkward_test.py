"""Odd and broken files of the wild: each gives the frames it shows, or a reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from wild import NEAR_LOSSLESS, check_indexed, check_packed

from matinee.errors import MediaError
from matinee.media.packets import scan_packets
from matinee.media.probe import probe
from matinee.pack.annotations import Annotations, Sample, VideoFile
from matinee.pack.reading.reader import Pack
from matinee.pack.writing.index import index_videos
from matinee.pack.writing.writer import write_pack

_ASSETS = "libraries_test_data_src_test_assets_media_"

# What each file is, looked at one by one: its number of frames in a pack, or why it is refused.
PACKED = {
    "cmd_mp4ff-nallister_testdata_annexb.vvc": 6,
    "cmd_mp4ff-nallister_testdata_h264.mp4": 50,
    "hevc_testdata_deblocking_offsets.265": 1,
    "mp4_testdata_ed_hevc.mp4": 28,  # 27, of which one is missing: the frame before it is held
    _ASSETS + "avi_sample-unflagged-audio-keyframes.avi": 98,  # 96, two repeated by the AVI
    _ASSETS + "avi_sample-with-large-length.avi": 58,
    _ASSETS + "dash_multi-segment-with-emsg1_video.mp4": 30,
    _ASSETS + "flv_sample.flv": 30,
    _ASSETS + "mkv_sample_with_overlapping_srt.mkv": 30,
    _ASSETS + "mkv_sample_with_overlapping_ssa_subtitles.mkv": 30,
    _ASSETS + "mkv_sample_with_vtt_subtitles.mkv": 30,
    _ASSETS + "mp4_bbb_800x640_768kbps_30fps_avc_2b_firstpts_10_sec.mp4": 120,
    _ASSETS + "mp4_bbb_800x640_768kbps_30fps_vp9.mp4": 120,
    _ASSETS + "mp4_dolbyVision-hdr.MOV": 4,  # a fifth is cut off by the edit list
    _ASSETS + "mp4_sample_android_slow_motion.mp4": 16,  # 7, the first of which lasts ten
    _ASSETS + "mp4_sample_rotate_and_reflect.mp4": 30,
    _ASSETS + "mp4_sample_vvc.mp4": 120,
    _ASSETS + "mp4_sample_with_colr_mdcv_and_clli.mp4": 60,
    _ASSETS + "mp4_sample_with_increasing_timestamps.mp4": 30,
    _ASSETS + "mp4_trim_optimization_failure.mp4": 167,
    _ASSETS + "mp4_water_180_mvhevc_5frames.mov": 5,
    _ASSETS + "ts_sample_h262_mpeg_audio.ts": 3,
    _ASSETS + "ts_sample_h264_dts_audio.ts": 3,
    _ASSETS + "ts_sample_h264_iframes_only.ts": 30,
    _ASSETS + "ts_sample_h265_rps_pred.ts": 16,
    _ASSETS + "vp9_bear-vp9-odd-dimensions.webm": 30,
    "res_CI_MW_D.264": 100,
    "res_Cisco_Men_whisper_640x320_CAVLC_Bframe_9.264": 9,
    "res_NL1_Sony_D.jsv": 17,
    "res_SVA_NL1_B.264": 17,
    "demo.gif": 120,
    "webm.webm": 1,
    "mp4parse_capi_tests_video_colr_nclx_hlg.mp4": 3,
    "mp4parse_tests_bbb_sunflower_QCIF_30fps_h263_noaudio_1f.3gp": 1,
    "mp4parse_tests_bbb_sunflower_QCIF_30fps_mp4v_noaudio_1f.mp4": 1,
    "mp4parse_tests_minimal.mp4": 1,
    "mp4parse_tests_tiny_av1.mp4": 1,
    "test_resources_av1_video.mkv": 125,
    "test_resources_h265_10bits.mp4": 30,
    "test_resources_h265_video.mp4": 10,
    "vp80-00-comprehensive-003.ivf": 49,
    "vp80-00-comprehensive-010.ivf": 57,
    "vp80-03-segmentation-1410.ivf": 30,
    "vp80-03-segmentation-1414.ivf": 30,
}
REFUSED = {
    "cmd_mp4ff-decrypt_testdata_PIFF_video_complseg-1.0001.mp4": "encrypted",
    "examples_add-sidx_testdata_clear_with_enc_boxes.mp4": "cannot be opened",  # no moov
    "examples_combine-segs_testdata_V300_1.m4s": "cannot be opened",  # a segment without its start
    _ASSETS + "cmaf_multi-segment_audio_1.m4s": "cannot be opened",
    _ASSETS + "cmaf_multi-segment_video_6.m4s": "cannot be opened",
    "mp4_testdata_av1_multitile_init.mp4": "without frames",  # a start without segments
    "mp4_testdata_golden_init_video.mp4": "without frames",
    "mp4_testdata_hvc1_init.mp4": "without frames",
    "testdata_sample_init.encv.mp4": "without frames",
    "mp4parse_capi_tests_bipbop_cbcs_video_init.mp4": "without frames",
    "mp4parse_tests_bipbop_480wp_1001kbps-cenc-video-key1-init.mp4": "without frames",
    "AudioVideoInterleave.avi": "without frames",
    "WindowsMediaVideo.wmv": "without frames",
    _ASSETS + "mkv_sample_with_dts_hd_ma.mkv": "no video stream",
    _ASSETS + "mkv_sample_with_opus_audio.mkv": "no video stream",
    _ASSETS + "mp4_sample_ac3_aac.mp4": "no video stream",
    _ASSETS + "mp4_sample_ac4_level4.mp4": "no video stream",
    _ASSETS + "mp4_sample_eac3joc_fragmented.mp4": "no video stream",
    _ASSETS + "mp4_sample_fpcm_64le.mp4": "no video stream",
    _ASSETS + "ts_sample_ait.ts": "no video stream",
    _ASSETS + "ts_sample_dts_hd_across_pes.ts": "no video stream",
    _ASSETS + "ts_sample_mpegh_bl_cicp1_multi.ts": "no video stream",
    _ASSETS + "ts_sample_mpegh_bl_cicp1_single.ts": "no video stream",
    _ASSETS + "mkv_subsample_encrypted_altref.webm": "does not decode",  # encrypted
    # 30 frames at 600 a second, beside 1.24 s of sound: the times are those of another unit.
    _ASSETS + "mkv_sample_with_vobsub.mkv": "claims 600 frames a second",
    "tests_test_data_corrupted.mp4": "damaged after frame",
    "FlashVideo.flv": "cannot be opened",
    "gif.gif": "no frame",
    "mp4parse_capi_tests_no_timescale.mp4": "damaged after frame",
    "mp4parse_capi_tests_zero_empty_stsc.mp4": "truncated: 1039 of 1040",
    "tests_fixtures_media_samples_corrupted.webm": "damaged after frame",  # green and smeared
    "tests_fixtures_media_samples_valid.m4v": "does not decode",  # nine bytes
}


@pytest.fixture(scope="module")
def annotations(real_data) -> Annotations:
    root = real_data / "awkward"
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name != "manifest.csv")
    videos = tuple(VideoFile(path.name, path) for path in files)
    assert {video.id for video in videos} == {*PACKED, *REFUSED}
    assert len(videos) == 76
    return Annotations(videos, tuple(Sample(v.id, v.id, label="x") for v in videos))


@pytest.fixture(scope="module")
def pack(annotations, tmp_path_factory) -> Pack:
    out = tmp_path_factory.mktemp("awkward") / "pack"
    report = write_pack(out, annotations, NEAR_LOSSLESS, workers=2)
    reasons = {Path(failure.path).name: failure.reason for failure in report.refused}
    wrong = [
        f"{name}: {reasons.get(name)!r}"
        for name, reason in REFUSED.items()
        if reason not in reasons.get(name, "")
    ]
    assert not wrong, "\n".join(wrong)
    assert set(reasons) == set(REFUSED)
    return Pack(out)


def test_every_awkward_file_gives_the_frames_it_shows(pack, annotations):
    """Number, order, times, orientation, aspect and colours, as PyAV and NumPy alone have them."""
    paths = {video.id: video.path for video in annotations.videos}
    found = {pack.info(index).video: pack.info(index).num_frames for index in range(len(pack))}
    assert found == PACKED
    for index in range(len(pack)):
        check_packed(pack, index, paths[pack.info(index).video])


def test_every_awkward_file_is_probed_and_scanned_or_refused(annotations):
    """Only MediaError."""
    for video in annotations.videos:
        for action in (probe, scan_packets):
            try:
                action(video.path)
            except MediaError as error:
                assert str(error), video.id


def test_indexed_awkward_files_read_as_decoded_from_the_start(annotations, tmp_path):
    """Those that can be indexed give the same frames as PyAV; others are refused by name."""
    report = index_videos(tmp_path / "pack", annotations)
    refused = {Path(failure.path).name: failure.reason for failure in report.refused}
    # Indexing decodes one frame of each file: damage further on shows when it is read.
    damaged = {name for name, reason in REFUSED.items() if reason == "damaged after frame"}
    assert set(REFUSED) - damaged <= set(refused)
    assert all(refused.values()) and report.videos >= 15
    pack = Pack(tmp_path / "pack")
    paths = {video.id: video.path for video in annotations.videos}
    for index in range(len(pack)):
        info = pack.info(index)
        long = info.width * info.height * info.num_frames > 40_000_000  # seconds, for nothing new
        if info.video not in damaged and not long:
            check_indexed(pack, index, paths[info.video], frames=6)
