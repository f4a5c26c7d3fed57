//! The C library's allocator, told to give memory back. Does nothing on other C libraries.

/// One arena, large blocks mapped and unmapped one by one, and the top of the heap trimmed early: for a process
/// that allocates much at start and little later. Call it before the first thread is started.
pub fn configure() {
    #[cfg(target_env = "gnu")]
    {
        const MAPPED_FROM: libc::c_int = 128 << 10;
        const TRIMMED_FROM: libc::c_int = 256 << 10;
        let settings = [
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_THRESHOLD, MAPPED_FROM),
            (libc::M_TRIM_THRESHOLD, TRIMMED_FROM),
        ];
        for (parameter, value) in settings {
            // SAFETY: `mallopt` takes two integers; it refuses what it does not know and touches no memory of
            // ours.
            unsafe { libc::mallopt(parameter, value) };
        }
    }
}

/// Gives free memory back to the kernel. Takes milliseconds on a large heap: for after a load, not for each
/// change.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes an integer and only returns pages that no allocation uses.
    unsafe {
        libc::malloc_trim(0);
    }
}
