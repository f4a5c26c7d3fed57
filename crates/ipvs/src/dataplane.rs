//! The [`Dataplane`] of the IPVS mode: keeps track of the kernel's state and writes to it in order.

mod comparison;
mod retire;

use std::sync::Arc;
use std::time::Instant;

use portolan_model::{IpvsScheduler, Settings};

use super::desired::{Desired, Touched};
use super::difference::{Difference, Operation, WriteSettings};
use super::draining::{Draining, UptimeSecs};
use super::kernel::{Kernel, first_refusal};
use super::refusal::{self, Refusals, Refused};
use super::rules::{self, Part, Rules};
use super::words;
use super::{Error, IpvsOptions, Meter};
pub(super) use comparison::Read;
use portolan_engine::dataplane::{
    About, Collection, Commit, Condition, Dataplane, Messages, Refusal, Removal, Takeover,
};
use portolan_engine::table::{Changes, Table};
use portolan_iptables::{Candidate, Programs};
use retire::Retiring;

/// What one commit has written, with all attempts that it needs. An object that the kernel refuses is not written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    elements: usize,
    objects: usize,
}

impl Written {
    /// Counts the operations sent, without those that the kernel refused.
    pub(super) const fn elements(&mut self, sent: usize, refused: usize) {
        self.elements = self.elements.saturating_add(sent.saturating_sub(refused));
    }

    /// Counts sets and rules.
    pub(super) const fn objects(&mut self, written: usize) {
        self.objects = self.objects.saturating_add(written);
    }
}

/// The data plane that programs the Services of one family as virtual servers.
#[derive(Debug)]
pub struct Ipvs {
    pub(super) kernel: Kernel,
    /// The programs that write the rules. `None` if they cannot be run, and this data plane only removes what an earlier run left.
    programs: Option<Programs>,
    options: IpvsOptions,
    pub(super) rules: Rules,
    pub(super) desired: Desired,
    draining: Draining,
    meter: Arc<Meter>,
    /// True during the comparison that follows a refusal.
    is_second_attempt: bool,
    /// What the kernel refused again.
    refusals: Refusals,
    /// During a comparison, the members that did not fit into a set.
    overflow: Vec<Refused>,
    /// Schedulers that Services ask for and the kernel lacks.
    missing: Vec<IpvsScheduler>,
    /// What the current commit has written.
    written: Written,
    /// Index of the network device; 0 before the first comparison.
    pub(super) device: u32,
    retiring: Option<Retiring>,
}

impl Ipvs {
    /// Opens sockets in the network namespace of this thread. Changes nothing in the kernel. See
    /// [`available`](super::available) for features that the kernel may lack.
    pub fn open(
        programs: Programs,
        settings: Settings,
        options: IpvsOptions,
    ) -> Result<Self, portolan_engine::Error> {
        Self::open_to_remove(Some(programs), settings, options)
    }

    /// Opens a data plane that is only to remove what an earlier run left. Without programs, it can do nothing else.
    pub fn open_to_remove(
        programs: Option<Programs>,
        settings: Settings,
        options: IpvsOptions,
    ) -> Result<Self, portolan_engine::Error> {
        let kernel = Kernel::open(settings.family)?.ok_or_else(|| portolan_engine::Error::Unsupported {
            mode: "ipvs",
            missing: "IPVS is missing (module ip_vs, CONFIG_IP_VS)".to_owned(),
        })?;
        Ok(Self {
            kernel,
            programs,
            rules: Rules::new(&settings),
            desired: Desired::new(settings, options.exclude.clone()),
            options,
            draining: Draining::default(),
            meter: Arc::default(),
            is_second_attempt: false,
            refusals: Refusals::default(),
            overflow: Vec::new(),
            missing: Vec::new(),
            written: Written::default(),
            device: 0,
            retiring: None,
        })
    }

    /// Reports the metrics of this data plane in `meter`.
    #[must_use]
    pub fn with_meter(self, meter: Arc<Meter>) -> Self {
        Self { meter, ..self }
    }

    /// Returns the number of draining endpoints.
    pub fn draining(&self) -> usize {
        self.draining.len()
    }

    fn follow(&mut self, changes: &Changes) -> Touched {
        let mut touched = Touched::default();
        self.desired.apply(changes, &mut touched);
        touched
    }

