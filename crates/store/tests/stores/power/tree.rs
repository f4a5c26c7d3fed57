//! The files and folders below a folder.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

/// Bytes that are written at once. Where all of them are zero, nothing is written: etcd makes files of 64 MB.
const BLOCK: usize = 4096;

/// The content of each path, which has no slash at its begin; `None` for a folder. A folder comes before what is in it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tree(pub BTreeMap<String, Option<Vec<u8>>>);

impl Tree {
    /// Reads `name` in a folder and what is below it.
    pub fn read(root: &Path, name: &str) -> Self {
        let mut tree = Self::default();
        tree.add(root, name);
        tree
    }

    fn add(&mut self, root: &Path, name: &str) {
        let path = root.join(name);
        if path.is_dir() {
            self.0.insert(name.to_owned(), None);
            for entry in fs::read_dir(path).unwrap() {
                self.add(root, &format!("{name}/{}", entry.unwrap().file_name().to_str().unwrap()));
            }
        } else if path.exists() {
            self.0.insert(name.to_owned(), Some(fs::read(path).unwrap()));
        }
    }

    /// Writes everything to a folder.
    pub fn write(&self, root: &Path) {
        for (path, content) in &self.0 {
            let path = root.join(path);
            let Some(content) = content else {
                fs::create_dir(path).unwrap();
                continue;
            };
            let file = File::create(path).unwrap();
            file.set_len(content.len() as u64).unwrap();
            for (number, block) in content.chunks(BLOCK).enumerate() {
                if block != &[0; BLOCK][..block.len()] {
                    file.write_all_at(block, (number * BLOCK) as u64).unwrap();
                }
            }
        }
    }
}
