//! Changes that no event has reported, such as those behind a symlink, on a network file system, or while the folder
//! cannot be watched. No event says either when their writer has finished, so they count when two readings have found
//! the same. Pure.

use std::{collections::BTreeMap, path::PathBuf};

use super::{
    File,
    contents::{Contents, Found},
};

/// What one reading has found: the new content of files, and `None` for those that are gone.
#[derive(Debug, Default)]
pub(super) struct Unsure(BTreeMap<PathBuf, Option<Vec<u8>>>);

impl Unsure {
    /// Returns true if another reading has to show whether changes stay.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Marks the changes that the last reading did not find as unfinished. `files` are those that were applied.
    pub(super) fn confirm(&mut self, contents: &mut Contents, files: &BTreeMap<PathBuf, File>) {
        let before = std::mem::take(&mut self.0);
        for (path, found) in contents.iter_mut() {
            let Found::Content(content) = found else { continue };
            let is_applied = files.get(path).is_some_and(|file| file.content.as_ref() == Some(content));
            if is_applied || before.get(path).is_some_and(|it| it.as_ref() == Some(content)) {
                continue;
            }
            self.0.insert(path.clone(), Some(std::mem::take(content)));
            *found = Found::Unfinished;
        }
        let was_missing = |path: &PathBuf| before.get(path).is_some_and(Option::is_none);
        self.doubt(contents, files.keys().filter(|path| !was_missing(path)));
    }

    /// Marks the files that are missing as unfinished, whatever the last reading has found.
    pub(super) fn doubt_missing(&mut self, contents: &mut Contents, files: &BTreeMap<PathBuf, File>) {
        self.0.clear();
        self.doubt(contents, files.keys());
    }

    fn doubt<'a>(&mut self, contents: &mut Contents, files: impl Iterator<Item = &'a PathBuf>) {
        for path in files {
            if !contents.contains_key(path) {
                self.0.insert(path.clone(), None);
                contents.insert(path.clone(), Found::Unfinished);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_when_it_stays() {
        let applied = |content: &str| File { content: Some(content.into()), ..File::default() };
        let files: BTreeMap<PathBuf, File> =
            [("a".into(), applied("1")), ("b".into(), applied("1"))].into_iter().collect();
        let mut unsure = Unsure::default();
        let mut read = |found: &[(&str, &str)]| {
            let mut contents: Contents = found
                .iter()
                .map(|(path, content)| ((*path).into(), Found::Content((*content).into())))
                .collect();
            unsure.confirm(&mut contents, &files);
            let text = |found| match found {
                Found::Content(content) => String::from_utf8(content).unwrap(),
                _ => "?".to_owned(),
            };
            let found: Vec<_> = contents.into_values().map(text).collect();
            (found.join(" "), unsure.is_any())
        };
        let all = |text: &str, is_any| (text.to_owned(), is_any);
        assert_eq!(read(&[("a", "1"), ("b", "1")]), all("1 1", false));
        assert_eq!(read(&[("a", "2"), ("b", "1")]), all("? 1", true));
        assert_eq!(read(&[("a", "22"), ("b", "1")]), all("? 1", true));
        assert_eq!(read(&[("a", "22"), ("b", "1")]), all("22 1", false));
        assert_eq!(read(&[("b", "1"), ("c", "3")]), all("? 1 ?", true));
        assert_eq!(read(&[("a", "1"), ("b", "1"), ("c", "3")]), all("1 1 3", false));
        assert_eq!(read(&[("a", "1")]), all("1 ?", true));
        assert_eq!(read(&[("a", "1")]), all("1", false));
    }
}
