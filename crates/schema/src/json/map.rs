//! A map from names to values, such as the members of a JSON object, ordered by name.
//!
//! Decoding produces a list without spare capacity. When a map of more than [`FEW`] members is changed, it becomes a
//! tree, so that each change costs one search, in whatever order the changes come.

use std::{
    collections::{BTreeMap, btree_map},
    fmt, mem, slice,
};

use thin_vec::ThinVec;

use super::{Text, Value};

/// Maximum members of a list that is changed in place. Up to this length, moving members costs less than a search in a
/// tree.
const FEW: usize = 64;
/// Members for which a full list reserves capacity: defaulting adds a few members to a client's object.
const ROOM: usize = 2;

/// The members of a JSON object.
pub type Map = Named<Value>;

/// A map from names to values.
#[derive(Clone)]
pub struct Named<V>(Members<V>);

/// Both forms are ordered by name.
#[derive(Clone)]
enum Members<V> {
    List(ThinVec<(Text, V)>),
    #[expect(clippy::box_collection, reason = "it is rare, and would make every value larger")]
    Tree(Box<BTreeMap<Text, V>>),
}

/// A member that may or may not exist ([`Named::entry`]).
#[derive(Debug)]
pub struct Entry<'a, V> {
    map: &'a mut Named<V>,
    name: Text,
}

impl<V> Named<V> {
    /// Creates a map without members. It needs no allocation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        match &self.0 {
            Members::List(list) => list.len(),
            Members::Tree(tree) => tree.len(),
        }
    }

    /// Returns true if there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a member.
    pub fn get(&self, name: &str) -> Option<&V> {
        match &self.0 {
            Members::List(list) => list.get(place(list, name).ok()?).map(|(_, value)| value),
            Members::Tree(tree) => tree.get(name),
        }
    }

    /// Returns the value of a member, mutable.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        match &mut self.0 {
            Members::List(list) => {
                let at = place(list, name).ok()?;
                list.get_mut(at).map(|(_, value)| value)
            }
            Members::Tree(tree) => tree.get_mut(name),
        }
    }

    /// Returns true if there is a member of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets a member and returns the value that it had.
    pub fn insert(&mut self, name: impl Into<Text>, value: V) -> Option<V> {
        let name = name.into();
        if let Some(old) = self.get_mut(&name) {
            return Some(mem::replace(old, value));
        }
        self.make_room(&name);
        match &mut self.0 {
            Members::List(list) => {
                let at = place(list, &name).unwrap_or_else(|at| at);
                list.insert(at, (name, value));
                None
            }
            Members::Tree(tree) => tree.insert(name, value),
        }
    }

    /// Removes a member and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<V> {
        self.remove_entry(name).map(|(_, value)| value)
    }

    /// Removes a member and returns its name and its value.
    pub fn remove_entry(&mut self, name: &str) -> Option<(Text, V)> {
        if !self.contains_key(name) {
            return None;
        }
        self.make_tree_of_many();
        match &mut self.0 {
            Members::List(list) => place(list, name).ok().map(|at| list.remove(at)),
            Members::Tree(tree) => tree.remove_entry(name),
        }
    }

    /// Removes all members.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Returns the entry of a member, to read or set it.
    pub fn entry(&mut self, name: impl Into<Text>) -> Entry<'_, V> {
        Entry { map: self, name: name.into() }
    }

    /// Removes the members for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Text, &mut V) -> bool) {
        match &mut self.0 {
            Members::List(list) => list.retain_mut(|(name, value)| keep(name, value)),
            Members::Tree(tree) => tree.retain(keep),
        }
    }

    /// Returns the members, ordered by name.
    pub fn iter(&self) -> Iter<'_, V> {
        match &self.0 {
            Members::List(list) => Iter::List(list.iter()),
            Members::Tree(tree) => Iter::Tree(tree.iter()),
        }
    }

    /// Returns the members with mutable values, ordered by name.
    pub fn iter_mut(&mut self) -> IterMut<'_, V> {
        match &mut self.0 {
            Members::List(list) => IterMut::List(list.iter_mut()),
            Members::Tree(tree) => IterMut::Tree(tree.iter_mut()),
        }
    }

    /// Returns the names, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Text> {
        self.iter().map(|(name, _)| name)
    }

    /// Returns the values, ordered by name.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Returns the mutable values, ordered by name.
    pub fn values_mut(&mut self) -> impl ExactSizeIterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// Returns the values, ordered by name.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.into_iter().map(|(_, value)| value)
    }

    /// Moves all members of `other` into this map.
    pub fn append(&mut self, other: &mut Self) {
        self.extend(mem::take(other));
    }

    /// Makes a map of members in any order. Of members with equal names, the last one is kept.
    pub(super) fn of_members(mut members: ThinVec<(Text, V)>) -> Self {
        // The sort is stable: the last of several equal names stays the last. It replaces the first.
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        members.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                mem::swap(later, earlier);
            }
            is_same
        });
        members.shrink_to_fit();
        Self(Members::List(members))
    }

    /// Makes room for one more member. A list of any length stays a list if the member comes last.
    fn make_room(&mut self, name: &str) {
        let Members::List(list) = &mut self.0 else { return };
        if list.last().is_some_and(|(last, _)| last.as_str() > name) {
            self.make_tree_of_many();
        }
        if let Members::List(list) = &mut self.0
            && list.len() == list.capacity()
        {
            if list.len() < FEW { list.reserve_exact(ROOM) } else { list.reserve(ROOM) }
        }
    }

    /// Turns a list of more than [`FEW`] members into a tree, before its length changes.
    fn make_tree_of_many(&mut self) {
        if let Members::List(list) = &mut self.0
            && list.len() > FEW
        {
            let tree = mem::take(list).into_iter().collect();
            self.0 = Members::Tree(Box::new(tree));
        }
    }
}

