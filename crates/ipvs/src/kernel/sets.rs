//! Reads and writes ipsets.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::Family;
use portolan_sock::{Errno, retry_on_change};
use portolan_wire::Batch;
use portolan_wire::ipset::{self, Listed, Member};

use super::send::send;
use super::{Kernel, first_refusal};
use crate::refusal::{Item, Refused};
use crate::set::{Counts, Set, Sets, set_family};
use crate::{Error, probe};

impl Kernel {
    /// Lists the members of a set. Returns `None` if the set is missing.
    pub(crate) fn members(&mut self, set: Set) -> Result<Option<BTreeSet<Member>>, Error> {
        let listed = self.listed(set)?;
        Ok(listed.map(|listed| listed.into_iter().map(|listed| listed.member).collect()))
    }

    /// Lists the members of a set with their counters. Returns `None` if the set is missing.
    fn listed(&mut self, set: Set) -> Result<Option<Vec<Listed>>, Error> {
        let name = set.name(self.family);
        let (mut found, mut counts, mut room) = (None, false, None);
        let listed = retry_on_change(|| {
            let mut all = Vec::new();
            self.netfilter.dump(&mut ipset::list(&name), |frame| {
                if let ipset::IpsetEvent::Set { kind, counts: is_counting, members_max, members, .. } =
                    ipset::IpsetEvent::decode(frame)?
                {
                    counts |= is_counting;
                    room = members_max.or(room);
                    found = kind.or(found.take());
                    all.extend(members);
                }
                Ok(())
            })?;
            Ok(all)
        });
        match listed {
            // EINVAL: the kernel has no ipsets at all.
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            Err(source) => Err(Error::Socket { what: "listing an ipset", source }),
            Ok(members) => match found {
                Some(found) if found != set.kind().name() => {
                    Err(Error::Set { set: name, found, wanted: set.kind().name() })
                }
                _ => {
                    if counts || !set.counts() {
                        self.uncounted.remove(&set);
                    } else {
                        self.uncounted.insert(set);
                    }
                    if set == Set::Own {
                        self.own_is_small = room.is_some_and(|room| room < set.options().members_max);
                    }
                    Ok(Some(members))
                }
            },
        }
    }

    /// Lists the members of those of the sets that exist.
    pub(crate) fn sets(&mut self, wanted: &[Set]) -> Result<Sets, Error> {
        let mut sets = Sets::new();
        for set in wanted {
            if let Some(members) = self.members(*set)? {
                sets.insert(*set, members);
            }
        }
        Ok(sets)
    }

    /// Lists the members of all sets that exist, and how many packets of each were refused.
    pub(crate) fn counted_sets(&mut self) -> Result<(Sets, Counts), Error> {
        let (mut sets, mut counts) = (Sets::new(), Counts::new());
        for set in Set::ALL {
            let Some(listed) = self.listed(set)? else { continue };
            let counted =
                listed.iter().filter_map(|Listed { member, packets }| Some(((set, *member), (*packets)?)));
            counts.extend(counted);
            sets.insert(set, listed.into_iter().map(|listed| listed.member).collect());
        }
        Ok((sets, counts))
    }

    /// Returns true if the set exists in a family.
    pub(crate) fn has_set(&mut self, set: Set, family: Family) -> Result<bool, Error> {
        let mut request = ipset::header(&set.name(family));
        match retry_on_change(|| self.netfilter.dump(&mut request, |_| Ok(()))) {
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(false),
            listed => listed.map(|()| true).map_err(Error::socket("listing an ipset")),
        }
    }

    /// Creates a set that is missing.
    pub(crate) fn create(&mut self, set: Set) -> Result<(), Error> {
        self.create_as(set, &set.name(self.family))?;
        self.uncounted.remove(&set);
        Ok(())
    }

    /// Creates the set of our virtual servers, which is missing, with its first members. It gets its name when it has them: once
    /// there is a set of this name, it alone decides whose virtual servers are.
    pub(crate) fn create_own(&mut self, members: impl Iterator<Item = Member>) -> Result<(), Error> {
        let unfinished = self.make_unfinished(members)?;
        let mut request = ipset::rename(&unfinished, &Set::Own.name(self.family));
        self.netfilter.query(&mut request, |_| Ok(())).map_err(Error::socket("making an ipset"))
    }

    /// Makes the set of our virtual servers anew, with the same members, if the last list of it has shown that it has less room
    /// than it should. Returns true if it did. At every moment there is a set of the name, and it has all members.
    pub(crate) fn enlarge_own(&mut self) -> Result<bool, Error> {
        if !self.own_is_small {
            return Ok(false);
        }
        let members = self.members(Set::Own)?.unwrap_or_default();
        let unfinished = self.make_unfinished(members.into_iter())?;
        let mut request = ipset::swap(&unfinished, &Set::Own.name(self.family));
        self.netfilter.query(&mut request, |_| Ok(())).map_err(Error::socket("swapping two ipsets"))?;
        self.own_is_small = false;
        self.destroy_named(&unfinished)?;
        Ok(true)
    }

