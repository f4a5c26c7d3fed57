//! The table as the kernel lists it, read by other code than the data plane's own.
