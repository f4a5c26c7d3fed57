//! The disk alone: how long it takes to make a few pages durable, as a commit of the embedded store does.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use tempfile::TempDir;

use crate::statistics::Sample;

const ROUNDS: u64 = 400;
/// Pages that are written before each sync, behind those of the round before. The first page of the file is written, too.
const PAGES: u32 = 8;
const PAGE: [u8; 4096] = [0x5a; 4096];

/// Measures fdatasync(2) on the disk of the store.
pub(super) fn measure() -> anyhow::Result<Sample> {
    // The folder is where `Host::embedded` puts its store.
    let folder = TempDir::new()?;
    let file = File::create_new(folder.path().join("pages"))?;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let first = round.saturating_mul(PAGES.into()).saturating_add(1);
        for page in (first..first.saturating_add(PAGES.into())).chain([0]) {
            file.write_all_at(&PAGE, page.saturating_mul(PAGE.len() as u64))?;
        }
        let begin = Instant::now();
        file.sync_data()?;
        times.push(begin.elapsed());
    }
    Ok(times.into_iter().collect())
}