/// Returns the index of a member, or the index at which to insert it.
fn place<V>(list: &[(Text, V)], name: &str) -> Result<usize, usize> {
    list.binary_search_by(|(other, _)| other.as_str().cmp(name))
}

impl<V> Default for Named<V> {
    fn default() -> Self {
        Self(Members::List(ThinVec::new()))
    }
}

impl<V: PartialEq> PartialEq for Named<V> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for Named<V> {}

impl<'a, V> Entry<'a, V> {
    /// Returns the value of the member, which is set to `value` if it is absent.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    /// Returns the value of the member, which is set to the result of `make` if it is absent.
    #[expect(clippy::indexing_slicing, reason = "the member is there, or was just put there")]
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> &'a mut V {
        let Self { map, name } = self;
        if !map.contains_key(&name) {
            map.make_room(&name);
        }
        match &mut map.0 {
            Members::Tree(tree) => tree.entry(name).or_insert_with(make),
            Members::List(list) => {
                let at = place(list, &name).unwrap_or_else(|at| {
                    list.insert(at, (name, make()));
                    at
                });
                &mut list[at].1
            }
        }
    }
}

impl<V: fmt::Debug> fmt::Debug for Named<V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self).finish()
    }
}

/// Iterator over the members, ordered by name.
#[derive(Debug)]
pub enum Iter<'a, V> {
    #[doc(hidden)]
    List(slice::Iter<'a, (Text, V)>),
    #[doc(hidden)]
    Tree(btree_map::Iter<'a, Text, V>),
}

/// Iterator over the members with mutable values, ordered by name.
#[derive(Debug)]
pub enum IterMut<'a, V> {
    #[doc(hidden)]
    List(slice::IterMut<'a, (Text, V)>),
    #[doc(hidden)]
    Tree(btree_map::IterMut<'a, Text, V>),
}

/// Iterator that owns the members, ordered by name.
#[derive(Debug)]
pub enum IntoIter<V> {
    #[doc(hidden)]
    List(thin_vec::IntoIter<(Text, V)>),
    #[doc(hidden)]
    Tree(btree_map::IntoIter<Text, V>),
}

impl<'a, V> Iterator for Iter<'a, V> {
    type Item = (&'a Text, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::List(list) => list.next().map(|(name, value)| (name, value)),
            Self::Tree(tree) => tree.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::List(list) => list.size_hint(),
            Self::Tree(tree) => tree.size_hint(),
        }
    }
}

impl<V> ExactSizeIterator for Iter<'_, V> {}

impl<'a, V> Iterator for IterMut<'a, V> {
    type Item = (&'a Text, &'a mut V);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::List(list) => list.next().map(|(name, value)| (&*name, value)),
            Self::Tree(tree) => tree.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::List(list) => list.size_hint(),
            Self::Tree(tree) => tree.size_hint(),
        }
    }
}

