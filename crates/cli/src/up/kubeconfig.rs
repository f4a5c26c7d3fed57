//! The file of `--write-kubeconfig`: whether it may be replaced.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use portolan_serve::json::{self, Object, Value};

/// The name of the cluster in the kubeconfigs that Portolan writes.
const OWN_CLUSTER: &str = "portolan";

/// Checks that a file has no clusters but Portolan's, so that nothing else is lost when it is replaced.
///
/// # Errors
/// It has others, or it cannot be read.
pub(super) fn check_replaceable(path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    match fs::metadata(path) {
        // A file that cannot be made is an error of the write.
        Err(_) => return Ok(()),
        Ok(found) if !found.is_file() => {
            bail!("--write-kubeconfig: {name} is no regular file; name another one");
        }
        Ok(_) => {}
    }
    let text = fs::read(path).with_context(|| format!("--write-kubeconfig: cannot read {name}"))?;
    let others = other_clusters(&String::from_utf8_lossy(&text));
    if !others.is_empty() {
        bail!(
            "--write-kubeconfig: {name} has other clusters ({}), which would be lost; name another file, and list both in the \
             variable KUBECONFIG",
            others.join(", ")
        );
    }
    Ok(())
}

/// Returns the names of the other clusters of a kubeconfig; none if the text is none.
fn other_clusters(text: &str) -> Vec<String> {
    let config: Object = serde_saphyr::from_str(text).unwrap_or_default();
    let clusters = json::list(&config, "clusters").iter().filter_map(Value::as_object);
    let names = clusters.map(|cluster| json::text(cluster, "name").unwrap_or("one without a name"));
    names.filter(|name| *name != OWN_CLUSTER).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clusters_of_others_keep_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        check_replaceable(&file).unwrap();
        for text in ["", "no: [kubeconfig", "clusters: null", "clusters: [{name: portolan, cluster: {}}]"] {
            fs::write(&file, text).unwrap();
            check_replaceable(&file).unwrap();
        }
        fs::write(&file, "clusters: [{name: portolan, cluster: {}}, {name: work, cluster: {server: a}}]")
            .unwrap();
        let error = check_replaceable(&file).unwrap_err().to_string();
        let device = check_replaceable(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(device.contains("/dev/null is no regular file"), "{device}");
        assert!(
            error.contains("has other clusters (work)") && error.contains("name another file"),
            "{error}"
        );
    }
}
