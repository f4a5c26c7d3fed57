//! Clusters on a kernel with IPVS, such as that of the guest of `tests/vm`. On other kernels, the tests are skipped.

use portolan_ipvs::available;
use portolan_testkit::Family;

use super::Cluster;

/// If set, tests fail on a kernel without IPVS.
const MUST_RUN: &str = "PORTOLAN_TEST_IPVS";

/// Returns a cluster, or `None` if the kernel has no IPVS.
pub(crate) fn cluster() -> Option<Cluster> {
    let cluster = Cluster::new();
    let look = || available("rr", &Family::BOTH).map(drop);
    match cluster.world.node().namespace().run(look).unwrap() {
        Ok(()) => Some(cluster),
        Err(error) => {
            assert!(std::env::var_os(MUST_RUN).is_none(), "{error}");
            eprintln!("left out: {error}");
            None
        }
    }
}