impl<V> ExactSizeIterator for IterMut<'_, V> {}

impl<V> Iterator for IntoIter<V> {
    type Item = (Text, V);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::List(list) => list.next(),
            Self::Tree(tree) => tree.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::List(list) => list.size_hint(),
            Self::Tree(tree) => tree.size_hint(),
        }
    }
}

impl<'a, V> IntoIterator for &'a Named<V> {
    type Item = (&'a Text, &'a V);
    type IntoIter = Iter<'a, V>;

    fn into_iter(self) -> Iter<'a, V> {
        self.iter()
    }
}

impl<'a, V> IntoIterator for &'a mut Named<V> {
    type Item = (&'a Text, &'a mut V);
    type IntoIter = IterMut<'a, V>;

    fn into_iter(self) -> IterMut<'a, V> {
        self.iter_mut()
    }
}

impl<V> IntoIterator for Named<V> {
    type Item = (Text, V);
    type IntoIter = IntoIter<V>;

    fn into_iter(self) -> IntoIter<V> {
        match self.0 {
            Members::List(list) => IntoIter::List(list.into_iter()),
            Members::Tree(tree) => IntoIter::Tree(tree.into_iter()),
        }
    }
}

impl<N: Into<Text>, T: Into<V>, V> FromIterator<(N, T)> for Named<V> {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(members: I) -> Self {
        Self::of_members(members.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl<N: Into<Text>, V> Extend<(N, V)> for Named<V> {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, members: I) {
        for (name, value) in members {
            self.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Change {
        Insert(String, i32),
        Entry(String, i32),
        Remove(String),
        Retain(i32),
    }

    fn changes() -> impl Strategy<Value = Change> {
        let name = || "[a-d]{0,4}";
        prop_oneof![
            4 => (name(), any::<i32>()).prop_map(|(name, value)| Change::Insert(name, value)),
            2 => (name(), any::<i32>()).prop_map(|(name, value)| Change::Entry(name, value)),
            2 => name().prop_map(Change::Remove),
            1 => (2..9).prop_map(Change::Retain),
        ]
    }

    proptest! {
        #[test]
        fn members_equal_those_of_a_btree_map(
            start in proptest::collection::vec(("[a-d]{0,4}", any::<i32>()), 0..200),
            changes in proptest::collection::vec(changes(), 0..100),
        ) {
            let mut tree: BTreeMap<String, i32> = start.iter().cloned().collect();
            let mut map: Named<i32> = start.into_iter().collect();
            for change in changes {
                match change {
                    Change::Insert(name, value) => {
                        prop_assert_eq!(map.insert(name.as_str(), value), tree.insert(name, value));
                    }
                    Change::Entry(name, value) => {
                        prop_assert_eq!(map.entry(name.as_str()).or_insert(value), tree.entry(name).or_insert(value));
                    }
                    Change::Remove(name) => prop_assert_eq!(map.remove(&name), tree.remove(&name)),
                    Change::Retain(divisor) => {
                        map.retain(|_, value| *value % divisor != 0);
                        tree.retain(|_, value| *value % divisor != 0);
                    }
                }
                prop_assert_eq!(map.len(), tree.len());
            }
            prop_assert!(map.iter().map(|(name, value)| (name.as_str(), value)).eq(tree.iter().map(|(name, value)| (name.as_str(), value))));
            prop_assert!(tree.iter().all(|(name, value)| map.get(name) == Some(value)));
            let again: Named<i32> = tree.into_iter().collect();
            prop_assert_eq!(&map, &again);
        }
    }
}
