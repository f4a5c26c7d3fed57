//! The memory limit for the bodies of all concurrent requests.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use portolan_api::ApiError;

/// The memory left for bodies, as text and decoded.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<AtomicUsize>);

/// The memory that one request has taken from the budget. Dropping it returns the memory.
#[derive(Debug)]
pub(crate) struct Share {
    left: Arc<AtomicUsize>,
    taken: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Creates an empty share.
    pub(crate) fn share(&self) -> Share {
        Share { left: Arc::clone(&self.0), taken: AtomicUsize::new(0) }
    }
}

impl Share {
    /// Takes more memory from the budget. Returns an error if too little is left.
    pub(super) fn take(&self, bytes: usize) -> Result<(), ApiError> {
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        taken.map_err(|_| ApiError::Busy)?;
        self.taken.fetch_add(bytes, Relaxed);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.left.fetch_add(*self.taken.get_mut(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_from_one_budget_and_go_back() {
        let budget = Budget::new(10);
        let (one, other) = (budget.share(), budget.share());
        assert_eq!((one.take(4), other.take(5)), (Ok(()), Ok(())));
        assert_eq!((one.take(2), other.take(2)), (Err(ApiError::Busy), Err(ApiError::Busy)));
        assert_eq!(one.take(1), Ok(()));
        drop(one);
        assert_eq!((other.take(6), other.take(5)), (Err(ApiError::Busy), Ok(())));
        drop(other);
        assert_eq!(budget.share().take(10), Ok(()));
    }
}