    /// Creates the set of our virtual servers, with these members, under the name that it has until it is complete. Returns that
    /// name.
    fn make_unfinished(&mut self, members: impl Iterator<Item = Member>) -> Result<String, Error> {
        let unfinished = Set::unfinished_own(self.family);
        // An earlier attempt may have been interrupted.
        self.destroy_named(&unfinished)?;
        self.create_as(Set::Own, &unfinished)?;
        let members: Vec<(Set, Member)> = members.map(|member| (Set::Own, member)).collect();
        let add = |batch: &mut Batch, _, name: &str, member: &Member| ipset::add(batch, name, member);
        first_refusal(self.change_members_of(&members, |_| &unfinished, add)?)?;
        Ok(unfinished)
    }

    /// Returns true if a rule refers to the set.
    pub(crate) fn is_referred_to(&mut self, set: Set) -> Result<bool, Error> {
        let mut request = ipset::header(&set.name(self.family));
        let mut is_referred_to = false;
        let listed = retry_on_change(|| {
            self.netfilter.dump(&mut request, |frame| {
                if let ipset::IpsetEvent::Set { references: Some(references), .. } =
                    ipset::IpsetEvent::decode(frame)?
                {
                    is_referred_to = references > 0;
                }
                Ok(())
            })
        });
        match listed {
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(false),
            listed => listed.map(|()| is_referred_to).map_err(Error::socket("listing an ipset")),
        }
    }

    /// Creates a set like another one, with a name of its own.
    pub(crate) fn create_as(&mut self, set: Set, name: &str) -> Result<(), Error> {
        let failed = Error::socket("making an ipset");
        let family = set_family(self.family);
        let revision = probe::revision(&mut self.netfilter, set.kind(), family).map_err(&failed)?;
        // If the type is missing, the kernel's error says so.
        let revision = revision.unwrap_or_default();
        let mut request = ipset::create(name, set.kind(), family, revision, set.options());
        self.netfilter.query(&mut request, |_| Ok(())).map_err(failed)
    }

    /// Removes a set, if it exists. Returns false if a rule still refers to it.
    pub(crate) fn destroy(&mut self, set: Set) -> Result<bool, Error> {
        self.destroy_named(&set.name(self.family))
    }

    /// Removes the set of this name, if it exists. Returns false if a rule still refers to it.
    pub(crate) fn destroy_named(&mut self, name: &str) -> Result<bool, Error> {
        match self.netfilter.query(&mut ipset::destroy(name), |_| Ok(())) {
            Err(error) if error.errno() == Some(Errno(ipset::ERR_BUSY)) => Ok(false),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(true),
            outcome => outcome.map(|()| true).map_err(Error::socket("removing an ipset")),
        }
    }

    /// Adds members to sets. Returns the refusals, as the other functions that send many messages do.
    pub(crate) fn add(&mut self, members: &[(Set, Member)]) -> Result<Vec<Refused>, Error> {
        let uncounted = self.uncounted.clone();
        self.change_members(members, |batch, set, name, member| {
            let counts = set.counts() && !uncounted.contains(&set);
            let add = if counts { ipset::add_counting } else { ipset::add };
            add(batch, name, member);
        })
    }

    /// Removes members from sets.
    pub(crate) fn remove(&mut self, members: &[(Set, Member)]) -> Result<Vec<Refused>, Error> {
        self.change_members(members, |batch, _, name, member| ipset::remove(batch, name, member))
    }

    fn change_members(
        &mut self,
        members: &[(Set, Member)],
        write: impl Fn(&mut Batch, Set, &str, &Member),
    ) -> Result<Vec<Refused>, Error> {
        let names: BTreeMap<Set, String> =
            members.iter().map(|(set, _)| (*set, set.name(self.family))).collect();
        self.change_members_of(members, |set| names.get(set).map_or("", String::as_str), write)
    }

    fn change_members_of<'a>(
        &mut self,
        members: &[(Set, Member)],
        name: impl Fn(&Set) -> &'a str,
        write: impl Fn(&mut Batch, Set, &str, &Member),
    ) -> Result<Vec<Refused>, Error> {
        let sent = send(
            &mut self.netfilter,
            "ipsets",
            members,
            |batch, (set, member)| write(batch, *set, name(set), member),
            |&(set, member), errno| {
                let error = match errno.0 {
                    ipset::ERR_FULL => Error::Full { set: name(&set).to_owned() },
                    _ => Error::Refused { what: format!("{member:?} of ipset {}", name(&set)), errno },
                };
                Some(Refused { item: Item::Member(set, member), error })
            },
        );
        Ok(self.note(sent?))
    }
}
