//! Whether a test may be left out where the kernel has no legacy iptables.

/// Environment variable that requires the tables of legacy iptables in the kernel if it is `1`.
const MUST_RUN: &str = "PORTOLAN_TEST_LEGACY";

/// Checks that a test of legacy iptables may be left out. Call it where the kernel has no tables of legacy iptables: newer
/// kernels may be built without them.
///
/// # Panics
/// `PORTOLAN_TEST_LEGACY` is `1`, which requires these tables.
#[track_caller]
pub fn assert_legacy_may_be_missing(missing: &str) {
    assert_allowed(std::env::var(MUST_RUN).ok().as_deref(), missing);
}

#[track_caller]
fn assert_allowed(must_run: Option<&str>, missing: &str) {
    assert!(
        must_run != Some("1"),
        "{missing}; set {MUST_RUN}=0 if this kernel was built without the tables of legacy iptables"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_requirement_the_tables_may_be_missing() {
        for must_run in [None, Some("0"), Some("")] {
            assert_allowed(must_run, "no table");
        }
    }

    #[test]
    #[should_panic(expected = "no table; set PORTOLAN_TEST_LEGACY=0 if")]
    fn where_they_are_required_a_missing_table_is_a_failure() {
        assert_allowed(Some("1"), "no table");
    }
}
