//! What a traced program did with the files of one folder: which files and folders there were, what was written to them,
//! when they were synced, and which names they got.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    trace::{self, Call},
    tree::Tree,
    writes::Change,
};

/// The folder itself is the first node.
pub const ROOT: usize = 0;

/// A folder at the beginning, and all calls that changed it. A node is a file or a folder, whatever its name is.
#[derive(Debug, Default)]
pub struct Recording {
    /// The content of each node before the first call. `None` for a folder.
    pub nodes: Vec<Option<Vec<u8>>>,
    /// The names before the first call.
    pub first: Names,
    pub writes: Vec<Write>,
    pub syncs: Vec<Sync>,
    pub renames: Vec<Rename>,
    /// Names that a call may have changed which never returned.
    uncertain: Vec<(usize, String)>,
    /// Where each of these calls begins and ends in the trace, by its name.
    pub calls: BTreeMap<String, Vec<(usize, usize)>>,
}

/// A node for each folder and name in it.
pub type Names = BTreeMap<(usize, String), usize>;

/// A change of a file's content.
#[derive(Debug)]
pub struct Write {
    pub begin: usize,
    pub end: usize,
    pub node: usize,
    pub change: Change,
}

/// A sync that succeeded.
#[derive(Debug)]
pub struct Sync {
    pub begin: usize,
    pub end: usize,
    pub node: usize,
    /// An `fsync`: with what a reader of the data does not need (`fdatasync` leaves that out).
    pub with_metadata: bool,
}

/// A change of names, which is done as a whole: a file or folder is created, removed or renamed.
#[derive(Debug)]
pub struct Rename {
    pub begin: usize,
    pub end: usize,
    /// The node that a name of a folder stands for from now on.
    pub names: Vec<((usize, String), Option<usize>)>,
}

impl Recording {
    /// Reads a trace. `root` is the path of the folder as the program uses it, `tree` what it held before.
    pub fn new(root: &str, tree: &Tree, trace: &str) -> Result<Self, String> {
        let calls = trace::calls(trace)?;
        let mut recorder = Recorder::new(root, tree);
        // What depends on an offset or on a descriptor is read when a call begins, and results when it returns.
        let mut order: Vec<(usize, bool, usize)> = Vec::new();
        for (number, call) in
            calls.iter().enumerate().filter(|(_, call)| call.result.is_none_or(|it| it >= 0))
        {
            order.push((call.begin, true, number));
            order.push((call.end, false, number));
        }
        order.sort_unstable();
        for (position, begins, number) in order {
            let call = &calls[number];
            let done = match (begins, position) {
                (true, _) => recorder.begin(call),
                (false, usize::MAX) => {
                    recorder.never_returned(call);
                    continue;
                }
                (false, _) => recorder.end(call),
            };
            done.map_err(|reason| format!("{}({}...): {reason}", call.name, call.args[0]))?;
        }
        Ok(recorder.recording)
    }

    /// Returns the paths of all names that were given.
    pub fn created(&self) -> impl Iterator<Item = &str> {
        let all = self.renames.iter().flat_map(|rename| &rename.names);
        all.filter(|(_, node)| node.is_some()).map(|((_, name), _)| name.as_str())
    }

    /// Compares what the program left with what all of its calls result in. A difference means that it changed a file in a
    /// way that the trace does not have, or at another offset. What a call may have changed that never returned is left
    /// out.
    pub fn check(&self, found: &Tree) -> Result<(), String> {
        let mut names = self.first.clone();
        self.renames.iter().for_each(|change| give(&mut names, &change.names));
        let paths = paths(&names);
        let path_of = |node| match node {
            ROOT => Some(String::new()),
            _ => paths.iter().find(|(_, it)| *it == node).map(|(path, _)| path.clone()),
        };
        let unfinished = self.writes.iter().filter(|write| write.end == usize::MAX);
        let mut uncertain: Vec<_> = unfinished.filter_map(|write| path_of(write.node)).collect();
        let names = self.uncertain.iter().filter_map(|(folder, name)| Some(join(&path_of(*folder)?, name)));
        uncertain.extend(names);
        let is_certain = |path: &str| {
            let is_below = |from: &String| path.strip_prefix(from).is_some_and(|rest| rest.starts_with('/'));
            uncertain.iter().all(|it| it != path && !is_below(it))
        };
        let wanted = paths.iter().map(|(path, node)| (path.clone(), self.content(*node))).collect();
        let wanted = Tree(wanted);
        let all: BTreeSet<_> = found.0.keys().chain(wanted.0.keys()).collect();
        let wrong: Vec<_> = all
            .into_iter()
            .filter(|path| found.0.get(*path) != wanted.0.get(*path) && is_certain(path))
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("the trace does not explain {wrong:?}")) }
    }

    /// Returns the content of a file after all writes so far; `None` for a folder.
    fn content(&self, node: usize) -> Option<Vec<u8>> {
        let mut content = self.nodes[node].clone()?;
        let writes = self.writes.iter().filter(|write| write.node == node);
        writes.for_each(|write| write.change.apply(&mut content));
        Some(content)
    }
}

