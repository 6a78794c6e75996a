"""Archives, friendly, damaged and hostile: everything within the target, or one line and nothing."""

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from dataclasses import replace

import pytest
from file_sizes import files_up_to
from hypothesis import given, settings
from hypothesis import strategies as st

from dystress_text.errors import DataError, UserError
from dystress_text.preparation import unpack as unpacking
from dystress_text.preparation.unpack import UnpackLimits, unpack

LIMITS = UnpackLimits(total_bytes=1 << 20, file_bytes=1 << 19, members=100, ratio=100)
NOISE = random.Random(0).randbytes(70_000)  # more than one piece
CONTENT = {"set/one.txt": b"one\n", "set/deep/two.bin": NOISE, "set/empty": b""}
PACKERS = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
KINDS = [*PACKERS, "zip"]


def tar_of(*entries, form=tarfile.PAX_FORMAT):
    """A tar archive of (name, content) or (name, content, attributes of the header)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for name, content, *attributes in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in attributes[0].items() if attributes else ():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def zip_of(*entries, method=zipfile.ZIP_DEFLATED):
    """A zip archive of (name, content) or (name, content, attributes of the entry)."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content, *attributes in entries:
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name, method
            for key, value in attributes[0].items() if attributes else ():
                setattr(info, key, value)
            archive.writestr(info, content)
    return stream.getvalue()


def archive_of(kind, *entries):
    return zip_of(*entries) if kind == "zip" else PACKERS[kind](tar_of(*entries))


