//! Makes the C library's allocator return memory to the kernel. Does nothing on C libraries other than glibc.

/// Sets up one arena, maps large blocks one by one, and trims the top of the heap early. This suits a process that
/// allocates much at start and little later. Must be called before the first thread is started.
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
            // SAFETY: `mallopt` takes two integers. It refuses parameters that it does not know and touches no memory
            // of this program.
            unsafe { libc::mallopt(parameter, value) };
        }
    }
}

/// Returns free memory to the kernel. Takes milliseconds on a large heap: call it after a load, not after each
/// change.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes an integer and only returns pages that no allocation uses.
    unsafe {
        libc::malloc_trim(0);
    }
}