    fn manner(&self) -> WriteSettings<'_> {
        WriteSettings {
            default: self.options.scheduler,
            missing: self.missing.as_slice(),
            drained_by: UptimeSecs::now().after(self.options.drain),
        }
    }

    /// Writes a change. Returns `None` if everything has to be compared instead.
    fn change_or_compare(&mut self, touched: &Touched, table: &Table) -> Result<Option<Commit>, Error> {
        // In `excludeCIDRs`, a comparison first finds out whether another program has the virtual server.
        let mut new = touched.servers.iter().filter(|(_, former)| former.is_none());
        if new.any(|(key, _)| self.options.excludes(key.address)) || self.node_changed()? {
            return Ok(None);
        }
        let commit = self.change(touched, table)?;
        // If members of a full set go, Service ports that were left out may fit: only a comparison adds them.
        Ok((!self.refusals.makes_room(touched, &self.desired)).then_some(commit))
    }

    /// Writes a change.
    fn change(&mut self, touched: &Touched, table: &Table) -> Result<Commit, Error> {
        let difference = Difference::of_change(touched, &self.desired, &self.draining, self.manner());
        let commit = self.write(&difference, None, table)?;
        self.note_draining(&difference);
        Ok(commit)
    }

    /// Writes in an order in which every packet finds what it needs: first the members of sets, then rules, virtual
    /// servers, and last the addresses that bring packets to them. Removals go in the reverse order.
    fn write(
        &mut self,
        difference: &Difference,
        rules: Option<&rules::Present>,
        table: &Table,
    ) -> Result<Commit, Error> {
        let started = Instant::now();
        let restore = |part| rules.map(|present| self.rules.restore(present, part)).unwrap_or_default();
        let (before, after) = (restore(Part::Before), restore(Part::After));
        let device = self.device;
        let not_added = self.kernel.add(&difference.add)?;
        self.written.elements(difference.add.len(), not_added.len());
        let (overflow, mut refused): (Vec<Refused>, Vec<Refused>) =
            not_added.into_iter().partition(|refused| matches!(refused.error, Error::Full { .. }));
        if let Some(set) = overflow.iter().find_map(Refused::set) {
            self.overflow = overflow;
            return Err(Error::Full { set: set.name(self.desired.settings().family) });
        }
        self.restore(&before)?;
        self.written.objects(rules_in(&before));
        let mut note = |written: &mut Written, sent: usize, more: Vec<Refused>| {
            written.elements(sent, more.len());
            refused.extend(more);
        };
        let Difference { servers, bind, gone, unbind, remove, .. } = difference;
        note(&mut self.written, servers.len(), self.kernel.operate(servers)?);
        note(&mut self.written, bind.len(), self.kernel.bind(device, bind)?);
        self.restore(&after)?;
        self.written.objects(rules_in(&after));
        note(&mut self.written, gone.len(), self.kernel.operate(gone)?);
        note(&mut self.written, unbind.len(), self.kernel.unbind(device, unbind)?);
        note(&mut self.written, remove.len(), self.kernel.remove(remove)?);
        self.judge(refused, rules.map(|_| table))?;
        let Written { elements, objects } = std::mem::take(&mut self.written);
        let mut messages = Messages::default();
        let family = self.desired.settings().family;
        let lines = words::lines_of(difference, &before, &after, family);
        messages.extend(lines.filter(|line| line != "COMMIT"));
        Ok(Commit {
            messages,
            elements,
            objects,
            bytes: self.kernel.take_bytes().saturating_add(before.len()).saturating_add(after.len()),
            kernel: started.elapsed(),
            full: false,
            refused: self.refused(table),
        })
    }

    /// Reports what the kernel refuses again at a comparison (of the table `compared`), once. Any other refusal is an error, upon which
    /// everything is compared.
    fn judge(&mut self, refused: Vec<Refused>, compared: Option<&Table>) -> Result<(), Error> {
        let (lasting, surprises): (Vec<Refused>, _) =
            refused.into_iter().partition(|refused| self.is_second_attempt && refused.error.is_of_object());
        first_refusal(surprises)?;
        if let Some(table) = compared {
            self.refusals.take(&lasting, &self.desired, table);
        }
        Ok(())
    }

    fn note_draining(&mut self, difference: &Difference) {
        for (key, place) in &difference.settled {
            self.draining.remove(key, *place);
        }
        for (key, place, until) in &difference.draining {
            self.draining.add(*key, *place, *until);
        }
        self.meter.set_draining(self.draining.len());
    }

    /// Returns the Service ports that are not programmed completely.
    fn refused(&self, table: &Table) -> Vec<Refusal> {
        let mut refused = self.refusals.of(&self.desired, table);
        if !self.missing.is_empty() {
            let lacks = table.iter().filter(|(_, forwarding)| {
                forwarding.ipvs_scheduler.is_some_and(|scheduler| self.missing.contains(&scheduler))
            });
            refused.extend(lacks.map(|(name, _)| Refusal::whole(name.clone(), refusal::SCHEDULER)));
        }
        refused
    }

    fn programs(&self) -> Result<&Programs, Error> {
        self.programs.as_ref().ok_or(Error::NoPrograms)
    }

    pub(super) fn present_rules(&self) -> Result<rules::Present, Error> {
        let mut present = rules::Present::default();
        let rules = self.rules.looked_for();
        let rules: Vec<Candidate<'_>> =
            rules.iter().map(|(table, chain, rule)| (*table, *chain, rule.as_str())).collect();
        self.programs()?.save_all(&rules, |line| present.line(line))?;
        Ok(present)
    }

    fn restore(&self, text: &str) -> Result<(), Error> {
        if !text.is_empty() {
            self.programs()?.restore(|out| out.write_str(text)).map_err(Error::Rules)?;
        }
        Ok(())
    }

    /// Returns true if the addresses of this node have changed. Other addresses come and go with pods and do not
    /// count.
    fn node_changed(&mut self) -> Result<bool, Error> {
        if !self.kernel.addresses_changed(self.device)? {
            return Ok(false);
        }
        let addresses = self.kernel.addresses(self.device)?;
        Ok(!self.desired.has_node_addresses(&addresses.node))
    }

    /// Removes draining endpoints whose connections have ended or whose deadline has passed.
    fn drain(&mut self) -> Result<(), Error> {
        let now = UptimeSecs::now();
        let mut done = Vec::new();
        for (key, places) in self.draining.iter() {
            let present = self.kernel.real_servers(key)?;
            for (place, until) in places {
                let connections = present
                    .iter()
                    .find(|real| real.place == *place)
                    .map_or(0, |real| real.active.saturating_add(real.inactive));
                if connections == 0 || *until <= now {
                    done.push((*key, *place));
                }
            }
        }
        let operations: Vec<_> =
            done.iter().map(|(key, place)| Operation::DeleteReal(*key, *place)).collect();
        first_refusal(self.kernel.operate(&operations)?)?;
        for (key, place) in done {
            self.draining.remove(&key, place);
        }
        self.meter.set_draining(self.draining.len());
        Ok(())
    }
}

