"""Files and watching of the unmodified client."""

import time
import urllib.error
import urllib.parse
import urllib.request
import ssl
import uuid

import pytest
from e2b import FileNotFoundException, FileType, FilesystemEventType, InvalidArgumentException, NotFoundException
from e2b.sandbox.filesystem.filesystem import WriteEntry


@pytest.fixture
def folder(shared):
    path = f"/home/user/t-{uuid.uuid4().hex[:8]}"
    assert shared.files.make_dir(path) is True
    return path


@pytest.mark.parametrize("content", ["", "hello", "ä€😀\n", "x" * 2_000_000])
def test_text_round_trips(shared, folder, content):
    info = shared.files.write(f"{folder}/a.txt", content)
    assert (info.name, info.path) == ("a.txt", f"{folder}/a.txt")
    assert shared.files.read(f"{folder}/a.txt") == content


def test_bytes_and_stream(shared, folder):
    content = bytes(range(256)) * 1000
    shared.files.write(f"{folder}/b.bin", content)
    assert bytes(shared.files.read(f"{folder}/b.bin", format="bytes")) == content
    assert b"".join(shared.files.read(f"{folder}/b.bin", format="stream")) == content


def test_parents_are_made_and_owned_by_the_user(shared, folder):
    shared.files.write(f"{folder}/x/y/z.txt", "deep")
    assert shared.commands.run(f"stat -c '%U %a' {folder}/x {folder}/x/y/z.txt").stdout == "user 755\nuser 644\n"


def test_overwriting_keeps_one_file(shared, folder):
    shared.files.write(f"{folder}/a", "long content")
    shared.files.write(f"{folder}/a", "short")
    assert shared.files.read(f"{folder}/a") == "short"


def test_write_many(shared, folder):
    assert shared.files.write_files([]) == []
    entries = [WriteEntry(path=f"{folder}/{n}.txt", data=n * 3) for n in ("one", "two", 'qu"ote', "ümlaut", "sp ace")]
    infos = shared.files.write_files(entries)
    assert [i.path for i in infos] == [e["path"] for e in entries]
    for entry in entries:
        assert shared.files.read(entry["path"]) == entry["data"]


def test_a_relative_path_lies_in_the_home(shared):
    name = f"rel-{uuid.uuid4().hex[:6]}.txt"
    assert shared.files.write(name, "r").path == f"/home/user/{name}"
    assert shared.files.read(f"~/{name}") == "r"
    shared.files.remove(name)


def test_files_are_touched_with_roots_rights_and_belong_to_the_user_named(shared, folder):
    shared.files.write("/root/secret.txt", "s", user="root")
    assert shared.files.read("/root/secret.txt", user="root") == "s"
    # As on the hosted service: the user named says where relative paths begin and who owns what is made, no more.
    assert shared.files.read("/root/secret.txt", user="user") == "s"
    shared.files.write("/opt/made/by-user", "u")
    shared.files.write(f"{folder}/by-root", "r", user="root")
    owners = shared.commands.run(
        f"stat -c %U /root/secret.txt /opt/made /opt/made/by-user {folder}/by-root", user="root"
    ).stdout
    assert owners.split() == ["root", "user", "user", "root"]


def test_missing_file_and_directory(shared, folder):
    with pytest.raises(FileNotFoundException):
        shared.files.read(f"{folder}/nope")
    with pytest.raises(InvalidArgumentException):
        shared.files.read(folder)
    with pytest.raises(InvalidArgumentException):
        shared.files.write(folder, "x")


def test_exists_remove_make_dir(shared, folder):
    assert shared.files.exists(folder) is True
    assert shared.files.make_dir(folder) is False
    shared.files.write(f"{folder}/a", "x")
    shared.files.remove(f"{folder}/a")
    assert shared.files.exists(f"{folder}/a") is False
    shared.files.remove(f"{folder}/a")
    assert shared.files.make_dir(f"{folder}/p/q/r") is True


def test_rename(shared, folder):
    shared.files.write(f"{folder}/a", "x")
    assert shared.files.rename(f"{folder}/a", f"{folder}/new/b").path == f"{folder}/new/b"
    assert shared.files.read(f"{folder}/new/b") == "x"
    with pytest.raises((FileNotFoundException, NotFoundException)):
        shared.files.rename(f"{folder}/a", f"{folder}/c")