/// The state of the traced program, as far as later calls depend on it.
#[derive(Debug)]
struct Recorder<'a> {
    root: &'a str,
    names: Names,
    /// The open file of each descriptor. Descriptors of other files and folders are not here.
    descriptors: HashMap<i64, usize>,
    open: Vec<Open>,
    /// Where the last write of each file ends.
    written: HashMap<usize, usize>,
    recording: Recording,
}

#[derive(Debug)]
struct Open {
    node: usize,
    /// Unknown after an open of a file with content for reading, because reads are not traced. `lseek` returns it.
    offset: Option<usize>,
}

impl<'a> Recorder<'a> {
    fn new(root: &'a str, tree: &Tree) -> Self {
        let mut recording = Recording { nodes: vec![None], ..Recording::default() };
        for (path, content) in &tree.0 {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            let parent = find(&recording.first, ROOT, parent).unwrap();
            recording.first.insert((parent, name.to_owned()), recording.nodes.len());
            recording.nodes.push(content.clone());
        }
        Self {
            root,
            names: recording.first.clone(),
            descriptors: HashMap::new(),
            open: Vec::new(),
            written: HashMap::new(),
            recording,
        }
    }

    fn begin(&mut self, call: &Call<'_>) -> Result<(), String> {
        let Some(descriptor) = call.args[0].parse().ok().filter(|it| self.descriptors.contains_key(it))
        else {
            return self.refuse_on_other(call);
        };
        let open = self.descriptors[&descriptor];
        let node = self.open[open].node;
        let change = match call.name {
            // Another thread may get the number before this call is seen to return.
            "close" => {
                self.descriptors.remove(&descriptor);
                return Ok(());
            }
            "write" => {
                let bytes = written(call, 1)?;
                Change::Bytes(self.advance(open, bytes.len())?, bytes)
            }
            "pwrite64" => Change::Bytes(number(call, 3)?, written(call, 1)?),
            "ftruncate" => Change::Length(number(call, 1)?),
            "fallocate" if number(call, 1) == Ok(0) => Change::Least(number(call, 2)? + number(call, 3)?),
            "fallocate" if call.args[1] == "FALLOC_FL_KEEP_SIZE" => return Ok(()),
            "copy_file_range" => return self.copied_bytes(call, open),
            "fcntl" | "lseek" | "fsync" | "fdatasync" | "dup" | "dup2" | "dup3" | "openat" | "mkdirat"
            | "unlinkat" | "renameat" => return Ok(()),
            _ => return Err("a call on a file of the folder that the test does not know".into()),
        };
        self.write(call, node, change)
    }

    /// Records a copy out of a file of the folder. This is how an etcd that was built with Go 1.22 or later copies a damaged
    /// log file to `.broken` before it repairs it. Earlier ones read and write.
    fn copied_bytes(&mut self, call: &Call<'_>, from: usize) -> Result<(), String> {
        if call.args[1] != "NULL" || call.args[3] != "NULL" {
            return Err("a copy with offsets that the test does not know".into());
        }
        let content = self.recording.content(self.open[from].node).ok_or("a copy of a folder")?;
        let begin = self.advance(from, 0)?;
        let bytes = returned(call, content.get(begin..).unwrap_or_default().to_vec());
        self.advance(from, bytes.len())?;
        let Some(to) = self.opened_as(call.args[2]) else { return Ok(()) };
        let change = Change::Bytes(self.advance(to, bytes.len())?, bytes);
        self.write(call, self.open[to].node, change)
    }

