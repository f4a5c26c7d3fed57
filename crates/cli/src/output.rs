//! The forms of reports: the same ones as those of `explain`.

pub(crate) use portolan_proxy::packets::{Output, print_as as print};