def test_list_in_lexical_depth_first_order(shared, folder):
    for path in ("b/2.txt", "a/1.txt", "a/c/3.txt", "z.txt"):
        shared.files.write(f"{folder}/{path}", "x")
    names = lambda depth: [e.path[len(folder) + 1:] for e in shared.files.list(folder, depth=depth)]
    assert names(1) == ["a", "b", "z.txt"]
    assert names(2) == ["a", "a/1.txt", "a/c", "b", "b/2.txt", "z.txt"]
    assert names(3) == ["a", "a/1.txt", "a/c", "a/c/3.txt", "b", "b/2.txt", "z.txt"]
    with pytest.raises((FileNotFoundException, NotFoundException)):
        shared.files.list(f"{folder}/none")
    with pytest.raises(InvalidArgumentException):
        shared.files.list(f"{folder}/z.txt")


def test_info(shared, folder):
    shared.files.write(f"{folder}/a.txt", "12345")
    info = shared.files.get_info(f"{folder}/a.txt")
    assert (info.name, info.type, info.size, info.mode, info.permissions) == ("a.txt", FileType.FILE, 5, 0o644, "-rw-r--r--")
    assert (info.owner, info.group, info.symlink_target) == ("user", "user", None)
    shared.commands.run(f"ln -s a.txt {folder}/link")
    link = shared.files.get_info(f"{folder}/link")
    assert link.symlink_target == f"{folder}/a.txt"
    assert link.permissions.startswith("L")
    assert shared.files.get_info(folder).type == FileType.DIR
    with pytest.raises((FileNotFoundException, NotFoundException)):
        shared.files.get_info(f"{folder}/none")


def test_watching_a_new_file_is_create_chmod_write(shared, folder):
    watch = shared.files.watch_dir(folder)
    shared.files.write(f"{folder}/new.txt", "x")
    events = watch.get_new_events()
    assert [(e.name, e.type) for e in events] == [
        ("new.txt", FilesystemEventType.CREATE), ("new.txt", FilesystemEventType.CHMOD), ("new.txt", FilesystemEventType.WRITE)
    ]
    shared.files.rename(f"{folder}/new.txt", f"{folder}/old.txt")
    kinds = {(e.name, e.type) for e in watch.get_new_events()}
    assert ("new.txt", FilesystemEventType.RENAME) in kinds
    shared.files.remove(f"{folder}/old.txt")
    assert ("old.txt", FilesystemEventType.REMOVE) in {(e.name, e.type) for e in watch.get_new_events()}
    watch.stop()


def test_recursive_watching_sees_new_directories(shared, folder):
    watch = shared.files.watch_dir(folder, recursive=True)
    shared.files.make_dir(f"{folder}/sub")
    watch.get_new_events()
    shared.files.write(f"{folder}/sub/f.txt", "x")
    assert ("sub/f.txt", FilesystemEventType.WRITE) in {(e.name, e.type) for e in watch.get_new_events()}
    watch.stop()


def test_watching_what_is_no_directory(shared, folder):
    shared.files.write(f"{folder}/f", "x")
    with pytest.raises(InvalidArgumentException):
        shared.files.watch_dir(f"{folder}/f")
    with pytest.raises((FileNotFoundException, NotFoundException)):
        shared.files.watch_dir(f"{folder}/none")


def test_signed_urls(shared, folder, mode, platform):
    if mode == "url":
        pytest.skip("a signed URL carries neither a host name nor a token: it needs the host-name mode (docs/guide/e2b.md)")
    context = ssl.create_default_context(cafile=platform.ca_file)
    shared.files.write(f"{folder}/a.txt", "signed")
    url = shared.download_url(f"{folder}/a.txt", user="user", use_signature_expiration=60)
    assert urllib.request.urlopen(url, context=context).read() == b"signed"
    late = shared.download_url(f"{folder}/a.txt", user="user", use_signature_expiration=-120)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(late, context=context)
    import json
    assert raised.value.code == 401
    assert json.loads(raised.value.read()) == {"code": 401, "message": "signature is already expired"}


def test_octet_stream_upload_and_gzip(shared, folder):
    import gzip
    import httpx
    client = shared._envd_api
    body = gzip.compress(b"packed" * 1000)
    answer = client.post("/files", params={"path": f"{folder}/g.txt"}, content=body,
                         headers={"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"})
    assert isinstance(answer, httpx.Response) and answer.status_code == 200, answer.text
    assert answer.json() == [{"name": "g.txt", "type": "file", "path": f"{folder}/g.txt"}]
    assert shared.files.read(f"{folder}/g.txt") == "packed" * 1000
    part = client.get("/files", params={"path": f"{folder}/g.txt"}, headers={"Range": "bytes=0-5", "Accept-Encoding": "identity"})
    assert (part.status_code, part.content) == (206, b"packed")
