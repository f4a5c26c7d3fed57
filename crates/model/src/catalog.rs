//! stub
mod event;
pub use event::*;
/// stub
pub struct Catalog;
impl Catalog {
    /// stub
    pub fn new(_node_name: impl Into<Box<str>>) -> Self {
        Self
    }
    /// stub
    pub fn apply(&mut self, _event: Event) -> Applied {
        Applied::default()
    }
    /// stub
    pub fn take_changes(&mut self) -> Changes {
        Changes::default()
    }
    /// stub
    pub fn synced(&self) -> bool {
        false
    }
}
