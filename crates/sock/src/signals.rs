//! What SIGTERM and SIGINT do before the runtime of the program listens to them.
//!
//! A process that is to run until it is told to stop ends with status 0 then, also in its first milliseconds, when it
//! has nothing to give back yet; and also as the first process of a container, which the kernel spares the signals that
//! it does not handle.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The signals that ask for the end.
const SIGNALS: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGINT];

/// Whether the handler is to end the process.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Signals that wait until it is decided what they do. They come when this is dropped.
#[derive(Debug)]
pub struct Held {
    /// The mask of this thread before.
    before: libc::sigset_t,
}

/// Lets both signals wait. Call it first of all, and before any other thread is started.
pub fn hold() -> Held {
    let (mut set, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigemptyset` initialises the set that it is given; `sigaddset` and `pthread_sigmask` get initialised sets,
    // and the latter writes the mask of before into the room for one. With `SIG_BLOCK` none of them can fail.
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
    /// Both signals end the process with status 0 from now on, until they are [handled elsewhere](handled_elsewhere).
    pub fn end_with_success(self) {
        ENDS.store(true, Ordering::Relaxed);
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zeroes is a valid `sigaction`: no handler, flags or masked signals. It gets a handler of the type
        // that goes without `SA_SIGINFO`, which calls nothing that a handler must not call.
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
        // SAFETY: the set is the one that `pthread_sigmask` gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Another handler, which was added since, does the work from now on. Handlers that are added call those of before.
pub fn handled_elsewhere() {
    ENDS.store(false, Ordering::Relaxed);
}

extern "C" fn end(_signal: libc::c_int) {
    if ENDS.load(Ordering::Relaxed) {
        // SAFETY: `_exit` may be called in a signal handler (POSIX.1-2024, 2.4.3).
        unsafe { libc::_exit(0) }
    }
}
