//! The object of a write, kept for the case that the write has to be decided anew.

use portolan_schema::json::bounded;

use crate::{error::ApiError, json::Object};

/// Above this estimate, in bytes, an object is kept as text, which takes a few times less.
const LARGE: usize = 64 << 10;

/// An object that is handed out more than once.
#[derive(Debug, Clone)]
pub(crate) enum Kept {
    /// A small one.
    Decoded(Object),
    /// A large one, as JSON.
    Text(Vec<u8>),
}

impl Kept {
    /// Keeps an object.
    pub(crate) fn new(object: Object) -> Self {
        if bounded::cost(&object) <= LARGE {
            return Self::Decoded(object);
        }
        match serde_json::to_vec(&object) {
            Ok(text) => Self::Text(text),
            // An object can always be encoded.
            Err(_) => Self::Decoded(object),
        }
    }

    /// A copy of the object.
    pub(crate) fn object(&self) -> Result<Object, ApiError> {
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
    fn what_is_kept_comes_back() {
        for count in [1, 10_000] {
            let object: Object = (0..count).map(|number| (format!("k{number}"), number)).collect();
            let kept = Kept::new(object.clone());
            assert_eq!(matches!(kept, Kept::Text(_)), count > 1);
            assert_eq!(kept.object(), Ok(object));
        }
    }
}
