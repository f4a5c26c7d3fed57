use std::{collections::BTreeMap, fmt::Write};

use super::{super::writes::SECTOR, *};

/// A trace of calls, with paths and texts as strace writes them.
#[derive(Debug, Default)]
struct Script(String);

impl Script {
    fn call(mut self, text: &str) -> Self {
        let parts = text.split('\'').enumerate().map(|(number, part)| {
            let digits = |part: &str| {
                part.bytes().fold(String::new(), |mut text, byte| {
                    write!(text, "\\x{byte:02x}").unwrap();
                    text
                })
            };
            if number % 2 == 1 { format!("\"{}\"", digits(part)) } else { part.to_owned() }
        });
        let line: String = parts.collect();
        // The thread is 7, unless the text begins with the number of another one.
        let thread = if line.starts_with(char::is_numeric) { "" } else { "7 " };
        writeln!(self.0, "{thread}{line}").unwrap();
        self
    }

    /// Opens a file as descriptor 3, which is created if it is not there.
    fn open(self, path: &str) -> Self {
        self.call(&format!("openat(AT_FDCWD, '/r/{path}', O_WRONLY|O_CREAT|O_CLOEXEC, 0600) = 3"))
    }

    fn write(self, text: &str) -> Self {
        let length = text.len();
        self.call(&format!("write(3, '{text}', {length}) = {length}"))
    }

    fn put(self, text: &str, offset: usize) -> Self {
        let length = text.len();
        self.call(&format!("pwrite64(3, '{text}', {length}, {offset}) = {length}"))
    }

    fn sync(self) -> Self {
        self.call("fdatasync(3) = 0")
    }

    fn end(&self) -> usize {
        self.0.len()
    }

    fn recording(&self, tree: &Tree) -> Recording {
        Recording::new("/r", tree, &self.0).unwrap()
    }

