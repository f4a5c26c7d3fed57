//! A kernel with IPVS, such as that of the guest of `tests/vm`. Elsewhere tests leave themselves out.

use portolan_backend::ipvs::available;
use portolan_testkit::Family;

use super::Cluster;

/// If set, tests that find no IPVS in the kernel fail.
const MUST_RUN: &str = "PORTOLAN_TEST_IPVS";

/// A cluster on a kernel with IPVS; `None` where the kernel has none.
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