/// Returns the number of rules that a text for `iptables-restore` adds and removes.
fn rules_in(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with('-')).count()
}

impl Dataplane for Ipvs {
    fn about(&self) -> About {
        About { is_notified: false, claims: Some(self.claims()), ..About::of("ipvs") }
    }

    fn apply(&mut self, table: &Table, changes: &Changes) -> Result<Commit, portolan_engine::Error> {
        self.written = Written::default();
        let touched = self.follow(changes);
        match self.change_or_compare(&touched, table) {
            Ok(Some(commit)) => Ok(commit),
            // The node has other addresses, another program has the virtual server, a scheduler is missing, or a
            // set is or was full.
            Ok(None) | Err(Error::Refused { .. } | Error::Scheduler { .. } | Error::Full { .. }) => {
                Ok(self.load(table)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn compare(&mut self, table: &Table, changes: &Changes) -> Result<Commit, portolan_engine::Error> {
        self.written = Written::default();
        // The former objects are those of the former settings.
        self.follow(changes);
        if self.desired.configure(table) {
            self.rules = Rules::new(self.desired.settings());
        }
        self.has_new_scheduler()?;
        Ok(self.load(table)?)
    }

    fn check(&mut self, table: &Table) -> Result<Condition, portolan_engine::Error> {
        Ok(self.condition(table)?)
    }

    fn collect(&mut self) -> Result<Collection, portolan_engine::Error> {
        self.drain()?;
        Ok(if self.draining.is_empty() { Collection::Done } else { Collection::Continues })
    }

    /// Removes rules. Virtual servers stay as long as they have connections.
    fn remove_part(&mut self, takeover: &Takeover<'_>) -> Result<Removal, portolan_engine::Error> {
        // Connections of a retiring mode do not count as draining endpoints.
        self.meter.set_draining(0);
        let mut retiring = self.retiring.take().unwrap_or_default();
        let outcome = self.retire_step(&mut retiring, takeover);
        self.retiring = (!matches!(outcome, Ok(Removal::Done))).then_some(retiring);
        Ok(outcome?)
    }
}
