//! Reads manifests for programs without a store.

use std::collections::HashSet;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use portolan_schema::json::Value;

use super::contents::{self, Found};
use super::documents;

/// Most bytes of a file or stream: the objects of a large cluster in one file.
const LIMIT: u64 = 256 << 20;

/// An object of a manifest.
#[derive(Debug)]
pub struct Declared {
    /// Where it is: the file and the line at which its document starts.
    pub place: String,
    /// The object, as it is written.
    pub object: Value,
}

/// The objects of manifests.
#[derive(Debug, Default)]
pub struct Read {
    /// The objects, in the order of the files and their documents. Items of lists are objects of their own.
    pub objects: Vec<Declared>,
    /// The files and documents that cannot be read, each in one sentence that names it.
    pub faults: Vec<String>,
}

/// Reads a file, or the manifests of a folder without its subfolders. A document, or a file of the folder, that cannot be read
/// is a fault and does not affect the others.
///
/// # Errors
/// The path does not exist, or the file or folder that it names cannot be read or has more than 256 MiB.
pub fn read(path: &Path) -> io::Result<Read> {
    let mut read = Read::default();
    if !std::fs::metadata(path)?.is_dir() {
        let content = contents::read_regular(path, LIMIT).map_err(io::Error::other)?;
        add(&mut read, path, &content);
        return Ok(read);
    }
    for (path, found) in contents::read(path, &HashSet::new(), LIMIT)? {
        match found {
            Found::Content(content) => add(&mut read, &path, &content),
            Found::Unreadable(error) => read.faults.push(format!("{}: {error}", path.display())),
            // Only files that are named as unfinished are.
            Found::Unfinished | Found::Missing => {}
        }
    }
    Ok(read)
}

/// Reads the documents of a stream, such as the standard input. `name` is used in faults.
///
/// # Errors
/// The stream cannot be read, or has more than 256 MiB.
pub fn read_stream(name: &str, stream: impl io::Read) -> io::Result<Read> {
    let mut content = Vec::new();
    stream.take(LIMIT.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > LIMIT {
        return Err(io::Error::other(format!(
            "it has more than {LIMIT} bytes; leave out what is not needed"
        )));
    }
    Ok(parse(name, &content))
}

/// Reads the documents of a text. `name` is used in faults. A text that begins with a brace is JSON.
pub fn parse(name: &str, content: &[u8]) -> Read {
    let is_json = content.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let mut path = PathBuf::from(name);
    if is_json {
        path.set_extension("json");
    }
    let mut read = Read::default();
    for document in documents::split(&path, content) {
        take(&mut read, name, document);
    }
    read
}

fn add(read: &mut Read, path: &Path, content: &[u8]) {
    for document in documents::split(path, content) {
        take(read, &path.display().to_string(), document);
    }
}

fn take(read: &mut Read, name: &str, document: documents::Document) {
    let place = match document.item {
        Some(item) => format!("{name}:{} (item {item})", document.line),
        None => format!("{name}:{}", document.line),
    };
    match document.object {
        Ok(object) => read.objects.push(Declared { place, object }),
        Err(error) => {
            let error = error.to_string();
            // A parser's message may continue with an excerpt.
            read.faults.push(format!("{place}: {}", error.lines().next().unwrap_or_default()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn summary(read: &Read) -> Vec<String> {
        let name =
            |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
        read.objects.iter().map(|declared| name(&declared.object).unwrap_or_default()).collect()
    }

    #[test]
    fn one_bad_document_does_not_stop_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("a.yaml", "metadata: {name: a}\n---\n[\n---\nmetadata: {name: b}\n");
        write("b.json", r#"{"kind":"List","items":[{"metadata":{"name":"c"}},{"metadata":{"name":"d"}}]}"#);
        write("c.txt", "metadata: {name: e}");
        let read = read(folder.path()).unwrap();
        assert_eq!(summary(&read), ["a", "b", "c", "d"]);
        assert_eq!(read.faults.len(), 1, "{:?}", read.faults);
        assert!(read.faults.iter().all(|fault| fault.contains("a.yaml:2")), "{:?}", read.faults);
        let alone = super::read(&folder.path().join("c.txt")).unwrap();
        assert_eq!(summary(&alone), ["e"], "a file that is named may have any extension");
        assert!(super::read(&folder.path().join("nowhere")).is_err());
        assert!(super::read(Path::new("/dev/null")).is_err(), "a file that is named must be readable");
        let large = std::fs::File::create(folder.path().join("large.yaml")).unwrap();
        large.set_len(LIMIT + 1).unwrap();
        let error = super::read(&folder.path().join("large.yaml")).unwrap_err().to_string();
        assert!(error.contains("268435456 bytes"), "{error}");
    }

    #[test]
    fn a_text_may_be_yaml_or_json() {
        assert_eq!(summary(&parse("-", b"metadata: {name: a}\n---\nmetadata: {name: b}\n")), ["a", "b"]);
        assert_eq!(summary(&parse("-", b" {\"metadata\": {\"name\": \"a\"}}")), ["a"]);
        let bad = parse("-", b"{]");
        assert!(
            bad.objects.is_empty() && bad.faults.iter().all(|fault| fault.starts_with("-:1: ")),
            "{bad:?}"
        );
        assert_eq!(bad.faults.len(), 1);
    }
}
