//! Handles SIGTERM and SIGINT until the program's runtime has its own handlers.
//!
//! A long-running command exits with status 0 on either signal, also in its first milliseconds, when it has nothing
//! to clean up yet. This includes the first process of a container: the kernel drops signals that such a process does
//! not handle.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals that request termination.
const SIGNALS: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGINT];

/// True if the handler is to end the process.
static ENDS: AtomicBool = AtomicBool::new(false);

/// SIGTERM and SIGINT, blocked. Dropping this restores the signal mask and delivers pending signals.
#[derive(Debug)]
pub struct Held {
    /// The thread's signal mask before [`hold`].
    before: libc::sigset_t,
}

/// Blocks both signals. Must be called first in `main`, before any other thread is started.
pub fn hold() -> Held {
    let (mut set, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigemptyset` initialises the set that it gets. `sigaddset` and `pthread_sigmask` get initialised sets,
    // and the latter writes the former mask into `before`. With `SIG_BLOCK` none of them can fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigemptyset(before.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
        Held { before: before.assume_init() }
    }
}

impl Held {
    /// Makes both signals end the process with status 0 until [`handled_elsewhere`] is called.
    pub fn end_with_success(self) {
        ENDS.store(true, Ordering::Relaxed);
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zeroes is a valid `sigaction`: no handler, flags or masked signals. Without `SA_SIGINFO` the
        // handler has the type of `end`, which calls only async-signal-safe functions.
        unsafe {
            let action = action.assume_init_mut();
            action.sa_sigaction = end as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            for signal in SIGNALS {
                libc::sigaction(signal, action, ptr::null_mut());
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that `pthread_sigmask` returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Disables the handler that ends the process, because another handler was added since. An added handler also calls
/// those added before it.
pub fn handled_elsewhere() {
    ENDS.store(false, Ordering::Relaxed);
}

extern "C" fn end(_signal: libc::c_int) {
    if ENDS.load(Ordering::Relaxed) {
        // SAFETY: `_exit` may be called in a signal handler (POSIX.1-2024, 2.4.3).
        unsafe { libc::_exit(0) }
    }
}