    /// Moves the offset of an open file. Returns the offset before.
    fn advance(&mut self, open: usize, bytes: usize) -> Result<usize, String> {
        let offset = &mut self.open[open].offset;
        let before = offset.ok_or("the offset is not known: an lseek must come before")?;
        *offset = Some(before + bytes);
        Ok(before)
    }

    /// Refuses calls that change the folder without a descriptor in their first argument, and in another way than
    /// [`Recorder::end`] knows.
    fn refuse_on_other(&self, call: &Call<'_>) -> Result<(), String> {
        let is_here = |arg: &&str| trace::bytes(arg).is_ok_and(|path| path.starts_with(self.root.as_bytes()));
        let is_refused = match call.name {
            "open" | "openat2" | "creat" | "truncate" | "rename" | "renameat2" | "unlink" | "rmdir"
            | "mkdir" | "link" | "linkat" | "symlink" | "symlinkat" => call.args.iter().any(is_here),
            // A file that is mapped for writing changes without a call.
            "mmap" => {
                let open = call.args.get(4).and_then(|it| it.parse().ok());
                open.is_some_and(|it| self.descriptors.contains_key(&it))
                    && call.args[2].contains("PROT_WRITE")
                    && call.args[3].contains("MAP_SHARED")
            }
            "copy_file_range" | "sendfile" | "splice" => {
                call.args.iter().filter_map(|it| it.parse().ok()).any(|it| self.descriptors.contains_key(&it))
            }
            _ => false,
        };
        if is_refused { Err("a change of the folder that the test does not know".into()) } else { Ok(()) }
    }

    fn end(&mut self, call: &Call<'_>) -> Result<(), String> {
        let args = &call.args;
        match call.name {
            "openat" => self.opened(call, place(args, 0), args[2])?,
            "dup" | "dup2" | "dup3" => self.copied(call),
            "fcntl" if args[1].starts_with("F_DUPFD") => self.copied(call),
            "lseek" => {
                if let Some(open) = self.opened_as(args[0]) {
                    self.open[open].offset = call.result.and_then(|it| usize::try_from(it).ok());
                }
            }
            "fsync" | "fdatasync" => {
                if let Some(open) = self.opened_as(args[0]) {
                    let (node, with_metadata) = (self.open[open].node, call.name == "fsync");
                    self.recording.syncs.push(Sync { begin: call.begin, end: call.end, node, with_metadata });
                    self.note(call);
                }
            }
            "mkdirat" => {
                if let Some(name) = self.resolve(place(args, 0))? {
                    let node = self.add(None);
                    self.renamed(call, vec![(name, Some(node))]);
                }
            }
            "unlinkat" => {
                if let Some(name) = self.resolve(place(args, 0))? {
                    self.renamed(call, vec![(name, None)]);
                }
            }
            "renameat" => match (self.resolve(place(args, 0))?, self.resolve(place(args, 2))?) {
                (None, None) => {}
                (Some(from), Some(to)) => {
                    let node = *self.names.get(&from).ok_or("a rename of a file that is not there")?;
                    self.renamed(call, vec![(from, None), (to, Some(node))]);
                }
                _ => return Err("a rename into the folder or out of it".into()),
            },
            _ => {}
        }
        Ok(())
    }

    fn opened(&mut self, call: &Call<'_>, path: (&str, &str), flags: &str) -> Result<(), String> {
        let has = |flag: &str| flags.split('|').any(|it| it == flag);
        let mut is_empty = has("O_TRUNC");
        let node = if trace::bytes(path.1)? == self.root.as_bytes() {
            ROOT
        } else {
            let Some(name) = self.resolve(path)? else { return Ok(()) };
            match self.names.get(&name).copied() {
                Some(node) => {
                    if has("O_TRUNC") {
                        self.write(call, node, Change::Length(0))?;
                    }
                    node
                }
                None if has("O_CREAT") => {
                    let node = self.add(Some(Vec::new()));
                    self.renamed(call, vec![(name, Some(node))]);
                    is_empty = true;
                    node
                }
                None => return Err("an open of a file that is not there".into()),
            }
        };
        if let Some(descriptor) = call.result {
            let offset = ((has("O_WRONLY") || is_empty) && !has("O_APPEND")).then_some(0);
            self.descriptors.insert(descriptor, self.open.len());
            self.open.push(Open { node, offset });
        }
        Ok(())
    }

