//! Changes that no event has reported, such as those behind a symlink, on a network file system, or while the folder
//! cannot be watched. No event says either when their writer has finished, so a change counts when it has stayed for a second.
//! Pure: no clock.

use std::{
    collections::BTreeMap,
    mem,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    File,
    contents::{Contents, Found},
};

/// How long a change has to stay to count.
pub(super) const STAYS: Duration = Duration::from_secs(1);

/// The changes of files that do not count yet.
#[derive(Debug, Default)]
pub(super) struct Unsure(BTreeMap<PathBuf, Doubt>);

/// A change of a file.
#[derive(Debug)]
struct Doubt {
    /// The new content. `None` if the file is missing.
    content: Option<Vec<u8>>,
    /// When it was found.
    since: Instant,
}

impl Unsure {
    /// Returns true if another reading has to show whether changes stay.
    pub(super) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Marks the changes that have not stayed long enough as unfinished or missing. `files` are those that were applied.
    pub(super) fn confirm(&mut self, contents: &mut Contents, files: &BTreeMap<PathBuf, File>, now: Instant) {
        let before = mem::take(&mut self.0);
        let since = |path: &Path, content: Option<&Vec<u8>>| {
            let doubt = before.get(path).filter(|doubt| doubt.content.as_ref() == content);
            doubt.map_or(now, |doubt| doubt.since)
        };
        for (path, found) in contents.iter_mut() {
            let Found::Content(content) = found else { continue };
            let is_applied = files.get(path).is_some_and(|file| file.content.as_ref() == Some(content));
            let since = since(path, Some(content));
            if is_applied || has_stayed(since, now) {
                continue;
            }
            self.0.insert(path.clone(), Doubt { content: Some(mem::take(content)), since });
            *found = Found::Unfinished;
        }
        self.doubt(contents, files, |path| Some(since(path, None)).filter(|since| !has_stayed(*since, now)));
    }

    /// Marks the files that are missing, whatever the last reading has found.
    pub(super) fn doubt_missing(
        &mut self,
        contents: &mut Contents,
        files: &BTreeMap<PathBuf, File>,
        now: Instant,
    ) {
        self.0.clear();
        self.doubt(contents, files, |_| Some(now));
    }

    /// Marks the files that are missing, but for those for which `since` returns `None`.
    fn doubt(
        &mut self,
        contents: &mut Contents,
        files: &BTreeMap<PathBuf, File>,
        since: impl Fn(&Path) -> Option<Instant>,
    ) {
        for path in files.keys() {
            if !contents.contains_key(path)
                && let Some(since) = since(path)
            {
                self.0.insert(path.clone(), Doubt { content: None, since });
                contents.insert(path.clone(), Found::Missing);
            }
        }
    }
}

fn has_stayed(since: Instant, now: Instant) -> bool {
    now >= since + STAYS
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
        let mut now = Instant::now();
        let mut read = |after: Duration, found: &[(&str, &str)]| {
            now += after;
            let mut contents: Contents = found
                .iter()
                .map(|(path, content)| ((*path).into(), Found::Content((*content).into())))
                .collect();
            unsure.confirm(&mut contents, &files, now);
            let text = |found| match found {
                Found::Content(content) => String::from_utf8(content).unwrap(),
                Found::Missing => "-".to_owned(),
                _ => "?".to_owned(),
            };
            let found: Vec<_> = contents.into_values().map(text).collect();
            (found.join(" "), unsure.is_any())
        };
        let all = |text: &str, is_any| (text.to_owned(), is_any);
        let short = STAYS / 2;
        assert_eq!(read(STAYS, &[("a", "1"), ("b", "1")]), all("1 1", false));
        assert_eq!(read(STAYS, &[("a", "2"), ("b", "1")]), all("? 1", true));
        assert_eq!(read(STAYS, &[("a", "22"), ("b", "1")]), all("? 1", true));
        assert_eq!(read(short, &[("a", "22"), ("b", "1")]), all("? 1", true));
        assert_eq!(read(short, &[("a", "22"), ("b", "1")]), all("22 1", false));
        assert_eq!(read(STAYS, &[("b", "1"), ("c", "3")]), all("- 1 ?", true));
        assert_eq!(read(short, &[("b", "1")]), all("- 1", true));
        assert_eq!(read(short, &[("b", "1"), ("c", "3")]), all("1 ?", true));
        assert_eq!(read(STAYS, &[("a", "1"), ("b", "1"), ("c", "3")]), all("1 1 3", false));
        assert_eq!(read(STAYS, &[("a", "1")]), all("1 -", true));
        assert_eq!(read(Duration::ZERO, &[("a", "1")]), all("1 -", true));
        assert_eq!(read(STAYS, &[("a", "1")]), all("1", false));
    }
}
