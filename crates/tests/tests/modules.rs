//! Within a crate, modules use each other in one direction. A module and its submodules count as one. The root of a crate
//! counts as above all modules, also where they use what it defines. Modules named `tests` do not count. Calls of methods
//! are not followed.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::Visit;
use syn::{Attribute, ItemMod, UseTree};

/// The modules at the root of a crate, and for each module those that it uses, with one path that does so.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Collects the paths of a file that start at the root of its crate: the module at the root, and the whole path.
struct Paths {
    /// Where the code stands that is visited.
    module: Vec<String>,
    found: BTreeMap<String, String>,
}

impl Paths {
    fn take(&mut self, path: &[String]) {
        let from_root: Vec<&str> = match path.first().map(String::as_str) {
            Some("crate") => path.iter().skip(1).map(String::as_str).collect(),
            Some("super") => {
                let up = path.iter().take_while(|part| *part == "super").count();
                let Some(above) = self.module.len().checked_sub(up) else { return };
                self.module.iter().take(above).chain(path.iter().skip(up)).map(String::as_str).collect()
            }
            _ => return,
        };
        if let Some(first) = from_root.first() {
            self.found.entry((*first).to_owned()).or_insert_with(|| path.join("::"));
        }
    }

    fn take_tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.take_tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.take_tree(item, before)),
            UseTree::Name(name) => self.take(&with(&name.ident)),
            UseTree::Rename(name) => self.take(&with(&name.ident)),
            UseTree::Glob(_) => self.take(before),
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl Visit<'_> for Paths {
    fn visit_item(&mut self, item: &syn::Item) {
        if let syn::Item::Use(line) = item
            && is_test(&line.attrs)
        {
            return;
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &ItemMod) {
        if is_test(&module.attrs) {
            return;
        }
        self.module.push(module.ident.to_string());
        syn::visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, line: &syn::ItemUse) {
        self.take_tree(&line.tree, &[]);
    }

    /// Paths in the arguments of macros, if they start at the root.
    fn visit_macro(&mut self, invocation: &syn::Macro) {
        let text = invocation.tokens.to_string();
        for rest in text.split("crate").skip(1) {
            let Some(rest) = rest.trim_start().strip_prefix("::") else { continue };
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
            let name = rest.trim_start().split(|letter| !is_part(letter)).next().unwrap_or_default();
            self.take(&["crate".to_owned(), name.to_owned()]);
        }
        syn::visit::visit_macro(self, invocation);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.take(&parts);
        syn::visit::visit_path(self, path);
    }
}

/// Adds what the files of a folder use, whose own module has this path.
fn read(folder: &Path, module: &[String], uses: &mut Uses) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let inner = [module, std::slice::from_ref(&name)].concat();
        if name == "tests" {
            continue;
        }
        if path.is_dir() {
            read(&path, &inner, uses);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let own = if ["lib", "main"].contains(&name.as_str()) { Vec::new() } else { inner };
            let file = syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let mut paths = Paths { module: own.clone(), found: BTreeMap::new() };
            paths.visit_file(&file);
            let found =
                paths.found.into_iter().map(|(to, text)| (to, format!("{text} in {}", path.display())));
            let root = String::new();
            let entry = uses.entry(own.first().unwrap_or(&root).clone()).or_default();
            for (to, text) in found {
                entry.entry(to).or_insert(text);
            }
        }
    }
}

/// The names that the root of a crate exports, each with its module.
fn exports(folder: &Path, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    fn collect(tree: &UseTree, first: Option<&str>, into: &mut BTreeMap<String, String>) {
        match tree {
            UseTree::Path(path) => {
                let name = path.ident.to_string();
                let first = if ["crate", "self"].contains(&name.as_str()) {
                    None
                } else {
                    Some(first.unwrap_or(&name))
                };
                collect(&path.tree, first, into);
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| collect(item, first, into)),
            UseTree::Name(name) => into.extend(first.map(|first| (name.ident.to_string(), first.to_owned()))),
            UseTree::Rename(name) => {
                into.extend(first.map(|first| (name.rename.to_string(), first.to_owned())));
            }
            UseTree::Glob(_) => {}
        }
    }
    let mut all = BTreeMap::new();
    for name in ["lib.rs", "main.rs"] {
        let Ok(text) = std::fs::read_to_string(folder.join(name)) else { continue };
        for item in syn::parse_file(&text).unwrap().items {
            if let syn::Item::Use(line) = item {
                collect(&line.tree, None, &mut all);
            }
        }
    }
    all.retain(|_, module| modules.contains(module));
    all
}