    fn never_returned(&mut self, call: &Call<'_>) {
        let places: &[usize] = match call.name {
            "openat" | "mkdirat" | "unlinkat" => &[0],
            "renameat" => &[0, 2],
            _ => &[],
        };
        for first in places {
            // If its folder is not there either, the call cannot succeed.
            if let Ok(Some(name)) = self.resolve(place(&call.args, *first)) {
                self.recording.uncertain.push(name);
            }
        }
    }

    fn copied(&mut self, call: &Call<'_>) {
        if let (Some(open), Some(descriptor)) = (self.opened_as(call.args[0]), call.result) {
            self.descriptors.insert(descriptor, open);
        }
    }

    fn opened_as(&self, descriptor: &str) -> Option<usize> {
        self.descriptors.get(&descriptor.parse().ok()?).copied()
    }

    /// Returns the folder and the name of a path; `None` if it is outside.
    fn resolve(&self, (folder, path): (&str, &str)) -> Result<Option<(usize, String)>, String> {
        let path = String::from_utf8(trace::bytes(path)?).map_err(|error| error.to_string())?;
        let inside = path.strip_prefix(self.root).and_then(|rest| rest.strip_prefix('/'));
        let (begin, inside) = match (inside, self.opened_as(folder)) {
            (Some(inside), _) => (ROOT, inside),
            (None, Some(open)) if !path.starts_with('/') => (self.open[open].node, path.as_str()),
            _ => return Ok(None),
        };
        let (parent, name) = inside.rsplit_once('/').unwrap_or(("", inside));
        let parent = find(&self.names, begin, parent).ok_or_else(|| format!("{path}: no such folder"))?;
        Ok(Some((parent, name.to_owned())))
    }

    fn add(&mut self, content: Option<Vec<u8>>) -> usize {
        self.recording.nodes.push(content);
        self.recording.nodes.len() - 1
    }

    /// Records a write. Two writes to one file at the same time are refused: the trace does not say which came first.
    fn write(&mut self, call: &Call<'_>, node: usize, change: Change) -> Result<(), String> {
        if self.written.insert(node, call.end).is_some_and(|end| end > call.begin) {
            return Err("a write to a file that has another one at the same time".into());
        }
        self.recording.writes.push(Write { begin: call.begin, end: call.end, node, change });
        self.note(call);
        Ok(())
    }

    fn renamed(&mut self, call: &Call<'_>, names: Vec<((usize, String), Option<usize>)>) {
        give(&mut self.names, &names);
        self.recording.renames.push(Rename { begin: call.begin, end: call.end, names });
        self.note(call);
    }

    fn note(&mut self, call: &Call<'_>) {
        self.recording.calls.entry(call.name.to_owned()).or_default().push((call.begin, call.end));
    }
}

/// Applies a change of names.
pub fn give(names: &mut Names, changes: &[((usize, String), Option<usize>)]) {
    for (name, node) in changes {
        match node {
            Some(node) => drop(names.insert(name.clone(), *node)),
            None => drop(names.remove(name)),
        }
    }
}

/// Returns the path of each node that has a name. A folder comes before what is in it.
pub fn paths(names: &Names) -> Vec<(String, usize)> {
    let (mut paths, mut folders) = (Vec::new(), vec![(ROOT, String::new())]);
    while let Some((folder, path)) = folders.pop() {
        for ((_, name), node) in names.range((folder, String::new())..(folder + 1, String::new())) {
            let path = join(&path, name);
            folders.push((*node, path.clone()));
            paths.push((path, *node));
        }
    }
    paths
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

fn find(names: &Names, begin: usize, path: &str) -> Option<usize> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    parts.try_fold(begin, |folder, name| names.get(&(folder, name.to_owned())).copied())
}

/// Returns two arguments from `first` on: the descriptor of a folder, and a path.
fn place<'a>(args: &[&'a str], first: usize) -> (&'a str, &'a str) {
    (args[first], args[first + 1])
}

fn number(call: &Call<'_>, arg: usize) -> Result<usize, String> {
    call.args[arg].parse().map_err(|_| format!("not a number: {}", call.args[arg]))
}

/// Returns what a write wrote.
fn written(call: &Call<'_>, arg: usize) -> Result<Vec<u8>, String> {
    Ok(returned(call, trace::bytes(call.args[arg])?))
}

/// Returns as many bytes as a call returned. A call that has not returned may have written all of them.
fn returned(call: &Call<'_>, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(call.result.and_then(|it| usize::try_from(it).ok()).unwrap_or(usize::MAX));
    bytes
}