def checksummed(block):
    """A tar header with its checksum put right."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def placed(tmp_path, content):
    (tmp_path / "the archive").write_bytes(content)
    return tmp_path / "the archive"


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(tmp_path, content, words, limits=LIMITS):
    """The archive is refused in one line that names it, and nothing is left."""
    archive = placed(tmp_path, content)
    with pytest.raises(UserError, match=words) as caught:
        unpack(archive, tmp_path / "target", limits)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert list(tmp_path.iterdir()) == [archive]
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_is_unpacked(tmp_path, kind):
    archive = placed(tmp_path, archive_of(kind, *CONTENT.items()))
    files = unpack(archive, tmp_path / "target", LIMITS)
    assert files == [tmp_path / "target" / name for name in CONTENT]
    assert tree(tmp_path / "target") == dict(sorted(CONTENT.items()))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "target", archive]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["short", "a" * 90 + "/" + "b" * 60, "very/" * 40 + "caf\xe9"])
def test_long_names_of_every_format(tmp_path, form, name):
    unpack(placed(tmp_path, tar_of((name, b"x"), ("after", b"y"), form=form)), tmp_path / "target", LIMITS)
    assert tree(tmp_path / "target") == {name: b"x", "after": b"y"}


def test_pax_sizes_and_shared_comments(tmp_path):
    shared = tarfile.TarInfo.create_pax_global_header({"comment": "a commit"})
    body = tar_of(("a", b"four", {"pax_headers": {"size": "4"}}))
    unpack(placed(tmp_path, shared + body), tmp_path / "target", LIMITS)
    assert tree(tmp_path / "target") == {"a": b"four"}


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_streams_may_follow_one_another(tmp_path, kind):
    whole = tar_of(*CONTENT.items())
    parts = [PACKERS[kind](part) for part in (whole[:5000], b"", whole[5000:])]
    padding = bytes(8 if kind != "xz" else 0)  # lzma knows no padding
    unpack(placed(tmp_path, b"".join(parts) + padding), tmp_path / "target", LIMITS)
    assert tree(tmp_path / "target") == dict(sorted(CONTENT.items()))


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_modes_are_ours(tmp_path, kind, umask):
    entries = {
        "tar": [("d/", b"", {"type": tarfile.DIRTYPE, "mode": 0}), ("d/f", b"", {"mode": 0o6777}), ("e/g", b"")],
        "zip": [("d/", b"", {"external_attr": 0o40000 << 16}), ("d/f", b"", {"external_attr": 0o106777 << 16}),
                ("e/g", b"")],
    }  # fmt: skip
    archive = placed(tmp_path, archive_of(kind, *entries[kind]))
    before = os.umask(umask)
    try:
        unpack(archive, tmp_path / "target", LIMITS)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "target").rglob("*")}
    assert modes == {"d": 0o755, "e": 0o755, "f": 0o644, "g": 0o644}
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o755


def test_folders_stand_for_themselves(tmp_path):
    folder = {"type": tarfile.DIRTYPE}
    content = tar_of(("./", b"", folder), ("a", b"", folder), ("./a/b/", b"", folder), ("./a/c", b"c"))
    assert unpack(placed(tmp_path, content), tmp_path / "target", LIMITS) == [tmp_path / "target" / "a" / "c"]
    assert sorted(path.name for path in (tmp_path / "target" / "a").iterdir()) == ["b", "c"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_litter_is_left_out(tmp_path, kind):
    litter = ["._set", "set/._one.txt", "__MACOSX/set/._one.txt", "__MACOSX/x", "set/.DS_Store"]
    entries = [("set/one.txt", b"1"), *((name, b"litter") for name in litter)]
    assert len(unpack(placed(tmp_path, archive_of(kind, *entries)), tmp_path / "target", LIMITS)) == 1
    assert tree(tmp_path / "target") == {"set/one.txt": b"1"}


HOSTILE_NAMES = [
    "../x", "a/../../x", "a/..", "..", "/x", "//x", "a//x", "C:/x", "c:x", "a/C:x", "a\\x", "..\\x", "", "a\nx",
    "a\x7fx", "a\x1b[2Jx", "\x85", "/", ".", "d/" * 65 + "x", "__MACOSX/../../x", "../._x",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_refused(tmp_path, kind, name):
    words = "lead out|control characters|levels deep|without a name|with content"
    content = archive_of(kind, ("a good one", b"x"), (name, b"x"))
    assert isinstance(refused(tmp_path, content, words), DataError)


def test_names_with_a_nul_are_refused(tmp_path):
    refused(tmp_path, zip_of(("a-b", b"x")).replace(b"a-b", b"a\0b"), r"'a\\x00b' .*control characters")
    refused(tmp_path, tar_of(("x", b"", {"pax_headers": {"path": "a\0b"}})), r"'a\\x00b' .*control characters")
    content = tar_of(("x" * 120 + "\0/../b", b"1"), form=tarfile.GNU_FORMAT)  # a long name ends at a NUL
    assert judged(tmp_path, content) == {"x" * 120: b"1"}


def test_names_that_are_not_utf8_are_refused(tmp_path):
    refused(tmp_path, checksummed(b"\xff" + tar_of(("a", b""))[1:512]) + bytes(1024), "broken UTF-8")


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a", "a"], "twice"), (["a", "./a"], "twice"), (["d/", "d/"], "twice"), (["a", "A"], "case only"),
        (["d/x", "D/y"], "case only"), (["stra\xdfe", "STRASSE"], "case only"), (["\xe9", "e\u0301"], "case only"),
        (["\u1fb4", "\u03b1\u0345\u0301"], "case only"),
        (["a", "a/b"], "below a file"), (["a/b", "a"], "a file and a folder"), (["a", "a/"], "twice|below"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_collide_are_refused(tmp_path, kind, names, words):
    entries = [(name, b"", {"type": tarfile.DIRTYPE} if name[-1] == "/" and kind == "tar" else {}) for name in names]
    refused(tmp_path, archive_of(kind, *entries), words)


SPECIAL = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE,
           b"M", b"V"]  # fmt: skip


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_not_a_file_is_refused_in_tar(tmp_path, kind):
    content = tar_of(("ok", b"x"), ("a", b"", {"type": kind, "linkname": "/etc/passwd"}), ("a/b", b"x"))
    refused(tmp_path, content, "'a' is a link, a device or another special file|sparse")


@pytest.mark.parametrize(
    ("name", "mode"),
    [("a", 0o120777), ("a/", 0o120777), ("a", 0o20666), ("a", 0o60666), ("a", 0o10666), ("a", 0o140666),
     ("a", 0o40755), ("a/", 0o100644)],
)  # fmt: skip
def test_what_is_not_a_file_is_refused_in_zip(tmp_path, name, mode):
    content = zip_of(("ok", b"x"), (name, b"", {"external_attr": mode << 16}))
    refused(tmp_path, content, f"'{name}' is a link, a device or another special file")


def test_methods_that_unpack_without_bound_and_secrets_are_refused(tmp_path):
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refused(tmp_path, zip_of(("a", bytes(9999)), method=method), "a method other than deflate")
    content = bytearray(zip_of(("a", b"x")))
    content[content.index(b"PK\1\2") + 8] |= 1
    refused(tmp_path, bytes(content), "'a' is encrypted")
    content = bytearray(zip_of(("a", b"x")))
    content[content.index(b"PK\1\2") + 6] = 99  # the version of the format that is needed
    refused(tmp_path, bytes(content), "damaged or cut short .zip file version 9.9")


def test_folders_with_content_are_refused(tmp_path):
    refused(tmp_path, zip_of(("a/", b"x")), "folder with content")
    refused(tmp_path, tar_of(("a/", b"x")), "folder with content")
    header = tar_of(("a/", b"", {"type": tarfile.DIRTYPE}))[:512]
    refused(tmp_path, checksummed(header[:124] + b"00000001000\0" + header[136:]) + bytes(2048), "folder with content")


@pytest.mark.parametrize("kind", KINDS)
def test_limits_are_exact(tmp_path, kind):
    content = archive_of(kind, ("a", NOISE), ("b", NOISE[:1000]))
    total = len(NOISE) + 1000
    fitting = UnpackLimits(total_bytes=total, file_bytes=len(NOISE), members=2)
    unpack(placed(tmp_path, content), tmp_path / "fits", fitting)
    for path in (tmp_path / "fits").iterdir():
        path.unlink()
    (tmp_path / "fits").rmdir()
    for limit, words in (
        ({"total_bytes": total - 1}, f"more than the allowed {total - 1} bytes"),
        ({"file_bytes": len(NOISE) - 1}, f"'a' is larger than the allowed {len(NOISE) - 1} bytes"),
        ({"members": 1}, "more than the allowed 1 members"),
    ):
        refused(tmp_path, content, words, replace(fitting, **limit))


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
def test_a_bomb_is_refused_by_its_ratio(tmp_path, kind):
    content = archive_of(kind, ("zeros", bytes(30 << 20)))
    generous = UnpackLimits(total_bytes=1 << 40, file_bytes=1 << 40)
    refused(tmp_path, content, "multiple of its own size", generous)
    refused(tmp_path, archive_of(kind, ("._zeros", bytes(30 << 20))), "multiple of its own size", generous)  # litter


def test_zeros_after_the_end_count_too(tmp_path):
    content = gzip.compress(tar_of(("a", b"x")) + bytes(30 << 20))
    refused(tmp_path, content, "multiple of its own size", UnpackLimits())


def test_entries_of_a_zip_that_share_content_are_counted_each(tmp_path):
    content = zip_of(("a", bytes(1 << 20)))
    start = content.index(b"PK\1\2")
    entry, end = content[start : content.index(b"PK\5\6")], content[content.index(b"PK\5\6") :]
    many = entry * 90
    end = end[:8] + struct.pack("<HHII", 90, 90, len(many), start) + end[20:]
    refused(tmp_path, content[:start] + many + end, "multiple|twice", UnpackLimits(ratio=1000))


def test_a_zips_header_is_not_trusted(tmp_path):
    content = bytearray(zip_of(("a", bytes(5000))))
    for signature, at in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        where = content.index(signature) + at
        content[where : where + 4] = struct.pack("<I", 6000)
    refused(tmp_path, bytes(content), "5000 bytes instead of 6000")
    for signature, at in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        where = content.index(signature) + at
        content[where : where + 4] = struct.pack("<I", 10)
    refused(tmp_path, bytes(content), "damaged")


def test_offsets_before_the_beginning_are_damage(tmp_path):
    content = bytearray(zip_of(("a", b"x")))
    where = content.index(b"PK\5\6") + 16
    content[where : where + 4] = struct.pack("<I", 5000)
    assert isinstance(refused(tmp_path, bytes(content), "damaged or cut short"), DataError)


def test_a_zips_directory_is_not_read_whatever_its_size(tmp_path):
    content = zip_of(*((f"{i}" * 40, b"") for i in range(2000)))
    refused(tmp_path, content, "directory of members is larger", UnpackLimits(members=10))


def test_a_tars_extensions_are_bounded(tmp_path):
    def header(kind, size):
        name = tar_of(("x", b""))[:512]
        return checksummed(name[:124] + b"%011o\0" % size + name[136:156] + kind + name[157:])

    packed = zlib.compressobj(wbits=31)
    huge = packed.compress(header(b"L", 1 << 32)) + packed.compress(bytes(1 << 20)) + packed.flush()
    refused(tmp_path, huge, "headers without bound")
    for kind in (b"L", b"x", b"g", b"K"):
        after = bytes(1 << 20)
        refused(tmp_path, tar_of(("a", b""))[:512] + header(kind, 1 << 32) + after, "headers without bound")
        refused(tmp_path, header(kind, 0) * 2000 + tar_of(("a", b"")), "headers without bound|damaged")
        refused(tmp_path, tar_of(("a", b""))[:512] + header(kind, 0) + bytes(1024), "header is damaged")


def test_a_sparse_files_map_is_bounded(tmp_path):
    endless = b"1\n" * (1 << 20)  # tarfile reads it as numbers of the map
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
    content = tar_of(("a", b"999999999\n" + endless, {"pax_headers": sparse}))
    refused(tmp_path, content, "headers without bound")


def test_a_damaged_header_is_not_the_end(tmp_path):
    whole = tar_of(("a", b"1"), ("b", b"2"), ("c", b"3"))
    for block in (bytes(512), b"x" * 512, whole[1024:1100] + b"9" + whole[1101:1536]):
        refused(tmp_path, whole[:1024] + block + whole[1536:], "damaged")


@pytest.mark.parametrize("records", [
    {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)},
    {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": f"{1 << 39},1"},
])  # fmt: skip
def test_sparse_files_are_refused(tmp_path, records):
    refused(tmp_path, tar_of(("a", b"1\n0\n1\n", {"pax_headers": records})), "sparse")


@pytest.mark.parametrize(
    "payload", [b"x", b"0 a=b\n", b"99 a=b\n", b"6 a=bc", b"5 ab\n", b"-6 a=b\n", b"6a=b\n", b" a=b\n"]
)
def test_damaged_pax_records_are_refused_or_have_no_effect(tmp_path, payload):
    content = tar_of(("x", payload, {"type": tarfile.XHDTYPE}), ("a", b"1"), form=tarfile.USTAR_FORMAT)
    assert judged(tmp_path, content) in (None, {"a": b"1"})


def test_bad_numbers_and_names_for_all_are_refused(tmp_path):
    for shared in ({"path": "x"}, {"size": "5"}):
        content = tarfile.TarInfo.create_pax_global_header(shared) + tar_of(("a", b"1"))
        refused(tmp_path, content, "for all members")
    for size in ("-1", "-512"):
        refused(tmp_path, tar_of(("a", b"", {"pax_headers": {"size": size}})), "negative size|header is damaged")
    first, header = tar_of(("first", b""))[:512], tar_of(("a", b""))[:512]
    for number in (b"-0000000001\0", b"00000000009\0", b"\xff" * 12):
        content = first + checksummed(header[:124] + number + header[136:]) + bytes(1024)
        refused(tmp_path, content, "negative size|header is damaged")
    endless = checksummed(header[:124] + b"\x80" + b"\xff" * 11 + header[136:])
    refused(tmp_path, endless + bytes(1024), "cut short")


@pytest.mark.parametrize(
    "content", [b"", b"text\n", b"text\n" * 500, b"PK", gzip.compress(b"text" * 500, mtime=0), bytes(100)]
)
def test_other_files_are_refused(tmp_path, content):
    refused(tmp_path, content, "neither a tar nor a zip archive")


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_cut_short_anywhere_is_refused(tmp_path, kind):
    content = archive_of(kind, *((name, data[:3000]) for name, data in CONTENT.items()))
    end = len(content) if kind != "tar" else len(content.rstrip(b"\0")) // 512 * 512 + 1536  # what follows is padding
    for size in sorted({*range(0, min(end, 600), 7), *range(0, end, 97), *range(512, end, 512), end - 1}):
        refused(tmp_path, content[:size], "cut short|damaged|neither")


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_content_that_fails_its_checksum_is_refused(tmp_path, kind):
    content = bytearray(archive_of(kind, *CONTENT.items()))
    content[-6 if kind == "gz" else len(content) // 2] ^= 1
    refused(tmp_path, bytes(content), "damaged")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_garbage_after_the_compressed_data_has_no_effect(tmp_path, kind):
    found = judged(tmp_path, archive_of(kind, ("a", b"x")) + b"garbage")
    assert found is None if kind == "gz" else found == {"a": b"x"}  # bz2 and xz pass it over


def test_nothing_is_overwritten(tmp_path):
    archive = placed(tmp_path, tar_of(("a", b"x")))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "file", "link"):
        with pytest.raises(UserError, match="exists already"):
            unpack(archive, tmp_path / name, LIMITS)
    assert (tmp_path / "file").read_text() == "mine"
    assert not list((tmp_path / "folder").iterdir())
    with pytest.raises(UserError, match="No such file"):
        unpack(archive, tmp_path / "none" / "target", LIMITS)
    with pytest.raises(UserError, match="is not a file"):
        unpack(tmp_path, tmp_path / "target", LIMITS)


def test_a_name_too_long_for_the_disk_is_one_line(tmp_path):
    refused(tmp_path, tar_of(("ok", b"x"), ("n" * 300, b"x")), "File name too long")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_full_disk_is_one_line(tmp_path, kind):
    archive = placed(tmp_path, archive_of(kind, *CONTENT.items()))
    with files_up_to(9000), pytest.raises(UserError) as caught:
        unpack(archive, tmp_path / "target", UnpackLimits())
    assert str(caught.value) == f"cannot unpack {archive} into {tmp_path / 'target'}: File too large"
    assert list(tmp_path.iterdir()) == [archive]


def judged(folder, content):
    """Unpack in a folder of its own: the files, or None for a refusal; nothing else may happen."""
    archive = placed(folder, content)
    said = None
    try:
        files = unpack(archive, folder / "target", LIMITS)
    except UserError as error:
        said = str(error)
    if said is not None:
        assert "\n" not in said
        assert list(folder.iterdir()) == [archive]
        return None
    assert sorted(folder.iterdir()) == [folder / "target", archive]
    inside = [path for path in (folder / "target").rglob("*") if not path.is_dir()]
    assert sorted(files) == sorted(inside)
    assert all(path.is_file() and not path.is_symlink() for path in inside)
    return tree(folder / "target")


PIECES = st.sampled_from(
    ["..", ".", "", "a", "A", "b", "C:", "\\", "\0", "\n", "._x", "__MACOSX", "\xe9", "e\u0301", "/"]
)
NAMES = st.one_of(st.lists(PIECES, max_size=5).map("/".join), st.text(max_size=12))


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(["tar", "gnu", "zip"]), names=st.lists(NAMES, min_size=1, max_size=4))
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_nobody_thought_of(tmp_path_factory, kind, names):
    entries = [(name, b"content") for name in names]
    try:
        content = zip_of(*entries) if kind == "zip" else tar_of(
            *entries, form=tarfile.GNU_FORMAT if kind == "gnu" else tarfile.PAX_FORMAT
        )  # fmt: skip
    except ValueError:  # a name that cannot be packed, such as half a surrogate pair
        return
    outer = tmp_path_factory.mktemp("outer")
    (outer / "inner").mkdir()
    judged(outer / "inner", content)
    assert list(outer.iterdir()) == [outer / "inner"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_damage_that_nobody_thought_of(tmp_path_factory, kind, data):
    files = {"set/one.txt": b"one\n" * 50, "set/two": NOISE[:700]}
    content = bytearray(archive_of(kind, *files.items()))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    found = judged(tmp_path_factory.mktemp("damage"), bytes(content))
    if kind != "tar" and found is not None:  # plain tar has no checksum of its content
        assert found == files


def test_a_zip_whose_directory_has_swallowed_a_member_is_refused(tmp_path):
    """The comment of the first member reaches over the second, and every checksum of what is left is right."""
    content = bytearray(archive_of("zip", ("set/one.txt", b"one\n"), ("set/two", b"two\n")))
    first = content.index(b"PK\1\2")
    second = content.index(b"PK\1\2", first + 4)
    end = content.index(b"PK\5\6")
    content[first + 32 : first + 34] = (end - second).to_bytes(2, "little")  # the comment's length
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(DataError, match="its end names 2 members, and its directory has 1"):
        unpack(tmp_path / "a.zip", tmp_path / "out", LIMITS)


def test_the_target_is_there_when_it_is_complete_and_not_before(tmp_path, monkeypatch):
    """So a process that is killed leaves no part of it."""
    seen = []

    def watched(found, folder, limits):
        seen.append((tmp_path / "target").exists())
        return write_all(found, folder, limits)

    write_all = unpacking._write_all
    monkeypatch.setattr(unpacking, "_write_all", watched)
    files = unpack(placed(tmp_path, tar_of(("a", b"x"))), tmp_path / "target", LIMITS)
    assert seen == [False]
    assert [file.read_bytes() for file in files] == [b"x"]