/// The modules of a crate, and which uses which. A name that the root exports belongs to its module, and one that the root
/// defines itself to the root, which has the empty name.
fn uses(folder: &Path) -> Uses {
    let mut read_uses = Uses::new();
    read(folder, &[], &mut read_uses);
    let modules: BTreeSet<String> = read_uses.keys().cloned().collect();
    let exports = exports(folder, &modules);
    let mut all = Uses::new();
    // The root uses every module, since it declares them.
    for (module, used) in read_uses.into_iter().filter(|(module, _)| !module.is_empty()) {
        let target = |name: String| {
            if modules.contains(&name) { name } else { exports.get(&name).cloned().unwrap_or_default() }
        };
        let used = used.into_iter().map(|(name, text)| (target(name), text)).filter(|(to, _)| *to != module);
        all.insert(module.clone(), used.collect());
    }
    all
}

/// One circle, as the path that closes each step, if there is one.
fn circle(uses: &Uses) -> Option<Vec<String>> {
    let mut left = uses.clone();
    // A module that uses no module that is left is in no circle.
    while let Some(free) = left
        .iter()
        .find(|(_, used)| !used.keys().any(|to| left.contains_key(to)))
        .map(|(name, _)| name.clone())
    {
        left.remove(&free);
    }
    let mut at = left.keys().next()?.clone();
    let mut seen = Vec::new();
    let mut steps = Vec::new();
    loop {
        if let Some(start) = seen.iter().position(|name| *name == at) {
            return Some(steps.split_off(start));
        }
        let (to, text) = left.get(&at)?.iter().find(|(to, _)| left.contains_key(*to))?;
        steps.push(format!("{at} -> {to}: {text}"));
        seen.push(std::mem::replace(&mut at, to.clone()));
    }
}

#[test]
fn modules_of_a_crate_use_each_other_in_one_direction() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut circles = Vec::new();
    let mut modules = 0;
    for entry in std::fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        let uses = uses(&folder.join("src"));
        modules += uses.len();
        circles
            .extend(circle(&uses).map(|steps| {
                format!("{}:\n  {}", folder.file_name().unwrap().display(), steps.join("\n  "))
            }));
    }
    assert!(modules > 200, "only {modules} modules were found");
    assert!(circles.is_empty(), "modules that use each other:\n{}", circles.join("\n"));
}

/// A crate of two files: the reader finds the use by a path, by a name of the root and by a name of the module above.
#[test]
fn each_kind_of_use_closes_a_circle() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod first;\nmod second;\npub use first::Thing;\n");
    write("first.rs", "use crate::second::Other;\npub struct Thing(Other);\n");
    write("second.rs", "pub struct Other;\n");
    assert_eq!(circle(&uses(folder.path())), None);
    for back in [
        "use crate::first::Thing;",
        "use crate::Thing as Renamed;",
        "use super::{first::Thing, first};",
        "fn back(_: crate::first::Thing) {}",
        "mod inner { use super::super::first; }",
        "fn back() { let _ = vec![crate::first::made()]; }",
    ] {
        write("second.rs", &format!("{back}\npub struct Other;\n"));
        assert!(circle(&uses(folder.path())).is_some(), "{back}");
    }
    write("second.rs", "pub struct Other;\n#[cfg(test)]\nmod tests { use crate::first::Thing; }\n");
    assert_eq!(circle(&uses(folder.path())), None);
}
