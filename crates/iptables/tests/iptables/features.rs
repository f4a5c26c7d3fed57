//! Tests that a feature which the node lacks affects only the Services that need it.

use std::fs;
use std::path::PathBuf;

use portolan_iptables::{Programs, Variant};
use portolan_model::{Change, Family, Forwarding, Protocol};

use super::example::{cluster_ip, put, settings};
use super::kernel::{VARIANTS, in_namespace, save};
use super::load::{driven, real_program};
use super::wrapped::wrapped;

/// Programs that refuse a restore with a match, until they have it.
struct Lacking {
    directory: PathBuf,
    programs: Programs,
}

impl Lacking {
    fn new(variant: Variant, name: &str) -> Self {
        let folder = format!("portolan-without-{name}-{variant:?}-{}", std::process::id());
        let directory = std::env::temp_dir().join(folder);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("lacks"), "").unwrap();
        let real = real_program(variant);
        let at = directory.display();
        let restore = format!(
            "[ \"$*\" = --version ] && exec {real}-restore --version\n\
             cat > {at}/input\n\
             if [ -e {at}/lacks ] && grep -q -e '-m {name} ' {at}/input; then\n\
             echo \"Couldn't load match '{name}'\" >&2; exit 2\n\
             fi\n\
             exec {real}-restore \"$@\" < {at}/input"
        );
        Self { programs: wrapped(&directory, variant, "-restore", &restore), directory }
    }

    fn mend(&self) {
        fs::remove_file(self.directory.join("lacks")).unwrap();
    }
}

impl Drop for Lacking {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn plain(endpoint: &str) -> Change {
    put("plain", "http", cluster_ip("10.96.0.20", 80, &[endpoint]))
}

/// The Service is there at the first load, or comes later.
fn affects_its_own_services_only(name: &str, needy: &Change, stays: bool) {
    for (variant, is_first) in VARIANTS.into_iter().flat_map(|variant| [(variant, true), (variant, false)]) {
        let what = format!("{name}, {variant:?}, at the first load: {is_first}");
        let lacking = Lacking::new(variant, name);
        in_namespace(|| {
            let mut data_plane = driven(lacking.programs.clone(), settings(Family::Ipv4));
            let mut first = vec![plain("10.244.1.11:8080")];
            first.extend(is_first.then(|| needy.clone()));
            let commit = data_plane.compare(&first).unwrap();
            assert_eq!(commit.refused.len(), usize::from(is_first), "{what}");
            if !is_first {
                let commit = data_plane.apply(std::slice::from_ref(needy)).unwrap();
                assert!(!commit.full, "{what}");
            }
            let commit = data_plane.apply(&[plain("10.244.1.12:8080")]).unwrap();
            assert!(!commit.full, "{what}");
            let refused: Vec<_> = commit.refused.iter().map(|refusal| &refusal.name).collect();
            assert_eq!(refused, [&needy.name], "{what}");
            let saved = save(Family::Ipv4, variant);
            assert!(saved.contains("--to-destination 10.244.1.12:8080"), "{what}: {saved}");
            assert_eq!(saved.contains("demo/needy"), stays, "{what}: {saved}");
            assert!(!saved.contains("TRIAL"), "{what}: {saved}");

            lacking.mend();
            let commit = data_plane.resync().unwrap();
            assert_eq!(commit.refused, [], "{what}");
            let saved = save(Family::Ipv4, variant);
            assert!(
                saved.contains("demo/needy") && saved.contains(&format!("-m {name} ")),
                "{what}: {saved}"
            );
        });
    }
}

#[test]
fn a_node_without_session_affinity_serves_its_services_without_it() {
    let forwarding = Forwarding { affinity: Some(60), ..cluster_ip("10.96.0.21", 80, &["10.244.1.13:8080"]) };
    affects_its_own_services_only("recent", &put("needy", "http", forwarding), true);
}

#[test]
fn a_node_without_sctp_leaves_out_its_ports() {
    for endpoints in [&["10.244.1.13:8080"][..], &[]] {
        let forwarding = Forwarding { protocol: Protocol::Sctp, ..cluster_ip("10.96.0.21", 80, endpoints) };
        affects_its_own_services_only("sctp", &put("needy", "sctp", forwarding), false);
    }
}