    /// Returns the file `a` as each of many losses of power at a position leaves it.
    fn all(&self, tree: &Tree, at: usize) -> Vec<Option<Vec<u8>>> {
        let recording = self.recording(tree);
        let mut all: Vec<_> = (0..2000)
            .map(|seed| recording.left(at, at, Some(&mut Rng::with_seed(seed))).tree.0.remove("a").flatten())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn tree(files: &[(&str, &str)]) -> Tree {
    Tree(files.iter().map(|(name, text)| ((*name).to_owned(), Some(text.as_bytes().to_vec()))).collect())
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with the content of a file that may be missing")]
fn text(content: &str) -> Option<Vec<u8>> {
    Some(content.as_bytes().to_vec())
}

#[test]
fn what_a_sync_covers_is_there_and_of_the_rest_any_part() {
    let script = Script::default().open("a").write("one").sync();
    let synced = script.end();
    assert_eq!(script.all(&Tree::default(), synced), [text("one")]);
    // Before the sync has returned, even the name is not certain.
    let mut wanted = vec![None, text(""), text("\0\0\0"), text("one")];
    assert_eq!(script.all(&Tree::default(), synced - 1), wanted);
    let script = script.write(" two");
    wanted = vec![text("one"), text("one\0\0\0\0"), text("one two")];
    assert_eq!(script.all(&Tree::default(), script.end()), wanted);
    // What begins later is not there.
    assert_eq!(script.all(&Tree::default(), synced), [text("one")]);
}

#[test]
fn a_write_that_returns_after_the_sync_began_is_not_covered() {
    let script = Script::default().open("a").call("8 fdatasync(3 <unfinished ...>").write("one");
    let script = script.call("8 <... fdatasync resumed>) = 0");
    assert!(script.all(&Tree::default(), script.end()).contains(&text("")));
    // A write that has not returned may be there, and may be lost.
    let script = Script::default().open("a").sync().call("write(3, 'one', 3 <unfinished ...>");
    let all = script.all(&Tree::default(), script.end());
    assert_eq!(all, [text(""), text("\0\0\0"), text("one")]);
}

#[test]
fn writes_of_two_threads_to_one_file_come_one_after_the_other() {
    let open = || Script::default().open("a").call("openat(AT_FDCWD, '/r/b', O_RDWR|O_CREAT, 0600) = 4");
    // Each thread has a file, or waits for the other thread.
    let script = open()
        .call("8 pwrite64(4, 'two', 3, 0 <unfinished ...>")
        .put("one", 0)
        .call("8 <... pwrite64 resumed>) = 3")
        .call("8 pwrite64(3, 'two', 3, 3 <unfinished ...>")
        .call("8 <... pwrite64 resumed>) = 3")
        .sync();
    assert_eq!(script.all(&Tree::default(), script.end()), [text("onetwo")]);
    for second in ["ftruncate(3, 0) = 0", "openat(AT_FDCWD, '/r/a', O_RDWR|O_TRUNC) = 5"] {
        let script = open().call("8 pwrite64(3, 'two', 3, 3 <unfinished ...>").call(second);
        let script = script.call("8 <... pwrite64 resumed>) = 3");
        Recording::new("/r", &Tree::default(), &script.0).unwrap_err();
    }
}

#[test]
fn a_failed_sync_covers_nothing() {
    let script = Script::default().open("a").write("one").call("fdatasync(3) = -1 EIO (Input/output error)");
    assert!(script.all(&Tree::default(), script.end()).contains(&None));
}

#[test]
fn a_sector_is_as_it_was_at_some_moment() {
    let base = tree(&[("a", &"0".repeat(3 * SECTOR))]);
    let script = Script::default().open("a");
    let script =
        script.put(&"1".repeat(SECTOR), 0).put(&"2".repeat(2 * SECTOR), SECTOR).put("3", 0).put("4", 1);
    let mut kinds = std::collections::BTreeSet::new();
    for content in script.all(&base, script.end()).into_iter().flatten() {
        assert_eq!(content.len(), 3 * SECTOR);
        let first = &content[..SECTOR];
        // The second write to a sector is not there without the first.
        let is_known = [&b"00"[..], b"11", b"31", b"34"].iter().any(|begin| first.starts_with(begin));
        assert!(is_known && first[2..].iter().all(|byte| *byte == first[2]), "{first:?}");
        assert_eq!(first[0] == b'0', first[2] == b'0');
        for sector in content[SECTOR..].chunks(SECTOR) {
            assert!([b'0', b'2'].contains(&sector[0]) && sector.iter().all(|byte| *byte == sector[0]));
        }
        kinds.insert((content[0], content[1], content[SECTOR], content[2 * SECTOR]));
    }
    // Sectors of one write survive by themselves, and each in other states than the others: 4 * 2 * 2 states.
    assert_eq!(kinds.len(), 16, "{kinds:?}");
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let base = tree(&[("a", &"0".repeat(3 * SECTOR))]);
    let length = 3 * SECTOR;
    let script = Script::default()
        .open("a")
        .call("ftruncate(3, 700) = 0")
        .call(&format!("fallocate(3, 0, 0, {length}) = 0"));
    let all = script.all(&base, script.end());
    let cut: String = "0".repeat(700);
    let grown = format!("{cut}{}", "\0".repeat(length - 700));
    assert_eq!(all, [text(&cut), text(&grown), text(&"0".repeat(length))]);
    // Neither is something there that was written after a cut which is lost.
    let script = script.put(&"5".repeat(SECTOR), 2 * SECTOR);
    for content in script.all(&base, script.end()).into_iter().flatten() {
        let is_cut = content.len() < length || content[SECTOR + 300] == 0;
        assert!(is_cut || content.iter().all(|byte| *byte == b'0'));
    }
}

#[test]
fn a_write_without_bytes_changes_nothing() {
    let mut content = b"one".to_vec();
    Change::Bytes(5, Vec::new()).apply(&mut content);
    assert_eq!(content, b"one");
}

#[test]
fn names_change_in_order_and_the_sync_of_a_folder_covers_them() {
    let base = tree(&[("a", "old"), ("new", "new")]);
    let script = Script::default()
        .call("renameat(AT_FDCWD, '/r/new', AT_FDCWD, '/r/a') = 0")
        .call("mkdirat(AT_FDCWD, '/r/folder', 0700) = 0")
        .call("openat(AT_FDCWD, '/r', O_RDONLY|O_CLOEXEC) = 4");
    let before = script.end();
    assert_eq!(script.all(&base, before), [text("new"), text("old")]);
    let recording = script.recording(&base);
    for seed in 0..100 {
        let left = recording.left(before, before, Some(&mut Rng::with_seed(seed))).tree;
        assert!(!left.0.contains_key("folder") || left.0["a"] == text("new"));
        assert!(left.0.contains_key("new") == (left.0["a"] == text("old")));
    }
    let script = script.call("fsync(4) = 0").call("unlinkat(AT_FDCWD, '/r/a', 0) = 0");
    let synced = recording_end(&script, "7 unlinkat");
    let recording = script.recording(&base);
    let left = recording.left(synced, synced, None).tree;
    assert_eq!(left.0, BTreeMap::from([("a".to_owned(), text("new")), ("folder".to_owned(), None)]));
    assert_eq!(script.all(&base, script.end()), [None, text("new")]);
}

fn recording_end(script: &Script, line: &str) -> usize {
    script.0.find(line).unwrap()
}

#[test]
fn a_file_keeps_what_it_has_when_its_folder_is_renamed() {
    let script = Script::default()
        .call("mkdirat(AT_FDCWD, '/r/tmp', 0700) = 0")
        .open("tmp/log")
        .write("one")
        .sync()
        .call("renameat(AT_FDCWD, '/r/tmp', AT_FDCWD, '/r/wal') = 0")
        .write("two")
        .call("fsync(3) = 0");
    let left = script.recording(&Tree::default()).left(script.end(), script.end(), None).tree;
    // The sync of the file does not cover the name of its folder.
    assert_eq!(left.0["tmp/log"], text("onetwo"));
    let script = script.call("openat(AT_FDCWD, '/r', O_RDONLY|O_CLOEXEC) = 4").call("fsync(4) = 0");
    let left = script.recording(&Tree::default()).left(script.end(), script.end(), None).tree;
    assert_eq!(left.0["wal/log"], text("onetwo"));
}

#[test]
fn a_disk_that_ignores_syncs_loses_what_was_synced() {
    let script = Script::default().open("a").write("one").sync();
    let honest_until = script.end();
    let script = script.write("two").sync();
    let recording = script.recording(&Tree::default());
    let left = |honest_until| recording.left(script.end(), honest_until, None).tree.0.remove("a").flatten();
    assert_eq!(left(script.end()), text("onetwo"));
    assert_eq!(left(honest_until), text("one"));
}

#[test]
fn offsets_and_descriptors_are_followed() {
    let base = tree(&[("a", "0123456789")]);
    let script = Script::default()
        .call("openat(AT_FDCWD, '/r/a', O_RDWR|O_CLOEXEC) = 5")
        .call("lseek(5, 4, SEEK_SET) = 4")
        .call("write(5, 'xy', 2) = 2")
        .call("fcntl(5, F_DUPFD_CLOEXEC, 0) = 6")
        .call("write(6, 'z', 1) = 1")
        .call("openat(AT_FDCWD, '/r/b', O_RDWR|O_CREAT|O_TRUNC|O_CLOEXEC, 0600) = 7")
        .call("write(7, 'new', 3) = 3")
        .call("fdatasync(7) = 0")
        .call("fdatasync(6) = 0")
        .call("close(5) = 0")
        .call("openat(AT_FDCWD, '/elsewhere', O_WRONLY) = 5")
        .call("write(5, 'q', 1) = 1");
    let left = script.recording(&base).left(script.end(), script.end(), None).tree;
    assert_eq!((&left.0["a"], &left.0["b"]), (&text("0123xyz789"), &text("new")));
}

#[test]
fn a_copy_within_the_folder_is_a_write() {
    let base = tree(&[("a", "0123456789")]);
    let script = Script::default()
        .call("openat(AT_FDCWD, '/r/a', O_RDWR|O_CLOEXEC) = 3")
        .call("openat(AT_FDCWD, '/r/a.broken', O_RDWR|O_CREAT|O_TRUNC|O_CLOEXEC, 0600) = 4")
        .call("lseek(3, 2, SEEK_SET) = 2")
        .call("copy_file_range(3, NULL, 4, NULL, 1000, 0) = 3")
        .call("copy_file_range(3, NULL, 4, NULL, 1000, 0) = 5")
        .call("copy_file_range(3, NULL, 4, NULL, 1000, 0) = 0")
        .call("write(4, 'x', 1) = 1")
        .call("fdatasync(4) = 0");
    let left = script.recording(&base).left(script.end(), script.end(), None).tree;
    assert_eq!((&left.0["a"], &left.0["a.broken"]), (&text("0123456789"), &text("23456789x")));
}

#[test]
fn what_the_trace_does_not_explain_is_found() {
    let script = Script::default().open("a").write("one");
    let check = |script: &Script, files| script.recording(&tree(&[("b", "two")])).check(&tree(files));
    assert_eq!(check(&script, &[("a", "one"), ("b", "two")]), Ok(()));
    for wrong in [&[("a", "one")][..], &[("a", "o"), ("b", "two")], &[("a", "one"), ("b", "two"), ("c", "")]]
    {
        check(&script, wrong).unwrap_err();
    }
    // Of a call that never returned nothing is known.
    let script = script
        .call("write(3, 'more', 4 <unfinished ...>")
        .call("8 renameat(AT_FDCWD, '/r/b', AT_FDCWD, '/r/c' <unfinished ...>");
    for left in [&[("a", "onemo"), ("b", "two")][..], &[("a", "one"), ("c", "two")]] {
        assert_eq!(check(&script, left), Ok(()));
    }
    check(&script, &[("a", "one"), ("b", "two"), ("d", "")]).unwrap_err();
}

#[test]
fn a_call_that_the_model_does_not_know_is_refused() {
    let open = || {
        Script::default()
            .call("openat(AT_FDCWD, '/r/a', O_RDWR|O_CLOEXEC) = 3")
            .call("openat(AT_FDCWD, '/r/b', O_RDWR|O_CREAT|O_TRUNC|O_CLOEXEC, 0600) = 4")
    };
    for call in [
        "write(3, 'x', 1) = 1",
        "pwritev(3, [{iov_base='x', iov_len=1}], 1, 0) = 1",
        "mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0) = 0x7f0000000000",
        "fallocate(3, FALLOC_FL_PUNCH_HOLE, 0, 5) = 0",
        // The first one reads from an offset that the trace does not have.
        "copy_file_range(3, NULL, 4, NULL, 1, 0) = 1",
        "copy_file_range(4, [0] => [1], 3, [0] => [1], 1, 0) = 1",
        "copy_file_range(9, NULL, 4, NULL, 1, 0) = 1",
        "openat2(AT_FDCWD, '/r/a', {flags=O_RDWR, resolve=0}, 24) = 5",
        "linkat(AT_FDCWD, '/r/a', AT_FDCWD, '/r/b', 0) = 0",
        "renameat(AT_FDCWD, '/r/a', AT_FDCWD, '/elsewhere', 0) = 0",
    ] {
        let script = open().call(call);
        Recording::new("/r", &tree(&[("a", "")]), &script.0).unwrap_err();
    }
    open()
        .call("mmap(NULL, 4096, PROT_READ, MAP_SHARED, 3, 0) = 0x7f0000000000")
        .recording(&tree(&[("a", "")]));
}
