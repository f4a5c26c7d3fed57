//! Keeps the object of a write, so that the write can be decided again after a conflict.

use portolan_schema::json::{Object, bounded};

use crate::error::ApiError;

/// Estimated size in memory, in bytes, above which an object is kept as JSON text, which takes a few times less.
const LARGE: usize = 64 << 10;

/// An object that can be read more than once.
#[derive(Debug, Clone)]
pub enum Kept {
    /// A small object, decoded.
    Decoded(Object),
    /// A large object, as JSON text.
    Text(Vec<u8>),
}

impl Kept {
    /// Keeps the object, as text if it is large.
    pub fn new(object: Object) -> Self {
        if bounded::cost(&object) <= LARGE {
            return Self::Decoded(object);
        }
        match serde_json::to_vec(&object) {
            Ok(text) => Self::Text(text),
            // Not reached: an object can always be encoded.
            Err(_) => Self::Decoded(object),
        }
    }

    /// Returns a copy of the object.
    pub fn object(&self) -> Result<Object, ApiError> {
        match self {
            Self::Decoded(object) => Ok(object.clone()),
            Self::Text(text) => serde_json::from_slice(text)
                .map_err(|error| ApiError::Internal(format!("the object cannot be read again: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_objects_are_returned_unchanged() {
        for count in [1, 10_000] {
            let object: Object = (0..count).map(|number| (format!("k{number}"), number)).collect();
            let kept = Kept::new(object.clone());
            assert_eq!(matches!(kept, Kept::Text(_)), count > 1);
            assert_eq!(kept.object(), Ok(object));
        }
    }
}
